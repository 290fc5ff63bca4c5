// Numbers and times as people read them.

const COUNT = new Intl.NumberFormat("en-US");
export const NONE = "–";

export const count = (value) => (value === null || value === undefined ? NONE : COUNT.format(value));

export const percent = (share, digits = 1) =>
  share === null || share === undefined ? NONE : `${(100 * share).toFixed(digits)}%`;

export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

export function perSecond(rate, unit = " per second") {
  if (rate === null) return "";
  return rate === 0 ? "none now" : `${rate < 10 ? rate.toFixed(1) : count(Math.round(rate))}${unit}`;
}

export function bytes(value) {
  if (value < 1e6) return `${Math.max(1, Math.round(value / 1e3))} kB`;
  return `${(value / 1e6).toFixed(1)} MB`;
}

// The time of day; with the date, if it is not today.
export function clock(seconds) {
  const when = new Date(1000 * seconds);
  const time = when.toLocaleTimeString("en-GB");
  return when.toDateString() === new Date().toDateString() ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

// How fast a number grows, from its values during the last seconds.
export class Rate {
  #seen = [];

  add(value) {
    const now = performance.now() / 1000;
    if (this.#seen.length && value < this.#seen.at(-1)[1]) this.#seen = [];
    this.#seen.push([now, value]);
    while (this.#seen.length > 2 && this.#seen[1][0] < now - 8) this.#seen.shift();
  }

  get value() {
    const [first, last] = [this.#seen[0], this.#seen.at(-1)];
    return !first || last[0] - first[0] < 0.8 ? null : (last[1] - first[1]) / (last[0] - first[0]);
  }
}
