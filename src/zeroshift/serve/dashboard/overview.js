// All streams at a glance.

import { follow, request } from "./api.js";
import { smoothed, sparkline } from "./charts.js";
import { button, el, keyed, meter, setText } from "./dom.js";
import { count, milliseconds, percent, perSecond, plural, Rate } from "./format.js";
import { firstSteps } from "./steps.js";

const MOST_ROWS = 200;
const SHOW_EVERY = 250; // ms
const RANK = { damaged: 0, failed: 0, alarm: 1, ok: 2 };

const STATUS = {
  ok: ["●", "OK"],
  alarm: ["▲", "Drift alarm"],
  damaged: ["✕", "Damaged"],
  failed: ["✕", "Failed"],
};

export function statusOf({ status }) {
  const [shape, words] = STATUS[status];
  return el("span", { class: `status ${status}` }, el("span", { class: "shape", "aria-hidden": "true" }, shape), words);
}

const highestDrift = (stream) => Math.max(0, ...Object.values(stream.health.drift));

// Title, explanation, and what rows are sorted by: what needs attention comes first.
const COLUMNS = [
  ["Stream", "", (stream) => stream.id],
  ["Status", "", (stream) => RANK[stream.health.status]],
  ["Agreement", "Share of the last 200 answers equal to zero-shot's.", ({ health }) => health.recent.agreement ?? 2],
  ["Rejected", "Share of the last 200 samples that fit no class.", ({ health }) => -(health.recent.reject_rate ?? -1)],
  ["Drift", "How near a drift alarm is.", (stream) => -highestDrift(stream)],
  ["Samples", "Samples answered and stored.", (stream) => -stream.n_seen],
  ["Queue", "Samples that wait.", ({ health }) => -health.queue.samples],
  ["Latency", "Median and 99th percentile of the last requests.", ({ health }) => -(health.latency_ms.p50 ?? -1)],
];
const ASCENDING = 3; // columns before this one are sorted from low to high, the others from high to low

export function overview(root, session, { setConnection, signal }) {
  const streams = new Map();
  const rates = new Map();
  let sorted = 1;
  let showsAll = false;
  let due = null;

  const summary = el("p", { class: "summary" });
  const heading = el("h1", { tabindex: -1 }, "Streams");
  const label = "Filter by name";
  const filter = el("input", { type: "search", placeholder: label, "aria-label": label, oninput: () => show() });
  const headers = COLUMNS.map(([title, about], i) => {
    const sort = () => {
      sorted = i;
      show();
    };
    const attributes = { scope: "col", role: "columnheader", class: i > 1 ? "number" : null };
    return el("th", attributes, button(title, sort, { class: null, title: about }));
  });
  // A narrow window shows rows as cards; the roles say that it is a table all the same.
  const rows = el("tbody", { role: "rowgroup" });
  const table = el("table", { class: "streams", role: "table", "aria-label": "Streams and their health" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, headers)), rows);
  const more = button("", () => {
    showsAll = true;
    show();
  });
  const empty = el("section", { class: "empty card", hidden: true });
  root.replaceChildren(el("div", { class: "heading" }, el("div", {}, heading, summary), filter), table, more, empty);
  document.title = "zeroshift";

  function makeRow(stream) {
    const figures = ["agreement", "rejected", "drift", "samples", "queue", "latency"];
    const parts = {
      trend: el("span", { class: "trend" }), level: meter("Drift"), rate: el("small"), p99: el("small"),
      ...Object.fromEntries(figures.map((name) => [name, el("span", { class: "figure" })])),
    };
    const cell = (title, ...content) => el("td", { role: "cell", class: "number", "data-title": title }, content);
    parts.status = el("td", { role: "cell", "data-title": "Status" });
    const agreement = cell("Agreement", parts.trend, parts.agreement);
    agreement.classList.add("wide");
    const address = `#/streams/${stream.id.split("/").map(encodeURIComponent).join("/")}`;
    const name = [el("a", { href: address }, stream.id), el("small", {}, stream.method)];
    const row = el("tr", { role: "row" },
      el("th", { scope: "row", role: "rowheader" }, name), parts.status, agreement,
      cell("Rejected", parts.rejected), cell("Drift", parts.level, parts.drift),
      cell("Samples", parts.samples, parts.rate), cell("Queue", parts.queue),
      cell("Latency", parts.latency, parts.p99));
    row.parts = parts;
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
    setText(parts.rate, perSecond(rates.get(stream.id)?.value ?? null, "/s"));
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
    const [, , valueOf] = COLUMNS[sorted];
    found.sort((a, b) => compare(valueOf(a), valueOf(b)) || compare(a.id, b.id));
    for (const header of headers) header.removeAttribute("aria-sort");
    headers[sorted].setAttribute("aria-sort", sorted < ASCENDING ? "ascending" : "descending");
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
      number("failed") ? `${number("failed")} failed` : "",
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

  function replace(found) {
    const names = new Set(found.map((stream) => stream.id));
    drop([...streams.keys()].filter((name) => !names.has(name)));
    take(found);
  }

  const refresh = async () => replace((await request("v1/streams", { signal })).streams);

  // A stream that nothing is sent to has no events: its rate falls all the same.
  const idle = setInterval(() => take([...streams.values()]), 2000);
  signal.addEventListener("abort", () => { clearInterval(idle); clearTimeout(due); });

  return refresh().then(() => {
    show();
    follow("v1/events", {
      signal, refresh, onState: setConnection,
      onEvent: (name, content) => {
        if (name === "hello") return replace(content.streams);
        drop(content.deleted);
        take(content.streams);
      },
    });
    return heading;
  });
}

const compare = (a, b) => Number(a > b) - Number(a < b);
