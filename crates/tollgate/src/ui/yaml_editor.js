// @ts-check
// A field for rule files: line numbers, marks of problems, colours, indentation by Tab, completion from the JSON Schema. The field itself
// is a textarea; numbers and colours are painted beside and above it for the lines in view only.

import { h, newId, put, setVars } from "./core.js";
import { completions, newLine, shiftLines } from "./yaml_text.js";

/**
 * @typedef {{severity: string, file: string | null, line: number | null, column: number | null, width: number | null, text: string,
 *   hint: string | null}} SetProblem
 * @typedef {{label: string, value?: string, isReadOnly?: boolean, describedBy?: string, schema?: () => any,
 *   onInput?: (text: string) => void}} EditorOptions
 */

/** The longest line that is coloured. */
const COLOURED_MAX = 2000;

/** @param {EditorOptions} options */
export function yamlEditor(options) {
  return new YamlEditor(options);
}

class YamlEditor {
  /** @type {string[]} */
  #lines = [""];
  /** The problems of this file by line. @type {Map<number, SetProblem[]>} */
  #marks = new Map();
  /** @type {import("./yaml_text.js").Completions | null} */
  #found = null;
  #chosen = 0;
  #leaves = false;
  #frame = 0;

  /** @param {EditorOptions} options */
  constructor(options) {
    this.options = options;
    const id = newId("yaml");
    this.gutter = h("div", { class: "yaml-gutter", "aria-hidden": "true" });
    this.paint = h("div", { class: "yaml-paint", "aria-hidden": "true" });
    this.popup = h("ul", { class: "yaml-popup", id: `${id}-list`, role: "listbox", "aria-label": "Completions", hidden: true });
    this.status = h("p", { class: "hidden", role: "status" });
    this.hint = h("p", { class: "yaml-hint faint", id: `${id}-hint` }, "Tab indents. Escape, then Tab, leaves the field. Ctrl+Space lists what can be written.");
    this.field = h("textarea", {
      class: "yaml-field",
      "aria-label": options.label,
      "aria-autocomplete": "list",
      "aria-haspopup": "listbox",
      "aria-controls": `${id}-list`,
      "aria-describedby": [options.describedBy, `${id}-hint`].filter(Boolean).join(" "),
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      wrap: "off",
      rows: "20",
      readonly: options.isReadOnly,
      on: {
        input: () => this.#typed(),
        keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
        scroll: () => this.#schedule(),
        blur: () => this.#close(),
        pointerdown: () => this.#close(),
      },
    });
    this.element = h("div", { class: "yaml" }, h("div", { class: "yaml-box" }, this.gutter, h("div", { class: "yaml-view" }, this.field, this.paint, this.popup)), this.status, options.isReadOnly ? null : this.hint);
    if ("ResizeObserver" in window) new ResizeObserver(() => this.#schedule()).observe(this.field);
    this.value = options.value ?? "";
  }

  get value() {
    return this.field.value;
  }

  set value(text) {
    this.field.value = text;
    this.field.setSelectionRange(0, 0);
    this.field.scrollTop = 0;
    this.#changed();
  }

  /** True if the text cannot be changed. @param {boolean} isReadOnly */
  setReadOnly(isReadOnly) {
    this.field.readOnly = isReadOnly;
    this.hint.hidden = isReadOnly;
  }

  /** Marks lines. @param {SetProblem[]} problems those of this file */
  setProblems(problems) {
    this.#marks = new Map();
    for (const problem of problems) {
      if (problem.line) this.#marks.set(problem.line, [...(this.#marks.get(problem.line) ?? []), problem]);
    }
    if (problems.some(({ severity }) => severity === "error")) this.field.setAttribute("aria-invalid", "true");
    else this.field.removeAttribute("aria-invalid");
    this.#schedule();
  }

  /** Selects a place, and scrolls there. Lines and columns start at 1. @param {number} line @param {number} [column] @param {number} [width] */
  goTo(line, column = 1, width = 0) {
    let offset = 0;
    for (let number = 1; number < line && number <= this.#lines.length; number += 1) offset += this.#lines[number - 1].length + 1;
    const from = Math.min(offset + column - 1, this.value.length);
    this.field.focus();
    this.field.setSelectionRange(from, Math.min(from + width, this.value.length));
    this.field.scrollTop = Math.max(0, (line - 1) * this.#lineHeight() - this.field.clientHeight / 3);
    this.#schedule();
  }

  #lineHeight() {
    return Number.parseFloat(getComputedStyle(this.field).lineHeight) || 20;
  }

  #typed() {
    this.#changed();
    this.options.onInput?.(this.value);
    this.#complete(false);
  }

  #changed() {
    this.#lines = this.value.split("\n");
    this.#schedule();
  }

