// The connectors, those that have failed first: state, failures with their cause, tasks by state, rows, lag, errors, changes.

import { byId, byName, causeOf, count, drawBar, element, keyed, lagText, MANY, named, NEW_CARDS, setHidden, setText, statesText, sum } from "./dom.js";
import { drawFailures } from "./detail.js";
import { unitName } from "./model.js";
import { createSparks, drawSparks, recentErrors } from "./spark.js";

const LIST_STEP = 200;
const MAX_FAILURES = 5; // in one card

/** Units that have failed or stalled, the connector itself among them. */
export const failedUnits = (connector) => (connector.tasks.FAILED ?? 0) + (connector.tasks.STALLED ?? 0) + (connector.state === "FAILED" || connector.state === "STALLED" ? 1 : 0);

/** Whether a connector has the words of a search in its name, its state, what it is or its errors. */
function matches(name, connector, words, model) {
  if (!words.length) return true;
  const failures = [...(model.failuresOfConnector.get(name)?.values() ?? [])].join(" ");
  const states = `${connector.target_state} ${connector.state} ${Object.keys(connector.tasks).join(" ")}`;
  const text = `${name} ${connector.what} ${states} ${failures}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

let names = []; // in order; to sort 500 takes most of a frame

function inOrder(connectors) {
  if (names.length !== connectors.size || names.some((name) => !connectors.has(name))) names = [...connectors].sort(byName).map(([name]) => name);
  return names.map((name) => [name, connectors.get(name)]);
}

/** Update the connectors that have changed; what is not done at the time `until` remains in `model.dirty`. */
export function drawConnectors(model, actions, until, search) {
  const list = byId("connectors");
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const sorted = inOrder(model.connectors);
  const all = [...sorted.filter(([, each]) => failedUnits(each)), ...sorted.filter(([, each]) => !failedUnits(each))];
  const known = list.keyedChildren ?? new Map();
  let created = 0;
  const shown = all.filter(([name]) => known.has(name) || ++created <= NEW_CARDS);
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  let hits = 0;
  keyed(list, shown, ([name]) => name, create, (row, [name, connector]) => {
    const isHit = matches(name, connector, words, model);
    hits += isHit;
    setHidden(row, !isHit);
    if (!model.dirty.connectors.has(name) || performance.now() > until) return;
    model.dirty.connectors.delete(name);
    update(row, name, connector, model, actions);
  });
  if (focused && document.activeElement !== focused && focused.isConnected) focused.focus({ preventScroll: true }); // its card has moved
  for (const name of model.dirty.connectors) if (!model.connectors.has(name)) model.dirty.connectors.delete(name);
  list.classList.toggle("many", all.length > MANY);
  setHidden(byId("new-connector"), !actions.mayCreate);
  const hint = byId("connectors-hint");
  const foreign = actions.mayChange && !actions.hasConnectorRoutes ? "This server changes the connectors of another group only." : "";
  const found = words.length ? `${hits.toLocaleString("en")} of ${count(all.length, "connector")} found.` : "";
  setText(hint, all.length ? [found, foreign].filter(Boolean).join(" ") : "No connectors.");
  setHidden(hint, !hint.textContent);
}

const CHANGES = [
  ["pause", "Pause", (state) => state === "RUNNING"],
  ["resume", "Resume", (state) => state !== "RUNNING"],
  ["stop", "Stop", (state) => state !== "STOPPED"],
  ["restart", "Restart", (state) => state === "RUNNING"],
];

function create([name]) {
  // Hidden until `update`, which may be in a later frame: before, a button would do nothing.
  const toggle = element("button", { hidden: true, "aria-expanded": "false", "aria-label": `Tasks of ${name}` }, "Tasks");
  const buttons = CHANGES.map(([action, label]) =>
    element("button", { hidden: true, className: "change", "data-action": action, "aria-label": `${label} ${name}` }, label),
  );
  const row = element(
    "li",
    { className: "card connector", "data-connector": name },
    element("h3", {}, element("a", { className: "open-detail" }, named(name))),
    element("span", { className: "badge" }),
    element("ul", { className: "plain failures", "aria-label": `Failures of ${name}`, hidden: true }),
    element("p", { className: "numbers" }),
    element("p", { className: "rate" }),
    createSparks(),
    element("div", { className: "bar", "aria-hidden": "true" }),
    element("p", { className: "buttons" }, toggle, ...buttons),
    element("div", { className: "tasks", hidden: true },
      element("label", {}, element("input", { type: "checkbox" }), " only those that do not run"),
      element("ul", { className: "plain units" }),
      element("button", { hidden: true }, "Show more")),
  );
  row.limit = LIST_STEP;
  return row;
}

function update(row, name, connector, model, actions) {
  const badge = row.querySelector(".badge");
  const target = connector.target_state;
  const isBad = connector.state === "FAILED" || connector.state === "STALLED";
  const failed = failedUnits(connector);
  const also = target === "RUNNING" && isBad ? `, connector ${connector.state.toLowerCase()}` : failed ? `, ${failed.toLocaleString("en")} failed` : "";
  setText(badge, target.toLowerCase() + also);
  badge.className = `badge ${failed ? "FAILED" : target}`;
  row.classList.toggle("bad", failed > 0);
  const link = row.querySelector(".open-detail");
  link.href = actions.pathOfConnector(name);
  link.onclick = (event) => actions.openConnector(event, name);
  drawCauses(row.querySelector(".failures"), name, connector, model);
  const total = sum(connector.tasks);
  setText(row.querySelector(".numbers"), [connector.what, total ? `${count(total, "task")}: ${statesText(connector.tasks)}` : "no tasks"].filter(Boolean).join(" · "));
  const rate = row.querySelector(".rate");
  const lag = lagText(connector.lag);
  const history = model.histories[name];
  const recent = recentErrors(history);
  const known = [
    connector.rows_per_s === null ? "" : `${connector.rows_per_s.toLocaleString("en")} rows/s`,
    lag && `lag ${lag}`,
    connector.dead_letters ? count(connector.dead_letters, "dead letter") : "",
    connector.unfinished ? count(connector.unfinished, "unfinished file") : "",
    connector.unreadable ? count(connector.unreadable, "unreadable file") : "",
    recent ? `${count(recent, "error")} within the last hour` : "",
  ];
  setText(rate, known.filter(Boolean).join(", "));
  setHidden(rate, !rate.textContent);
  drawSparks(row.querySelector(".sparks"), history);
  drawBar(row.querySelector(".bar"), connector.tasks, total);
  const redraw = () => drawTasks(row, name, model, actions);
  for (const [action, label, applies] of CHANGES) {
    const button = row.querySelector(`[data-action="${action}"]`);
    setHidden(button, !actions.may("alter", name) || !applies(target));
    button.onclick = () => actions.changeConnector(name, action, label);
  }
  const toggle = row.querySelector("button[aria-expanded]");
  toggle.onclick = () => {
    toggle.setAttribute("aria-expanded", String(toggle.getAttribute("aria-expanded") === "false"));
    redraw();
  };
  setHidden(toggle, !model.unitsOfConnector.get(name)?.size);
  row.querySelector("input").onchange = redraw;
  row.querySelector(".tasks").lastElementChild.onclick = () => {
    row.limit += LIST_STEP;
    redraw();
  };
  redraw();
}

/** The first failures of a connector with their causes, and how many there are besides. */
function drawCauses(list, name, connector, model) {
  const failures = [...(model.failuresOfConnector.get(name) ?? [])].map(([task, message]) => {
    const [cause, attempt] = causeOf(message);
    return { task, unit: unitName(name, task), worker: model.units.get(`${task}/${name}`)?.worker ?? "", cause, attempt };
  });
  failures.sort((a, b) => a.task - b.task);
  drawFailures(list, failures.slice(0, MAX_FAILURES));
  const more = failedUnits(connector) - Math.min(failures.length, MAX_FAILURES);
  const rest = list.nextElementSibling.classList.contains("more-failures") ? list.nextElementSibling : element("p", { className: "hint more-failures" });
  if (more > 0) {
    setText(rest, `and ${count(more, "more unit")} that ${more === 1 ? "has" : "have"} failed`);
    if (!rest.isConnected) list.after(rest);
  } else rest.remove();
  setHidden(list, failures.length === 0);
}

function drawTasks(row, name, model, actions) {
  const box = row.querySelector(".tasks");
  const open = row.querySelector("button[aria-expanded]").getAttribute("aria-expanded") === "true";
  setHidden(box, !open);
  row.classList.toggle("open", open);
  const onlyOthers = row.querySelector("input").checked;
  const units = open ? model.unitsOf(name).filter((unit) => !onlyOthers || unit.state !== "RUNNING") : [];
  setHidden(box.lastElementChild, units.length <= row.limit);
  keyed(
    row.querySelector(".units"),
    units.slice(0, row.limit),
    (unit) => unit.task,
    (unit) => element("li", {}, element("i", { className: "dot" }), element("span", {}, unit.task < 0 ? "connector" : `task ${unit.task}`), element("span", { className: "hint" }),
      element("button", { className: "small", "aria-label": `Restart ${unitName(name, unit.task)}` }, "Restart")),
    (line, unit) => {
      line.firstElementChild.className = `dot ${unit.state}`;
      const hint = unit.worker ? `${unit.state.toLowerCase()} on ${unit.worker}` : unit.state.toLowerCase();
      const lag = lagText(model.lags.get(`${unit.task}/${name}`));
      setText(line.querySelector(".hint"), lag ? `${hint}, lag ${lag}` : hint);
      const button = line.lastElementChild;
      setHidden(button, !actions.may("alter", name) || !unit.worker);
      button.onclick = () => actions.restartTask(name, unit.task);
    },
  );
}
