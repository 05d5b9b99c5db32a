// @ts-check
// The fleet: every instance and what it runs, the store of the counters, the database of the rules.

import "../pages_style.js";
import { ago, count, h, link, micros, put, time } from "../core.js";
import { api, feed } from "../api.js";
import { badge, button, card, code, confirm, copyButton, digest, empty, keyValues, mark, pageHeader, stat, table, toast } from "../components.js";

export const title = "Fleet";

/** An instance that reported longer ago than this is late; it is gone after 8 s. */
const LATE_MS = 5000;
const POLL_MS = 2000;

/** @typedef {{id: string, self: boolean, seen_at: number, program: string, formats?: number, epoch: number, revision: number, version: number, digest: string,
 *   chain?: string, store?: string, breaker?: string, rejected_rows?: number, waiting?: boolean, error?: string,
 *   last_vote?: {digest: string, ok: boolean, at: number}}} Instance */

/** @type {Record<string, import("../components.js").Kind>} */
const BREAKERS = { closed: "allow", half_open: "warning", open: "critical", none: "neutral" };

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const { signal } = page;
  /** @type {any} */
  let status = null;
  const tiles = { instances: stat("Instances"), version: stat("Live version"), store: stat("Store"), database: stat("Database") };
  const notes = h("div", { class: "notices" });
  const list = table({
    label: "Instances",
    columns: [
      { key: "id", label: "Instance", sort: (/** @type {Instance} */ one) => one.id, cell: (one) => [code(one.id), one.self && badge("info", "this one")] },
      { key: "state", label: "State", cell: stateOf },
      { key: "program", label: "Program", sort: (one) => one.program, cell: (one) => one.program },
      { key: "revision", label: "Revision", numeric: true, sort: (one) => one.revision, cell: (one) => [h("span", { title: `epoch ${one.epoch}` }, count(one.revision)), lag(one)] },
      { key: "version", label: "Version", numeric: true, priority: 2, cell: (one) => (one.version ? h("a", { href: link("versions", { number: one.version }) }, one.version) : h("span", { class: "faint" }, "none")) },
      { key: "digest", label: "Digest", priority: 2, cell: (one) => digest(one.digest) },
      { key: "vote", label: "Vote", priority: 3, cell: voteOf },
      { key: "breaker", label: "Breaker", cell: (one) => badge(BREAKERS[one.breaker ?? "none"] ?? "neutral", (one.breaker ?? "none").replace("_", " ")) },
      { key: "seen", label: "Reported", cell: (one) => time(one.seen_at, "ago") },
    ],
    rowClass: (one) => (one.error ? "wrong" : ""),
    empty: () => empty("No instance reports"),
  });

  /** @param {Instance} one */
  function lag(one) {
    const newest = Math.max(...list.rows().filter(({ epoch }) => epoch === one.epoch).map(({ revision }) => revision), one.revision);
    return newest > one.revision ? h("span", { class: "lag" }, ` −${newest - one.revision}`) : null;
  }

  const storeBox = h("div");
  const databaseBox = h("div");

  async function read() {
    const [found, instances, store] = await Promise.all([api.get("status", {}, signal), api.get("instances", {}, signal), api.get("store", {}, signal)]);
    status = found;
    const items = /** @type {Instance[]} */ (instances.items);
    const versions = new Set(items.map(({ program }) => program));
    tiles.instances.set(String(items.length), instances.differ ? badge("critical", "rules differ") : badge("allow", "same rules"));
    tiles.version.set(status.version ? String(status.version) : "none", `revision ${count(status.revision)}`);
    tiles.store.set(store.kind === "shared" ? "shared" : "memory", badge(store.available ? "allow" : "critical", store.available ? "available" : "away"));
    const { database } = status;
    tiles.database.set(database.kind === "none" ? "none" : database.kind, database.kind === "none" ? null : badge(database.up ? "allow" : "critical", database.up ? "up" : "away"));
    put(
      notes,
      status.forked && note("critical", "The database has another history than the instances. Nothing is applied until one is adopted.", "docs: failures, control_forked"),
      status.regressed && note("critical", `The database is behind what instances have applied: ${status.regressed}. Writes are refused until it is adopted.`),
      instances.error && note("warning", `Only this instance is seen: ${instances.error}`),
      status.error && note("critical", status.error),
      instances.warnings.map((/** @type {string} */ text) => note("warning", text)),
      versions.size > 1 && note("info", `Two versions of the program run: ${[...versions].join(", ")}.`),
      items.filter(({ error }) => error).map((one) => note("critical", h("span", null, code(one.id), ` ${one.error}`))),
    );
    list.setRows(items);
    put(storeBox, storeView(store));
    put(databaseBox, databaseView(status));
  }

  /** @param {import("../components.js").Kind} kind @param {import("../core.js").Child} text @param {string} [title] */
  const note = (kind, text, title) => h("p", { class: "notice", data: { kind }, title }, mark(kind), h("span", null, text));

  const isAdmin = page.can("admin");
  put(
    page.root,
    pageHeader(title, {
      lead: "Every instance, and what it runs. Instances report every two seconds.",
      actions: [isAdmin && button("Adopt this database…", adopt, { kind: "quiet" })],
    }),
    h("div", { class: "stats" }, Object.values(tiles).map(({ element }) => element)),
    notes,
    card(null, { class: "flush" }, list.element),
    h("div", { class: "grid2" }, card("Store of the counters", {}, storeBox), card("Database of the rules", {}, databaseBox)),
  );

  async function adopt() {
    const done = await confirm(
      "Adopt this database",
      "All instances follow the database of this one from now on, in a new epoch, as it is. Do this after a restored backup or a failover that lost commits, when you know that it is the right one.",
      { action: "Adopt", danger: true, reason: "required", submit: (reason) => api.post("adopt", { body: { reason } }) },
    );
    if (done) toast(`Epoch ${done.epoch}, revision ${done.revision}`, "allow");
  }

  await read();
  const again = () => !document.hidden && read().catch(() => {});
  const timer = setInterval(again, POLL_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  feed.on("revision", again, signal);
}

