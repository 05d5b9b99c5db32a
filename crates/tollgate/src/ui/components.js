// @ts-check
// The parts that pages are made of. A part is a function that returns an element, or an object with `element` and what changes it.

import { ago, h, newId, put, s, time, subjectText } from "./core.js";
import { Problem } from "./api.js";

/**
 * @typedef {import("./core.js").Child} Child
 * @typedef {"allow" | "deny" | "shadow" | "local" | "info" | "neutral" | "warning" | "critical"} Kind
 */

// Icons and marks. Every result has a hue and a shape of its own.

/** @type {Record<string, string>} */
const ICONS = {
  overview: "M2.5 13.5v-5M6.2 13.5v-9M9.8 13.5v-6M13.5 13.5v-11",
  live: "M1.5 8.5h3l2-5 3 9 2-4h3",
  rules: "M2.5 3.5h11M2.5 8h7M2.5 12.5h4M12 10.5v4M10 12.5h4",
  subject: "M8 7.5a2.75 2.75 0 1 0 0-5.5 2.75 2.75 0 0 0 0 5.5ZM2.8 14c.5-2.7 2.5-4 5.2-4s4.7 1.3 5.2 4",
  editor: "M3 13l.7-3L10.5 3.2a1.5 1.5 0 0 1 2.3 2.3L6 12.3ZM9 5l2.2 2.2",
  overrides: "M2.5 5h7M12.5 5h1M2.5 11h1M6.5 11h7M11 3.5v3M5 9.5v3",
  attributes: "M2.5 3v5l5.5 5.5 5.5-5.5L8 2.5H3ZM5.5 5.5h.01",
  versions: "M8 4.5V8l2.5 1.5M2.3 8a5.7 5.7 0 1 0 1.7-4M2.2 2.2V4.5h2.3",
  audit: "M4 1.8h5.5L12.5 5v9.2H4ZM6.2 7.5h4M6.2 10.5h4",
  fleet: "M2.5 2.5h11v4.3h-11ZM2.5 9.2h11v4.3h-11ZM5 4.7h.01M5 11.4h.01",
  alerts: "M3.5 11.5c1-1 1-2 1-4a3.5 3.5 0 0 1 7 0c0 2 0 3 1 4ZM6.8 13.8h2.4",
  access: "M6 10a3.5 3.5 0 1 1 2.5-1L14 14.3M11.5 12l1.5-1.5",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9ZM10.5 10.5l3.5 3.5",
  copy: "M5.5 5.5h8v8h-8ZM2.5 10.5v-8h8",
  check: "M3 8.5l3.5 3.5L13 4.5",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  sun: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6ZM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13.5 9.5A5.8 5.8 0 0 1 6.5 2.5a5.8 5.8 0 1 0 7 7Z",
  auto: "M8 2.2a5.8 5.8 0 1 0 0 11.6ZM8 2.2a5.8 5.8 0 0 1 0 11.6",
  pause: "M5.5 3v10M10.5 3v10",
  play: "M4.5 2.8v10.4L13 8Z",
  right: "M6 3.5l4.5 4.5L6 12.5",
  down: "M3.5 6l4.5 4.5L12.5 6",
  table: "M2.5 3h11v10h-11ZM2.5 6.5h11M2.5 9.8h11M6.5 6.5v6.5",
  plus: "M8 3v10M3 8h10",
  out: "M6.5 2.5h-4v11h4M6.5 8h7M10.5 5l3 3-3 3",
  bolt: "M9 1.5L3.5 9H7.5L7 14.5 12.5 7H8.5Z",
};

/** A drawing beside a text; readers of screens skip it. @param {string} name */
export function icon(name) {
  return s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" }, s("path", { d: ICONS[name] ?? "" }));
}

