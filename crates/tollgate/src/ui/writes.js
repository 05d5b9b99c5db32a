// @ts-check
// What pages with tables that can be changed have in common: ends of rows, conflicts, imports, exports.

import { dateTime, h, put } from "./core.js";
import { Problem, api, request } from "./api.js";
import { button, dialog, failure, field, formOf, reasonField, textarea, toast } from "./components.js";

/** A time as a field for local times has it. @param {number} ms */
export function localValue(ms) {
  if (!ms) return "";
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return at.toISOString().slice(0, 16);
}

/** The time in such a field; 0 if it is empty. @param {string} value */
export const timeOf = (value) => (value ? new Date(value).getTime() : 0);

/** Ends that are often wanted. @returns {[string, number][]} */
function ends() {
  const now = new Date();
  const at = (/** @type {number} */ days, /** @type {number | null} */ hour) => {
    const end = new Date(now);
    end.setDate(end.getDate() + days);
    if (hour !== null) end.setHours(hour, 0, 0, 0);
    return end.getTime();
  };
  const toFriday = (5 - now.getDay() + 7) % 7 || 7;
  return [["In 1 hour", now.getTime() + 3_600_000], ["Tomorrow", at(1, null)], ["Friday evening", at(toFriday, 18)], ["In a week", at(7, null)], ["No end", 0]];
}

/**
 * A field for an end, named `until`, with buttons for those that are often wanted.
 * @param {string} label
 * @param {number} [value]
 */
export function untilField(label, value = 0) {
  const control = h("input", { type: "datetime-local", name: "until", value: localValue(value), step: "60" });
  const made = field(label, control, { hint: "Your local time. Without an end it stays until it is deleted." });
  made.append(
    h(
      "div",
      { class: "choices", role: "group", "aria-label": `${label}: usual ends` },
      ends().map(([text, ms]) => button(text, () => void (control.value = localValue(ms)), { small: true, title: ms ? dateTime(ms) : "It stays until it is deleted" })),
    ),
  );
  return made;
}

/**
 * Sends a write with a condition. If someone was faster it shows what they did, and asks.
 * Resolves to the response, or to null if their change stays.
 * @template T
 * @param {(match: string | null) => Promise<T>} send
 * @param {string | null} match the tag that was read; null: it must not exist
 * @returns {Promise<T | null>}
 */
export async function write(send, match) {
  try {
    return await send(match);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== "stale") throw error;
    return conflict(error, send);
  }
}

/**
 * @template T
 * @param {Problem} error
 * @param {(match: string | null) => Promise<T>} send
 * @returns {Promise<T | null>}
 */
function conflict(error, send) {
  return new Promise((resolve, reject) => {
    let isDone = false;
    const { author, at, reason, current, etag } = error.body;
    const who = h("p", null, h("strong", null, author || "Someone"), ` changed it${at ? ` at ${dateTime(at)}` : ""}${reason ? `: “${reason}”` : ""}. ${current ? "The differences lead from what is there to what you sent." : "It is deleted now."}`);
    const repeat = async () => {
      isDone = true;
      opened.close();
      await write(send, current ? etag : null).then(resolve, reject);
    };
    const opened = dialog("Changed meanwhile", [who, failure(error)], {
      actions: [button("Replace it with mine", repeat, { kind: "danger" }), button("Keep what is there", () => opened.close())],
      onClose: () => isDone || resolve(null),
    });
  });
}

/** Rows that an export in the browser collects. */
const EXPORT_MAX = 100_000;

/**
 * Saves a list as a file, page by page.
 * @param {string} path such as `overrides/export`
 * @param {Record<string, any>} query
 * @param {string} name of the file
 */
export async function download(path, query, name) {
  /** @type {string[]} */
  const parts = [];
  let after = "";
  let rows = 0;
  do {
    const response = await request("GET", path, { query: { ...query, limit: 10_000, after } });
    const text = await response.text();
    // Only the first part has the names of the columns.
    parts.push(parts.length > 0 && query.format === "csv" ? text.slice(text.indexOf("\n") + 1) : text);
    rows += text.split("\n").length - 1;
    after = response.headers.get("x-tollgate-next") ?? "";
  } while (after && rows < EXPORT_MAX);
  saveFile(parts, name, query.format === "csv" ? "text/csv" : "application/x-ndjson");
  toast(after ? `The first ${rows} lines; for all of them use the command line.` : `${name} is saved`, after ? "warning" : "info");
}

