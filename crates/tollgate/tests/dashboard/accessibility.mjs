// Every page without barriers: axe in both themes, 320 px without sideways scrolling, and the main tasks by keyboard alone.
import { ADMIN, axeSource, check, checkQuiet, context, expect, note, script, setUp } from "./kit.mjs";
import { PAGES, fill, open } from "./pages.mjs";

await script("accessibility", async (browser) => {
  const { token, storage } = await setUp();
  await fill(token);
  const source = axeSource();

  for (const theme of ["light", "dark"]) {
    const made = await context(browser, { theme, storage });
    const page = await made.newPage();
    await page.goto(`${ADMIN}/`);
    await page.evaluate(source);
    for (const [name, address] of PAGES) {
      await open(page, ADMIN, address);
      await inspect(page, `${name}, ${theme}`);
    }
    // What opens above a page.
    for (const [address, name] of [["overrides", "Add an override"], ["overrides", "Import"], ["editor", "Publish…"], ["audit", "Verify…"], ["access", "Add a user"]]) {
      await open(page, ADMIN, address);
      await page.getByRole("button", { name }).first().click();
      await page.getByRole("dialog").waitFor();
      await inspect(page, `${name}, ${theme}`);
      await page.keyboard.press("Escape");
    }
    checkQuiet(made, `axe finds nothing serious on ${PAGES.length} pages and 5 dialogs, ${theme}`);
    await made.close();
  }

  const small = await context(browser, { width: 320, height: 640, storage });
  const phone = await small.newPage();
  await phone.goto(`${ADMIN}/`);
  for (const [name, address] of PAGES) {
    await open(phone, ADMIN, address);
    const { width, wide, tables } = await phone.evaluate(() => {
      const { scrollWidth } = document.documentElement;
      const wide = [...document.querySelectorAll("main *")].filter((element) => element.getBoundingClientRect().right > 321 && !element.closest(".table-scroll, .diff, .yaml, pre, .tab-list, .hidden"));
      const tables = [...document.querySelectorAll("main .table-scroll")].filter((element) => element.scrollWidth > element.clientWidth + 1);
      return { width: scrollWidth, wide: wide.slice(0, 3).map((element) => element.outerHTML.slice(0, 120)), tables: tables.map((element) => element.ariaLabel) };
    });
    expect(width <= 320, `${name} fits into 320 px`, { width, wide });
    expect(tables.length === 0, `the tables of ${name} fit into 320 px`, tables);
  }
  check(true, `all ${PAGES.length} pages and their tables fit into 320 px without sideways scrolling`);
  checkQuiet(small, "at 320 px");
  await small.close();

  const made = await context(browser, { storage });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await keyboard(page);
  checkQuiet(made, "by keyboard");
});

/** Fails for each violation that keeps someone from using the page. */
async function inspect(page, name) {
  const found = await page.evaluate(async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] });
    return violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id, impact, nodes }) => ({ id, impact, at: nodes.slice(0, 3).map((node) => `${node.target}: ${node.html.slice(0, 160)} ${node.failureSummary?.split("\n")[1] ?? ""}`) }));
  });
  expect(found.length === 0, `${name}: axe finds nothing serious`, JSON.stringify(found, null, 1));
}

