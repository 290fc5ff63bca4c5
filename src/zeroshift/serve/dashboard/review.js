// What a person does with a stream: confirm labels, roll back, and try another method.

import { request, send } from "./api.js";
import { swatch } from "./charts.js";
import { ask, button, card, el, hidden, keyed, note, notify, setText } from "./dom.js";
import { bytes, clock, count, percent, plural } from "./format.js";

const CASES = 10;
const REJECTED_ABOVE = 0.5;
const MOVED_MS = 350;

// Samples that zero-shot answers differently; a person can say who is right

export function cases({ stream, session, at, act, signal, reload }) {
  const mayLabel = session.may("write");
  const images = new Map();
  let limit = CASES;
  let all = [];
  let held = null; // what is shown while somebody uses the list
  let movedAt = 0;

  const list = el("ul", { class: "cases" });
  const newer = button("Show newer", () => showFrom(limit), { hidden: true });
  const more = button("Show more", () => showFrom(limit + 20));
  const relearn = button("Learn again with the labels…", learnAgain);
  const none = note("None yet: every answer is the same as zero-shot's.");
  const advice = " Choose the right label of a sample to confirm it: accuracy is measured on these.";

  function make(one) {
    const choice = (kind, label, score) => {
      const name = el("span", { class: "label" }, label);
      const content = [swatch(kind === "zero-shot"), name, el("small", {}, percent(score, 0))];
      if (!mayLabel) return el("span", { class: `choice ${kind}`, title: label }, content);
      const title = `Confirm that sample ${count(one.seq)} is: ${label}`;
      return button(content, () => confirm(row, label), { class: `choice ${kind}`, title });
    };
    const rejected = one.reject > REJECTED_ABOVE ? "fits no class" : null;
    const about = [`#${count(one.seq)}`, one.key, clock(one.time), rejected].filter(Boolean).join(" · ");
    const mayBeOther = mayLabel && stream.classes.length > 2;
    const parts = {
      picture: stream.thumbnails && el("div", { class: "picture" }),
      adapted: choice("adapted", one.label, one.score),
      zeroShot: choice("zero-shot", one.zero_shot, one.zero_shot_score),
      confirmed: el("span", { class: "confirmed" }),
    };
    const row = el("li", {}, parts.picture, el("div", { class: "choices" },
      parts.adapted, parts.zeroShot, mayBeOther && otherLabel(one, (label) => confirm(row, label)),
      el("p", { class: "about" }, about, parts.confirmed)));
    row.parts = parts;
    return row;
  }

  // A list of all classes, which gets its options when it is used: there may be thousands.
  function otherLabel(one, choose) {
    const fill = () => {
      if (select.options.length > 1) return;
      select.append(...stream.classes.map((name) => el("option", { value: name }, name)));
    };
    const select = el("select", {
      "aria-label": `Another label for sample ${count(one.seq)}`, onfocus: fill, onpointerdown: fill,
      onchange: () => select.value && choose(select.value),
    }, el("option", { value: "" }, "Other…"));
    return select;
  }

  function update(row, one) {
    row.one = one;
    const { picture, adapted, zeroShot, confirmed } = row.parts;
    for (const [choice, label] of [[adapted, one.label], [zeroShot, one.zero_shot]]) {
      choice.classList.toggle("right", one.confirmed === label);
      if (mayLabel) choice.setAttribute("aria-pressed", one.confirmed === label);
    }
    row.classList.toggle("is-confirmed", one.confirmed !== null);
    setText(confirmed, one.confirmed === null ? "" : ` · ✓ confirmed: ${one.confirmed}`);
    if (picture && one.thumbnail && !picture.wanted) {
      picture.wanted = true;
      loadPicture(picture, one);
    }
  }

  async function loadPicture(picture, one) {
    try {
      const content = await (await send(one.thumbnail.replace(/^\//, ""), { signal })).blob();
      images.set(one.seq, URL.createObjectURL(content));
      picture.append(el("img", { src: images.get(one.seq), alt: `Sample ${count(one.seq)}` }));
    } catch { /* it was deleted meanwhile; the row says enough without it */ }
  }

  function remove(row) {
    if (images.has(row.one.seq)) URL.revokeObjectURL(images.get(row.one.seq));
    images.delete(row.one.seq);
  }

  async function confirm(row, label) {
    if (performance.now() - movedAt < MOVED_MS) return; // the row came under the finger by chance
    const { one } = row;
    try {
      await request(at("/labels"), { method: "POST", body: { labels: [{ seq: one.seq, label }] } });
      one.confirmed = label;
      update(row, one);
      await reload();
    } catch (error) {
      if (!signal.aborted) notify(error.message, true);
    }
  }

  async function learnAgain() {
    const answer = await ask({
      title: "Learn again with the confirmed labels?",
      text: [
        "A new epoch begins: the stream learns its log again, with the confirmed labels as examples.",
        "Samples wait until that is done.",
      ],
      action: "Learn again",
    });
    if (answer) await act(relearn, async () => {
      const made = await request(at("/relearn"), { method: "POST" });
      const learned = `${plural(made.samples, "sample")} learned again with ${plural(made.labels, "label")}`;
      return `Epoch ${made.epoch} began: ${learned}.`;
    });
  }

  function show() {
    const known = new Map(all.map((one) => [one.seq, one]));
    const shown = held ? held.map((one) => known.get(one.seq) ?? one) : all.slice(0, limit);
    if (shown[0]?.seq !== list.firstElementChild?.one.seq) movedAt = performance.now();
    keyed(list, shown, (one) => one.seq, make, update, remove);
    newer.hidden = !held || all[0]?.seq === held[0]?.seq;
    more.hidden = all.length <= limit;
    none.hidden = all.length > 0;
  }

  function showFrom(number) {
    limit = number;
    held = null;
    show();
  }

  // The list stays as it is while it is used, and continues afterwards.
  const hold = () => { held ??= all.slice(0, limit); };
  const release = () => setTimeout(() => {
    if (!signal.aborted && !list.matches(":hover, :focus-within")) showFrom(limit);
  });
  for (const name of ["pointerenter", "pointerdown", "focusin"]) list.addEventListener(name, hold);
  for (const name of ["pointerleave", "focusout"]) list.addEventListener(name, release);

  const kinds = ["adapted", "zero-shot"];
  const legend = kinds.map((kind) => el("span", { class: kind }, swatch(kind === "zero-shot"), kind));
  return {
    element: card({
      title: "Disagreements with zero-shot", action: newer,
      about: `The last answers unlike zero-shot's.${mayLabel ? advice : ""}`,
    }, el("p", { class: "legend" }, legend), none, list, el("div", { class: "actions start" }, more, relearn)),
    update({ statistics }) {
      all = statistics.disagreements;
      relearn.hidden = !session.may("admin") || !statistics.labelled.samples;
      show();
    },
    stop: () => images.forEach((address) => URL.revokeObjectURL(address)),
  };
}

// Snapshots and epochs

export function history({ stream, session, at, act }) {
  const mayRollBack = session.may("admin");
  const rows = el("tbody");
  const epochs = el("ol", { class: "epochs", reversed: true });
  const none = note(`None yet: one is taken every ${count(stream.snapshot_every)} samples.`);
  const take = button("Take a snapshot", () => act(take, async () => {
    const made = await request(at("/snapshots"), { method: "POST" });
    return `Snapshot ${made.id} has the state after sample ${count(made.seq)}.`;
  }));
  const columns = { Snapshot: null, "After sample": "number", Epoch: "number", Taken: "when", Size: "number size" };
  const table = el("table", { class: "snapshots" },
    el("thead", {}, el("tr", {},
      Object.entries(columns).map(([title, kind]) => el("th", { scope: "col", class: kind }, title)),
      mayRollBack && el("th", { scope: "col" }, hidden("Roll back")))),
    rows);
  let state = null;

  function make(one) {
    const cell = (kind, text) => el("td", { class: kind }, text);
    const label = `Roll back to snapshot ${one.id}`;
    const undo = button("Roll back…", () => rollBack(undo, one), { class: "plain rollback", "aria-label": label });
    return el("tr", {},
      el("th", { scope: "row" }, String(one.id), el("small", { class: "narrow" }, clock(one.time))),
      cell("number", count(one.seq)), cell("number", String(one.epoch)), cell("when", clock(one.time)),
      cell("number size", bytes(one.bytes)), mayRollBack && cell("action", undo));
  }

  // The present state can be stored first, unless it cannot be used or the snapshot would be deleted for it.
  function optionFor(one) {
    const { snapshots } = state.snapshots;
    const isOldest = snapshots.length >= stream.keep_snapshots && snapshots.at(-1).id === one.id;
    const hasFailed = state.health.failure !== null;
    let label = "Take a snapshot of the present state first, so that this can be undone";
    if (isOldest) label = "No snapshot of the present state is taken: this one would be deleted for it.";
    if (hasFailed) label = "The present state cannot be used, so no snapshot of it can be taken.";
    return { label, checked: !isOldest && !hasFailed, disabled: isOldest || hasFailed };
  }

  async function rollBack(undo, one) {
    const unused = state.seq - one.seq;
    const text = [`Epoch ${state.epoch + 1} begins with what the stream had learned after sample ${count(one.seq)}.`];
    if (unused > 0) {
      text.push(`What it learned from ${plural(unused, "sample")} since then is no longer used. They stay in the log.`);
    }
    const answer = await ask({
      title: `Roll back to snapshot ${one.id}?`, text, action: "Roll back", option: optionFor(one),
    });
    if (answer) await act(undo, async () => {
      if (answer.checked) await request(at("/snapshots"), { method: "POST" });
      const made = await request(at("/rollback"), { method: "POST", body: { snapshot: one.id } });
      return `Epoch ${made.epoch} began with the state of snapshot ${one.id}.`;
    });
  }

  const needs = mayRollBack ? "" : " It needs the scope admin.";
  const about = `A rollback begins a new epoch with the state of a snapshot.${needs}`;
  const makeEpoch = (one) => el("li", {}, el("b", {}, `Epoch ${one.epoch}`),
    ` after sample ${count(one.start)}${one.reason ? `: ${one.reason}` : ""}`, el("small", {}, clock(one.time)));

  return {
    element: card({ title: "Snapshots", action: session.may("write") && take, about }, none, table, epochs),
    update(found) {
      state = found;
      const { snapshots, epochs: begun } = found.snapshots;
      none.hidden = snapshots.length > 0;
      table.hidden = !snapshots.length;
      keyed(rows, snapshots, (one) => one.id, make);
      epochs.hidden = begun.length < 2;
      keyed(epochs, begun.toSorted((a, b) => b.epoch - a.epoch), (one) => one.epoch, makeEpoch);
    },
  };
}

// What another method would have answered

export function whatIf({ stream, at, signal }) {
  const option = (value, text, chosen) => el("option", { value, selected: value === chosen }, text);
  const method = el("select");
  const limit = el("select", {}, [1000, 10000, 100000].map((number) => option(number, count(number), 10000)));
  const order = el("input", { type: "checkbox" });
  const run = el("button", { type: "submit", class: "plain" }, "Replay");
  const headline = note();
  const result = el("div", { class: "result", "aria-live": "polite" });
  const known = new Map();
  const describe = () => setText(headline, known.get(method.value) ?? "");
  method.addEventListener("change", describe);

  request("v1/methods", { signal }).then(({ methods }) => {
    for (const one of methods) known.set(one.name, `${one.headline}.`);
    const chosen = stream.method === "tda" ? "zero_shot" : "tda";
    method.append(...methods.map((one) => option(one.name, one.name, chosen)));
    describe();
  }, () => {});

  async function replay(event) {
    event.preventDefault();
    run.disabled = true;
    const body = { method: method.value + (order.checked ? "+filter" : ""), limit: Number(limit.value) };
    result.replaceChildren(note(`Replaying under ${body.method}…`));
    try {
      result.replaceChildren(...report(await request(at("/replay"), { method: "POST", body, signal })));
    } catch (error) {
      if (!signal.aborted) result.replaceChildren(el("p", { class: "failure" }, error.message));
    } finally {
      run.disabled = false;
    }
  }

  const fact = (title, value, remark) =>
    el("div", {}, el("dt", {}, title), el("dd", {}, el("b", {}, value), el("small", {}, remark)));
  const example = (one) => el("li", {}, el("small", {}, `sample ${count(one.seq)}`),
    el("span", {}, one.answered), "→", el("b", {}, one.would_answer));

  function report({ samples, changed, labelled, examples, ...found }) {
    if (!samples) return [el("p", {}, "The log has no samples.")];
    const facts = [
      fact("Other answers", percent(changed / samples), `${count(changed)} of ${plural(samples, "sample")}`),
      fact("Mean confidence", percent(found.mean_confidence), `it was ${percent(found.mean_confidence_answered)}`),
    ];
    if (labelled.samples) {
      const before = `it was ${count(labelled.right_answered)} of ${count(labelled.samples)}`;
      facts.push(fact("Confirmed labels right", count(labelled.right), before));
    }
    const made = [el("dl", { class: "facts" }, facts)];
    if (examples.length) {
      const list = el("ul", { class: "examples" }, examples.map(example));
      made.push(el("details", {}, el("summary", {}, "Examples"), list));
    }
    return made;
  }

  return {
    element: card(
      { title: "What if?", about: "What another method would have answered to the log. The stream does not change." },
      el("form", { class: "replay", onsubmit: replay },
        el("label", {}, "Method", method), el("label", {}, "Samples, at most", limit),
        el("label", { class: "check" }, order, el("span", {}, "use the order (+filter)")), run),
      headline, result),
  };
}
