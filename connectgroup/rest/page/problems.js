// Failures with their error message, delayed units with a countdown, and the error of the assignor.

import { byId, count, duration, element, keyed, named, setHidden, setText } from "./dom.js";

const nameOf = (id) => {
  const slash = id.indexOf("/");
  const [task, connector] = [id.slice(0, slash), id.slice(slash + 1)];
  return task === "-1" ? connector : `${connector}-${task}`;
};

/** Update failures and delays. */
export function drawProblems(model) {
  const error = model.group?.assignor_error ?? "";
  setText(byId("assignor-error"), error && `The last assignment could not be computed: ${error}`);
  setHidden(byId("assignor-error"), !error);
  keyed(byId("failures"), [...model.failures], ([id]) => id, createFailure, (row, [id, message]) => {
    const worker = model.units.get(id)?.worker;
    setText(row.querySelector(".where"), worker ? ` on ${worker}` : "");
    setText(row.querySelector(".first"), `: ${message.split("\n")[0].slice(0, 160)}`);
    setText(row.querySelector("pre"), message);
  });
  const failed = [...model.connectors.values()].reduce(
    (total, each) => total + (each.tasks.FAILED ?? 0) + (each.tasks.STALLED ?? 0) + (each.state === "FAILED" ? 1 : 0),
    0,
  );
  drawKept(model);
  const hasProblem = error || failed || model.delays.size || keptWorkers(model).length;
  setHidden(byId("problems"), !hasProblem);
}

function createFailure([id]) {
  const summary = element("summary", {}, named(nameOf(id)), element("span", { className: "where" }), element("span", { className: "first" }));
  return element("li", { className: "failure" }, element("details", {}, summary, element("pre")));
}

const keptWorkers = (model) => [...model.workers].filter(([, worker]) => worker.kept_until_ms !== null);

function drawKept(model) {
  const delays = [...model.delays].map(([id, delay]) => {
    const reason = delay.worker ? " for " : " at the request of the assignor";
    return { key: `delay ${id}`, text: `${count(delay.count, "unit")} delayed${reason}`, worker: delay.worker, until: delay.until_ms, units: delay.units };
  });
  const kept = keptWorkers(model).map(([id, worker]) => (
    { key: `kept ${id}`, text: `${count(worker.target, "unit")} kept for `, worker: id, until: worker.kept_until_ms, units: [] }
  ));
  keyed(byId("delays"), [...delays, ...kept], (each) => each.key, createDelay, (row, each) => {
    setText(row.querySelector(".text"), each.text);
    setText(row.querySelector(".name"), each.worker);
    row.querySelector(".left").dataset.until = each.until;
    const units = row.querySelector("details");
    setHidden(units, !each.units.length);
    setText(units.lastElementChild, each.units.join(", "));
  });
}

function createDelay() {
  return element("li", { className: "delay" }, element("span", { className: "text" }), named(""), element("span", { className: "left", role: "timer" }),
    element("details", {}, element("summary", {}, "Units"), element("p")));
}

/** Update the countdowns; `now`: the server's clock in milliseconds. */
export function tick(now) {
  for (const left of byId("delays").querySelectorAll(".left")) {
    const ms = Number(left.dataset.until) - now;
    setText(left, ms > 0 ? `, ${duration(Math.ceil(ms / 1000) * 1000).replace(".0", "")} left` : ", ends now");
  }
}
