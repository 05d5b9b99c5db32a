// The pictures of docs/dashboard.md: a fleet of three instances with traffic, and every page of it in both themes. Started by
// `scripts/screenshots`, which also makes pictures of whole pages in three widths, to look at and not to keep.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const target = resolve(process.argv[2]);
const isReview = process.argv[3] === "--review";
const program = process.env.TOLLGATE_PROGRAM;
const folder = mkdtempSync(join(tmpdir(), "tollgate-pictures-"));
const children = [];
const TRAFFIC_MS = Number(process.env.TOLLGATE_TRAFFIC_MS ?? 120_000);
const BYTES_MAX = 2 * 1024 * 1024;
/** Our own variables are no settings of the server. */
const OWN = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("TOLLGATE_")));

const freePort = async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
};

/** Starts a program; resolves to the lines it printed up to one that matches. */
async function start(command, args, ready, cwd = folder) {
  const child = spawn(command, args, { cwd, env: OWN, stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  const lines = [];
  for await (const line of createInterface({ input: child.stdout })) {
    lines.push(line);
    if (ready.test(line)) break;
  }
  child.stdout.resume();
  return lines;
}

async function main() {
  const redis = await freePort();
  await start("redis-server", ["--port", String(redis), "--save", "", "--dir", folder], /Ready to accept/);
  const secret = "a secret for pictures, 32 characters or more";
  const instances = [];
  for (const name of ["api-1", "api-2", "api-3"]) {
    const data = join(folder, name);
    mkdirSync(data);
    const settings = {
      "server.http": "127.0.0.1:0",
      "server.admin": instances.length === 0 ? "127.0.0.1:0" : "disabled",
      "server.grpc": "disabled",
      "server.resp": "disabled",
      "server.debug": "disabled",
      "store": `redis://127.0.0.1:${redis}/0`,
      "control.secret": secret,
      "data_dir": data,
      ...(process.env.TOLLGATE_UI_DIR ? { "admin.ui_dir": process.env.TOLLGATE_UI_DIR } : {}),
      "derive": "{ tier: { from: merchant, default: free } }",
    };
    const flags = Object.entries(settings).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
    const lines = await start(program, ["serve", ...flags], /^ready/, data);
    const line = (label) => lines.find((one) => one.startsWith(label))?.slice(label.length) ?? "";
    instances.push({ http: line("http: ").replace(/\/$/, ""), admin: line("admin: "), setup: line("setup: ") });
  }
  const [first] = instances;
  Object.assign(process.env, {
    TOLLGATE_ADMIN: first.admin.split("#")[0].replace(/\/$/, ""),
    TOLLGATE_HTTP: first.http,
    TOLLGATE_SETUP: first.setup.split("=")[1],
    TOLLGATE_VIEW: first.admin.split("=")[1],
    TOLLGATE_PICTURES: folder,
  });
  const kit = await import("./kit.mjs");
  const { open } = await import("./pages.mjs");
  await kit.script(
    "screenshots",
    async (browser) => {
      const { token, storage } = await kit.setUp();
      const traffic = send(instances.map(({ http }) => http));
      await history(kit, token);
      console.log(`traffic for ${TRAFFIC_MS / 1000} s`);
      await new Promise((resolve) => setTimeout(resolve, TRAFFIC_MS));
      mkdirSync(target, { recursive: true });
      for (const width of isReview ? REVIEW_WIDTHS : [WIDTH]) {
        for (const theme of ["light", "dark"]) await pictures(kit, open, browser, storage, theme, width);
      }
      traffic.stop();
      if (isReview) return;
      const bytes = readdirSync(target).filter((name) => name.endsWith(".webp")).reduce((sum, name) => sum + statSync(join(target, name)).size, 0);
      kit.check(bytes <= BYTES_MAX, `all pictures have at most 2 MB (${Math.round(bytes / 1024)} KiB)`);
    },
    ["--force-device-scale-factor=1"],
    { limitMs: TRAFFIC_MS + (isReview ? 480_000 : 180_000) },
  );
}

const RULES = `# Two tiers: the capacity of an endpoint, and the plan of each merchant.
rules:
# Over all merchants: /v1/charges takes 10,000 per second.
- id: charges-ceiling
  when: { endpoint: /v1/charges }
  limit: 10000/s

# Each merchant by plan. The tier comes from the attributes of subjects.
- id: merchant-plan
  per: merchant
  limit: 100/min
  by:
    tier:
      free: 60/min
      enterprise: 5000/min burst 500

- id: search
  per: user
  when: { endpoint: /v1/search }
  algorithm: sliding_log
  limit: [5/s, 90/min]

# Would a quarter less hurt anyone?
- id: search-next
  per: user
  when: { endpoint: /v1/search }
  limit: 60/min
  mode: shadow

- id: exports
  per: [merchant, region]
  when: { endpoint: "/v1/exports/*" }
  algorithm: concurrency
  limit: 5
`;

/** What people did before the pictures. */
async function history({ done, publish, api }, token) {
  const people = {};
  for (const [name, role] of [["anna", "admin"], ["ben", "editor"], ["carla", "operator"]]) {
    const made = name === "anna" ? null : await done("POST", "/users", { token, body: { name, role, password: "correct horse battery staple" } });
    people[name] = made;
  }
  const ci = (await done("POST", "/tokens", { token, body: { name: "ci", role: "editor", reason: "pipeline" } })).token;
  const ops = (await done("POST", "/tokens", { token, body: { name: "ops", role: "operator", reason: "on call" } })).token;
  await publish(ci, RULES.replace("free: 60/min", "free: 100/min"), "plans: first version", "rules/payments.yaml");
  await publish(ci, RULES.replace("free: 60/min", "free: 40/min"), "free plan: 40 a minute", "rules/payments.yaml");
  const { etag } = await done("GET", "/versions", { token });
  await done("POST", "/rollback?wait=5s", { token, match: etag, body: { version: 1, reason: "checkout of m_17 was denied" } });
  await publish(ci, RULES, "free plan: 60 a minute", "rules/payments.yaml");
  const row = (subject, terms, more) => done("PUT", `/override?${new URLSearchParams({ domain: "default", rule: "merchant-plan", merchant: subject })}`, { token: ops, none: true, body: { terms, ...more } });
  const day = 86_400_000;
  await row("m_42", "20000/min burst 500", { note: "autumn sale", reason: "ticket 4711", expires_at: Date.now() + 3 * day });
  await row("m_13", "0/min", { note: "card testing", reason: "abuse report 98" });
  await row("m_7", "400/min", { note: "migration", reason: "ticket 4730", expires_at: Date.now() + day / 2 });
  await row("m_88", "unlimited", { note: "internal", reason: "load test", expires_at: Date.now() + 7 * day });
  for (const [merchant, tier] of [["m_42", "enterprise"], ["m_21", "enterprise"], ["m_7", "free"], ["m_17", "free"], ["m_30", "enterprise"]]) {
    await done("PUT", `/attribute?source=merchant&subject=${merchant}&name=tier`, { token: ci, none: true, body: { value: tier, reason: "billing sync" } });
  }
  await api("POST", "/versions", { token: ci, body: { files: [{ path: "rules/payments.yaml", grammar: "own", text: RULES.replace("90/min", "70/min") }], reason: "search: try 70" } });
}

/** Requests of many callers, some of them too eager. */
function send(urls) {
  let isRunning = true;
  let sent = 0;
  const check = (attributes) => {
    sent += 1;
    const url = urls[sent % urls.length];
    return fetch(`${url}/v1/check`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ attributes }) }).then((answer) => answer.arrayBuffer()).catch(() => {});
  };
  const tick = async () => {
    const phase = Date.now() / 20_000;
    const rate = 14 + Math.round(5 * Math.sin(phase) + 3 * Math.random());
    const calls = [];
    for (let count = 0; count < rate; count += 1) {
      const merchant = Math.random() < 0.22 ? "m_17" : `m_${Math.floor(100 * Math.random() ** 2)}`;
      calls.push(check({ merchant, endpoint: "/v1/charges", region: Math.random() < 0.7 ? "eu" : "us" }));
      if (count % 3 === 0) calls.push(check({ user: `u_${Math.floor(30 * Math.random() ** 2)}`, endpoint: "/v1/search" }));
    }
    await Promise.all(calls);
    if (isRunning) setTimeout(tick, 90);
  };
  tick();
  return { stop: () => (isRunning = false) };
}

