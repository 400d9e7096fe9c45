// One connector: failures, tasks, the last hour, errors and dead letters, log lines, offsets, configuration.

import { age, byId, bytesText, count, element, keyed, named, setHidden, setText, timeOf } from "./dom.js";
import { createSparks, drawSparks } from "./spark.js";
import { pathOf, Rejected, request } from "./server.js";

const POLL_MS = 2000;
const MAX_TASKS = 200;
const MAX_LINES = 100;

let shown = null; // the connector that is shown; null: none
let asked = 0;
let waiting = null;
let reads = 0; // of offsets

export const detailOf = () => shown;

/** Show a connector of a group, or none (null). `context`: `{group, model, actions, now, closed}`. */
export function openDetail(name, context) {
  clearTimeout(waiting);
  asked += 1;
  shown = name;
  document.body.classList.toggle("detailed", name !== null);
  const box = byId("detail");
  setHidden(box, name === null);
  if (name === null) return void box.replaceChildren();
  box.replaceChildren(...create(name, context));
  byId("detail-name").focus({ preventScroll: true });
  scrollTo(0, 0);
  poll(asked, context);
  showOffsets(context);
}

/** Show the buttons that apply now: the state of the connector or the rights of the user have changed. */
export function drawDetailButtons({ model, actions }) {
  if (shown === null) return;
  const connector = model.connectors.get(shown);
  for (const button of byId("detail").querySelectorAll("button[data-action]")) {
    const applies = BUTTONS.find(([action]) => action === button.dataset.action)[2];
    setHidden(button, !actions.may(button.dataset.action === "delete" ? "delete" : "alter", shown) || !applies(connector.target_state));
  }
}

const BUTTONS = [
  ["edit", "Edit", () => true],
  ["pause", "Pause", (state) => state === "RUNNING"],
  ["resume", "Resume", (state) => state !== "RUNNING"],
  ["stop", "Stop", (state) => state !== "STOPPED"],
  ["restart", "Restart", (state) => state === "RUNNING"],
  ["delete", "Delete", () => true],
];

const part = (id, title, ...children) => element("section", { id: `detail-${id}`, "aria-label": title }, element("h3", {}, title), ...children);

function create(name, context) {
  const back = element("a", { href: context.pathOfGroup() }, "All connectors");
  back.onclick = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    context.closed();
  };
  const buttons = BUTTONS.map(([action, label]) => {
    const button = element("button", { hidden: true, "data-action": action }, label);
    button.onclick = () => context.act(name, action, label);
    return button;
  });
  const readAgain = element("button", { className: "small", hidden: true }, "Read again");
  readAgain.onclick = () => showOffsets(context);
  return [
    element("p", {}, back),
    element("div", { className: "heading" }, element("h2", { id: "detail-name", tabIndex: -1 }, named(name)), element("span", { className: "badge" }), element("span", { className: "hint", id: "detail-what" })),
    element("p", { className: "buttons" }, ...buttons),
    element("p", { id: "detail-error", role: "alert", hidden: true }),
    element("ul", { className: "plain failures", "aria-label": "Failures" }),
    element("p", { id: "detail-numbers", className: "hint" }),
    createSparks(),
    part("tasks", "Tasks", table(["Task", "State", "Worker", "Rows", "Rows/s", "Lag", "Errors", "Dead letters", "Last record", ""]), element("p", { className: "hint" })),
    part("errors", "Errors and dead letters", table(["When", "Task", "Worker", "Kind", "Times", "Cause"]), element("p", { className: "hint" })),
    part("log", "Log", element("ol", { className: "plain log", tabIndex: 0 }), element("p", { className: "hint" })),
    part("offsets", "Offsets", element("p", { className: "hint" }), element("p", { className: "buttons" }, readAgain), element("div", { className: "scroll" })),
    part("config", "Configuration", table(["Setting", "Value"])),
  ];
}

function table(names) {
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  return element("div", { className: "scroll", tabIndex: 0 }, element("table", {}, element("thead", {}, head), element("tbody")));
}

