// All streams at a glance.

import { follow, request } from "./api.js";
import { smoothed, sparkline } from "./charts.js";
import { el, keyed, meter, setText } from "./dom.js";
import { count, milliseconds, percent, perSecond, plural, Rate } from "./format.js";
import { firstSteps } from "./steps.js";

const MOST_ROWS = 200;
const SHOW_EVERY = 250; // ms
const RANK = { damaged: 0, alarm: 1, ok: 2 };

const STATUS = {
  ok: ["●", "OK"],
  alarm: ["▲", "Drift alarm"],
  damaged: ["✕", "Damaged"],
};

export function statusOf(health) {
  const [shape, words] = STATUS[health.status] ?? STATUS.ok;
  return el("span", { class: `status ${health.status}` }, el("span", { class: "shape", "aria-hidden": "true" }, shape), words);
}

const highestDrift = (stream) => Math.max(0, ...Object.values(stream.health.drift));

// Title, explanation, and what rows are sorted by.
const COLUMNS = [
  { title: "Stream", by: (stream) => stream.id },
  { title: "Status", by: (stream) => [RANK[stream.health.status], stream.id] },
  { title: "Agreement", about: "Share of the last 200 answers that are the same as zero-shot's.", by: (stream) => stream.health.recent.agreement ?? -1 },
  { title: "Rejected", about: "Share of the last 200 samples that fit no class.", by: (stream) => -(stream.health.recent.reject_rate ?? -1) },
  { title: "Drift", about: "How near a drift alarm is.", by: (stream) => -highestDrift(stream) },
  { title: "Samples", about: "Samples answered and stored.", by: (stream) => -stream.n_seen },
  { title: "Queue", about: "Samples that wait.", by: (stream) => -stream.health.queue.samples },
  { title: "Latency", about: "Median and 99th percentile of the last requests.", by: (stream) => -(stream.health.latency_ms.p50 ?? -1) },
];

