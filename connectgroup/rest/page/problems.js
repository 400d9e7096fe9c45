// Delayed units with a countdown, and the errors of the assignor and of the coordinator's log. What has failed is shown at its connector.

import { byId, count, duration, element, keyed, named, setHidden, setText } from "./dom.js";

/** Update the delays and the errors. */
export function drawProblems(model) {
  const log = model.group?.log_error ?? "", error = model.group?.assignor_error ?? "";
  setText(byId("log-error"), log && `Changes are rejected, the coordinator's log takes no writes: ${log}`);
  setHidden(byId("log-error"), !log);
  setText(byId("assignor-error"), error && `The last assignment could not be computed: ${error}`);
  setHidden(byId("assignor-error"), !error);
  drawKept(model);
  const hasProblem = log || error || model.delays.size || keptWorkers(model).length;
  setHidden(byId("problems"), !hasProblem);
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