/** The shape of a result: allow a disc, deny a diamond, shadow a ring, local a triangle. @param {string} kind */
export function mark(kind) {
  const shapes = {
    allow: () => s("circle", { cx: 5, cy: 5, r: 3.6 }),
    deny: () => s("path", { d: "M5 .6 9.4 5 5 9.4 .6 5Z" }),
    shadow: () => s("circle", { cx: 5, cy: 5, r: 3.2, class: "ring" }),
    local: () => s("path", { d: "M5 1 9.5 9H.5Z" }),
    warning: () => s("path", { d: "M5 1 9.5 9H.5Z" }),
    critical: () => s("path", { d: "M3 .8h4L9.2 3v4L7 9.2H3L.8 7V3Z" }),
    info: () => s("path", { d: "M1.5 1.5h7v7h-7Z" }),
    neutral: () => s("path", { d: "M1 4h8v2H1Z" }),
  };
  const shape = shapes[/** @type {keyof typeof shapes} */ (kind)] ?? shapes.neutral;
  return s("svg", { class: "mark", viewBox: "0 0 10 10", "aria-hidden": "true", data: { kind } }, shape());
}

/** A short text with the hue and the shape of its kind. @param {Kind} kind @param {string} text @param {{title?: string}} [props] */
export function badge(kind, text, props = {}) {
  return h("span", { class: "badge", data: { kind }, title: props.title }, mark(kind), text);
}

/** The mode of a rule as a badge. @param {string} mode */
export function modeBadge(mode) {
  const kinds = /** @type {Record<string, Kind>} */ ({ enforce: "allow", shadow: "shadow", disabled: "neutral" });
  return badge(kinds[mode] ?? "neutral", mode);
}

/** A value in the font of code. @param {Child} text */
export const code = (text) => h("code", null, text);

/** A subject as code; masked ones say so. @param {Record<string, string>} subject */
export const subject = (subject) => h("code", { class: "subject" }, subjectText(subject));

// Buttons.

/**
 * @param {string} label
 * @param {() => any} action
 * @param {{kind?: "primary" | "plain" | "quiet" | "danger", icon?: string, title?: string, small?: boolean, hidesLabel?: boolean, disabled?: boolean}} [props]
 */
export function button(label, action, props = {}) {
  const element = h(
    "button",
    {
      type: "button",
      class: `button ${props.kind ?? "plain"}${props.small ? " small" : ""}${props.hidesLabel ? " square" : ""}`,
      title: props.title ?? (props.hidesLabel ? label : undefined),
      "aria-label": props.hidesLabel ? label : undefined,
      disabled: props.disabled,
      on: { click: () => busy(element, action) },
    },
    props.icon && icon(props.icon),
    !props.hidesLabel && h("span", null, label),
  );
  return element;
}

/** Runs an action with its button disabled; a failure becomes a toast. @param {HTMLButtonElement} element @param {() => any} action */
async function busy(element, action) {
  const result = action();
  if (!(result instanceof Promise)) return;
  element.disabled = true;
  element.setAttribute("aria-busy", "true");
  try {
    await result;
  } catch (error) {
    toastProblem(error);
  } finally {
    element.disabled = false;
    element.removeAttribute("aria-busy");
  }
}

/** A link that looks like a button. @param {string} label @param {string} href @param {{kind?: string, icon?: string, small?: boolean}} [props] */
export function linkButton(label, href, props = {}) {
  return h("a", { class: `button ${props.kind ?? "plain"}${props.small ? " small" : ""}`, href }, props.icon && icon(props.icon), h("span", null, label));
}

/** Copies a text. @param {string} text @param {string} [label] */
export function copyButton(text, label = "Copy") {
  const element = button(
    label,
    async () => {
      await navigator.clipboard.writeText(text);
      put(element, icon("check"));
      toast("Copied");
      setTimeout(() => put(element, icon("copy")), 1500);
    },
    { kind: "quiet", icon: "copy", hidesLabel: true, small: true },
  );
  return element;
}

/** A block of code with a button that copies it. @param {string} text @param {string} label */
export function codeBlock(text, label) {
  return h("div", { class: "code-block" }, h("pre", { tabindex: 0, "aria-label": label }, h("code", null, text)), copyButton(text, `Copy ${label}`));
}

