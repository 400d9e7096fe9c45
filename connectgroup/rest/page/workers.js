// The workers: one card each, with its load, its units as dots on a canvas, and on demand as a list.

import { age, byId, byName, bytesText, count, drawBar, element, keyed, MANY, named, NEW_CARDS, setHidden, setText, STATES, statesText, sum } from "./dom.js";
import { unitName } from "./model.js";

const MAX_DOTS = 1000; // of one worker; with more the bar says it
const LIST_STEP = 200;

let colours = {};

/** Read the colours of the states from the style sheet; again when the colour scheme changes. */
export function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = Object.fromEntries(STATES.map((state) => [state, style.getPropertyValue(`--${state.toLowerCase()}`).trim()]));
}

export function showLegend() {
  byId("legend").replaceChildren(
    ...STATES.map((state) => element("span", {}, element("i", { className: `dot ${state}` }), state.toLowerCase())),
  );
}

/** The workers, those that are lost but for which units are delayed, and those that have just left. */
function cards(model) {
  const found = [...model.workers].map(([id, worker]) => ({ id, worker }));
  for (const delay of model.delays.values()) {
    if (delay.worker && !model.workers.has(delay.worker)) found.push({ id: delay.worker, worker: null, delay });
  }
  for (const id of model.gone.keys()) {
    if (!found.some((card) => card.id === id)) found.push({ id, worker: null });
  }
  return found.sort((a, b) => byName([a.id], [b.id]));
}

/** Update the cards of the workers that have changed; what is not done at the time `until` remains in `model.dirty`. */
export function drawWorkers(model, actions, until, search) {
  const all = cards(model);
  const present = byId("workers").keyedChildren ?? new Map();
  let created = 0;
  const shown = all.filter((card) => present.has(card.id) || ++created <= NEW_CARDS);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = (item) => words.every((word) => `${item.id} ${item.worker?.host ?? ""} ${item.worker?.state ?? "lost"}`.toLowerCase().includes(word));
  const full = Math.max(1, ...all.map(({ worker }) => Math.max(worker ? sum(worker.units) : 0, worker?.capacity ?? 0)));
  const rescaled = byId("workers").dataset.full !== String(full);
  byId("workers").dataset.full = String(full);
  byId("workers").classList.toggle("many", all.length > MANY);
  keyed(byId("workers"), shown, (card) => card.id, create, (card, item) => {
    setHidden(card, words.length > 0 && !hits(item));
    if (rescaled) model.dirty.workers.add(item.id);
    if (item.worker !== null && !model.dirty.workers.has(item.id)) return;
    if (performance.now() > until) {
      model.dirty.workers.add(item.id);
      return;
    }
    model.dirty.workers.delete(item.id);
    update(card, item, model, actions, full);
  });
  for (const { id } of created > NEW_CARDS ? all : []) if (!byId("workers").keyedChildren.has(id)) model.dirty.workers.add(id);
  const known = new Set(all.map((card) => card.id));
  for (const id of model.dirty.workers) if (!known.has(id)) model.dirty.workers.delete(id);
}

function create({ id }) {
  const list = element("ul", { className: "plain units", hidden: true });
  const more = element("button", { hidden: true }, "Show more");
  const toggle = element("button", { hidden: true, "aria-expanded": "false" }, "Tasks"); // until `update`, perhaps in a later frame
  const card = element(
    "li",
    { className: "card worker", "data-worker": id },
    element("h3", {}, named(id)),
    element("span", { className: "badge" }),
    element("p", { className: "numbers" }),
    element("p", { className: "machine hint" }),
    element("div", { className: "bar", "aria-hidden": "true" }),
    element("canvas", { className: "dots", role: "img" }),
    element("p", { className: "buttons" }, toggle, element("button", { className: "restart", hidden: true }, "Restart worker"), element("button", { className: "drain", hidden: true }, "Drain")),
    list,
    more,
  );
  toggle.setAttribute("aria-label", `Tasks of worker ${id}`);
  card.limit = LIST_STEP;
  return card;
}

