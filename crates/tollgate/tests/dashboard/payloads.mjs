// Hostile text wherever the API accepts text, shown on every page: nothing of it may run, and nothing of ours may violate the policy.
import { ADMIN, HTTP, api, attempt, check, context, done, expect, note, publish, script, setUp } from "./kit.mjs";
import { PAGES, open } from "./pages.mjs";

/** Each calls `pwn` if it is anything but text. */
const CALL = "window.pwned=1";
const PAYLOADS = [
  `<script>${CALL}</script>`,
  `<ScRiPt >${CALL}</sCrIpT>`,
  `<scr<script>ipt>${CALL}</scr</script>ipt>`,
  `<script src=data:text/javascript,${CALL}></script>`,
  `<script src=//x.example/x.js></script>`,
  `<script type=module>${CALL}</script>`,
  `</script><script>${CALL}</script>`,
  `</title><script>${CALL}</script>`,
  `</textarea><script>${CALL}</script>`,
  `</style><script>${CALL}</script>`,
  `</template><script>${CALL}</script>`,
  `--><script>${CALL}</script>`,
  `]]><script>${CALL}</script>`,
  `"><script>${CALL}</script>`,
  `'><script>${CALL}</script>`,
  `\`><script>${CALL}</script>`,
  `<img src=x onerror=${CALL}>`,
  `<img src=x onerror="${CALL}">`,
  `<img/src/onerror=${CALL}>`,
  `<img src=x:x onerror=${CALL}//`,
  `"><img src=x onerror=${CALL}>`,
  `<IMG """><SCRIPT>${CALL}</SCRIPT>">`,
  `<img srcset=x onerror=${CALL}>`,
  `<svg onload=${CALL}>`,
  `<svg/onload=${CALL}>`,
  `<svg><script>${CALL}</script></svg>`,
  `<svg><animate onbegin=${CALL} attributeName=x dur=1s>`,
  `<svg><set onbegin=${CALL} attributeName=x>`,
  `<svg><a xlink:href="javascript:${CALL}"><text>x</text></a></svg>`,
  `<svg><use href="data:image/svg+xml,<svg id=x onload=${CALL}>#x">`,
  `<math><mtext><img src=x onerror=${CALL}></mtext></math>`,
  `<math href="javascript:${CALL}">x</math>`,
  `<body onload=${CALL}>`,
  `<body onpageshow=${CALL}>`,
  `<iframe src="javascript:parent.${CALL}">`,
  `<iframe srcdoc="<script>parent.${CALL}</script>">`,
  `<iframe onload=${CALL}>`,
  `<object data="javascript:${CALL}">`,
  `<embed src="javascript:${CALL}">`,
  `<video src=x onerror=${CALL}>`,
  `<video><source onerror=${CALL}></video>`,
  `<audio src=x onerror=${CALL}>`,
  `<details open ontoggle=${CALL}>`,
  `<input autofocus onfocus=${CALL}>`,
  `<select autofocus onfocus=${CALL}>`,
  `<textarea autofocus onfocus=${CALL}>`,
  `<button autofocus onfocus=${CALL}>x`,
  `<a autofocus tabindex=1 onfocus=${CALL}>x`,
  `<marquee onstart=${CALL}>x`,
  `<style>@import "//x.example/x.css"</style>`,
  `<style onload=${CALL}></style>`,
  `<link rel=stylesheet href=//x.example/x.css onload=${CALL}>`,
  `<meta http-equiv=refresh content="0;url=javascript:${CALL}">`,
  `<base href="javascript:${CALL}//">`,
  `<form action="javascript:${CALL}"><button>x</button></form>`,
  `<isindex action="javascript:${CALL}" type=submit>`,
  `<div style="background:url(javascript:${CALL})">`,
  `<div style="animation:x" onanimationstart=${CALL}>`,
  `<div onpointerenter=${CALL}>x</div>`,
  `<x onclick=${CALL} tabindex=0 autofocus onfocus=${CALL}>x`,
  `<template><script>${CALL}</script></template>`,
  `<noscript><p title="</noscript><img src=x onerror=${CALL}>">`,
  `<frameset onload=${CALL}>`,
  `<portal src="javascript:${CALL}">`,
  `<dialog open onclose=${CALL}>`,
  `<p popover id=x ontoggle=${CALL}>`,
  `javascript:${CALL}`,
  `JaVaScRiPt:${CALL}`,
  `java\tscript:${CALL}`,
  `  javascript:${CALL}`,
  `javascript://%0a${CALL}`,
  `data:text/html,<script>${CALL}</script>`,
  `vbscript:${CALL}`,
  `"onmouseover="${CALL}"`,
  `'onfocus='${CALL}' autofocus='`,
  `" autofocus onfocus="${CALL}`,
  `\\"><script>${CALL}</script>`,
  `';${CALL};'`,
  `";${CALL};"`,
  `\`;${CALL};\``,
  `\${${CALL}}`,
  `{{constructor.constructor('${CALL}')()}}`,
  `<%= ${CALL} %>`,
  `#{${CALL}}`,
  `[[${CALL}]]`,
  `__proto__`,
  `constructor`,
  `toString`,
  `%3Cscript%3E${CALL}%3C/script%3E`,
  `&lt;script&gt;${CALL}&lt;/script&gt;`,
  `&#60;script&#62;${CALL}&#60;/script&#62;`,
  `\\u003cscript\\u003e${CALL}\\u003c/script\\u003e`,
  `＜script＞${CALL}＜/script＞`,
  `<script language=javascript>${CALL}</script>`,
  `<svg><style><img src=x onerror=${CALL}></style></svg>`,
  `+ADw-script+AD4-${CALL}+ADw-/script+AD4-`,
  `=HYPERLINK("javascript:${CALL}")`,
  `@SUM(1)|cmd`,
  `\u202e<script>${CALL}</script>`,
  `${"<b>".repeat(40)}<img src=x onerror=${CALL}>`,
];