// The frame of a page.

/**
 * The header of a page.
 * @param {string} title
 * @param {{lead?: Child, actions?: Child[], back?: {label: string, href: string}, badges?: Child[]}} [props]
 */
export function pageHeader(title, props = {}) {
  return h(
    "header",
    { class: "page-header" },
    h(
      "div",
      { class: "page-title" },
      props.back && h("a", { class: "back", href: props.back.href }, `${props.back.label} `, h("span", { "aria-hidden": "true" }, "/")),
      h("h1", { tabindex: -1 }, title, props.badges && h("span", { class: "badges" }, props.badges)),
      props.lead && h("p", { class: "lead" }, props.lead),
    ),
    props.actions && h("div", { class: "actions" }, props.actions),
  );
}

/** A card with a heading. @param {string | null} title @param {{actions?: Child[], class?: string, note?: Child}} props @param {...Child} children */
export function card(title, props = {}, ...children) {
  const id = newId("card");
  return h(
    "section",
    { class: `card ${props.class ?? ""}`, "aria-labelledby": title ? id : undefined },
    title && h("div", { class: "card-head" }, h("h2", { id }, title), props.note && h("span", { class: "note" }, props.note), props.actions && h("div", { class: "actions" }, props.actions)),
    ...children,
  );
}

/**
 * A number with its name. `set` changes it.
 * @param {string} label
 * @param {{kind?: Kind, title?: string, chart?: Element}} [props]
 */
export function stat(label, props = {}) {
  const value = h("span", { class: "stat-value" }, "–");
  const note = h("span", { class: "stat-note" });
  const element = h("div", { class: "stat", title: props.title }, h("span", { class: "stat-label" }, props.kind && mark(props.kind), label), h("span", { class: "stat-line" }, value, note), props.chart);
  return {
    element,
    /** @param {string} text @param {Child} [aside] */
    set(text, aside) {
      if (value.textContent !== text) value.textContent = text;
      put(note, aside);
    },
  };
}

