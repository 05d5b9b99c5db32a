// Pages of other origins: forged requests, a name that is bound to another address, frames. None may change or read anything, although
// the browser has a session, and sends its cookie to every port of the host.
import http from "node:http";
import { ADMIN, api, check, context, eventually, expect, note, publish, script, setUp } from "./kit.mjs";

const { port } = new URL(ADMIN);
const FOREIGN = "foreign.example";

/** A server of pages that are not ours. */
const foreign = http.createServer((request, response) => {
  response.setHeader("content-type", "text/html");
  response.end("<!doctype html><title>foreign</title><body></body>");
});
await new Promise((resolve) => foreign.listen(0, "127.0.0.1", resolve));
const foreignPort = foreign.address().port;

/** Requests that would change something if they were taken for ours. */
const WRITES = [
  ["POST", "/v1/publish", { files: [{ path: "x.yaml", grammar: "own", text: "rules: []\n" }], reason: "x" }],
  ["POST", "/v1/versions", { files: [{ path: "x.yaml", grammar: "own", text: "rules: []\n" }] }],
  ["POST", "/v1/rollback", { reason: "x" }],
  ["POST", "/v1/adopt", { reason: "x" }],
  ["PUT", "/v1/override?domain=default&rule=default&merchant=m_1", { terms: "1/min", allow_orphan: true }],
  ["PUT", "/v1/attribute?source=merchant&subject=m_1&name=tier", { value: "free" }],
  ["POST", "/v1/users", { name: "mallory", role: "admin" }],
  ["POST", "/v1/tokens", { name: "mallory", role: "admin" }],
  ["POST", "/v1/forget", { attributes: { merchant: "m_1" } }],
  ["DELETE", "/v1/session", undefined],
];