/** The main tasks without a pointer. */
async function keyboard(page) {
  const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
  const focused = () => page.evaluate(() => `${document.activeElement?.tagName} ${document.activeElement?.textContent?.trim().slice(0, 40)} ${document.activeElement?.getAttribute("aria-label") ?? ""} ${document.activeElement?.getAttribute("name") ?? ""}`);
  /** Goes on with Tab until something has the focus. */
  const tabTo = async (pattern, max = 80) => {
    for (let count = 0; count < max; count += 1) {
      await page.keyboard.press("Tab");
      if (pattern.test(await focused())) return;
    }
    throw new Error(`Tab does not lead to ${pattern}; at last ${await focused()}`);
  };

  await tabTo(/Skip to content/, 3);
  await press("Enter");
  expect(/^MAIN/.test(await focused()), "the first link skips the navigation", await focused());
  note("the first stop skips the navigation");

  // Every link of the navigation.
  await page.evaluate(() => /** @type {any} */ (document.activeElement)?.blur());
  await press("Control+k");
  await page.keyboard.type("edit");
  await press("Enter");
  await page.getByRole("heading", { name: "Editor" }).waitFor();
  note("search leads to a page");

  // The editor.
  await page.locator(".editor-plan .plan").waitFor();
  await tabTo(/Rules in/);
  const value = () => page.evaluate(() => document.activeElement.value);
  const before = await value();
  await press("Control+End", "Enter");
  await page.keyboard.type("- id: by-keyboard");
  await press("Enter", "Tab");
  await page.keyboard.type("mo");
  await page.getByRole("option", { name: /mode/ }).waitFor();
  const active = await page.evaluate(() => document.getElementById(document.activeElement.getAttribute("aria-activedescendant"))?.textContent);
  expect(/^mode/.test(active), "the list of completions is announced", active);
  await press("Enter");
  await page.getByRole("option", { name: /shadow/ }).waitFor();
  await press("ArrowDown", "Enter", "Enter");
  await page.keyboard.type("limit: 5/min");
  const text = await value();
  expect(text === `${before}\n- id: by-keyboard\n  mode: shadow\n  limit: 5/min` || text.endsWith("- id: by-keyboard\n  mode: shadow\n  limit: 5/min"), "keys, values and indentation are written by keyboard", text.slice(-120));
  await press("Shift+Tab");
  expect((await value()).endsWith("\nlimit: 5/min"), "Shift-Tab moves the line back", (await value()).slice(-40));
  await press("Home", "Tab", "Escape", "Tab");
  expect(!/Rules in/.test(await focused()), "Escape and Tab leave the field", await focused());
  note("the editor completes, indents and lets go by keyboard");
  await page.locator(".editor-plan").getByText("by-keyboard").waitFor();
  await page.keyboard.press("Shift+Tab");
  await shiftTabTo(/Publish…/);
  await press("Enter");
  await page.getByRole("dialog").waitFor();
  await tabTo(/^INPUT.* reason$/, 20);
  await page.keyboard.type("by keyboard");
  await press("Enter");
  await page.locator(".toast", { hasText: "is live on 1 of 1" }).waitFor();
  note("a rule is published by keyboard");

  // A row that is edited in place.
  await press("Control+k");
  await page.keyboard.type("overrides");
  await press("Enter");
  await page.getByRole("heading", { name: "Overrides" }).waitFor();
  await page.getByRole("row", { name: /m_7/ }).waitFor();
  await tabTo(/Edit merchant-plan merchant=m_7/);
  await press("Enter");
  await page.keyboard.type("250/min");
  await press("Enter");
  await page.getByRole("row", { name: /m_7/ }).getByText("250/min").waitFor();
  expect(/Edit merchant-plan merchant=m_7/.test(await focused()), "the focus is back at the row", await focused());
  note("a row is edited in place by keyboard");
  await press("Enter");
  await page.keyboard.type("9/min");
  await press("Escape");
  expect(await page.getByRole("row", { name: /m_7/ }).getByText("250/min").isVisible(), "Escape keeps the row", "");

  // Tabs and dialogs.
  await press("Control+k");
  await page.keyboard.type("access");
  await press("Enter");
  await page.getByRole("tab", { name: "Users" }).waitFor();
  await tabTo(/^BUTTON Users/);
  await press("ArrowRight");
  await page.getByRole("tabpanel", { name: "Tokens" }).waitFor();
  // The panel around it can have the focus too, and has the same text.
  await tabTo(/^BUTTON Add a token/);
  await press("Enter");
  await page.getByRole("dialog").getByLabel("Name").waitFor();
  await page.keyboard.type("by-keyboard");
  await press("Enter");
  await page.getByText("It is shown once").waitFor();
  await press("Escape");
  await page.getByRole("row", { name: /by-keyboard/ }).waitFor();
  note("a token is made by keyboard, and shown once");

  async function shiftTabTo(pattern) {
    for (let count = 0; count < 40; count += 1) {
      if (pattern.test(await focused())) return;
      if (/Rules in/.test(await focused())) await page.keyboard.press("Escape");
      await page.keyboard.press("Shift+Tab");
    }
    throw new Error(`Shift-Tab does not lead to ${pattern}; at last ${await focused()}`);
  }
}
