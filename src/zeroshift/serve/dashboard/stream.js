// One stream: what it answers, how that changes, and what can be done about it.

import { follow, request, ServiceError, streamPath } from "./api.js";
import { Cursor, LineChart, placeOf, smoothed, sparkline, swatch } from "./charts.js";
import { ask, el, keyed, meter, notify, setText, svg } from "./dom.js";
import { bytes, clock, count, milliseconds, NONE, percent, perSecond, plural, Rate } from "./format.js";
import { statusOf } from "./overview.js";
import { cases, history, whatIf } from "./review.js";
import { sendSamples } from "./steps.js";

const NUMBERS_EVERY = 250; // ms
const STATISTICS_EVERY = 1500; // ms
const ALL_CLASSES = 12;
const LATENCIES = 90;

const SIGNALS = {
  reject: ["Reject score", "how little a sample resembles any class"],
  entropy: ["Zero-shot entropy", "how undecided zero-shot is"],
};

const ON_DRIFT = {
  ignore: "This stream raises no alarms; the levels are only shown.",
  alarm: "An alarm is reported, and the stream continues to learn.",
  fallback: "An alarm makes the stream answer with zero-shot and learn nothing, until it is reset.",
};

export async function streamPage(root, session, id, { setConnection, signal }) {
  const at = (rest) => streamPath(id, rest);
  const [stream, statistics, snapshots] = await Promise.all([
    request(at(""), { signal }), request(at("/statistics"), { signal }), request(at("/snapshots"), { signal }),
  ]);
  if (signal.aborted) return null;

  const context = { session, stream, at, signal, reload: () => reload(), act };
  const parts = [head, tiles, charts, drift, classes, cases, history, whatIf, settings].map((make) => make(context));
  const [top, numbers, curves, driftCard, classCard, caseCard, historyCard, replayCard, about] = parts;
  const waiting = el("section", { class: "card empty" }, sendSamples(session, id, stream.dimension));
  const body = el("div", { class: "grid" },
    numbers.element, curves.element,
    el("div", { class: "column" }, driftCard.element, classCard.element, historyCard.element),
    el("div", { class: "column" }, caseCard.element, replayCard.element));
  root.replaceChildren(top.element, waiting, body, about.element);

  const state = { health: statistics.health, statistics, snapshots, seq: statistics.n_seen, epoch: statistics.epoch };
  const rate = new Rate();
  let numbersDue = null;
  let reloadDue = null;
  let loadedAt = performance.now();
  let isLoading = false;

  function show() {
    numbersDue = null;
    if (signal.aborted) return;
    rate.add(state.seq);
    waiting.hidden = state.seq > 0;
    body.hidden = !waiting.hidden;
    for (const part of parts) part.update?.(state, rate.value);
  }

  const showSoon = () => { numbersDue ??= setTimeout(show, NUMBERS_EVERY); };

  async function reload() {
    if (isLoading) return;
    isLoading = true;
    try {
      const [found, kept] = await Promise.all([
        request(at("/statistics"), { signal }), request(at("/snapshots"), { signal }),
      ]);
      Object.assign(state, { statistics: found, snapshots: kept, health: found.health, seq: found.n_seen, epoch: found.epoch });
      show();
    } finally {
      isLoading = false;
      loadedAt = performance.now();
    }
  }

  function reloadSoon() {
    if (reloadDue) return;
    const wait = Math.max(0, STATISTICS_EVERY - (performance.now() - loadedAt));
    reloadDue = setTimeout(() => {
      reloadDue = null;
      reload().catch((error) => { if (!signal.aborted && error.status !== 0) setConnection("refused", error); });
    }, wait);
  }

  // Do something that a person asked for; what it says if it worked, or why it did not.
  async function act(button, work) {
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
    try {
      const message = await work();
      if (message) notify(message);
      await reload();
    } catch (error) {
      if (!signal.aborted) notify(error.message, true);
    } finally {
      button.disabled = false;
      button.removeAttribute("aria-busy");
    }
  }

  const idle = setInterval(showSoon, 2000);
  signal.addEventListener("abort", () => {
    for (const timer of [idle, numbersDue, reloadDue]) clearTimeout(timer);
    for (const part of parts) part.stop?.();
  });

  show();
  follow(at("/events"), {
    signal, refresh: reload, onState: setConnection,
    onEvent: (name, content) => {
      if (name === "deleted") return setConnection("refused", new ServiceError(404, "no_such_stream", `The stream ${id} was deleted.`));
      if (name === "samples") {
        Object.assign(state, { seq: content.last, epoch: content.epoch, health: content.health });
        showSoon();
      }
      reloadSoon();
    },
  });
  return top.heading;
}

