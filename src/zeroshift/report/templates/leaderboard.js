"use strict";
// Filters the rows. The page is complete without it.
const form = document.getElementById("filters");
const byName = document.getElementById("by-name");
const byGroup = document.getElementById("by-group");
const atMost = document.getElementById("at-most");
const boxes = [...document.querySelectorAll(".without")];
const bodies = [...document.querySelectorAll("tbody[data-group]")];
const rows = [...document.querySelectorAll("tr.method")];

function matches(row) {
  const needs = row.dataset.needs.split(" ");
  return row.dataset.name.toLowerCase().includes(byName.value.trim().toLowerCase())
    && (byGroup.value === "" || row.parentElement.dataset.group === byGroup.value)
    && (atMost.value === "" || Number(row.dataset.time) <= Number(atMost.value))
    && !boxes.some((box) => box.checked && needs.includes(box.value));
}

function update() {
  for (const row of rows) row.hidden = !matches(row);
  for (const body of bodies) body.hidden = !body.querySelector("tr.method:not([hidden])");
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("count").textContent = `${shown} of ${rows.length} methods`;
}

form.addEventListener("input", update);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(update));
form.hidden = false;
update(); // a browser keeps what was typed when a page is loaded again
