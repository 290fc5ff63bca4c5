
"use strict";
// Filters, sorts and enlarges the pictures. The page is complete without it.
const find = (id) => document.getElementById(id);
const tiles = [...document.querySelectorAll("#images .group li")];
const groups = [...document.querySelectorAll("#images .group:not(#sorted)")];
const names = new Map(tiles.map((tile) => [tile, tile.querySelector(".file").textContent.toLowerCase()]));
const controls = ["by-name", "by-class", "by-kind", "below", "order"].map(find);
const [byName, byClass, byKind, below, order] = controls;
const noun = find("count").textContent.split(" ").at(-1);

function matches(tile) {
  const data = tile.dataset;
  return names.get(tile).includes(byName.value.trim().toLowerCase())
    && (byClass.value === "" || data.class === byClass.value)
    && (byKind.value === "" || byKind.value in data)
    && (below.value === "" || (!("rejected" in data) && Number(data.certain) < Number(below.value)));
}

// Rejected pictures have no probability of their own: they come last.
const ranks = {
  certain: (tile) => Number(tile.dataset.certain) + ("rejected" in tile.dataset ? 2 : 0),
  moved: (tile) => ("changed" in tile.dataset ? -Number(tile.dataset.moved) : 2),
  reject: (tile) => -Number(tile.dataset.reject),
};

// The cut: a preview of what another --reject-above would reject.
const cut = find("cut");
const asWritten = new Map(tiles.map((tile) => [tile, "rejected" in tile.dataset]));
const answers = new Map(tiles.map((tile) => {
  const answer = tile.querySelector(".best span") ?? tile.querySelector("strong");
  return [tile, answer.cloneNode(true)];
}));
let cutMoved = false;

// Rejected pictures: the less like any class, the earlier. Others: the less certain, the earlier.
function inGroup(tile) {
  return "rejected" in tile.dataset ? -Number(tile.dataset.reject) : Number(tile.dataset.certain);
}

// A group that the page does not have is made when a picture needs it.
function groupOf(tile) {
  const number = tile.dataset.class;
  const found = groups.find((group) => group.id === `class-${number}`);
  if (found) return found.querySelector("ul");
  const name = tile.querySelector("strong bdi").textContent;
  const made = groups[0].cloneNode(true);
  made.id = `class-${number}`;
  made.querySelector("bdi").textContent = name;
  made.querySelector("ul").replaceChildren();
  if (number === cut.dataset.number) groups[0].before(made);
  else groups[0].parentElement.append(made);
  groups.push(made);
  byClass.append(new Option(name, number));
  return made.querySelector("ul");
}

function mark(tile, name, holds) {
  if (holds) tile.dataset[name] = "";
  else delete tile.dataset[name];
}

function setRejected(tile, rejected) {
  const data = tile.dataset;
  const answer = answers.get(tile);
  data.best ??= data.class;
  data.class = rejected ? cut.dataset.number : data.best;
  mark(tile, "rejected", rejected);
  const label = document.createElement("bdi");
  label.textContent = cut.dataset.label;
  const strong = tile.querySelector("strong");
  strong.replaceChildren(...(rejected ? [label] : answer.cloneNode(true).childNodes));
  tile.querySelector(".best")?.remove();
  if (rejected) {
    const best = document.createElement("p");
    best.className = "score best";
    best.append("best class ", ...answer.cloneNode(true).childNodes);
    strong.parentElement.after(best);
  }
  const truth = tile.querySelector(".truth");
  if (!truth) return;
  const right = truth.querySelector("bdi").textContent === answer.querySelector("bdi").textContent;
  const verdict = truth.querySelector("span:last-of-type");
  verdict.textContent = rejected ? "rejected" : right ? "right" : "wrong";
  verdict.className = right && !rejected ? "gain" : "loss";
  mark(tile, "wrong", rejected || !right);
}

function applyCut() {
  const above = Number(cut.value);
  const moved = above !== Number(cut.defaultValue);
  cutMoved ||= moved;
  for (const tile of cutMoved ? tiles : []) {
    const rejected = moved ? Number(tile.dataset.reject) > above : asWritten.get(tile);
    if (rejected !== "rejected" in tile.dataset) setRejected(tile, rejected);
  }
  const { total, label, count } = cut.dataset;
  const counts = cut.dataset.above.split(" ");
  find("cut-note").textContent = moved
    ? `Above ${above}: ${counts[Math.round(100 * above)]} of ${total} ${noun} would be ${label}`
    : `${count} of ${total} ${noun} are ${label}, as in the file of predictions`;
}

function update() {
  const rank = ranks[order.value];
  const list = find("sorted").firstElementChild;
  if (rank) list.append(...[...tiles].sort((a, b) => rank(a) - rank(b)));
  else for (const tile of cutMoved ? [...tiles].sort((a, b) => inGroup(a) - inGroup(b)) : tiles) groupOf(tile).append(tile);
  for (const tile of tiles) tile.hidden = !matches(tile);
  find("sorted").hidden = !rank;
  for (const group of groups) {
    group.hidden = Boolean(rank) || !group.querySelector("li:not([hidden])");
    if (cutMoved && !rank) {
      group.querySelector(".caption").textContent = `${group.querySelectorAll("li").length} ${noun} on this page`;
    }
  }
  find("count").textContent = `${shown().length} of ${tiles.length} ${noun}`;
}

function shown() {
  return [...document.querySelectorAll("#images .group:not([hidden]) li:not([hidden])")];
}

for (const control of controls) control.addEventListener("input", update);
cut?.addEventListener("input", () => {
  applyCut();
  update();
});
find("reset").addEventListener("click", () => {
  for (const control of controls) control.value = "";
  if (cut) {
    cut.value = cut.defaultValue;
    applyCut();
  }
  update();
});
find("filters").hidden = false;
if (cut) applyCut();
update(); // a browser keeps what was typed when a page is loaded again

// Enlarging.
const viewer = find("viewer");
let current = null;

function enlarge(tile) {
  current = tile;
  const small = tile.querySelector("svg, .missing");
  const parts = [...tile.children].map((child) => child.cloneNode(true));
  if (small.localName === "svg") {
    // The picture is in the page once; other places refer to it.
    const picture = small.cloneNode(false);
    picture.removeAttribute("tabindex");
    picture.setAttribute("role", "img");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    use.setAttribute("href", small.querySelector("use")?.getAttribute("href") ?? `#${small.querySelector("image").id}`);
    picture.append(use);
    parts[0] = picture;
  }
  find("enlarged").replaceChildren(...parts);
  if (!viewer.open) viewer.showModal();
}

function step(by) {
  const all = shown();
  const next = all[all.indexOf(current) + by];
  if (next) enlarge(next);
}

for (const tile of tiles) {
  const picture = tile.querySelector("svg");
  if (!picture) continue;
  picture.setAttribute("tabindex", "0");
  picture.setAttribute("role", "button");
  picture.setAttribute("aria-label", picture.getAttribute("aria-label").replace("Picture", "Enlarge"));
  picture.addEventListener("click", () => enlarge(tile));
  picture.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    enlarge(tile);
  });
}
find("previous").addEventListener("click", () => step(-1));
find("next").addEventListener("click", () => step(1));
find("close").addEventListener("click", () => viewer.close());
viewer.addEventListener("click", (event) => {
  if (event.target === viewer) viewer.close();
});
viewer.addEventListener("close", () => current?.querySelector("svg")?.focus());
viewer.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
