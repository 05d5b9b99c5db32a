// @ts-check
// The state of everything at a glance: traffic, latency, the rules that deny, the live revision, alerts. And the first minute.

import { count, duration, h, link, micros, percent, put, rate, time } from "../core.js";
import { alerts, api, feed, sendCheck } from "../api.js";
import { authored, badge, button, card, codeBlock, empty, failure, keyValues, linkButton, mark, pageHeader, segmented, shareBar, stat, table, toastProblem } from "../components.js";
import { chart, shares, sparkline } from "../charts.js";

export const title = "Overview";

/** @typedef {{start: number, step_ms: number, series: {name: string, values: (number | null)[]}[], latency?: Record<string, (number | null)[]>, marks: any[], scope: string, instances: number}} SeriesReply */

/** Names of sources, and the colours they have everywhere. @type {Record<string, [string, string, string]>} */
export const SOURCES = {
  memory: ["c2", "memory", "counted in this process"],
  shared: ["c1", "shared store", "counted in Redis or Valkey"],
  near: ["c4", "near cache", "denied without a call: the subject is known to be over its limit"],
  leased: ["c6", "leased", "from units this instance got in advance"],
  local: ["local", "local fallback", "the store is unavailable: this instance limits with its share"],
  open: ["local", "open", "the store is unavailable, and the rule lets everything pass"],
  closed: ["deny", "closed", "the store is unavailable, and the rule lets nothing pass"],
  overflow: ["c3", "overflow", "memory is full: new keys share a counter"],
  shed: ["deny", "shed", "rejected by admission before any limit"],
};

const POINTS = { "5m": 300, "1h": 360, "24h": 1440 };

