// One stream: what it answers, how that changes, and what needs attention.

import { follow, isRefusal, request, ServiceError, streamPath } from "./api.js";
import { Cursor, LineChart, placeOf, smoothed, sparkline, swatch } from "./charts.js";
import { ask, button, card, el, hidden, keyed, meter, note, notify, setText, svg } from "./dom.js";
import { bytes, clock, count, milliseconds, NONE, percent, perSecond, plural, Rate } from "./format.js";
import { statusOf } from "./overview.js";
import { cases, history, whatIf } from "./review.js";
import { sendSamples } from "./steps.js";

const NUMBERS_EVERY = 250; // ms
const STATISTICS_EVERY = 1500; // ms
const FEW_CLASSES = 12;
const MANY_CLASSES = 500;
const LATENCIES = 90;

const SIGNALS = {
  reject: ["reject score", "how little a sample resembles any class"],
  entropy: ["zero-shot entropy", "how undecided zero-shot is"],
};

const ON_DRIFT = {
  ignore: "This stream raises no alarms; the levels are only shown.",
  alarm: "An alarm is reported, and the stream continues to learn.",
  fallback: "An alarm makes the stream answer with zero-shot and learn nothing, until it is reset.",
};

export async function streamPage(root, session, id, { setConnection, signal }) {
  const at = (rest) => streamPath(id, rest);
  const load = () => Promise.all([request(at("/statistics"), { signal }), request(at("/snapshots"), { signal })]);
  const [stream, [statistics, snapshots]] = await Promise.all([request(at(""), { signal }), load()]);
  if (signal.aborted) return null;

  const context = { session, stream, at, signal, act, reload };
  const top = head(context);
  const parts = {
    tiles: tiles(), charts: charts(context), drift: drift(context), classes: classes(), history: history(context),
    cases: cases(context), whatIf: whatIf(context), settings: settings(context),
  };
  const column = (...names) => el("div", { class: "column" }, names.map((name) => parts[name].element));
  const waiting = el("section", { class: "card empty" }, sendSamples(session, id, stream.dimension));
  const body = el("div", { class: "grid" }, parts.tiles.element, parts.charts.element,
    column("drift", "classes", "history"), column("cases", "whatIf"));
  root.replaceChildren(top.element, waiting, body, parts.settings.element);

  const state = {};
  const rate = new Rate();
  let showDue = null;
  let reloadDue = null;
  let isLoading = false;
  let loadedAt = 0;

  function take(found, kept) {
    loadedAt = performance.now();
    const { health, n_seen: seq, epoch } = found;
    Object.assign(state, { statistics: found, snapshots: kept, health, seq, epoch });
    show();
  }

  function show() {
    clearTimeout(showDue);
    showDue = null;
    if (signal.aborted) return;
    rate.add(state.seq);
    waiting.hidden = state.seq > 0;
    body.hidden = !waiting.hidden;
    for (const part of [top, ...Object.values(parts)]) part.update?.(state, rate.value);
  }

  function showSoon() {
    showDue ??= setTimeout(show, NUMBERS_EVERY);
  }

  async function reload() {
    if (isLoading) return;
    isLoading = true;
    try {
      take(...await load());
    } finally {
      isLoading = false;
    }
  }

  function reloadSoon() {
    reloadDue ??= setTimeout(() => {
      reloadDue = null;
      reload().catch((error) => {
        if (!signal.aborted && isRefusal(error)) setConnection("refused", error); // else the next event tries again
      });
    }, Math.max(0, STATISTICS_EVERY - (performance.now() - loadedAt)));
  }

  // Do what a person asked for, and say how it went.
  async function act(pressed, work) {
    pressed.disabled = true;
    try {
      notify(await work());
      await reload();
    } catch (error) {
      if (!signal.aborted) notify(error.message, true);
    } finally {
      pressed.disabled = false;
    }
  }

  const idle = setInterval(showSoon, 2000); // the rate falls although no event comes
  signal.addEventListener("abort", () => {
    clearInterval(idle);
    clearTimeout(showDue);
    clearTimeout(reloadDue);
    for (const part of Object.values(parts)) part.stop?.();
  });

  take(statistics, snapshots);
  follow(at("/events"), {
    signal, refresh: reload, onState: setConnection,
    onEvent: (name, content) => {
      if (name === "deleted") {
        setConnection("refused", new ServiceError(404, "no_such_stream", `The stream ${id} was deleted.`));
        return;
      }
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
  const heading = el("h1", { tabindex: -1 }, stream.id);
  const [status, epoch, alarmed, damaged] = [el("span"), el("span"), el("p"), el("p")];
  const reset = button("Reset the alarm…", resetAlarm, { class: "primary" });
  const notice = (kind, label, shape, ...content) =>
    el("section", { class: `notice ${kind}`, "aria-label": label, hidden: true },
      el("span", { class: "shape", "aria-hidden": "true" }, shape), content);
  const alarm = notice("alarm", "Drift alarm", "▲", alarmed, session.may("admin") && reset);
  const damage = notice("damaged", "Damage", "✕", damaged);
  const about = ` · ${plural(stream.n_classes, "class", "classes")} · ${stream.dimension} dimensions · `;
  let shown = "";

  async function resetAlarm() {
    const answer = await ask({
      title: "Reset the drift alarm?",
      text: ["The next 256 samples become the new normal, and later ones are compared with them."],
      action: "Reset",
    });
    if (answer) await act(reset, async () => {
      await request(at("/drift/reset"), { method: "POST" });
      return "The alarm is reset.";
    });
  }

  function describe({ signal, seq, time }, fallsBack) {
    const [name] = SIGNALS[signal] ?? [signal];
    const what = `The mean ${name} has changed, noticed at sample ${count(seq)} (${clock(time)}).`;
    return fallsBack
      ? `${what} The stream answers with zero-shot and learns nothing until the alarm is reset.`
      : `${what} Look at the disagreements; then reset the alarm or roll back.`;
  }

  return {
    heading,
    element: el("div", {},
      el("nav", { "aria-label": "Where you are" }, el("a", { href: "#/" }, "← All streams")),
      el("div", { class: "heading" }, el("div", {},
        el("div", { class: "name" }, heading, status),
        el("p", { class: "summary" }, el("code", {}, stream.method), about, epoch))),
      damage, alarm),
    update({ health, epoch: number }) {
      setText(epoch, `epoch ${number}`);
      const key = JSON.stringify([health.status, health.alarm, health.failure, health.fallback]);
      if (key === shown) return;
      shown = key;
      status.replaceChildren(statusOf(health));
      document.title = `${health.status === "ok" ? "" : "▲ "}${stream.id} – zeroshift`;
      alarm.hidden = !health.alarm;
      damage.hidden = !health.failure;
      if (health.alarm) setText(alarmed, describe(health.alarm, health.fallback));
      if (health.failure) setText(damaged, health.failure);
    },
  };
}

// Six numbers

function tiles() {
  const latencies = [];
  let requests = -1;

  function tile(title) {
    const made = { value: el("p", { class: "number" }, NONE), first: note(), second: note(), trend: el("span") };
    made.element = el("div", { class: "tile" }, el("h2", {}, title),
      el("div", { class: "value" }, made.value, made.trend), made.first, made.second);
    return made;
  }

  const names = ["agreement", "confidence", "rejected", "accuracy", "samples", "latency"];
  const made = Object.fromEntries(names.map((name) => [name, tile(name[0].toUpperCase() + name.slice(1))]));

  function show(name, value, first, second) {
    setText(made[name].value, value);
    setText(made[name].first, first);
    setText(made[name].second, second);
  }

  // Of the time since the page was opened: the service keeps no history of it.
  function drawLatency({ p50, requests: number }) {
    if (p50 === null || (number === requests && number < 1000)) return;
    requests = number;
    latencies.push(p50);
    if (latencies.length > LATENCIES) latencies.shift();
    const drawn = sparkline(smoothed(latencies), { low: 0, high: Math.max(...latencies), width: 60, height: 22 });
    made.latency.trend.replaceChildren(drawn);
  }

  return {
    element: el("section", { class: "tiles", "aria-label": "Now" }, names.map((name) => made[name].element)),
    update({ health, statistics, seq }, rate) {
      const { recent, latency_ms: latency, queue } = health;
      const { samples: labels, accuracy, zero_shot_accuracy: zeroShot } = statistics.labelled;
      const last = `last ${plural(recent.samples, "sample")}`;
      show("agreement", percent(recent.agreement), last, `all: ${percent(health.agreement)}`);
      show("confidence", percent(recent.confidence), last, `zero-shot: ${percent(recent.zero_shot_confidence)}`);
      show("rejected", percent(recent.reject_rate), last, `all: ${percent(health.reject_rate)}`);
      if (!labels) show("accuracy", NONE, "no confirmed labels", "");
      else show("accuracy", percent(accuracy), plural(labels, "confirmed label"), `zero-shot: ${percent(zeroShot)}`);
      show("samples", count(seq), perSecond(rate), `${count(queue.samples)} of ${count(queue.limit)} wait`);
      show("latency", milliseconds(latency.p50), "median", `99%: ${milliseconds(latency.p99)}`);
      drawLatency(latency);
    },
  };
}

// What is known without labels, over time

const CHARTS = [
  {
    title: "Agreement", about: "Share of answers that are the same as zero-shot's.",
    series: [{ name: "same answer", key: "agreement", class: "adapted", now: (health) => health.recent.agreement }],
  },
  {
    title: "Confidence", about: "Mean probability of the predicted class.",
    series: [
      { name: "adapted", key: "confidence", class: "adapted", now: (health) => health.recent.confidence },
      {
        name: "zero-shot", key: "zero_shot_confidence", class: "zero-shot", dashed: true,
        now: (health) => health.recent.zero_shot_confidence,
      },
    ],
  },
  {
    title: "Doubt",
    about: "Samples that fit no class, and the entropy of zero-shot's answers (100%: every class equal).",
    series: [
      { name: "rejected", key: "reject_rate", class: "rejected", now: (health) => health.recent.reject_rate },
      { name: "zero-shot entropy", key: "entropy", class: "zero-shot", dashed: true },
    ],
  },
  {
    title: "What it has learned",
    about: "Order: how likely the next sample has the same class. Reliability: weight of what was learned.",
    needs: ["order", "reliability"],
    series: [
      { name: "order", key: "order", class: "order", exact: true, now: (health) => health.order },
      {
        name: "reliability", key: "reliability", class: "reliability", dashed: true, exact: true,
        now: (health) => health.reliability,
      },
    ],
  },
];

function charts({ stream }) {
  const cursor = new Cursor();
  const known = CHARTS.filter((one) => !one.needs || one.needs.some((name) => stream.health[name] !== null));
  const drawn = known.map((one) => new LineChart({ ...one, cursor }));
  const place = el("p", { class: "place" });
  const few = note("Lines begin with the second point; a point has 32 samples or more.");
  let standard = "";
  const showPlace = () => setText(place, cursor.point ? placeOf(cursor.point) : standard);
  cursor.watch(showPlace);
  return {
    element: card({ title: "Over time", action: place, kind: "charts" }, few,
      el("div", { class: "chart-grid" }, drawn.map((one) => one.element))),
    update({ statistics: { curve }, snapshots, health }) {
      // The last point is still open: with few samples it would look like a change.
      const isOpen = curve.length > 1 && curve.at(-1).n < curve.at(-2).n;
      const points = isOpen ? curve.slice(0, -1) : curve;
      const marks = snapshots.epochs.filter((one) => one.epoch > 0)
        .map((one) => ({ seq: one.start, kind: "epoch", text: `epoch ${one.epoch}` }));
      if (health.alarm) marks.unshift({ seq: health.alarm.seq, kind: "alarm", text: "▲ alarm" });
      for (const one of drawn) one.update(points, marks, health);
      const most = Math.round(Math.max(0, ...points.map((point) => point.n)));
      standard = points.length ? `Each point: mean of ${plural(most, "sample")} at most` : "";
      few.hidden = points.length > 1;
      showPlace();
    },
    stop: () => drawn.forEach((one) => one.stop()),
  };
}

// How near an alarm is

function drift({ stream }) {
  const rows = Object.entries(SIGNALS).map(([signal, [name, meaning]]) => {
    const [level, value, raised] = [meter(name), el("b", { class: "value" }), el("small", { class: "raised" })];
    const title = el("span", { class: "signal" }, name, el("small", {}, meaning), raised);
    return { signal, level, value, raised, element: el("li", {}, title, level, value) };
  });
  return {
    element: card(
      { title: "Drift", about: "How far the mean has moved from that of the first samples. 100% raises an alarm." },
      el("ul", { class: "signals" }, rows.map((row) => row.element)), note(ON_DRIFT[stream.on_drift])),
    update({ health }) {
      for (const row of rows) {
        const level = health.drift[row.signal] ?? 0;
        row.level.show(level, level >= 1);
        setText(row.value, percent(level, 0));
        const isAlarm = health.alarm?.signal === row.signal;
        setText(row.raised, isAlarm ? `▲ raised the alarm at sample ${count(health.alarm.seq)}` : "");
      }
    },
  };
}

// Classes: how often each is answered

function classes() {
  let showsMany = false;
  let last = [];
  const rows = el("tbody");
  const more = button("", () => {
    showsMany = !showsMany;
    show();
  });
  const bar = (kind, y, height) => svg("rect", { class: kind, x: 0, y, height, rx: 1.5 });
  const number = () => el("td", { class: "number" });
  const column = (kind, dashed) => el("th", { scope: "col", class: `number ${kind}` }, swatch(dashed), kind);

  function make() {
    const parts = {
      label: el("span", { class: "label" }), adapted: number(), zeroShot: number(),
      bars: [bar("adapted", 1, 7), bar("zero-shot", 10, 4)],
    };
    const drawing = svg("svg", { width: "100%", height: 15, "aria-hidden": "true" }, parts.bars);
    const row = el("tr", {},
      el("th", { scope: "row" }, parts.label), el("td", { class: "bars" }, drawing), parts.adapted, parts.zeroShot);
    row.parts = parts;
    return row;
  }

  const greatest = (one) => Math.max(one.adapted, one.zero_shot);

  function show() {
    const many = last.length > FEW_CLASSES;
    const sorted = many ? last.toSorted((a, b) => greatest(b) - greatest(a)) : last;
    const shown = sorted.slice(0, showsMany ? MANY_CLASSES : FEW_CLASSES);
    const most = Math.max(1, ...shown.map(greatest));
    keyed(rows, shown, (one) => one.label, make, ({ parts }, one) => {
      setText(parts.label, one.label);
      parts.label.title = one.label;
      setText(parts.adapted, count(one.adapted));
      setText(parts.zeroShot, count(one.zero_shot));
      parts.bars[0].setAttribute("width", `${(100 * one.adapted) / most}%`);
      parts.bars[1].setAttribute("width", `${(100 * one.zero_shot) / most}%`);
    });
    more.hidden = !many;
    setText(more, showsMany ? "Show fewer" : `Show ${count(Math.min(MANY_CLASSES, last.length))} classes`);
  }

  const title = el("th", { scope: "col" }, hidden("Class"));
  const titles = [title, el("td"), column("adapted", false), column("zero-shot", true)];
  return {
    element: card({ title: "Classes", about: "How often each class was answered." },
      el("table", { class: "classes" }, el("thead", {}, el("tr", {}, titles)), rows), more),
    update({ statistics }) {
      last = statistics.histogram;
      show();
    },
  };
}

// How it was made, and how it was recovered

function settings({ stream }) {
  const recovery = el("dd");
  const fact = (title, value) => [el("dt", {}, title), el("dd", {}, value)];
  const parameters = Object.entries(stream.parameters).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
  const { thumbnails, retain } = stream;
  const pictures = () => `the last ${count(thumbnails.count)}, up to ${bytes(thumbnails.bytes)}`;
  return {
    element: el("details", { class: "settings" }, el("summary", {}, "Settings and recovery"), el("dl", {},
      fact("Created", clock(stream.created)),
      fact("Parameters of the method", parameters.join(", ") || "the defaults"),
      fact("Logit scale", String(stream.logit_scale)),
      fact("Snapshots", `every ${plural(stream.snapshot_every, "sample")}; ${count(stream.keep_snapshots)} are kept`),
      fact("Log", retain === null ? "all samples are kept" : `the last ${plural(retain, "sample")} are kept`),
      fact("Thumbnails", thumbnails === null ? "none are kept" : pictures()),
      el("dt", {}, "Last recovery"), recovery)),
    update({ health: { recovery: found } }) {
      if (found.seconds === undefined) return setText(recovery, "not needed yet");
      const learned = `${plural(found.replayed, "sample")} learned again in ${found.seconds} s`;
      const list = (words, numbers) => (numbers.length ? ` ${words}: ${numbers.join(", ")}.` : "");
      const damaged = list("Damaged snapshots", found.damaged_snapshots);
      const unusable = list("Snapshots that could not be loaded", found.unusable_snapshots);
      setText(recovery, `${learned}; ${plural(found.differing, "answer")} differed.${damaged}${unusable}`);
    },
  };
}