await script("payloads", async (browser) => {
  expect(PAYLOADS.length === 100 && new Set(PAYLOADS).size === 100, "100 payloads", PAYLOADS.length);
  const { token, storage } = await setUp();

  // Where the API accepts any text: subjects, values, notes, reasons, texts of files, names of attributes, actions of a filter.
  const rules = "rules:\n- { id: merchant-plan, per: merchant, limit: 1/h }\n- { id: 'javascript:pwned', per: merchant, limit: 2/h }\n";
  const comments = PAYLOADS.map((payload) => `# ${payload.replace(/[\r\n]/g, " ")}\n`).join("");
  await publish(token, rules + comments, PAYLOADS[0]);
  await publish(token, rules.replace("2/h", "3/h") + comments, PAYLOADS[16]);
  // Attributes have no control characters.
  const plain = (payload) => payload.replaceAll("\t", "&Tab;");
  const lines = (item) => PAYLOADS.map((payload, number) => JSON.stringify(item(payload, number))).join("\n");
  const send = async (path, text, type) => {
    const response = await fetch(`${ADMIN}/v1${path}`, { method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": type }, body: text });
    expect(response.status === 200, `${path} accepts the payloads`, `${response.status} ${response.status === 200 ? "" : await response.text()}`);
    return response.json();
  };
  const reason = encodeURIComponent(PAYLOADS[16]);
  const rows = await send(`/overrides/import?reason=${reason}`, lines((payload) => ({ rule: "merchant-plan", subject: { merchant: payload }, terms: "5/h", note: payload })), "application/x-ndjson");
  const values = await send(`/attributes/import?reason=${reason}`, lines((payload) => ({ source: "merchant", subject: plain(payload), name: "tier", value: plain(payload) })), "application/x-ndjson");
  check(rows.changed === 100 && values.changed === 100, "100 payloads are subjects, notes and values", [rows, values]);
  for (const payload of PAYLOADS) {
    const named = await api("PUT", `/override?${new URLSearchParams({ domain: "default", rule: "merchant-plan", subject: JSON.stringify({ merchant: "m_1" }) })}`, { token, match: "*", body: { terms: "5/h", note: payload, reason: `${payload} x`.slice(0, 500) } });
    expect([200, 201].includes(named.status), "a payload is a reason", named.value);
  }
  // Names and ids that may have few characters take none of them.
  for (const payload of PAYLOADS.slice(0, 20)) {
    const user = await api("POST", "/users", { token, body: { name: payload, role: "viewer" } });
    expect(user.status === 400 || user.status === 422, "a payload is no name", user.status);
  }
  await done("POST", "/tokens", { token, body: { name: "--_@.+", role: "viewer", domains: PAYLOADS.slice(0, 50), reason: PAYLOADS[3] } });
  for (const payload of PAYLOADS) {
    for (let count = 0; count < 6; count += 1) await fetch(`${HTTP}/v1/check`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ attributes: { merchant: payload, [payload.slice(0, 60) || "x"]: payload } }) });
  }
  expect((await attempt({ merchant: PAYLOADS[0] })).allowed === false, "subjects that are payloads are denied", "");
  note("100 payloads are reasons, comments of files, domains of a token, and attributes of decisions");

  const made = await context(browser, { storage });
  const page = await made.newPage();
  await page.goto(`${ADMIN}/`);
  const dialogs = [];
  page.on("dialog", (dialog) => (dialogs.push(dialog.message()), dialog.dismiss()));
  let shown = 0;
  const look = async (name) => {
    const state = await page.evaluate(() => ({ pwned: "pwned" in window, alien: document.querySelectorAll("main script, main iframe, main object, main embed, main img, main [onerror], main [onload], main [onfocus], main [style*=javascript], a[href^=javascript i], a[href^=data i]").length, text: document.body.innerText }));
    expect(!state.pwned && dialogs.length === 0, `${name}: nothing has run`, dialogs);
    expect(state.alien === 0, `${name}: no element comes from a payload`, state.alien);
    expect(!page.url().startsWith("javascript") && page.url().startsWith(ADMIN), `${name}: the page stays`, page.url());
    if (PAYLOADS.some((payload) => payload.length > 12 && state.text.includes(payload.trim()))) shown += 1;
  };
  const addresses = [...PAGES.filter(([name]) => !["rule", "subject", "version"].includes(name)), ["version", "versions?number=2"], ["rule", "rule?domain=default&id=merchant-plan"], ["rule", `rule?domain=default&id=${encodeURIComponent("javascript:pwned")}`]];
  for (const [name, address] of addresses) {
    await open(page, ADMIN, address);
    await look(name);
  }
  expect(shown >= 7, "most pages show payloads, as text", shown);
  note(`${addresses.length} pages show payloads as text on ${shown} of them; nothing runs`);

  // Parameters of the fragment are text too, and each subject has a page.
  for (const payload of PAYLOADS) {
    await page.evaluate((hash) => void (location.hash = hash), `#/subject?${new URLSearchParams({ merchant: payload })}`);
    await page.waitForFunction(() => document.querySelector("main .page[data-page=subject] h1") && !document.querySelector("main .loading"));
    await look(`subject ${payload}`);
  }
  for (const address of ["rules?q=", "overrides?q=", "overrides?rule=", "attributes?q=", "audit?actor=", "audit?target=", "rule?domain=", "rule?id=", "versions?number=", "editor?path=", "editor?version=1&domain=default&id=", "alerts?state=", "access?tab=", "live?filter=", "nowhere?"]) {
    for (const payload of [PAYLOADS[0], PAYLOADS[16], PAYLOADS[66]]) {
      await page.evaluate((hash) => void (location.hash = hash), `#/${address}${encodeURIComponent(payload)}`);
      await page.waitForFunction(() => document.querySelector("main .page") && !document.querySelector("main .loading"));
      await look(`${address}${payload}`);
    }
  }
  note("payloads in addresses are text: 100 subjects, and three for each parameter of a page");

  // What is written by hand, and what an error quotes.
  await open(page, ADMIN, "editor");
  await page.getByRole("textbox", { name: /Rules in/ }).fill(`rules:\n- id: ${PAYLOADS[16]}\n  limit: ${PAYLOADS[0]}\n`);
  await page.locator(".editor-problems li").first().waitFor();
  await look("editor with payloads");
  await open(page, ADMIN, "audit");
  await page.getByRole("button", { name: /^Details/ }).first().click();
  await look("an entry of the audit log");
  const violations = made.problems.filter((problem) => /policy violation|Content.Security.Policy|TrustedHTML|TrustedScript/i.test(problem));
  check(violations.length === 0, "no violation of the policy, and no sink that Trusted Types would have blocked", violations);
  const foreign = made.requested.filter((url) => !url.startsWith(ADMIN) && !url.startsWith("data:") && !url.startsWith("blob:"));
  check(foreign.length === 0, "no request to another host", foreign);
});
