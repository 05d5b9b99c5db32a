// @ts-check
// Override rows: the limit of one subject under one rule. Search, edits in place, imports and exports.

import "../pages_style.js";
import { dateTime, h, link, parseSubject, put, subjectLink, subjectText, time } from "../core.js";
import { Problem, api } from "../api.js";
import { badge, button, card, confirm, empty, field, formDialog, input, pageHeader, reasonField, searchField, segmented, subject, table, toast } from "../components.js";
import { download, editActions, editByKeys, importDialog, localValue, rowActions, timeOf, untilField, write } from "../writes.js";

export const title = "Overrides";

/** @typedef {{domain: string, rule: string, subject: Record<string, string>, terms: string, note: string, expires_at: number, revision: number, etag: string,
 *   actor: string, orphan: boolean, rejected: string | null}} Row */

/** The query that names a row. @param {Row} row */
const nameOf = (row) => ({ domain: row.domain, rule: row.rule, subject: JSON.stringify(row.subject) });

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { params, can } = page;
  const filter = { q: params.get("q") ?? "", domain: params.get("domain") ?? "", rule: params.get("rule") ?? "", show: params.get("show") ?? "all" };
  const canEdit = can("override");
  /** The row that is being edited. @type {Row | null} */
  let edited = null;

  const query = () => ({ q: filter.q, domain: filter.domain, rule: filter.rule, expiring: filter.show === "expiring", orphans: filter.show === "orphans" });
  const refresh = () => {
    edited = null;
    page.setParams({ ...filter, show: filter.show === "all" ? "" : filter.show });
    drawScope();
    return list.reload();
  };

  const list = table({
    label: "Override rows",
    columns: [
      { key: "rule", label: "Rule", sort: (/** @type {Row} */ row) => `${row.domain}/${row.rule}`, cell: (row) => [h("a", { href: link("rule", { domain: row.domain, id: row.rule }) }, h("code", null, `${row.domain}/${row.rule}`)), row.orphan && badge("warning", "no such rule", { title: "It is kept, and applies when the rule returns" })] },
      { key: "subject", label: "Subject", sort: (row) => subjectText(row.subject), cell: (row) => (can("subjects") ? h("a", { href: subjectLink(row.domain, row.subject) }, subject(row.subject)) : subject(row.subject)) },
      { key: "terms", label: "Limit", cell: (row) => (row === edited ? input("terms", { value: row.terms, class: "mono", "aria-label": "Limit", required: true, maxlength: 1024 }) : [h("code", { class: "terms" }, row.terms), row.rejected && badge("critical", "not used", { title: row.rejected })]) },
      { key: "until", label: "Until", sort: (row) => row.expires_at || Infinity, cell: (row) => (row === edited ? h("input", { type: "datetime-local", name: "until", value: localValue(row.expires_at), "aria-label": "Until" }) : row.expires_at ? time(row.expires_at) : h("span", { class: "faint" }, "no end")) },
      { key: "note", label: "Note", priority: 3, cell: (row) => (row === edited ? [input("note", { value: row.note, "aria-label": "Note", placeholder: "note", maxlength: 500 }), input("reason", { "aria-label": "Reason of the change", placeholder: "reason of the change", maxlength: 500 })] : row.note || h("span", { class: "faint" }, "–")) },
      { key: "by", label: "By", priority: 2, cell: (row) => h("span", { class: "nowrap" }, row.actor, h("span", { class: "faint" }, ` r${row.revision}`)) },
      ...(canEdit ? [{ key: "actions", label: "", title: "Actions", cell: (/** @type {Row} */ row) => actions(row) }] : []),
    ],
    load: (after, signal) => api.get("overrides", { ...query(), after, limit: 100 }, signal),
    rowClass: (row) => (row === edited ? "edited" : ""),
    empty: () =>
      filter.q || filter.rule || filter.domain || filter.show !== "all"
        ? empty("No rows match", "Try another search, or look at all of them.", [button("Show all", () => (Object.assign(filter, { q: "", rule: "", domain: "", show: "all" }), page.setParams({}), page.reload()))])
        : empty("No overrides yet", "A row gives one subject a limit of its own under a rule, at once on all instances, with an end if you like.", [canEdit && button("Add an override", add, { kind: "primary" })]),
  });

  /** @param {Row} row */
  function actions(row) {
    if (row === edited) return editActions(() => save(row), () => edit(null));
    return rowActions(`${row.rule} ${subjectText(row.subject)}`, () => edit(row), () => remove_(row));
  }

  /** @param {Row | null} row */
  function edit(row) {
    const before = edited;
    edited = row;
    list.draw();
    const line = list.element.querySelector("tr.edited");
    /** @type {HTMLInputElement | null} */ (line?.querySelector("input"))?.select();
    if (!row && before) focusRow(before);
  }

  /** Back to the button of a row that was edited. @param {Row} row */
  function focusRow(row) {
    const index = list.rows().findIndex((one) => one.rule === row.rule && one.domain === row.domain && subjectText(one.subject) === subjectText(row.subject));
    const name = `Edit ${row.rule} ${subjectText(row.subject)}`;
    if (index >= 0) /** @type {HTMLElement | null} */ (list.element.querySelector(`[aria-label="${CSS.escape(name)}"]`))?.focus();
  }

  /** @param {Row} row */
  async function save(row) {
    const line = list.element.querySelector("tr.edited");
    const value = (/** @type {string} */ name) => /** @type {HTMLInputElement | null} */ (line?.querySelector(`[name=${name}]`))?.value.trim() ?? "";
    const body = { terms: value("terms"), note: value("note"), expires_at: timeOf(value("until")), reason: value("reason") };
    const saved = await write((match) => api.put("override", { query: nameOf(row), body: { ...body, allow_orphan: row.orphan || undefined }, match }), row.etag);
    if (saved) {
      toast(`${row.domain}/${row.rule} ${subjectText(row.subject)}: ${saved.terms}, revision ${saved.revision}`, "allow");
      Object.assign(row, saved);
    }
    await refresh();
    focusRow(row);
  }

  /** @param {Row} row */
  async function remove_(row) {
    const gone = await confirm("Delete the override", [h("code", null, `${row.domain}/${row.rule}`), " ", subject(row.subject), " goes back to the limit of the rule. What was used stays used."], {
      action: "Delete",
      danger: true,
      reason: "optional",
      submit: async (reason) => (await write((match) => api.delete("override", { query: { ...nameOf(row), reason }, match: match ?? row.etag }).then(() => true), row.etag)) ?? false,
    });
    if (!gone) return;
    toast(`The override of ${subjectText(row.subject)} is deleted`);
    await refresh();
  }

  async function add() {
    const rules = await api.get("rules", { limit: 200 }, page.signal).catch(() => ({ items: [] }));
    const known = h("datalist", { id: "known-rules" }, rules.items.map((/** @type {any} */ rule) => h("option", { value: `${rule.domain}/${rule.id}` }, rule.limit)));
    const start = filter.rule ? `${filter.domain || "default"}/${filter.rule}` : "";
    const made = await formDialog(
      "Add an override",
      [
        known,
        field("Rule", input("rule", { required: true, list: "known-rules", class: "mono", value: start, placeholder: "default/merchant-plan" }), { hint: "Domain and rule." }),
        field("Subject", input("subject", { required: true, class: "mono", placeholder: "merchant=m_42" }), { hint: "One attribute or several: merchant=m_42 region=eu" }),
        field("Limit", input("terms", { required: true, class: "mono", placeholder: "20000/min burst 500" }), { hint: "As in a rule. unlimited lifts it, 0/min bans." }),
        untilField("Until"),
        field("Note", input("note", { maxlength: 500 }), { hint: "Stays with the row." }),
        reasonField(false),
      ],
      {
        action: "Add",
        submit: (values) => {
          const named = parseSubject(values.subject);
          if (!named) throw new Problem(400, { code: "malformed", detail: "write the subject as merchant=m_42", field: "subject" });
          const slash = values.rule.indexOf("/");
          const row = { domain: slash > 0 ? values.rule.slice(0, slash) : "default", rule: values.rule.slice(slash + 1), subject: JSON.stringify(named) };
          const body = { terms: values.terms, note: values.note, expires_at: timeOf(values.until), reason: values.reason };
          return write((match) => api.put("override", { query: row, body, match }), null);
        },
      },
    );
    if (!made) return;
    toast(`${made.domain}/${made.rule} ${subjectText(made.subject)}: ${made.terms}${made.expires_at ? ` until ${dateTime(made.expires_at)}` : ""}`, "allow");
    await refresh();
  }

  const scope = h("div", { class: "scope" });
  const drawScope = () =>
    put(scope, filter.rule || filter.domain ? [h("span", null, "Only ", h("code", null, [filter.domain, filter.rule].filter(Boolean).join("/"))), button("Show all rules", () => (Object.assign(filter, { rule: "", domain: "" }), refresh()), { kind: "quiet", small: true, icon: "close" })] : null);

  editByKeys(list.element, () => edit(null));

  put(
    page.root,
    pageHeader(title, {
      lead: "The limit of one subject under one rule. It wins over everything that the rule says.",
      actions: canEdit
        ? [
            button("Import", async () => (await importDialog({ title: "Import overrides", path: "overrides/import", columns: "domain,rule,subject,terms,note,expires_at", example: "domain,rule,subject,terms,note,expires_at\ndefault,merchant-plan,merchant=m_42,20000/min,,0" })) && refresh()),
            button("Export", () => download("overrides/export", { ...query(), orphans: undefined, format: "csv" }, "overrides.csv")),
            button("Add an override", add, { kind: "primary", icon: "plus" }),
          ]
        : [],
    }),
    h(
      "div",
      { class: "toolbar" },
      can("subjects") && searchField("Search subjects and notes", filter.q, (text) => ((filter.q = text), refresh())),
      segmented("Which rows", [["all", "All"], ["expiring", "Expiring"], ["orphans", "Without a rule"]], filter.show, (value) => ((filter.show = value), refresh())),
      scope,
    ),
    card(null, { class: "flush" }, list.element),
  );
  drawScope();
  await list.reload();
}
