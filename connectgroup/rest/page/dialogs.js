// The two dialogs: confirmation of a change, and sign-in. The browser's dialog element traps the focus and closes on Escape.

import { byId, setHidden, setText } from "./dom.js";
import { signIn } from "./server.js";

/** Ask; resolves to whether the user confirmed. */
export function confirm(title, text, action) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), action);
  return new Promise((resolve) => {
    let confirmed = false;
    byId("confirm-form").onsubmit = (event) => {
      event.preventDefault();
      confirmed = true;
      dialog.close();
    };
    byId("confirm-no").onclick = () => dialog.close();
    // The browser reports later that a dialog was closed. If it is open, the report is about the confirmation before.
    dialog.onclose = () => { if (!dialog.open) resolve(confirmed); };
    dialog.showModal();
    byId("confirm-no").focus();
  });
}

let asking = null;

/** Ask for user and password; resolves when they have been given. All that ask meanwhile wait for the same answer. */
export function askUser(message) {
  const dialog = byId("login");
  setText(byId("login-error"), message);
  setHidden(byId("login-error"), !message);
  asking ??= new Promise((resolve) => {
    byId("login-form").onsubmit = (event) => {
      event.preventDefault();
      signIn(byId("login-user").value, byId("login-password").value);
      byId("login-password").value = "";
      dialog.close();
    };
    dialog.onclose = () => {
      asking = null;
      resolve();
    };
    dialog.showModal();
    byId("login-user").focus();
  });
  return asking;
}
