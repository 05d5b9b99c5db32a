// @ts-check
// Charts as SVG: lines, stacked areas, bars, sparklines, heat strips. Each is a figure with a sentence that says what it shows, a
// cursor for keyboard and pointer that is announced, and a table of the same numbers. None is drawn while the page is hidden.

import { clock, clockMinutes, dateTime, h, newId, put, rate, s, setVars, throttle } from "./core.js";
import { button, mark } from "./components.js";

/**
 * @typedef {{name: string, label: string, kind: string, values: (number | null)[]}} Series
 * @typedef {{at: number, text: string, href?: string}} Mark
 * @typedef {{start: number, step: number, series: Series[], marks?: Mark[]}} Data
 * @typedef {{title: string, form?: "line" | "area" | "bar", height?: number, format?: (value: number | null | undefined) => string,
 *   unit?: string, summary?: (data: Data) => string, legend?: boolean, hidesTitle?: boolean, log?: boolean,
 *   signal: AbortSignal}} Settings `signal` ends it with its page
 */

/** The most points of one series; the server sends no more than 1,440. */
const POINTS_MAX = 600;
/** Redraws at most this often, in ms. */
const REDRAW = 1000;

/**
 * A chart over time. Series with the kinds `allow`, `deny`, `shadow`, `local` have their hue and pattern; others are `c1` to `c6`.
 * With `form: "area"` series are stacked; a series of kind `shadow` is drawn as a line over them, because it counts nothing that passes.
 * @param {Settings} settings
 */
