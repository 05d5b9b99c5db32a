// @ts-check
// Versions of the rules: who published them and why, what they changed, and the way back.

import "../pages_style.js";
import { h, link, put } from "../core.js";
import { api, feed } from "../api.js";
import { authored, badge, button, card, diffView, digest, empty, failure, formDialog, keyValues, linkButton, loading, pageHeader, planView, reasonField, select, table, toast } from "../components.js";

export const title = "Versions";

/** @typedef {{number: number, parent: number, digest: string, format: number, state: string, actor: string, source: string, reason: string,
 *   created_at: number, live: boolean}} Version */

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const number = Number(page.params.get("number"));
  return number > 0 ? showOne(page, number) : showAll(page);
}

/** @type {Record<string, import("../components.js").Kind>} */
const STATES = { draft: "neutral", prepared: "info", published: "neutral", rejected: "critical" };

/** @param {Version} version */
const stateBadge = (version) => (version.live ? badge("allow", "live") : badge(STATES[version.state] ?? "neutral", version.state));

/** The source in words. @param {string} source */
const sourceText = (source) => (source.startsWith("rollback ") ? `rollback to ${source.slice(9)}` : source.startsWith("push ") ? `push ${source.slice(5, 12)}` : source);

/** @param {import("../app.js").Page} page */
async function showAll(page) {
  const list = table({
    label: "Versions",
    columns: [
      { key: "number", label: "Version", cell: (/** @type {Version} */ version) => h("a", { href: link("versions", { number: version.number }) }, version.number) },
      { key: "state", label: "State", cell: stateBadge },
      { key: "by", label: "By", cell: (version) => authored(version.actor, version.created_at) },
      { key: "reason", label: "Reason", cell: (version) => version.reason || h("span", { class: "faint" }, "–") },
      { key: "source", label: "Source", priority: 2, cell: (version) => h("span", { class: "mono" }, sourceText(version.source)) },
      { key: "digest", label: "Digest", priority: 3, cell: (version) => digest(version.digest) },
    ],
    load: (after, signal) => api.get("versions", { after, limit: 50 }, signal),
    select: (version) => (location.hash = link("versions", { number: version.number })),
    empty: () => empty("Nothing is published yet", "Each publish makes a version that stays as it is. Until the first one, rules come from files.", [page.can("edit") && linkButton("Write rules", link("editor"), { kind: "primary" })]),
  });
  put(page.root, pageHeader(title, { lead: "Every rule set that was saved or published, as it was written." }), card(null, { class: "flush" }, list.element));
  feed.on("revision", () => list.reload(), page.signal);
  await list.reload();
}

