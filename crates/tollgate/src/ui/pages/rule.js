// @ts-check
// One rule: what it decides, whom it denies, its overrides, its history, its text.

import { count, h, link, parseSubject, percent, put, rate, subjectLink, subjectText, time } from "../core.js";
import { api, feed, sendCheck } from "../api.js";
import { badge, button, card, code, codeBlock, copyButton, empty, failure, field, formDialog, input, keyValues, linkButton, modeBadge, pageHeader, segmented, shareBar, stat, subject as subjectCode, table, tabs, toastProblem } from "../components.js";
import { chart, heatStrip } from "../charts.js";
import { banDialog, overrideDialog, raiseSubject, removeRowDialog } from "../explain.js";
import { BANDS, limitText } from "./rules.js";

export const title = "Rule";

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const domain = page.params.get("domain") ?? "default";
  const id = page.params.get("id") ?? "";
  const rule = await api.get("rule", { domain, id }, page.signal);
  document.title = `${id} · Tollgate`;
  let range = page.params.get("range") ?? "5m";
  const isManaged = rule.layer === "managed";

  const tiles = { checks: stat("Checks per second"), denied: stat("Denied", { kind: rule.mode === "shadow" ? "shadow" : "deny" }), near: stat("Close to the limit", { title: "Decisions that left less than a fifth of the limit, in the last minute" }) };
  const bands = h("div", { class: "bands" });
  const variants = h("div", { hidden: true });
  const traffic = chart({ title: "Decisions per second", form: "area", height: 220, unit: " per second", signal: page.signal });
  put(
    page.root,
    pageHeader(domain === "default" ? id : `${domain}/${id}`, {
      back: { label: "Rules", href: link("rules") },
      badges: [modeBadge(rule.mode), badge("info", rule.layer)],
      lead: h("span", { class: "mono" }, limitText(rule)),
      actions: [
        segmented("Range", [["5m", "5 min"], ["1h", "1 hour"], ["24h", "24 hours"]], range, (to) => {
          range = to;
          page.setParams({ domain, id, range: to === "5m" ? "" : to });
          load();
        }),
        (page.can("explain") || rule.layer === "quickstart") && rule.per.length > 0 && button("Try it", () => tryDialog(domain, rule), { icon: "bolt" }),
        page.can("edit") && isManaged && linkButton("Edit", link("editor", { domain, rule: id }), { icon: "editor" }),
      ],
    }),
    h("div", { class: "stats" }, Object.values(tiles).map((tile) => tile.element)),
    h("section", { class: "card" }, traffic.element),
    variants,
    tabs(
      "About the rule",
      [
        { id: "top", label: "Top refused", panel: () => topRefused(page, rule) },
        { id: "rows", label: "Overrides", panel: () => rows(page, rule) },
        { id: "use", label: "Use of the limit", panel: () => card("Decisions of the last minute, by how much of the limit was used", {}, bands) },
        { id: "text", label: "Definition", panel: () => definition(rule) },
        { id: "history", label: "History", panel: () => history(page, rule) },
      ],
      page.params.get("tab") ?? "top",
      (tab) => page.setParams({ domain, id, tab, range: range === "5m" ? "" : range }),
    ),
  );

  async function load() {
    const [series, figures] = await Promise.all([
      api.get("series", { domain, rule: id, range }, page.signal),
      api.get("series", { scope: "rules", domain, q: id, limit: 100 }, page.signal).then((found) => found.items.find((/** @type {any} */ item) => item.rule === id && item.domain === domain)),
    ]);
    const of = (/** @type {string} */ name) => (series.series.find((/** @type {any} */ one) => one.name === name)?.values ?? []).map((/** @type {number | null} */ value) => (value === null ? null : (value * 1000) / series.step_ms));
    const shadow = of("shadow_denied");
    traffic.set({
      start: series.start,
      step: series.step_ms,
      marks: (series.marks ?? []).map((/** @type {any} */ one) => ({ at: one.at, text: `revision ${one.revision}${one.actor ? ` by ${one.actor}` : ""}${one.text ? `: ${one.text}` : ""}` })),
      series: [
        { name: "allowed", label: "allowed", kind: "allow", values: of("allowed") },
        { name: "denied", label: "denied", kind: "deny", values: of("denied") },
        ...(rule.mode === "shadow" || shadow.some(Boolean) ? [{ name: "shadow", label: "would be denied", kind: "shadow", values: shadow }] : []),
      ],
    });
    drawVariants(series.variants);
    const checks = figures?.checks ?? 0;
    const denied = rule.mode === "shadow" ? (figures?.shadow_denied ?? 0) : (figures?.denied ?? 0);
    tiles.checks.set(rate(checks / 60), "last minute");
    tiles.denied.set(checks ? percent(denied, checks) : "–", checks ? `${rate(denied / 60)}/s${rule.mode === "shadow" ? ", in shadow" : ""}` : "no checks");
    const use = figures?.utilization ?? {};
    const sum = BANDS.reduce((total, [band]) => total + (use[band] ?? 0), 0);
    tiles.near.set(sum ? percent((use["95"] ?? 0) + (use["100"] ?? 0), sum) : "–", "used 80 % or more");
    put(
      bands,
      sum === 0
        ? empty("No decisions in the last minute")
        : [
            heatStrip("Use of the limit", BANDS.map(([band, label, kind]) => ({ label, kind, value: use[band] ?? 0 }))),
            h("ul", { class: "strip-list" }, BANDS.map(([band, label, kind]) => h("li", null, h("span", { class: "mark key", data: { kind } }), h("span", null, label), h("span", { class: "faint" }, count(use[band] ?? 0)), shareBar(percent(use[band] ?? 0, sum), (use[band] ?? 0) / sum, kind)))),
          ],
    );
  }

  /** The variants of an experiment, side by side. @param {any} found */
  function drawVariants(found) {
    variants.hidden = !found;
    if (!found) return;
    put(
      variants,
      card(
        "Experiment",
        { note: "since the rule has it, on this instance" },
        h(
          "div",
          { class: "grid2 even" },
          ["control", "experiment"].map((name) => {
            const { limit, allowed, denied } = found[name];
            return keyValues([
              ["Variant", h("strong", null, name)],
              ["Limit", code(limit)],
              ["Checks", count(allowed + denied)],
              ["Denied", shareBar(percent(denied, allowed + denied), allowed + denied ? denied / (allowed + denied) : 0, "deny")],
            ]);
          }),
        ),
      ),
    );
  }
  await load();
  const timer = setInterval(() => {
    if (!document.hidden) load().catch(() => {});
  }, 2000);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  feed.on("revision", () => page.reload(), page.signal, { rules: [`${domain}/${id}`] });
}