async function poll(number, context) {
  const isCurrent = () => number === asked && shown !== null;
  if (!document.hidden) {
    let found = null;
    let problem = "";
    try {
      found = await request("GET", pathOf("groups", context.group(), "connectors", shown));
    } catch (error) {
      problem = error instanceof Rejected ? error.message : "no response from the server";
    }
    if (!isCurrent()) return;
    setText(byId("detail-error"), problem && `${problem}. What is shown may be old.`);
    setHidden(byId("detail-error"), !problem);
    if (found) draw(found, context);
    drawDetailButtons(context);
  }
  waiting = setTimeout(() => poll(number, context), POLL_MS);
}

const unitOf = (name, task) => (task < 0 ? name : `${name}-${task}`);
const numberText = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

function lag(progress) {
  const parts = [];
  if (progress.records_lag !== null) parts.push(count(progress.records_lag, "record"));
  if (progress.files_left !== null) parts.push(count(progress.files_left, "file"));
  if (progress.bytes_lag !== null) parts.push(bytesText(progress.bytes_lag));
  for (const [name, text] of [["unfinished_files", "unfinished"], ["unreadable_files", "unreadable"], ["skipped_files", "skipped"]]) {
    if (progress[name] > 0) parts.push(`${progress[name].toLocaleString("en")} ${text}`);
  }
  return parts.join(", ") || "–";
}

function draw(found, context) {
  const box = byId("detail");
  const ago = (ms) => (ms ? `${age(context.now() - ms)} ago` : "–");
  const badge = box.querySelector(".badge");
  const failed = found.units.filter((unit) => unit.cause && (unit.state === "FAILED" || unit.state === "STALLED"));
  setText(badge, failed.length ? `${failed.length} failed` : found.target_state.toLowerCase());
  badge.className = `badge ${failed.length ? "FAILED" : found.target_state}`;
  setText(byId("detail-what"), `version ${found.version}`);
  drawFailures(box.querySelector(".failures"), failed.map((unit) => ({ unit: unitOf(found.name, unit.task), worker: unit.worker, cause: unit.cause, attempt: unit.attempt })));
  drawSparks(box.querySelector(".sparks"), found.history ?? undefined);
  drawTasks(found, ago, context);
  rows("errors", found.events.filter((each) => each.kind === "error" || each.kind === "dead_letter").reverse(), (each) => [
    ago(each.at_ms), unitOf(found.name, each.task), each.worker || "–", each.kind.replace("_", " "), String(each.count), each.message,
  ], "None since the coordinator started.");
  const lines = found.events.slice(-MAX_LINES);
  const log = byId("detail-log").querySelector("ol");
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  keyed(log, lines.map((each, index) => ({ ...each, index })), ({ index }) => index, () => element("li"), (line, each) => {
    setText(line, `${timeOf(each.at_ms)} ${each.level} ${unitOf(found.name, each.task)} ${each.worker}: ${each.message}${each.count > 1 ? ` (${each.count} times)` : ""}`);
    line.className = each.level === "INFO" ? "" : each.level;
  });
  if (atEnd) log.scrollTop = log.scrollHeight;
  setText(byId("detail-log").lastElementChild, lines.length ? "" : "No lines since the coordinator started.");
  rows("config", Object.entries(found.config), ([name, value]) => [name, value], "");
}