/** Names and values, without those that are not there. @param {([string, Child] | null | undefined | false)[]} pairs */
export function keyValues(pairs) {
  const rows = pairs.filter((pair) => pair !== null && pair !== undefined && pair !== false);
  return h("dl", { class: "key-values" }, rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

// States.

/** @param {string} title @param {Child} [text] @param {Child[]} [actions] */
export function empty(title, text, actions) {
  return h("div", { class: "state" }, h("p", { class: "state-title" }, title), text && h("p", null, text), actions && h("div", { class: "actions" }, actions));
}

/** Grey lines where text will be. @param {number} [lines] */
export function loading(lines = 4) {
  return h("div", { class: "loading", role: "status" }, h("span", { class: "hidden" }, "Loading"), Array.from({ length: lines }, () => h("div", { class: "bone" })));
}

/** An error with its code and the next step. @param {unknown} error @param {() => any} [retry] */
export function failure(error, retry) {
  const problem = error instanceof Problem ? error : new Problem(0, { code: "page", detail: String(/** @type {any} */ (error)?.message ?? error) });
  const problems = problem.body.problems ?? [];
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("p", { class: "failure-title" }, mark("critical"), h("span", null, problem.message), h("code", null, problem.code)),
    problem.next && h("p", null, problem.next),
    problems.length > 0 && problemList(problems),
    problem.body.instances?.length > 0 && h("p", null, `Instances: ${problem.body.instances.join(", ")}`),
    (problem.body.rejections ?? []).map((/** @type {any} */ one) => h("p", null, h("code", null, one.instance), ` ${one.problems.join("; ")}`)),
    problem.body.diff && diffView(problem.body.diff),
    retry && h("div", { class: "actions" }, button("Try again", retry, { small: true })),
  );
}

/** Problems of rules: location, text, hint. @param {any[]} problems */
export function problemList(problems) {
  return h(
    "ul",
    { class: "problems" },
    problems.map((problem) =>
      h(
        "li",
        null,
        badge(problem.severity === "warning" ? "warning" : "critical", problem.severity),
        problem.file && h("code", null, [problem.file, problem.line, problem.column].filter(Boolean).join(":")),
        h("span", null, problem.text),
        problem.hint && h("span", { class: "hint" }, problem.hint),
      ),
    ),
  );
}

// Toasts.

let toasts = /** @type {HTMLElement | null} */ (null);

/** A message that goes away. @param {Child} text @param {Kind} [kind] @param {Child} [action] */
export function toast(text, kind = "info", action) {
  toasts ??= h("div", { class: "toasts", role: "status", "aria-live": "polite", popover: "manual" });
  if (!toasts.isConnected) document.body.append(toasts);
  // In the top layer, above an open dialog.
  if (toasts.matches(":popover-open")) toasts.hidePopover();
  toasts.showPopover();
  const element = h("div", { class: "toast", data: { kind } }, mark(kind), h("span", null, text), action);
  const remove = () => element.remove();
  element.append(button("Dismiss", remove, { kind: "quiet", icon: "close", hidesLabel: true, small: true }));
  toasts.append(element);
  while (toasts.children.length > 4) toasts.firstElementChild?.remove();
  setTimeout(remove, kind === "critical" ? 15_000 : 5000);
}

/** An error as a message, with its code and the next step. @param {unknown} error */
export function toastProblem(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  const problem = /** @type {any} */ (error);
  toast([problem.message, problem.code && `(${problem.code})`, problem.next].filter(Boolean).join(" "), "critical");
}

// Dialogs.

/**
 * Opens a dialog; `close` ends it. `side` puts it at the right edge, as a drawer.
 * @param {string} title
 * @param {Child} body
 * @param {{side?: boolean, onClose?: () => void, actions?: Child[], wide?: boolean}} [props]
 */
export function dialog(title, body, props = {}) {
  const id = newId("dialog");
  const element = h(
    "dialog",
    { class: `${props.side ? "drawer" : "modal"}${props.wide ? " wide" : ""}`, "aria-labelledby": id },
    h("div", { class: "dialog-head" }, h("h2", { id }, title), button("Close", () => element.close(), { kind: "quiet", icon: "close", hidesLabel: true })),
    h("div", { class: "dialog-body" }, body),
    props.actions && h("div", { class: "dialog-foot" }, props.actions),
  );
  element.addEventListener("click", (event) => {
    if (event.target === element) element.close();
  });
  element.addEventListener("close", () => {
    element.remove();
    props.onClose?.();
  });
  document.body.append(element);
  element.showModal();
  return { element, close: () => element.close() };
}

/**
 * A dialog with a form. `submit` gets the values by name; while it rejects, the dialog stays and shows the error.
 * Resolves to what `submit` returned, or null if the dialog was closed.
 * @template T
 * @param {string} title
 * @param {Child} body the fields, made by `field`
 * @param {{action: string, danger?: boolean, submit: (values: Record<string, string>) => Promise<T> | T, wide?: boolean}} props
 * @returns {Promise<T | null>}
 */
export function formDialog(title, body, props) {
  return new Promise((resolve) => {
    /** @type {T | null} */
    let result = null;
    const form = formOf(body, {
      ...props,
      submit: async (values) => {
        result = await props.submit(values);
        opened.close();
      },
      cancel: () => opened.close(),
    });
    const opened = dialog(title, form, { wide: props.wide, onClose: () => resolve(result) });
    const first = /** @type {HTMLElement | null} */ (form.querySelector("[autofocus], input, textarea, select"));
    first?.focus();
  });
}

/**
 * Asks before something is done. With `reason` it also asks for one; null means that the dialog was closed.
 * @param {string} title
 * @param {Child} text
 * @param {{action: string, danger?: boolean, reason?: "required" | "optional", submit: (reason: string) => any}} props
 */
export function confirm(title, text, props) {
  const ask = props.reason && reasonField(props.reason === "required");
  return formDialog(title, [h("p", null, text), ask], {
    action: props.action,
    danger: props.danger,
    submit: async (values) => (await props.submit(values.reason ?? "")) ?? true,
  });
}

// Forms.

/**
 * A field with its label. The control gets the name; `hint` and errors are announced with it.
 * @param {string} label
 * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} control
 * @param {{hint?: Child, inline?: boolean}} [props]
 */
export function field(label, control, props = {}) {
  control.id ||= newId("field");
  const hint = props.hint ? h("p", { class: "hint", id: `${control.id}-hint` }, props.hint) : null;
  if (hint) control.setAttribute("aria-describedby", hint.id);
  const name = h("label", { for: control.id }, label);
  return h("div", { class: `field${props.inline ? " inline" : ""}` }, props.inline ? [control, name] : [name, control], hint);
}

/** A line of text. @param {string} name @param {Record<string, any>} [props] attributes, as of `h` */
export const input = (name, props = {}) => h("input", { type: "text", name, autocomplete: "off", spellcheck: "false", ...props });

/** Lines of text. @param {string} name @param {Record<string, any>} [props] */
export const textarea = (name, props = {}) => h("textarea", { name, rows: 3, ...props });

/** One of a few. @param {string} name @param {(string | [string, string])[]} options values, or values with texts @param {Record<string, any>} [props] */
export function select(name, options, props = {}) {
  return h(
    "select",
    { name, ...props },
    options.map((option) => {
      const [value, text] = Array.isArray(option) ? option : [option, option];
      return h("option", { value }, text);
    }),
  );
}

/** Yes or no; the value in a form is `true`. @param {string} name @param {string} label @param {{checked?: boolean, hint?: Child}} [props] */
export function checkbox(name, label, props = {}) {
  return field(label, h("input", { type: "checkbox", name, value: "true", checked: props.checked }), { hint: props.hint, inline: true });
}

/** The reason of a change. @param {boolean} required */
export function reasonField(required) {
  return field(required ? "Reason" : "Reason (optional)", input("reason", { maxlength: 500, required, placeholder: "ticket, person, why" }), {
    hint: "Kept in the audit log.",
  });
}

/**
 * A form that submits to a function; errors appear in it, problems with a `field` at their field.
 * @param {Child} body
 * @param {{action: string, danger?: boolean, submit: (values: Record<string, string>) => any, cancel?: () => void}} props
 */
export function formOf(body, props) {
  const errors = h("div", { class: "form-errors" });
  const submit = h("button", { class: `button ${props.danger ? "danger" : "primary"}` }, h("span", null, props.action));
  const form = h("form", { class: "form", novalidate: false }, body, errors, h("div", { class: "form-foot" }, submit, props.cancel && button("Cancel", props.cancel)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    submit.setAttribute("aria-busy", "true");
    put(errors);
    for (const element of form.querySelectorAll("[aria-invalid]")) element.removeAttribute("aria-invalid");
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]));
    try {
      await props.submit(values);
    } catch (error) {
      // Aborted on purpose: the form stays open, and nothing is wrong.
      if (error instanceof DOMException && error.name === "AbortError") return;
      const at = error instanceof Problem && error.body.field ? form.querySelector(`[name="${CSS.escape(error.body.field)}"]`) : null;
      at?.setAttribute("aria-invalid", "true");
      put(errors, failure(error));
    } finally {
      submit.disabled = false;
      submit.removeAttribute("aria-busy");
    }
  });
  return form;
}

