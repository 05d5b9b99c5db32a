// @ts-check
// All rules: their limits, what they decide now, and how near to their limits subjects are.

import { debounce, h, link, percent, put, rate } from "../core.js";
import { api, feed } from "../api.js";
import { badge, card, code, empty, linkButton, modeBadge, pageHeader, searchField, select, shareBar, table } from "../components.js";
import { heatStrip } from "../charts.js";

export const title = "Rules";

/** Bands of used / limit, with names for people. @type {[string, string, string][]} */
export const BANDS = [
  ["50", "below half", "c1"],
  ["80", "50 to 80 %", "c1"],
  ["95", "80 to 95 %", "local"],
  ["100", "95 to 100 %", "local"],
  ["denied", "denied", "deny"],
];

/** Utilization of a rule as five cells. @param {Record<string, number> | undefined} bands @param {string} name */
export const utilization = (bands, name) => heatStrip(`Decisions of ${name} by use of the limit`, BANDS.map(([band, label, kind]) => ({ label, kind, value: bands?.[band] ?? 0 })));

/** The limit of a rule in words. @param {any} rule */
export const limitText = (rule) => `${rule.limit}${rule.per.length ? ` per ${rule.per.join(", ")}` : ""}`;

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const filters = { q: page.params.get("q") ?? "", domain: page.params.get("domain") ?? "", mode: page.params.get("mode") ?? "", layer: page.params.get("layer") ?? "" };
  /** Figures of the last minute, by domain and rule. @type {Map<string, any>} */
  let figures = new Map();
  const of = (/** @type {any} */ rule) => figures.get(`${rule.domain}/${rule.id}`);
  const wants = { rules: /** @type {string[]} */ ([]) };

  const list = table({
    label: "Rules",
    stacks: false,
    load: async (after, signal) => {
      const [found] = await Promise.all([api.get("rules", { ...filters, limit: 100, after }, signal), after === null ? loadFigures() : null]);
      return found;
    },
    columns: [
      {
        key: "rule",
        label: "Rule",
        sort: (rule) => `${rule.domain}/${rule.id}`,
        cell: (rule) => [
          h("a", { class: "rule-name", href: link("rule", { domain: rule.domain, id: rule.id }) }, rule.domain === "default" ? rule.id : `${rule.domain}/${rule.id}`),
          h("span", { class: "faint under" }, limitText(rule)),
        ],
      },
      { key: "mode", label: "Mode", priority: 2, sort: (rule) => rule.mode, cell: (rule) => modeBadge(rule.mode) },
      { key: "algorithm", label: "Algorithm", priority: 3, sort: (rule) => rule.algorithm ?? "", cell: (rule) => (rule.algorithm ? code(rule.algorithm) : h("span", { class: "faint" }, "–")) },
      { key: "layer", label: "Layer", priority: 3, sort: (rule) => rule.layer, cell: (rule) => h("span", { class: "faint" }, rule.layer) },
      { key: "checks", label: "Checks/s", numeric: true, sort: (rule) => of(rule)?.checks ?? 0, cell: (rule) => rate((of(rule)?.checks ?? 0) / 60) },
      {
        key: "denied",
        label: "Denied",
        numeric: true,
        sort: (rule) => deniedShare(of(rule)),
        cell: (rule) => {
          const one = of(rule);
          const shadow = rule.mode === "shadow";
          return shareBar(percent(shadow ? (one?.shadow_denied ?? 0) : (one?.denied ?? 0), one?.checks ?? 0), deniedShare(one), shadow ? "shadow" : "deny");
        },
      },
      { key: "utilization", label: "Use of the limit", priority: 2, title: "Decisions of the last minute, from less than half used to denied", cell: (rule) => utilization(of(rule)?.utilization, rule.id) },
    ],
    empty: () => (Object.values(filters).some(Boolean) ? empty("No rule matches") : empty("No rules yet", "Publish a rule file with tollgate rules apply, or write one in the editor.", [linkButton("Open the editor", link("editor"), { kind: "primary" })])),
  });

  async function loadFigures() {
    try {
      const { items } = await api.get("series", { scope: "rules", q: filters.q, domain: filters.domain, sort: "checks", limit: 1000 }, page.signal);
      figures = new Map(items.map((/** @type {any} */ item) => [`${item.domain}/${item.rule}`, item]));
    } catch (error) {
      if (page.signal.aborted) throw error;
      figures = new Map();
    }
  }

  const again = debounce(() => {
    page.setParams(filters);
    list.reload();
  }, 0);
  /** @param {keyof typeof filters} name @param {string} label @param {(string | [string, string])[]} options */
  const filterBy = (name, label, options) =>
    select(name, [["", label], ...options], { value: filters[name], "aria-label": label, on: { change: (/** @type {any} */ event) => ((filters[name] = event.target.value), again()) } });

  put(
    page.root,
    pageHeader("Rules", { lead: "Every active rule, from files and published versions.", actions: [page.can("edit") && linkButton("Edit", link("editor"), { icon: "editor" })] }),
    card(
      null,
      { class: "flush" },
      h(
        "div",
        { class: "toolbar padded" },
        searchField("Filter rules", filters.q, (to) => ((filters.q = to), again())),
        filterBy("mode", "All modes", ["enforce", "shadow", "disabled"]),
        filterBy("layer", "All layers", ["managed", "file", "quickstart"]),
        filters.domain && badge("info", `domain ${filters.domain}`),
      ),
      list.element,
    ),
  );
  await list.reload();

  const timer = setInterval(async () => {
    if (document.hidden || page.signal.aborted) return;
    await loadFigures();
    list.draw();
  }, 5000);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  feed.on("revision", () => list.reload(), page.signal, wants);
}

/** @param {any} one */
const deniedShare = (one) => (one?.checks ? Math.max(one.denied, one.shadow_denied) / one.checks : 0);
