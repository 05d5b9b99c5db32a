// @ts-check
// Decisions as they are made: a sample, denials first, with filter and pause; each opens its explanation.

import { clock, count, duration, h, put, rate, subjectText } from "../core.js";
import { api, feed } from "../api.js";
import { badge, button, code, dialog, empty, failure, keyValues, loading, mark, pageHeader, searchField, segmented, stat, subject } from "../components.js";
import { explanationView, subjectActions, subjectButton } from "../explain.js";
import { SOURCES } from "./overview.js";

export const title = "Live";

/** Decisions on screen, and waiting while it is paused. */
const SHOWN_MAX = 200;

/** @param {import("../app.js").Page} page */
export function show(page) {
  /** Newest first. @type {any[]} */
  let decisions = [];
  /** @type {any[]} */
  let arrived = [];
  let isPaused = false;
  let filter = page.params.get("q") ?? "";
  let only = page.params.get("only") ?? "all";
  const wants = { decisions: true, filter: serverFilter(filter) };
  const tiles = { checks: stat("Checks per second"), denied: stat("Denied per second", { kind: "deny" }), shadow: stat("Shadow denials per second", { kind: "shadow" }) };
  const body = h("tbody");
  const note = h("div", { class: "table-state" });
  const said = h("p", { class: "hint", role: "status" });
  const scroller = h(
    "div",
    { class: "table-scroll live", tabindex: 0, role: "region", "aria-label": "Decisions" },
    h(
      "table",
      { class: "dense" },
      h("thead", null, h("tr", null, [["Time", ""], ["Result", ""], ["Attributes", ""], ["Rule", "p2"], ["Left", "numeric p2"], ["Source", "p3"], ["Protocol", "p3"]].map(([text, classes]) => h("th", { scope: "col", class: classes || undefined }, text)))),
      body,
    ),
  );

  const pause = button("Pause", () => setPaused(!isPaused), { icon: "pause" });
  /** @param {boolean} to */
  function setPaused(to) {
    isPaused = to;
    put(pause, h("span", null, isPaused ? "Resume" : "Pause"));
    pause.classList.toggle("primary", isPaused);
    flush();
  }

  const matches = (/** @type {any} */ one) => {
    if (only === "denied" && one.allowed) return false;
    if (!filter) return true;
    const text = `${one.domain}/${one.rule ?? ""} ${subjectText(one.attributes)}`.toLowerCase();
    return filter.toLowerCase().split(/\s+/).every((part) => text.includes(part));
  };

  put(
    page.root,
    pageHeader("Live", { lead: "A sample of what is decided now: at most 20 a second, denials first.", actions: [pause] }),
    h("div", { class: "stats" }, Object.values(tiles).map((tile) => tile.element)),
    h(
      "section",
      { class: "card flush" },
      h(
        "div",
        { class: "toolbar padded" },
        searchField("Filter by rule or attribute", filter, (to) => {
          filter = to;
          feed.change(wants, { filter: serverFilter(to) });
          remember();
        }),
        segmented("Results", [["all", "All"], ["denied", "Denied"]], only, (to) => {
          only = to;
          remember();
        }),
        said,
      ),
      scroller,
      note,
    ),
  );

  function remember() {
    page.setParams({ q: filter, only: only === "all" ? "" : only });
    decisions = decisions.filter(matches);
    draw();
  }

  /** @param {any} one */
  function line(one) {
    const kind = one.allowed ? "allow" : "deny";
    const open = h("button", { type: "button", class: "row-button", on: { click: () => openDecision(page, one) } }, clock(one.at));
    const row = h(
      "tr",
      { class: "selectable", data: { kind } },
      h("th", { scope: "row" }, open),
      h("td", null, badge(kind, one.allowed ? "allowed" : "denied")),
      h("td", { class: "attributes" }, subject(one.attributes), h("span", { class: "only-small faint" }, one.rule ?? "")),
      h("td", { class: "p2" }, one.rule ? code(one.domain === "default" ? one.rule : `${one.domain}/${one.rule}`) : h("span", { class: "faint" }, "no rule")),
      h("td", { class: "numeric p2" }, one.allowed ? count(one.remaining) : one.retry_after_ms ? `retry in ${duration(one.retry_after_ms)}` : "0"),
      h("td", { class: "p3" }, SOURCES[one.source]?.[1] ?? one.source),
      h("td", { class: "p3 faint" }, one.protocol),
    );
    row.addEventListener("click", (event) => {
      if (!(/** @type {Element} */ (event.target).closest("button"))) openDecision(page, one);
    });
    return row;
  }

  function flush() {
    if (isPaused || document.hidden) {
      if (isPaused) said.textContent = arrived.length ? `Paused; ${arrived.length}${arrived.length >= SHOWN_MAX ? " or more" : ""} new.` : "Paused.";
      return;
    }
    said.textContent = "";
    if (arrived.length === 0) return;
    const fresh = arrived.reverse();
    arrived = [];
    decisions = [...fresh, ...decisions].slice(0, SHOWN_MAX);
    // Rows that stay are not drawn again.
    body.prepend(...fresh.map(line));
    while (body.children.length > SHOWN_MAX) body.lastElementChild?.remove();
    drawNote();
  }

  function draw() {
    put(body, decisions.map(line));
    drawNote();
  }

  function drawNote() {
    scroller.hidden = decisions.length === 0;
    put(note, decisions.length === 0 && empty(filter || only !== "all" ? "Nothing matches yet" : "Waiting for traffic", filter || only !== "all" ? "New decisions that match appear here." : "Decisions appear here as soon as a check arrives, over HTTP, gRPC, or the Redis protocol."));
  }
  drawNote();

  feed.on(
    "decision",
    (one) => {
      if (!matches(one)) return;
      arrived.push(one);
      if (arrived.length > SHOWN_MAX) arrived.shift();
    },
    page.signal,
    wants,
  );
  feed.on(
    "totals",
    (totals) => {
      tiles.checks.set(rate(totals.allowed + totals.denied));
      tiles.denied.set(rate(totals.denied));
      tiles.shadow.set(rate(totals.shadow_denied ?? 0));
    },
    page.signal,
  );
  const timer = setInterval(flush, 500);
  page.signal.addEventListener("abort", () => clearInterval(timer));
}

