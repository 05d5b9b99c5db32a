// @ts-check
// One subject: every rule met or not and why, its counters, overrides and attributes, recent denials; and what can be done for it.

import { clock, h, link, linkedSubject, parseSubject, put, subjectLink, subjectText, time } from "../core.js";
import { Problem, api, feed } from "../api.js";
import { badge, button, card, code, empty, failure, field, formOf, input, linkButton, loading, pageHeader, subject as subjectCode, table } from "../components.js";
import { explanationView, forgetDialog, overrideDialog, removeRowDialog, subjectActions } from "../explain.js";

export const title = "Subject";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { domain, attributes } = linkedSubject(page.params);
  const text = Object.entries(attributes).map(([name, value]) => `${name}=${value}`).join(" ");
  const ask = formOf(
    h(
      "div",
      { class: "grid2" },
      field("Attributes", input("text", { class: "mono", value: text, required: true, placeholder: "merchant=m_42 endpoint=/search" }), { hint: "As a check sends them: name=value, with spaces between." }),
      field("Domain", input("domain", { class: "mono", value: domain })),
    ),
    {
      action: "Explain",
      submit: (values) => {
        const found = parseSubject(values.text);
        if (!found) throw new Error("write it as name=value, several with spaces between them");
        const to = subjectLink(values.domain, found);
        if (location.hash === to) page.reload();
        else location.hash = to;
      },
    },
  );
  if (Object.keys(attributes).length === 0) {
    put(page.root, pageHeader("Subject", { lead: "Who is limited, by which rules, and why." }), card(null, {}, ask), await suggestions());
    return;
  }
  document.title = `${subjectText(attributes)} · Tollgate`;

  const explained = h("div", null, loading(5));
  const side = h("div", { class: "stack" });
  const denials = h("ul", { class: "denials" });
  put(
    page.root,
    pageHeader(subjectText(attributes), {
      back: { label: "Subject", href: link("subject") },
      lead: domain === "default" ? null : `in domain ${domain}`,
      actions: [page.can("forget") && button("Forget all counters", () => forgetDialog(domain, attributes).then((done) => done && load()), {}), button("Refresh", () => load(), { kind: "quiet" })],
    }),
    h("div", { class: "subject-grid" }, card("Rules", { note: "as they are now; looking costs nothing" }, explained), side),
    card(null, {}, h("details", null, h("summary", null, "Explain another"), ask)),
  );

  async function load() {
    try {
      // It would be read as the domain of the rules.
      if ("domain" in attributes) throw new Problem(0, { code: "malformed", detail: "a subject with an attribute named `domain` cannot be shown; ask POST /v1/explain" });
      const found = await api.get("subject", { ...attributes, domain: domain === "default" ? "" : domain }, page.signal);
      put(explained, explanationView(found.explanation, (trace) => subjectActions(page, trace, found.rows, load)));
      drawSide(found);
    } catch (error) {
      if (!page.signal.aborted) put(explained, failure(error, load));
    }
  }

  /** @param {any} found */
  function drawSide(found) {
    const rows = table({
      label: "Overrides of the subject",
      dense: true,
      columns: [
        { key: "rule", label: "Rule", cell: (row) => h("a", { href: link("rule", { domain: row.domain, id: row.rule }) }, row.rule) },
        { key: "terms", label: "Limit", cell: (row) => [code(row.terms), row.orphan && badge("warning", "no rule"), h("span", { class: "faint under" }, row.expires_at ? ["until ", time(row.expires_at)] : "forever")].flat() },
        {
          key: "actions",
          label: "",
          title: "Actions",
          cell: (row) =>
            page.can("override") &&
            h("span", { class: "actions" }, button("Change", () => overrideDialog(row, { row }).then((done) => done && load()), { small: true }), button("Remove", () => removeRowDialog(row).then((done) => done && load()), { small: true, kind: "quiet" })),
        },
      ],
      empty: () => h("p", { class: "faint padded" }, "None: the limits of the rules apply."),
    });
    rows.setRows(found.rows);
    put(
      side,
      card("Overrides", { class: "flush" }, rows.element),
      attributesCard,
      card("Recent denials", { note: "as they happen" }, denials),
    );
  }

  const attributesCard = card("Attributes");
  const head = attributesCard.firstElementChild;
  async function loadAttributes() {
    const items = [];
    for (const [name, value] of Object.entries(attributes)) {
      try {
        items.push(...(await api.get("attributes", { source: name, subject: value, limit: 20 }, page.signal)).items);
      } catch (error) {
        if (page.signal.aborted) return;
        put(attributesCard, head, failure(error));
        return;
      }
    }
    put(
      attributesCard,
      head,
      items.length === 0
        ? h("p", { class: "faint" }, "None in the table.")
        : h("ul", { class: "plain-list" }, items.map((one) => h("li", null, code(`${one.name}=${one.value}`), h("span", { class: "faint" }, ` of ${one.source}=${one.subject}, by ${one.actor}`)))),
    );
  }

  const note = h("li", { class: "faint" }, "None since this page was opened.");
  denials.append(note);
  const wants = { decisions: true, filter: Object.values(attributes)[0] ?? "" };
  feed.on(
    "decision",
    (one) => {
      const isOurs = one.domain === domain && Object.entries(attributes).every(([name, value]) => one.attributes[name] === value);
      if (one.allowed || !isOurs) return;
      note.remove();
      denials.prepend(h("li", null, h("span", { class: "faint" }, clock(one.at)), badge("deny", one.rule ?? "denied"), subjectCode(one.attributes)));
      while (denials.children.length > 10) denials.lastElementChild?.remove();
    },
    page.signal,
    wants,
  );
  feed.on("revision", () => load(), page.signal);
  await Promise.all([load(), loadAttributes()]);
}

/** Subjects to start with: those that are denied most. */
async function suggestions() {
  const list = table({
    label: "Subjects that are denied most",
    load: async (_, signal) => ({ items: (await api.get("top", { minutes: 15, limit: 10 }, signal)).items }),
    columns: [
      { key: "subject", label: "Subject", cell: (item) => h("a", { href: subjectLink(item.domain, item.subject) }, code(subjectText(item.subject))) },
      { key: "rule", label: "Rule", cell: (item) => h("a", { href: link("rule", { domain: item.domain, id: item.rule }) }, item.rule) },
      { key: "denied", label: "Denials", numeric: true, cell: (item) => item.upper.toLocaleString() },
    ],
    empty: () => empty("Nothing was refused in the last 15 minutes", "Decisions appear as they are made on the live page.", [linkButton("Watch live", link("live"), { icon: "live" })]),
  });
  list.reload();
  return card("Denied most in 15 minutes", { class: "flush" }, list.element);
}
