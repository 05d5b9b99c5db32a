// @ts-check
// An explanation as `/v1/explain` returns it, and the changes of one subject that start from it.

import { dateTime, duration, h, link, count, subjectLink, subjectText } from "./core.js";
import { api } from "./api.js";
import { badge, button, code, confirm, field, formDialog, input, keyValues, linkButton, mark, modeBadge, reasonField, select, subject as subjectCode, toast } from "./components.js";

/**
 * @typedef {Record<string, string>} Subject
 * @typedef {{domain: string, rule: string, subject: Subject}} RowName
 */

/** Reasons why a rule was skipped. @param {any} one */
function skipText(one) {
  switch (one.reason) {
    case "disabled":
      return "it is disabled";
    case "domain":
      return `it belongs to another domain than ${one.actual}`;
    case "condition":
      return [`${one.attribute} is ${one.actual === null || one.actual === undefined ? "missing" : `“${one.actual}”`}, and the rule wants ${Array.isArray(one.expected) ? one.expected.join(" or ") : one.expected}`];
    case "missing_attribute":
      return `the attribute ${one.attribute} is missing`;
    case "descriptor":
      return one.matched_rule ? `${one.matched_rule} matched the descriptor` : "no descriptor matched";
    default:
      return one.reason;
  }
}

/** The origin of a limit. @param {any} from */
function originText(from) {
  switch (from?.kind) {
    case "by":
      return `by ${from.attribute}: ${from.value}`;
    case "override":
      return "an override in the rule file";
    case "row":
      return `the override of ${from.subject.map((/** @type {any} */ pair) => `${pair.attribute}=${pair.value}`).join(", ")}`;
    default:
      return "the limit of the rule";
  }
}

/** The subject that a rule counts. @param {any} trace @returns {Subject} */
export const countedSubject = (trace) => Object.fromEntries((trace.per ?? []).map((/** @type {any} */ pair) => [pair.attribute, pair.value]));

/**
 * Every rule, met or not and why. `actions` adds buttons to a rule that matched.
 * @param {any} explanation
 * @param {(trace: any) => import("./core.js").Child[]} [actions]
 */
export function explanationView(explanation, actions) {
  const { verdict } = explanation;
  const met = explanation.rules.filter((/** @type {any} */ rule) => rule.matched);
  const missed = explanation.rules.filter((/** @type {any} */ rule) => !rule.matched);
  return h(
    "div",
    { class: "explanation" },
    h(
      "p",
      { class: "verdict", data: { kind: verdict.allowed ? "allow" : "deny" } },
      mark(verdict.allowed ? "allow" : "deny"),
      h(
        "span",
        null,
        h("strong", null, verdict.allowed ? "A check would pass" : "A check would be denied"),
        verdict.rule ? [" by ", h("code", null, verdict.rule)] : verdict.limits?.length ? null : ": no rule limits it",
        !verdict.allowed && verdict.retry_after_ms ? ` for another ${duration(verdict.retry_after_ms)}` : null,
        ".",
      ),
    ),
    verdict.warning && h("p", { class: "note-line", data: { kind: "warning" } }, mark("warning"), verdict.warning),
    (explanation.derived ?? []).map((/** @type {any} */ one) => h("p", { class: "hint" }, `${one.attribute} is ${one.values.join(", ")}: derived from ${one.from} (${one.origin}).`)),
    met.length === 0 && h("p", { class: "faint" }, "No rule matches these attributes."),
    met.map((/** @type {any} */ trace) => metRule(trace, actions)),
    missed.length > 0 &&
      h(
        "details",
        { class: "missed", open: met.length === 0 },
        h("summary", null, `${missed.length} ${missed.length === 1 ? "rule does" : "rules do"} not apply`),
        h(
          "ul",
          null,
          missed.slice(0, 200).map((/** @type {any} */ trace) =>
            h("li", null, h("a", { href: link("rule", { domain: trace.domain, id: trace.rule }) }, trace.domain === "default" ? trace.rule : `${trace.domain}/${trace.rule}`), h("span", { class: "faint" }, ` ${(trace.skipped ?? []).map(skipText).join("; ")}`)),
          ),
          missed.length > 200 && h("li", { class: "faint" }, `and ${missed.length - 200} more`),
        ),
      ),
  );
}

