// @ts-check
// The editor of rule files: a draft, its problems and its plan while it is written, and ways to publish it.

import "../pages_style.js";
import { debounce, h, link, newId, put } from "../core.js";
import { Problem, api, session } from "../api.js";
import { badge, button, card, checkbox, empty, failure, field, formDialog, input, loading, mark, pageHeader, planView, reasonField, segmented, select, toast, authored } from "../components.js";
import { yamlEditor } from "../yaml_editor.js";
import { asExperiment, asShadow, findItem, itemText } from "../yaml_text.js";

export const title = "Editor";

/**
 * @typedef {{path: string, grammar: "own" | "envoy", text: string}} SetFile
 * @typedef {{from: number, state: string, files: SetFile[], path: string, isChanged: boolean}} Draft `from`: the version it started from
 */

/** Larger files are shown, and edited elsewhere. */
const EDITABLE_MAX = 1024 * 1024;
/** The wait after the last key. */
const CHECK_AFTER_MS = 300;

const FIRST = `# Every rule has a name and a limit. Ctrl+Space lists what else there is.
rules:
- id: merchant-plan
  per: merchant        # one counter for each merchant
  limit: 100/min
`;

/** What was not published yet; it survives a visit to another page. @type {Draft | null} */
let kept = null;
/** Who made it: another caller does not get it. */
let keeper = "";
/** The JSON Schema of rule files. @type {any} */
let schema = null;

session.addEventListener("logout", () => {
  kept = null;
});
addEventListener("beforeunload", (event) => {
  if (kept?.isChanged) event.preventDefault();
});

/** @param {import("../app.js").Page} page */
export async function show(page) {
  put(page.root, pageHeader(title), loading(8));
  const status = await api.get("status", {}, page.signal);
  let draft;
  try {
    draft = await open(page, status.version);
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== "domain") throw error;
    put(page.root, pageHeader(title), empty("Your rules are edited one by one", "Files belong to all domains, and your credential is limited to some. Open a rule to change it.", [h("a", { class: "button primary", href: link("rules") }, "Rules")]));
    return;
  }
  // Completion works once it is there.
  if (!schema) api.get("schema/rules.json").then((found) => (schema = found)).catch(() => {});
  new EditorPage(page, status, draft).start();
}

/** The draft of this browser, or the files of a version. @param {import("../app.js").Page} page @param {number} live @returns {Promise<Draft>} */
async function open({ params, signal }, live) {
  const wanted = params.get("version");
  const path = params.get("path") ?? "";
  if (keeper !== caller()) kept = null;
  if (kept && (kept.isChanged || !wanted) && (!wanted || Number(wanted) === kept.from)) {
    if (kept.isChanged || kept.from === live) return { ...kept, path: path || kept.path };
  }
  if (!wanted && live === 0) return { from: 0, state: "new", files: [{ path: "rules/rules.yaml", grammar: "own", text: FIRST }], path: "", isChanged: false };
  const version = await api.get("version", { number: wanted ?? "live" }, signal);
  return { from: version.number, state: version.live ? "live" : version.state, files: version.files, path, isChanged: false };
}

const caller = () => `${session.me?.kind} ${session.me?.name}`;

class EditorPage {
  /** The set as the server last understood it. @type {any} */
  planned = null;
  /** @type {import("../yaml_editor.js").SetProblem[]} */
  problems = [];
  /** Ends a check that a newer text replaces. */
  checking = new AbortController();

  /** @param {import("../app.js").Page} page @param {any} status @param {Draft} draft */
  constructor(page, status, draft) {
    this.page = page;
    this.status = status;
    this.draft = draft;
    const describedBy = newId("problems");
    this.editor = yamlEditor({ label: "Rules", describedBy, schema: () => (this.file().grammar === "own" ? schema : null), onInput: (text) => this.typed(text) });
    this.verdict = h("span", { class: "note", role: "status" });
    this.problemBox = h("div", { id: describedBy, class: "editor-problems" });
    this.planBox = h("div", { class: "editor-plan" });
    this.fileBox = h("div", { class: "editor-files" });
    this.head = h("div");
    this.check = debounce(() => this.read(), CHECK_AFTER_MS);
  }

