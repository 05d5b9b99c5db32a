// @ts-check
// The text of rule files: where each rule is, edits that keep everything else byte for byte, and what may be written at a place.
// It reads lines, not YAML: the server decides what a file means.

/**
 * @typedef {{start: number, end: number, indent: number, isFlow: boolean, id: string, domain: string}} Item one rule: its lines from
 *   `start` up to before `end`, and the column of its keys
 * @typedef {{name: string, start: number, end: number}} Key one key of a rule with the lines of its value
 * @typedef {{label: string, insert: string, detail: string}} Completion
 * @typedef {{from: number, items: Completion[]}} Completions `from`: the offset of the word that they replace
 */

const COMMENT_OR_BLANK = /^\s*(#|$)/;
const KEY = /^("[^"]*"|'[^']*'|[^\s#:,{}[\]"'-][^:#{}[\]]*?)\s*:(?=\s|$)/;

/** @param {string} line */
const indentOf = (line) => line.length - line.trimStart().length;

/** A value as it was written, without its quotes. @param {string} text */
const plain = (text) => text.trim().replace(/\s+#.*$/, "").replace(/^(["'])(.*)\1$/, "$2");

/**
 * The rules of a file.
 * @param {string} text
 * @returns {Item[]}
 */
export function ruleItems(text) {
  const lines = text.split("\n");
  const head = lines.findIndex((line) => /^rules\s*:\s*(#.*)?$/.test(line));
  if (head < 0) return [];
  const domain = lines.map((line) => /^domain\s*:(.*)$/.exec(line)).find(Boolean);
  const fileDomain = domain ? plain(domain[1]) : "default";
  /** @type {Item[]} */
  const items = [];
  let dash = -1;
  for (let number = head + 1; number < lines.length; number += 1) {
    const line = lines[number];
    if (COMMENT_OR_BLANK.test(line)) continue;
    const indent = indentOf(line);
    const isItem = /^\s*-(\s|$)/.test(line);
    if (dash < 0 && isItem) dash = indent;
    if (indent === dash && isItem) {
      const start = /^\s*-\s*/.exec(line)?.[0].length ?? indent + 2;
      items.push({ start: number, end: number + 1, indent: start, isFlow: line.slice(start).startsWith("{"), id: "", domain: fileDomain });
    } else if (indent > dash && items.length > 0) {
      items[items.length - 1].end = number + 1;
    } else {
      break;
    }
  }
  for (const item of items) {
    for (const [name, value] of values(lines, item)) {
      if (name === "id") item.id = value;
      if (name === "domain") item.domain = value;
    }
  }
  return items;
}

/** The scalar values of the keys of a rule. @param {string[]} lines @param {Item} item @returns {[string, string][]} */
function values(lines, item) {
  if (item.isFlow) {
    const text = lines.slice(item.start, item.end).join(" ");
    return ["id", "domain"].flatMap((name) => {
      const found = new RegExp(`[{,]\\s*${name}\\s*:\\s*("[^"]*"|'[^']*'|[^,}\\s]+)`).exec(text);
      return found ? [/** @type {[string, string]} */ ([name, plain(found[1])])] : [];
    });
  }
  return itemKeys(lines, item).map(({ name, start }) => {
    const line = lines[start];
    return /** @type {[string, string]} */ ([name, plain(line.slice(line.indexOf(":", item.indent) + 1))]);
  });
}

/**
 * The keys of a rule that is written one key a line.
 * @param {string[]} lines
 * @param {Item} item
 * @returns {Key[]}
 */
export function itemKeys(lines, item) {
  /** @type {Key[]} */
  const keys = [];
  for (let number = item.start; number < item.end; number += 1) {
    const line = lines[number];
    const isFirst = number === item.start;
    const key = isFirst || indentOf(line) === item.indent ? KEY.exec(line.slice(item.indent)) : null;
    if (key && !COMMENT_OR_BLANK.test(line)) keys.push({ name: plain(key[1]), start: number, end: number + 1 });
    else if (keys.length > 0) keys[keys.length - 1].end = number + 1;
  }
  return keys;
}

/**
 * A rule of a file, by its id.
 * @param {string} text
 * @param {string} domain
 * @param {string} id
 */
export function findItem(text, domain, id) {
  return ruleItems(text).find((item) => item.id === id && item.domain === domain) ?? null;
}

/**
 * The text of a rule without the dash, its lines moved to the left edge.
 * @param {string} text
 * @param {Item} item
 */
export function itemText(text, item) {
  const lines = text.split("\n").slice(item.start, item.end);
  return lines.map((line, number) => (number === 0 ? line.slice(item.indent) : line.slice(Math.min(item.indent, indentOf(line))))).join("\n");
}

/** Lines of a rule as an item of a list. @param {string} body @param {number} dash the column of the dash */
function asItem(body, dash) {
  const space = " ".repeat(dash);
  const lines = body.replace(/\n+$/, "").split("\n");
  return lines.map((line, number) => (number === 0 ? `${space}- ${line}` : line && `${space}  ${line}`));
}

/** @param {string} text @param {Item} item @param {string[]} replacement */
function splice(text, item, replacement) {
  const lines = text.split("\n");
  lines.splice(item.start, item.end - item.start, ...replacement);
  return lines.join("\n");
}

/** @param {string} text @param {Item} item */
const dashOf = (text, item) => indentOf(text.split("\n")[item.start]);

/**
 * A rule with a key set to a short value.
 * @param {string} body the text of a rule, as of `itemText`
 * @param {string} name
 * @param {string} value
 */
export function withKey(body, name, value) {
  if (body.startsWith("{")) {
    const found = new RegExp(`([{,]\\s*${name}\\s*:\\s*)("[^"]*"|'[^']*'|[^,}\\s]+)`);
    if (found.test(body)) return body.replace(found, (_, before) => before + value);
    return body.replace(/,?\s*\}(\s*(?:#.*)?)$/, (_, rest) => `, ${name}: ${value} }${rest}`);
  }
  const lines = body.split("\n");
  const item = { start: 0, end: lines.length, indent: 0, isFlow: false, id: "", domain: "" };
  const key = itemKeys(lines, item).find((one) => one.name === name);
  if (key) lines.splice(key.start, key.end - key.start, `${name}: ${value}`);
  else lines.splice(itemKeys(lines, item)[0]?.end ?? 1, 0, `${name}: ${value}`);
  return lines.join("\n");
}

/** The longest id that a rule may have. */
const ID_MAX = 64;

/**
 * The file with one changed rule as a shadow: the live rule stays, and the changed one follows it, deciding and counting only.
 * @param {string} text
 * @param {Item} item
 * @param {string | null} live the text of the live rule; null: it is new
 */
export function asShadow(text, item, live) {
  const body = itemText(text, item);
  const dash = dashOf(text, item);
  if (live === null) return splice(text, item, asItem(withKey(body, "mode", "shadow"), dash));
  const id = `${item.id.slice(0, ID_MAX - 7)}:shadow`;
  return splice(text, item, [...asItem(live, dash), ...asItem(withKey(withKey(body, "id", id), "mode", "shadow"), dash)]);
}

/** What an experiment may do differently. */
const VARIANT_KEYS = ["algorithm", "limit", "by", "overrides", "min_interval", "lease_ttl", "shape", "calendar"];

/**
 * The file with one changed rule as an experiment of the live one.
 * @param {string} text
 * @param {Item} item
 * @param {string} live the text of the live rule
 * @param {string} share such as `10%`
 * @returns {{text: string} | {error: string}}
 */
export function asExperiment(text, item, live, share) {
  const body = itemText(text, item);
  const name = item.id;
  if (body.startsWith("{") || live.startsWith("{")) return { error: `${name} is written on one line; write one key a line` };
  const [before, after] = [keysOf(live), keysOf(body)];
  if (!before.has("per")) return { error: `${name} has no subjects (per), which an experiment splits` };
  const names = [...new Set([...before.keys(), ...after.keys()])];
  const changed = names.filter((key) => normal(before.get(key)) !== normal(after.get(key)));
  const other = changed.find((key) => !VARIANT_KEYS.includes(key));
  if (other) return { error: `${other} of ${name} changed; an experiment has other limits only` };
  const gone = changed.find((key) => !after.has(key));
  if (gone) return { error: `${gone} of ${name} was removed; an experiment cannot leave it out` };
  if (changed.length === 0) return { error: `${name} has no other limits` };
  const variant = changed.flatMap((key) => (after.get(key) ?? "").split("\n").map((line) => line && `  ${line}`));
  const whole = [...live.replace(/\n+$/, "").split("\n"), "experiment:", `  share: ${share}`, ...variant].join("\n");
  return { text: splice(text, item, asItem(whole, dashOf(text, item))) };
}

/** Each key of a rule with its lines. @param {string} body */
function keysOf(body) {
  const lines = body.split("\n");
  const keys = itemKeys(lines, { start: 0, end: lines.length, indent: 0, isFlow: false, id: "", domain: "" });
  return new Map(keys.map(({ name, start, end }) => [name, lines.slice(start, end).join("\n").replace(/\n+$/, "")]));
}

/** @param {string | undefined} text */
const normal = (text) => (text ?? "").replace(/#.*$/gm, "").replace(/\s+/g, " ").trim();

// Completion.

/**
 * What may be written at a place.
 * @param {any} schema the JSON Schema of rule files
 * @param {string} text
 * @param {number} offset of the caret
 * @param {boolean} isAsked true: also where nothing was typed yet
 * @returns {Completions | null}
 */
export function completions(schema, text, offset, isAsked) {
  const before = text.slice(0, offset).split("\n");
  const line = before[before.length - 1];
  const rest = text.slice(offset).split("\n", 1)[0];
  if (/^\s*#/.test(line) || /^[\w-]/.test(rest)) return null;
  const value = /^(\s*(?:-\s+)*)([\w.-]+)\s*:\s+([^\s{}[\]"'#]*)$/.exec(line);
  if (value) {
    const path = [...parents(before, value[1].length), value[2]];
    const found = valuesOf(schema, at(schema, path));
    return pick(found, value[3], offset, isAsked);
  }
  const key = /^(\s*(?:-\s+)*)([\w-]*)$/.exec(line);
  if (!key || (key[2] === "" && !isAsked)) return null;
  const column = key[1].length;
  const used = siblings(text.split("\n"), before.length - 1, column);
  const found = keysAt(schema, at(schema, parents(before, column))).filter(({ label }) => !used.has(label));
  return pick(found, key[2], offset, isAsked);
}

/** @param {Completion[]} found @param {string} word @param {number} offset @param {boolean} isAsked @returns {Completions | null} */
function pick(found, word, offset, isAsked) {
  const items = found.filter(({ label }) => label.startsWith(word) && (isAsked || word !== ""));
  const isDone = items.length === 1 && items[0].label === word;
  return items.length === 0 || isDone ? null : { from: offset - word.length, items: items.slice(0, COMPLETIONS_MAX) };
}

const COMPLETIONS_MAX = 50;

/** The keys around a place, the outermost first. @param {string[]} lines up to the line of the place @param {number} column */
function parents(lines, column) {
  /** @type {string[]} */
  const path = [];
  let inner = column;
  for (let number = lines.length - 2; number >= 0 && inner > 0; number -= 1) {
    const line = lines[number];
    if (COMMENT_OR_BLANK.test(line)) continue;
    const start = /^\s*(?:-\s+)*/.exec(line)?.[0].length ?? 0;
    const key = KEY.exec(line.slice(start));
    if (!key || start >= inner) continue;
    path.unshift(plain(key[1]));
    inner = start;
  }
  return path;
}

/** The other keys of the same mapping. @param {string[]} lines @param {number} number of the line @param {number} column */
function siblings(lines, number, column) {
  const used = new Set();
  for (const step of [-1, 1]) {
    if (step < 0 && /^\s*-\s/.test(lines[number])) continue;
    for (let other = number + step; other >= 0 && other < lines.length; other += step) {
      const line = lines[other];
      if (COMMENT_OR_BLANK.test(line)) continue;
      const start = /^\s*(?:-\s+)*/.exec(line)?.[0].length ?? 0;
      const isItem = start !== indentOf(line);
      if (start < column || (step > 0 && isItem && indentOf(line) < column)) break;
      const key = start === column ? KEY.exec(line.slice(start)) : null;
      if (key) used.add(plain(key[1]));
      if (step < 0 && isItem && start === column) break;
    }
  }
  return used;
}

/** A schema and its alternatives, without references. @param {any} root @param {any} schema @param {number} [depth] @returns {any[]} */
function alternatives(root, schema, depth = 0) {
  if (!schema || depth > 8) return [];
  const more = [...(schema.oneOf ?? []), ...(schema.anyOf ?? []), ...(schema.allOf ?? [])];
  if (typeof schema.$ref === "string") {
    const target = schema.$ref.slice(2).split("/").reduce((/** @type {any} */ node, /** @type {string} */ part) => node?.[part], root);
    more.push(target);
  }
  return [schema, ...more.flatMap((one) => alternatives(root, one, depth + 1))];
}

/** What is at a path; lists are passed through. @param {any} root @param {string[]} path @returns {any[]} */
function at(root, path) {
  let found = [root];
  for (const name of path) {
    found = found
      .flatMap((schema) => throughLists(root, schema))
      .flatMap((schema) => {
        if (schema.properties && Object.hasOwn(schema.properties, name)) return [schema.properties[name]];
        return typeof schema.additionalProperties === "object" ? [schema.additionalProperties] : [];
      });
  }
  return found;
}

/** @param {any} root @param {any} schema @returns {any[]} */
function throughLists(root, schema) {
  return alternatives(root, schema).flatMap((one) => (one.items ? [one, ...alternatives(root, one.items)] : [one]));
}

/** @param {any} root @param {any[]} schemas @returns {Completion[]} */
function keysAt(root, schemas) {
  /** @type {Map<string, Completion>} */
  const found = new Map();
  for (const one of schemas.flatMap((schema) => throughLists(root, schema))) {
    for (const [name, schema] of Object.entries(one.properties ?? {})) {
      if (!found.has(name)) found.set(name, { label: name, insert: `${name}: `, detail: descriptionOf(root, schema) });
    }
  }
  return [...found.values()];
}

/** @param {any} root @param {any[]} schemas @returns {Completion[]} */
function valuesOf(root, schemas) {
  /** @type {Map<string, Completion>} */
  const found = new Map();
  for (const one of schemas.flatMap((schema) => throughLists(root, schema))) {
    const all = [...(one.enum ?? []), ...(one.examples ?? []), ...(one.type === "boolean" ? [true, false] : [])];
    for (const value of all) {
      const text = String(value);
      const detail = value === one.default ? "the default" : "";
      if (!found.has(text)) found.set(text, { label: text, insert: text, detail });
    }
  }
  return [...found.values()];
}

/** @param {any} root @param {any} schema */
function descriptionOf(root, schema) {
  const text = alternatives(root, schema).map((one) => one.description).find(Boolean) ?? "";
  // The first sentence.
  return text.split(/(?<=\.)\s/)[0];
}

// Indentation.

/**
 * The line that Enter starts: as far to the right as the one before it, and two columns more below a key without a value.
 * @param {string} text
 * @param {number} offset
 */
export function newLine(text, offset) {
  const line = text.slice(text.lastIndexOf("\n", offset - 1) + 1, offset);
  const space = /^\s*/.exec(line)?.[0] ?? "";
  const opens = /:\s*$/.test(line) && !/^\s*#/.test(line);
  const inItem = opens && /^\s*-\s/.test(line) ? "  " : "";
  return `\n${space}${inItem}${opens ? "  " : ""}`;
}

/**
 * Lines moved by one step of two columns.
 * @param {string} text
 * @param {number} from
 * @param {number} to
 * @param {boolean} isBack
 * @returns {{start: number, end: number, insert: string, from: number, to: number}} what to replace, and the selection after it
 */
export function shiftLines(text, from, to, isBack) {
  const start = text.lastIndexOf("\n", from - 1) + 1;
  const last = to > from && text[to - 1] === "\n" ? to - 1 : to;
  const next = text.indexOf("\n", last);
  const end = next < 0 ? text.length : next;
  const lines = text.slice(start, end).split("\n");
  const moved = lines.map((line) => (isBack ? line.replace(/^ {1,2}/, "") : line && `  ${line}`));
  const first = moved[0].length - lines[0].length;
  const all = moved.join("\n").length - (end - start);
  return { start, end, insert: moved.join("\n"), from: Math.max(start, from + first), to: Math.max(start, to + all) };
}