/** @param {any} trace @param {((trace: any) => import("./core.js").Child[]) | undefined} actions */
function metRule(trace, actions) {
  const limits = trace.limits ?? [];
  const denies = limits.some((/** @type {any} */ limit) => limit.allowed === false);
  const kind = denies ? (trace.mode === "shadow" ? "shadow" : "deny") : "allow";
  return h(
    "article",
    { class: "met", data: { kind } },
    h(
      "header",
      null,
      mark(kind),
      h("h3", null, h("a", { href: link("rule", { domain: trace.domain, id: trace.rule }) }, trace.domain === "default" ? trace.rule : `${trace.domain}/${trace.rule}`)),
      trace.mode !== "enforce" && modeBadge(trace.mode),
      trace.terms === "banned" && badge("deny", "banned"),
      trace.terms === "unlimited" && badge("allow", "unlimited"),
      trace.variant && badge("info", trace.variant),
      h("span", { class: "faint" }, denies ? (trace.mode === "shadow" ? "would deny, but is in shadow" : "denies") : "allows"),
    ),
    limits.filter((/** @type {any} */ limit) => limit.limit !== null).map((/** @type {any} */ limit) => standing(limit, trace.mode === "shadow" ? "shadow" : "deny")),
    keyValues([
      ["Counts", Object.keys(countedSubject(trace)).length ? subjectCode(countedSubject(trace)) : "all requests as one"],
      ["Limit", h("span", null, h("code", null, trace.limit), h("span", { class: "faint" }, `, ${originText(trace.from)}`))],
      trace.cost !== 1 && ["Cost", count(trace.cost)],
      trace.reserve && ["Reserve", `${trace.reserve.share}, ${trace.reserve.usable ? "which this request may use" : "kept for others"}`],
      limits[0]?.algorithm && ["Algorithm", limits.map((/** @type {any} */ limit) => limit.algorithm).filter(Boolean).join(", ")],
      limits[0]?.source && ["Counted in", [...new Set(limits.map((/** @type {any} */ limit) => limit.source))].join(", ")],
    ]),
    (trace.advice ?? []).map((/** @type {string} */ text) => h("p", { class: "hint" }, text)),
    actions && h("div", { class: "actions" }, actions(trace)),
  );
}

/** A counter: used, left, and when all of it is left again. @param {any} limit @param {string} full the kind of a limit that is used up */
function standing(limit, full) {
  const used = Math.max(0, (limit.limit ?? 0) - (limit.remaining ?? 0));
  const share = limit.limit ? Math.min(1, used / limit.limit) : 0;
  const times = [limit.retry_after_ms ? `retry in ${duration(limit.retry_after_ms)}` : null, limit.reset_after_ms ? `full again in ${duration(limit.reset_after_ms)}` : null].filter(Boolean).join(", ");
  return h(
    "div",
    { class: "standing" },
    h("div", { class: "standing-text" }, h("span", null, h("strong", null, count(used)), ` of ${count(limit.limit)} used`), h("span", { class: "faint" }, `${count(limit.remaining)} left${times ? `; ${times}` : ""}`)),
    h("div", { class: "meter", data: { kind: share >= 1 ? full : share >= 0.8 ? "local" : "allow" }, vars: { "--share": `${Math.round(share * 1000) / 10}%` }, "aria-hidden": "true" }, h("span")),
  );
}

// Changes of one subject.

/** The next Friday, or in a week if it is one, at the end of the day. */
export function friday(now = new Date()) {
  const to = new Date(now);
  to.setDate(to.getDate() + ((5 - to.getDay() + 7) % 7 || 7));
  to.setHours(23, 59, 0, 0);
  return to;
}

/** @param {Date} date in the form of `datetime-local` */
const localText = (date) => new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

const tomorrow = () => {
  const to = new Date();
  to.setDate(to.getDate() + 1);
  to.setHours(23, 59, 0, 0);
  return to;
};

/**
 * Sets or changes an override with an end. Resolves to the row, or null.
 * @param {RowName} name
 * @param {{limit?: string, title?: string, until?: Date, row?: any}} [props]
 */
export async function overrideDialog(name, props = {}) {
  const { row } = props;
  const until = input("until", { type: "datetime-local", value: localText(row?.expires_at ? new Date(row.expires_at) : (props.until ?? tomorrow())) });
  const preset = (/** @type {string} */ label, /** @type {Date} */ to) => button(label, () => void (until.value = localText(to)), { small: true });
  const week = new Date(Date.now() + 7 * 86_400_000);
  return formDialog(
    props.title ?? (row ? "Change the override" : "Override the limit"),
    [
      h("p", null, "For ", subjectCode(name.subject), " in ", code(`${name.domain}/${name.rule}`), "."),
      field("Limit", input("terms", { required: true, class: "mono", value: row?.terms ?? props.limit ?? "", placeholder: "20000/min burst 500", maxlength: 1024 }), { hint: "As rules write it; unlimited, or 0/min to ban." }),
      field("Until", until, { hint: ["Local time. Empty: forever. ", preset("Tomorrow", tomorrow()), " ", preset("Friday", friday()), " ", preset("A week", week)] }),
      field("Note (optional)", input("note", { maxlength: 500, value: row?.note ?? "" })),
      reasonField(false),
    ],
    {
      action: row ? "Change the override" : "Set the override",
      submit: async (values) => {
        const expires_at = values.until ? new Date(values.until).getTime() : 0;
        const done = await putRow(name, { terms: values.terms, note: values.note, expires_at, reason: values.reason }, row);
        toast(`${subjectText(name.subject)} has ${values.terms}${expires_at ? ` until ${dateTime(expires_at)}` : ""}.`, "allow");
        return done;
      },
    },
  );
}

/** @param {RowName} name @param {any} body @param {any} [row] the row that is there */
export async function putRow(name, body, row) {
  const query = { domain: name.domain, rule: name.rule, subject: JSON.stringify(name.subject) };
  return api.put("override", { query, match: row ? row.etag : null, body });
}

