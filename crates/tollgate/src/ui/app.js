// @ts-check
// The shell: navigation, the router on the hash, logins, the theme, search.

import { debounce, h, link, newId, parseSubject, preference, put, setPreference, subjectLink } from "./core.js";
import { Problem, alerts, api, feed, session } from "./api.js";
import { button, dialog, empty, failure, field, formOf, icon, input, loading, mark, toast, toastProblem } from "./components.js";

/**
 * What a page gets. It puts its content into `root` and ends everything with `signal`.
 * @typedef {{root: HTMLElement, params: URLSearchParams, signal: AbortSignal, can: (right: string) => boolean,
 *   me: import("./api.js").Me, setParams: (params: Record<string, any>) => void, reload: () => void}} Page
 * @typedef {{title: string, show: (page: Page) => void | Promise<void>}} PageModule
 * @typedef {{id: string, label: string, group?: string, right?: string, icon?: string, styles?: string}} Entry
 */

/** All pages, each in `pages/<id>.js`, in the order of the navigation; without a group they are not in it. @type {Entry[]} */
const PAGES = [
  { id: "overview", label: "Overview", group: "Observe" },
  { id: "live", label: "Live", group: "Observe" },
  { id: "subject", label: "Subject", group: "Observe", right: "subjects" },
  { id: "rules", label: "Rules", group: "Limits" },
  { id: "rule", label: "Rule" },
  { id: "editor", label: "Editor", group: "Limits" },
  { id: "overrides", label: "Overrides", group: "Limits" },
  { id: "attributes", label: "Attributes", group: "Limits" },
  { id: "versions", label: "Versions", group: "Limits" },
  { id: "fleet", label: "Fleet", group: "System" },
  { id: "alerts", label: "Alerts", group: "System" },
  { id: "audit", label: "Audit", group: "System", right: "audit" },
  { id: "access", label: "Access", group: "System", right: "admin" },
];

const main = h("main", { id: "main", tabindex: -1 });
const navigation = h("nav", { class: "side", id: "navigation", "aria-label": "Pages" });
const bar = h("header", { class: "bar" });
const feedState = h("span", { class: "feed-state", role: "status" });
/** Ends what the page that is shown has started. */
let controller = new AbortController();

// The router.

/** The page and its parameters in the fragment. */
function currentLocation() {
  const [, id = "", query = ""] = /^#\/([a-z]*)\??(.*)$/.exec(location.hash) ?? [];
  return { entry: PAGES.find((page) => page.id === id) ?? PAGES[0], params: new URLSearchParams(query), isKnown: id === "" || PAGES.some((page) => page.id === id) };
}

/** @param {boolean} moves true if the reader came from another page */
async function route(moves) {
  controller.abort();
  controller = new AbortController();
  const { signal } = controller;
  if (!session.me) return showLogin();
  for (const open of document.querySelectorAll("dialog")) open.close();
  const { entry, params, isKnown } = currentLocation();
  const root = h("div", { class: "page", data: { page: entry.id } });
  // Not over the page that has taken its turn meanwhile.
  const late = setTimeout(() => signal.aborted || put(main, loading(6)), 150);
  closeNavigation();
  drawNavigation();
  document.title = `${entry.label} · Tollgate`;
  try {
    if (!isKnown) throw new Problem(404, { code: "not-found", detail: "there is no such page" });
    if (entry.right && !session.can(entry.right)) throw new Problem(403, { code: "forbidden", detail: `this page needs the right \`${entry.right}\`` });
    if (entry.styles) loadStyles(entry.styles);
    /** @type {PageModule} */
    const module = await import(`./pages/${entry.id}.js`);
    if (signal.aborted) return;
    document.title = `${module.title} · Tollgate`;
    const shown = module.show({
      root,
      params,
      signal,
      can: (right) => session.can(right),
      me: session.me,
      setParams: (to) => history.replaceState(null, "", link(entry.id, to)),
      reload: () => route(false),
    });
    clearTimeout(late);
    put(main, root);
    await shown;
  } catch (error) {
    clearTimeout(late);
    if (signal.aborted) return;
    // The files of a page that was opened before an upgrade are gone.
    const isOld = error instanceof TypeError && /module/i.test(error.message);
    const shown = isOld ? new Problem(0, { code: "updated", detail: "the server was updated since this page was opened; load it again" }) : error;
    put(main, h("div", { class: "page" }, failure(shown, () => (isOld ? location.reload() : route(false)))));
  }
  if (moves && !signal.aborted) {
    scrollTo(0, 0);
    /** @type {HTMLElement | null} */ (main.querySelector("h1"))?.focus({ preventScroll: true });
  }
}

