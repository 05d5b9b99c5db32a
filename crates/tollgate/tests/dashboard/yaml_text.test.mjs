// The text of rule files, without a browser.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { asExperiment, asShadow, completions, findItem, itemText, newLine, ruleItems, shiftLines, withKey } from "../../src/ui/yaml_text.js";

const schema = JSON.parse(readFileSync(new URL("../../../core/src/rules/schema/schema.json", import.meta.url), "utf8"));

const FILE = `# plans
domain: shop
rules:
- id: plan         # the plan
  per: merchant
  limit: 100/min
  by:
    tier:
      free: 10/min

# the second
- { id: search, per: [user], limit: 10/s }
- per: user
  domain: other
  id: "plan"
  limit: [10/s, 100/min]
`;

test("rules are found in every form", () => {
  const found = ruleItems(FILE).map(({ id, domain, start, end, isFlow }) => [domain, id, start, end, isFlow]);
  assert.deepEqual(found, [
    ["shop", "plan", 3, 9, false],
    ["shop", "search", 11, 12, true],
    ["other", "plan", 12, 16, false],
  ]);
  assert.deepEqual(ruleItems("rules: []\n"), []);
  assert.deepEqual(ruleItems(""), []);
  assert.deepEqual(ruleItems("rules:\n    - limit: 1/s\n      id: a\nx: 1\n").map(({ id, start, end }) => [id, start, end]), [["a", 1, 3]]);
});

test("the text of a rule stands at the left edge", () => {
  assert.equal(itemText(FILE, findItem(FILE, "other", "plan")), 'per: user\ndomain: other\nid: "plan"\nlimit: [10/s, 100/min]');
  assert.equal(findItem(FILE, "default", "plan"), null);
});

test("a key is set where it is, or after the first", () => {
  assert.equal(withKey("id: a\nmode: enforce\nlimit: 1/s", "mode", "shadow"), "id: a\nmode: shadow\nlimit: 1/s");
  assert.equal(withKey("id: a\nlimit: 1/s", "mode", "shadow"), "id: a\nmode: shadow\nlimit: 1/s");
  assert.equal(withKey("{ id: a, limit: 1/s }", "mode", "shadow"), "{ id: a, limit: 1/s, mode: shadow }");
  assert.equal(withKey("{ id: a, mode: enforce, limit: 1/s } # x", "mode", "shadow"), "{ id: a, mode: shadow, limit: 1/s } # x");
});

test("a new rule becomes a shadow, and a changed one follows the live one", () => {
  const item = findItem(FILE, "shop", "search");
  assert.equal(asShadow(FILE, item, null), FILE.replace("limit: 10/s }", "limit: 10/s, mode: shadow }"));
  const text = "rules:\n- id: plan\n  limit: 60/min\n- id: z\n  limit: 1/s\n";
  assert.equal(
    asShadow(text, findItem(text, "default", "plan"), "id: plan\nlimit: 100/min\n"),
    "rules:\n- id: plan\n  limit: 100/min\n- id: plan:shadow\n  mode: shadow\n  limit: 60/min\n- id: z\n  limit: 1/s\n",
  );
});

test("an experiment has the limits that changed, and refuses everything else", () => {
  const text = "rules:\n- id: plan\n  per: merchant\n  algorithm: sliding_log\n  limit: 60/min\n";
  const item = findItem(text, "default", "plan");
  const live = "id: plan\nper: merchant\nlimit: 100/min\n";
  assert.deepEqual(asExperiment(text, item, live, "10%"), {
    text: "rules:\n- id: plan\n  per: merchant\n  limit: 100/min\n  experiment:\n    share: 10%\n    limit: 60/min\n    algorithm: sliding_log\n",
  });
  for (const [other, error] of [
    ["id: plan\nper: user\nlimit: 100/min\n", /per of plan changed/],
    ["id: plan\nlimit: 100/min\n", /no subjects/],
    ["id: plan\nper: merchant\nlimit: 60/min\nalgorithm:   sliding_log # the same\n", /no other limits/],
    ["id: plan\nper: merchant\nlimit: 60/min\nmin_interval: 1s\n", /min_interval of plan was removed/],
    ["{ id: plan, per: merchant, limit: 60/min }", /one key a line/],
  ]) {
    assert.match(asExperiment(text, item, other, "10%").error, error);
  }
});

/** The labels at the `|` of a text. */
const at = (text, isAsked = false) => {
  const offset = text.indexOf("|");
  return completions(schema, text.replace("|", ""), offset, isAsked)?.items.map(({ label }) => label) ?? [];
};

test("completions are what the schema has at the place", () => {
  assert.deepEqual(at("ru|"), ["rules"]);
  assert.deepEqual(at("rules:\n- id: a\n  alg|"), ["algorithm"]);
  assert.deepEqual(at("rules:\n- id: a\n  algorithm: sliding|"), ["sliding_log", "sliding_counter"]);
  assert.deepEqual(at("rules:\n- id: a\n  mode: |", true), ["enforce", "shadow", "disabled"]);
  assert.deepEqual(at("rules:\n- id: a\n  shape: t|"), ["true"]);
  assert.deepEqual(at("rules:\n- id: a\n  experiment:\n    sh|"), ["share", "shape"]);
  assert.deepEqual(at("rules:\n- id: a\n  cost:\n  - wh|"), ["when"]);
  assert.deepEqual(at("rules:\n- id: a\n  limit: un|"), ["unlimited"]);
  assert.deepEqual(at("domain: x\n|", true), ["rules"]);
});

test("keys that are there are not offered, and comments and words in between have none", () => {
  const keys = at("rules:\n- id: a\n  |\n  per: x\n- id: b\n  mode: shadow\n", true);
  assert.ok(!keys.includes("id") && !keys.includes("per"), String(keys));
  assert.ok(keys.includes("mode") && keys.includes("limit"), String(keys));
  assert.deepEqual(at("rules:\n- id: a\n  # al|"), []);
  assert.deepEqual(at("rules:\n- id: a\n  al|gorithm: x"), []);
  assert.deepEqual(at("rules:\n- id: a\n  |", false), []);
  assert.deepEqual(at("rules:\n- id: a\n  mode: shadow|"), []);
});

test("Enter keeps the indentation, and goes in below a key", () => {
  assert.equal(newLine("  per: x", 8), "\n  ");
  assert.equal(newLine("  by:", 5), "\n    ");
  assert.equal(newLine("- by:", 5), "\n    ");
  assert.equal(newLine("a: 1\n# x:", 9), "\n");
});

test("Tab and Shift-Tab move lines by two columns", () => {
  const text = "a\n  b\n\nc\n";
  assert.deepEqual(shiftLines(text, 0, 7, false), { start: 0, end: 6, insert: "  a\n    b\n", from: 2, to: 11 });
  assert.deepEqual(shiftLines(text, 2, 5, true), { start: 2, end: 5, insert: "b", from: 2, to: 3 });
  assert.deepEqual(shiftLines("a", 1, 1, true), { start: 0, end: 1, insert: "a", from: 1, to: 1 });
});
