// What a page gains with scripts: countdowns, keys, a second press that confirms, and live updates that disturb nobody.
// Everything works without this file too.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("has-keys");
  const announcer = document.getElementById("announcer");
  const say = (text) => { if (announcer) announcer.textContent = text; };

  // Times ------------------------------------------------------------------------------------------------------

  // The server's clock decides what is over; ours may be wrong.
  const offset = Date.parse(document.body.dataset.now) - Date.now();
  const now = () => Date.now() + offset;

  function span(ms, parts = 2) {
    let left = Math.max(0, Math.floor(ms / 1000));
    const said = [];
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
      if (left >= size) { said.push(`${Math.floor(left / size)} ${unit}`); left %= size; }
      else if (said.length) break;
    }
    return said.slice(0, parts).join(" ") || "0 s";
  }

  const announced = new Map();
  function announce(time, left) {
    if (!time.closest(".actions, .list")) return; // said once, however often the page shows it
    const before = announced.get(time.dateTime);
    announced.set(time.dateTime, left);
    if (before === undefined) return;
    for (const minutes of [5, 1]) {
      if (before > minutes * 60000 && left <= minutes * 60000) {
        say(minutes === 1 ? "One minute left to decide." : "Five minutes left to decide.");
      }
    }
  }

  function tick() {
    for (const time of document.querySelectorAll("time[data-countdown]")) {
      const left = Date.parse(time.dateTime) - now();
      const text = left > 0 ? span(left) : "over";
      if (time.textContent !== text) time.textContent = text;
      time.parentElement.classList.toggle("left-soon", left < 5 * 60000 && time.parentElement.classList.contains("left"));
      announce(time, left);
    }
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const passed = now() - Date.parse(time.dateTime);
      const text = passed < 5000 ? "just now" : `${span(passed, 1)} ago`;
      if (time.textContent !== text) time.textContent = text;
    }
  }
  tick();
  setInterval(tick, 1000);

  // Live updates -----------------------------------------------------------------------------------------------

  if (window.Idiomorph) {
    const callbacks = Idiomorph.defaults.callbacks;
    // What a person typed or opened stays as it is.
    callbacks.beforeNodeMorphed = (old) => !(old.nodeType === 1 && old.matches("textarea, select, input:not([type=hidden]), [data-armed]"));
    callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.nodeName === "DETAILS");
  }

  const live = () => document.getElementById("live");
  const look = () => { const part = live(); if (part && window.htmx && !document.hidden) htmx.trigger(part, "look"); };
  let polling = null;
  document.addEventListener("htmx:sseError", () => { if (!polling) polling = setInterval(look, 2000); });
  document.addEventListener("htmx:sseOpen", () => { clearInterval(polling); polling = null; look(); });
  document.addEventListener("visibilitychange", look);

  // Browsers give a site few connections: a tab that nobody sees lets go of its stream.
  if (window.htmx && htmx.createEventSource) {
    const connect = htmx.createEventSource;
    let stream = null;
    htmx.createEventSource = (url) => (stream = connect(url));
    document.addEventListener("visibilitychange", () => {
      if (!stream) return;
      if (document.hidden) stream.close();
      else if (stream.readyState === EventSource.CLOSED) stream.onerror(new Event("error"));
    });
  }

  document.addEventListener("htmx:afterSettle", () => {
    tick();
    const waiting = document.querySelector("[data-waiting]")?.dataset.waiting;
    if (location.pathname === "/") document.title = `${waiting ? `(${waiting}) ` : ""}Inbox · Cortex Plane`;
  });

  // A second press confirms ------------------------------------------------------------------------------------

  // A double click, a nervous finger or a key that is held down is one press.
  const SECOND_PRESS_AFTER = 500;
  let disarming = null;

  function disarm(button) {
    delete button.dataset.armed;
    button.classList.remove("armed");
    const label = button.querySelector("[data-label]");
    if (label) label.textContent = "Approve";
  }

  function arm(button) {
    button.dataset.armed = "soon";
    button.classList.add("armed");
    setTimeout(() => { if (button.dataset.armed) button.dataset.armed = "yes"; }, SECOND_PRESS_AFTER);
    button.querySelector("[data-label]").textContent = "Press again to approve";
    say("Press again to approve.");
    clearTimeout(disarming);
    disarming = setTimeout(() => disarm(button), 6000);
  }

  document.addEventListener("submit", (event) => {
    const button = event.target.querySelector("[data-approve]");
    if (!button) return;
    const needed = button.hasAttribute("data-twice") || button.dataset.byKey === "yes";
    if (needed && button.dataset.armed !== "yes") {
      event.preventDefault();
      if (!button.dataset.armed) arm(button);
      return;
    }
    if (needed) {
      const field = document.createElement("input");
      field.type = "hidden";
      field.name = "confirmed";
      field.value = "yes";
      event.target.append(field);
    }
  });

  // A form is sent once, however often its button is pressed.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method === "dialog") return;
    if (event.target.dataset.sent === "yes") { event.preventDefault(); return; }
    event.target.dataset.sent = "yes";
    setTimeout(() => { delete event.target.dataset.sent; }, 8000);
  });

  // What was sent leaves the line in which it was typed; what was typed meanwhile stays.
  document.addEventListener("htmx:afterRequest", (event) => {
    const { elt, successful, requestConfig } = event.detail;
    const line = document.querySelector("[data-composer] input[name=text]");
    if (!line || !successful || !elt.matches("[data-composer]")) return;
    if (line.value === requestConfig.parameters.text) line.value = "";
    line.focus();
  });

  // A form that opens over the chat takes the focus, once.
  document.addEventListener("htmx:afterSettle", () => {
    const words = document.querySelector(".phone-sheet textarea:not([data-open])");
    if (words) { words.dataset.open = "yes"; words.focus(); }
  });

  // Keys -------------------------------------------------------------------------------------------------------

  const rows = () => [...document.querySelectorAll("[data-row]")];

  function move(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step));
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
  }

  function approve() {
    const button = document.querySelector("[data-approve]");
    if (button) { button.dataset.byKey = "yes"; button.form.requestSubmit(button); }
    else open("#then-approve");
  }

  function deny() {
    const part = document.getElementById("deny");
    if (part) { part.open = true; part.querySelector("textarea").focus(); }
    else open("#then-deny");
  }

  function open(anchor) {
    const row = document.activeElement;
    if (row && row.matches("#mine [data-row]")) location.assign(row.href + anchor);
  }

  const follow = (selector) => { const link = document.querySelector(selector); if (link) link.click(); };

  const KEYS = {
    j: () => move(1),
    k: () => move(-1),
    a: approve,
    d: deny,
    e: () => follow("[data-edit]"),
    u: () => follow("[data-back]"),
    "?": () => document.getElementById("help")?.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.repeat && event.target.closest("[data-approve]")) event.preventDefault();
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // Opened from the inbox with a key.
  const then = location.hash;
  if (then.startsWith("#then-")) {
    history.replaceState(null, "", location.pathname);
    if (then === "#then-deny") deny();
    if (then === "#then-approve") document.querySelector("[data-approve]")?.focus();
  }
})();
