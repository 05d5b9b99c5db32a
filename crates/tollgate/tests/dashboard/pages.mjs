// The pages, and data on all of them.
import { attempt, done, publish } from "./kit.mjs";

/** Every page, with parameters that show data. A page of one thing has its name in `of`. */
export const PAGES = [
  ["overview", "overview"],
  ["live", "live"],
  ["rules", "rules"],
  ["rule", "rule?domain=default&id=merchant-plan"],
  ["subject", "subject?merchant=m_42"],
  ["editor", "editor"],
  ["overrides", "overrides"],
  ["attributes", "attributes"],
  ["versions", "versions"],
  ["version", "versions?number=2"],
  ["fleet", "fleet"],
  ["alerts", "alerts"],
  ["audit", "audit"],
  ["access", "access"],
  ["tokens", "access?tab=tokens"],
  ["sessions", "access?tab=sessions"],
];

export const RULES = `# Two tiers: the endpoint, and the plan of each merchant.
rules:
- id: charges-ceiling
  when: { endpoint: /v1/charges }
  limit: 10000/s
- id: merchant-plan
  per: merchant
  limit: 5/min
  by: { tier: { enterprise: 500/min } }
- id: search
  per: user
  algorithm: sliding_log
  limit: 20/min
- id: search-next
  per: user
  limit: 10/min
  mode: shadow
`;

/** Rules, rows, attributes, decisions: something to see on every page. @param {string} token */
export async function fill(token) {
  await publish(token, RULES.replace("5/min", "6/min"), "first rules");
  await publish(token, RULES, "free plan: 5");
  const row = (rule, subject, terms, more = {}) => {
    const query = new URLSearchParams({ domain: "default", rule, ...subject });
    return done("PUT", `/override?${query}`, { token, none: true, body: { terms, reason: "ticket 7", ...more } });
  };
  await row("merchant-plan", { merchant: "m_7" }, "200/min", { note: "autumn sale", expires_at: Date.now() + 86_400_000 });
  await row("merchant-plan", { merchant: "m_13" }, "0/min", { reason: "abuse" });
  await row("retired", { merchant: "m_9" }, "1/min", { allow_orphan: true });
  await done("PUT", "/attribute?source=merchant&subject=m_42&name=tier", { token, none: true, body: { value: "enterprise", reason: "contract 7" } });
  for (let count = 0; count < 12; count += 1) {
    await attempt({ merchant: count % 3 ? "m_1" : "m_42", endpoint: "/v1/charges" });
    await attempt({ user: `u_${count % 2}` });
  }
}

/** Opens a page and waits until it shows what it read. */
export async function open(page, admin, address) {
  await page.goto(`${admin}/#/${address}`);
  await page.locator(`main .page[data-page=${address.split("?")[0]}] h1`).waitFor();
  await page.waitForFunction(() => !document.querySelector("main .loading"));
}
