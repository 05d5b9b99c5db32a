// The tasks of someone on call, each from the overview and with at most three clicks: who is refused and why, a higher limit until Friday, the
// cause of a spike, the change before it, the way back, the health of the store.
import { ADMIN, attempt, check, checkQuiet, context, done, eventually, expect, publish, script, setUp } from "./kit.mjs";
import { open } from "./pages.mjs";

const CLICKS_MAX = 3;
const RULES = `rules:
- id: merchant-plan
  per: merchant
  limit: 2/h
  by: { tier: { enterprise: 500/h } }
- id: search
  per: user
  when: { endpoint: /v1/search }
  limit: 100/h
`;

await script("incident", async (browser) => {
  const { token, storage } = await setUp();
  await publish(token, RULES.replace("2/h", "50/h"), "generous");
  await publish(token, RULES, "stricter");
  for (let count = 0; count < 8; count += 1) await attempt({ merchant: "m_17" });
  // One more of each: they are denied too, but less often.
  for (const merchant of ["m_1", "m_2"]) for (let count = 0; count < 3; count += 1) await attempt({ merchant });
  for (let count = 0; count < 502; count += 1) await attempt({ merchant: "m_42", tier: "enterprise" });
  const made = await context(browser, { storage });
  await made.addInitScript(() => {
    addEventListener("click", (event) => event.isTrusted && event.detail > 0 && (window.clicks = (window.clicks ?? 0) + 1), true);
  });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  const main = page.locator("main");
  const button = (name) => main.getByRole("button", { name, exact: true });
  const dialog = () => page.getByRole("dialog");
  const rule = () => main.getByRole("region", { name: /rules that deny most/i }).getByRole("link", { name: "merchant-plan" });

  /** Runs a task from the overview, and counts its clicks. */
  const task = async (text, body) => {
    await open(page, ADMIN, "overview");
    await rule().waitFor();
    await page.evaluate(() => (window.clicks = 0));
    await body();
    const clicks = await page.evaluate(() => window.clicks);
    check(clicks <= CLICKS_MAX, `${text}: ${clicks} ${clicks === 1 ? "click" : "clicks"}`, clicks);
  };

  await task("why this merchant is refused", async () => {
    await rule().click();
    await main.getByRole("link", { name: "merchant=m_17" }).click();
    await main.getByText("A check would be denied").waitFor();
    const words = await main.innerText();
    expect(/merchant-plan/.test(words) && /2 of 2 used/.test(words) && /2\/h/.test(words), "the rule, the limit and its use are named", words);
  });

  await task("it is raised until Friday", async () => {
    await rule().click();
    await main.getByRole("row", { name: /m_17/ }).getByRole("button", { name: "Raise until Friday" }).click();
    await dialog().getByLabel("Reason (optional)").fill("ticket 9");
    expect((await dialog().getByLabel("Limit").inputValue()) === "4/h", "twice the limit", "");
    await dialog().getByRole("button", { name: "Set the override" }).click();
    await page.locator(".toast", { hasText: "4/h until" }).waitFor();
  });
  await eventually("the next check of the merchant passes", async () => (await attempt({ merchant: "m_17" })).allowed);
  const row = await done("GET", "/override?domain=default&rule=merchant-plan&merchant=m_17", { token });
  check(new Date(row.expires_at).getUTCDay() === 5, "and the override ends on a Friday", row);

  await task("it is found by its name, without a rule in mind", async () => {
    await page.keyboard.press("/");
    await page.getByRole("combobox", { name: "Search" }).fill("merchant=m_2");
    await page.keyboard.press("Enter");
    await button("Raise until Friday").click();
    await dialog().getByRole("button", { name: "Set the override" }).click();
    await page.locator(".toast", { hasText: "4/h until" }).waitFor();
  });

  // The limit of a rule is not the one of each subject.
  await done("PUT", "/override?domain=default&rule=merchant-plan&merchant=m_42", { token, none: true, body: { terms: "500/h", reason: "contract" } });
  await task("what applies to a subject is raised, not the limit of the rule", async () => {
    await rule().click();
    await main.getByRole("row", { name: /m_42/ }).getByRole("button", { name: "Raise until Friday" }).click();
    const limit = await dialog().getByLabel("Limit").inputValue();
    expect(limit === "500/h", "the override that is there is changed", limit);
    await page.keyboard.press("Escape");
  });

  await task("who caused the spike", async () => {
    await rule().click();
    const first = main.getByRole("table").getByRole("row").nth(1);
    await first.getByText("m_17").waitFor();
  });

  await task("what changed before it, and who did it", async () => {
    await main.getByRole("link", { name: "version 2" }).click();
    await main.locator(".diff").first().waitFor();
    const words = await main.innerText();
    expect(/stricter/.test(words) && /tests/.test(words) && /-\s+limit: 50\/h/.test(words) && /\+\s+limit: 2\/h/.test(words), "author, reason and difference", words);
  });

  await task("roll back", async () => {
    await main.getByRole("link", { name: "version 2" }).click();
    await button("Roll back to version 1…").click();
    await dialog().getByText("looser; usage is kept").waitFor();
    await dialog().getByLabel("Reason").fill("merchants are denied");
    await dialog().getByRole("button", { name: "Roll back", exact: true }).click();
    await page.locator(".toast", { hasText: "is live on 1 of 1 instance" }).waitFor();
  });
  await eventually("the old limit applies", async () => (await attempt({ merchant: "m_1" })).allowed);

  await task("the store, the database, and on which instances", async () => {
    await page.getByRole("link", { name: "Fleet" }).click();
    await main.getByText("Store of the counters").waitFor();
    const words = await main.innerText();
    const { instance } = await done("GET", "/status", { token });
    expect(words.includes(instance) && /available/.test(words) && /Breaker/i.test(words), "each instance with its breaker", words);
  });
  checkQuiet(made, "in all tasks");
});