export function chart(settings) {
  const form = settings.form ?? "line";
  const height = settings.height ?? 200;
  const format = settings.format ?? rate;
  const id = newId("chart");
  const caption = h("figcaption", { class: "chart-caption", id: `${id}-caption` });
  const live = h("div", { class: "hidden", "aria-live": "polite" });
  const tip = h("div", { class: "chart-tip", hidden: true });
  const svg = s("svg", { class: "chart-svg", "aria-hidden": "true", focusable: "false" });
  const legend = h("div", { class: "legend" });
  const plot = h(
    "div",
    { class: "chart-plot", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": `${settings.title}: arrow keys move through the points`, "aria-describedby": caption.id, vars: { "--height": `${height}px` } },
    svg,
    tip,
  );
  const tableBox = h("div", { class: "chart-table", hidden: true });
  const tableButton = button("Show as table", toggleTable, { kind: "quiet", small: true, icon: "table", hidesLabel: true });
  tableButton.setAttribute("aria-expanded", "false");
  const element = h(
    "figure",
    { class: "chart", data: { form } },
    h("div", { class: "chart-head" }, h("div", { class: "chart-name" }, h("h2", { class: settings.hidesTitle ? "hidden" : undefined }, settings.title), settings.legend !== false && legend), tableButton),
    plot,
    caption,
    tableBox,
    live,
  );

  /** @type {Data} */
  let data = { start: 0, step: 1000, series: [] };
  /** The series as drawn: of at most POINTS_MAX points. */
  let drawn = data;
  /** @type {number | null} */
  let cursor = null;
  let width = 0;
  let top = 1;
  /** The lowest value of a logarithmic scale. */
  let bottom = 1;

  const margin = { left: 0, right: 0, top: 18, bottom: 22 };
  const redraw = throttle(() => {
    if (!document.hidden && element.isConnected) draw();
  }, REDRAW);
  const observer = new ResizeObserver(([entry]) => {
    const found = Math.round(entry.contentRect.width);
    if (found === width || found === 0) return;
    width = found;
    draw();
  });
  observer.observe(plot);
  document.addEventListener("visibilitychange", () => document.hidden || redraw(), { signal: settings.signal });
  settings.signal.addEventListener("abort", () => observer.disconnect());

  /** @param {number} index */
  const x = (index) => margin.left + (index * (width - margin.left - margin.right)) / Math.max(points() - 1, 1);
  /** @param {number} value */
  const y = (value) => margin.top + (1 - share(value)) * (height - margin.top - margin.bottom);
  /** The height of a value, from 0 to 1. @param {number} value */
  const share = (value) => (settings.log ? Math.max(0, Math.log(Math.max(value, bottom) / bottom) / Math.log(top / bottom)) : value / top);
  const points = () => drawn.series[0]?.values.length ?? 0;
  /** @param {number} index */
  const at = (index) => drawn.start + index * drawn.step;

  function draw() {
    if (width === 0) return;
    const n = points();
    const lines = drawn.series.filter((one) => form === "line" || one.kind === "shadow");
    const stacked = form === "line" ? [] : drawn.series.filter((one) => one.kind !== "shadow");
    const sums = Array.from({ length: n }, (_, index) => stacked.reduce((sum, one) => sum + (one.values[index] ?? 0), 0));
    const highest = Math.max(0, ...sums, ...lines.flatMap((one) => one.values.map((value) => value ?? 0)));
    const ticks = settings.log ? decades(lines.flatMap((one) => one.values)) : scale(highest, height < 120 ? 2 : 3);
    bottom = ticks[0] || 1;
    top = ticks[ticks.length - 1] || 1;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", String(width));
    svg.setAttribute("height", String(height));
    const grid = ticks.map((tick) =>
      s("g", { class: "grid" }, s("line", { x1: 0, x2: width, y1: y(tick), y2: y(tick) }), s("text", { x: 2, y: y(tick) - 4 }, tick === 0 ? "" : format(tick))),
    );
    const base = new Array(n).fill(0);
    const shapes = [];
    if (form === "bar") {
      const step = n > 1 ? x(1) - x(0) : width;
      for (const one of stacked) {
        const d = [];
        for (let index = 0; index < n; index += 1) {
          const value = one.values[index] ?? 0;
          if (value === 0) continue;
          const [from, to] = [y(base[index]), y(base[index] + value)];
          d.push(`M${px(x(index) - step * 0.4)} ${px(from)}V${px(to)}h${px(Math.max(step * 0.8, 1))}V${px(from)}Z`);
          base[index] += value;
        }
        shapes.push(...area(one.kind, d.join("")));
      }
    } else {
      for (const one of stacked) {
        const under = [...base];
        one.values.forEach((value, index) => {
          base[index] += value ?? 0;
        });
        let line = "";
        let filled = "";
        for (const [from, to] of runs(stacked, n)) {
          const at = Array.from({ length: to - from }, (_, offset) => from + offset);
          const up = at.map((index) => `${index > from ? "L" : "M"}${px(x(index))} ${px(y(base[index]))}`).join("");
          line += up;
          filled += `${up}${at.map((index) => `L${px(x(index))} ${px(y(under[index]))}`).reverse().join("")}Z`;
        }
        shapes.push(...area(one.kind, filled), s("path", { class: "stroke", data: { kind: one.kind }, d: line }));
      }
    }
    for (const one of lines) shapes.push(s("path", { class: "stroke line", data: { kind: one.kind }, d: path(one.values) }));
    put(svg, patterns(id), grid, shapes, marks(), axis(), s("g", { class: "cursor" }));
    drawCursor(false);
    drawLegend();
    const text = settings.summary?.(drawn) ?? summary(settings, drawn, format);
    if (caption.textContent !== text) caption.textContent = text;
    if (!tableBox.hidden) drawTable();
  }

  /** @param {string} kind @param {string} d */
  const area = (kind, d) => [s("path", { class: "area", data: { kind }, d }), s("path", { class: "pattern", data: { kind }, fill: `url(#${id}-${kind})`, d })];

  /** @param {(number | null)[]} values */
  function path(values) {
    let pen = "M";
    /** @type {string[]} */
    const parts = [];
    values.forEach((value, index) => {
      if (value === null) pen = "M";
      else {
        parts.push(`${pen}${px(x(index))} ${px(y(value))}`);
        // A single point between gaps is a dot.
        if (pen === "M" && (values[index + 1] ?? null) === null) parts.push("h.01");
        pen = "L";
      }
    });
    return parts.join("");
  }

  function marks() {
    const span = drawn.step * Math.max(points() - 1, 1);
    return (drawn.marks ?? [])
      .filter((one) => one.at >= drawn.start && one.at <= drawn.start + span)
      .map((one) => {
        const left = px(x((one.at - drawn.start) / drawn.step));
        return s("g", { class: "revision" }, s("title", null, `${dateTime(one.at)}: ${one.text}`), s("line", { x1: left, x2: left, y1: margin.top - 6, y2: height - margin.bottom }), s("path", { d: `M${left} ${margin.top - 8}l4 4-4 4-4-4Z` }));
      });
  }

  function axis() {
    const n = points();
    if (n === 0) return [];
    const span = drawn.step * n;
    const many = Math.max(2, Math.min(6, Math.floor(width / 110)));
    return Array.from({ length: many }, (_, index) => {
      const point = Math.round((index * (n - 1)) / (many - 1));
      const anchor = index === 0 ? "start" : index === many - 1 ? "end" : "middle";
      return s("text", { class: "axis", x: px(x(point)), y: height - 5, "text-anchor": anchor }, span > 600_000 ? clockMinutes(at(point)) : clock(at(point)));
    });
  }

  function drawLegend() {
    if (settings.legend === false) return;
    const index = cursor ?? points() - 1;
    const items = drawn.series.map((one) => h("span", { class: "legend-item" }, key(one.kind), one.label, h("strong", null, format(one.values[index]))));
    put(legend, items);
  }

  /** @param {boolean} announces */
  function drawCursor(announces) {
    const layer = svg.querySelector(".cursor");
    if (!layer) return;
    if (cursor === null || points() === 0) {
      put(layer);
      tip.hidden = true;
      return;
    }
    const index = Math.min(cursor, points() - 1);
    const left = x(index);
    let stackedTo = 0;
    const dots = drawn.series.map((one) => {
      const value = one.values[index];
      if (value === null || value === undefined) return null;
      const isLine = form === "line" || one.kind === "shadow";
      if (!isLine) stackedTo += value;
      return s("circle", { cx: px(left), cy: px(y(isLine ? value : stackedTo)), r: 3.5, data: { kind: one.kind } });
    });
    put(layer, s("line", { x1: px(left), x2: px(left), y1: margin.top, y2: height - margin.bottom }), dots.filter((dot) => dot !== null));
    const near = (drawn.marks ?? []).filter((one) => Math.abs(one.at - at(index)) <= drawn.step / 2);
    put(
      tip,
      h("strong", null, clock(at(index))),
      drawn.series.map((one) => h("span", null, key(one.kind), one.label, h("b", null, format(one.values[index])))),
      near.map((one) => h("span", { class: "tip-mark" }, one.text)),
    );
    tip.hidden = false;
    setVars(tip, { "--left": `${Math.round(left)}px` });
    tip.classList.toggle("flip", left > width / 2);
    if (announces) {
      const words = drawn.series.map((one) => `${one.label} ${format(one.values[index])}${settings.unit ?? ""}`).concat(near.map((one) => one.text));
      live.textContent = `${clock(at(index))}: ${words.join(", ")}`;
    }
  }

  /** @param {number | null} to @param {boolean} announces */
  function move(to, announces) {
    cursor = to === null ? null : Math.max(0, Math.min(points() - 1, to));
    drawCursor(announces);
    drawLegend();
  }

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    move(Math.round(((event.clientX - box.left) / Math.max(box.width, 1)) * (points() - 1)), false);
  });
  plot.addEventListener("pointerleave", () => move(null, false));
  plot.addEventListener("blur", () => move(null, false));
  plot.addEventListener("keydown", (event) => {
    const last = points() - 1;
    const from = cursor ?? last;
    const step = event.shiftKey ? 10 : 1;
    const to = { ArrowLeft: from - step, ArrowRight: from + step, Home: 0, End: last, PageUp: from - 30, PageDown: from + 30 }[event.key];
    if (event.key === "Escape") move(null, false);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    move(to, true);
  });

  function toggleTable() {
    tableBox.hidden = !tableBox.hidden;
    tableButton.setAttribute("aria-expanded", String(!tableBox.hidden));
    tableButton.title = tableBox.hidden ? "Show as table" : "Hide the table";
    tableButton.setAttribute("aria-label", tableButton.title);
    if (!tableBox.hidden) drawTable();
  }

  function drawTable() {
    // Newest first, and no more than one can read.
    const rows = Array.from({ length: points() }, (_, index) => points() - 1 - index).slice(0, 60);
    put(
      tableBox,
      h(
        "div",
        { class: "table-scroll short", tabindex: 0, role: "region", "aria-label": `${settings.title} as a table` },
        h(
          "table",
          { class: "dense" },
          h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), drawn.series.map((one) => h("th", { scope: "col", class: "numeric" }, one.label)))),
          h("tbody", null, rows.map((index) => h("tr", null, h("th", { scope: "row" }, clock(at(index))), drawn.series.map((one) => h("td", { class: "numeric" }, format(one.values[index])))))),
        ),
      ),
    );
  }

  return {
    element,
    /** New data; it is drawn at once, or a second after the last redraw. @param {Data} to */
    set(to) {
      data = to;
      drawn = sample(to);
      redraw();
    },
    data: () => data,
  };
}