/** Subjects that are denied most, with bounds. @param {import("../app.js").Page} page @param {any} rule */
function topRefused(page, rule) {
  const isNamed = page.can("subjects");
  const act = (/** @type {any} */ item) => {
    const name = { domain: rule.domain, rule: rule.id, subject: item.subject };
    return h(
      "span",
      { class: "actions" },
      page.can("override") && button("Raise until Friday", () => raiseSubject(name).catch(toastProblem), { small: true }),
      page.can("override") && button("Ban", () => banDialog(name), { small: true, kind: "quiet" }),
    );
  };
  const list = table({
    label: "Top refused subjects",
    load: async (_, signal) => ({ items: (await api.get("top", { domain: rule.domain, rule: rule.id, minutes: 15, limit: 20 }, signal)).items }),
    columns: [
      { key: "subject", label: "Subject", cell: (item) => (isNamed ? h("a", { href: subjectLink(rule.domain, item.subject) }, subjectCode(item.subject)) : subjectCode(item.subject)) },
      { key: "denied", label: "Denials", numeric: true, title: "Between these bounds", cell: (item) => (item.lower === item.upper ? count(item.lower) : `${count(item.lower)} – ${count(item.upper)}`) },
      { key: "share", label: "Share", numeric: true, priority: 2, cell: (item) => shareBar(percent(item.share_ppm, 1_000_000), item.share_ppm / 1_000_000, "deny") },
      { key: "actions", label: "", title: "Actions", priority: 2, cell: act },
    ],
    empty: () => empty("Nothing was refused in the last 15 minutes"),
  });
  list.reload();
  return card("Refused most in 15 minutes", { class: "flush", note: isNamed ? "counts lie between their bounds" : "subjects are masked for viewers" }, list.element);
}

