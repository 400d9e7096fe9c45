// The last hour of the connectors as sparklines, asked for at intervals: rows per second, lag, errors.

import { element, lagText, setHidden, setText, timeOf } from "./dom.js";
import { pathOf, request } from "./server.js";

const POLL_MS = 15000;
const RETRY_MS = 5000;
const POINTS = 60;
const HOUR_MS = 3600000;
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [120, 24];

export const SERIES = ["rows", "lag", "errors"];
const NAMES = { rows: "rows/s", lag: "lag", errors: "errors" };

/** Three empty sparklines. */
export function createSparks() {
  const box = element("div", { className: "sparks", hidden: true });
  for (const name of SERIES) {
    const picture = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": NAMES[name] })) picture.setAttribute(key, value);
    for (const part of ["area", "line"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", part);
      picture.append(path);
    }
    box.append(element("div", { className: `spark ${name}` }, element("span", { className: "hint" }, NAMES[name]), picture));
  }
  return box;
}

const valuesOf = (history, name) => (name === "rows" ? history.rows.map((rows) => (1000 * rows) / history.interval_ms) : history[name]);

/** Which time a history covers: the last hour, or since when it is known. */
function period(history) {
  const length = history.rows.length * history.interval_ms;
  return length > HOUR_MS - 120000 ? "of the last hour" : `since ${timeOf(history.end_ms - length)}`;
}

/** Draw the history of a connector, of `GET /groups/{group}/history`; `undefined`: not known. */
export function drawSparks(box, history) {
  setHidden(box, !history);
  if (!history || box.drawn === history) return;
  box.drawn = history;
  SERIES.forEach((name, index) => {
    const values = valuesOf(history, name);
    const most = Math.max(...values, 0);
    const picture = box.children[index].lastElementChild;
    picture.setAttribute("aria-label", `${NAMES[name]} ${period(history)}: now ${text(values.at(-1))}, at most ${text(most)}`);
    box.children[index].title = `${NAMES[name]} ${period(history)}: at most ${text(most)}`;
    if (box.closest("#detail")) setText(box.children[index].firstElementChild, name === "errors"
      ? `${text(recentErrors(history))} errors ${period(history)}`
      : `${NAMES[name]} ${text(values.at(-1))}, at most ${text(most)} ${period(history)}`);
    const step = WIDTH / (Math.max(Math.round(HOUR_MS / history.interval_ms), values.length) - 1);
    const points = values.map((value, at) => {
      const x = WIDTH - (values.length - 1 - at) * step;
      return `${x.toFixed(1)} ${(HEIGHT - 1 - (HEIGHT - 3) * (most ? Math.max(value, 0) / most : 0)).toFixed(1)}`;
    });
    const [area, line] = picture.children;
    line.setAttribute("d", points.length ? `M${points.join("L")}` : "");
    area.setAttribute("d", points.length ? `M${points.join("L")}V${HEIGHT}H${(WIDTH - (values.length - 1) * step).toFixed(1)}Z` : "");
  });
}

const text = (value = 0) => value.toLocaleString("en", { maximumFractionDigits: 1 });

/** Errors and dead letters of the last hour. */
export const recentErrors = (history) => (history ? history.errors.reduce((total, each) => total + each, 0) : 0);

/** All that is not read, of the lags of connectors. */
export function sumOfLags(lags) {
  const sums = [null, null, null];
  for (const lag of lags) lag.forEach((value, index) => { if (value !== null) sums[index] = (sums[index] ?? 0) + value; });
  return lagText(sums);
}

/** Ask for the histories of a group again and again; `received(histories)` gets an object by connector. */
export function pollHistory(groupOf, received) {
  let waiting = null;
  let asked = 0;
  async function poll() {
    const number = ++asked;
    const group = groupOf();
    let next = POLL_MS;
    try {
      if (group && !document.hidden) {
        const found = await request("GET", `${pathOf("groups", group, "history")}?points=${POINTS}`);
        if (number === asked && group === groupOf()) received(found);
      }
    } catch {
      next = RETRY_MS; // the stream of events says what is wrong
    }
    if (number === asked) waiting = setTimeout(poll, next);
  }
  return () => {
    clearTimeout(waiting);
    poll();
  };
}
