// The last rebalances: one bar for each group epoch, and the details of the selected one.

import { byId, count, duration, element, keyed, named, setHidden, setText, timeOf } from "./dom.js";
import { pathOf, request } from "./server.js";

const LABEL_PX = 56; // the least distance of two times below the bars
const MAX_GAP_PX = 48;

let selected = null; // an epoch; null: the latest
let complete = null; // the selected rebalance with all of its moves

const outcome = (rebalance, isLatest) => (rebalance.finished_ms >= 0 ? "finished" : isLatest ? "running" : "overtaken");

function describe(rebalance, state) {
  const parts = [`Epoch ${rebalance.epoch}`, rebalance.causes.join("; ") || "no cause known"];
  if (rebalance.moved) parts.push(`${rebalance.moved} moved`);
  if (rebalance.started) parts.push(`${rebalance.started} started`);
  if (state === "running") parts.push("under way");
  if (state === "overtaken") parts.push("overtaken by the next epoch");
  return parts.join(", ");
}

/** Draw bars and details. */
export function drawTimeline(model) {
  const history = model.history();
  const latest = history.at(-1);
  const largest = Math.max(1, ...history.map((each) => Math.log2(1 + each.moved + each.started)));
  const box = byId("timeline");
  const atEnd = box.scrollLeft + box.clientWidth >= box.scrollWidth - 4;
  if (selected !== null && !model.rebalances.has(selected)) selected = null;
  const shown = model.rebalances.get(selected) ?? latest;
  keyed(
    box,
    history,
    (rebalance) => rebalance.epoch,
    (rebalance) => element("div", { role: "option", onclick: () => select(model, rebalance.epoch) }, element("span"), element("time", { "aria-hidden": "true" })),
    (bar, rebalance) => {
      const state = outcome(rebalance, rebalance === latest);
      bar.className = `epoch ${state}${rebalance.delayed.length ? " delayed" : ""}`;
      bar.setAttribute("aria-label", describe(rebalance, state));
      bar.title = describe(rebalance, state);
      bar.setAttribute("aria-selected", String(rebalance === shown));
      bar.tabIndex = rebalance === shown ? 0 : -1;
      bar.style.marginLeft = `${gapBefore(rebalance, history)}px`;
      bar.firstElementChild.style.height = `${8 + (92 * Math.log2(1 + rebalance.moved + rebalance.started)) / largest}%`;
    },
  );
  drawAxis(box, history);
  box.onkeydown = (event) => onKey(event, model, history, shown);
  if (atEnd) box.scrollLeft = box.scrollWidth;
  if (shown) drawDetails(shown, outcome(shown, shown === latest), model);
  else byId("rebalance").replaceChildren();
}

/** The space before a bar: the wider the longer the group was quiet. */
function gapBefore(rebalance, history) {
  const before = history[history.indexOf(rebalance) - 1];
  const quiet = before ? (rebalance.started_ms - before.started_ms) / 10000 : 0;
  return quiet > 1 ? Math.min(MAX_GAP_PX, Math.round(4 * Math.log2(quiet))) : 0;
}

const dayOf = (ms) => new Date(ms).toLocaleDateString("en-CA");
const shortTime = (ms) => timeOf(ms).slice(0, 5);

/** The time axis: when rebalances began, at as many bars as there is room; with the day where it changes. */
function drawAxis(box, history) {
  let last = -LABEL_PX;
  let day = "";
  const places = history.map((_, index) => box.children[index].offsetLeft); // before any text is set: one layout
  history.forEach((rebalance, index) => {
    const label = box.children[index].lastElementChild;
    const isNewDay = dayOf(rebalance.started_ms) !== day;
    const isShown = places[index] - last >= LABEL_PX;
    setHidden(label, !isShown);
    if (!isShown) return;
    setText(label, isNewDay ? `${dayOf(rebalance.started_ms).slice(5)} ${shortTime(rebalance.started_ms)}` : shortTime(rebalance.started_ms));
    [last, day] = [places[index] + (isNewDay ? 30 : 0), dayOf(rebalance.started_ms)];
  });
}

function select(model, epoch) {
  selected = epoch === model.history().at(-1)?.epoch ? null : epoch;
  complete = null;
  drawTimeline(model);
  const bar = byId("timeline").querySelector('[aria-selected="true"]');
  bar?.focus();
}

