// The dialog that creates a connector or changes its configuration. The server checks what is typed.

import { byId, element, keyed, setHidden, setText, visible } from "./dom.js";
import { pathOf, Rejected, request } from "./server.js";

const CHECK_MS = 500; // after the last key
const TEMPLATE = { "connector.class": "pipeline", "tasks.max": "1", source: "", sink: "" };

let checks = 0;

const linesOf = (message) => message.split("\n").filter((line) => line && !line.startsWith("Connector configuration is invalid") && !line.startsWith("You can also find"));

/** The settings that a text changes, for a patch: a removed one is null. Throws an error with a text for people. */
export function patchOf(before, text) {
  let after;
  try {
    after = JSON.parse(text);
  } catch (error) {
    throw new Error(`not JSON: ${error.message}`);
  }
  if (after === null || typeof after !== "object" || Array.isArray(after)) throw new Error("not an object of settings: {\"connector.class\": ..., ...}");
  const patch = {};
  for (const [name, value] of Object.entries(after)) if (before[name] !== value) patch[name] = value;
  for (const name of Object.keys(before)) if (!(name in after)) patch[name] = null;
  return patch;
}

/**
 * Edit the configuration of a connector, or of a new one.
 *
 * @param name null for a new connector.
 * @param config its settings; credentials are masked, and stay as they are unless their value is changed.
 * @returns a promise of the name of the connector that was changed, or null.
 */
export function edit(name, config = TEMPLATE) {
  const dialog = byId("editor");
  const isNew = name === null;
  const before = { ...config };
  delete before.name; // a connector keeps its name
  setText(byId("editor-title"), isNew ? "New connector" : `Configuration of ${name}`);
  setHidden(byId("editor-name-line"), !isNew);
  byId("editor-name").value = "";
  byId("editor-text").value = visible(JSON.stringify(before, null, 2)); // JSON has the same escapes
  setText(byId("editor-yes"), isNew ? "Create" : "Save");
  showErrors([]);

  const nameOf = () => (isNew ? byId("editor-name").value : name);

  function send(validateOnly) {
    const query = validateOnly ? "?validateOnly=true" : "";
    const patch = patchOf(isNew ? {} : before, byId("editor-text").value);
    if (isNew) return request("POST", `/connectors${query}`, { name: nameOf(), config: patch });
    return Object.keys(patch).length ? request("PATCH", `${pathOf("connectors", name, "config")}${query}`, patch) : null;
  }

  async function attempt(validateOnly) {
    const number = ++checks;
    let errors = [];
    try {
      await send(validateOnly);
    } catch (error) {
      errors = linesOf(error instanceof Rejected ? error.message : error instanceof TypeError || error.name === "TimeoutError" ? "no response from the server" : error.message);
    }
    if (number !== checks) return false; // something was typed meanwhile
    showErrors(errors);
    return errors.length === 0;
  }

  let waiting = null;
  const check = () => {
    clearTimeout(waiting);
    checks += 1;
    waiting = setTimeout(() => attempt(true), CHECK_MS);
  };
  byId("editor-text").oninput = check;
  byId("editor-name").oninput = check;
  byId("editor-no").onclick = () => dialog.close();
  return new Promise((resolve) => {
    let saved = null;
    byId("editor-form").onsubmit = async (event) => {
      event.preventDefault();
      clearTimeout(waiting);
      const inputs = [byId("editor-yes"), byId("editor-text"), byId("editor-name")];
      for (const each of inputs) each.disabled = true;
      const done = await attempt(false);
      for (const each of inputs) each.disabled = false;
      if (!done) return;
      saved = nameOf();
      dialog.close();
    };
    dialog.onclose = () => {
      if (dialog.open) return;
      clearTimeout(waiting);
      checks += 1;
      resolve(saved);
    };
    dialog.showModal();
    (isNew ? byId("editor-name") : byId("editor-text")).focus();
  });
}

function showErrors(errors) {
  keyed(byId("editor-errors"), errors.map((text, index) => ({ text, index })), ({ index }) => index, () => element("li"), (line, { text }) => setText(line, text));
}