/** @param {Instance} one */
function stateOf(one) {
  if (one.error) return badge("critical", "rules refused", { title: one.error });
  if (one.waiting) return badge("warning", "waiting for rules");
  if (Date.now() - one.seen_at > LATE_MS) return badge("warning", `silent since ${ago(one.seen_at).replace(" ago", "")}`);
  if (one.rejected_rows) return badge("warning", one.rejected_rows === 1 ? "1 row not used" : `${one.rejected_rows} rows not used`);
  return badge("allow", "in use");
}

/** @param {Instance} one */
function voteOf(one) {
  if (!one.last_vote) return h("span", { class: "faint" }, "–");
  const title = `for ${one.last_vote.digest.slice(0, 12)}, ${ago(one.last_vote.at)}`;
  return one.last_vote.ok ? badge("allow", "ok", { title }) : badge("critical", "refused", { title });
}

/** @param {any} store */
function storeView(store) {
  if (store.kind === "memory") return h("p", { class: "faint" }, "Each instance counts for itself, in memory. A store makes one limit of all: see `store` in the settings.");
  const servers = store.servers ?? [];
  return h(
    "div",
    { class: "stack" },
    servers.length > 0 &&
      h(
        "ul",
        { class: "nodes" },
        servers.map((/** @type {any} */ server) =>
          h(
            "li",
            null,
            code(server.address || "a socket of this machine"),
            h("span", { class: "faint" }, server.role),
            badge(BREAKERS[server.breaker] ?? "neutral", `breaker ${server.breaker.replace("_", " ")}`),
            server.round_trip_us !== null && h("span", { class: "faint", title: "Median of recent round trips" }, micros(server.round_trip_us)),
            server.error && h("span", { class: "hint" }, server.error),
          ),
        ),
      ),
    keyValues([
      ["State", store.available ? badge("allow", "available") : badge("critical", "away: rules decide as their on_store_failure says")],
      store.error ? ["Reason", store.error] : null,
      ["Instances that share the limits", count(store.instances)],
    ]),
  );
}

/** @param {any} status */
function databaseView(status) {
  const { database } = status;
  return keyValues([
    ["Kind", database.kind === "sqlite" ? "SQLite, on this instance" : database.kind === "postgres" ? "PostgreSQL" : "none: it follows the store"],
    database.id ? ["Id", h("span", null, code(database.id), copyButton(database.id, "Copy the id"))] : null,
    ["Epoch", String(status.epoch)],
    ["Rules from", status.source],
    ["Age", `${count(status.age_seconds)} s`],
    ["Override rows", h("a", { href: link("overrides") }, count(status.override_rows))],
    status.orphan_rows ? ["Without a rule", h("a", { href: link("overrides", { show: "orphans" }) }, count(status.orphan_rows))] : null,
    ["Attributes", h("a", { href: link("attributes") }, count(status.attributes))],
    ["Edits", status.edits === "git" ? "from Git only" : "here and from Git"],
  ]);
}