/**
 * A choice of few, as connected buttons.
 * @param {string} label
 * @param {[string, string][]} options values with texts
 * @param {string} value
 * @param {(value: string) => void} change
 */
export function segmented(label, options, value, change) {
  const name = newId("choice");
  return h(
    "fieldset",
    { class: "segmented" },
    h("legend", { class: "hidden" }, label),
    options.map(([key, text]) =>
      h("label", null, h("input", { type: "radio", name, value: key, checked: key === value, on: { change: () => change(key) } }), h("span", null, text)),
    ),
  );
}

/** A field that filters, with a delay. @param {string} label @param {string} value @param {(text: string) => void} change */
export function searchField(label, value, change) {
  let timer = 0;
  const control = input("q", { type: "search", placeholder: label, "aria-label": label, value });
  control.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => change(control.value.trim()), 200);
  });
  return h("div", { class: "search" }, icon("search"), control);
}

/**
 * Tabs. Panels are made when they are first shown.
 * @param {string} label
 * @param {{id: string, label: string, panel: () => Node}[]} tabs
 * @param {string} [selected]
 * @param {(id: string) => void} [change]
 */
export function tabs(label, tabs, selected, change) {
  const made = new Map();
  const panels = h("div", { class: "tab-panels" });
  const list = h("div", { class: "tab-list", role: "tablist", "aria-label": label });
  const prefix = newId("tab");
  /** @param {string} id @param {boolean} focus */
  const show = (id, focus) => {
    for (const tab of list.children) {
      const on = tab.id === `${prefix}-${id}`;
      tab.setAttribute("aria-selected", String(on));
      tab.setAttribute("tabindex", on ? "0" : "-1");
      if (on && focus) /** @type {HTMLElement} */ (tab).focus();
    }
    if (!made.has(id)) {
      const content = tabs.find((tab) => tab.id === id)?.panel();
      const panel = h("div", { role: "tabpanel", id: `${prefix}-${id}-panel`, "aria-labelledby": `${prefix}-${id}`, tabindex: 0 }, content);
      made.set(id, panel);
      panels.append(panel);
    }
    for (const [other, panel] of made) panel.hidden = other !== id;
  };
  for (const tab of tabs) {
    list.append(
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `${prefix}-${tab.id}`,
          "aria-controls": `${prefix}-${tab.id}-panel`,
          on: {
            click: () => {
              show(tab.id, false);
              change?.(tab.id);
            },
          },
        },
        tab.label,
      ),
    );
  }
  list.addEventListener("keydown", (event) => {
    const steps = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowLeft: -1 });
    const at = [...list.children].findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    const to = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : at + (steps[event.key] ?? NaN);
    if (Number.isNaN(to)) return;
    event.preventDefault();
    const id = tabs[(to + tabs.length) % tabs.length].id;
    show(id, true);
    change?.(id);
  });
  show(tabs.some((tab) => tab.id === selected) ? String(selected) : tabs[0].id, false);
  return h("div", { class: "tabs" }, list, panels);
}