/** Adds a stylesheet of some pages, once. @param {string} file */
function loadStyles(file) {
  const href = new URL(`./${file}`, import.meta.url).href;
  if (![...document.styleSheets].some((sheet) => sheet.href === href)) document.head.append(h("link", { rel: "stylesheet", href }));
}

// The frame.

function drawShell() {
  const skip = button("Skip to content", () => main.focus(), { kind: "primary" });
  skip.classList.add("skip");
  const menu = button("Pages", toggleNavigation, { kind: "quiet", icon: "menu", hidesLabel: true });
  menu.classList.add("menu-button");
  menu.setAttribute("aria-controls", navigation.id);
  menu.setAttribute("aria-expanded", "false");
  const find = button("Search", openSearch, { kind: "plain", icon: "search", title: "Search (Ctrl K)" });
  find.classList.add("find");
  find.append(h("kbd", { "aria-hidden": "true" }, "Ctrl K"));
  put(bar, menu, h("a", { class: "brand small-screen", href: "#/overview" }, logo(), "Tollgate"), find, h("span", { class: "space" }), feedState, themeButton(), userButton());
  put(document.body, skip, h("div", { class: "shell" }, navigation, h("div", { class: "column" }, bar, main)));
  drawNavigation();
}

/** The sign of the product: a gate, half open. */
function logo() {
  return h("span", { class: "logo", "aria-hidden": "true" });
}

function drawNavigation() {
  const current = currentLocation().entry.id;
  const shown = current === "rule" ? "rules" : current;
  const firing = alerts.firing?.length ?? 0;
  const groups = [...new Set(PAGES.map((page) => page.group).filter(Boolean))];
  put(
    navigation,
    h("a", { class: "brand", href: "#/overview" }, logo(), "Tollgate"),
    groups.map((group) => {
      const pages = PAGES.filter((page) => page.group === group && (!page.right || session.can(page.right)));
      if (pages.length === 0) return null;
      const id = newId("group");
      return h(
        "div",
        { class: "group" },
        h("h2", { id }, group),
        h(
          "ul",
          { "aria-labelledby": id },
          pages.map((page) =>
            h(
              "li",
              null,
              h(
                "a",
                { href: link(page.id), "aria-current": page.id === shown ? "page" : undefined },
                icon(page.icon ?? page.id),
                page.label,
                page.id === "alerts" && firing > 0 && h("span", { class: "count", title: `${firing} firing` }, firing),
              ),
            ),
          ),
        ),
      );
    }),
  );
}

function toggleNavigation() {
  const open = document.body.classList.toggle("navigating");
  document.querySelector(".menu-button")?.setAttribute("aria-expanded", String(open));
  if (open) /** @type {HTMLElement | null} */ (navigation.querySelector("a"))?.focus();
}

function closeNavigation() {
  document.body.classList.remove("navigating");
  document.querySelector(".menu-button")?.setAttribute("aria-expanded", "false");
}

const THEMES = /** @type {const} */ (["auto", "light", "dark"]);

/** @param {string} theme */
function setTheme(theme) {
  setPreference("theme", theme);
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
}

function themeButton() {
  const icons = { auto: "auto", light: "sun", dark: "moon" };
  const element = button("Theme", () => set(THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length]), { kind: "quiet", hidesLabel: true });
  const current = () => THEMES.find((theme) => theme === preference("theme", "auto")) ?? "auto";
  /** @param {typeof THEMES[number]} theme */
  const set = (theme) => {
    setTheme(theme);
    put(element, icon(icons[theme]));
    element.title = `Theme: ${theme}`;
    element.setAttribute("aria-label", `Theme: ${theme}`);
  };
  set(current());
  return element;
}

