// @ts-check
// Elements, formats and preferences. Nothing here knows the server.

/**
 * @typedef {Node | string | number | null | undefined | false} Single
 * @typedef {Single | any[]} Child what an element may contain; lists may contain lists, and what is null or false is left out
 * @typedef {Record<string, any>} Props
 * @typedef {Record<string, string>} Subject
 */

/**
 * An element. Props: `class`, `text`, `on` ({click: f}), `data` ({kind: "deny"}), `vars` (CSS custom properties); a property that
 * is true or false becomes an attribute that is there or not; everything else is an attribute.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/**
 * An SVG element, with the props of `h`.
 * @param {string} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function s(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Props | null | undefined} props
 * @param {Child[]} children
 * @returns {E}
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, f] of Object.entries(value)) element.addEventListener(event, f);
    else if (name === "text") element.textContent = String(value);
    else if (name === "data") for (const [key, text] of Object.entries(value)) element.setAttribute(`data-${key}`, String(text));
    else if (name === "vars") setVars(element, value);
    else if (name !== "value" || !("value" in element)) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  // Last: the value of a select is one of its options.
  if (props?.value !== undefined && props.value !== null && "value" in element) /** @type {any} */ (element).value = props.value;
  return element;
}

/**
 * Sets CSS custom properties, which no policy forbids.
 * @param {Element} element
 * @param {Record<string, string>} vars
 */
export function setVars(element, vars) {
  const { style } = /** @type {HTMLElement} */ (element);
  for (const [name, value] of Object.entries(vars)) style.setProperty(name, value);
}

/**
 * Replaces the children of an element.
 * @param {Element} element
 * @param {...Child} children
 */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/** The nodes and texts in lists of lists. @param {Child[]} children @returns {(Node | string)[]} */
function nodes(children) {
  return children.flatMap((child) => {
    if (child === null || child === undefined || child === false) return [];
    if (Array.isArray(child)) return nodes(child);
    return [child instanceof Node ? child : String(child)];
  });
}

let lastId = 0;

/** A new id for `aria-describedby` and the like. @param {string} [prefix] */
export function newId(prefix = "id") {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

// Formats. Numbers have the separators of the browser's language, and one form everywhere.

const plain = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });

/** A count: `8 412`, from 100,000 on `1.2M`. @param {number | null | undefined} n */
export function count(n) {
  if (n === null || n === undefined) return "–";
  return Math.abs(n) >= 100_000 ? short.format(n) : plain.format(n);
}

/** A rate per second: `0.3`, `12`, `8 412`. @param {number | null | undefined} n */
export function rate(n) {
  if (n === null || n === undefined) return "–";
  return n !== 0 && Math.abs(n) < 10 ? n.toLocaleString(undefined, { maximumFractionDigits: 1 }) : count(n);
}

/** A share: `0 %`, `< 0.1 %`, `3.0 %`, `57 %`. @param {number} part @param {number} whole */
export function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  if (share === 0) return "0 %";
  if (share < 0.1) return "< 0.1 %";
  // Always a decimal below ten, so that numbers below each other are aligned.
  const digits = share < 9.95 ? 1 : 0;
  return `${share.toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits })} %`;
}

/** Microseconds: `840 µs`, `1.2 ms`, `3.4 s`. @param {number | null | undefined} us */
export function micros(us) {
  if (us === null || us === undefined) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  return duration(us / 1000);
}

/** Milliseconds, in the largest unit that suits: `12 ms`, `1.2 s`, `5 min`, `3 h`, `2 days`. @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const abs = Math.abs(ms);
  const [divisor, unit] =
    abs < 1000 ? [1, "ms"] : abs < 90_000 ? [1000, "s"] : abs < 5_400_000 ? [60_000, "min"] : abs < 129_600_000 ? [3_600_000, "h"] : [86_400_000, "days"];
  const value = ms / divisor;
  return `${value.toLocaleString(undefined, { maximumFractionDigits: Math.abs(value) < 10 && unit !== "days" ? 1 : 0 })} ${unit}`;
}

/** A subject as people write it: `merchant=m_42, region=eu`. @param {Subject | null | undefined} subject */
export function subjectText(subject) {
  const pairs = Object.entries(subject ?? {});
  return pairs.length === 0 ? "everything" : pairs.map(([name, value]) => `${name}=${value}`).join(", ");
}

/**
 * The page of a subject as a link. An attribute may have the name of the parameter of the domain: then it has a prefix.
 * @param {string | null | undefined} domain
 * @param {Subject} subject
 */