/** Gives the reader a file. @param {string[]} parts @param {string} name @param {string} type */
export function saveFile(parts, name, type) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  const anchor = h("a", { href: address, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/**
 * Reads rows from a file or a text, tries them, shows what would change, and sends them.
 * @param {{title: string, path: string, columns: string, example: string}} props
 * @returns {Promise<boolean>} true if something changed
 */
export function importDialog({ title, path, columns, example }) {
  const text = textarea("text", { rows: 8, class: "mono", required: true, spellcheck: "false", placeholder: example, wrap: "off" });
  const file = h("input", { type: "file", name: "file", accept: ".csv,.ndjson,.jsonl,text/csv,application/x-ndjson" });
  const report = h("div", { role: "status" });
  /** What was tried without an error. */
  let tried = "";
  const label = (/** @type {string} */ words) => put(/** @type {Element} */ (form.querySelector(".form-foot button span")), words);
  const change = () => {
    if (text.value !== tried) label("Try it");
    put(report);
  };
  text.addEventListener("input", change);
  file.addEventListener("change", async () => {
    const [chosen] = file.files ?? [];
    if (chosen && chosen.size > IMPORT_BYTES_MAX) toast("The file has more than 16 MiB: use the command line, which sends it in parts.", "warning");
    else if (chosen) text.value = await chosen.text();
    change();
  });
  const form = formOf(
    [
      field("File", file, { hint: "CSV or NDJSON, at most 10,000 rows." }),
      field("Rows", text, { hint: h("span", null, "The first line of a CSV has the names of the columns: ", h("code", null, columns)) }),
      report,
      reasonField(false),
    ],
    {
      action: "Try it",
      submit: async (values) => {
        const isJson = values.text.trimStart().startsWith("{");
        const send = (/** @type {boolean} */ isTrial) =>
          api.post(path, { query: { dry_run: isTrial, reason: values.reason, format: isJson ? "ndjson" : "csv" }, text: values.text, type: isJson ? "application/x-ndjson" : "text/csv" });
        if (tried !== values.text) {
          const { rows, changed } = await send(true);
          tried = values.text;
          label(`Import ${rows === 1 ? "1 row" : `${rows} rows`}`);
          put(report, h("p", { class: "notice" }, `${rows === 1 ? "The row is" : `All ${rows} rows are`} correct; ${changed} would change. Nothing is imported yet.`));
          return;
        }
        const { rows, changed, revision } = await send(false);
        isDone = true;
        toast(`${changed} of ${rows} rows changed, revision ${revision}`, "allow");
        opened.close();
      },
      cancel: () => opened.close(),
    },
  );
  let isDone = false;
  /** @type {(done: boolean) => void} */
  let close = () => {};
  const opened = dialog(title, form, { wide: true, onClose: () => close(isDone) });
  return new Promise((resolve) => (close = resolve));
}

/** The buttons of a row that can be changed. @param {string} name @param {() => void} edit @param {() => void} remove */
export function rowActions(name, edit, remove) {
  const named = (/** @type {string} */ label, /** @type {() => void} */ act) => {
    const made = button(label, act, { kind: "quiet", small: true });
    made.setAttribute("aria-label", `${label} ${name}`);
    return made;
  };
  return h("span", { class: "row-actions" }, named("Edit", edit), named("Delete", remove));
}

/** The buttons of a row that is being changed. @param {() => void} save @param {() => void} cancel */
export function editActions(save, cancel) {
  return h("span", { class: "row-actions" }, button("Save", save, { kind: "primary", small: true }), button("Cancel", cancel, { kind: "quiet", small: true }));
}

/** Saves the changed row of a list by Enter, and leaves it by Escape. @param {HTMLElement} list @param {() => void} cancel */
export function editByKeys(list, cancel) {
  list.addEventListener("keydown", (event) => {
    /** @type {HTMLElement | null} */
    const save = list.querySelector("tr.edited .primary");
    if (!save || !(event.target instanceof HTMLInputElement)) return;
    if (event.key === "Enter") save.click();
    if (event.key === "Escape") cancel();
  });
}

const IMPORT_BYTES_MAX = 16 * 1024 * 1024;
