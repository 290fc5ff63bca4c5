// What to do first: commands that work as they are shown.

import { el, notify } from "./dom.js";

const EXAMPLE = JSON.stringify({ classes: ["cat", "dog"], prototypes: [[1, 0, 0], [0, 1, 0]], logit_scale: 10 });

export function firstSteps(session) {
  if (!session.may("write")) {
    return [el("h2", {}, "No streams yet"), el("p", {}, "This key may only read. Whoever has a key with the scope write can create a stream.")];
  }
  const address = new URL(".", location.href.split("#")[0]).href.replace(/\/$/, "");
  const name = `${session.prefix}first`;
  const header = session.hasKey ? ` -H "Authorization: Bearer $KEY"` : "";
  const shell = [
    session.hasKey ? "KEY=zs_..." : null,
    `curl -X PUT ${address}/v1/streams/${name}${header} -H "Content-Type: application/json" -d '${EXAMPLE}'`,
    `curl -X POST ${address}/v1/streams/${name}/samples${header} -H "Content-Type: application/json" -d '{"features": [[1, 0, 0], [0.6, 0.8, 0]]}'`,
  ].filter(Boolean).join("\n");
  const python = [
    "from zeroshift.data import packs",
    "from zeroshift.serve import Client",
    "",
    `client = Client("${address}"${session.hasKey ? ", \"zs_...\"" : ""})`,
    'pack = packs.load("cifar10")',
    `stream = client.stream("${session.prefix}cifar10")`,
    "stream.create(pack.class_names, pack.prototypes_for(), logit_scale=pack.logit_scale)",
    "for start in range(0, pack.n_samples, 16):",
    "    stream.samples(pack.features[start : start + 16])",
  ].join("\n");
  return [
    el("h2", {}, "No streams yet"),
    el("p", {}, "A stream is a classifier that adapts to its samples while it answers. Create one, send samples, and it appears here."),
    command("Python: real features that come with zeroshift", "python", python),
    command("curl: the smallest stream", "shell", shell),
    el("p", { class: "note" }, "For several streams that run by themselves, end this service and start: ", el("code", {}, "zeroshift serve demo")),
  ];
}

// How to send samples to a stream that has none.
export function sendSamples(session, id, dimension) {
  const address = new URL(".", location.href.split("#")[0]).href.replace(/\/$/, "");
  const code = [
    "import numpy as np",
    "from zeroshift.serve import Client",
    "",
    `features = np.eye(${dimension})[:8]  # one row of unit length per sample`,
    `stream = Client("${address}"${session.hasKey ? ", \"zs_...\"" : ""}).stream("${id}")`,
    "results = stream.samples(features)",
  ].join("\n");
  return [el("h2", {}, "Waiting for samples"), command("Send features from Python", "python", code)];
}

function command(title, kind, code) {
  const copy = el("button", {
    type: "button", class: "plain",
    onclick: () => navigator.clipboard.writeText(code).then(() => notify("Copied."), () => notify("The browser does not allow copying.", true)),
  }, "Copy");
  return el("div", { class: "command" },
    el("div", { class: "command-title" }, el("h3", {}, title), copy),
    el("pre", { tabindex: 0, "aria-label": title }, el("code", { class: kind }, code)));
}