export function subjectLink(domain, subject) {
  const named = Object.entries(subject).map(([name, value]) => [name === "domain" || name.startsWith(PREFIX) ? PREFIX + name : name, value]);
  return link("subject", { domain: domain === "default" ? "" : domain, ...Object.fromEntries(named) });
}

/** The domain and the attributes of such a link. @param {URLSearchParams} params @returns {{domain: string, attributes: Subject}} */
export function linkedSubject(params) {
  const attributes = [...params].filter(([name]) => name !== "domain").map(([name, value]) => [name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name, value]);
  return { domain: params.get("domain") || "default", attributes: Object.fromEntries(attributes) };
}

/** Before names of attributes that are something else in a link. */
const PREFIX = "attribute.";

/**
 * The subject in a text such as `merchant=m_42 region=eu` or `merchant=m_42, region=eu`; null if it is none.
 * @param {string} text
 * @returns {Subject | null}
 */
export function parseSubject(text) {
  const parts = text.split(/[,;\s]+/).filter(Boolean);
  const pairs = parts.map((part) => [part.slice(0, Math.max(part.indexOf("="), 0)), part.slice(part.indexOf("=") + 1)]);
  return parts.length > 0 && pairs.every(([name]) => name !== "") ? Object.fromEntries(pairs) : null;
}

// Times: local, with UTC on hover.

const dayTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" });
const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minuteTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** Date and time, local. @param {number} ms */
export const dateTime = (ms) => dayTime.format(ms);
/** The time of day with seconds, local. @param {number} ms */
export const clock = (ms) => clockTime.format(ms);
/** The time of day with minutes, local. @param {number} ms */
export const clockMinutes = (ms) => minuteTime.format(ms);
/** UTC, for titles. @param {number} ms */
export const utc = (ms) => `${new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, "")} UTC`;

/** `just now`, `3 min ago`, `in 2 h`. @param {number} ms @param {number} [now] */
export function ago(ms, now = Date.now()) {
  const past = now - ms;
  if (Math.abs(past) < 5000) return "just now";
  return past > 0 ? `${duration(Math.round(past / 1000) * 1000)} ago` : `in ${duration(Math.round(-past / 1000) * 1000)}`;
}

/**
 * A time: `ago` (kept current), `clock` or `date`. 0 is never.
 * @param {number | null | undefined} ms
 * @param {"ago" | "clock" | "date"} [form]
 */
export function time(ms, form = "date") {
  if (!ms) return h("span", { class: "faint" }, "never");
  const text = form === "ago" ? ago(ms) : form === "clock" ? clock(ms) : dateTime(ms);
  const title = form === "ago" ? `${dateTime(ms)} · ${utc(ms)}` : utc(ms);
  return h("time", { datetime: new Date(ms).toISOString(), title, data: form === "ago" ? { ago: ms } : {} }, text);
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const text = ago(Number(element.getAttribute("data-ago")));
    if (element.textContent !== text) element.textContent = text;
  }
}, 5000);

// Preferences of this browser. Private windows may refuse to store them.

/** @param {string} name @param {string} fallback */
export function preference(name, fallback) {
  try {
    return localStorage.getItem(`tollgate.${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

/** @param {string} name @param {string} value */
export function setPreference(name, value) {
  try {
    localStorage.setItem(`tollgate.${name}`, value);
  } catch {
    // It lasts as long as the page.
  }
}

/** Calls `f` at most once per `ms`, with the last arguments. @template {any[]} A @param {(...args: A) => void} f @param {number} ms */
export function throttle(f, ms) {
  let last = -Infinity;
  let timer = 0;
  /** @param {A} args */
  return (...args) => {
    clearTimeout(timer);
    const wait = last + ms - performance.now();
    const run = () => {
      last = performance.now();
      f(...args);
    };
    if (wait <= 0) run();
    else timer = window.setTimeout(run, wait);
  };
}

/** Calls `f` once nothing has called for `ms`. @template {any[]} A @param {(...args: A) => void} f @param {number} ms */
export function debounce(f, ms) {
  let timer = 0;
  /** @param {A} args */
  return (...args) => {
    clearTimeout(timer);
    timer = window.setTimeout(() => f(...args), ms);
  };
}

/** The address of a page: `link("rule", {domain, id})` is `#/rule?domain=…&id=…`. @param {string} page @param {Record<string, any>} [params] */
export function link(page, params = {}) {
  const pairs = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `#/${page}${query && `?${query}`}`;
}