function userButton() {
  const me = session.me;
  if (!me) return null;
  const isGuest = me.kind === "view" || me.kind === "anonymous";
  const name = isGuest ? "Viewer" : me.name;
  const element = button(name, () => {
    const opened = dialog(name, [
      h("p", null, isGuest ? "You look on without a login. Viewers see everything but subjects, and change nothing." : `Role ${me.role}${me.domains.length ? ` in ${me.domains.join(", ")}` : ""}.`),
      h(
        "div",
        { class: "actions" },
        me.setup_open && button("Create the first admin", () => (opened.close(), showSetup("")), { kind: "primary" }),
        isGuest && !me.setup_open && button("Log in", () => (opened.close(), showLogin()), { kind: "primary" }),
        !isGuest && button("Log out", () => (opened.close(), session.logout()), { icon: "out" }),
      ),
    ]);
  }, { kind: "quiet", icon: "access", title: `${name}, ${me.role}` });
  element.classList.add("user");
  return element;
}

function drawFeedState() {
  const texts = { connecting: ["neutral", "Connecting"], live: ["allow", "Live"], polling: ["local", "Stream lost: polling every 2 s"], offline: ["deny", "No connection"] };
  const [kind, text] = texts[feed.state];
  put(feedState, mark(kind), h("span", null, text));
  feedState.dataset.state = feed.state;
}

// Logins.

/** A page of its own, before there is a session. @param {string} title @param {(Node | null)[]} content */
function showGate(title, ...content) {
  controller.abort();
  document.title = `${title} · Tollgate`;
  put(document.body, h("main", { class: "gate" }, h("div", { class: "gate-brand" }, logo(), h("span", null, "Tollgate")), h("section", { class: "card" }, h("h1", null, title), content)));
  /** @type {HTMLElement | null} */ (document.querySelector(".gate input"))?.focus();
}

/** @param {unknown} [error] */
function showLogin(error) {
  const form = formOf([field("Name", input("name", { autocomplete: "username", required: true })), field("Password", input("password", { type: "password", autocomplete: "current-password", required: true }))], {
    action: "Log in",
    submit: async ({ name, password }) => {
      await session.login({ name, password });
      start();
    },
  });
  showGate(
    "Log in",
    error ? failure(error) : null,
    form,
    h("p", { class: "hint" }, "A new server has no users: open the address that it printed at its start, with ", h("code", null, "#view="), " to look around or ", h("code", null, "#setup="), " to create the first admin."),
  );
}

/** @param {string} code */
function showSetup(code) {
  const form = formOf(
    [
      field("Code", input("code", { class: "mono", required: true, value: code, placeholder: "7K3F-9QXM-2HTD" }), { hint: "The server printed it at its start, after “setup:”. It works once." }),
      field("Name", input("name", { autocomplete: "username", required: true, maxlength: 64 })),
      field("Password", input("password", { type: "password", autocomplete: "new-password", minlength: 12, required: true }), { hint: "At least 12 characters." }),
    ],
    {
      action: "Create the admin",
      submit: async (values) => {
        await api.post("setup", { body: values });
        await session.load();
        start();
        toast(`${values.name} is the first admin, and is logged in.`, "allow");
      },
      cancel: session.me ? () => start() : undefined,
    },
  );
  showGate("First admin", form);
  if (code) /** @type {HTMLElement | null} */ (form.querySelector("[name=name]"))?.focus();
}

// Search.

