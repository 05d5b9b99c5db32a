// Ten tabs; and figures that depend on the machine: times, long tasks and memory. Those are taken where they are asked for:
//
//   TOLLGATE_PAGE_FIGURES=1 cargo test --workspace --test dashboard -- --nocapture ten_tabs
//
// `TOLLGATE_HEAP_MINUTES` is the time for which the overview is left open; 2 by default.
import { ADMIN, HTTP, check, context, done, eventually, expect, note, publish, script, setUp } from "./kit.mjs";
import { PAGES, fill, open } from "./pages.mjs";

const HEAP_MINUTES = Number(process.env.TOLLGATE_HEAP_MINUTES ?? 2);
const RULES = 10_000;

await script(
  "figures",
  async (browser) => {
    const { token, storage } = await setUp();
    await fill(token);
    await tabs(browser, storage);
    if (!process.env.TOLLGATE_PAGE_FIGURES) return;
    await interactive(browser, storage);
    await longTasks(browser, storage);
    await filter(browser, storage, token);
    await heap(browser, storage);
  },
  ["--js-flags=--expose-gc", "--enable-precise-memory-info"],
  { limitMs: (HEAP_MINUTES + 6) * 60_000 },
);

const median = (numbers) => [...numbers].sort((one, other) => one - other)[Math.floor(numbers.length / 2)];

/** From the address to a page that shows what it read. */
async function interactive(browser, storage) {
  const times = [];
  for (let round = 0; round < 7; round += 1) {
    const made = await context(browser, { storage });
    const page = await made.newPage();
    await page.goto(`${ADMIN}/`);
    await page.waitForFunction(() => document.querySelector("main .page h1") && !document.querySelector("main .loading"), undefined, { polling: "raf" });
    times.push(await page.evaluate(() => performance.now()));
    await made.close();
  }
  check(median(times) <= 500, `the overview is interactive ${Math.round(median(times))} ms after its address was opened, with an empty cache`, times.map(Math.round));
}

/** Ten tabs share one stream, and all of them are live. */
async function tabs(browser, storage) {
  const made = await context(browser, { storage });
  const pages = [];
  for (let count = 0; count < 10; count += 1) {
    const page = await made.newPage();
    await page.goto(`${ADMIN}/#/${["overview", "live", "rules"][count % 3]}`);
    await page.waitForFunction(() => document.querySelector("main .page h1") && !document.querySelector("main .loading"));
    pages.push(page);
  }
  for (const page of pages) await page.getByText("Live", { exact: true }).first().waitFor();
  const clients = async () => Number(/tollgate_stream_clients (\d+)/.exec(await (await fetch(`${HTTP}/metrics`)).text())?.[1]);
  await eventually("ten tabs are live over one stream", async () => (await clients()) === 1);
  // The tab that held the stream ends: another takes over.
  await pages.shift().close();
  await eventually("another tab takes the stream over", async () => (await clients()) === 1);
  for (const page of pages) {
    await page.bringToFront();
    await page.getByText("Live", { exact: true }).first().waitFor();
  }
  note("nine tabs go on");
  await made.close();
}

/** No task of a page is longer than 100 ms. */
async function longTasks(browser, storage) {
  const made = await context(browser, { storage });
  await made.addInitScript(() => {
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask", buffered: true });
  });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  for (const [, address] of PAGES) {
    await open(page, ADMIN, address);
    await page.waitForTimeout(500);
  }
  await open(page, ADMIN, "overview");
  await page.waitForTimeout(5_000);
  const tasks = await page.evaluate(() => window.tasks);
  const longest = Math.max(0, ...tasks);
  check(longest <= 100, `the longest task on ${PAGES.length} pages takes ${longest === 0 ? "less than 50" : Math.round(longest)} ms`, tasks.map(Math.round));
  await made.close();
}

/** The page of rules with ten thousand of them. */
async function filter(browser, storage, token) {
  const rules = Array.from({ length: RULES }, (_, number) => `- { id: rule-${number}, per: user, limit: ${1 + (number % 50)}/min, when: { endpoint: /v1/e${number} } }`);
  await publish(token, `rules:\n${rules.join("\n")}\n`, "ten thousand");
  const { items } = await done("GET", "/rules?q=rule-9999", { token });
  expect(items.length === 1, "the rules are live", items.length);
  const made = await context(browser, { storage });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  await open(page, ADMIN, "rules");
  await page.locator("tbody tr").nth(50).waitFor();
  const times = [];
  for (let round = 0; round < 9; round += 1) {
    const wanted = `rule-${9_900 + round}`;
    times.push(
      await page.evaluate(async (wanted) => {
        const field = document.querySelector("main input[type=search]");
        const started = performance.now();
        field.value = wanted;
        field.dispatchEvent(new Event("input", { bubbles: true }));
        while (true) {
          const rows = [...document.querySelectorAll("tbody tr")];
          if (rows.length === 1 && rows[0].textContent.includes(wanted)) return performance.now() - started;
          await new Promise(requestAnimationFrame);
        }
      }, wanted),
    );
  }
  check(median(times) <= 100, `a filter over ${RULES} rules takes ${Math.round(median(times))} ms, from the key to the row`, times.map(Math.round));
  await made.close();
}

/** What a page that is left open keeps. */
async function heap(browser, storage) {
  const made = await context(browser, { storage });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  await open(page, ADMIN, "live");
  await open(page, ADMIN, "overview");
  let isSending = true;
  const traffic = (async () => {
    for (let count = 0; isSending; count += 1) {
      await fetch(`${HTTP}/v1/check`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ attributes: { user: `u_${count % 50}`, endpoint: `/v1/e${count % 100}` } }) }).then((answer) => answer.text());
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  })();
  const used = () =>
    page.evaluate(async () => {
      for (let count = 0; count < 3; count += 1) {
        window.gc();
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return performance.memory.usedJSHeapSize;
    });
  await page.waitForTimeout(30_000);
  const before = await used();
  await page.waitForTimeout(HEAP_MINUTES * 60_000);
  const after = await used();
  isSending = false;
  await traffic;
  const grown = (after - before) / 1024 / 1024;
  check(grown <= 5, `the heap grows by ${grown.toFixed(2)} MB in ${HEAP_MINUTES} min, from ${(before / 1024 / 1024).toFixed(1)} MB`);
  await made.close();
}
