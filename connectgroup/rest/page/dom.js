// Builds and updates elements. Text always becomes a text node, never HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties (`className`, `onclick`), attributes (`aria-*`, `role`, `data-*`) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text without characters that are invisible or reverse the text around them: they become `\u202e`. */
export const visible = (text) => text.replace(INVISIBLE, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A name that was chosen by a user; in Arabic, say, its direction does not affect the text around it. */
export const named = (name) => element("bdi", { className: "name" }, name);

/** Set the text of an element; unchanged text is left alone. */
export function setText(target, text) {
  const shown = visible(text);
  if (target.textContent !== shown) target.textContent = shown;
}

export function setHidden(target, hidden) {
  if (target.hidden !== hidden) target.hidden = hidden;
}

/**
 * Make the children of a container those of `items`, in order. Elements of known keys are kept, so focus and open
 * details survive; of items with the same key the first counts. `create(item)` returns an element; `update(element, item)` is called for all.
 */
export function keyed(container, items, keyOf, create, update = () => {}) {
  const known = container.keyedChildren ?? new Map();
  const kept = new Map();
  const keys = new Set(items.map(keyOf));
  // First: otherwise the elements after them would be moved, and an element that is moved loses the focus.
  for (const [key, child] of known) if (!keys.has(key)) child.remove();
  let next = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (kept.has(key)) continue;
    let child = known.get(key);
    if (child === undefined) child = create(item);
    if (child === next) next = next.nextElementSibling;
    else container.insertBefore(child, next);
    kept.set(key, child);
    update(child, item);
  }
  container.keyedChildren = kept;
}

/** `5 workers`, `1 worker`. */
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** Bytes in decimal units: `2.5 MB`. */
export function bytesText(number) {
  if (number < 1000) return `${number} B`;
  for (const unit of ["kB", "MB", "GB"]) {
    number /= 1000;
    if (number < 1000) return `${number.toFixed(1)} ${unit}`;
  }
  return `${(number / 1000).toFixed(1)} TB`;
}

/** What is not read yet, of `[records, bytes, files]`; empty if nothing is known. */
export function lagText([records, bytes, files] = [null, null, null]) {
  const parts = [];
  if (records !== null) parts.push(count(records, "record"));
  if (files !== null) parts.push(count(files, "file"));
  if (bytes !== null) parts.push(bytesText(bytes));
  return parts.join(", ");
}

/** The time since, in its largest unit: `3 s`, `5 min`, `2 h`, `4 d`. */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * length || (length === 60 && seconds >= 60)) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds} s`;
}

const LAST_ERROR = ", last error: ";

/** The cause of a failure, and what its worker does about it, of the message of a unit. */
export function causeOf(message) {
  const at = message.indexOf(LAST_ERROR);
  return at < 0 ? [message, ""] : [message.slice(at + LAST_ERROR.length), message.slice(0, at)];
}

/** Milliseconds as text: `120 ms`, `3.4 s`, `2 min 5 s`. */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
}

/** A wall clock, milliseconds since 1970, as local time of day. */
export const timeOf = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export const NEW_CARDS = 10; // in one frame: each is some milliseconds of building and layout

export const MANY = 12; // cards; if there are more, they are smaller

export const STATES = ["RUNNING", "STARTING", "STALLED", "FAILED", "UNASSIGNED", "WAITING", "PAUSED", "STOPPED"];

/** `3 running, 1 failed`. */
export function statesText(states) {
  const known = [...STATES, ...Object.keys(states).filter((state) => !STATES.includes(state))];
  const parts = known.filter((state) => states[state]).map((state) => `${states[state].toLocaleString("en")} ${state.toLowerCase()}`);
  return parts.join(", ") || "none";
}

export const sum = (states) => Object.values(states).reduce((total, number) => total + number, 0);

/** Draw numbers by state as parts of a bar whose full width stands for `full`. */
export function drawBar(bar, states, full) {
  const shown = STATES.filter((state) => states[state]);
  keyed(
    bar,
    shown,
    (state) => state,
    (state) => element("span", { className: `part ${state}` }),
    (part, state) => { part.style.width = `${(100 * states[state]) / Math.max(full, 1)}%`; },
  );
}

const collator = new Intl.Collator("en", { numeric: true });

/** Sort entries `[name, ...]` by name; numbers in names count as numbers. */
export const byName = ([a], [b]) => collator.compare(a, b);
