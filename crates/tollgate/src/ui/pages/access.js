// @ts-check
// Access: people, programs, and their sessions. A secret is shown once.

import "../pages_style.js";
import { dateTime, h, put, time } from "../core.js";
import { api } from "../api.js";
import { badge, button, card, code, confirm, copyButton, dialog, empty, field, formDialog, input, pageHeader, reasonField, select, table, tabs, toast } from "../components.js";
import { timeOf, untilField } from "../writes.js";

export const title = "Access";

/** @typedef {{id: string, kind: "user" | "token", name: string, role: string, domains: string[], created_at: number, created_by: string, expires_at: number,
 *   seen_at: number, disabled_at: number}} Principal */

/** @type {[string, string][]} */
const ROLES = [["viewer", "viewer: reads, with subjects masked"], ["operator", "operator: also explains, forgets, edits overrides, reads the audit log"], ["editor", "editor: also edits and publishes rules"], ["admin", "admin: everything, also access"]];

/** @param {import("../app.js").Page} page */
export async function show(page) {
  const lists = /** @type {Record<string, any>} */ ({});
  put(
    page.root,
    pageHeader(title, { lead: "People have a password, programs a token. Both have a role, and may be limited to domains." }),
    tabs(
      "Access",
      [
        { id: "users", label: "Users", panel: () => principals(page, "users", lists) },
        { id: "tokens", label: "Tokens", panel: () => principals(page, "tokens", lists) },
        { id: "sessions", label: "Sessions", panel: () => sessions(page, lists) },
      ],
      page.params.get("tab") ?? "users",
      (id) => {
        page.setParams({ tab: id });
        lists[id]?.reload();
      },
    ),
  );
}

/** @param {Principal} one */
function stateOf(one) {
  if (one.disabled_at) return badge("neutral", one.kind === "token" ? "revoked" : "disabled", { title: dateTime(one.disabled_at) });
  if (one.expires_at && one.expires_at < Date.now()) return badge("neutral", "expired", { title: dateTime(one.expires_at) });
  return badge("allow", "active");
}

/** @param {import("../app.js").Page} page @param {"users" | "tokens"} kind @param {Record<string, any>} lists */
function principals(page, kind, lists) {
  const word = kind === "users" ? "user" : "token";
  const list = table({
    label: kind === "users" ? "Users" : "Tokens",
    columns: [
      { key: "name", label: "Name", sort: (/** @type {Principal} */ one) => one.name, cell: (one) => [h("strong", null, one.name), one.name === page.me.name && h("span", { class: "faint" }, " (you)")] },
      { key: "role", label: "Role", sort: (one) => one.role, cell: (one) => one.role },
      { key: "domains", label: "Domains", priority: 2, cell: (one) => (one.domains.length ? one.domains.map((domain) => [code(domain), " "]).flat() : h("span", { class: "faint" }, "all")) },
      { key: "state", label: "State", cell: stateOf },
      { key: "seen", label: "Last used", sort: (one) => one.seen_at, cell: (one) => time(one.seen_at, "ago") },
      { key: "expires", label: "Ends", priority: 3, cell: (one) => (one.expires_at ? time(one.expires_at) : h("span", { class: "faint" }, "no end")) },
      { key: "created", label: "Created", priority: 3, cell: (one) => [one.created_by, " ", time(one.created_at, "ago")] },
      { key: "actions", label: "", title: "Actions", cell: (one) => (one.disabled_at ? null : removeButton(one)) },
    ],
    load: (after, signal) => api.get(kind, { after, limit: 100 }, signal),
    rowClass: (one) => (one.disabled_at ? "over" : ""),
    empty: () => empty(`No ${kind} yet`, kind === "users" ? "Until there is one, the printed link creates the first admin." : "A token is for a program: CI, a script, the command line."),
  });
  lists[kind] = list;

  /** @param {Principal} one */
  function removeButton(one) {
    const verb = kind === "users" ? "Disable" : "Revoke";
    const element = button(verb, () => remove(one, verb), { kind: "quiet", small: true });
    element.setAttribute("aria-label", `${verb} ${one.name}`);
    return element;
  }

  /** @param {Principal} one @param {string} verb */
  async function remove(one, verb) {
    const done = await confirm(`${verb} ${one.name}`, `The ${word} ends at once, on all instances, and cannot be brought back.`, {
      action: verb,
      danger: true,
      reason: "optional",
      submit: (reason) => api.delete(kind, { query: { name: one.name, reason } }),
    });
    if (!done) return;
    toast(`${one.name} is ${kind === "users" ? "disabled" : "revoked"}`);
    await list.reload();
  }

  async function add() {
    const made = await formDialog(
      `Add a ${word}`,
      [
        field("Name", input("name", { required: true, maxlength: 64, pattern: "[A-Za-z0-9._@+\\-]+" }), { hint: "Letters, digits and . _ @ + -" }),
        field("Role", select("role", ROLES)),
        field("Domains (optional)", input("domains", { class: "mono", placeholder: "all" }), { hint: "Names with commas between them; nothing means all." }),
        kind === "users" && field("Password (optional)", input("password", { type: "password", minlength: 12, autocomplete: "new-password" }), { hint: "At least 12 characters. If it is empty, one is made and shown once." }),
        untilField("Ends"),
        reasonField(false),
      ],
      {
        action: `Add the ${word}`,
        submit: (values) =>
          api.post(kind, {
            body: {
              name: values.name,
              role: values.role,
              domains: values.domains.split(",").map((domain) => domain.trim()).filter(Boolean),
              expires_at: timeOf(values.until),
              reason: values.reason,
              password: values.password || undefined,
            },
          }),
      },
    );
    if (!made) return;
    await list.reload();
    const secret = made.token ?? made.password;
    if (secret) showSecret(made, secret);
    else toast(`${made.name} is added`, "allow");
  }

  list.reload();
  return h("div", { class: "stack" }, h("div", { class: "toolbar" }, h("span", { class: "space" }), button(`Add a ${word}`, add, { kind: "primary", icon: "plus" })), card(null, { class: "flush" }, list.element));
}