/** At most POINTS_MAX points: each is the highest of those it stands for, so that no peak is lost. @param {Data} data @returns {Data} */
function sample(data) {
  const n = data.series[0]?.values.length ?? 0;
  const every = Math.ceil(n / POINTS_MAX);
  if (every <= 1) return data;
  const series = data.series.map((one) => ({
    ...one,
    values: Array.from({ length: Math.ceil(n / every) }, (_, index) => {
      const found = one.values.slice(index * every, (index + 1) * every).filter((value) => value !== null);
      return found.length === 0 ? null : Math.max(.../** @type {number[]} */ (found));
    }),
  }));
  return { ...data, step: data.step * every, series };
}

/** The ranges of points where anything is known. @param {Series[]} series @param {number} n @returns {[number, number][]} */
function runs(series, n) {
  /** @type {[number, number][]} */
  const found = [];
  let from = -1;
  for (let index = 0; index <= n; index += 1) {
    const isKnown = index < n && series.some((one) => one.values[index] !== null && one.values[index] !== undefined);
    if (isKnown && from < 0) from = index;
    if (!isKnown && from >= 0) {
      found.push([from, index]);
      from = -1;
    }
  }
  return found;
}

/** Round numbers from 0 to above the highest. @param {number} highest @param {number} many */
function scale(highest, many) {
  if (highest <= 0) return [0, 1];
  const raw = highest / many;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 2.5, 5, 10].find((factor) => factor * unit >= raw) ?? 10) * unit;
  return Array.from({ length: Math.ceil(highest / step) + 1 }, (_, index) => index * step);
}

