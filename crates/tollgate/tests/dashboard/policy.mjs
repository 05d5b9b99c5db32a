// What the policy of the page forbids is forbidden in a real browser; and the first minute: the quickstart rules, by the printed link.
import { ADMIN, HTTP, VIEW, check, checkQuiet, context, expect, note, script } from "./kit.mjs";

const HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
};

await script("policy", async (browser) => {
  const made = await context(browser);
  const page = await made.newPage();
  const responses = [];
  page.on("response", (response) => responses.push(response));
  await page.goto(`${ADMIN}/#view=${VIEW}`);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await firstMinute(page);
  checkQuiet(made, "in the first minute");

  for (const response of responses) {
    const headers = await response.allHeaders();
    for (const [name, value] of Object.entries(HEADERS)) expect(headers[name] === value, `${name} of ${response.url()}`, headers[name]);
    const path = new URL(response.url()).pathname;
    const caching = path === "/" ? "no-cache" : path.startsWith("/a/") ? "public, max-age=31536000, immutable" : "no-store";
    expect(headers["cache-control"] === caching, `${path} is ${caching}`, headers["cache-control"]);
  }
  check(responses.length > 5, `${responses.length} responses have the policy and the other headers`);

  const tried = await page.evaluate(tryForbidden);
  for (const [name, wanted, found] of tried) expect(wanted.split(" ").some((directive) => found.startsWith(directive)), `${name} is forbidden`, found);
  check(!(await page.evaluate(() => "ran" in window)), `${tried.length} things that the policy forbids are blocked: ${tried.map(([name]) => name).join(", ")}`);
});

/** Runs in the page. Each must fail, and be reported as a violation of a directive. */
async function tryForbidden() {
  const other = "http://127.0.0.1:9/";
  const make = (name, members) => Object.assign(document.createElement(name), members);
  const forbidden = [
    ["markup from text", "require-trusted-types-for", () => make("div", { innerHTML: "<b>x</b>" })],
    ["code from text", "script-src require-trusted-types-for", () => (0, eval)("window.ran = 1")],
    ["the address of a script from text", "require-trusted-types-for", () => make("script", { src: "x.js" })],
    ["a policy of Trusted Types", "trusted-types", () => window.trustedTypes.createPolicy("x", { createHTML: (text) => text })],
    ["an inline style", "style-src", () => document.body.setAttribute("style", "color: red")],
    ["a request to another host", "connect-src", () => fetch(other).catch(() => {})],
    ["a picture of another host", "img-src", () => make("img", { src: other })],
    ["a frame", "frame-src", () => document.body.append(make("iframe", { src: other }))],
    ["another base of addresses", "base-uri", () => document.head.append(make("base", { href: other }))],
  ];
  const tried = [];
  for (const [name, wanted, act] of forbidden) {
    const violated = new Promise((resolve) => {
      addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective), { once: true });
      setTimeout(() => resolve("nothing was reported"), 3000);
    });
    // Later: what the protocol of the browser's tools evaluates may do more.
    setTimeout(() => {
      try {
        act();
      } catch {
        // It is blocked.
      }
    }, 0);
    tried.push([name, wanted, await violated]);
  }
  return tried;
}

/** The button of the overview: five checks pass, the sixth is denied, and the charts have them. */
async function firstMinute(page) {
  const started = Date.now();
  const button = page.getByRole("button", { name: "Try it: send a check" });
  await button.waitFor();
  const log = page.locator("main");
  for (let count = 0; count < 6; count += 1) await button.click();
  await log.getByText(/The next check passes in/).waitFor();
  const seconds = (Date.now() - started) / 1000;
  check(seconds < 10, `a limit fills and denies, ${seconds.toFixed(1)} s after the page was opened`);
  const metrics = await (await fetch(`${HTTP}/metrics`)).text();
  const count = (result) => Number(new RegExp(`tollgate_checks_total\\{result="${result}",source="memory",protocol="admin"\\} (\\d+)`).exec(metrics)?.[1] ?? 0);
  check(count("allow") === 5 && count("deny") === 1, "the checks were real: five passed, the sixth was denied", [count("allow"), count("deny")]);
  await page.waitForFunction(() => [...document.querySelectorAll("main .big, main .stat, main .card")].some((card) => /denied/i.test(card.textContent ?? "")));
  note("the overview shows them");
}
