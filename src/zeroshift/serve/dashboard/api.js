// Requests to the service. The key is kept for this tab only, and is sent as a header, never as a cookie.

const STORED = "zeroshift-key";
const SILENCE_SECONDS = 45; // the service sends a line every 15 s at least
const POLL_SECONDS = 3;

export class ServiceError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const storedKey = () => sessionStorage.getItem(STORED);
export const storeKey = (key) => sessionStorage.setItem(STORED, key);
export const forgetKey = () => sessionStorage.removeItem(STORED);

export const streamPath = (id, rest = "") => `v1/streams/${id.split("/").map(encodeURIComponent).join("/")}${rest}`;

// The answer to a request; ServiceError if it is refused, and with status 0 if there is none.
export async function send(path, { method = "GET", body = undefined, signal = undefined } = {}) {
  const key = storedKey();
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, cache: "no-store", credentials: "omit",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServiceError(0, "no_answer", "The service does not answer.");
  }
  if (response.ok) return response;
  const content = await response.json().catch(() => ({}));
  const message = content.error?.message ?? `The service answered ${response.status}.`;
  throw new ServiceError(response.status, content.error?.code, message);
}

export async function request(path, options = {}) {
  const response = await send(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServiceError(0, "no_answer", "The service ended while it answered.");
  }
}

// Whether asking again is of no use: the key, its scope, or the stream is the reason.
export const isRefusal = (error) => [401, 403, 404].includes(error.status);

// Wait some seconds, or until `signal` says that nobody needs it any more.
const pause = (seconds, signal) =>
  new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, 1000 * seconds);
    signal.addEventListener("abort", end);
  });

const visible = (signal) =>
  new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });

// Follow the server-sent events at `path`, and connect again when they end. EventSource cannot send a key, therefore
// this reads the answer of a request as it comes. Without events, `refresh` is called every few seconds instead.
// `onState` gets "live", "polling" or "offline". In a hidden tab nothing is requested: a browser has few connections.
export function follow(path, { onEvent, onState, refresh, signal }) {
  let failures = 0;

  async function listen() {
    const connection = new AbortController();
    const end = () => connection.abort();
    const hide = () => document.hidden && end();
    signal.addEventListener("abort", end, { once: true });
    document.addEventListener("visibilitychange", hide);
    let silence = setTimeout(end, 1000 * SILENCE_SECONDS);
    try {
      const response = await send(path, { signal: connection.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let waiting = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(end, 1000 * SILENCE_SECONDS);
        const blocks = (waiting + value).split("\n\n");
        waiting = blocks.pop();
        failures = 0;
        onState("live");
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").map((line) => {
            const at = line.indexOf(": ");
            return [line.slice(0, at), line.slice(at + 2)];
          }));
          if (fields.event) onEvent(fields.event, JSON.parse(fields.data));
        }
      }
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", hide);
      end();
    }
  }

  async function run() {
    while (!signal.aborted) {
      await visible(signal);
      if (signal.aborted) return;
      let reason = null;
      try {
        await listen();
      } catch (error) {
        reason = error;
      }
      if (signal.aborted) return;
      if (document.hidden) continue;
      failures += 1;
      if (reason !== null && isRefusal(reason)) return onState("refused", reason);
      if (failures === 1) { // it may have been a break of a moment
        await pause(0.3, signal);
        continue;
      }
      // Ask every few seconds, and try for events again less and less often.
      for (let poll = 0; poll < Math.min(failures, 5) && !signal.aborted && !document.hidden; poll += 1) {
        try {
          await refresh();
          onState("polling");
        } catch (error) {
          if (signal.aborted) return;
          if (isRefusal(error)) return onState("refused", error);
          if (error.status === 0) {
            onState("offline");
            break;
          }
        }
        await pause(POLL_SECONDS, signal);
      }
      if (failures > 1) await pause(0.7 + 0.6 * Math.random(), signal);
    }
  }

  run();
}
