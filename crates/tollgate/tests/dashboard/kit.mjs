// The kit of the scripts: Chromium, a page with everything it printed, checks that are printed, and the admin API.
import { createRequire } from "node:module";
import { mkdirSync } from "node:fs";
import { join } from "node:path";

const need = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run the test target \`dashboard\``);
  return value;
};

const browserFolder = need("TOLLGATE_BROWSER");
const pictures = need("TOLLGATE_PICTURES");
/** The dashboard and the admin API, without a slash at the end. */
export const ADMIN = need("TOLLGATE_ADMIN");
/** The data API. */
export const HTTP = need("TOLLGATE_HTTP").replace(/\/$/, "");
export const SETUP = need("TOLLGATE_SETUP");
export const VIEW = need("TOLLGATE_VIEW");
export const NAME = "anna";
export const PASSWORD = "correct horse battery staple";

const modules = createRequire(join(browserFolder, "node_modules", "x.js"));
const { chromium } = modules("playwright-core");
export const axeSource = () => modules("axe-core").source;

// `--headless` comes from playwright-core.
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** The last lines of a page's console that a failure prints. */
const LOG_LINES = 30;

/** What was checked; printed as it happens. */
export function note(text) {
  console.log(`  ok  ${text}`);
}

/** Fails with a text unless a condition holds. */
export function check(condition, text, found) {
  if (!condition) throw new Error(found === undefined ? text : `${text}: ${format(found)}`);
  note(text);
}

/** The same without a line for what holds, for checks in a loop. */
export function expect(condition, text, found) {
  if (!condition) throw new Error(found === undefined ? text : `${text}: ${format(found)}`);
}

const format = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/**
 * Runs a script: gives it a browser, and ends the process. A failure prints what the pages printed and takes a picture of each.
 * @param {string} name of the script, for its pictures
 * @param {(browser: any) => Promise<void>} body
 * @param {string[]} [flags] further flags of Chromium
 * @param {{limitMs?: number}} [options]
 */
export async function script(name, body, flags = [], { limitMs = 180_000 } = {}) {
  const started = Date.now();
  // A bound for what nothing else ends.
  const watchdog = setTimeout(() => {
    console.error(`${name}: not done after ${limitMs / 1000} s`);
    process.exit(1);
  }, limitMs);
  const browser = await chromium.launch({
    executablePath: join(browserFolder, "chromium"),
    args: [...FLAGS, ...flags],
    headless: true,
  });
  let failed = false;
  try {
    await body(browser);
  } catch (error) {
    failed = true;
    mkdirSync(pictures, { recursive: true });
    let number = 0;
    for (const context of browser.contexts()) {
      for (const page of context.pages()) {
        number += 1;
        const file = join(pictures, `${name}-${number}.png`);
        console.error(`\n${page.url()}\n${(page.tollgateLog ?? []).slice(-LOG_LINES).join("\n")}`);
        await page.screenshot({ path: file, timeout: 5_000 }).then(
          () => console.error(`picture: ${file}`),
          (reason) => console.error(`no picture: ${reason.message}`),
        );
      }
    }
    console.error(`${name}: ${error.stack ?? error}`);
  }
  await browser.close().catch(() => {});
  clearTimeout(watchdog);
  console.log(`${name}: ${failed ? "failed" : "passed"} after ${Date.now() - started} ms`);
  process.exit(failed ? 1 : 0);
}

/**
 * A browser context whose pages keep what they print, each violation of the policy of the page, and each request.
 * @param {any} browser
 * @param {{theme?: "light"|"dark", width?: number, height?: number, storage?: any, motion?: string}} [options]
 */
