// What to do first: commands that work as they are shown.

import { button, el, note, notify } from "./dom.js";

const STREAM = '{"classes": ["cat", "dog"], "prototypes": [[1, 0, 0], [0, 1, 0]], "logit_scale": 10}';
const SAMPLES = '{"features": [[1, 0, 0], [0.6, 0.8, 0]]}';

export function firstSteps(session) {
  if (!session.may("write")) {
    const text = "This key may only read. Whoever has a key with the scope write can create a stream.";
    return [el("h2", {}, "No streams yet"), el("p", {}, text)];
  }
  const address = new URL(".", location.href.split("#")[0]).href.replace(/\/$/, "");
  const name = `${session.prefix}first`;
  const headers = `${session.hasKey ? '-H "Authorization: Bearer $KEY" ' : ""}-H "Content-Type: application/json"`;
  const shell = [
    session.hasKey ? "KEY=zs_..." : null,
    `curl -X PUT ${address}/v1/streams/${name} ${headers} -d '${STREAM}'`,
    `curl -X POST ${address}/v1/streams/${name}/samples ${headers} -d '${SAMPLES}'`,
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
    el("p", {}, "A stream is a classifier that adapts to its samples. Create one, and it appears here."),
    command("Python: real features that come with zeroshift", "python", python),
    command("curl: the smallest stream", "shell", shell),
    note("For streams that feed themselves, end this service and run ", el("code", {}, "zeroshift serve demo"), "."),
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
  const refused = () => notify("The browser does not allow copying. Select the text instead.", true);
  const copy = button("Copy", () => {
    if (navigator.clipboard) navigator.clipboard.writeText(code).then(() => notify("Copied."), refused);
    else refused(); // not a secure address
  });
  return el("div", { class: "command" },
    el("div", { class: "command-title" }, el("h3", {}, title), copy),
    el("pre", { tabindex: 0, "aria-label": title }, el("code", { class: kind }, code)));
}