function drawTasks(found, ago, context) {
  const tasks = found.units.slice(0, MAX_TASKS);
  rows("tasks", tasks, (unit) => {
    const progress = unit.progress;
    const numbers = progress
      ? [numberText(progress.records_written), numberText(progress.records_per_second), lag(progress), numberText(progress.errors), numberText(progress.dead_letters), ago(progress.last_record_ms)]
      : ["–", "–", "–", "–", "–", "–"];
    return [unitOf(found.name, unit.task), unit.state.toLowerCase(), unit.worker || "–", ...numbers, ""];
  }, "No tasks.");
  [...byId("detail-tasks").querySelector("tbody").children].forEach((row, index) => {
    const unit = tasks[index];
    row.children[1].className = `state ${unit.state}`;
    let button = row.lastElementChild.firstElementChild;
    if (button === null || button.tagName !== "BUTTON") {
      button = element("button", { className: "small" }, "Restart");
      row.lastElementChild.replaceChildren(button);
    }
    button.setAttribute("aria-label", `Restart ${unitOf(found.name, unit.task)}`);
    button.onclick = () => context.actions.restartTask(found.name, unit.task);
    setHidden(button, !context.actions.may("alter", found.name) || !unit.worker);
  });
  const left = found.units.length - tasks.length;
  if (left > 0) setText(byId("detail-tasks").lastElementChild, `and ${count(left, "task")} more`);
}

/** Make the rows of a table; the text of a cell that has only a button is left alone. */
function rows(id, items, cellsOf, none) {
  const section = byId(`detail-${id}`);
  const names = section.querySelectorAll("th").length;
  keyed(section.querySelector("tbody"), items.map((item, index) => ({ item, index })), ({ index }) => index, () => element("tr", {}, ...Array.from({ length: names }, () => element("td"))), (row, { item }) => {
    cellsOf(item).forEach((text, index) => { if (!row.children[index].querySelector("button")) setText(row.children[index], text); });
  });
  setHidden(section.querySelector(".scroll"), items.length === 0);
  if (section.lastElementChild.className === "hint") setText(section.lastElementChild, items.length ? "" : none);
}

/** Failures `{unit, worker, cause, attempt}`: the cause first and whole; further lines on demand. */
export function drawFailures(list, failures) {
  keyed(
    list,
    failures,
    (each) => each.unit,
    (each) => element("li", { className: "failure" },
      element("details", {}, element("summary", {}, named(each.unit), element("span", { className: "where" }), element("span", { className: "first" })), element("pre")),
      element("p", { className: "hint" })),
    (row, each) => {
      const [first, ...more] = each.cause.split("\n");
      setText(row.querySelector(".where"), each.worker ? ` on ${each.worker}: ` : ": ");
      setText(row.querySelector(".first"), first);
      setText(row.querySelector("pre"), [each.cause, each.attempt].filter(Boolean).join("\n"));
      setText(row.querySelector(".hint"), [each.attempt, more.length ? `${count(more.length, "more line")}` : ""].filter(Boolean).join(", "));
    },
  );
}

/** Read the offsets of the connector that is shown, as soon as it is known whether the server has them. */
export async function showOffsets(context) {
  if (shown === null) return;
  const [, hint, buttons, box] = byId("detail-offsets").children;
  setText(hint, "Reading the offsets");
  if (context.actions.hasConnectorRoutes === null) return;
  reads += 1;
  const [number, read, name] = [asked, reads, shown];
  let text = "";
  let offsets = [];
  if (!context.actions.hasConnectorRoutes) text = "This server shows the offsets of another group only.";
  else {
    try {
      offsets = (await request("GET", pathOf("connectors", name, "offsets"))).offsets;
      text = offsets.length ? "" : "The connector has committed none.";
    } catch (error) {
      text = error instanceof Rejected ? error.message : "no response from the server";
    }
    if (number !== asked || read !== reads) return;
    // They are read from the sink, and not again and again.
    text = `Read at ${timeOf(context.now())}${text && `: ${text}`}`;
    setHidden(buttons.firstElementChild, false);
  }
  setText(hint, text);
  const names = [["partition", "Partition"], ["offset", "Offset"]];
  const cell = (value) => (value === null ? "–" : Object.entries(value).map(([key, each]) => `${key} ${typeof each === "string" ? each : JSON.stringify(each)}`).join(", "));
  box.replaceChildren(...(offsets.length ? [element("table", {}, element("thead", {}, element("tr", {}, ...names.map(([, title]) => element("th", { scope: "col" }, title)))), element("tbody", {}, ...offsets.slice(0, 500).map((each) => element("tr", {}, ...names.map(([key]) => element("td", {}, cell(each[key])))))))] : []));
}