export function overview(root, session, { setConnection, signal }) {
  const streams = new Map();
  const rates = new Map();
  let sorted = 1;
  let showsAll = false;
  let due = null;

  const summary = el("p", { class: "summary" });
  const heading = el("h1", { tabindex: -1 }, "Streams");
  const filter = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: () => show() });
  const buttons = COLUMNS.map((column, i) =>
    el("button", { type: "button", title: column.about, onclick: () => { sorted = i; show(); } }, column.title));
  const headers = COLUMNS.map((column, i) => el("th", { scope: "col", class: i > 1 ? "number" : null }, buttons[i]));
  const rows = el("tbody", {});
  const table = el("table", { class: "streams" }, el("caption", { class: "hidden" }, "Streams and their health"), el("thead", {}, el("tr", {}, headers)), rows);
  const more = el("button", { type: "button", class: "plain", onclick: () => { showsAll = true; show(); } });
  const empty = el("section", { class: "empty card", hidden: true });
  root.replaceChildren(el("div", { class: "heading" }, el("div", {}, heading, summary), filter), table, more, empty);
  document.title = "zeroshift";

  function makeRow(stream) {
    const cells = {
      status: el("td", { "data-title": "Status" }),
      agreement: el("td", { class: "number wide", "data-title": "Agreement" }),
      rejected: el("td", { class: "number", "data-title": "Rejected" }),
      drift: el("td", { class: "number", "data-title": "Drift" }),
      samples: el("td", { class: "number", "data-title": "Samples" }),
      queue: el("td", { class: "number", "data-title": "Queue" }),
      latency: el("td", { class: "number", "data-title": "Latency" }),
    };
    const value = () => el("span", { class: "figure" });
    const parts = {
      trend: el("span", { class: "trend" }), agreement: value(), rejected: value(), drift: value(), samples: value(), queue: value(), latency: value(),
      level: meter("Drift"), rate: el("small", {}), p99: el("small", {}),
    };
    cells.agreement.append(parts.trend, parts.agreement);
    cells.rejected.append(parts.rejected);
    cells.drift.append(parts.level, parts.drift);
    cells.samples.append(parts.samples, parts.rate);
    cells.queue.append(parts.queue);
    cells.latency.append(parts.latency, parts.p99);
    const row = el("tr", {},
      el("th", { scope: "row" }, el("a", { href: `#/streams/${stream.id.split("/").map(encodeURIComponent).join("/")}` }, stream.id), el("small", {}, stream.method)),
      Object.values(cells));
    row.parts = { ...parts, status: cells.status };
    return row;
  }

  function updateRow(row, stream, range) {
    const { parts } = row;
    const { health } = stream;
    if (row.shownStatus !== `${health.status} ${health.fallback}`) {
      row.shownStatus = `${health.status} ${health.fallback}`;
      parts.status.replaceChildren(statusOf(health), health.fallback ? el("small", {}, "answers with zero-shot") : "");
    }
    parts.trend.replaceChildren(sparkline(smoothed(stream.trend), range));
    setText(parts.agreement, percent(health.recent.agreement));
    setText(parts.rejected, percent(health.recent.reject_rate));
    const drift = highestDrift(stream);
    parts.level.show(drift, health.status === "alarm");
    setText(parts.drift, percent(drift, 0));
    setText(parts.samples, count(stream.n_seen));
    setText(parts.rate, perSecond(rates.get(stream.id)?.value ?? null));
    setText(parts.queue, count(health.queue.samples));
    setText(parts.latency, milliseconds(health.latency_ms.p50));
    setText(parts.p99, health.latency_ms.p99 === null ? "" : `99%: ${milliseconds(health.latency_ms.p99)}`);
  }

  function show() {
    due = null;
    if (signal.aborted) return;
    const all = [...streams.values()];
    const wanted = filter.value.trim().toLowerCase();
    const found = all.filter((stream) => stream.id.toLowerCase().includes(wanted));
    const { by } = COLUMNS[sorted];
    const keys = new Map(found.map((stream) => [stream, [by(stream), stream.id].flat()]));
    found.sort((a, b) => compare(keys.get(a), keys.get(b)));
    headers.forEach((header, i) => (i === sorted ? header.setAttribute("aria-sort", i === 2 || i < 2 ? "ascending" : "descending") : header.removeAttribute("aria-sort")));
    const shown = showsAll ? found : found.slice(0, MOST_ROWS);
    const trends = shown.flatMap((stream) => smoothed(stream.trend));
    const [least, greatest] = trends.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [1, 0]);
    const range = { low: Math.min(least, greatest - 0.1), high: greatest };
    keyed(rows, shown, (stream) => stream.id, makeRow, (row, stream) => updateRow(row, stream, range));
    more.hidden = shown.length === found.length;
    setText(more, `Show all ${count(found.length)}`);
    table.hidden = !all.length;
    filter.hidden = all.length < 8;
    empty.hidden = Boolean(all.length);
    if (!all.length && !empty.childElementCount) empty.append(...firstSteps(session));
    setText(summary, all.length ? describe(all) : "");
    const alarms = all.filter((stream) => stream.health.status !== "ok").length;
    document.title = alarms ? `▲ ${alarms} – zeroshift` : "zeroshift";
  }

  function describe(all) {
    const number = (status) => all.filter((stream) => stream.health.status === status).length;
    const rate = [...rates.values()].reduce((sum, one) => sum + (one.value ?? 0), 0);
    const samples = all.reduce((sum, stream) => sum + stream.n_seen, 0);
    return [
      plural(all.length, "stream"),
      number("damaged") ? `${number("damaged")} damaged` : "",
      number("alarm") ? `${number("alarm")} with a drift alarm` : "",
      `${plural(samples, "sample")}${rate ? `, ${perSecond(rate)}` : ""}`,
    ].filter(Boolean).join(" · ");
  }

  function take(changed) {
    for (const stream of changed) {
      streams.set(stream.id, stream);
      if (!rates.has(stream.id)) rates.set(stream.id, new Rate());
      rates.get(stream.id).add(stream.n_seen);
    }
    due ??= setTimeout(show, SHOW_EVERY);
  }

  function drop(names) {
    for (const name of names) {
      streams.delete(name);
      rates.delete(name);
    }
  }

  async function refresh() {
    const { streams: found } = await request("v1/streams", { signal });
    const names = new Set(found.map((stream) => stream.id));
    drop([...streams.keys()].filter((name) => !names.has(name)));
    take(found);
  }

  // A stream that nothing is sent to has no events: its rate falls all the same.
  const idle = setInterval(() => take([...streams.values()]), 2000);
  signal.addEventListener("abort", () => { clearInterval(idle); clearTimeout(due); });

  return refresh().then(() => {
    show();
    follow("v1/events", {
      signal, refresh, onState: setConnection,
      onEvent: (name, content) => {
        if (name !== "streams") return;
        drop(content.deleted);
        take(content.streams);
      },
    });
    return heading;
  });
}

function compare(a, b) {
  for (let i = 0; i < a.length; i += 1) {
    if (a[i] < b[i]) return -1;
    if (a[i] > b[i]) return 1;
  }
  return 0;
}
