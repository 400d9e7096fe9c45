// The connectors: state, numbers of tasks by state, rows per second, changes, and on demand the tasks.

import { byId, byName, bytesText, count, drawBar, element, keyed, MANY, named, setHidden, setText, statesText, sum } from "./dom.js";

const LIST_STEP = 200;

/** Update the connectors that have changed; what is not done at the time `until` remains in `model.dirty`. */
export function drawConnectors(model, actions, until) {
  const shown = [...model.connectors].sort(byName);
  keyed(byId("connectors"), shown, ([name]) => name, create, (row, [name, connector]) => {
    if (!model.dirty.connectors.has(name) || performance.now() > until) return;
    model.dirty.connectors.delete(name);
    update(row, name, connector, model, actions);
  });
  for (const name of model.dirty.connectors) if (!model.connectors.has(name)) model.dirty.connectors.delete(name);
  byId("connectors").classList.toggle("many", shown.length > MANY);
  const hint = byId("connectors-hint");
  setHidden(hint, shown.length > 0 && !(actions.mayChange && !actions.hasConnectorRoutes));
  setText(hint, shown.length ? "This server changes the connectors of another group only." : "No connectors.");
}

/** What is not read yet, of `[records, bytes, files]`; empty if nothing is known. */
function lagText([records, bytes, files] = [null, null, null]) {
  const parts = [];
  if (records !== null) parts.push(count(records, "record"));
  if (files !== null) parts.push(count(files, "file"));
  if (bytes !== null) parts.push(bytesText(bytes));
  return parts.join(", ");
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
    element("h3", {}, named(name)),
    element("span", { className: "badge" }),
    element("p", { className: "numbers" }),
    element("p", { className: "rate" }),
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
  setText(badge, target.toLowerCase() + (target === "RUNNING" && connector.state === "FAILED" ? ", connector failed" : ""));
  badge.className = `badge ${connector.state === "FAILED" ? "FAILED" : target}`;
  const total = sum(connector.tasks);
  setText(row.querySelector(".numbers"), total ? `${count(total, "task")}: ${statesText(connector.tasks)}` : "no tasks");
  const rate = row.querySelector(".rate");
  const lag = lagText(connector.lag);
  const known = [connector.rows_per_s === null ? "" : `${connector.rows_per_s.toLocaleString("en")} rows/s`, lag && `lag ${lag}`, connector.dead_letters ? count(connector.dead_letters, "dead letter") : ""];
  setText(rate, known.filter(Boolean).join(", "));
  setHidden(rate, !rate.textContent);
  drawBar(row.querySelector(".bar"), connector.tasks, total);
  const redraw = () => drawTasks(row, name, model, actions);
  for (const [action, label, applies] of CHANGES) {
    const button = row.querySelector(`[data-action="${action}"]`);
    setHidden(button, !actions.mayChange || !actions.hasConnectorRoutes || !applies(target));
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
      element("button", { className: "small", "aria-label": `Restart ${unit.task < 0 ? name : `${name}-${unit.task}`}` }, "Restart")),
    (line, unit) => {
      line.firstElementChild.className = `dot ${unit.state}`;
      const hint = unit.worker ? `${unit.state.toLowerCase()} on ${unit.worker}` : unit.state.toLowerCase();
      const lag = lagText(model.lags.get(`${unit.task}/${name}`));
      setText(line.querySelector(".hint"), lag ? `${hint}, lag ${lag}` : hint);
      const button = line.lastElementChild;
      setHidden(button, !actions.mayChange || !actions.hasConnectorRoutes || !unit.worker);
      button.onclick = () => actions.restartTask(name, unit.task);
    },
  );
}