// Tables.

/**
 * @template Row
 * @typedef {{key: string, label: string, cell: (row: Row) => Child, numeric?: boolean, sort?: (row: Row) => string | number,
 *   priority?: 2 | 3, title?: string}} Column
 */

/**
 * A table. Either `load` reads it page by page, or `setRows` fills it. Columns with `sort` sort the rows that are shown.
 * On small screens a row becomes a list of its cells; with `stacks: false` it stays a row, and a column of `priority` 2 or 3 is left out.
 * @template Row
 * @param {{label: string, columns: Column<Row>[], load?: (after: string | null, signal: AbortSignal) => Promise<{items: Row[], next?: string | null, after?: string | null}>,
 *   empty?: () => Node, rowClass?: (row: Row) => string, select?: (row: Row) => void, sort?: {key: string, descending?: boolean}, dense?: boolean, stacks?: boolean}} props
 */
export function table(props) {
  /** @type {Row[]} */
  let rows = [];
  /** @type {string | null} */
  let next = null;
  let sorted = props.sort ?? null;
  let controller = new AbortController();
  const headings = new Map();
  const body = h("tbody");
  const foot = h("div", { class: "table-foot" });
  const note = h("div", { class: "table-state" });
  const head = h(
    "tr",
    null,
    props.columns.map((column) => {
      const cell = h("th", { scope: "col", class: cellClass(column), title: column.title });
      if (column.sort) {
        const toggle = h("button", { type: "button", class: "sort", on: { click: () => sortBy(column.key) } }, column.label);
        cell.append(toggle);
        headings.set(column.key, cell);
      } else {
        cell.append(column.label === "" ? h("span", { class: "hidden" }, column.title ?? "Actions") : column.label);
      }
      return cell;
    }),
  );
  const scroller = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": props.label }, h("table", { class: props.dense ? "dense" : "" }, h("thead", null, head), body));
  const element = h("div", { class: props.stacks === false ? "table" : "table stacks" }, scroller, note, foot);

  /** @param {string} key */
  function sortBy(key) {
    const column = props.columns.find((column) => column.key === key);
    const isSame = sorted?.key === key;
    sorted = { key, descending: isSame ? !sorted?.descending : Boolean(column?.numeric) };
    draw();
  }

  function draw() {
    const by = props.columns.find((column) => column.key === sorted?.key)?.sort;
    const shown = [...rows];
    if (by) {
      const direction = sorted?.descending ? -1 : 1;
      shown.sort((one, other) => {
        const [a, b] = [by(one), by(other)];
        return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
      });
    }
    for (const [key, cell] of headings) {
      cell.setAttribute("aria-sort", sorted?.key !== key ? "none" : sorted?.descending ? "descending" : "ascending");
    }
    // Focus on a link in the table survives a redraw.
    const focused = document.activeElement instanceof HTMLElement && body.contains(document.activeElement) ? [...body.querySelectorAll("a, button")].indexOf(document.activeElement) : -1;
    put(body, shown.map(line));
    if (focused >= 0) /** @type {HTMLElement | undefined} */ ([...body.querySelectorAll("a, button")][focused])?.focus();
    scroller.hidden = rows.length === 0;
    put(foot, next && button("Show more", () => more(), { small: true }), next && h("span", { class: "faint" }, `${rows.length} shown`));
  }

  /** @param {Row} row */
  function line(row) {
    const cells = props.columns.map((column, index) => {
      const content = column.cell(row);
      // On a narrow screen a row is a list of its cells, each with the name of its column.
      return h(index === 0 ? "th" : "td", { class: cellClass(column), scope: index === 0 ? "row" : undefined, data: column.label ? { label: column.label } : undefined }, content);
    });
    const element = h("tr", { class: `${props.rowClass?.(row) ?? ""}${props.select ? " selectable" : ""}` }, cells);
    if (props.select) {
      element.addEventListener("click", (event) => {
        const target = /** @type {Element} */ (event.target);
        if (!target.closest("a, button, input") && !getSelection()?.toString()) props.select?.(row);
      });
    }
    return element;
  }

  async function more() {
    if (!props.load) return;
    const { signal } = controller;
    const page = await props.load(next, signal);
    if (signal.aborted) return;
    rows = rows.concat(page.items);
    next = page.next ?? page.after ?? null;
    draw();
  }

  /** Reads the first page again. */
  async function reload() {
    controller.abort();
    controller = new AbortController();
    const { signal } = controller;
    if (rows.length === 0) put(note, loading(5));
    try {
      const page = await /** @type {NonNullable<typeof props.load>} */ (props.load)(null, signal);
      if (signal.aborted) return;
      setRows(page.items, page.next ?? page.after ?? null);
    } catch (error) {
      if (signal.aborted) return;
      rows = [];
      next = null;
      draw();
      put(note, failure(error, reload));
    }
  }

  /** @param {Row[]} items @param {string | null} [after] */
  function setRows(items, after = null) {
    rows = items;
    next = after;
    put(note, rows.length === 0 && (props.empty?.() ?? empty("Nothing here")));
    draw();
  }

  return { element, reload, setRows, draw, rows: () => rows };
}

