// The whole way of one change, in a browser: from the printed setup link to a published rule, a denial that is explained, an exception, and
// back; at the end the audit log has every step with its reason.
import { ADMIN, NAME, PASSWORD, SETUP, attempt, check, checkQuiet, context, eventually, expect, script } from "./kit.mjs";

const SUBJECT = { merchant: "m_42" };
const RULES = `rules:
- id: merchant-plan
  per: merchant
  limit: 3/fortnight
`;

await script("walkthrough", async (browser) => {
  const made = await context(browser);
  const page = await made.newPage();
  const button = (name) => page.getByRole("button", { name, exact: true });
  const dialog = () => page.getByRole("dialog");
  const toast = async (text) => page.locator(".toast", { hasText: text }).waitFor();

  // Setup.
  await page.goto(`${ADMIN}/#setup=${SETUP}`);
  await page.getByLabel("Name").fill(NAME);
  await page.getByLabel("Password").fill(PASSWORD);
  expect(!page.url().includes(SETUP), "the code has left the address", page.url());
  await button("Create the admin").click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  check(true, "the setup link creates the first admin, who sees the overview");

  // A draft with a mistake.
  await page.getByRole("link", { name: "Editor" }).click();
  const field = page.getByRole("textbox", { name: /Rules in/ });
  await field.fill(RULES);
  const problem = page.locator(".editor-problems li");
  await problem.getByText("`fortnight` is not a period").waitFor();
  const place = await problem.getByRole("button").innerText();
  check(place === "rules/rules.yaml:4:10", "the mistake is named on the right line and column", place);
  const marked = await page.locator('.yaml-number[data-mark="error"]').allInnerTexts();
  check(marked.join() === "4", "the line is marked beside its number", marked);
  const described = await field.getAttribute("aria-describedby");
  const text = await page.locator(`#${described.split(" ")[0]}`).innerText();
  check(text.includes("fortnight") && (await field.getAttribute("aria-invalid")) === "true", "the field is described by the problem, and invalid", text);
  await problem.getByRole("button").click();
  const chosen = await field.evaluate((element) => element.value.slice(element.selectionStart, element.selectionEnd));
  check(chosen === "3/fortnight", "the place in the list leads to the mistake", chosen);

  // The fix, the plan, the publish.
  await page.keyboard.type("3/h");
  await page.locator(".editor-plan").getByText("default/merchant-plan").waitFor();
  const plan = await page.locator(".editor-plan").innerText();
  check(/new/.test(plan) && /1 added/.test(plan), "the plan says what is new", plan);
  await button("Save draft").click();
  await dialog().getByLabel(/Reason/).fill("for review");
  await dialog().getByRole("button", { name: "Save draft" }).click();
  await toast("The draft is version 1");
  await button("Publish…").click();
  await dialog().getByLabel("Reason").fill("first rules");
  await dialog().getByRole("button", { name: "Publish", exact: true }).click();
  await toast("is live on 1 of 1 instance");
  check(true, "the rules are published, and live on 1 of 1 instance");

  // A subject is denied, and it is explained why.
  for (let count = 1; count <= 3; count += 1) expect((await attempt(SUBJECT)).allowed, `attempt ${count} of 3 is allowed`);
  const denied = await attempt(SUBJECT);
  check(denied.allowed === false, "the fourth attempt of the subject is denied", denied);
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Search" }).fill("merchant=m_42");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /m_42/ }).first().waitFor();
  const main = page.locator("main");
  await main.getByText(/denied/i).first().waitFor();
  const explained = await main.innerText();
  check(/merchant-plan/.test(explained), "the page of the subject says that it is denied, and names the rule");

  // An override until tomorrow.
  await page.getByRole("link", { name: "Overrides" }).click();
  await page.getByRole("button", { name: "Add an override" }).first().click();
  await dialog().getByLabel("Rule", { exact: true }).fill("default/merchant-plan");
  await dialog().getByLabel("Subject").fill("merchant=m_42");
  await dialog().getByLabel("Limit").fill("100/h");
  await dialog().getByRole("button", { name: "Tomorrow" }).click();
  await dialog().getByLabel("Reason (optional)").fill("ticket 7");
  await dialog().getByRole("button", { name: "Add", exact: true }).click();
  await toast("100/h until");
  const row = page.getByRole("row", { name: /m_42/ });
  await row.getByText("100/h").waitFor();
  const until = await row.locator("time").getAttribute("datetime");
  const hours = (new Date(until) - Date.now()) / 3_600_000;
  check(hours > 22 && hours < 26, "the override ends tomorrow", until);
  await eventually("the subject is allowed", async () => (await attempt(SUBJECT)).allowed);

  // A stricter set, and the way back.
  await page.getByRole("link", { name: "Editor" }).click();
  await page.getByRole("textbox", { name: /Rules in/ }).fill(RULES.replace("3/fortnight", "1/h"));
  await page.locator(".editor-plan").getByText("stricter; usage is kept").waitFor();
  await button("Publish…").click();
  await dialog().getByLabel("Reason").fill("stricter plan");
  await dialog().getByRole("button", { name: "Publish", exact: true }).click();
  await toast("is live on 1 of 1 instance");
  await page.getByRole("link", { name: "Versions" }).click();
  const published = page.getByRole("row", { name: /first rules/ });
  await published.first().getByRole("link").click();
  await button("Roll back to it…").click();
  await dialog().getByText("looser; usage is kept").waitFor();
  await dialog().getByLabel("Reason").fill("checkout was denied");
  await dialog().getByRole("button", { name: "Roll back", exact: true }).click();
  const live = page.getByRole("row", { name: /checkout was denied/ });
  await live.getByText("live", { exact: true }).waitFor();
  const source = await live.innerText();
  check(/rollback to/.test(source), "the rollback is live, as a version of its own", source);

  // Everything is in the audit log, with its reason.
  await page.getByRole("link", { name: "Audit" }).click();
  const log = page.getByRole("region", { name: "Audit log" }).getByRole("table");
  for (const [reason, action] of [["for review", /version/], ["first rules", /publish|rollback/], ["ticket 7", /row/], ["stricter plan", /publish/], ["checkout was denied", /rollback|publish/]]) {
    const entry = log.getByRole("row", { name: new RegExp(reason) }).first();
    await entry.waitFor();
    const words = await entry.innerText();
    expect(words.includes(NAME) && action.test(words), `the audit log has “${reason}” with its author and action`, words);
  }
  check(true, "the audit log has all five changes with author and reason");
  await button("Verify…").click();
  await dialog().getByRole("button", { name: "Verify", exact: true }).click();
  await dialog().getByText("every hash is right").waitFor();
  check(true, "its chain is intact");
  checkQuiet(made, "on the whole way");
});
