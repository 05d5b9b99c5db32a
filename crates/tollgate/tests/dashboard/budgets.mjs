// Sizes and numbers of requests, as the browser counts them.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { ADMIN, check, checkQuiet, context, expect, note, script, setUp } from "./kit.mjs";
import { PAGES, fill, open } from "./pages.mjs";

const KIB = 1024;

await script("budgets", async (browser) => {
  const { token, storage } = await setUp();
  await fill(token);

  // The overview, as a new browser loads it.
  const made = await context(browser, { storage });
  const page = await made.newPage();
  const client = await made.newCDPSession(page);
  await client.send("Network.enable");
  const sizes = new Map();
  const urls = new Map();
  client.on("Network.requestWillBeSent", ({ requestId, request }) => urls.set(requestId, request.url));
  client.on("Network.loadingFinished", ({ requestId, encodedDataLength }) => sizes.set(requestId, encodedDataLength));
  await page.goto(`${ADMIN}/`);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.waitForFunction(() => !document.querySelector("main .loading"));
  await page.waitForLoadState("load");
  const parts = [...urls].filter(([, url]) => !url.includes("/v1/"));
  const bytes = parts.reduce((sum, [id]) => sum + (sizes.get(id) ?? 0), 0);
  // What the browser has in its cache already has no bytes, and is no request.
  const all = [...urls].filter(([id, url]) => !url.startsWith("data:") && sizes.get(id) !== 0);
  const list = [...urls].map(([id, url]) => `${sizes.get(id) ?? "…"} ${url.slice(ADMIN.length)}`);
  check(bytes > 5 * KIB && bytes <= 60 * KIB, `the overview loads at most 60 KiB of code and style (${(bytes / KIB).toFixed(1)} KiB)`, list);
  check(all.length > 3 && all.length <= 15, `with at most 15 requests (${all.length})`, list);

  // Every page, and what it asked for.
  for (const [name, address] of PAGES) {
    await open(page, ADMIN, address);
    expect(await page.evaluate(() => document.title.endsWith("Tollgate")), `${name} has a title`, "");
  }
  const foreign = made.requested.filter((url) => !url.startsWith(`${ADMIN}/`) && !url.startsWith("data:") && !url.startsWith("blob:"));
  check(foreign.length === 0, `no request to another host in ${made.requested.length} requests of ${PAGES.length} pages`, foreign);
  const again = await page.evaluate(() => performance.getEntriesByType("resource").filter(({ name }) => name.includes("/a/")).length);
  expect(again > 0, "code is loaded under its digest", again);
  checkQuiet(made, `on ${PAGES.length} pages`);

  // The whole of it, as it is stored and sent.
  const folder = new URL("../../src/ui/", import.meta.url);
  const files = readdirSync(folder, { recursive: true }).filter((name) => /\.(js|css|html|svg)$/.test(name) && statSync(new URL(name, folder)).isFile());
  const whole = files.reduce((sum, name) => sum + gzipSync(readFileSync(new URL(name, folder)), { level: 9 }).length, 0);
  check(whole > 10 * KIB && whole <= 150 * KIB, `the whole dashboard is at most 150 KiB, deflated (${(whole / KIB).toFixed(1)} KiB in ${files.length} files)`);
  note(`${sizes.size} responses were measured`);
});