/** Shows a secret that no one can read again. @param {Principal} made @param {string} secret */
function showSecret(made, secret) {
  const isToken = made.kind === "token";
  const opened = dialog(
    `${isToken ? "Token" : "Password"} of ${made.name}`,
    [
      h("p", null, "It is shown once. Copy it now; the server keeps only a hash of it."),
      h("div", { class: "secret" }, h("code", { tabindex: 0 }, secret), copyButton(secret, `Copy the ${isToken ? "token" : "password"}`)),
      isToken && h("p", { class: "hint" }, "The command line reads it from ", code("TOLLGATE_ADMIN_TOKEN"), "."),
    ],
    { actions: [button("I have copied it", () => opened.close(), { kind: "primary" })] },
  );
}

/** @param {import("../app.js").Page} page @param {Record<string, any>} lists */
function sessions(page, lists) {
  const list = table({
    label: "Sessions",
    columns: [
      { key: "principal", label: "User", cell: (/** @type {any} */ one) => (one.principal ? h("strong", null, one.principal) : h("span", { class: "faint" }, "the printed view link")) },
      { key: "address", label: "Address", cell: (one) => code(one.address) },
      { key: "seen", label: "Last request", sort: (one) => one.seen_at, cell: (one) => time(one.seen_at, "ago") },
      { key: "created", label: "Login", priority: 2, sort: (one) => one.created_at, cell: (one) => time(one.created_at) },
      { key: "expires", label: "Ends", priority: 3, cell: (one) => time(one.expires_at) },
      { key: "actions", label: "", title: "Actions", cell: (one) => (one.principal ? endButton(one.principal) : null) },
    ],
    load: (after, signal) => api.get("sessions", { after, limit: 100 }, signal),
    empty: () => empty("No sessions"),
  });
  lists.sessions = list;

  /** @param {string} principal */
  function endButton(principal) {
    const element = button("End all", () => end(principal), { kind: "quiet", small: true });
    element.setAttribute("aria-label", `End all sessions of ${principal}`);
    return element;
  }

  /** @param {string} principal */
  async function end(principal) {
    const done = await confirm(`End all sessions of ${principal}`, principal === page.me.name ? "You are logged out too." : "They end within a second, also in open pages.", {
      action: "End them",
      danger: true,
      reason: "optional",
      submit: (reason) => api.delete("sessions", { query: { principal, reason } }),
    });
    if (done) await list.reload();
  }

  list.reload();
  return card(null, { class: "flush" }, list.element);
}