function update(card, { id, worker, delay }, model, actions, full) {
  const badge = card.querySelector(".badge");
  card.classList.toggle("lost", worker === null);
  const units = worker ? model.tasksOf(id) : [];
  if (worker === null) {
    setText(badge, delay ? "lost" : "left");
    setText(card.querySelector(".numbers"), delay ? `${count(delay.count, "unit")} delayed for its return` : "no longer in the group");
  } else {
    setText(badge, worker.state.toLowerCase());
    setText(card.querySelector(".numbers"), numbers(worker));
  }
  badge.className = `badge ${worker === null ? "lost" : worker.state}`;
  setText(card.querySelector(".machine"), worker === null ? "" : machine(worker, model.now()));
  drawBar(card.querySelector(".bar"), worker?.units ?? {}, full);
  drawDots(card.querySelector("canvas"), units, worker ? statesText(worker.units) : "no tasks");
  const toggle = card.querySelector("button[aria-expanded]");
  const redraw = () => drawList(card, model.tasksOf(id));
  toggle.onclick = () => {
    toggle.setAttribute("aria-expanded", String(toggle.getAttribute("aria-expanded") === "false"));
    redraw();
  };
  card.lastElementChild.onclick = () => {
    card.limit += LIST_STEP;
    redraw();
  };
  setHidden(toggle, units.length === 0);
  const restart = card.querySelector(".restart");
  setHidden(restart, worker === null || !actions.mayAlterGroup || worker.state === "AWAY");
  restart.onclick = () => actions.restartWorker(id);
  restart.setAttribute("aria-label", `Restart worker ${id}`);
  const drain = card.querySelector(".drain");
  setHidden(drain, worker === null || !actions.mayAlterGroup || worker.state === "AWAY" || worker.state === "DRAINING");
  drain.onclick = () => actions.drainWorker(id);
  drain.setAttribute("aria-label", `Drain worker ${id}`);
  drawList(card, units);
}

/** Where a worker runs, for how long at the time `now` of the server's clock, and its memory. */
function machine(worker, now) {
  const parts = [`host ${worker.host || worker.address || "unknown"}`];
  if (worker.started_ms) parts.push(`up ${age(now - worker.started_ms)}`);
  if (worker.memory_bytes) parts.push(bytesText(worker.memory_bytes));
  return parts.join(" · ");
}

function numbers(worker) {
  const parts = [count(sum(worker.units), "unit") + (worker.capacity ? ` of ${worker.capacity}` : "")];
  if (sum(worker.units) !== (worker.units.RUNNING ?? 0)) parts[0] += `: ${statesText(worker.units)}`;
  if (worker.revoking) parts.push(`${worker.revoking} to revoke`);
  parts.push(`epoch ${worker.epoch}`);
  if (worker.rack) parts.push(`rack ${worker.rack}`);
  return parts.join(" · ");
}

/** One square for each unit; smaller ones if there are many. */
function drawDots(canvas, units, text) {
  const shown = units.slice(0, MAX_DOTS);
  const isSmall = byId("workers").classList.contains("many");
  const cell = shown.length > 400 ? 5 : shown.length > 150 ? 7 : isSmall ? 8 : 11;
  const columns = Math.floor((isSmall ? 160 : 220) / cell);
  const rows = Math.ceil(shown.length / columns);
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [columns * cell, rows * cell];
  canvas.setAttribute("aria-label", text);
  setHidden(canvas, shown.length === 0);
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const size = cell - (cell > 6 ? 2 : 1);
  shown.forEach((unit, index) => {
    const [x, y] = [(index % columns) * cell, Math.floor(index / columns) * cell];
    context.fillStyle = colours[unit.state] ?? colours.STOPPED;
    context.fillRect(x, y, size, size);
    if ((unit.state === "FAILED" || unit.state === "STALLED") && size > 6) {
      // A cross: the state must not be visible by its colour alone.
      context.fillStyle = colours.STOPPED;
      context.fillRect(x + size / 2 - 1, y + 1, 2, size - 2);
      context.fillRect(x + 1, y + size / 2 - 1, size - 2, 2);
    }
  });
}

function drawList(card, units) {
  const toggle = card.querySelector("button[aria-expanded]");
  const [list, more] = [card.querySelector(".units"), card.lastElementChild];
  const open = toggle.getAttribute("aria-expanded") === "true" && units.length > 0;
  setHidden(list, !open);
  card.classList.toggle("open", open);
  setHidden(more, !open || units.length <= card.limit);
  keyed(
    list,
    open ? units.slice(0, card.limit) : [],
    (unit) => unitName(unit.connector, unit.task),
    (unit) => element("li", {}, element("i", { className: "dot" }), named(unitName(unit.connector, unit.task)), element("span", { className: "hint" })),
    (row, unit) => {
      row.firstElementChild.className = `dot ${unit.state}`;
      setText(row.lastElementChild, unit.state.toLowerCase());
    },
  );
}
