// What a person does with a stream: confirm labels, roll back, and try another method.

import { request, send } from "./api.js";
import { swatch } from "./charts.js";
import { ask, el, keyed, notify, setText } from "./dom.js";
import { bytes, clock, count, percent, plural } from "./format.js";

const CASES = 10;

// Samples that zero-shot answers differently; a person can say who is right

export function cases({ stream, session, at, act, signal, reload }) {
  const images = new Map();
  const list = el("ul", { class: "cases" });
  const newer = el("button", { type: "button", class: "plain", hidden: true, onclick: () => { held = null; show(); } }, "Show newer");
  const more = el("button", { type: "button", class: "plain", onclick: () => { limit += 20; held = null; show(); } }, "Show more");
  const relearn = el("button", { type: "button", class: "plain", onclick: learnAgain }, "Learn again with the labels…");
  const none = el("p", { class: "note" }, "None yet: every answer is the same as zero-shot's.");
  const mayLabel = session.may("write");
  const name = mayLabel ? "button" : "span";
  let limit = CASES;
  let all = [];
  let held = null; // what is shown while somebody uses the list
  let movedAt = 0;
  const thumbnails = stream.thumbnails !== null;

  function make(one) {
    const picture = thumbnails ? el("div", { class: "picture" }) : null;
    const choice = (kind, label, score) => el(name, {
      class: `choice ${kind}`, type: mayLabel ? "button" : null, title: mayLabel ? `Confirm that sample ${count(one.seq)} is: ${label}` : null,
      onclick: mayLabel ? () => confirm(row, label) : null,
    }, swatch(kind === "zero-shot"), el("span", { class: "label" }, label), el("small", {}, percent(score, 0)));
    const adapted = choice("adapted", one.label, one.score);
    const zeroShot = choice("zero-shot", one.zero_shot, one.zero_shot_score);
    const other = mayLabel && stream.classes.length > 2 ? el("select", { "aria-label": `Another label for sample ${count(one.seq)}`, onfocus: (event) => fillOptions(event.target), onpointerdown: (event) => fillOptions(event.target), onchange: (event) => event.target.value && confirm(row, event.target.value) },
      el("option", { value: "" }, "Other…")) : null;
    const confirmed = el("span", { class: "confirmed" });
    const about = [`#${count(one.seq)}`, one.key, clock(one.time), one.reject > 0.5 ? "fits no class" : null].filter(Boolean).join(" · ");
    const row = el("li", {}, picture, el("div", { class: "choices" }, adapted, zeroShot, other, el("p", { class: "about" }, about, confirmed)));
    row.parts = { picture, adapted, zeroShot, other, confirmed };
    return row;
  }

  function fillOptions(select) {
    if (select.options.length > 1) return;
    select.append(...stream.classes.map((label) => el("option", { value: label }, label)));
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
      const address = URL.createObjectURL(content);
      images.set(one.seq, address);
      picture.append(el("img", { src: address, alt: `Sample ${count(one.seq)}` }));
    } catch { /* it was deleted meanwhile; the row says enough without it */ }
  }

  function remove(row) {
    const address = images.get(row.one.seq);
    if (address) URL.revokeObjectURL(address);
    images.delete(row.one.seq);
  }

  async function confirm(row, label) {
    if (performance.now() - movedAt < 350) return; // the row came under the finger by chance
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
      text: [`A new epoch begins: the stream learns its log again, with the confirmed labels as examples. Samples wait until that is done.`],
      action: "Learn again",
    });
    if (answer) await act(relearn, async () => {
      const made = await request(at("/relearn"), { method: "POST" });
      return `Epoch ${made.epoch} began: ${plural(made.samples, "sample")} learned again with ${plural(made.labels, "label")}.`;
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

  // The list stays as it is while it is used, and continues afterwards.
  const hold = () => { held ??= all.slice(0, limit); };
  const release = () => setTimeout(() => {
    if (signal.aborted || list.matches(":hover, :focus-within")) return;
    held = null;
    show();
  });
  for (const name of ["pointerenter", "pointerdown", "focusin"]) list.addEventListener(name, hold);
  for (const name of ["pointerleave", "focusout"]) list.addEventListener(name, release);

  return {
    element: el("section", { class: "card" },
      el("div", { class: "card-title" }, el("h2", {}, "Disagreements with zero-shot"), newer),
      el("p", { class: "note" }, mayLabel ? "The last answers unlike zero-shot's. Choose the right label of a sample to confirm it: accuracy is measured on these." : "The last answers unlike zero-shot's."),
      el("p", { class: "legend" }, el("span", { class: "adapted" }, swatch(false), "adapted"), el("span", { class: "zero-shot" }, swatch(true), "zero-shot")),
      none, list, el("div", { class: "actions start" }, more, relearn)),
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
  const rows = el("tbody", {});
  const epochs = el("ol", { class: "epochs", reversed: true });
  const take = el("button", {
    type: "button", class: "plain",
    onclick: () => act(take, async () => {
      const made = await request(at("/snapshots"), { method: "POST" });
      return `Snapshot ${made.id} has the state after sample ${count(made.seq)}.`;
    }),
  }, "Take a snapshot");
  const none = el("p", { class: "note" }, `None yet: one is taken every ${count(stream.snapshot_every)} samples.`);
  const table = el("table", { class: "snapshots" },
    el("thead", {}, el("tr", {}, ["Snapshot", "After sample", "Epoch", "Taken", "Size"].map((title, i) => el("th", { scope: "col", class: i === 0 ? null : i === 3 ? "when" : i === 4 ? "number size" : "number" }, title)),
      mayRollBack ? el("th", { scope: "col" }, el("span", { class: "hidden" }, "Roll back")) : null)),
    rows);
  let state = null;

  function make(one) {
    const button = mayRollBack ? el("button", { type: "button", class: "plain rollback", "aria-label": `Roll back to snapshot ${one.id}`, onclick: () => rollBack(button, one) }, "Roll back…") : null;
    return el("tr", {},
      el("th", { scope: "row" }, String(one.id), el("small", { class: "narrow" }, clock(one.time))), el("td", { class: "number" }, count(one.seq)), el("td", { class: "number" }, String(one.epoch)),
      el("td", { class: "when" }, clock(one.time)), el("td", { class: "number size" }, bytes(one.bytes)),
      mayRollBack ? el("td", { class: "action" }, button) : null);
  }

  async function rollBack(button, one) {
    const lost = state.seq - one.seq;
    const isOldest = state.snapshots.snapshots.length >= stream.keep_snapshots && state.snapshots.snapshots.at(-1).id === one.id;
    const isDamaged = state.health.failure !== null;
    const answer = await ask({
      title: `Roll back to snapshot ${one.id}?`,
      text: [
        `The stream continues as epoch ${state.epoch + 1} with what it had learned after sample ${count(one.seq)}.`,
        lost > 0 ? `What it learned since then, from ${plural(lost, "sample")}, is no longer used. They stay in the log.` : "",
      ].filter(Boolean),
      action: "Roll back",
      option: {
        label: isDamaged ? "The present state is damaged, so no snapshot of it can be taken." : isOldest ? "No snapshot of the present state is taken: this one would be deleted for it." : "Take a snapshot of the present state first, so that this can be undone",
        checked: !isOldest && !isDamaged, disabled: isOldest || isDamaged,
      },
    });
    if (answer) await act(button, async () => {
      if (answer.checked) await request(at("/snapshots"), { method: "POST" });
      const made = await request(at("/rollback"), { method: "POST", body: { snapshot: one.id } });
      return `Epoch ${made.epoch} began with the state of snapshot ${one.id}.`;
    });
  }

  return {
    element: el("section", { class: "card" }, el("div", { class: "card-title" }, el("h2", {}, "Snapshots"), session.may("write") ? take : null),
      el("p", { class: "note" }, mayRollBack ? "A rollback begins a new epoch with the state of a snapshot." : "To roll back, use a key with the scope admin."), none, table, epochs),
    update(found) {
      state = found;
      const { snapshots, epochs: begun } = found.snapshots;
      none.hidden = snapshots.length > 0;
      table.hidden = !snapshots.length;
      keyed(rows, snapshots, (one) => one.id, make, () => {});
      epochs.hidden = begun.length < 2;
      keyed(epochs, begun.toSorted((a, b) => b.epoch - a.epoch), (one) => one.epoch,
        (one) => el("li", {}, el("b", {}, `Epoch ${one.epoch}`), ` after sample ${count(one.start)}`, one.reason ? `: ${one.reason}` : "", el("small", {}, clock(one.time))), () => {});
    },
  };
}

// What another method would have answered

export function whatIf({ stream, at, signal }) {
  const method = el("select", { id: "replay-method" });
  const limit = el("select", { id: "replay-limit" }, [1000, 10000, 100000].map((number) => el("option", { value: number, selected: number === 10000 }, count(number))));
  const order = el("input", { type: "checkbox" });
  const headline = el("p", { class: "note" });
  const result = el("div", { class: "result", "aria-live": "polite" });
  const run = el("button", { type: "submit", class: "plain" }, "Replay");
  const known = new Map();
  const describe = () => setText(headline, known.get(method.value) ?? "");
  method.addEventListener("change", describe);

  request("v1/methods", { signal }).then(({ methods }) => {
    for (const one of methods) known.set(one.name, `${one.headline}.`);
    method.append(...methods.map((one) => el("option", { value: one.name, selected: one.name === (stream.method === "tda" ? "zero_shot" : "tda") }, one.name)));
    describe();
  }, () => {});

  async function replay(event) {
    event.preventDefault();
    run.disabled = true;
    const name = method.value + (order.checked ? "+filter" : "");
    result.replaceChildren(el("p", { class: "note" }, `Replaying under ${name}…`));
    try {
      const found = await request(at("/replay"), { method: "POST", body: { method: name, limit: Number(limit.value) }, signal });
      result.replaceChildren(...report(found));
    } catch (error) {
      if (!signal.aborted) result.replaceChildren(el("p", { class: "failure" }, error.message));
    } finally {
      run.disabled = false;
    }
  }

  function report(found) {
    if (!found.samples) return [el("p", {}, "The log has no samples.")];
    const { labelled } = found;
    return [
      el("dl", { class: "facts" },
        fact("Other answers", `${percent(found.changed / found.samples)}`, `${count(found.changed)} of ${plural(found.samples, "sample")}`),
        fact("Mean confidence", percent(found.mean_confidence), `it was ${percent(found.mean_confidence_answered)}`),
        labelled.samples ? fact("Confirmed labels right", count(labelled.right), `it was ${count(labelled.right_answered)} of ${count(labelled.samples)}`) : null),
      found.examples.length ? el("details", {}, el("summary", {}, "Examples"),
        el("ul", { class: "examples" }, found.examples.map((one) => el("li", {}, el("small", {}, `sample ${count(one.seq)}`), el("span", {}, one.answered), "→", el("b", {}, one.would_answer))))) : null,
    ].filter(Boolean);
  }

  const fact = (title, value, note) => el("div", {}, el("dt", {}, title), el("dd", {}, el("b", {}, value), el("small", {}, note)));

  return {
    element: el("section", { class: "card" }, el("div", { class: "card-title" }, el("h2", {}, "What if?")),
      el("p", { class: "note" }, "What another method would have answered to the log. Nothing of the stream changes."),
      el("form", { class: "replay", onsubmit: replay },
        el("label", {}, "Method", method), el("label", {}, "Samples, at most", limit),
        el("label", { class: "check" }, order, el("span", {}, "use the order (+filter)")), run),
      headline, result),
  };
}