/** Powers of ten from below the lowest to above the highest. @param {(number | null)[]} values */
function decades(values) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== null && value > 0));
  if (known.length === 0) return [1, 10];
  const from = Math.floor(Math.log10(Math.min(...known)));
  const to = Math.max(from + 1, Math.ceil(Math.log10(Math.max(...known))));
  return Array.from({ length: to - from + 1 }, (_, index) => 10 ** (from + index));
}

/** One decimal is enough for a pixel. @param {number} value */
const px = (value) => Math.round(value * 10) / 10;

/** The patterns that tell series apart without colour. @param {string} id */
function patterns(id) {
  /** @param {string} kind @param {number} size @param {string} d @param {string} [transform] */
  const one = (kind, size, d, transform) =>
    s("pattern", { id: `${id}-${kind}`, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: transform }, s("path", { class: "hatch", data: { kind }, d }));
  return s("defs", null, one("deny", 6, "M0 0V6", "rotate(45)"), one("local", 6, "M0 0H6"), one("shadow", 6, "M1 1h1"), one("c2", 7, "M0 0V7"), one("c3", 7, "M0 0V7", "rotate(-45)"), one("c4", 5, "M2 2h1"), one("c5", 7, "M0 0V7M0 0H7"));
}

/** The sample of a series in a legend. @param {string} kind */
export function key(kind) {
  return ["allow", "deny", "shadow", "local"].includes(kind) ? mark(kind) : s("svg", { class: "mark key", viewBox: "0 0 10 10", "aria-hidden": "true", data: { kind } }, s("rect", { x: 0.5, y: 0.5, width: 9, height: 9, rx: 2 }));
}

