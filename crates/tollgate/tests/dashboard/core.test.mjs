// Links and texts, without a browser.
import assert from "node:assert/strict";
import test from "node:test";
import { linkedSubject, subjectLink } from "../../src/ui/core.js";

const read = (/** @type {string} */ href) => linkedSubject(new URLSearchParams(href.slice(href.indexOf("?"))));

test("the link of a subject keeps its domain, whatever its attributes are named", () => {
  for (const [domain, attributes] of [
    ["default", { merchant: "m_42" }],
    ["shop", { merchant: "m 42&domain=x", endpoint: "/v1/charges" }],
    ["shop", { domain: "example.org", user: "u" }],
    ["default", { domain: "example.org" }],
    ["shop", { "attribute.domain": "a", domain: "b" }],
  ]) {
    assert.deepEqual(read(subjectLink(domain, attributes)), { domain, attributes });
  }
  assert.equal(subjectLink("default", { merchant: "m_42" }), "#/subject?merchant=m_42");
  assert.deepEqual(read(subjectLink("", { user: "u" })), { domain: "default", attributes: { user: "u" } });
});