  file() {
    return this.draft.files.find(({ path }) => path === this.draft.path) ?? this.draft.files[0];
  }

  start() {
    const { page } = this;
    page.signal.addEventListener("abort", () => this.checking.abort());
    put(
      page.root,
      this.head,
      h(
        "div",
        { class: "editor" },
        h("section", { class: "card editor-text", "aria-label": "File" }, this.fileBox, this.editor.element),
        h("div", { class: "editor-side" }, card("Problems", { note: this.verdict }, this.problemBox), card("Plan", {}, this.planBox)),
      ),
    );
    this.drawHead();
    this.openFile(this.file().path);
    const [domain, id] = [page.params.get("domain"), page.params.get("id")];
    if (domain && id) this.goToRule(domain, id);
    return this.read();
  }

  /** @param {string} domain @param {string} id */
  goToRule(domain, id) {
    for (const { path, text } of this.draft.files) {
      const item = findItem(text, domain, id);
      if (!item) continue;
      this.openFile(path);
      this.editor.goTo(item.start + 1);
      return;
    }
    toast(`${domain}/${id} is not in these files: it is in a file of an instance, or only in the live version`, "warning");
  }

  drawHead() {
    const { draft, status, page } = this;
    const from = draft.from === 0 ? "Nothing is published yet; this is the first version." : h("span", null, `Based on version ${draft.from}${draft.state === "live" ? ", which is live" : ` (${draft.state})`}. `, status.live && draft.state === "live" && authored(status.live.actor, status.live.created_at, status.live.reason));
    const canEdit = page.can("edit");
    put(
      this.head,
      pageHeader(title, {
        lead: from,
        badges: draft.isChanged ? [badge("shadow", "changed")] : [],
        actions: [
          draft.isChanged && button("Discard", () => this.discard(), { kind: "quiet" }),
          canEdit && button("Save draft", () => this.save()),
          canEdit && button("Publish…", () => this.publish(), { kind: "primary" }),
          !canEdit && badge("neutral", "read only"),
        ],
      }),
      status.edits === "git" && h("p", { class: "notice" }, mark("info"), "Rules of this fleet come from Git: only a push publishes. An admin can break the glass."),
      status.rules.file > 0 && h("p", { class: "notice" }, mark("info"), `${status.rules.file} ${status.rules.file === 1 ? "rule is" : "rules are"} in files of the instances. They apply too, and are changed there.`),
    );
  }

  drawFiles() {
    const { files } = this.draft;
    const chooser = select("file", files.map(({ path }) => path), { "aria-label": "File", on: { change: (/** @type {any} */ event) => this.openFile(event.target.value) } });
    chooser.value = this.file().path;
    const canEdit = this.page.can("edit");
    put(
      this.fileBox,
      chooser,
      h("span", { class: "faint" }, files.length === 1 ? "1 file" : `${files.length} files`),
      h("span", { class: "space" }),
      canEdit && button("Add file", () => this.addFile(), { kind: "quiet", small: true, icon: "plus" }),
      canEdit && button("Rename", () => this.renameFile(), { kind: "quiet", small: true }),
      canEdit && files.length > 1 && button("Remove", () => this.removeFile(), { kind: "quiet", small: true }),
    );
  }

  /** @param {string} path */
  openFile(path) {
    this.draft.path = path;
    const { text } = this.file();
    const isLarge = text.length > EDITABLE_MAX;
    this.editor.value = text;
    this.editor.field.setAttribute("aria-label", `Rules in ${this.file().path}`);
    this.editor.setReadOnly(isLarge || !this.page.can("edit"));
    if (isLarge) toast("Files of more than 1 MiB are read only here; use `tollgate rules pull` and `rules apply`.", "warning");
    this.drawFiles();
    this.drawMarks();
  }