/** @param {Column<any>} column */
const cellClass = (column) => [column.numeric && "numeric", column.priority && `p${column.priority}`].filter(Boolean).join(" ") || undefined;

/** A bar beside a number: the share of something. @param {Child} text @param {number} share 0 to 1 @param {string} kind */
export function shareBar(text, share, kind) {
  return h("span", { class: "share", data: { kind }, vars: { "--share": `${Math.round(1000 * Math.min(Math.max(share, 0), 1)) / 10}%` } }, h("span", { class: "share-bar", "aria-hidden": "true" }), h("span", { class: "share-text" }, text));
}

// Changes.

/** A unified diff, with signs as well as colours. @param {string} text */
export function diffView(text) {
  if (!text.trim()) return h("p", { class: "faint" }, "No differences.");
  const lines = text.replace(/\n$/, "").split("\n");
  return h(
    "pre",
    { class: "diff", tabindex: 0, "aria-label": "Differences" },
    lines.map((line) => {
      const kind = line.startsWith("+++") || line.startsWith("---") ? "file" : line.startsWith("@@") ? "hunk" : line.startsWith("+") ? "add" : line.startsWith("-") ? "remove" : "same";
      return h(kind === "add" ? "ins" : kind === "remove" ? "del" : "span", { class: "line", data: { kind } }, `${line}\n`);
    }),
  );
}