  #schedule() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #draw() {
    const height = this.#lineHeight();
    const { scrollTop, scrollLeft, clientHeight } = this.field;
    const first = Math.floor(scrollTop / height);
    const last = Math.min(this.#lines.length, first + Math.ceil(clientHeight / height) + 1);
    /** @type {Node[]} */
    const numbers = [];
    /** @type {Node[]} */
    const painted = [];
    for (let index = first; index < last; index += 1) {
      const problems = this.#marks.get(index + 1);
      const isError = problems?.some(({ severity }) => severity === "error");
      const data = problems ? { mark: isError ? "error" : "warning" } : {};
      numbers.push(h("span", { class: "yaml-number", data }, index + 1));
      const marks = (problems ?? []).map((problem) => {
        const from = Math.max(0, (problem.column ?? 1) - 1);
        const width = Math.max(1, problem.width ?? 1);
        return h("span", { class: "yaml-mark", data: { mark: problem.severity }, vars: { "--from": String(from), "--width": String(width) } });
      });
      painted.push(h("div", { class: "yaml-line" }, coloured(this.#lines[index]), marks));
    }
    put(this.gutter, h("div", { class: "yaml-numbers", vars: { "--top": `${first * height - scrollTop}px` } }, numbers));
    put(this.paint, h("div", { class: "yaml-lines", vars: { "--top": `${first * height - scrollTop}px`, "--left": `${-scrollLeft}px` } }, painted));
    setVars(this.element, { "--digits": String(Math.max(2, String(this.#lines.length).length)) });
    if (!this.popup.hidden) this.#place();
  }

  /** Replaces a part of the text, so that the browser can undo it. @param {number} start @param {number} end @param {string} text */
  #insert(start, end, text) {
    this.field.setSelectionRange(start, end);
    if (!document.execCommand("insertText", false, text)) {
      this.field.setRangeText(text, start, end, "end");
      this.#typed();
    }
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    // Shift comes before Shift-Tab.
    if (["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    const leaves = this.#leaves;
    this.#leaves = false;
    if (this.field.readOnly || event.isComposing) return;
    if (!this.popup.hidden && this.#keyInPopup(event)) {
      event.preventDefault();
      return;
    }
    const { selectionStart: from, selectionEnd: to } = this.field;
    if (event.key === "Escape") {
      this.#leaves = true;
      this.status.textContent = "Tab leaves the field.";
    } else if (event.key === "Tab" && !leaves && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      if (from === to && !event.shiftKey) {
        this.#insert(from, to, " ".repeat(2 - ((from - this.value.lastIndexOf("\n", from - 1) - 1) % 2)));
      } else {
        const moved = shiftLines(this.value, from, to, event.shiftKey);
        if (moved.insert !== this.value.slice(moved.start, moved.end)) this.#insert(moved.start, moved.end, moved.insert);
        this.field.setSelectionRange(moved.from, moved.to);
      }
      this.#close();
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.#insert(from, to, newLine(this.value, from));
      this.#close();
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.#complete(true);
    } else if (["ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown"].includes(event.key)) {
      this.#close();
    }
  }

  /** True if the key was for the list. @param {KeyboardEvent} event */
  #keyInPopup(event) {
    const count = this.#found?.items.length ?? 0;
    switch (event.key) {
      case "ArrowDown":
      case "ArrowUp":
        this.#choose((this.#chosen + (event.key === "ArrowDown" ? 1 : count - 1)) % count);
        return true;
      case "Enter":
      case "Tab":
        if (event.shiftKey) return false;
        this.#accept();
        return true;
      case "Escape":
        this.#close();
        return true;
      default:
        return false;
    }
  }

  /** @param {boolean} isAsked */
  #complete(isAsked) {
    const { selectionStart: from, selectionEnd: to } = this.field;
    const schema = this.options.schema?.();
    this.#found = schema && from === to ? completions(schema, this.value, from, isAsked) : null;
    if (!this.#found) {
      this.#close();
      if (isAsked) this.status.textContent = "Nothing to complete here.";
      return;
    }
    const options = this.#found.items.map((item, number) => {
      const option = h("li", { role: "option", id: `${this.popup.id}-${number}`, "aria-selected": "false" }, h("span", { class: "yaml-label" }, item.label), item.detail ? h("span", { class: "yaml-detail" }, item.detail) : null);
      option.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        this.#chosen = number;
        this.#accept();
      });
      return option;
    });
    put(this.popup, options);
    this.popup.hidden = false;
    this.status.textContent = `${options.length === 1 ? "1 completion" : `${options.length} completions`}, choose with the arrow keys.`;
    this.#choose(0);
    this.#place();
  }

  /** @param {number} number */
  #choose(number) {
    this.#chosen = number;
    [...this.popup.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === number)));
    const option = this.popup.children[number];
    this.field.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  }

