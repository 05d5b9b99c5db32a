// @ts-check
// Subject attributes: facts about subjects, such as the plan of a customer, that rules may use.

import "../pages_style.js";
import { h, put } from "../core.js";
import { api } from "../api.js";
import { button, card, confirm, empty, field, formDialog, input, pageHeader, reasonField, searchField, table, toast } from "../components.js";
import { download, editActions, editByKeys, importDialog, rowActions, write } from "../writes.js";

export const title = "Attributes";

/** @typedef {{source: string, subject: string, name: string, value: string, revision: number, etag: string, actor: string}} Attribute */

/** @param {Attribute} one */
const nameOf = ({ source, subject, name }) => ({ source, subject, name });

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { params, can, me } = page;
  const filter = { q: params.get("q") ?? "", source: params.get("source") ?? "", subject: params.get("subject") ?? "" };
  const canEdit = can("override") && me.domains.length === 0;
  /** @type {Attribute | null} */
  let edited = null;
  const refresh = () => {
    edited = null;
    page.setParams(filter);
    return list.reload();
  };

  const list = table({
    label: "Subject attributes",
    columns: [
      { key: "subject", label: "Subject", sort: (/** @type {Attribute} */ one) => `${one.source}=${one.subject}`, cell: (one) => h("code", { class: "subject" }, `${one.source}=${one.subject}`) },
      { key: "name", label: "Attribute", sort: (one) => one.name, cell: (one) => h("code", null, one.name) },
      { key: "value", label: "Value", sort: (one) => one.value, cell: (one) => (one === edited ? h("span", { class: "row-fields" }, input("value", { value: one.value, class: "mono", "aria-label": "Value", required: true, maxlength: 1024 }), input("reason", { "aria-label": "Reason of the change", placeholder: "reason of the change", maxlength: 500 })) : h("code", null, one.value)) },
      { key: "by", label: "By", priority: 2, cell: (one) => h("span", { class: "nowrap" }, one.actor, h("span", { class: "faint" }, ` r${one.revision}`)) },
      ...(canEdit ? [{ key: "actions", label: "", title: "Actions", cell: (/** @type {Attribute} */ one) => actions(one) }] : []),
    ],
    load: (after, signal) => api.get("attributes", { ...filter, after, limit: 100 }, signal),
    rowClass: (one) => (one === edited ? "edited" : ""),
    empty: () =>
      filter.q || filter.source || filter.subject
        ? empty("No attributes match", null, [button("Show all", () => (page.setParams({}), page.reload()))])
        : empty("No subject attributes yet", h("span", null, "They keep plans out of gateways: with ", h("code", null, "derive: { tier: { from: merchant } }"), " in the settings, each attempt of a merchant gets its tier from here."), [canEdit && button("Add an attribute", add, { kind: "primary" })]),
  });

  /** @param {Attribute} one */
  function actions(one) {
    if (one === edited) return editActions(() => save(one), () => edit(null));
    return rowActions(`${one.name} of ${one.source}=${one.subject}`, () => edit(one), () => remove_(one));
  }

  /** @param {Attribute | null} one */
  function edit(one) {
    edited = one;
    list.draw();
    /** @type {HTMLInputElement | null} */ (list.element.querySelector("tr.edited input"))?.select();
  }

  /** @param {Attribute} one */
  async function save(one) {
    const value = (/** @type {string} */ name) => /** @type {HTMLInputElement | null} */ (list.element.querySelector(`tr.edited [name=${name}]`))?.value.trim() ?? "";
    const body = { value: value("value"), reason: value("reason") };
    const saved = await write((match) => api.put("attribute", { query: nameOf(one), body, match }), one.etag);
    if (saved) toast(`${saved.source}=${saved.subject}: ${saved.name}=${saved.value}, revision ${saved.revision}`, "allow");
    await refresh();
  }

  /** @param {Attribute} one */
  async function remove_(one) {
    const gone = await confirm("Delete the attribute", [h("code", null, `${one.source}=${one.subject}`), ` loses its ${one.name}; the default of the settings applies, if there is one.`], {
      action: "Delete",
      danger: true,
      reason: "optional",
      submit: async (reason) => (await write((match) => api.delete("attribute", { query: { ...nameOf(one), reason }, match: match ?? one.etag }).then(() => true), one.etag)) ?? false,
    });
    if (gone) await refresh();
  }

  async function add() {
    const made = await formDialog(
      "Add an attribute",
      [
        field("Named by", input("source", { required: true, class: "mono", value: filter.source || "merchant" }), { hint: "The attribute of an attempt that names the subject." }),
        field("Subject", input("subject", { required: true, class: "mono", placeholder: "m_42" })),
        field("Attribute", input("name", { required: true, class: "mono", placeholder: "tier" })),
        field("Value", input("value", { required: true, class: "mono", placeholder: "enterprise", maxlength: 1024 })),
        reasonField(false),
      ],
      {
        action: "Add",
        submit: ({ source, subject, name, value, reason }) => write((match) => api.put("attribute", { query: { source, subject, name }, body: { value, reason }, match }), null),
      },
    );
    if (!made) return;
    toast(`${made.source}=${made.subject}: ${made.name}=${made.value}`, "allow");
    await refresh();
  }

  editByKeys(list.element, () => edit(null));

  put(
    page.root,
    pageHeader(title, {
      lead: "Facts about subjects that rules may use: the plan of a customer is data, the limit of a plan is a rule.",
      actions: canEdit
        ? [
            button("Import", async () => (await importDialog({ title: "Import attributes", path: "attributes/import", columns: "source,subject,name,value", example: "source,subject,name,value\nmerchant,m_42,tier,enterprise" })) && refresh()),
            button("Export", () => download("attributes/export", { ...filter, format: "csv" }, "attributes.csv")),
            button("Add an attribute", add, { kind: "primary", icon: "plus" }),
          ]
        : [],
    }),
    h("div", { class: "toolbar" }, can("subjects") && searchField("Search subjects and values", filter.q, (text) => ((filter.q = text), refresh()))),
    card(null, { class: "flush" }, list.element),
  );
  await list.reload();
}