/** @param {import("../app.js").Page} page */
export async function show(page) {
  let range = /** @type {keyof typeof POINTS} */ (["5m", "1h", "24h"].find((one) => one === page.params.get("range")) ?? "5m");
  /** @type {SeriesReply} */
  let series;
  let isQuickstart = false;
  const lead = h("span", null, "Traffic and state of the fleet.");
  const sparks = { checks: sparkline("allow", "Checks per second, last five minutes"), denied: sparkline("deny", "Denied checks per second, last five minutes"), decision: sparkline("c1", "Decision p99, last five minutes"), store: sparkline("c3", "Store p99, last five minutes") };
  const tiles = {
    checks: stat("Checks per second", { chart: sparks.checks.element }),
    denied: stat("Denied", { kind: "deny", chart: sparks.denied.element }),
    decision: stat("Decision p99", { title: "Time to decide a check, 99th percentile", chart: sparks.decision.element }),
    store: stat("Store p99", { title: "Time of a call to the shared store, 99th percentile", chart: sparks.store.element }),
  };
  const traffic = chart({ title: "Checks per second", form: "area", height: 230, unit: " per second", signal: page.signal });
  const latency = chart({ title: "Latency", form: "line", height: 170, format: micros, log: true, signal: page.signal });
  const sources = shares("Checks by source");
  const first = h("div", { hidden: true });
  const revision = card("Live rules", {});
  const alertCard = card("Alerts", {});

  const denying = table({
    label: "The rules that deny most, with their figures",
    stacks: false,
    dense: true,
    columns: [
      { key: "rule", label: "Rule", cell: (row) => h("a", { href: link("rule", { domain: row.domain, id: row.rule }) }, row.domain === "default" ? row.rule : `${row.domain}/${row.rule}`) },
      { key: "checks", label: "Checks/s", numeric: true, cell: (row) => rate(row.checks / 60) },
      { key: "denied", label: "Denied", numeric: true, cell: (row) => shareBar(percent(row.denied, row.checks), row.checks ? row.denied / row.checks : 0, "deny") },
    ],
    empty: () => empty("No rule decided anything in the last minute"),
  });

  put(
    page.root,
    pageHeader("Overview", {
      lead,
      actions: [
        segmented("Range", [["5m", "5 min"], ["1h", "1 hour"], ["24h", "24 hours"]], range, (to) => {
          range = /** @type {keyof typeof POINTS} */ (to);
          page.setParams({ range: to === "5m" ? "" : to });
          loadSeries().catch((error) => put(page.root, failure(error, page.reload)));
        }),
      ],
    }),
    first,
    h("div", { class: "stats" }, Object.values(tiles).map((tile) => tile.element)),
    h("section", { class: "card" }, traffic.element),
    h("div", { class: "grid2 even" }, h("section", { class: "card" }, latency.element), card("Answered by", { note: "since this page was opened" }, sources.element)),
    h("div", { class: "grid2" }, card("Rules that deny most", { class: "flush", note: "last minute", actions: [h("a", { href: link("rules") }, "All rules")] }, denying.element), h("div", { class: "stack" }, revision, alertCard)),
  );

  function draw() {
    const of = (/** @type {string} */ name) => series.series.find((one) => one.name === name)?.values ?? [];
    const perSecond = (/** @type {(number | null)[]} */ values) => values.map((value) => (value === null ? null : (value * 1000) / series.step_ms));
    const [allowed, denied, shadow] = [of("allowed"), of("denied"), of("shadow_denied")];
    traffic.set({
      start: series.start,
      step: series.step_ms,
      marks: series.marks.map((one) => ({ at: one.at, text: `revision ${one.revision}${one.actor ? ` by ${one.actor}` : ""}${one.text ? `: ${one.text}` : ""}` })),
      series: [
        { name: "allowed", label: "allowed", kind: "allow", values: perSecond(allowed) },
        { name: "denied", label: "denied", kind: "deny", values: perSecond(denied) },
        ...(shadow.some((value) => value) ? [{ name: "shadow", label: "shadow denials", kind: "shadow", values: perSecond(shadow) }] : []),
      ],
    });
    const times = series.latency ?? {};
    const hasStore = (times.store_p99_us ?? []).some((value) => value !== null);
    latency.set({
      start: series.start,
      step: series.step_ms,
      series: [
        { name: "p99", label: "decision p99", kind: "c1", values: times.decision_p99_us ?? [] },
        { name: "p50", label: "decision p50", kind: "c2", values: times.decision_p50_us ?? [] },
        ...(hasStore ? [{ name: "store", label: "store p99", kind: "c3", values: times.store_p99_us ?? [] }] : []),
      ],
    });
    if (range !== "5m") return;
    const sums = allowed.map((value, index) => (value === null ? null : value + (denied[index] ?? 0)));
    sparks.checks.set(sums);
    sparks.denied.set(denied);
    // Ten seconds: one alone jumps.
    const recent = (/** @type {(number | null)[]} */ values) => values.slice(-10).reduce((/** @type {number} */ sum, value) => sum + (value ?? 0), 0);
    const [checks, denials] = [recent(sums), recent(denied)];
    tiles.checks.set(rate(checks / 10), "last 10 s");
    tiles.denied.set(checks ? percent(denials, checks) : "–", checks ? `${rate(denials / 10)}/s` : "no checks yet");
    sparks.decision.set(times.decision_p99_us ?? []);
    sparks.store.set(times.store_p99_us ?? []);
    drawTimes(times);
  }

  /** @param {Record<string, (number | null)[]>} times */
  function drawTimes(times) {
    const last = (/** @type {string} */ name) => times[name]?.findLast((value) => value !== null) ?? null;
    tiles.decision.set(micros(last("decision_p99_us")), last("decision_p50_us") === null ? "" : `p50 ${micros(last("decision_p50_us"))}`);
    const store = last("store_p99_us");
    tiles.store.set(store === null ? "–" : micros(store), store === null ? "no store calls" : `p50 ${micros(last("store_p50_us"))}`);
  }

  const isFleet = () => series?.scope === "fleet" && series.instances > 1;

  async function loadSeries() {
    series = await api.get("series", { range }, page.signal);
    series.marks ??= [];
    draw();
  }

  async function loadRules() {
    const { items } = await api.get("series", { scope: "rules", sort: "denied", limit: 6 }, page.signal);
    denying.setRows(items);
  }

  async function loadStatus() {
    const status = await api.get("status", {}, page.signal);
    // The numbers of rules do not tell the built-in ones from those of files.
    const mayBe = status.version === 0 && status.rules.managed === 0 && status.rules.total > 0 && status.rules.total <= QUICKSTART_RULES;
    if (!mayBe) first.hidden = true;
    isQuickstart = mayBe && (await api.get("rules", { layer: "quickstart", limit: 1 }, page.signal)).items.length > 0;
    const { fleet, live } = status;
    const many = fleet?.instances ?? 1;
    const agree = many === 1 ? "One instance" : fleet.differ ? `${many} instances that run different rules` : `${many} instances, all with the same rules`;
    put(lead, agree, `; ${counted(status.rules.total, "rule")}, ${counted(status.override_rows, "override")}.`);
    put(
      revision,
      h("div", { class: "card-head" }, h("h2", null, "Live rules"), fleet?.differ ? badge("warning", "instances differ") : status.error ? badge("critical", "error") : null),
      live
        ? keyValues([
            ["Version", h("span", null, h("a", { href: link("versions", { number: live.number }) }, `version ${live.number}`), ` at revision ${status.revision}`)],
            ["Published", authored(live.actor, live.created_at)],
            ["Reason", live.reason || h("span", { class: "faint" }, "none given")],
            ["Rules", `${status.rules.managed} managed, ${status.rules.file} from files`],
          ])
        : h("p", { class: "faint" }, isQuickstart ? "The quickstart rules of the program. Nothing was published yet." : status.rules.file > 0 ? "The rules come from the files of this instance. Nothing was published yet." : "Nothing was published yet."),
      status.error && h("p", { class: "note-line", data: { kind: "critical" } }, mark("critical"), status.error),
      (fleet?.warnings ?? []).map((/** @type {string} */ text) => h("p", { class: "note-line", data: { kind: "warning" } }, mark("warning"), text)),
      status.rejected_count > 0 && h("p", { class: "note-line", data: { kind: "warning" } }, mark("warning"), `${status.rejected_count} override rows are not in use: they do not fit their rule.`),
    );
  }

  function drawAlerts() {
    const found = alerts.firing;
    put(
      alertCard,
      h("div", { class: "card-head" }, h("h2", null, "Alerts"), found?.length ? badge("critical", `${found.length} firing`) : null),
      !found || found.length === 0
        ? h("p", { class: "faint" }, found ? "None fires." : "Not known.")
        : h("ul", { class: "alert-list" }, found.slice(0, 5).map((alert) => h("li", null, mark(alert.severity === "critical" ? "critical" : "warning"), h("a", { href: link("alerts") }, alert.summary), time(alert.since, "ago")))),
    );
  }

  /** What was decided since the page was opened, by source. @type {Record<string, number>} */
  const seen = {};
  sources.set([]);
  drawAlerts();
  alerts.addEventListener("change", drawAlerts, { signal: page.signal });

  feed.on(
    "totals",
    (totals) => {
      for (const [name, value] of Object.entries(totals.sources ?? {})) seen[name] = (seen[name] ?? 0) + value;
      const parts = Object.entries(seen).filter(([, value]) => value > 0).sort(([, one], [, other]) => other - one);
      sources.set(parts.map(([name, value]) => ({ label: SOURCES[name]?.[1] ?? name, kind: SOURCES[name]?.[0] ?? "c5", title: SOURCES[name]?.[2], value })));
      // The stream has the totals of the instance that serves this page.
      if (!series || range !== "5m" || isFleet()) return;
      append(series, totals);
      draw();
    },
    page.signal,
  );
  feed.on("resync", () => loadSeries(), page.signal);
  feed.on("revision", () => (loadStatus(), range === "5m" && loadSeries()), page.signal);

  await Promise.all([loadStatus(), loadSeries()]);
  if (isQuickstart) {
    put(first, firstMinute(page));
    first.hidden = false;
    denying.setRows([]);
  } else {
    await loadRules();
  }

  let ticks = 0;
  const timer = setInterval(() => {
    if (document.hidden) return;
    ticks += 1;
    if (ticks % 3 === 0) loadRules().catch(() => {});
    const every = range === "24h" ? 30 : range === "1h" ? 5 : 1;
    if ((range !== "5m" || isFleet()) && ticks % every === 0) loadSeries().catch(() => {});
  }, 2000);
  page.signal.addEventListener("abort", () => clearInterval(timer));
}