/** @param {import("../app.js").Page} page @param {number} number */
async function showOne(page, number) {
  const { signal } = page;
  put(page.root, pageHeader(`Version ${number}`, { back: { label: title, href: link("versions") } }), loading(6));
  const [status, list] = await Promise.all([api.get("status", {}, signal), api.get("versions", { limit: 200 }, signal)]);
  /** @type {Version | undefined} */
  const version = list.items.find((/** @type {Version} */ one) => one.number === number) ?? (await api.get("version", { number }, signal));
  if (!version) return;
  const isSource = version.live || version.state === "published";
  const canRoll = page.can("edit") && !version.live && isSource;
  const canPublish = page.can("edit") && version.state === "draft";
  // From the live version back to the one before, which is what it is opened for in an incident.
  const before = list.items.find((/** @type {Version} */ one) => one.number === version.parent);
  const canUndo = page.can("edit") && version.live && before?.state === "published";
  const differences = h("div", { class: "stack" });
  const bases = [...new Set([version.parent, status.version].filter((one) => one > 0 && one !== number))];
  const others = list.items.map((/** @type {Version} */ one) => one.number).filter((/** @type {number} */ one) => one !== number);
  const options = [...new Set([...bases, ...others])].map((one) => /** @type {[string, string]} */ ([String(one), `version ${one}${one === status.version ? " (live)" : one === version.parent ? " (the one before)" : ""}`]));
  const base = select("base", options, { "aria-label": "Compare with", on: { change: () => compare(Number(base.value)) } });

  /** @param {number} from */
  async function compare(from) {
    put(differences, loading(3));
    try {
      const found = await api.get("diff", { from, to: number }, signal);
      const changed = found.files.filter((/** @type {any} */ file) => file.change !== "same");
      put(
        differences,
        changed.length === 0
          ? h("p", { class: "faint" }, `The files are those of version ${from}.`)
          : changed.map((/** @type {any} */ file) => h("div", null, h("h3", { class: "file-name" }, h("code", null, file.path), " ", badge(file.change === "added" ? "allow" : file.change === "removed" ? "deny" : "info", file.change)), diffView(file.diff))),
      );
    } catch (error) {
      if (!signal.aborted) put(differences, failure(error, () => compare(from)));
    }
  }

  put(
    page.root,
    pageHeader(`Version ${number}`, {
      back: { label: title, href: link("versions") },
      badges: [stateBadge(version)],
      lead: version.reason ? `“${version.reason}”` : "No reason was given.",
      actions: [
        linkButton("Open in the editor", link("editor", { version: number })),
        canUndo && button(`Roll back to version ${version.parent}…`, () => rollBack(page, before, list.etag)),
        canRoll && button("Roll back to it…", () => rollBack(page, version, list.etag), { kind: "primary" }),
        canPublish && button("Publish…", () => rollOut(page, version), { kind: "primary" }),
      ],
    }),
    card(null, {}, keyValues([
      ["By", authored(version.actor, version.created_at)],
      ["Source", h("span", { class: "mono" }, sourceText(version.source))],
      ["Made from", version.parent ? h("a", { href: link("versions", { number: version.parent }) }, `version ${version.parent}`) : "nothing"],
      ["Format", String(version.format)],
      ["Digest", digest(version.digest)],
    ])),
    options.length > 0 && card("Differences", { actions: [h("span", { class: "faint" }, "from"), base] }, differences),
  );
  if (options.length > 0) await compare(Number(base.value));
}

/** @param {import("../app.js").Page} page @param {Version} version @param {string} etag of the live set */
async function rollBack(page, version, etag) {
  const planBox = h("div", null, loading(2));
  api.post("plan", { body: { version: version.number }, signal: page.signal }).then(
    (planned) => put(planBox, planView(planned.plan)),
    (error) => put(planBox, failure(error)),
  );
  const done = await formDialog(
    `Roll back to version ${version.number}`,
    [h("p", null, "Its rules become live again, as a new version. Rows and attributes stay."), planBox, reasonField(true)],
    { action: "Roll back", danger: true, wide: true, submit: ({ reason }) => api.post("rollback", { query: { wait: "5s" }, match: etag, body: { version: version.number, reason }, key: crypto.randomUUID?.() }) },
  );
  if (!done) return;
  toast(done.changed ? `Version ${done.version} is live on ${done.applied} of ${done.applied + done.silent + done.rejected} instances` : "No changes: these rules are live", done.silent + done.rejected === 0 ? "allow" : "warning");
  location.hash = link("versions");
}

/** Publishes a draft as it is. @param {import("../app.js").Page} page @param {Version} version */
async function rollOut(page, version) {
  const planned = await api.post("plan", { body: { version: version.number }, signal: page.signal });
  const done = await formDialog(`Publish version ${version.number}`, [planView(planned.plan), reasonField(true)], {
    action: "Publish",
    wide: true,
    submit: ({ reason }) => api.post("publish", { query: { wait: "5s" }, match: planned.live.etag, body: { version: version.number, reason, expect_digest: planned.digest }, key: crypto.randomUUID?.() }),
  });
  if (!done) return;
  toast(`Version ${done.version} is live on ${done.applied} of ${done.applied + done.silent + done.rejected} instances`, "allow");
  location.hash = link("versions");
}