const PICTURES = [
  ["overview", "overview"],
  ["live", "live"],
  ["rules", "rules"],
  ["rule", "rule?domain=default&id=merchant-plan"],
  ["subject", "subject?merchant=m_17&endpoint=/v1/charges"],
  ["editor", "editor"],
  ["overrides", "overrides"],
  ["attributes", "attributes"],
  ["versions", "versions"],
  ["version", "versions?number=4"],
  ["fleet", "fleet"],
  ["alerts", "alerts"],
  ["audit", "audit"],
  ["access", "access"],
];

/** A telephone, a tablet, a desktop. */
const REVIEW_WIDTHS = [320, 768, 1440];
const WIDTH = 1280;

async function pictures(kit, open, browser, storage, theme, width) {
  const made = await kit.context(browser, { theme, storage, width, height: 800 });
  const page = await made.newPage();
  const client = await made.newCDPSession(page);
  await page.goto(`${kit.ADMIN}/`);
  for (const [name, address] of PICTURES) {
    await open(page, kit.ADMIN, address);
    if (name === "editor") {
      const field = page.getByRole("textbox", { name: /Rules in/ });
      await field.evaluate((element) => element.setSelectionRange(element.value.indexOf("60/min"), element.value.indexOf("60/min") + 6));
      await field.press("5");
      await page.keyboard.type("0/min");
      await page.locator(".editor-plan .plan-lines").waitFor();
    }
    if (name === "subject") {
      // Once a second a check of it passes: that is not what the picture is about.
      const denied = page.getByText("A check would be denied");
      for (let count = 0; count < 20 && (await denied.count()) === 0; count += 1) {
        await page.getByRole("button", { name: "Refresh" }).click();
        await page.waitForTimeout(200);
      }
    }
    // Charts and live lists take a moment to fill.
    await page.waitForTimeout(name === "live" || name === "overview" ? 4000 : 1200);
    if (isReview) {
      await page.screenshot({ path: join(target, `${name}-${width}-${theme}.png`), fullPage: true });
      continue;
    }
    const { data } = await client.send("Page.captureScreenshot", { format: "webp", quality: 82 });
    writeFileSync(join(target, `${name}-${theme}.webp`), Buffer.from(data, "base64"));
    console.log(`  ${name}-${theme}.webp`);
  }
  await made.close();
}

function stop() {
  for (const child of children) child.kill();
  rmSync(folder, { recursive: true, force: true });
}

process.on("exit", stop);
await main();
