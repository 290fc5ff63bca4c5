// Small charts as SVG, drawn at the size that they have on the screen.

import { el, note, setText, svg } from "./dom.js";
import { clock, count, percent } from "./format.js";

const HEIGHT = 148;
const EDGE = { left: 40, right: 10, top: 14, bottom: 22 };

// Each value as the mean of up to five neighbours.
export function smoothed(values) {
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - 2), i + 3);
    return near.reduce((sum, value) => sum + value, 0) / near.length;
  });
}

// A line as small as a word. `low` and `high` are those of all lines next to each other, so that they can be compared.
export function sparkline(values, { low, high, width = 112, height = 28 }) {
  const viewBox = `0 0 ${width} ${height}`;
  const drawing = svg("svg", { class: "sparkline", width, height, viewBox, "aria-hidden": "true" });
  if (values.length < 2) return drawing;
  const range = Math.max(high - low, 1e-9);
  const x = (i) => 2 + (i * (width - 7)) / (values.length - 1);
  const y = (value) => height - 3 - ((value - low) / range) * (height - 6);
  const path = values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  drawing.append(
    svg("path", { d: path }),
    svg("circle", { cx: x(values.length - 1), cy: y(values.at(-1)), r: 2.4 }),
  );
  return drawing;
}

// The place that is looked at, shared by the charts of a page.
export class Cursor {
  #watching = new Set();
  point = null;

  watch(callback) {
    this.#watching.add(callback);
  }

  set(point) {
    if (point?.seq === this.point?.seq) return;
    this.point = point;
    for (const callback of this.#watching) callback();
  }
}

// Lines over the samples of a stream. `series`: name, key of its value in a point, class, whether it is dashed, and how
// its present value is found in the health of the stream. A pale line has the points, the strong one the means of five
// neighbours; where a series is `exact`, there is one line.
// Points are looked at with the pointer, or with the arrow keys while the chart has the focus.
export class LineChart {
  #points = [];
  #marks = [];
  #now = [];
  #settings;
  #values = [];
  #drawing;
  #content;
  #scale = null;
  #resizing;

