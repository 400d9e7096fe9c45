// The page: chooses the group, receives its events, draws what has changed, and sends the changes of an operator.

import { byId, count, element, setHidden, setText, statesText, sum } from "./dom.js";
import { drawConnectors } from "./connectors.js";
import { askUser, confirm } from "./dialogs.js";
import { Model } from "./model.js";
import { drawMoves, notePlaces } from "./moves.js";
import { drawProblems, tick } from "./problems.js";
import { isSignedIn, pathOf, receive, Rejected, request, signOut } from "./server.js";
import { drawTimeline } from "./timeline.js";
import { drawWorkers, readColours, showLegend } from "./workers.js";

const FRAME_MS = 25; // of drawing in one frame; what is left is drawn in the next
const MAX_MEASURES = 1000;
const HIDDEN_MS = 30000; // a tab in the background gives its connection back: a browser has six for a server

const model = new Model();
const rights = { mayChange: false, hasConnectorRoutes: false };
let group = "";
let stream = null;
let clockOffset = 0; // of the server, in milliseconds
let isDrawing = false;
let draws = 0;
let rejection = ""; // why the server rejects the stream
let failure = ""; // why the last change failed

// ---- drawing: at most once per frame, and only what has changed

function requestDraw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(draw);
}

function draw() {
  isDrawing = false;
  performance.mark("draw-begin");
  const until = performance.now() + FRAME_MS;
  const { dirty, moves } = model;
  const any = (...kinds) => kinds.some((kind) => dirty.kinds.has(kind));
  if (any("worker", "delay")) notePlaces();
  if (any("error", "group")) drawHeader();
  if (any("worker", "connector", "delay")) drawOverview();
  if (any("failure", "delay", "connector", "worker", "group")) drawProblems(model);
  if (any("rebalance")) drawTimeline(model);
  if (any("worker", "delay") || dirty.workers.size) drawWorkers(model, actions, until);
  if (any("connector") || dirty.connectors.size) drawConnectors(model, actions, until);
  tick(Date.now() + clockOffset);
  drawMoves(moves);
  announce(moves);
  dirty.kinds.clear();
  model.moves = [];
  performance.measure("draw", "draw-begin");
  performance.clearMarks("draw-begin");
  draws += 1;
  if (draws % MAX_MEASURES === 0) performance.clearMeasures("draw"); // the browser keeps them for ever
  if (dirty.workers.size || dirty.connectors.size) requestDraw();
}

function drawAll() {
  model.markAll();
  requestDraw();
}

function drawHeader() {
  const shown = model.group;
  setText(byId("group-state"), shown?.state.toLowerCase() ?? "");
  byId("group-state").className = `badge ${shown?.state ?? ""}`;
  const trailing = shown && shown.target_epoch !== shown.epoch ? ` (target ${shown.target_epoch})` : "";
  setText(byId("group-epoch"), shown ? `epoch ${shown.epoch}${trailing}` : "");
  showNotice();
}

function showNotice() {
  const old = model.error && model.group ? `${model.error}. What is shown may be old.` : model.error;
  const text = [failure, rejection || old].filter(Boolean).join(" \u00b7 ");
  setText(byId("notice"), text);
  setHidden(byId("notice"), !text);
  document.body.classList.toggle("stale", Boolean(rejection || model.error));
}

function drawOverview() {
  const tasks = {};
  for (const connector of model.connectors.values()) {
    for (const [state, number] of Object.entries(connector.tasks)) tasks[state] = (tasks[state] ?? 0) + number;
  }
  const delayed = [...model.delays.values()].reduce((total, delay) => total + delay.count, 0);
  const facts = [
    ["Workers", String(model.workers.size)],
    ["Connectors", String(model.connectors.size)],
    ["Tasks", sum(tasks) ? `${sum(tasks).toLocaleString("en")}: ${statesText(tasks)}` : "0"],
    ["Delayed", delayed ? count(delayed, "unit") : "none"],
    ["Assignor", model.group?.assignor || "none"],
  ];
  const box = byId("overview");
  if (!box.firstElementChild) box.append(...facts.map(([name]) => element("div", {}, element("dt", {}, name), element("dd"))));
  facts.forEach(([, text], index) => setText(box.children[index].lastElementChild, text));
}