/** @param {number} n @param {string} thing */
const counted = (n, thing) => `${n === 0 ? "no" : count(n)} ${thing}${n === 1 ? "" : "s"}`;

/** Adds one second to a series, with gaps where seconds are missing. @param {SeriesReply} series @param {any} totals */
function append(series, totals) {
  const n = series.series[0].values.length;
  const last = series.start + (n - 1) * series.step_ms;
  const steps = Math.round((totals.at - last) / series.step_ms);
  if (steps <= 0) return;
  if (steps > n) return;
  const add = (/** @type {(number | null)[]} */ values, /** @type {number | null} */ value) => {
    for (let step = 1; step < steps; step += 1) values.push(null);
    values.push(value);
    values.splice(0, values.length - n);
  };
  for (const one of series.series) add(one.values, totals[one.name] ?? null);
  for (const [name, values] of Object.entries(series.latency ?? {})) add(values, totals[name] ?? null);
  series.start += steps * series.step_ms;
}

/** Rules that the program has built in. */
const QUICKSTART_RULES = 2;
/** The limit of the quickstart rule, drawn as this many slots until a check says otherwise. */
const SLOTS = 5;
/** Results that are shown. */
const RESULTS_MAX = 40;

/** The card of the first minute. @param {import("../app.js").Page} page */
function firstMinute(page) {
  const user = `guest-${Math.random().toString(36).slice(2, 6)}`;
  const slots = h("div", { class: "slots", "aria-hidden": "true" });
  const results = h("div", { class: "results-line", "aria-hidden": "true" });
  const said = h("p", { class: "said", role: "status" }, "Nothing sent yet.");
  const wait = h("p", { class: "faint wait" });
  let capacity = SLOTS;
  let left = SLOTS;
  /** When a check passes again. */
  let retryAt = 0;
  let sent = 0;

  const draw = () => {
    slots.classList.toggle("full", left === 0);
    put(slots, Array.from({ length: Math.min(capacity, 20) }, (_, index) => h("span", { class: index < capacity - left ? "slot used" : "slot" })));
  };
  draw();

  async function send() {
    const verdict = await sendCheck({ attributes: { user } });
    const limit = verdict.limits?.find((/** @type {any} */ one) => one.rule === "quickstart") ?? verdict;
    sent += 1;
    capacity = limit.limit ?? capacity;
    left = limit.remaining ?? left;
    retryAt = verdict.allowed ? 0 : performance.now() + (verdict.retry_after_ms ?? 0);
    results.prepend(mark(verdict.allowed ? "allow" : "deny"));
    while (results.children.length > RESULTS_MAX) results.lastElementChild?.remove();
    draw();
    said.dataset.kind = verdict.allowed ? "allow" : "deny";
    put(
      said,
      mark(verdict.allowed ? "allow" : "deny"),
      h("span", null, h("strong", null, verdict.allowed ? "Allowed" : "Denied"), verdict.allowed ? ` by ${verdict.rule}: ${left} of ${capacity} left.` : ` by ${verdict.rule}: the limit is used up. Retry in ${duration(verdict.retry_after_ms)}.`),
    );
  }

  const timer = setInterval(() => {
    if (document.hidden || sent === 0) return;
    const ms = retryAt - performance.now();
    wait.textContent = retryAt === 0 ? "" : ms > 0 ? `The next check passes in ${duration(Math.ceil(ms / 1000) * 1000)}.` : "A check would pass again: try it.";
    // The limit gives back while one looks on; the next check says exactly.
  }, 500);
  page.signal.addEventListener("abort", () => clearInterval(timer));

  const many = async () => {
    for (let index = 0; index < 10; index += 1) {
      await send();
      await new Promise((resolve) => setTimeout(resolve, 120));
      if (page.signal.aborted) return;
    }
  };

  return h(
    "section",
    { class: "card first", "aria-labelledby": "first-title" },
    h(
      "div",
      { class: "first-try" },
      h("h2", { id: "first-title" }, "Watch a limit at work"),
      h("p", null, "This server runs the ", h("a", { href: link("rules") }, "quickstart rules"), ": each user may burst five checks, then one every twelve seconds. Send a few as ", h("code", null, `user=${user}`), "."),
      h("div", { class: "gauge" }, slots, said, wait),
      h("div", { class: "actions" }, button("Try it: send a check", () => send().catch(toastProblem), { kind: "primary", icon: "bolt" }), button("Send ten", many), linkButton("Watch live", link("live"), { kind: "quiet", icon: "live" })),
      results,
    ),
    h(
      "div",
      { class: "first-next" },
      h("h3", null, "From your code"),
      codeBlock(`curl -s localhost:8080/v1/check \\\n  -d '{"attributes":{"user":"u_1"}}'`, "a check with curl"),
      h("h3", null, "With your own rules"),
      codeBlock("rules:\n- id: search\n  per: user\n  limit: 100/min", "a rule file"),
      codeBlock("tollgate rules apply rules.yaml", "the command that publishes it"),
      page.me.setup_open && h("p", { class: "hint" }, "To change rules here, create the first admin: open the address after “setup:” that the server printed."),
    ),
  );
}
