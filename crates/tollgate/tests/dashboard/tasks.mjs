// The tasks of the pages that change something, one after the other in one browser.
import { readFileSync } from "node:fs";
import { ADMIN, VIEW, api, attempt, check, checkQuiet, context, done, eventually, expect, script, setUp } from "./kit.mjs";
import { RULES, fill, open } from "./pages.mjs";

await script("tasks", async (browser) => {
  // Before there is a principal, the printed link shows everything but subjects, and changes nothing.
  const guest = await context(browser);
  const view = await guest.newPage();
  await view.goto(`${ADMIN}/#view=${VIEW}`);
  await view.getByRole("heading", { name: "Overview" }).waitFor();
  await open(view, ADMIN, "overrides");
  check((await view.getByRole("button", { name: "Add an override" }).count()) === 0 && (await view.getByRole("link", { name: "Access" }).count()) === 0, "the view link shows the dashboard, without what changes something");
  await guest.close();

  const { token, storage } = await setUp();
  await fill(token);
  const made = await context(browser, { storage });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  const dialog = () => page.getByRole("dialog");
  const button = (name) => page.getByRole("button", { name, exact: true });
  const toast = (text) => page.locator(".toast", { hasText: text }).first().waitFor();
  const rowOf = async (subject) => (await done("GET", `/override?${new URLSearchParams({ domain: "default", rule: "merchant-plan", ...subject })}`, { token }));

  await overrides();
  await attributes();
  await editor();
  await versions();
  await audit();
  await fleet();
  await access();
  checkQuiet(made, "in all tasks");

  async function overrides() {
    await open(page, ADMIN, "overrides");
    const rows = page.getByRole("table").getByRole("row");
    await page.getByRole("searchbox", { name: /Search subjects/ }).fill("autumn");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
    check(/m_7/.test(await rows.nth(1).innerText()), "overrides are searched by subject and note");
    await page.getByRole("searchbox", { name: /Search subjects/ }).fill("");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 3);
    await page.getByRole("radio", { name: "Expiring" }).check();
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
    expect(/m_7/.test(await rows.nth(1).innerText()), "the row with an end", await rows.nth(1).innerText());
    await page.getByRole("radio", { name: "Without a rule" }).check();
    await page.waitForFunction(() => document.querySelector("tbody tr")?.textContent.includes("m_9") && document.querySelectorAll("tbody tr").length === 1);
    check(/no such rule/.test(await rows.nth(1).innerText()), "rows with an end and rows without a rule have lists of their own");

    // Someone else is faster.
    await open(page, ADMIN, "overrides");
    await page.getByRole("button", { name: "Edit merchant-plan merchant=m_7" }).click();
    await page.getByRole("textbox", { name: "Limit" }).fill("300/min");
    const before = await rowOf({ merchant: "m_7" });
    const query = new URLSearchParams({ domain: "default", rule: "merchant-plan", merchant: "m_7" });
    await done("PUT", `/override?${query}`, { token, match: before.etag, body: { terms: "222/min", note: before.note, expires_at: before.expires_at, reason: "faster" } });
    await button("Save").click();
    await dialog().getByText("222/min").first().waitFor();
    const words = await dialog().innerText();
    check(/tests/.test(words) && /faster/.test(words) && /300\/min/.test(words), "a change of someone else is shown with author, reason and differences", words);
    await button("Replace it with mine").click();
    await toast("300/min");
    const after = await rowOf({ merchant: "m_7" });
    check(after.terms === "300/min" && after.note === "autumn sale" && Math.abs(after.expires_at - before.expires_at) < 60_000, "and replaced on request; note and end stay", after);

    // A wrong limit is explained where it was written.
    await button("Add an override").click();
    await dialog().getByLabel("Rule", { exact: true }).fill("default/merchant-plan");
    await dialog().getByLabel("Subject").fill("merchant=m_8");
    await dialog().getByLabel("Limit").fill("5/fortnight");
    await dialog().getByRole("button", { name: "Add", exact: true }).click();
    await dialog().getByText(/fortnight/).first().waitFor();
    await dialog().getByLabel("Limit").fill("0/min");
    await dialog().getByRole("button", { name: "Add", exact: true }).click();
    await dialog().getByText("reason-required").waitFor();
    await dialog().getByLabel("Reason (optional)").fill("abuse");
    await dialog().getByRole("button", { name: "Add", exact: true }).click();
    await toast("0/min");
    await eventually("a ban needs a reason, and works at once", async () => (await attempt({ merchant: "m_8" })).allowed === false);
    await page.getByRole("button", { name: "Delete merchant-plan merchant=m_8" }).click();
    await dialog().getByRole("button", { name: "Delete" }).click();
    await toast("is deleted");
    await eventually("a deleted row has no effect", async () => (await attempt({ merchant: "m_8" })).allowed === true);

    // Imports and exports.
    await button("Import").click();
    await dialog().getByLabel("Rows").fill("domain,rule,subject,terms,note,expires_at\ndefault,merchant-plan,merchant=m_20,7/min,imported,\ndefault,merchant-plan,merchant=m_21,7/fortnight,,");
    await button("Try it").click();
    await dialog().locator(".failure").waitFor();
    check(/:?3/.test(await dialog().locator(".failure").innerText()), "an import names the line of a mistake, and changes nothing");
    expect((await api("GET", "/override?domain=default&rule=merchant-plan&merchant=m_20", { token })).status === 404, "nothing is imported", "");
    await dialog().getByLabel("Rows").fill("domain,rule,subject,terms,note,expires_at\ndefault,merchant-plan,merchant=m_20,7/min,imported,\ndefault,merchant-plan,merchant=m_21,8/min,,");
    await button("Try it").click();
    await dialog().getByText("Nothing is imported yet").waitFor();
    await dialog().getByLabel(/Reason/).fill("spring");
    await dialog().getByRole("button", { name: "Import 2 rows" }).click();
    await toast("2 of 2 rows changed");
    const [file] = await Promise.all([page.waitForEvent("download"), button("Export").click()]);
    const text = readFileSync(await file.path(), "utf8");
    check(file.suggestedFilename() === "overrides.csv" && text.startsWith("domain,rule,subject,terms,note,expires_at\n") && /m_20.*7\/min,imported/.test(text), "rows are tried, imported, and exported as CSV", text);
  }

  async function attributes() {
    await open(page, ADMIN, "attributes");
    await button("Edit tier of merchant=m_42").click();
    await page.getByRole("textbox", { name: "Value" }).fill("free");
    await page.keyboard.press("Enter");
    await toast("tier=free");
    await button("Add an attribute").click();
    await dialog().getByLabel("Subject").fill("m_55");
    await dialog().getByLabel("Attribute", { exact: true }).fill("tier");
    await dialog().getByLabel("Value").fill("enterprise");
    await dialog().getByRole("button", { name: "Add", exact: true }).click();
    await page.getByRole("row", { name: /m_55/ }).waitFor();
    await button("Delete tier of merchant=m_55").click();
    await dialog().getByRole("button", { name: "Delete" }).click();
    await page.getByRole("row", { name: /m_55/ }).waitFor({ state: "detached" });
    const found = await done("GET", "/attributes", { token });
    check(found.items.length === 1 && found.items[0].value === "free", "attributes are edited in place, added and deleted", found.items);
  }

  async function editor() {
    await open(page, ADMIN, "editor?domain=default&id=search");
    const field = page.getByRole("textbox", { name: /Rules in/ });
    const line = await field.evaluate((element) => element.value.slice(0, element.selectionStart).split("\n").length);
    check(RULES.split("\n")[line - 1] === "- id: search", "the address of a rule leads to its line", line);

    // As a shadow: the live rule stays.
    await field.fill(RULES.replace("limit: 5/min", "limit: 2/min"));
    await page.locator(".editor-plan").getByText("stricter").waitFor();
    await button("Publish…").click();
    await dialog().getByRole("radio", { name: "As shadow" }).check();
    await dialog().getByText("merchant-plan:shadow").waitFor();
    await dialog().getByLabel("Reason").fill("try 2");
    await dialog().getByRole("button", { name: "Publish", exact: true }).click();
    await toast("is live on 1 of 1");
    const shadow = await done("GET", "/rule?domain=default&id=merchant-plan:shadow", { token });
    const live = await done("GET", "/rule?domain=default&id=merchant-plan", { token });
    check(shadow.mode === "shadow" && /2\/min/.test(shadow.limit) && /5\/min/.test(live.limit) && live.mode === "enforce", "as a shadow, the changed rule runs beside the live one", [shadow, live]);

    // As an experiment: a share gets the new limit.
    await page.waitForFunction(() => document.querySelector("textarea")?.value.includes("merchant-plan:shadow"));
    const text = await field.inputValue();
    await field.fill(text.replace("limit: 20/min", "limit: 30/min"));
    await page.locator(".editor-plan").getByText("looser").waitFor();
    await button("Publish…").click();
    await dialog().getByRole("radio", { name: "As experiment" }).check();
    await dialog().getByLabel("Share of the subjects").fill("25%");
    await dialog().getByText(/experiment/).first().waitFor();
    await dialog().getByLabel("Reason").fill("try 30");
    await dialog().getByRole("button", { name: "Publish", exact: true }).click();
    await page.locator(".toast", { hasText: "Version 4 is live" }).waitFor();
    const yaml = (await done("GET", "/rule?domain=default&id=search", { token })).yaml;
    check(/limit: 20\/min[\s\S]*experiment:\s+share: 25%\s+limit: 30\/min/.test(yaml), "as an experiment, a share of the subjects gets the new limit", yaml);

    await open(page, ADMIN, "rule?domain=default&id=search");
    const variants = page.getByRole("region", { name: "Experiment" });
    await variants.getByText("30/min").waitFor();
    const sides = await variants.innerText();
    check(/control[\s\S]*20\/min[\s\S]*experiment[\s\S]*30\/min/.test(sides), "and the page of the rule has both variants side by side", sides);
    await open(page, ADMIN, "editor");

    // A draft survives a visit to another page, and can be discarded.
    await page.waitForFunction(() => document.querySelector("textarea")?.value.includes("experiment"));
    await field.press("Control+End");
    await page.keyboard.type("# note");
    await open(page, ADMIN, "versions");
    await open(page, ADMIN, "editor");
    check((await field.inputValue()).includes("# note"), "a draft survives a visit to another page");
    await button("Discard").click();
    await page.waitForFunction(() => !document.querySelector("textarea")?.value.includes("# note"));

    // Files.
    await button("Add file").click();
    await dialog().getByLabel("Path").fill("rules/more.yaml");
    await dialog().getByRole("button", { name: "Add", exact: true }).click();
    await page.getByRole("textbox", { name: "Rules in rules/more.yaml" }).fill("rules:\n- id: more\n  limit: 1/fortnight\n");
    await page.getByRole("button", { name: "rules/more.yaml:3:10" }).waitFor();
    await page.getByRole("combobox", { name: "File" }).selectOption("rules/plans.yaml");
    await page.getByRole("button", { name: "rules/more.yaml:3:10" }).click();
    await page.getByRole("textbox", { name: "Rules in rules/more.yaml" }).waitFor();
    check(true, "a problem in another file leads to that file");
    await button("Remove").click();
    await page.getByText("The files are correct.").waitFor();
    await button("Discard").click();
  }

  async function versions() {
    await open(page, ADMIN, "versions?number=2");
    await page.getByRole("heading", { name: "Version 2" }).waitFor();
    await page.locator(".diff").first().waitFor();
    const diff = await page.locator(".diff").first().innerText();
    check(/-\s+limit: 6\/min/.test(diff) && /\+\s+limit: 5\/min/.test(diff), "a version shows what it changed", diff);
    await page.getByLabel("Compare with").selectOption("4");
    await page.locator(".diff", { hasText: "experiment" }).waitFor();
    check(true, "and differs from any other version on request");
  }

  async function audit() {
    await open(page, ADMIN, "audit");
    await page.getByLabel("Action").selectOption("row.");
    await page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].every((row) => row.textContent.includes("row.")));
    const shown = await page.locator("tbody tr").count();
    const found = await done("GET", "/audit?action=row.&limit=1000", { token });
    expect(shown === found.items.length && shown >= 7, "the filter shows every entry of rows, and no other", [shown, found.items.length]);
    await page.getByRole("row", { name: /abuse/ }).first().getByRole("button").click();
    const words = await dialog().innerText();
    check(/terms/.test(words) && /0\/min/.test(words) && /127\.0\.0\.1/.test(words), "an entry shows before and after, and where it came from", words);
    await page.keyboard.press("Escape");
    const [file] = await Promise.all([page.waitForEvent("download"), button("Export").click()]);
    const lines = readFileSync(await file.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
    check(lines.length === shown && lines.every(({ action, hash }) => action.startsWith("row.") && hash.length === 64), "the filtered log is exported with its hashes", lines.length);
    await button("Verify…").click();
    await dialog().getByLabel(/Hash noted/).fill("ab".repeat(32));
    await dialog().getByRole("button", { name: "Verify", exact: true }).click();
    await dialog().locator(".badge", { hasText: "broken" }).waitFor();
    check(true, "a noted hash that is not in the log is found");
    await page.keyboard.press("Escape");
  }

  async function fleet() {
    await open(page, ADMIN, "fleet");
    const status = await done("GET", "/status", { token });
    const row = await page.getByRole("table").getByRole("row").nth(1).innerText();
    check(row.includes(status.instance) && row.includes(status.program) && row.includes(status.digest.slice(0, 12)), "the fleet shows this instance, its program and its digest", row);
  }

  async function access() {
    await open(page, ADMIN, "access?tab=tokens");
    await button("Add a token").click();
    await dialog().getByLabel("Name").fill("ci");
    await dialog().getByLabel("Role").selectOption("viewer");
    await dialog().getByRole("button", { name: "Add the token" }).click();
    const secret = await dialog().locator(".secret code").innerText();
    check((await api("GET", "/status", { token: secret })).status === 200, "a new token works");
    await button("I have copied it").click();
    // A closed dialog has no role any more; its element goes a moment later.
    await page.locator("dialog").waitFor({ state: "detached" });
    const text = await page.locator("body").innerText();
    check(!text.includes(secret) && !(await page.content()).includes(secret), "and is shown once");
    await button("Revoke ci").click();
    await dialog().getByRole("button", { name: "Revoke" }).click();
    await toast("is revoked");
    check((await api("GET", "/status", { token: secret })).status === 401, "a revoked token does nothing");
    await page.getByRole("tab", { name: "Users" }).click();
    await button("Add a user").click();
    await dialog().getByLabel("Name").fill("ben");
    await dialog().getByLabel("Role").selectOption("viewer");
    await dialog().getByRole("button", { name: "Add the user" }).click();
    const password = await dialog().locator(".secret code").innerText();
    await button("I have copied it").click();

    // A viewer sees no subject, and nothing to change.
    const other = await context(browser);
    const viewer = await other.newPage();
    await viewer.goto(`${ADMIN}/`);
    await viewer.getByLabel("Name").fill("ben");
    await viewer.getByLabel("Password").fill(password);
    await viewer.getByRole("button", { name: "Log in" }).click();
    await viewer.getByRole("heading", { name: "Overview" }).waitFor();
    await open(viewer, ADMIN, "overrides");
    const seen = await viewer.locator("main").innerText();
    check(/merchant-plan/.test(seen) && !/m_7|m_13|autumn/.test(seen) && (await viewer.getByRole("button", { name: /^(Edit|Delete|Add)/ }).count()) === 0, "a viewer sees no subject and changes nothing", seen);
    expect((await viewer.getByRole("link", { name: /Audit|Access/ }).count()) === 0, "pages of other rights are not offered", "");

    // The end of a session is seen in an open page.
    await page.getByRole("tab", { name: "Sessions" }).click();
    await button("End all sessions of ben").click();
    await dialog().getByRole("button", { name: "End them" }).click();
    await page.getByRole("row", { name: /ben/ }).waitFor({ state: "detached" });
    await viewer.getByRole("link", { name: "Versions" }).click();
    await viewer.getByRole("heading", { name: "Log in" }).waitFor();
    check(true, "an ended session leads back to the login");
    await other.close();
  }
});