function announce(moves) {
  if (!moves.length) return;
  const [first] = moves;
  const text = moves.length === 1 ? `${first.unit} moved from ${first.from} to ${first.to}` : `${count(moves.length, "unit")} moved`;
  setText(byId("announcer"), text);
}

// ---- changes

const actions = {
  get mayChange() { return rights.mayChange; },
  get hasConnectorRoutes() { return rights.hasConnectorRoutes; },
  changeConnector(name, action, label) {
    const tasks = count(sum(model.connectors.get(name)?.tasks ?? {}), "task");
    const texts = {
      pause: `Its ${tasks} will stop; the connector itself keeps running.`,
      resume: "The connector and its tasks will run.",
      stop: `The connector and its ${tasks} will stop.`,
      restart: `The connector and its ${tasks} will stop and start again.`,
    };
    const [method, query] = action === "restart" ? ["POST", "?includeTasks=true"] : ["PUT", ""];
    return change(`${label} connector ${name}?`, texts[action], label, method, `${pathOf("connectors", name, action)}${query}`);
  },
  restartTask(name, task) {
    const what = task < 0 ? `connector ${name}` : `task ${name}-${task}`;
    const path = task < 0 ? pathOf("connectors", name, "restart") : pathOf("connectors", name, "tasks", String(task), "restart");
    return change(`Restart ${what}?`, "It will stop and start again.", "Restart", "POST", path);
  },
  restartWorker(id) {
    const text = "It stops its tasks, leaves and rejoins; its tasks are kept for it meanwhile.";
    return change(`Restart worker ${id}?`, text, "Restart", "POST", pathOf("groups", group, "workers", id, "restart"));
  },
};

async function change(title, text, label, method, path) {
  if (!(await confirm(title, text, label))) return;
  failure = "";
  try {
    await request(method, path);
    setText(byId("announcer"), `${label}: requested`);
  } catch (error) {
    failure = `${label} failed: ${error instanceof Rejected ? error.message : "no response from the server"}`;
  }
  showNotice();
}

// ---- events

const handlers = {
  hello(data) {
    Object.assign(rights, { mayChange: data.may_change, hasConnectorRoutes: data.has_connector_routes });
    clockOffset = data.now_ms - Date.now();
    rejection = "";
    setText(byId("live"), "Live");
    byId("live").className = "on";
    setHidden(byId("sign-out"), !isSignedIn());
    drawAll();
  },
  table(data) {
    model.replace(data);
    requestDraw();
  },
  change(data) {
    model.change(data);
    requestDraw();
  },
};

function connect() {
  stream?.stop();
  stream = receive(group, {
    event: (name, data) => handlers[name]?.(data),
    state(text) {
      setText(byId("live"), text);
      byId("live").className = "";
    },
    async rejected(error) {
      if (error.status === 401) {
        const again = isSignedIn();
        signOut();
        await askUser(again ? "User or password is wrong." : "");
      } else {
        rejection = error.message;
        showNotice();
      }
    },
  });
}

async function listGroups() {
  let known = [];
  for (;;) {
    try {
      const [info, groups] = await Promise.all([request("GET", "/"), request("GET", "/groups")]);
      known = groups.map((each) => each.group_id);
      group = new URLSearchParams(location.search).get("group") || info.kafka_cluster_id;
      break;
    } catch (error) {
      if (error.status === 401) {
        const again = isSignedIn();
        signOut();
        await askUser(again ? "User or password is wrong." : "");
        continue;
      }
      rejection = error instanceof Rejected ? error.message : "no response from the server";
      showNotice();
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  const names = [...new Set([group, ...known])].sort();
  byId("group").replaceChildren(...names.map((name) => element("option", { value: name, selected: name === group }, name)));
}

function start() {
  readColours();
  showLegend();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    drawAll();
  });
  setInterval(() => {
    tick(Date.now() + clockOffset);
    if (model.forgetGone(Date.now())) requestDraw();
  }, 500);
  byId("group").addEventListener("change", () => {
    group = byId("group").value;
    history.replaceState(null, "", `?group=${encodeURIComponent(group)}`);
    model.clear();
    drawAll();
    connect();
  });
  byId("sign-out").addEventListener("click", () => {
    signOut();
    model.clear();
    drawAll();
    connect();
  });
  let hiding = null;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => { stream?.stop(); stream = null; }, HIDDEN_MS);
    else if (!stream && group) connect();
  });
  listGroups().then(connect);
}

start();
