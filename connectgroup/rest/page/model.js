// The rows of the table that the server sends (rest/page_table.py), indexed for the page.

const split = (key) => {
  const slash = key.indexOf("/");
  return slash < 0 ? [key, ""] : [key.slice(0, slash), key.slice(slash + 1)];
};

export const unitName = (connector, task) => (task < 0 ? connector : `${connector}-${task}`);

const GONE_MS = 3000; // a worker that has left stays visible for this long, so that moves from it can be drawn

export class Model {
  clockOffset = 0; // of the server, in milliseconds

  constructor() {
    this.clear();
  }

  /** The server's clock: times in rows are of it, and the browser's may be another one. */
  now() {
    return Date.now() + this.clockOffset;
  }

  clear() {
    this.rows = new Map();
    this.error = "";
    this.group = null;
    this.workers = new Map();
    this.connectors = new Map();
    this.units = new Map(); // key -> {connector, task, state, worker, epoch, lastWorker}
    this.lags = new Map(); // key as in `units` -> [records, bytes, files]
    this.unitsOfWorker = new Map();
    this.unitsOfConnector = new Map();
    this.failuresOfConnector = new Map(); // connector -> task -> message
    this.histories = {}; // by connector: of `GET /groups/{group}/history`
    this.delays = new Map();
    this.rebalances = new Map(); // epoch -> row
    this.gone = new Map(); // worker -> when it is forgotten
    this.dirty = { kinds: new Set(), workers: new Set(), connectors: new Set() }; // what is to be drawn
    this.moves = [];
  }

  /** Everything is to be drawn. */
  markAll() {
    for (const kind of ["group", "worker", "connector", "failure", "delay", "rebalance"]) this.dirty.kinds.add(kind);
    for (const id of this.workers.keys()) this.dirty.workers.add(id);
    for (const name of this.connectors.keys()) this.dirty.connectors.add(name);
  }

  /** Forget the workers that left some time ago; returns whether there were any. */
  forgetGone(now) {
    const old = [...this.gone].filter(([, until]) => until <= now).map(([id]) => id);
    for (const id of old) this.gone.delete(id);
    if (old.length) this.dirty.kinds.add("worker");
    return old.length > 0;
  }

  /** Replace all rows; returns nothing, notes what is different. */
  replace(table) {
    const isFirst = this.rows.size === 0;
    for (const key of [...this.rows.keys()]) if (!(key in table)) this.remove(key);
    for (const [key, row] of Object.entries(table)) this.set(key, row);
    if (isFirst) this.moves = [];
  }

  change(change) {
    for (const key of change.remove) this.remove(key);
    for (const [key, row] of Object.entries(change.set)) this.set(key, row);
  }

  set(key, row) {
    const [kind, id] = split(key);
    this.rows.set(key, row);
    this.dirty.kinds.add(kind);
    if (kind === "error") this.error = row;
    else if (kind === "group") this.group = row;
    else if (kind === "worker") this.workers.set(id, row), this.dirty.workers.add(id);
    else if (kind === "connector") this.connectors.set(id, row), this.dirty.connectors.add(id);
    else if (kind === "unit") this.setUnit(id, row);
    else if (kind === "lag") this.lags.set(id, row), this.dirty.connectors.add(split(id)[1]);
    else if (kind === "failure") this.setFailure(id, row);
    else if (kind === "delay") this.delays.set(id, row);
    else if (kind === "rebalance") this.rebalances.set(Number(id), row);
  }

  remove(key) {
    const [kind, id] = split(key);
    this.rows.delete(key);
    this.dirty.kinds.add(kind);
    if (kind === "error") this.error = "";
    else if (kind === "group") this.group = null;
    else if (kind === "worker") this.workers.delete(id), this.gone.set(id, Date.now() + GONE_MS);
    else if (kind === "connector") this.connectors.delete(id), this.dirty.connectors.add(id);
    else if (kind === "unit") this.removeUnit(id);
    else if (kind === "lag") this.lags.delete(id), this.dirty.connectors.add(split(id)[1]);
    else if (kind === "failure") this.setFailure(id, null);
    else if (kind === "delay") this.removeDelay(id);
    else if (kind === "rebalance") this.rebalances.delete(Number(id));
  }

  /** Set the message of a failed unit; null: it runs again. */
  setFailure(id, message) {
    const [task, connector] = split(id);
    const failures = this.failuresOfConnector.get(connector) ?? new Map();
    if (message === null) failures.delete(Number(task));
    else failures.set(Number(task), message);
    if (failures.size) this.failuresOfConnector.set(connector, failures);
    else this.failuresOfConnector.delete(connector);
    this.dirty.connectors.add(connector);
  }

  setHistories(histories) {
    this.histories = histories;
    this.dirty.kinds.add("connector");
    for (const name of this.connectors.keys()) this.dirty.connectors.add(name);
  }

  removeDelay(id) {
    const worker = this.delays.get(id)?.worker;
    if (worker) this.gone.set(worker, Date.now() + GONE_MS);
    this.delays.delete(id);
  }

  setUnit(id, [state, worker, epoch]) {
    const [task, connector] = split(id);
    const before = this.units.get(id);
    const unit = { connector, task: Number(task), state, worker, epoch, lastWorker: worker || (before?.lastWorker ?? "") };
    if (before) this.forget(id, before);
    if (worker && before?.lastWorker && before.lastWorker !== worker) {
      this.moves.push({ unit: unitName(connector, unit.task), from: before.lastWorker, to: worker });
    }
    this.units.set(id, unit);
    this.remember(id, unit);
  }

  removeUnit(id) {
    const unit = this.units.get(id);
    if (unit) this.forget(id, unit);
    this.units.delete(id);
  }

  remember(id, unit) {
    for (const [index, name] of [[this.unitsOfWorker, unit.worker], [this.unitsOfConnector, unit.connector]]) {
      if (!index.has(name)) index.set(name, new Map());
      index.get(name).set(id, unit);
    }
    this.dirty.workers.add(unit.worker);
    this.dirty.connectors.add(unit.connector);
  }

  forget(id, unit) {
    this.unitsOfWorker.get(unit.worker)?.delete(id);
    this.unitsOfConnector.get(unit.connector)?.delete(id);
    this.dirty.workers.add(unit.worker);
    this.dirty.connectors.add(unit.connector);
  }

  /** The units of a worker, by connector and task. */
  tasksOf(worker) {
    return [...(this.unitsOfWorker.get(worker)?.values() ?? [])].sort(
      (a, b) => (a.connector < b.connector ? -1 : a.connector > b.connector ? 1 : a.task - b.task),
    );
  }

  /** The units of a connector by task, the connector itself first. */
  unitsOf(connector) {
    return [...(this.unitsOfConnector.get(connector)?.values() ?? [])].sort((a, b) => a.task - b.task);
  }

  /** The rebalances, oldest first. */
  history() {
    return [...this.rebalances.values()].sort((a, b) => a.epoch - b.epoch);
  }
}
