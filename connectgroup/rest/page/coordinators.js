// The coordinators that share the log: which one serves, which ones stand by, and the last fail-over.

import { byId, duration, element, keyed, named, setHidden, setText } from "./dom.js";
import { Rejected, request } from "./server.js";

const POLL_MS = 5000;
const timeText = (ms) => new Date(ms).toLocaleString("en-GB");

/** Ask for the coordinators again and again, and show them if the log is shared. */
export async function pollCoordinators() {
  try {
    if (!document.hidden) draw(await request("GET", "/coordinators"));
  } catch (error) {
    // Those that were read last stay: the log may be away. The stream of events says whether the server is.
    if (error instanceof Rejected && error.status === 503) setText(byId("last-failover"), error.message);
  }
  setTimeout(pollCoordinators, POLL_MS);
}

function draw({ coordinators, partitions, unserved_partitions: unserved, last_failover: failover }) {
  const texts = [];
  if (unserved.length > 0) texts.push(`No coordinator serves ${partitions > 1 ? `partition ${unserved.join(", ")} of ` : ""}the log at present.`);
  if (failover !== null) texts.push(failoverText(failover));
  setHidden(byId("coordinators"), coordinators.length < 2 && texts.length === 0);
  setText(byId("last-failover"), texts.join(" "));
  keyed(byId("coordinators").querySelector("tbody"), coordinators, (each) => `${each.address} ${each.partition}`, create, update);
}

function failoverText({ at_ms: at, took_ms: took, cause, partition }) {
  const where = partition === undefined ? "" : ` of partition ${partition}`;
  if (cause === "no coordinator stood by") return `No coordinator served${partition === undefined ? "" : ` partition ${partition}`} for ${duration(took)} until ${timeText(at)}: none stood by.`;
  return `Last fail-over${where}: ${timeText(at)}, ${cause}, took ${duration(took)}.`;
}

function create({ address }) {
  return element("tr", {}, element("td", {}, named(address)), ...Array.from({ length: 4 }, () => element("td")));
}

function update(row, { role, epoch, since_ms: since, lag_ms: lag, partition }) {
  const served = partition === null ? role : `${role} partition ${partition}`;
  const texts = [served, epoch === null ? "" : String(epoch), timeText(since), lag === null ? "" : duration(lag)];
  texts.forEach((text, index) => setText(row.children[index + 1], text));
}
