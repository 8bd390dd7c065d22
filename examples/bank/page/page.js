"use strict";

// Draws each state that the server sends. Values become text nodes and numbers, never markup.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 220, LEFT = 56, BOTTOM = 20, TOP = 8;
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const byId = (id) => document.getElementById(id);

function drawn(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function item(kind, text) {
  const made = document.createElement("li");
  made.className = kind;
  made.textContent = text;
  return made;
}

/** The least round number that is not less than the largest value. */
function roundUp(largest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(largest, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((limit) => limit >= largest);
}

/** A total over time, with zero in the middle. Both charts have the same scale. */
function drawTotals(id, points, limit, state) {
  const place = byId(id);
  const width = place.clientWidth;
  const from = state.now - state.shown_s;
  const x = (at) => LEFT + (Math.max(at - from, 0) / state.shown_s) * (width - LEFT);
  const y = (value) => TOP + ((limit - value) / (2 * limit)) * (HEIGHT - TOP - BOTTOM);
  const svg = drawn("svg", { width, height: HEIGHT });
  for (const [start, end] of state.dead) {
    const dead = { class: "dead-time", x: x(start), y: TOP, width: x(end) - x(start), height: HEIGHT - TOP - BOTTOM };
    if (end > from) svg.append(drawn("rect", dead));
  }
  for (const value of [-limit, 0, limit]) {
    svg.append(drawn("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, whole.format(value)));
  }
  const shown = points.filter(([at, value]) => at >= from && value !== null);
  const corners = shown.map(([at, value]) => `${x(at)},${y(value)}`).join(" ");
  svg.append(drawn("polyline", { class: `curve ${id}`, points: corners }));
  svg.append(drawn("text", { x: width, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
  place.replaceChildren(svg);
}

function showVerdict(state) {
  const differs = state.differing.length > 0;
  const kind = differs ? "differs" : state.ticks > 0 ? "equal" : "waiting";
  byId("verdict").className = `verdict ${kind}`;
  byId("verdict").dataset.ticks = state.ticks;
  const text = { differs: "ticks differ from plain Python", equal: "every tick equals plain Python", waiting: "waiting for a tick" };
  byId("verdict").querySelector("strong").textContent = text[kind];
  byId("verdict").querySelector("small").textContent = differs
    ? state.differing.map((found) => `tick ${found.tick}: ${found.views.join(", ")}`).join("; ")
    : `${whole.format(state.ticks)} ticks without a gap, each over its own offsets`;
}

function showRunner(state) {
  byId("programs").replaceChildren(...state.programs.map((program) => item(program.state, program.name)));
  const { state: name, for_s: seconds, kills } = state.runner;
  const text = {
    starting: `The runner is starting (${seconds} s).`,
    running: `The runner has been running for ${seconds} s.`,
    dead: "The runner is dead. It is started again in a moment; the topics stay as they are.",
  }[name];
  const times = kills === 0 ? "" : ` Killed ${kills === 1 ? "once" : `${kills} times`} so far.`;
  byId("runner").textContent = text + times;
  byId("kill").disabled = name === "dead";
}

function last(points) {
  const value = points.at(-1)?.[1] ?? null;
  return value === null ? "–" : whole.format(value);
}

function render(state) {
  showVerdict(state);
  showRunner(state);
  byId("transactions").textContent = whole.format(state.transactions);
  byId("ticks").textContent = `in ${whole.format(state.ticks)} ticks`;
  byId("view-total").textContent = last(state.view);
  byId("naive-total").textContent = last(state.naive);
  byId("wrong").textContent = whole.format(state.wrong);
  byId("worst").textContent = `of ${whole.format(state.looks)}; up to ${whole.format(state.worst)} that do not exist`;
  const limit = roundUp(Math.max(...[...state.naive, ...state.view].map(([, value]) => Math.abs(value ?? 0)), 10));
  drawTotals("naive", state.naive, limit, state);
  drawTotals("view", state.view, limit, state);
}

byId("kill").addEventListener("click", () => fetch("/kill", { method: "POST" }));
const events = new EventSource("/events");
events.onmessage = (event) => {
  document.body.classList.remove("lost");
  render(JSON.parse(event.data));
};
events.onerror = () => {
  document.body.classList.add("lost");
  byId("runner").textContent = "The bank has closed, or cannot be reached.";
};