  constructor(settings) {
    this.#settings = settings;
    const { title, about, series, cursor } = settings;
    this.#values = series.map(() => el("b", { class: "value" }));
    const legend = series.map((one, i) =>
      el("li", { class: one.class }, swatch(one.dashed), el("span", {}, one.name), this.#values[i]));
    this.#content = svg("g");
    this.#drawing = svg("svg", {
      class: "lines", tabindex: 0, role: "slider", "aria-label": `${title} over time`, height: HEIGHT,
      onpointermove: (event) => this.#point(event), onpointerdown: (event) => this.#point(event),
      onpointerleave: () => cursor.set(null), onblur: () => cursor.set(null), onkeydown: (event) => this.#key(event),
    }, this.#content);
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, el("h3", {}, title), note(about), el("ul", { class: "legend" }, legend)),
      this.#drawing);
    cursor.watch(() => this.#mark());
    this.#resizing = new ResizeObserver(() => this.#draw());
    this.#resizing.observe(this.element);
  }

  stop() {
    this.#resizing.disconnect();
  }

  // Points as the service sends them, and marks: seq, kind ("epoch" or "alarm"), text.
  update(points, marks, health) {
    this.#points = points;
    this.#marks = marks;
    this.#now = this.#settings.series.map((one) => one.now?.(health) ?? recentMean(points, one.key));
    this.#draw();
  }

  #draw() {
    const width = this.element.clientWidth;
    const points = this.#points;
    if (!width || !points.length) return;
    this.#drawing.setAttribute("width", width);
    this.#drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const { series } = this.#settings;
    const values = points.flatMap((point) => series.map((one) => point[one.key]));
    const ticks = ticksOf(Math.min(...values), Math.max(...values));
    const [low, high] = [ticks[0], ticks.at(-1)];
    const [first, last] = [points[0].seq - points[0].n, points.at(-1).seq];
    const x = (seq) => EDGE.left + ((seq - first) / Math.max(1, last - first)) * (width - EDGE.left - EDGE.right);
    const y = (value) => HEIGHT - EDGE.bottom - ((value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
    this.#scale = { x, y };
    const right = width - EDGE.right;
    const bottom = HEIGHT - EDGE.bottom;
    const parts = [];
    const line = (kind, x1, y1, x2, y2) => parts.push(svg("line", { class: kind, x1, y1, x2, y2 }));
    const write = (text, at, height, anchor, kind = "") =>
      parts.push(svg("text", { class: `tick ${kind}`, x: at, y: height, "text-anchor": anchor }, text));
    for (const tick of ticks) {
      line("grid", EDGE.left, y(tick), right, y(tick));
      write(percent(tick, 0), EDGE.left - 7, y(tick) + 3.5, "end");
    }
    for (const seq of countTicks(first, last, width)) {
      const anchor = x(seq) > right - 20 ? "end" : x(seq) < EDGE.left + 20 ? "start" : "middle";
      write(count(seq), x(seq), HEIGHT - 5, anchor);
    }
    let written = -Infinity;
    for (const mark of this.#marks.filter((one) => one.seq >= first && one.seq <= last)) {
      const at = x(mark.seq);
      line(`mark ${mark.kind}`, at, EDGE.top - 4, at, bottom);
      if (Math.abs(at - written) < 56) continue;
      const isLast = at > right - 50;
      write(mark.text, at + (isLast ? -4 : 4), EDGE.top - 3, isLast ? "end" : "start", `mark-text ${mark.kind}`);
      written = at;
    }
    const stretches = stretchesOf(points);
    const place = (point, value, i) => `${i ? "L" : "M"}${x(point.seq).toFixed(1)} ${y(value).toFixed(1)}`;
    const lineOf = (valueOf) =>
      stretches.flatMap((stretch) => stretch.map((point, i) => place(point, valueOf(stretch, i), i))).join("");
    for (const one of series.toReversed()) {
      const exact = (stretch, i) => stretch[i][one.key];
      const smooth = one.exact ? exact : (stretch, i) => meanOf(stretch.slice(Math.max(0, i - 2), i + 3), one.key);
      if (!one.exact) parts.push(svg("path", { class: `line pale ${one.class}`, d: lineOf(exact) }));
      parts.push(svg("path", { class: `line ${one.class} ${one.dashed ? "dashed" : ""}`, d: lineOf(smooth) }));
      const end = stretches.at(-1);
      const cy = y(smooth(end, end.length - 1));
      parts.push(svg("circle", { class: `dot ${one.class}`, cx: x(end.at(-1).seq), cy, r: 2.8 }));
    }
    this.#content.replaceChildren(...parts);
    this.#mark();
  }

  #mark() {
    const { cursor, series } = this.#settings;
    const points = this.#points;
    if (!this.#scale || !points.length) return;
    const looked = points.find((point) => point.seq === cursor.point?.seq);
    const shown = looked ?? points.at(-1);
    series.forEach((one, i) => setText(this.#values[i], percent(looked ? looked[one.key] : this.#now[i])));
    this.#drawing.setAttribute("aria-valuemin", Math.round(points[0].seq));
    this.#drawing.setAttribute("aria-valuemax", Math.round(points.at(-1).seq));
    this.#drawing.setAttribute("aria-valuenow", Math.round(shown.seq));
    const values = series.map((one) => `${one.name} ${percent(shown[one.key])}`).join(", ");
    this.#drawing.setAttribute("aria-valuetext", `up to sample ${count(Math.round(shown.seq))}: ${values}`);
    this.#content.querySelector(".cursor")?.remove();
    if (!looked) return;
    const { x, y } = this.#scale;
    const at = x(looked.seq);
    this.#content.append(svg("g", { class: "cursor" },
      svg("line", { x1: at, x2: at, y1: EDGE.top - 4, y2: HEIGHT - EDGE.bottom }),
      series.map((one) => svg("circle", { class: `dot ${one.class}`, cx: at, cy: y(looked[one.key]), r: 4 }))));
  }

  #point(event) {
    if (!this.#scale) return;
    const at = event.clientX - this.#drawing.getBoundingClientRect().left;
    const distance = (point) => Math.abs(this.#scale.x(point.seq) - at);
    this.#settings.cursor.set(this.#points.reduce((best, point) => (distance(point) < distance(best) ? point : best)));
  }

  #key(event) {
    const { cursor } = this.#settings;
    const points = this.#points;
    if (!points.length) return;
    const here = cursor.point ? points.findIndex((point) => point.seq === cursor.point.seq) : -1;
    const end = points.length - 1;
    const at = here < 0 ? end : here;
    const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: end };
    if (event.key === "Escape") cursor.set(null);
    else if (event.key in steps) cursor.set(points[Math.min(end, Math.max(0, steps[event.key]))]);
    else return;
    event.preventDefault();
  }
}

export const swatch = (dashed) =>
  svg("svg", { class: "swatch", width: 16, height: 8, viewBox: "0 0 16 8", "aria-hidden": "true" },
    svg("path", { class: dashed ? "dashed" : "", d: "M1 4H15" }));

// What the cursor is on, in words.
export function placeOf(point) {
  const [first, last] = [Math.round(point.seq - point.n + 1), Math.round(point.seq)];
  return `Samples ${count(first)} to ${count(last)}, ${clock(point.time)}`;
}

// Points without a gap between them. There is one after a rollback: what came before it is no longer part of the curve.
function stretchesOf(points) {
  const found = [];
  points.forEach((point, i) => {
    if (i && point.seq - point.n <= points[i - 1].seq + 0.5) found.at(-1).push(point);
    else found.push([point]);
  });
  return found;
}

const meanOf = (points, key) =>
  points.reduce((sum, point) => sum + point.n * point[key], 0) / points.reduce((sum, point) => sum + point.n, 0);

// The mean over the last points that have 200 samples.
function recentMean(points, key) {
  let [at, n] = [points.length, 0];
  while (at > 0 && n < 200) n += points[--at].n;
  return points.length ? meanOf(points.slice(at), key) : null;
}

// Round numbers around the values, at least 0.1 apart in all, so that noise does not look like a change.
function ticksOf(least, greatest) {
  const middle = (least + greatest) / 2;
  const low = Math.max(0, Math.min(least, middle - 0.05));
  const high = Math.min(1, Math.max(greatest, middle + 0.05));
  const step = [0.02, 0.05, 0.1, 0.2, 0.25].find((one) => (high - low) / one <= 4) ?? 0.25;
  const start = Math.floor(low / step + 1e-9);
  const end = Math.max(start + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: end - start + 1 }, (_, i) => (start + i) * step);
}

function countTicks(first, last, width) {
  const wanted = Math.max(2, Math.floor(width / 110));
  const rough = (last - first) / wanted;
  const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
  const step = Math.max(1, [1, 2, 5, 10].find((one) => one * power >= rough) * power);
  const ticks = [];
  for (let seq = Math.ceil(first / step) * step; seq <= last; seq += step) ticks.push(seq);
  return ticks;
}