/** @type {Record<string, Kind>} */
const EFFECTS = {
  none: "neutral",
  stricter: "deny",
  looser: "allow",
  restart: "warning",
  expire: "neutral",
  starts_to_deny: "deny",
  no_longer_denies: "allow",
  other_requests: "warning",
};

/** A plan as `/v1/plan` returns it. @param {any} plan */
export function planView(plan) {
  const signs = /** @type {Record<string, string>} */ ({ changed: "~", added: "+", removed: "−" });
  const summary = `${plan.changed} changed, ${plan.added} added, ${plan.removed} removed, ${plan.unchanged} unchanged; format ${plan.format}, supported by ${plan.supported} of ${plan.instances} instances`;
  return h(
    "div",
    { class: "plan" },
    plan.lines.length === 0
      ? h("p", null, "No changes: the meaning is the same.")
      : h(
          "ul",
          { class: "plan-lines" },
          plan.lines.map((/** @type {any} */ line) =>
            h(
              "li",
              { data: { op: line.op } },
              h("span", { class: "sign", "aria-hidden": "true" }, signs[line.op]),
              h("span", { class: "hidden" }, line.op),
              h("code", null, `${line.domain}/${line.rule}`),
              h("span", { class: "what" }, line.what),
              line.effect && badge(EFFECTS[line.effect_kind] ?? "neutral", line.effect),
            ),
          ),
        ),
    plan.rows.map((/** @type {any} */ row) =>
      h(
        "div",
        { class: "plan-rows" },
        badge("warning", row.concern),
        h("span", null, `${row.count} override ${row.count === 1 ? "row" : "rows"} of `, h("code", null, `${row.domain}/${row.rule}`), CONCERNS[row.concern] ?? ""),
        h("ul", null, row.sample.map((/** @type {any} */ one) => h("li", null, h("code", null, one.subject), ` ${one.terms}`))),
      ),
    ),
    h("p", { class: "plan-summary" }, summary),
  );
}

/** @type {Record<string, string>} */
const CONCERNS = { above: " are above the new limit.", invalid: " do not fit the new rule.", orphaned: " lose their rule." };

/** Who changed something, and when. @param {string} actor @param {number} at @param {string} [reason] */
export function authored(actor, at, reason) {
  return h("span", { class: "authored" }, h("strong", null, actor || "unknown"), " ", time(at, "ago"), reason ? h("span", { class: "reason" }, ` “${reason}”`) : null);
}

/** A short form of a digest, in full on hover. @param {string} text */
export const digest = (text) => h("code", { title: text }, text.slice(0, 12));

/** The age of something as a text for titles. @param {number} at */
export const since = (at) => ago(at);