// The name, the status, and what needs attention

function head({ session, stream, at, act }) {
  const status = el("span", {});
  const heading = el("h1", { tabindex: -1 }, stream.id);
  const epoch = el("span", {});
  const words = el("p", {});
  const reset = el("button", { type: "button", class: "primary", onclick: () => resetAlarm(reset, { at, act }) }, "Reset the alarm…");
  const alarm = el("section", { class: "notice alarm", "aria-label": "Drift alarm", hidden: true },
    el("span", { class: "shape", "aria-hidden": "true" }, "▲"), words, session.may("admin") ? reset : null);
  const failure = el("p", {});
  const damage = el("section", { class: "notice damaged", "aria-label": "Damage", hidden: true },
    el("span", { class: "shape", "aria-hidden": "true" }, "✕"), failure);
  const element = el("div", {},
    el("nav", { "aria-label": "Where you are" }, el("a", { href: "#/" }, "← All streams")),
    el("div", { class: "heading" }, el("div", {}, el("div", { class: "name" }, heading, status),
      el("p", { class: "summary" }, el("code", {}, stream.method), ` · ${plural(stream.n_classes, "class", "classes")} · ${stream.dimension} dimensions · `, epoch))),
    damage, alarm);
  let shown = "";
  return {
    element, heading,
    update({ health, epoch: number }) {
      setText(epoch, `epoch ${number}`);
      const key = JSON.stringify([health.status, health.alarm, health.failure, health.fallback]);
      if (key === shown) return;
      shown = key;
      status.replaceChildren(statusOf(health));
      document.title = `${health.status === "ok" ? "" : "▲ "}${stream.id} – zeroshift`;
      alarm.hidden = !health.alarm;
      if (health.alarm) {
        const [name] = SIGNALS[health.alarm.signal] ?? [health.alarm.signal];
        setText(words, `The mean ${name.replace(/^[A-Z]/, (letter) => letter.toLowerCase())} has changed, noticed at sample ${count(health.alarm.seq)} (${clock(health.alarm.time)}). ` +
          (health.fallback ? "The stream answers with zero-shot and learns nothing until the alarm is reset." : "Look at the disagreements; then reset the alarm or roll back."));
      }
      damage.hidden = !health.failure;
      if (health.failure) setText(failure, `The stored data of this stream is damaged: ${health.failure}. Roll back to a snapshot, or restore a backup.`);
    },
  };
}

async function resetAlarm(button, { at, act }) {
  const answer = await ask({
    title: "Reset the drift alarm?",
    text: ["The next 256 samples become the new normal, and later ones are compared with them."],
    action: "Reset",
  });
  if (answer) await act(button, async () => {
    await request(at("/drift/reset"), { method: "POST" });
    return "The alarm is reset.";
  });
}

// Six numbers

function tiles() {
  const latencies = [];
  let requests = -1;
  const tile = (title) => {
    const [value, first, second, extra] = [el("p", { class: "number" }, NONE), el("p", { class: "note" }), el("p", { class: "note" }), el("span", { class: "trend" })];
    return { value, first, second, extra, element: el("div", { class: "tile" }, el("h2", {}, title), el("div", { class: "value" }, value, extra), first, second) };
  };
  const made = Object.fromEntries(Object.entries({
    agreement: "Agreement", confidence: "Confidence", rejected: "Rejected", accuracy: "Accuracy",
    samples: "Samples", latency: "Latency",
  }).map(([name, title]) => [name, tile(title)]));
  const show = (name, value, first, second) => {
    setText(made[name].value, value);
    setText(made[name].first, first);
    setText(made[name].second, second);
  };
  return {
    element: el("section", { class: "tiles", "aria-label": "Now" }, Object.values(made).map((one) => one.element)),
    update({ health, statistics, seq }, rate) {
      const { recent, latency_ms: latency, queue } = health;
      const { labelled } = statistics;
      const last = `last ${plural(recent.samples, "sample")}`;
      show("agreement", percent(recent.agreement), last, `all: ${percent(health.agreement)}`);
      show("confidence", percent(recent.confidence), last, `zero-shot: ${percent(recent.zero_shot_confidence)}`);
      show("rejected", percent(recent.reject_rate), last, `all: ${percent(health.reject_rate)}`);
      if (labelled.samples) show("accuracy", percent(labelled.accuracy), plural(labelled.samples, "confirmed label"), `zero-shot: ${percent(labelled.zero_shot_accuracy)}`);
      else show("accuracy", NONE, "no confirmed labels", "");
      show("samples", count(seq), perSecond(rate), `${count(queue.samples)} of ${count(queue.limit)} wait`);
      show("latency", milliseconds(latency.p50), "median", `99%: ${milliseconds(latency.p99)}`);
      if (latency.p50 !== null && (latency.requests !== requests || requests === 1000)) {
        requests = latency.requests;
        latencies.push(latency.p50);
        if (latencies.length > LATENCIES) latencies.shift();
        made.latency.extra.replaceChildren(sparkline(smoothed(latencies), { low: 0, high: Math.max(...latencies), width: 60, height: 22 }));
      }
    },
  };
}