/** The sentence under a chart. @param {Settings} settings @param {Data} data @param {(value: any) => string} format */
function summary(settings, data, format) {
  const n = data.series[0]?.values.length ?? 0;
  if (n === 0) return "No data yet.";
  const span = data.step * n;
  const over = span >= 7_200_000 ? `${Math.round(span / 3_600_000)} hours` : `${Math.max(1, Math.round(span / 60_000))} minutes`;
  const parts = data.series.map((one) => {
    const known = /** @type {number[]} */ (one.values.filter((value) => value !== null));
    if (known.length === 0) return `${one.label} no data`;
    const last = one.values.findLast((value) => value !== null);
    return `${one.label} now ${format(last)}, at most ${format(Math.max(...known))}`;
  });
  return `Last ${over}${settings.unit ? `, ${settings.unit.trim()}` : ""}: ${parts.join("; ")}.`;
}

/**
 * A line without axes beside a number. @param {string} kind @param {string} label
 */
export function sparkline(kind, label) {
  const svg = s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label });
  const line = s("path", { class: "stroke", data: { kind }, "vector-effect": "non-scaling-stroke" });
  const area = s("path", { class: "area", data: { kind } });
  svg.append(area, line);
  const draw = throttle((/** @type {(number | null)[]} */ values) => {
    if (document.hidden) return;
    svg.classList.toggle("unknown", values.every((value) => value === null));
    const highest = Math.max(1, ...values.map((value) => value ?? 0));
    const at = values.map((value, index) => `${px((index * 100) / Math.max(values.length - 1, 1))} ${px(22 - ((value ?? 0) / highest) * 20)}`);
    line.setAttribute("d", at.length ? `M${at.join("L")}` : "");
    area.setAttribute("d", at.length ? `M${at.join("L")}L100 24L0 24Z` : "");
  }, REDRAW);
  return { element: svg, set: draw };
}

/**
 * Parts of a whole as one bar with a list.
 * @param {string} title
 */
export function shares(title) {
  const strip = h("div", { class: "strip", "aria-hidden": "true" });
  const list = h("ul", { class: "strip-list" });
  const caption = h("figcaption", { class: "hidden" });
  const element = h("figure", { class: "chart shares" }, strip, list, caption);
  return {
    element,
    /** @param {{label: string, kind: string, value: number, title?: string}[]} parts */
    set(parts) {
      const sum = parts.reduce((total, part) => total + part.value, 0);
      const share = (/** @type {number} */ value) => (sum === 0 ? 0 : Math.round((1000 * value) / sum) / 10);
      put(strip, parts.map((part) => h("span", { data: { kind: part.kind }, vars: { "--share": `${share(part.value)}%` } })));
      put(list, parts.map((part) => h("li", { title: part.title }, key(part.kind), h("span", null, part.label), h("span", { class: "faint" }, rate(part.value)), h("strong", null, sum === 0 ? "–" : `${share(part.value)} %`))));
      const text = sum === 0 ? `${title}: no data yet.` : `${title}: ${parts.map((part) => `${part.label} ${share(part.value)} %`).join(", ")}.`;
      if (caption.textContent !== text) caption.textContent = text;
    },
  };
}

/**
 * A heat strip: one cell for each band, darker for more; the number is in the cell.
 * @param {string} title
 * @param {{label: string, value: number, kind?: string}[]} cells
 */
export function heatStrip(title, cells) {
  const sum = cells.reduce((total, cell) => total + cell.value, 0);
  const words = cells.map((cell) => `${cell.label} ${sum ? Math.round((100 * cell.value) / sum) : 0} %`);
  return h(
    "figure",
    { class: "heat", title: sum ? `${title}: ${words.join(", ")}` : `${title}: no data yet` },
    cells.map((cell) => {
      const part = sum ? cell.value / sum : 0;
      return h("span", { class: part > 0.5 ? "cell full" : "cell", data: { kind: cell.kind ?? "c1" }, vars: { "--heat": `${Math.round(100 * Math.sqrt(part))}%` }, "aria-hidden": "true" });
    }),
    h("figcaption", { class: "hidden" }, sum ? `${title}: ${words.join(", ")}` : `${title}: no data yet`),
  );
}
