// @ts-check
// Alerts: what fires, what is silenced, what is over; and the webhooks that carry them.

import "../pages_style.js";
import { ago, count, dateTime, duration, h, link, put, subjectLink, time } from "../core.js";
import { api, feed } from "../api.js";
import { badge, button, card, code, confirm, empty, failure, formDialog, loading, mark, pageHeader, reasonField, segmented, subject, toast } from "../components.js";
import { timeOf, untilField } from "../writes.js";

export const title = "Alerts";

/** @typedef {{id: string, kind: string, severity: "warning" | "critical", domain: string | null, rule: string | null, subject: Record<string, string> | null, state: string,
 *   since: number, resolved_at: number | null, summary: string, value: number | null, baseline: number | null, silenced_until: number | null,
 *   runbook: string | null}} Alert */
/** @typedef {{id: string, kind: string | null, domain: string | null, rule: string | null, subject: Record<string, string> | null, until: number, reason: string,
 *   actor: string}} Silence */

/** States with their names. @type {[string, string][]} */
const STATES = [["firing", "Firing"], ["pending", "Pending"], ["silenced", "Silenced"], ["resolved", "Past"]];

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { signal } = page;
  let state = STATES.map(([name]) => name).find((name) => name === page.params.get("state")) ?? "firing";
  const list = h("div", { class: "alerts", role: "region", "aria-label": "Alerts" });
  const more = h("div", { class: "table-foot" });
  const hooks = h("div");
  const silences = h("div");
  let count_ = 0;

  async function read() {
    count_ += 1;
    const number = count_;
    try {
      const found = await api.get("alerts", { state, limit: 100 }, signal);
      if (number !== count_) return;
      put(list, found.items.length === 0 ? nothing(state) : found.items.map(item));
      drawMore(found.after);
      put(hooks, webhooks(found.webhooks ?? []));
      put(silences, silencesView(found.silences ?? []));
    } catch (error) {
      if (signal.aborted || number !== count_) return;
      put(list, failure(error, read));
    }
  }

  /** @param {string | null} after */
  function drawMore(after) {
    put(
      more,
      after &&
        button("Show more", async () => {
          const found = await api.get("alerts", { state, limit: 100, after }, signal);
          list.append(...found.items.map(item));
          drawMore(found.after);
        }, { small: true }),
    );
  }

  /** @param {Alert} alert */
  function item(alert) {
    const kind = alert.state === "resolved" ? "neutral" : alert.severity;
    const canSilence = page.can("override");
    return h(
      "article",
      { class: "alert", data: { kind, state: alert.state } },
      h("div", { class: "alert-head" }, mark(kind), h("strong", null, alert.summary), badge(kind, alert.state)),
      h(
        "p",
        { class: "alert-facts" },
        alert.rule && h("a", { href: link("rule", { domain: alert.domain, id: alert.rule }) }, code(`${alert.domain}/${alert.rule}`)),
        alert.subject && (page.can("subjects") ? h("a", { href: subjectLink(alert.domain, alert.subject) }, subject(alert.subject)) : subject(alert.subject)),
        alert.kind.endsWith("_jump") && typeof alert.value === "number" && typeof alert.baseline === "number" && h("span", null, `${count(alert.value)} a minute, usually ${count(alert.baseline)}`),
        h("span", { class: "faint" }, alert.resolved_at ? [time(alert.since), `, for ${duration(alert.resolved_at - alert.since)}`] : ["since ", time(alert.since, "ago")].flat()),
        alert.silenced_until && h("span", { class: "faint" }, `silenced until ${dateTime(alert.silenced_until)}`),
      ),
      h(
        "div",
        { class: "actions" },
        alert.rule && h("a", { class: "button quiet small", href: link("versions") }, "What changed before it"),
        canSilence && alert.state !== "resolved" && !alert.silenced_until && button("Silence…", () => silence(alert), { small: true }),
      ),
    );
  }

  /** @param {Alert} alert */
  async function silence(alert) {
    const until = untilField("Until", Date.now() + 3_600_000);
    const made = await formDialog("Silence the alert", [h("p", null, alert.summary), h("p", { class: "hint" }, "It stays on this page, and no webhook carries it."), until, reasonField(true)], {
      action: "Silence",
      submit: ({ until: end, reason }) => api.post("alerts/silence", { body: { kind: alert.kind, domain: alert.domain, rule: alert.rule, subject: alert.subject, until: timeOf(end), reason } }),
    });
    if (!made) return;
    toast("The alert is silenced");
    await read();
  }

  /** @param {Silence[]} all */
  function silencesView(all) {
    if (all.length === 0) return null;
    return card(
      "Silences",
      {},
      h(
        "ul",
        { class: "nodes" },
        all.map((one) =>
          h(
            "li",
            null,
            h("strong", null, one.kind ?? "every kind"),
            one.rule && code(`${one.domain}/${one.rule}`),
            one.subject && subject(one.subject),
            h("span", { class: "faint" }, `until ${dateTime(one.until)}, by ${one.actor}`),
            one.reason && h("span", null, `“${one.reason}”`),
            page.can("override") && button("End", () => unsilence(one), { small: true, title: "End the silence" }),
          ),
        ),
      ),
    );
  }

  /** @param {Silence} one */
  async function unsilence(one) {
    const done = await confirm("End the silence", "Webhooks carry what it kept back, if that still fires.", { action: "End it", submit: () => api.delete("alerts/silence", { query: { id: one.id } }) });
    if (done) await read();
  }

  /** @param {any[]} all */
  function webhooks(all) {
    if (all.length === 0) return h("p", { class: "faint" }, "None is set. ", code("alerts.webhooks"), " in the settings has them, with a name, an https address and a secret.");
    return h(
      "ul",
      { class: "nodes" },
      all.map((hook) =>
        h(
          "li",
          null,
          h("strong", null, hook.name),
          hook.last_error ? badge("critical", "failing", { title: hook.last_error }) : badge(hook.last_delivery ? "allow" : "neutral", hook.last_delivery ? `delivered ${ago(hook.last_delivery)}` : "nothing sent yet"),
          hook.last_error && h("span", { class: "hint" }, hook.last_error),
          page.can("admin") && button(`Test ${hook.name}`, () => test(hook.name), { small: true }),
        ),
      ),
    );
  }

  /** @param {string} name */
  async function test(name) {
    const result = await api.post("webhooks/test", { body: { name } });
    toast(result.delivered ? `${name} answered ${result.status} after ${duration(result.elapsed_ms)}` : `${name} was not reached: ${result.error ?? `status ${result.status}`}`, result.delivered ? "allow" : "critical");
  }

  put(
    page.root,
    pageHeader(title, { lead: "Jumps of traffic and denials, and what is wrong with the store, the rules or the database." }),
    h("div", { class: "toolbar" }, segmented("Which alerts", STATES, state, (value) => {
      state = value;
      page.setParams({ state });
      put(list, loading(3));
      read();
    })),
    list,
    more,
    silences,
    card("Webhooks", {}, hooks),
  );
  put(list, loading(3));
  await read();
  feed.on("alert", read, signal);
}

/** @param {string} state */
function nothing(state) {
  const texts = /** @type {Record<string, [string, string]>} */ ({
    firing: ["Nothing fires", "Traffic, denials, the store and the rules are as usual."],
    pending: ["Nothing is pending", "An alert is pending until its condition has held long enough."],
    silenced: ["Nothing is silenced", "A silence keeps an alert from the webhooks for a while."],
    resolved: ["Nothing has fired yet", "Alerts that are over are kept here."],
  });
  const [heading, text] = texts[state] ?? texts.firing;
  return empty(heading, text);
}