// What is known without labels, over time

const CHARTS = [
  {
    title: "Agreement", note: "Share of answers that are the same as zero-shot's.",
    series: [{ name: "same answer", key: "agreement", class: "adapted", now: (health) => health.recent.agreement }],
  },
  {
    title: "Confidence", note: "Mean probability of the predicted class.",
    series: [
      { name: "adapted", key: "confidence", class: "adapted", now: (health) => health.recent.confidence },
      { name: "zero-shot", key: "zero_shot_confidence", class: "zero-shot", dashed: true, now: (health) => health.recent.zero_shot_confidence },
    ],
  },
  {
    title: "Doubt", note: "Samples that fit no class, and the entropy of zero-shot's answers (100%: every class equal).",
    series: [
      { name: "rejected", key: "reject_rate", class: "rejected", now: (health) => health.recent.reject_rate },
      { name: "zero-shot entropy", key: "entropy", class: "zero-shot", dashed: true },
    ],
  },
  {
    title: "What it has learned", note: "Order: how likely the next sample has the same class. Reliability: weight of what was learned.",
    needs: ["order", "reliability"],
    series: [
      { name: "order", key: "order", class: "order", now: (health) => health.order },
      { name: "reliability", key: "reliability", class: "reliability", dashed: true, now: (health) => health.reliability },
    ],
  },
];

function charts({ stream }) {
  const cursor = new Cursor();
  const known = CHARTS.filter((one) => !one.needs || one.needs.some((name) => stream.health[name] !== null));
  const drawn = known.map((one) => new LineChart({ ...one, cursor }));
  const place = el("output", { class: "place" });
  let standard = "";
  cursor.watch(() => setText(place, cursor.point ? placeOf(cursor.point) : standard));
  const few = el("p", { class: "note" }, "The first points come after 32 samples.");
  return {
    element: el("section", { class: "card charts wide" }, el("div", { class: "card-title" }, el("h2", {}, "Over time"), place), few,
      el("div", { class: "chart-grid" }, drawn.map((one) => one.element))),
    update({ statistics, snapshots, health }) {
      const { curve } = statistics;
      const last = curve.at(-1);
      // The last point is still open: with few samples it would look like a change.
      const points = curve.length > 1 && last.n < curve.at(-2).n ? curve.slice(0, -1) : curve;
      few.hidden = points.length > 1;
      const epochs = snapshots.epochs.filter((one) => one.epoch > 0).map((one) => ({ seq: one.start, kind: "epoch", text: `epoch ${one.epoch}` }));
      const marks = health.alarm ? [{ seq: health.alarm.seq, kind: "alarm", text: "▲ alarm" }, ...epochs] : epochs;
      for (const one of drawn) one.update(points, marks, health);
      standard = points.length ? `Each point: mean of ${plural(Math.round(Math.max(...points.map((point) => point.n))), "sample")} at most` : "";
      if (!cursor.point) setText(place, standard);
    },
    stop: () => drawn.forEach((one) => one.resizing.disconnect()),
  };
}

// How near an alarm is

function drift({ stream }) {
  const rows = Object.fromEntries(Object.entries(SIGNALS).map(([signal, [name, meaning]]) => {
    const [level, value, raised] = [meter(`${name}: level`), el("b", { class: "value" }), el("small", { class: "raised" })];
    return [signal, { level, value, raised, element: el("li", {}, el("span", {}, name, el("small", {}, meaning), raised), level, value) }];
  }));
  return {
    element: el("section", { class: "card" }, el("div", { class: "card-title" }, el("h2", {}, "Drift")),
      el("p", { class: "note" }, "How far the mean has moved from that of the first samples. At 100% an alarm is raised."),
      el("ul", { class: "signals" }, Object.values(rows).map((one) => one.element)),
      el("p", { class: "note" }, ON_DRIFT[stream.on_drift])),
    update({ health }) {
      for (const [signal, row] of Object.entries(rows)) {
        const level = health.drift[signal] ?? 0;
        const isAlarm = health.alarm?.signal === signal;
        row.level.show(level, level >= 1);
        setText(row.value, percent(level, 0));
        setText(row.raised, isAlarm ? `▲ raised the alarm at sample ${count(health.alarm.seq)}` : "");
      }
    },
  };
}