  drawMarks() {
    const own = this.problems.filter(({ file }) => file === this.file().path || (file === null && this.draft.files.length === 1));
    this.editor.setProblems(own);
  }

  /** @param {string} text */
  typed(text) {
    this.file().text = text;
    this.touch();
    this.check();
  }

  /** Notes that the draft differs from what it was based on. */
  touch() {
    const was = this.draft.isChanged;
    this.draft.isChanged = true;
    kept = this.draft;
    keeper = caller();
    if (!was) this.drawHead();
  }

  /** Asks for the problems of the draft, and for its plan if it has no errors. */
  async read() {
    this.checking.abort();
    this.checking = new AbortController();
    const { signal } = this.checking;
    const files = this.draft.files;
    try {
      const checked = await api.post("rules/check", { body: { files }, signal });
      this.problems = checked.problems;
      this.drawProblems(checked.rules);
      if (!checked.ok) {
        this.planned = null;
        put(this.planBox, h("p", { class: "faint" }, "The plan appears once there are no errors."));
        return;
      }
      this.planned = await api.post("plan", { body: { files }, signal });
      put(this.planBox, planView(this.planned.plan));
    } catch (error) {
      if (signal.aborted) return;
      this.planned = null;
      put(this.planBox, failure(error, () => this.read()));
    }
  }

  /** @param {number} rules */
  drawProblems(rules) {
    const errors = this.problems.filter(({ severity }) => severity === "error").length;
    const warnings = this.problems.length - errors;
    const parts = [errors && `${errors} ${errors === 1 ? "error" : "errors"}`, warnings && `${warnings} ${warnings === 1 ? "warning" : "warnings"}`].filter(Boolean);
    this.verdict.textContent = parts.join(", ") || `none in ${rules} ${rules === 1 ? "rule" : "rules"}`;
    put(
      this.problemBox,
      this.problems.length === 0
        ? h("p", { class: "faint" }, mark("allow"), " The files are correct.")
        : h("ul", { class: "problems" }, this.problems.slice(0, PROBLEMS_SHOWN).map((problem) => this.problemLine(problem))),
    );
    this.drawMarks();
  }

  /** @param {import("../yaml_editor.js").SetProblem} problem */
  problemLine(problem) {
    const place = [problem.file, problem.line, problem.column].filter(Boolean).join(":");
    const goTo = () => {
      if (problem.file && problem.file !== this.file().path && this.draft.files.some(({ path }) => path === problem.file)) this.openFile(problem.file);
      if (problem.line) this.editor.goTo(problem.line, problem.column ?? 1, problem.width ?? 0);
    };
    return h(
      "li",
      null,
      badge(problem.severity === "warning" ? "warning" : "critical", problem.severity),
      place && button(place, goTo, { kind: "quiet", small: true, title: "Go to the place" }),
      h("span", null, problem.text),
      problem.hint && h("span", { class: "hint" }, problem.hint),
    );
  }

  async discard() {
    kept = null;
    this.page.setParams({});
    this.page.reload();
  }

  addFile() {
    return this.pathDialog("Add a file", "rules/", "Add", (path) => {
      this.draft.files.push({ path, grammar: "own", text: "rules:\n" });
      this.openFile(path);
    });
  }

  renameFile() {
    return this.pathDialog("Rename the file", this.file().path, "Rename", (path) => {
      this.file().path = path;
      this.openFile(path);
    });
  }

  /** @param {string} heading @param {string} value @param {string} action @param {(path: string) => void} submit */
  async pathDialog(heading, value, action, submit) {
    const control = input("path", { value, required: true, maxlength: 512, pattern: ".+\\.(yaml|yml)", class: "mono" });
    await formDialog(heading, field("Path", control, { hint: "Relative, ends in .yaml or .yml." }), {
      action,
      submit: ({ path }) => {
        if (this.draft.files.some((file) => file.path === path && file !== this.file())) throw new Problem(400, { code: "exists", detail: "there is a file of that path", field: "path" });
        submit(path);
        this.touch();
        this.read();
        return true;
      },
    });
  }

