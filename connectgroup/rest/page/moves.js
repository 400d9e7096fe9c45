// Moves of units, drawn between the cards of the workers as they happen: one arc for all moves of a pair of workers.

import { byId } from "./dom.js";

const SHOWN_MS = 2500;
const MAX_ARCS = 24;
const MAX_PLACES = 5000;
const CROWDED = 6; // pairs; with more, the numbers are next to the cards that gain units
const SVG = "http://www.w3.org/2000/svg";

const lastPlace = new Map(); // worker -> where its card is, or was before it was removed

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Note where the cards are; before they are updated, so that a worker that goes away keeps its place. */
export function notePlaces() {
  const area = byId("worker-area").getBoundingClientRect();
  if (lastPlace.size > MAX_PLACES) lastPlace.clear();
  for (const card of byId("workers").children) {
    const box = card.getBoundingClientRect();
    lastPlace.set(card.dataset.worker, { x: box.left - area.left + box.width / 2, y: box.top - area.top + box.height / 2 });
  }
  return area;
}

/** Draw moves `{unit, from, to}`. */
export function drawMoves(moves) {
  if (!moves.length) return;
  const area = notePlaces();
  const pairs = new Map();
  for (const move of moves) {
    const key = JSON.stringify([move.from, move.to]);
    pairs.set(key, [...(pairs.get(key) ?? []), move]);
  }
  const largest = [...pairs.values()].sort((a, b) => b.length - a.length).slice(0, MAX_ARCS);
  const isCrowded = largest.length > CROWDED;
  const picture = shape("svg", { class: isCrowded ? "moves crowded" : "moves", width: area.width, height: area.height, "aria-hidden": "true" });
  for (const group of largest) {
    const [from, to] = [lastPlace.get(group[0].from), lastPlace.get(group[0].to)];
    if (!from || !to) continue;
    const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 - 30 - Math.abs(from.x - to.x) / 8 };
    picture.append(
      shape("path", { class: "arc", d: `M${from.x} ${from.y} Q${middle.x} ${middle.y} ${to.x} ${to.y}`, pathLength: 1 }),
      shape("circle", { class: "arrival", cx: to.x, cy: to.y, r: 6 }),
      isCrowded
        ? shape("text", { class: "amount", x: to.x + 22, y: to.y + 5 }, `+${group.length}`)
        : shape("text", { class: "amount", x: (from.x + 2 * middle.x + to.x) / 4, y: (from.y + 2 * middle.y + to.y) / 4 - 4 },
          group.length === 1 ? group[0].unit : `${group.length} units`),
    );
  }
  byId("worker-area").append(picture);
  setTimeout(() => picture.remove(), SHOWN_MS);
}
