// Elements without HTML strings: whatever a service sends, such as names of classes, only becomes text.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes, listeners (such as onclick) and children: elements, strings, lists, null for nothing.
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const note = (...children) => el("p", { class: "note" }, ...children);
export const button = (text, onclick, attributes = {}) =>
  el("button", { type: "button", class: "plain", onclick, ...attributes }, text);
export const hidden = (text) => el("span", { class: "hidden" }, text); // only for screen readers

// A part of a page, with a title, an explanation, and perhaps something at the right of the title.
export function card({ title, about = null, action = null, kind = "" }, ...children) {
  return el("section", { class: `card ${kind}` },
    el("div", { class: "card-title" }, el("h2", {}, title), action), about && note(about), ...children);
}

// Set the text of an element only if it is another one: selections and screen readers notice every change.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Make the children of `parent` those of `items`, in their order. An element stays the same as long as the key of its
// item does, so that it keeps the focus while numbers change.
export function keyed(parent, items, keyOf, make, update = () => {}, remove = () => {}) {
  const known = (parent.keyedChildren ??= new Map());
  const keys = new Set(items.map(keyOf));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  for (const [key, child] of known) {
    if (keys.has(key)) continue;
    remove(child, key);
    child.remove();
    known.delete(key);
  }
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (!child) known.set(key, (child = make(item)));
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

// A bar from 0 to 1; `show` sets it.
export function meter(label) {
  const bar = el("span", { class: "meter-bar" });
  const element = el("span", {
    class: "meter", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": label,
  }, bar);
  element.show = (share, isHigh) => {
    element.setAttribute("aria-valuenow", Math.round(100 * share));
    element.classList.toggle("high", isHigh);
    bar.style.width = `${100 * Math.min(1, share)}%`;
  };
  return element;
}

// A dialog with a question. It resolves to null if it is cancelled, else to whether the option is checked.
export function ask({ title, text, action, option = null }) {
  return new Promise((resolve) => {
    let answer = null;
    const box = option && el("input", { type: "checkbox", checked: option.checked, disabled: option.disabled });
    const cancel = button("Cancel", () => dialog.close());
    const confirm = button(action, () => {
      answer = { checked: box?.checked ?? false };
      dialog.close();
    }, { class: "primary" });
    const body = el("div", { class: "dialog-body" },
      el("h2", { id: "dialog-title" }, title),
      el("div", { id: "dialog-text" }, text.map((sentence) => el("p", {}, sentence))),
      option && el("label", { class: "check" }, box, el("span", {}, option.label)),
      el("div", { class: "actions" }, cancel, confirm));
    const labels = { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-text" };
    const dialog = el("dialog", { class: "dialog", ...labels }, body);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // next to it
    document.body.append(dialog);
    dialog.showModal();
    cancel.focus();
  });
}

// A message at the bottom of the page. Failures stay until they are dismissed.
export function notify(text, isFailure = false) {
  const dismiss = button("✕", () => message.remove(), { class: "quiet", "aria-label": "Dismiss this message" });
  const message = el("p", { class: `message ${isFailure ? "failure" : ""}`, role: isFailure ? "alert" : null },
    el("span", {}, text), dismiss);
  document.getElementById("messages").append(message);
  if (!isFailure) setTimeout(() => message.remove(), 8000);
}
