// The page: chooses the group, receives its events, draws what has changed, and sends the changes of an operator.

import { byId, count, element, setHidden, setText, statesText, sum } from "./dom.js";
import { drawConnectors, failedUnits } from "./connectors.js";
import { pollCoordinators } from "./coordinators.js";
import { detailOf, drawDetailButtons, openDetail, showOffsets } from "./detail.js";
import { askUser, confirm } from "./dialogs.js";
import { edit } from "./editor.js";
import { Model } from "./model.js";
import { drawMoves, notePlaces } from "./moves.js";
import { drawProblems, tick } from "./problems.js";
import { isSignedIn, pathOf, receive, Rejected, request, signOut } from "./server.js";
import { pollHistory, recentErrors, sumOfLags } from "./spark.js";
import { drawTimeline } from "./timeline.js";
import { drawWorkers, readColours, showLegend } from "./workers.js";

const FRAME_MS = 25; // of drawing in one frame; what is left is drawn in the next
const MAX_MEASURES = 1000;
const HIDDEN_MS = 30000; // a tab in the background gives its connection back: a browser has six for a server

const model = new Model();
// What the server allows; `hasConnectorRoutes` is null until it has said so.
const rights = { mayChange: false, hasConnectorRoutes: null, mayCreate: false };
let group = "";
let stream = null;
let isDrawing = false;
let draws = 0;
let rejection = ""; // why the server rejects the stream
let failure = ""; // why the last change failed
let search = "";

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
  if (any("delay", "worker", "group")) drawProblems(model);
  if (any("connector", "failure", "search") || dirty.connectors.size) drawConnectors(model, actions, until, search);
  if (any("worker", "delay", "search") || dirty.workers.size) drawWorkers(model, actions, until, search);
  if (any("connector")) drawDetailButtons(context);
  if (any("rebalance")) drawTimeline(model);
  tick(model.now());
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
  let [failed, rows, recent, known] = [0, 0, 0, false];
  for (const [name, connector] of model.connectors) {
    if (failedUnits(connector)) failed += 1;
    rows += connector.rows_per_s ?? 0;
    known ||= connector.rows_per_s !== null;
    recent += recentErrors(model.histories[name]);
    for (const [state, number] of Object.entries(connector.tasks)) tasks[state] = (tasks[state] ?? 0) + number;
  }
  const delayed = [...model.delays.values()].reduce((total, delay) => total + delay.count, 0);
  const facts = [
    ["Connectors", `${model.connectors.size.toLocaleString("en")}${failed ? `, ${failed.toLocaleString("en")} failed` : ""}`],
    ["Tasks", sum(tasks) ? `${sum(tasks).toLocaleString("en")}: ${statesText(tasks)}` : "0"],
    ["Rows/s", known ? rows.toLocaleString("en", { maximumFractionDigits: 1 }) : "–"],
    ["Lag", sumOfLags([...model.connectors.values()].map((each) => each.lag)) || "–"],
    ["Errors, last hour", recent.toLocaleString("en")],
    ["Workers", String(model.workers.size)],
    ["Delayed", delayed ? count(delayed, "unit") : "none"],
    ["Assignor", model.group?.assignor || "none"],
  ];
  const box = byId("overview");
  if (!box.firstElementChild) box.append(...facts.map(([name]) => element("div", {}, element("dt", {}, name), element("dd"))));
  facts.forEach(([, text], index) => setText(box.children[index].lastElementChild, text));
  box.firstElementChild.classList.toggle("bad", failed > 0);
  const title = failed ? `(${failed}) connectgroup` : "connectgroup";
  if (document.title !== title) document.title = title;
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
  get mayCreate() { return rights.mayChange && rights.hasConnectorRoutes && rights.mayCreate; },
  /** Whether the user may `alter` or `delete` a connector; with rules of access, its row says it. */
  may(operation, name) {
    const row = model.connectors.get(name);
    return rights.mayChange && rights.hasConnectorRoutes && row !== undefined && (row.may?.includes(operation) ?? true);
  },
  get mayAlterGroup() { return rights.mayChange && (model.group?.may?.includes("alter") ?? true); },
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
  async deleteConnector(name) {
    const tasks = count(sum(model.connectors.get(name)?.tasks ?? {}), "task");
    const text = `Its ${tasks} will stop, and its configuration is deleted. What its sink has written stays.`;
    if ((await change(`Delete connector ${name}?`, text, "Delete", "DELETE", pathOf("connectors", name))) && detailOf() === name) show(null);
  },
  async editConnector(name) {
    let config;
    try {
      config = await request("GET", pathOf("connectors", name, "config"));
    } catch (error) {
      return failed("Edit", error);
    }
    const saved = await edit(name, config);
    if (saved !== null) setText(byId("announcer"), `Configuration of ${saved} saved`);
  },
  pathOfConnector: (name) => `?${new URLSearchParams({ group, connector: name })}`,
  openConnector(event, name) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab of its own
    event.preventDefault();
    show(name);
  },
  drainWorker(id) {
    const text = "Other workers take its tasks, then it leaves the group and stops.";
    return change(`Drain worker ${id}?`, text, "Drain", "POST", pathOf("groups", group, "workers", id, "drain"));
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

/** Send a change that the user confirms; resolves to whether it was accepted. */
async function change(title, text, label, method, path) {
  if (!(await confirm(title, text, label))) return false;
  failure = "";
  try {
    await request(method, path);
    setText(byId("announcer"), `${label}: requested`);
  } catch (error) {
    failed(label, error);
    return false;
  }
  showNotice();
  return true;
}

function failed(label, error) {
  failure = `${label} failed: ${error instanceof Rejected ? error.message : "no response from the server"}`;
  showNotice();
}

// ---- the page of one connector

const context = {
  model,
  actions,
  group: () => group,
  now: () => model.now(),
  closed: () => show(null),
  pathOfGroup: () => `?${new URLSearchParams({ group })}`,
  act(name, action, label) {
    if (action === "edit") return actions.editConnector(name);
    if (action === "delete") return actions.deleteConnector(name);
    return actions.changeConnector(name, action, label);
  },
};

/** Show the page of a connector, or the overview (null), as an entry of the browser's history. */
function show(name) {
  const from = detailOf();
  history.pushState(null, "", name === null ? context.pathOfGroup() : actions.pathOfConnector(name));
  openDetail(name, context);
  drawDetailButtons(context);
  if (name === null && from !== null) [...document.querySelectorAll(".connector")].find((card) => card.dataset.connector === from)?.querySelector("a").focus();
}

// ---- events

const handlers = {
  hello(data) {
    const isFirst = rights.hasConnectorRoutes === null;
    Object.assign(rights, { mayChange: data.may_change, hasConnectorRoutes: data.has_connector_routes, mayCreate: data.may_create });
    model.clockOffset = data.now_ms - Date.now();
    rejection = "";
    setText(byId("live"), "Live");
    byId("live").className = "on";
    setHidden(byId("sign-out"), !isSignedIn());
    drawAll();
    if (isFirst) showOffsets(context);
    askHistory();
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

const askHistory = pollHistory(() => group, (histories) => {
  model.setHistories(histories);
  requestDraw();
});

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
    tick(model.now());
    if (model.forgetGone(Date.now())) requestDraw();
  }, 500);
  byId("group").addEventListener("change", () => {
    group = byId("group").value;
    history.pushState(null, "", context.pathOfGroup());
    openDetail(null, context);
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
  byId("search").addEventListener("input", () => {
    search = byId("search").value;
    model.dirty.kinds.add("search");
    requestDraw();
  });
  byId("new-connector").addEventListener("click", async () => {
    const created = await edit(null);
    if (created !== null) show(created);
  });
  addEventListener("popstate", () => {
    const query = new URLSearchParams(location.search);
    if (query.get("group") && query.get("group") !== group) return void location.reload();
    openDetail(query.get("connector"), context);
    drawDetailButtons(context);
  });
  let hiding = null;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => { stream?.stop(); stream = null; }, HIDDEN_MS);
    else if (!stream && group) connect();
  });
  listGroups().then(() => {
    connect();
    pollCoordinators();
    const connector = new URLSearchParams(location.search).get("connector");
    if (connector) openDetail(connector, context);
  });
}

start();