// Classes: how often each is answered

function classes() {
  let showsAll = false;
  let last = [];
  const rows = el("tbody", {});
  const more = el("button", { type: "button", class: "plain", onclick: () => { showsAll = !showsAll; show(); } });
  const bar = (kind) => svg("rect", { class: kind, x: 0, height: kind === "adapted" ? 7 : 4, y: kind === "adapted" ? 1 : 10, rx: 1.5 });

  function make() {
    const parts = { adapted: bar("adapted"), zeroShot: bar("zero-shot"), label: el("span", { class: "label" }), answers: el("td", { class: "number" }), zero: el("td", { class: "number" }) };
    const row = el("tr", {}, el("th", { scope: "row" }, parts.label), el("td", { class: "bars" }, svg("svg", { width: "100%", height: 15, "aria-hidden": "true" }, parts.adapted, parts.zeroShot)), parts.answers, parts.zero);
    row.parts = parts;
    return row;
  }

  function show() {
    const many = last.length > ALL_CLASSES;
    const shown = many ? last.toSorted((a, b) => Math.max(b.adapted, b.zero_shot) - Math.max(a.adapted, a.zero_shot)) : last;
    const limited = showsAll ? shown : shown.slice(0, ALL_CLASSES);
    const most = Math.max(1, ...limited.map((one) => Math.max(one.adapted, one.zero_shot)));
    keyed(rows, limited, (one) => one.label, make, ({ parts }, one) => {
      setText(parts.label, one.label);
      setText(parts.answers, count(one.adapted));
      setText(parts.zero, count(one.zero_shot));
      parts.adapted.setAttribute("width", `${(100 * one.adapted) / most}%`);
      parts.zeroShot.setAttribute("width", `${(100 * one.zero_shot) / most}%`);
    });
    more.hidden = !many;
    setText(more, showsAll ? "Show fewer" : `Show all ${count(last.length)} classes`);
  }

  return {
    element: el("section", { class: "card" }, el("div", { class: "card-title" }, el("h2", {}, "Classes")),
      el("p", { class: "note" }, "How often each class was answered."),
      el("table", { class: "classes" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "hidden" }, "Class")), el("td", {}),
          el("th", { scope: "col", class: "number adapted" }, swatch(false), "adapted"), el("th", { scope: "col", class: "number zero-shot" }, swatch(true), "zero-shot"))),
        rows), more),
    update({ statistics }) {
      last = statistics.histogram;
      show();
    },
  };
}

// How it was made, and how it was recovered

function settings({ stream }) {
  const recovery = el("dd", {});
  const fact = (title, value) => [el("dt", {}, title), el("dd", {}, value)];
  const parameters = Object.entries(stream.parameters).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ");
  return {
    element: el("details", { class: "settings" }, el("summary", {}, "Settings and recovery"),
      el("dl", {},
        fact("Created", clock(stream.created)), fact("Parameters of the method", parameters || "the defaults"), fact("Logit scale", String(stream.logit_scale)),
        fact("Snapshots", `every ${plural(stream.snapshot_every, "sample")}; ${count(stream.keep_snapshots)} are kept`),
        fact("Log", stream.retain === null ? "all samples are kept" : `the last ${plural(stream.retain, "sample")} are kept`),
        fact("Thumbnails", stream.thumbnails === null ? "none are kept" : `the last ${count(stream.thumbnails.count)}, up to ${bytes(stream.thumbnails.bytes)}`),
        el("dt", {}, "Last recovery"), recovery)),
    update({ health: { recovery: found } }) {
      const damaged = found.damaged_snapshots?.length ? ` Damaged snapshots: ${found.damaged_snapshots.join(", ")}.` : "";
      setText(recovery, found.seconds === undefined ? "not needed yet" :
        `${plural(found.replayed, "sample")} learned again in ${found.seconds} s; ${plural(found.differing, "answer")} differed.${damaged}`);
    },
  };
}