  removeFile() {
    const { path } = this.file();
    this.draft.files = this.draft.files.filter((file) => file.path !== path);
    this.touch();
    this.openFile(this.file().path);
    toast(`${path} is no longer in the draft. Its rules go with the next publish.`);
    return this.read();
  }

  async save() {
    await formDialog("Save a draft", [h("p", null, "A draft is a version that is not live. Others can open it, and publish it."), reasonField(false)], {
      action: "Save draft",
      submit: async ({ reason }) => {
        const saved = await api.post("versions", { body: { files: this.draft.files, reason: reason || undefined }, key: newKey() });
        Object.assign(this.draft, { from: saved.number, state: "draft", isChanged: false });
        this.page.setParams({ version: saved.number });
        this.drawHead();
        toast(`The draft is version ${saved.number}`, "allow");
        return true;
      },
    });
  }

  async publish() {
    if (!this.planned) await this.read();
    if (!this.planned) {
      toast("There are errors; nothing can be published", "deny");
      return;
    }
    const published = await publishDialog(this.draft.files, this.planned, this.status, this.page);
    if (!published) return;
    kept = null;
    const places = published.applied + published.rejected + published.silent;
    const text = published.changed ? `Version ${published.version} is live on ${published.applied} of ${places} ${places === 1 ? "instance" : "instances"}` : "No changes: the same rules are live already";
    toast(text, published.applied === places ? "allow" : "warning", h("a", { href: link("versions", { number: published.version }) }, "See it"));
    this.page.setParams({});
    this.page.reload();
  }
}

/**
 * Asks how a draft is to be published, shows the plan of that, and does it. Resolves to the response, or null.
 * @param {SetFile[]} files
 * @param {any} planned
 * @param {any} status
 * @param {import("../app.js").Page} page
 * @returns {Promise<any>}
 */
async function publishDialog(files, planned, status, page) {
  /** @type {SetFile[] | null} */
  let liveFiles = status.version === 0 ? [] : null;
  let how = "as-is";
  let current = { files, planned };
  /** Done once the plan belongs to what is chosen. @type {Promise<void>} */
  let settled = Promise.resolve();
  const share = input("share", { value: "10%", pattern: "[0-9]{1,2}(\\.[0-9]{1,4})? ?%", class: "mono" });
  const shareField = field("Share of the subjects", share, { hint: "The same subjects stay in it when the share grows." });
  shareField.hidden = true;
  const explanation = h("p", { class: "faint" });
  const planBox = h("div", null, planView(planned.plan));
  let count = 0;

  const redraw = async () => {
    count += 1;
    const number = count;
    shareField.hidden = how !== "experiment";
    explanation.textContent = HOW[how];
    if (how === "as-is") {
      current = { files, planned };
      put(planBox, planView(planned.plan));
      return;
    }
    put(planBox, loading(2));
    try {
      liveFiles ??= (await api.get("version", { number: "live" })).files;
      const changed = how === "shadow" ? shadows(files, planned.plan, liveFiles ?? []) : experiments(files, planned.plan, liveFiles ?? [], share.value.trim());
      const plan = await api.post("plan", { body: { files: changed } });
      if (number !== count) return;
      current = { files: changed, planned: plan };
      put(planBox, planView(plan.plan));
    } catch (error) {
      if (number !== count) return;
      current = { files: [], planned: null };
      put(planBox, failure(error));
    }
  };
  let wait = 0;
  share.addEventListener("input", () => {
    clearTimeout(wait);
    settled = new Promise((resolve) => {
      wait = window.setTimeout(() => resolve(redraw()), CHECK_AFTER_MS);
    });
  });
  explanation.textContent = HOW[how];

  const isAdmin = page.can("admin");
  const hasInvalid = planned.plan.rows.some((/** @type {any} */ row) => row.concern === "invalid");
  return formDialog(
    "Publish",
    [
      segmented("How", [["as-is", "Enforce"], ["shadow", "As shadow"], ["experiment", "As experiment"]], how, (value) => {
        how = value;
        settled = redraw();
      }),
      explanation,
      shareField,
      planBox,
      hasInvalid && checkbox("drop_rows", "Delete the rows that do not fit", { hint: "Otherwise the publish is refused." }),
      status.edits === "git" && isAdmin && checkbox("break_glass", "Break the glass", { hint: "Publishes although rules come from Git. It is audited, and stays visible until the next push." }),
      isAdmin && h("details", null, h("summary", null, "If instances cannot be reached"), checkbox("skip", "Publish without asking the instances first", { hint: "An instance that cannot use the rules keeps its old ones." })),
      reasonField(true),
    ],
    {
      action: "Publish",
      wide: true,
      submit: async (values) => {
        await settled;
        const plan = current.planned;
        if (!plan) throw new Problem(422, { code: "invalid", detail: "these rules cannot be published this way; see above" });
        return api.post("publish", {
          query: { wait: "5s", prepare: values.skip ? "skip" : "" },
          match: plan.live.etag,
          key: newKey(),
          body: { files: current.files, expect_digest: plan.digest, reason: values.reason, drop_rows: values.drop_rows ? true : undefined, break_glass: values.break_glass ? true : undefined },
        });
      },
    },
  );
}