/**
 * The text that the server looks for, so that its sample has more of what is wanted: one part of a name or a value. The page looks
 * for all parts of the filter.
 * @param {string} filter
 */
const serverFilter = (filter) => filter.split(/\s+/)[0].split(/[=/]/).at(-1)?.replace(/,$/, "") ?? "";

/** The drawer of one decision. @param {import("../app.js").Page} page @param {any} one */
async function openDecision(page, one) {
  const content = h("div", { class: "stack" });
  const kind = one.allowed ? "allow" : "deny";
  dialog(one.allowed ? "Allowed" : "Denied", content, { side: true });
  const facts = [
    h("p", { class: "verdict", data: { kind } }, mark(kind), h("span", null, h("strong", null, one.allowed ? "Allowed" : "Denied"), one.rule ? [" by ", code(one.rule)] : null, ` at ${clock(one.at)}.`)),
    keyValues([
      ["Attributes", subject(one.attributes)],
      ["Domain", one.domain],
      ["Cost", count(one.cost)],
      ["Source", SOURCES[one.source] ? `${SOURCES[one.source][1]}: ${SOURCES[one.source][2]}` : one.source],
      ["Protocol", one.protocol],
      one.remaining !== null && one.remaining !== undefined && ["Left", count(one.remaining)],
      Boolean(one.retry_after_ms) && ["Retry in", duration(one.retry_after_ms)],
    ]),
  ];
  if (!page.can("explain") || !page.can("subjects")) {
    put(content, facts, h("p", { class: "hint" }, "Operators see the explanation: every rule, met or not and why."));
    return;
  }
  const below = h("div", { class: "stack" }, loading(4));
  put(content, facts, h("div", { class: "actions" }, subjectButton(one.domain, one.attributes)), h("h3", null, "As it is now"), below);
  const load = async () => {
    try {
      const explanation = await api.post("explain", { body: { domain: one.domain, attributes: one.attributes, cost: one.cost } });
      put(below, explanationView(explanation, (trace) => subjectActions(page, trace, [], load)));
    } catch (error) {
      put(below, failure(error, load));
    }
  };
  await load();
}