  #accept() {
    const found = this.#found;
    const item = found?.items[this.#chosen];
    if (!found || !item) return;
    const caret = this.field.selectionStart;
    this.#insert(found.from, caret, item.insert);
    this.#close();
    // After a key its values follow, if there are few.
    if (item.insert.endsWith(": ")) this.#complete(true);
  }

  #close() {
    if (this.popup.hidden) return;
    this.popup.hidden = true;
    this.#found = null;
    this.field.removeAttribute("aria-activedescendant");
    this.status.textContent = "";
  }

  /** Puts the list below the word that it completes, or above it if there is no room. */
  #place() {
    const from = this.#found?.from ?? 0;
    const start = this.value.lastIndexOf("\n", from - 1) + 1;
    const line = this.value.slice(0, start).split("\n").length - 1;
    const height = this.#lineHeight();
    const top = (line + 1) * height - this.field.scrollTop;
    const isAbove = top + this.popup.offsetHeight > this.field.clientHeight && top - height > this.popup.offsetHeight;
    const at = isAbove ? top - height - this.popup.offsetHeight : top;
    setVars(this.popup, { "--top": `${at}px`, "--left": `${-this.field.scrollLeft}px`, "--from": String(from - start) });
  }
}

const TOKEN = /(#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|([\w.:/*-]+)(?=\s*:(?:\s|$))|((?:^|(?<=[\s,:[{]))[0-9][0-9_]*(?:\.[0-9]+)?(?:%|\/\w+)?(?=[\s,\]}]|$))|(\b(?:true|false|unlimited|burst)\b)|([-{}[\],:])/g;
const KINDS = ["comment", "text", "key", "number", "word", "sign"];

/**
 * A line in colours.
 * @param {string} line
 * @returns {(Node | string)[]}
 */
export function coloured(line) {
  if (line.length > COLOURED_MAX) return [line];
  /** @type {(Node | string)[]} */
  const parts = [];
  let end = 0;
  for (const match of line.matchAll(TOKEN)) {
    const kind = match.slice(1).findIndex((group) => group !== undefined);
    // A comment starts after a space.
    if (kind === 0 && match.index > 0 && !/\s/.test(line[match.index - 1])) continue;
    if (match.index < end) continue;
    if (match.index > end) parts.push(line.slice(end, match.index));
    parts.push(h("span", { class: `y-${KINDS[kind]}` }, match[0]));
    end = match.index + match[0].length;
  }
  if (end < line.length) parts.push(line.slice(end));
  return parts;
}
