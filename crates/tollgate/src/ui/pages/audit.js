// @ts-check
// The audit log: who changed what, when, from where and why; its verification and its export.

import "../pages_style.js";
import { h, put, subjectText, time } from "../core.js";
import { api } from "../api.js";
import { badge, button, codeBlock, card, copyButton, dialog, digest, empty, field, formOf, input, keyValues, pageHeader, segmented, select, table, toast } from "../components.js";
import { saveFile } from "../writes.js";

export const title = "Audit";

/** @typedef {{seq: number, at: number, actor: string, via: string, address: string, request: string, action: string, target: string, reason: string,
 *   before: string, after: string, revision: number, prev: string, hash: string}} Entry */

/** Actions by their start. @type {[string, string][]} */
const ACTIONS = [["", "every action"], ["version.", "versions"], ["row.", "overrides"], ["attribute.", "attributes"], ["user.", "users"], ["token.", "tokens"], ["login", "logins"], ["login.", "failed logins"], ["session.", "ended sessions"], ["forget", "forget"], ["import", "imports"], ["export", "exports"], ["adopt", "adopted databases"], ["audit.", "anchors"]];
const HOUR = 3_600_000;
/** @type {[string, string][]} */
const SPANS = [["1", "1 h"], ["24", "24 h"], ["168", "7 days"], ["", "All"]];
/** Entries that an export in the browser collects. */
const EXPORT_MAX = 100_000;

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { params, signal } = page;
  const filter = { actor: params.get("actor") ?? "", action: params.get("action") ?? "", target: params.get("target") ?? "", span: params.get("span") ?? "" };
  const query = () => ({ actor: filter.actor, action: filter.action, target: filter.target, since: filter.span ? Date.now() - Number(filter.span) * HOUR : undefined });
  const refresh = () => {
    page.setParams(filter);
    return list.reload();
  };

  const list = table({
    label: "Audit log",
    columns: [
      { key: "at", label: "Time", cell: (/** @type {Entry} */ entry) => time(entry.at) },
      { key: "actor", label: "By", cell: (entry) => h("strong", null, entry.actor) },
      { key: "action", label: "Action", cell: (entry) => h("code", null, entry.action) },
      { key: "target", label: "Target", cell: (entry) => h("code", { class: "target" }, targetText(entry.target)) },
      { key: "reason", label: "Reason", cell: (entry) => entry.reason || h("span", { class: "faint" }, "–") },
      { key: "from", label: "From", priority: 3, cell: (entry) => [entry.via, entry.address && h("span", { class: "faint" }, ` ${entry.address}`)] },
      { key: "more", label: "", title: "Details", cell: (entry) => detailsButton(entry) },
    ],
    load: (after, stop) => api.get("audit", { ...query(), after, limit: 100 }, stop),
    select: (entry) => showEntry(entry),
    empty: () => empty("No entries", "Every change, login failure and export is kept here."),
  });

  const who = input("actor", { value: filter.actor, placeholder: "everyone", "aria-label": "By", class: "narrow" });
  const what = select("action", ACTIONS, { "aria-label": "Action" });
  what.value = ACTIONS.some(([value]) => value === filter.action) ? filter.action : "";
  const target = input("target", { value: filter.target, placeholder: "target starts with", "aria-label": "Target starts with" });
  const filters = h(
    "form",
    {
      class: "toolbar",
      on: {
        submit: (/** @type {Event} */ event) => {
          event.preventDefault();
          Object.assign(filter, { actor: who.value.trim(), action: what.value, target: target.value.trim() });
          refresh();
        },
      },
    },
    who,
    what,
    target,
    h("button", { class: "button plain" }, h("span", null, "Filter")),
    segmented("Time span", SPANS, filter.span, (value) => ((filter.span = value), refresh())),
  );
  what.addEventListener("change", () => filters.requestSubmit());

  put(
    page.root,
    pageHeader(title, {
      lead: "Who changed what, when and why. Entries are chained by hashes, so that a changed or missing one is found.",
      actions: [button("Export", () => save(query(), signal)), button("Verify…", verify, { kind: "primary", icon: "check" })],
    }),
    filters,
    card(null, { class: "flush" }, list.element),
  );
  await list.reload();
}

/** @param {Entry} entry */
function detailsButton(entry) {
  const element = button("Details", () => showEntry(entry), { kind: "quiet", small: true });
  element.setAttribute("aria-label", `Details of entry ${entry.seq}`);
  return element;
}

