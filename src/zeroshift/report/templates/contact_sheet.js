
"use strict";
// Filters, sorts and enlarges the pictures. The page is complete without it.
const find = (id) => document.getElementById(id);
const tiles = [...document.querySelectorAll("#images .group li")];
const groups = [...document.querySelectorAll("#images .group:not(#sorted)")];
const places = new Map(tiles.map((tile) => [tile, tile.parentElement]));
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

function update() {
  const rank = ranks[order.value];
  const list = find("sorted").firstElementChild;
  if (rank) list.append(...[...tiles].sort((a, b) => rank(a) - rank(b)));
  else for (const tile of tiles) places.get(tile).append(tile);
  for (const tile of tiles) tile.hidden = !matches(tile);
  find("sorted").hidden = !rank;
  for (const group of groups) group.hidden = Boolean(rank) || !group.querySelector("li:not([hidden])");
  find("count").textContent = `${shown().length} of ${tiles.length} ${noun}`;
}

function shown() {
  return [...document.querySelectorAll("#images .group:not([hidden]) li:not([hidden])")];
}

for (const control of controls) control.addEventListener("input", update);
find("reset").addEventListener("click", () => {
  for (const control of controls) control.value = "";
  update();
});
find("filters").hidden = false;
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