/** Denies everything of a subject. @param {RowName} name @param {any} [row] */
export async function banDialog(name, row) {
  return formDialog(
    "Ban",
    [
      h("p", null, "Every check of ", subjectCode(name.subject), " that ", code(`${name.domain}/${name.rule}`), " counts will be denied."),
      field("For", select("days", [["1", "a day"], ["7", "a week"], ["30", "30 days"], ["0", "good"]])),
      reasonField(true),
    ],
    {
      action: "Ban",
      danger: true,
      submit: async ({ days, reason }) => {
        const done = await putRow(name, { terms: "0/min", note: "ban", expires_at: days === "0" ? 0 : Date.now() + Number(days) * 86_400_000, reason }, row);
        toast(`${subjectText(name.subject)} is banned.`, "deny");
        return done;
      },
    },
  );
}

/**
 * Clears counters. @param {string} domain @param {Subject} attributes @param {string} [rule] all rules without it
 */
export async function forgetDialog(domain, attributes, rule) {
  return confirm("Forget the counters", ["The counters of ", subjectCode(attributes), rule ? [" in ", code(rule)] : " in all rules that match", " become fresh: what was used is not counted any more."].flat(), {
    action: "Forget",
    reason: "optional",
    submit: async (reason) => {
      const { forgotten } = await api.post("forget", { body: { domain, attributes, rule, reason: reason || undefined } });
      toast(`${count(forgotten)} ${forgotten === 1 ? "counter is" : "counters are"} fresh.`, "allow");
      return true;
    },
  });
}

/** Removes an override. @param {any} row */
export async function removeRowDialog(row) {
  return confirm("Remove the override", [subjectCode(row.subject), " has the limit of ", code(`${row.domain}/${row.rule}`), " again."], {
    action: "Remove",
    danger: true,
    reason: "optional",
    submit: async (reason) => {
      await api.delete("override", { query: { domain: row.domain, rule: row.rule, subject: JSON.stringify(row.subject), reason }, match: row.etag });
      toast("The override is removed.");
      return true;
    },
  });
}

/**
 * The buttons of a rule that matched a subject: override, raise, ban, forget, as far as the caller may.
 * @param {import("./app.js").Page} page @param {any} trace @param {any[]} rows rows of the subject @param {() => void} changed
 */
export function subjectActions(page, trace, rows, changed) {
  const subject = countedSubject(trace);
  if (Object.keys(subject).length === 0) return [];
  const name = { domain: trace.domain, rule: trace.rule, subject };
  const row = rows.find((one) => one.rule === trace.rule && one.domain === trace.domain && sameSubject(one.subject, subject));
  const done = (/** @type {any} */ result) => result && changed();
  const doubled = doubledLimit(trace.limit);
  return [
    page.can("override") && button(row ? "Change override" : "Override until…", () => overrideDialog(name, { row, limit: trace.limit }).then(done), { small: true }),
    page.can("override") && doubled && !row && button("Raise until Friday", () => raiseDialog(name, doubled).then(done), { small: true }),
    page.can("override") && row && button("Remove override", () => removeRowDialog(row).then(done), { small: true }),
    page.can("forget") && button("Forget", () => forgetDialog(trace.domain, subject, trace.rule).then(done), { small: true }),
    page.can("override") && trace.terms !== "banned" && button("Ban", () => banDialog(name, row).then(done), { small: true, kind: "quiet" }),
  ];
}

/** Twice the limit until Friday. @param {RowName} name @param {string} limit */
const raiseDialog = (name, limit) => overrideDialog(name, { title: "Raise until Friday", limit, until: friday() });

/**
 * Raises what applies to a subject, which another origin than the rule's own limit may have made higher. The field is empty where that is
 * not known: a rule with conditions may match none of the attributes it counts by.
 * @param {RowName} name
 */
export async function raiseSubject(name) {
  const { explanation, rows } = await api.get("subject", { domain: name.domain === "default" ? "" : name.domain, ...name.subject });
  const row = rows.find((/** @type {any} */ one) => one.rule === name.rule && one.domain === name.domain && sameSubject(one.subject, name.subject));
  if (row) return overrideDialog(name, { row });
  const trace = explanation.rules.find((/** @type {any} */ one) => one.rule === name.rule && one.domain === name.domain && one.matched);
  return raiseDialog(name, trace ? doubledLimit(trace.limit) : "");
}

/** A limit of twice the number: `100/min` is `200/min`; empty where it is not a single one. @param {string} text */
export function doubledLimit(text) {
  const found = /^(\d[\d_,]*)(\/\S+)(?: burst (\d+))?$/.exec(text.trim());
  if (!found) return "";
  const [, number, period, burst] = found;
  return `${2 * Number(number.replace(/[_,]/g, ""))}${period}${burst ? ` burst ${2 * Number(burst)}` : ""}`;
}

/** @param {Subject} one @param {Subject} other */
export const sameSubject = (one, other) => JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());

/** The page of a subject as a link. @param {string} domain @param {Subject} subject */
export const subjectButton = (domain, subject) => linkButton("Open the subject", subjectLink(domain, subject), { icon: "subject" });
