"use strict";

// Replaces the live part of the page with what the server sends: HTML in which the server has escaped every value. The
// page works without this script; then it shows the moment in which it was opened.

const live = document.getElementById("live");
const state = document.getElementById("state");

function show(text, isLost) {
  if (state === null) return;
  state.textContent = text;
  state.classList.toggle("lost", isLost);
}

function listen() {
  const events = new EventSource(`${live.dataset.root}/events?page=${encodeURIComponent(live.dataset.page)}`);
  events.onmessage = (event) => {
    const page = new DOMParser().parseFromString(JSON.parse(event.data), "text/html");
    live.replaceChildren(...page.body.childNodes);
    show("live", false);
  };
  // The server asks for the token again when the session has ended.
  events.addEventListener("signed-out", () => location.reload());
  events.onerror = () => show("not connected", true);
  return events;
}

if (live !== null) {
  let events = listen();
  // A page that is not looked at does not keep the server looking at the root.
  document.addEventListener("visibilitychange", () => {
    events.close();
    if (!document.hidden) events = listen();
  });
}