/** @param {Entry} entry */
function showEntry(entry) {
  const changes = difference(entry.before, entry.after);
  dialog(
    `Entry ${entry.seq}`,
    [
      keyValues([
        ["Time", time(entry.at)],
        ["By", entry.actor],
        ["Action", h("code", null, entry.action)],
        ["Target", h("code", { class: "target" }, targetText(entry.target))],
        ["Reason", entry.reason || h("span", { class: "faint" }, "none")],
        ["From", `${entry.via} ${entry.address}`],
        entry.request ? ["Request", h("code", null, entry.request)] : null,
        entry.revision > 0 ? ["Revision", String(entry.revision)] : null,
      ]),
      changes.length > 0 &&
        h(
          "div",
          { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "What changed" },
          h("table", { class: "dense" }, h("thead", null, h("tr", null, ["What", "Before", "After"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", null, changes.map(([name, before, after]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, before ?? h("span", { class: "faint" }, "–")), h("td", null, after ?? h("span", { class: "faint" }, "–")))))),
        ),
      changes.length === 0 && entry.before && codeBlock(entry.before, "Before"),
      changes.length === 0 && entry.after && codeBlock(entry.after, "After"),
      keyValues([["Hash", h("span", null, digest(entry.hash), copyButton(entry.hash, "Copy the hash"))], ["Hash before", digest(entry.prev)]]),
    ],
    { side: true },
  );
}

/** A target as people write it: its subject as `name=value`. @param {string} target */
function targetText(target) {
  const at = target.indexOf(" {");
  const subject = at < 0 ? null : object(target.slice(at + 1));
  return subject ? `${target.slice(0, at)} ${subjectText(subject)}` : target || "–";
}

/** What differs between two JSON objects; nothing if they are none. @param {string} before @param {string} after @returns {[string, string | null, string | null][]} */
function difference(before, after) {
  const [one, other] = [object(before), object(after)];
  if (!one && !other) return [];
  const names = [...new Set([...Object.keys(one ?? {}), ...Object.keys(other ?? {})])];
  const text = (/** @type {any} */ value) => (value === undefined ? null : typeof value === "string" ? value : JSON.stringify(value));
  /** @type {[string, string | null, string | null][]} */
  const all = names.map((name) => [name, text(one?.[name]), text(other?.[name])]);
  return all.filter(([, from, to]) => from !== to);
}

/** @param {string} text @returns {Record<string, any> | null} */
function object(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function verify() {
  const result = h("div", { role: "status" });
  const form = formOf(
    [
      h("p", null, "Reads the whole log and checks every hash. A hash that you noted before also finds entries that were cut off at the end."),
      field("Hash noted before (optional)", input("anchor", { class: "mono", pattern: "[0-9a-fA-F]{64}", placeholder: "64 hexadecimal digits" })),
      result,
    ],
    {
      action: "Verify",
      submit: async ({ anchor }) => {
        put(result);
        const report = await api.get("audit/verify", { anchor });
        const entries = report.entries === 1 ? "1 entry" : `${report.entries} entries`;
        put(
          result,
          h(
            "div",
            { class: "verdict", data: { kind: report.ok ? "allow" : "critical" } },
            badge(report.ok ? "allow" : "critical", report.ok ? "intact" : "broken"),
            h("span", null, report.ok ? `${entries}; every hash is right${report.anchored ? ", and yours is among them" : ""}.` : `${report.error?.seq ? `Entry ${report.error.seq}: ` : ""}${report.error?.text ?? "the chain is broken"}`),
          ),
          h("p", null, "The last hash, to note: ", digest(report.hash), copyButton(report.hash, "Copy the last hash")),
        );
      },
    },
  );
  dialog("Verify the audit log", form);
}

/** Saves the entries of a filter, one JSON object a line. @param {Record<string, any>} query @param {AbortSignal} signal */
async function save(query, signal) {
  /** @type {string[]} */
  const lines = [];
  let after = "";
  do {
    const page = await api.get("audit", { ...query, after, limit: 1000 }, signal);
    for (const entry of page.items) lines.push(`${JSON.stringify(entry)}\n`);
    after = page.next ?? "";
  } while (after && lines.length < EXPORT_MAX);
  saveFile(lines, `audit-${new Date().toISOString().slice(0, 10)}.ndjson`, "application/x-ndjson");
  toast(after ? `The newest ${lines.length} entries; for all of them use \`tollgate audit\`.` : `${lines.length} entries are saved`, after ? "warning" : "info");
}