function onKey(event, model, history, shown) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -history.length, End: history.length };
  if (!(event.key in steps) || !shown) return;
  event.preventDefault();
  const index = Math.min(Math.max(history.indexOf(shown) + steps[event.key], 0), history.length - 1);
  select(model, history[index].epoch);
}

function drawDetails(rebalance, state, model) {
  const { epoch, finished_ms: finished, started_ms: started } = rebalance;
  const lines = [["Cause", rebalance.causes.join("; ") || "not known"], ["Began", timeOf(started)]];
  if (state === "finished") lines.push(["Took", duration(finished - started)]);
  else lines.push(["State", state === "running" ? "under way" : "overtaken by the next epoch"]);
  if (rebalance.computed_by) {
    lines.push(["Computed by", rebalance.computed_by + (rebalance.assignor ? ` with ${rebalance.assignor}` : "")]);
  }
  lines.push(["Moved", count(rebalance.moved, "unit") + (rebalance.moved ? `, ${rebalance.max_downtime_ms >= 0 ? `maximum downtime ${duration(rebalance.max_downtime_ms)}, ` : ""}handover ${duration(rebalance.max_handover_ms)}` : "")]);
  if (rebalance.started) lines.push(["Started", count(rebalance.started, "unit")]);
  for (const delay of rebalance.delayed) {
    const reason = delay.worker ? ` for ${delay.worker}` : ", left out by the assignor";
    lines.push(["Delayed", `${count(delay.count, "unit")}${reason} until ${timeOf(delay.until_ms)}`]);
  }
  const box = byId("rebalance");
  if (!box.firstElementChild) {
    box.append(element("h3"), element("dl", { className: "facts" }), element("div", { className: "scroll" }), element("button", { hidden: true }, "Show all moves"));
  }
  const [heading, facts, scroll, all] = box.children;
  setText(heading, `Epoch ${epoch}`);
  keyed(facts, lines.map((line, index) => [...line, index]), ([name, , index]) => `${index} ${name}`, ([name]) => element("div", {}, element("dt", {}, name), element("dd")), (line, [, text]) => setText(line.lastElementChild, text));
  const moves = complete?.epoch === epoch ? complete.moves : rebalance.moves;
  drawTable(scroll, moves);
  all.hidden = moves.length >= rebalance.moved + rebalance.started || complete?.epoch === epoch || moves.length < 20;
  setText(all, "Show all moves");
  all.onclick = async () => {
    let found;
    try {
      found = (await request("GET", `${pathOf("groups", model.group.id)}/rebalances`)).find((each) => each.epoch === epoch);
    } catch (error) {
      setText(all, `Show all moves (${error.message})`);
    }
    if (!found) return;
    complete = { epoch, moves: found.moves.map((move) => ({ ...move, unit: move.task < 0 ? move.connector : `${move.connector}-${move.task}`, from: move.source, to: move.target })) };
    drawTimeline(model);
  };
}

const lengthOf = (move) => Math.max(move.downtime_ms, move.handover_ms);
const downtime = (move) => {
  if (!move.from) return "started";
  if (move.handover_ms < 0) return "moving";
  const handover = `handover ${duration(move.handover_ms)}`;
  if (move.downtime_ms === -2) return `${handover}, not started`;
  if (move.downtime_ms === -3) return `${handover}, downtime not known any more`;
  return move.downtime_ms >= 0 ? `${duration(move.downtime_ms)} (${handover})` : `${handover}, not running again`;
};

function drawTable(box, moves) {
  if (!moves.length) return void box.replaceChildren();
  if (!box.firstElementChild) {
    const header = ["Unit", "From", "To", "Downtime"].map((text) => element("th", { scope: "col" }, text));
    box.append(element("table", {}, element("caption", {}, "Moves, the longest handover first"), element("thead", {}, element("tr", {}, ...header)), element("tbody")));
  }
  const longest = Math.max(1, ...moves.map(lengthOf));
  keyed(
    box.querySelector("tbody"),
    moves,
    (move) => JSON.stringify([move.unit, move.from, move.to, move.assigned_ms]),
    (move) => element("tr", {}, element("td", {}, named(move.unit)), element("td", {}, named(move.from || "–")), element("td", {}, named(move.to || "no worker")),
      element("td", { className: "downtime" }, element("span"), element("i", { "aria-hidden": "true" }))),
    (row, move) => {
      setText(row.lastElementChild.firstElementChild, downtime(move));
      row.lastElementChild.lastElementChild.style.width = `${(100 * Math.max(0, lengthOf(move))) / longest}%`;
    },
  );
}
