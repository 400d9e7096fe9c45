// Requests to the server: the stream of events, and the changes that an operator makes.
// User and password are kept in memory only, and sent in a header; nothing secret is part of a URL.

const WATCHDOG_MS = 30000; // three missed keep-alives
const MAX_BACK_OFF_MS = 5000;
const REQUEST_MS = 60000; // a server that hangs must not stop what is asked for again and again

let authorization = null;

export const isSignedIn = () => authorization !== null;

export function signIn(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  authorization = `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

export function signOut() {
  authorization = null;
}

export class Rejected extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (authorization) headers.Authorization = authorization;
  // Without credentials the browser shows no dialog of its own for a 401.
  const response = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
  if (response.ok) return response;
  let message = `HTTP ${response.status}`;
  try {
    message = (await response.json()).message;
  } catch {
    // not an error of this server
  }
  throw new Rejected(response.status, message);
}

/** Send a request, with a JSON body if there is one; returns the JSON body of the response, or null. */
export async function request(method, path, body) {
  const options = { method, signal: AbortSignal.timeout(REQUEST_MS) };
  if (body !== undefined) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  const text = await (await send(path, options)).text();
  return text ? JSON.parse(text) : null;
}

/** A path from its parts, each of them encoded. */
export const pathOf = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");

/**
 * Receive the events of a group until `stop` is called; reconnects and resumes.
 *
 * @param on `event(name, data)`, `state(text)` when the connection changes, `rejected(error)` when the server
 *   rejects the stream: it returns a promise, after which the next attempt is made.
 */
export function receive(group, on) {
  let lastId = "";
  let stopped = false;
  let controller = null;
  let backOff = 500;

  async function once() {
    controller = new AbortController();
    let watchdog = null;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => controller.abort(), WATCHDOG_MS);
    };
    try {
      alive();
      const headers = lastId ? { "Last-Event-ID": lastId } : {};
      const response = await send(`${pathOf("groups", group)}/events`, { headers, signal: controller.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parts = []; // of the event that is not complete yet: a large one arrives in many pieces
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        alive();
        backOff = 500;
        parts.push(value);
        if (!value.includes("\n")) continue;
        const events = parts.splice(0).join("").split("\n\n");
        parts.push(events.pop());
        for (const text of events) {
          if (stopped) return;
          lastId = deliver(text) || lastId;
        }
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  function deliver(text) {
    const fields = { data: "", event: "", id: "" };
    for (const line of text.split("\n")) {
      const colon = line.indexOf(": ");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    if (fields.event) on.event(fields.event, JSON.parse(fields.data));
    return fields.id;
  }

  async function run() {
    while (!stopped) {
      let state = "Reconnecting";
      try {
        await once();
      } catch (error) {
        if (stopped) return;
        if (error instanceof Rejected) {
          state = "Rejected";
          await on.rejected(error);
        }
      }
      if (stopped) return;
      on.state(state);
      await new Promise((resolve) => setTimeout(resolve, backOff));
      backOff = Math.min(backOff * 2, MAX_BACK_OFF_MS);
    }
  }

  run();
  return {
    stop() {
      stopped = true;
      controller?.abort();
    },
  };
}
