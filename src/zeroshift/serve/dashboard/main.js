// The address says what is shown: #/ all streams, #/streams/ID one of them.

import { forgetKey, request, ServiceError, storedKey, storeKey } from "./api.js";
import { el, hidden, note, setText } from "./dom.js";
import { overview } from "./overview.js";
import { streamPage } from "./stream.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const keyButton = document.getElementById("key");
const SCOPES = ["read", "write", "admin"];

let shown = new AbortController(); // ends what the page shown now does
let hasNavigated = false;

const STATES = {
  live: "Live",
  polling: "Updated every 3 s",
  offline: "The service does not answer; trying again",
  none: "",
};

function setConnection(state, error = null) {
  if (state === "refused") return fail(error);
  if (connection.dataset.state === state) return;
  connection.dataset.state = state;
  setText(connection, STATES[state]);
}

async function start() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  let me;
  try {
    me = await request("v1/whoami", { signal });
  } catch (error) {
    if (!signal.aborted) fail(error, start);
    return;
  }
  if (signal.aborted) return;
  const session = {
    hasKey: storedKey() !== null,
    prefix: me.prefix,
    scope: me.scope,
    may: (scope) => SCOPES.indexOf(me.scope) >= SCOPES.indexOf(scope),
  };
  keyButton.hidden = !session.hasKey;
  const where = me.prefix ? `, for streams that start with ${me.prefix}` : "";
  keyButton.title = `The key has the scope ${me.scope}${where}.`;
  const [, id] = location.hash.match(/^#\/streams\/(.+)$/) ?? [];
  const page = { setConnection, signal };
  try {
    const made = id ? streamPage(main, session, decodeURIComponent(id), page) : overview(main, session, page);
    const heading = await made;
    if (!signal.aborted && hasNavigated) heading.focus();
  } catch (error) {
    if (!signal.aborted) fail(error, start);
  }
}

// Say why nothing can be shown, and what to do.
function fail(error, again = null) {
  shown.abort();
  setConnection("none");
  if (!(error instanceof ServiceError)) {
    show("This page has an error", "Reload it. The console of the browser says more.");
    throw error;
  }
  if (error.status === 401) return askForKey(storedKey() !== null);
  const back = el("p", {}, el("a", { href: "#/" }, "All streams"));
  if (error.status === 404) show("There is nothing here", error.message, back);
  else if (error.status === 403) show("Not allowed", error.message, back);
  else {
    setConnection("offline");
    if (error.status) show("The service cannot answer now", error.message);
    else show("The service does not answer", "This page tries again every few seconds.");
    setTimeout(() => again?.(), 3000);
  }
}

function show(title, ...content) {
  main.replaceChildren(el("section", { class: "card empty" }, el("h1", { tabindex: -1 }, title),
    content.map((one) => (typeof one === "string" ? el("p", {}, one) : one))));
}

function askForKey(isRefused) {
  forgetKey();
  keyButton.hidden = true;
  const input = el("input", {
    type: "password", id: "api-key", name: "key", autocomplete: "off", spellcheck: "false", required: true,
    placeholder: "zs_...", "aria-describedby": "key-note", "aria-invalid": isRefused ? "true" : null,
  });
  const form = el("form", {
    class: "key-form",
    onsubmit: (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!/^[!-~]+$/.test(key)) return askForKey(true); // no header could have it
      storeKey(key);
      start();
    },
  },
  el("label", { for: "api-key" }, "API key"),
  el("div", { class: "fields" }, input, el("button", { class: "primary", type: "submit" }, "Continue")));
  const refusal = "This key is not accepted. It may have been removed, or not copied completely.";
  const advice = note("It stays in this tab until the tab is closed, and is sent to this service only. Make one with ",
    el("code", {}, "zeroshift serve keys add --store FOLDER --scope read"), "; rollback needs the scope admin.");
  advice.id = "key-note";
  const alert = isRefused && el("p", { class: "failure", role: "alert" }, refusal);
  show("This service needs an API key", alert, form, advice);
  input.focus();
}

keyButton.addEventListener("click", () => {
  forgetKey();
  start();
});

// Colours: those of the system, or always light or dark.
const THEMES = { auto: ["◐", "Colours of the system"], light: ["☀", "Light"], dark: ["☾", "Dark"] };
const themeButton = document.getElementById("theme");

function showTheme(name) {
  const [shape, words] = THEMES[name];
  themeButton.replaceChildren(el("span", { "aria-hidden": "true" }, shape), hidden(`Colours: ${words}. Change`));
  themeButton.title = `Colours: ${words}`;
}

themeButton.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  localStorage.setItem("zeroshift-theme", next);
  showTheme(next);
});
showTheme(document.documentElement.dataset.theme ?? "auto");

addEventListener("hashchange", () => {
  hasNavigated = true;
  scrollTo(0, 0);
  start();
});
start();