/** Override rows of the rule. @param {import("../app.js").Page} page @param {any} rule */
function rows(page, rule) {
  const list = table({
    label: "Overrides of the rule",
    load: (after, signal) => api.get("overrides", { domain: rule.domain, rule: rule.id, limit: 50, after }, signal),
    columns: [
      { key: "subject", label: "Subject", cell: (row) => subjectCode(row.subject) },
      { key: "terms", label: "Limit", cell: (row) => [code(row.terms), row.rejected && badge("critical", "not in use", { title: row.rejected })] },
      { key: "until", label: "Until", priority: 2, cell: (row) => (row.expires_at ? time(row.expires_at, "date") : h("span", { class: "faint" }, "forever")) },
      { key: "note", label: "Note", priority: 3, cell: (row) => row.note },
      { key: "actor", label: "By", priority: 3, cell: (row) => row.actor },
      {
        key: "actions",
        label: "",
        title: "Actions",
        cell: (row) =>
          page.can("override") &&
          h(
            "span",
            { class: "actions" },
            button("Change", () => overrideDialog(row, { row }).then((done) => done && list.reload()), { small: true }),
            button("Remove", () => removeRowDialog(row).then((done) => done && list.reload()), { small: true, kind: "quiet" }),
          ),
      },
    ],
    empty: () => empty("No overrides", "An override gives one subject another limit, for good or until a day."),
  });
  list.reload();
  feed.on("revision", () => list.reload(), page.signal);
  const add = async () => {
    const text = input("subject", { required: true, class: "mono", placeholder: rule.per.map((/** @type {string} */ name) => `${name}=…`).join(" ") });
    const found = await formDialog("Override for", [field("Subject", text, { hint: `The attributes that the rule counts by: ${rule.per.join(", ")}.` })], {
      action: "Next",
      submit: (values) => {
        const parsed = parseSubject(values.subject);
        if (!parsed) throw new Error("write it as name=value, several with a comma between them");
        return parsed;
      },
    });
    if (found && (await overrideDialog({ domain: rule.domain, rule: rule.id, subject: found }, { limit: rule.limit }))) list.reload();
  };
  return card("Overrides", { class: "flush", actions: [page.can("override") && rule.per.length > 0 && button("Add", add, { icon: "plus", small: true })] }, list.element);
}

/** @param {any} rule */
function definition(rule) {
  return card(
    "Definition",
    { actions: [rule.yaml && copyButton(rule.yaml, "Copy the definition")] },
    h(
      "div",
      { class: "grid2" },
      keyValues([
        ["Limit", code(rule.limit)],
        ["Counted per", rule.per.length ? rule.per.map((/** @type {string} */ name) => [code(name), " "]).flat() : "everything as one"],
        ["Algorithm", rule.algorithm ? code(rule.algorithm) : "–"],
        ["Mode", rule.mode],
        ["Layer", rule.layer === "managed" ? "managed: published versions" : rule.layer === "file" ? "a file of the instance; change it there" : "quickstart: built in while there are no other rules"],
        ["File", rule.path ? h("span", null, code(rule.path), rule.line ? `, line ${rule.line}` : "") : "–"],
        rule.revision > 0 && ["Last change", `revision ${rule.revision}`],
      ]),
      rule.yaml ? codeBlock(rule.yaml.trimEnd(), "the definition") : h("p", { class: "faint" }, "The text of the rule is not shown."),
    ),
  );
}

/** @param {import("../app.js").Page} page @param {any} rule */
function history(page, rule) {
  const content = h("div");
  const read = async () => {
    try {
      const { items } = await api.get("rule/history", { domain: rule.domain, id: rule.id, limit: 50 }, page.signal);
      put(
        content,
        items.length === 0
          ? empty("No changes", rule.layer === "managed" ? "" : "The history has changes of published versions only.")
          : h(
              "ol",
              { class: "timeline" },
              items.map((/** @type {any} */ item) =>
                h("li", null, h("span", null, h("strong", null, item.kind), " by ", h("strong", null, item.actor), " ", time(item.at, "ago")), h("span", { class: "faint" }, `revision ${item.revision}`, item.path ? `, ${item.path}:${item.line}` : ""), item.reason && h("span", null, `“${item.reason}”`)),
              ),
            ),
      );
    } catch (error) {
      put(content, failure(error, read));
    }
  };
  read();
  return card("History", { actions: [h("a", { href: link("versions") }, "All versions")] }, content);
}

/** Sends real checks. @param {string} domain @param {any} rule */
function tryDialog(domain, rule) {
  const log = h("ol", { class: "try-log", role: "log" });
  const fields = rule.per.map((/** @type {string} */ name) => field(name, input(name, { required: true, class: "mono", value: "test" })));
  return formDialog("Try it", [h("p", { class: "hint" }, "Sends real checks: they count. If the rule has conditions, the attributes that they name must be sent too."), fields, field("Other attributes (optional)", input("*", { class: "mono", placeholder: "endpoint=/search method=POST" })), log], {
    action: "Send a check",
    submit: async (values) => {
      const { "*": others, ...own } = values;
      const attributes = { ...own, ...(others.trim() ? parseSubject(others) : {}) };
      const verdict = await sendCheck({ domain, attributes });
      const one = verdict.limits?.find((/** @type {any} */ limit) => limit.rule === rule.id);
      const kind = one ? (one.allowed ? "allow" : rule.mode === "shadow" ? "shadow" : "deny") : "neutral";
      log.prepend(h("li", null, badge(kind, one ? (one.allowed ? "allowed" : "denied") : "not matched"), h("span", null, one ? `${count(one.remaining)} of ${count(one.limit)} left` : `${subjectText(attributes)} does not match this rule`)));
      while (log.children.length > 8) log.lastElementChild?.remove();
      throw KEEP_OPEN;
    },
  });
}

/** Ends a submission without closing its dialog. */
const KEEP_OPEN = new DOMException("stay", "AbortError");