await script(
  "foreign",
  async (browser) => {
    const { token, storage } = await setUp();
    await publish(token, "rules:\n- { id: plan, per: merchant, limit: 5/min }\n", "first rules");
    const state = async () => {
      const lists = ["/status", "/versions", "/overrides", "/attributes", "/users", "/tokens"];
      const read = await Promise.all(lists.map((path) => api("GET", path, { token })));
      const [status, ...others] = read.map(({ value }) => value);
      for (const { items } of others) for (const item of items) delete item.seen_at;
      return JSON.stringify([status.epoch, status.revision, status.chain, others]);
    };
    const made = await context(browser, { storage });
    const page = await made.newPage();
    const own = await page.goto(`${ADMIN}/`);
    expect(own.status() === 200, "the dashboard opens", own.status());
    const me = await page.evaluate(async () => (await (await fetch("v1/me")).json()).name);
    check(me === "anna", "the browser has a session", me);
    const before = await state();

    // Statuses from the network: the browser hides these answers from pages, and from events about pages.
    const answers = [];
    const network = await made.newCDPSession(page);
    const methods = new Map();
    await network.send("Network.enable");
    network.on("Network.requestWillBeSent", ({ requestId, request }) => methods.set(requestId, [request.method, request.url]));
    network.on("Network.responseReceivedExtraInfo", ({ requestId, statusCode }) => {
      const [method, url] = methods.get(requestId) ?? ["?", ""];
      if (url.startsWith(`${ADMIN}/v1/`)) answers.push([method, url, statusCode]);
    });
    // Another port of the host is the same site, and gets the cookie: there only the checks of origins protect. Other sites get none.
    for (const [origin, refusal] of [[`http://127.0.0.1:${foreignPort}`, 403], [`http://localhost:${foreignPort}`, 401], [`http://${FOREIGN}:${foreignPort}`, 401]]) {
      await page.goto(`${origin}/`);
      answers.length = 0;
      const read = await page.evaluate(
        async ({ admin, writes }) => {
          const read = [];
          for (const [method, path, body] of writes) {
            // Simple requests, which a browser sends without asking first, and those that it asks for.
            for (const headers of [{ "content-type": "text/plain" }, { "content-type": "application/json", "x-tollgate": "1" }]) {
              for (const mode of ["no-cors", "cors"]) {
                const init = { method, mode, credentials: "include", headers, body: body && JSON.stringify(body) };
                const answer = await fetch(admin + path, init).catch(() => null);
                if (answer && answer.type !== "opaque") read.push(`${method} ${path} ${answer.status}`);
              }
            }
          }
          // A read: the answer must stay unreadable.
          for (const path of ["/v1/status", "/v1/me", "/v1/users", "/v1/audit"]) {
            const answer = await fetch(admin + path, { credentials: "include" }).catch(() => null);
            if (answer) read.push(`${path} ${answer.status}`);
          }
          return read;
        },
        { admin: ADMIN, writes: WRITES },
      );
      expect(read.length === 0, `${origin} reads no answer`, read);
      const writes = answers.filter(([method]) => !["GET", "OPTIONS"].includes(method));
      expect(writes.length >= WRITES.length / 2, `${origin}: the requests arrived`, answers);
      expect(writes.every(([, , status]) => status === refusal), `${origin}: each write is ${refusal}`, writes);
      // A form is a request that no script makes.
      for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
        await page.goto(`${origin}/`);
        const [answer] = await Promise.all([
          page.waitForResponse((response) => response.url() === `${ADMIN}/v1/rollback`),
          page.evaluate(
            ({ action, type }) => {
              const form = document.createElement("form");
              const field = document.createElement("input");
              Object.assign(form, { method: "post", enctype: type, action });
              Object.assign(field, { name: '{"reason":"', value: '"}' });
              form.append(field);
              document.body.append(form);
              form.submit();
            },
            { action: `${ADMIN}/v1/rollback`, type },
          ),
        ]);
        await page.waitForURL(`${ADMIN}/v1/rollback`);
        expect(answer.status() === refusal, `${origin}: a form of ${type} is ${refusal}`, answer.status());
      }
      note(`${origin}: ${writes.length} requests and 3 forms are ${refusal}, and nothing is readable`);
    }

    // The name of the attacker now leads to our address: the browser takes the page for one origin with our API.
    const rebound = await page.goto(`http://${FOREIGN}:${port}/`);
    check(rebound.status() === 403, "a foreign name that leads to our address is 403", rebound.status());
    const statuses = await page.evaluate(async (writes) => {
      const statuses = [];
      for (const path of ["/v1/status", "/v1/me", "/v1/openapi.json"]) statuses.push((await fetch(path)).status);
      for (const [method, path, body] of writes) {
        const headers = { "content-type": "application/json", "x-tollgate": "1" };
        statuses.push((await fetch(path, { method, headers, body: body && JSON.stringify(body) })).status);
      }
      return statuses;
    }, WRITES);
    check(statuses.every((status) => status === 403), `so is each of ${statuses.length} requests of its scripts`, statuses);

    for (const origin of [`http://${FOREIGN}:${foreignPort}`, `http://127.0.0.1:${foreignPort}`]) {
      await page.goto(`${origin}/`);
      const shown = await page.evaluate(
        (url) =>
          new Promise((resolve) => {
            const frame = document.createElement("iframe");
            frame.addEventListener("load", () => resolve(frame.contentDocument === null));
            frame.src = url;
            document.body.append(frame);
          }),
        `${ADMIN}/`,
      );
      expect(shown, "the frame is not of the page that framed it", shown);
      await eventually(`${origin} cannot show the dashboard in a frame`, () => page.frames().some((frame) => frame.url().startsWith("chrome-error:")));
      const [popup] = await Promise.all([
        page.waitForEvent("popup"),
        page.evaluate((url) => {
          window.opened = window.open(url);
        }, `${ADMIN}/`),
      ]);
      await page.waitForFunction(() => window.opened.closed);
      note(`${origin} loses the handle of a window that it opened with the dashboard`);
      await popup.close();
    }
    const after = await state();
    check(after === before, "revision, rows, versions, users and tokens are what they were", [before, after]);
    const still = await api("GET", "/status", { token });
    check(still.status === 200, "the API works as before", still.status);
  },
  [`--host-resolver-rules=MAP ${FOREIGN} 127.0.0.1`],
);