function openSearch() {
  if (!session.me || document.querySelector("dialog[open]")) return;
  const list = h("div", { class: "results", role: "listbox", id: newId("results"), "aria-label": "Results" });
  const field = input("q", { type: "search", placeholder: "A page, a rule, or a subject such as user=u_1", "aria-label": "Search", role: "combobox", "aria-expanded": "true", "aria-controls": list.id, "aria-autocomplete": "list" });
  let active = 0;
  /** @type {{href: string, label: string, note: string, icon: string}[]} */
  let found = [];
  const draw = () => {
    active = Math.min(active, Math.max(found.length - 1, 0));
    put(
      list,
      found.length === 0
        ? empty("Nothing found")
        : found.map((item, index) =>
            h("a", { role: "option", id: `${list.id}-${index}`, "aria-selected": String(index === active), tabindex: -1, href: item.href, on: { click: () => opened.close() } }, icon(item.icon), h("span", null, item.label), h("span", { class: "faint" }, item.note)),
          ),
    );
    field.setAttribute("aria-activedescendant", found.length ? `${list.id}-${active}` : "");
    list.children[active]?.scrollIntoView({ block: "nearest" });
  };
  const pages = (/** @type {string} */ text) =>
    PAGES.filter((page) => page.group && (!page.right || session.can(page.right)) && page.label.toLowerCase().includes(text.toLowerCase())).map((page) => ({ href: link(page.id), label: page.label, note: "page", icon: page.icon ?? page.id }));
  const rules = debounce(async (/** @type {string} */ text) => {
    const { items } = await api.get("rules", { q: text, limit: 8 });
    if (field.value.trim() !== text) return;
    found = [...found.filter((item) => item.note !== "rule"), ...items.map((/** @type {any} */ rule) => ({ href: link("rule", { domain: rule.domain, id: rule.id }), label: `${rule.domain}/${rule.id}`, note: "rule", icon: "rules" }))];
    draw();
  }, 150);
  const look = () => {
    const text = field.value.trim();
    const subject = parseSubject(text);
    active = 0;
    found = [...(subject && session.can("subjects") ? [{ href: subjectLink("", subject), label: text, note: "explain this subject", icon: "subject" }] : []), ...pages(text)];
    draw();
    if (text) rules(text);
  };
  field.addEventListener("input", look);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      active = (active + (event.key === "ArrowDown" ? 1 : -1) + found.length) % Math.max(found.length, 1);
      draw();
    } else if (event.key === "Enter" && found[active]) {
      location.hash = found[active].href;
      opened.close();
    }
  });
  const opened = dialog("Search", [field, list]);
  opened.element.classList.add("palette");
  field.focus();
  look();
}

// The start.

/** Shows the dashboard to a caller who has a session. */
function start() {
  drawShell();
  drawFeedState();
  feed.start();
  alerts.start();
  route(false);
}

async function boot() {
  setTheme(preference("theme", "auto"));
  // Codes are in the fragment, which no log of a server contains, and they leave it at once.
  const codes = location.hash.startsWith("#/") ? new URLSearchParams() : new URLSearchParams(location.hash.slice(1));
  if (codes.has("setup") || codes.has("view")) history.replaceState(null, "", location.pathname);
  try {
    if (codes.has("setup")) {
      await session.load().catch(() => {});
      return showSetup(codes.get("setup") ?? "");
    }
    if (codes.has("view")) await api.post("session", { body: { view: codes.get("view") } });
    await session.load();
    start();
  } catch (error) {
    const isExpected = error instanceof Problem && error.status === 401 && !codes.has("view");
    showLogin(isExpected ? undefined : error);
  }
}

addEventListener("hashchange", () => route(true));
addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if ((event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing)) {
    event.preventDefault();
    openSearch();
  } else if (event.key === "Escape") {
    closeNavigation();
  }
});
addEventListener("unhandledrejection", (event) => {
  // A page that is left ends its requests.
  if (event.reason?.name === "AbortError") event.preventDefault();
  else toastProblem(event.reason);
});
session.addEventListener("expired", () => {
  for (const open of document.querySelectorAll("dialog")) open.remove();
  showLogin();
  toast("The session has ended; log in again.");
});
feed.addEventListener("state", drawFeedState);
feed.addEventListener("revision", (event) => {
  // The stream may be there for another tab only.
  if (!session.me) return;
  const { actor, kind, text, version } = /** @type {CustomEvent} */ (event).detail;
  const subject = kind === "publish" ? `published version ${version}` : kind === "rollback" ? `rolled back; version ${version} is live` : `changed ${kind === "row" ? "an override" : "a subject attribute"}`;
  toast(`${actor} ${subject}${text ? `: ${text}` : ""}`, "info");
});
alerts.addEventListener("change", () => session.me && drawNavigation());

boot();