/** @type {Record<string, string>} */
const HOW = {
  "as-is": "The rules apply as they are written.",
  "shadow": "New rules decide and count, and deny nothing. A changed rule stays as it is; the new one runs beside it as a shadow.",
  "experiment": "A changed rule stays as it is for most subjects. A share of them gets the new limit, with figures of its own.",
};

/** @param {SetFile[]} files @param {any} plan @param {SetFile[]} live @returns {SetFile[]} */
function shadows(files, plan, live) {
  return edited(files, plan, (text, item, line) => ({ text: asShadow(text, item, line.op === "changed" ? liveText(live, line) : null) }));
}

/** @param {SetFile[]} files @param {any} plan @param {SetFile[]} live @param {string} share @returns {SetFile[]} */
function experiments(files, plan, live, share) {
  return edited(files, plan, (text, item, line) => {
    if (line.op === "added") throw new Problem(422, { code: "invalid", detail: `${line.domain}/${line.rule} is new; only a rule that is live can have an experiment` });
    return asExperiment(text, item, liveText(live, line), share);
  });
}

/** The files with each rule of a plan edited. @param {SetFile[]} files @param {any} plan
 * @param {(text: string, item: import("../yaml_text.js").Item, line: any) => {text: string} | {error: string}} edit */
function edited(files, plan, edit) {
  const changed = files.map((file) => ({ ...file }));
  const lines = plan.lines.filter((/** @type {any} */ line) => line.op !== "removed");
  if (lines.length === 0) throw new Problem(422, { code: "invalid", detail: "no rule is new or changed" });
  for (const line of lines) {
    const file = changed.find(({ text, grammar }) => grammar === "own" && findItem(text, line.domain, line.rule));
    const item = file && findItem(file.text, line.domain, line.rule);
    if (!file || !item) throw new Problem(422, { code: "invalid", detail: `${line.domain}/${line.rule} was not found in the text; write one key a line` });
    const result = edit(file.text, item, line);
    if ("error" in result) throw new Problem(422, { code: "invalid", detail: result.error });
    file.text = result.text;
  }
  return changed;
}

/** The text of a live rule. @param {SetFile[]} live @param {any} line */
function liveText(live, line) {
  for (const { text } of live) {
    const item = findItem(text, line.domain, line.rule);
    if (item) return itemText(text, item);
  }
  throw new Problem(422, { code: "invalid", detail: `${line.domain}/${line.rule} is not in the live files` });
}

/** The same request twice has one effect. */
const newKey = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

const PROBLEMS_SHOWN = 100;