export async function context(browser, options = {}) {
  const made = await browser.newContext({
    colorScheme: options.theme ?? "light",
    viewport: { width: options.width ?? 1440, height: options.height ?? 900 },
    reducedMotion: options.motion ?? "reduce",
    storageState: options.storage,
    locale: "en-GB",
    timezoneId: "Europe/Berlin",
    acceptDownloads: true,
  });
  made.setDefaultTimeout(10_000);
  made.problems = [];
  made.requested = [];
  await made.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => {
      console.error(`policy violation: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber} ${event.sample}`);
    });
  });
  made.on("page", (page) => {
    page.tollgateLog = [];
    const keep = (text) => page.tollgateLog.push(text.slice(0, 500));
    page.on("console", (message) => {
      const text = `console.${message.type()}: ${message.text()}`;
      keep(text);
      // A status that is no success is the API's answer, which the page shows; the browser prints it as an error of its own.
      const isAnswer = /^Failed to load resource: the server responded with a status of/.test(message.text());
      if (message.type() === "error" && !isAnswer) made.problems.push(text);
    });
    page.on("pageerror", (error) => {
      keep(`error: ${error.stack ?? error}`);
      made.problems.push(`error: ${error.message}`);
    });
    page.on("request", (request) => made.requested.push(request.url()));
    page.on("response", (response) => {
      if (response.status() >= 400) keep(`${response.status()} ${response.request().method()} ${response.url()}`);
    });
  });
  return made;
}

/** Fails if a page of a context printed an error, threw, or violated its policy. */
export function checkQuiet(made, text) {
  check(made.problems.length === 0, `${text}: no errors and no violations of the policy`, made.problems);
}

/**
 * A request to the admin API as a program sends it.
 * @param {string} method
 * @param {string} path below `/v1`
 * @param {{token?: string, body?: any, match?: string, none?: boolean, key?: string}} [options]
 */
export async function api(method, path, options = {}) {
  const headers = {};
  if (options.token) headers.authorization = `Bearer ${options.token}`;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  if (options.match) headers["if-match"] = options.match;
  if (options.none) headers["if-none-match"] = "*";
  if (!options.token) Object.assign(headers, { "x-tollgate": "1", origin: ADMIN });
  const response = await fetch(`${ADMIN}/v1${path}`, {
    method,
    headers,
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
  });
  const text = await response.text();
  const value = text && (response.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : text;
  return { status: response.status, value, etag: response.headers.get("etag") };
}

/** The same for a request that must succeed; returns its body. */
export async function done(method, path, options = {}) {
  const { status, value } = await api(method, path, options);
  if (status >= 300) throw new Error(`${method} ${path}: ${status} ${format(value)}`);
  return value;
}

/** Creates the first admin, a user; returns a token of an admin beside it. */
export async function setUp() {
  const user = await fetch(`${ADMIN}/v1/setup`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-tollgate": "1", origin: ADMIN },
    body: JSON.stringify({ code: SETUP, name: NAME, password: PASSWORD, kind: "user" }),
  });
  if (user.status !== 201) throw new Error(`setup: ${user.status} ${await user.text()}`);
  const cookie = user.headers.get("set-cookie").split(";")[0];
  const made = await fetch(`${ADMIN}/v1/tokens`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-tollgate": "1", origin: ADMIN, cookie },
    body: JSON.stringify({ name: "tests", role: "admin" }),
  });
  if (made.status !== 201) throw new Error(`token: ${made.status} ${await made.text()}`);
  const { token } = await made.json();
  const [name, value] = [cookie.slice(0, cookie.indexOf("=")), cookie.slice(cookie.indexOf("=") + 1)];
  const { hostname } = new URL(ADMIN);
  const storage = {
    cookies: [{ name, value, domain: hostname, path: "/", httpOnly: true, secure: false, sameSite: "Strict", expires: -1 }],
    origins: [],
  };
  return { token, storage };
}

/** Publishes one file of rules. */
export async function publish(token, text, reason, path = "rules/plans.yaml") {
  const files = [{ path, grammar: "own", text }];
  const { live } = await done("POST", "/plan", { token, body: { files } });
  return done("POST", "/publish?wait=5s", { token, body: { files, reason }, match: live.etag });
}

/** Asks the data API for a verdict. */
export async function attempt(attributes, options = {}) {
  const response = await fetch(`${HTTP}/v1/check`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ attributes, ...options }),
  });
  return { status: response.status, ...(await response.json()) };
}

/** Waits until a condition holds; polls, because what it waits for is outside the browser. */
export async function eventually(text, condition) {
  const deadline = Date.now() + 10_000;
  for (;;) {
    if (await condition()) return note(text);
    if (Date.now() > deadline) throw new Error(`never: ${text}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
