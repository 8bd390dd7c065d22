"use strict";

// Draws each state that the server sends. Values become text nodes and numbers, never markup.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 220, LEFT = 44, BOTTOM = 20, TOP = 8;
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const dollars = new Intl.NumberFormat("en-US", { style: "currency", currency: "USD" });
const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** The least round number that is not less than the largest value. */
function roundUp(largest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(largest, 1)));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((factor) => factor * power).find((limit) => limit >= largest);
}

/** A chart that fills an element. It has horizontal lines for zero, a half and the whole of the greatest value. */
class Chart {
  constructor(id, values, count, least) {
    this.place = byId(id);
    this.values = values;
    this.count = count;
    this.width = this.place.clientWidth;
    this.limit = roundUp(Math.max(...values, least));
    this.svg = drawn("svg", { width: this.width, height: HEIGHT });
    for (const part of [0, 0.5, 1]) {
      const y = this.y(part * this.limit);
      this.svg.append(drawn("line", { class: "grid", x1: LEFT, x2: this.width, y1: y, y2: y }));
      const text = (part * this.limit).toLocaleString("en-US");
      this.svg.append(drawn("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, text));
    }
  }

  x(at) {
    return LEFT + (at / Math.max(this.count - 1, 1)) * (this.width - LEFT);
  }

  y(value) {
    return HEIGHT - BOTTOM - (value / this.limit) * (HEIGHT - BOTTOM - TOP);
  }

  drawArea() {
    const points = this.values.map((value, at) => `${this.x(at)},${this.y(value)}`);
    const under = `${this.x(0)},${this.y(0)} ${points.join(" ")} ${this.x(this.values.length - 1)},${this.y(0)}`;
    this.svg.append(drawn("polygon", { class: "area", points: under }));
    this.svg.append(drawn("polyline", { class: "curve", points: points.join(" ") }));
  }

  label(x, text) {
    this.svg.append(drawn("text", { x, y: HEIGHT - 3, "text-anchor": x > this.width - 20 ? "end" : "middle" }, text));
  }

  show(hasData) {
    this.place.replaceChildren(hasData ? this.svg : element("p", { class: "empty" }, "waiting for Spark"));
  }
}

function drawMinutes(minutes) {
  const chart = new Chart("minutes", minutes.map((minute) => Number(minute.sales)), minutes.length, 1);
  chart.drawArea();
  const step = Math.ceil(minutes.length / 6);
  minutes.forEach((minute, at) => {
    if (at % step === 0) chart.label(Math.max(chart.x(at), LEFT + 14), time.format(new Date(minute.at)));
  });
  chart.show(minutes.length > 1);
}

function drawHistory(history) {
  const chart = new Chart("history", history.map((moment) => moment.behind), 120, 10);
  const width = chart.x(1) - chart.x(0) + 0.5;
  history.forEach((moment, at) => {
    if (moment.state === "running") return;
    const kind = moment.state === "dead" ? "dead-time" : "start-time";
    chart.svg.append(drawn("rect", { class: kind, x: chart.x(at), y: TOP, width, height: HEIGHT - BOTTOM - TOP }));
  });
  chart.drawArea();
  chart.label(chart.x(history.length - 1), "now");
  chart.show(history.length > 1);
}

function drawWindows(windows, now) {
  const chart = new Chart("windows", windows.map((window) => Number(window.sales)), windows.length, 1);
  const slot = (chart.width - LEFT) / Math.max(windows.length, 1);
  windows.forEach((window, at) => {
    const start = new Date(window.start);
    const isOpen = now - start < 20 * 60 * 1000; // ten minutes, and ten in which a purchase is not late
    const [x, y] = [LEFT + at * slot, chart.y(chart.values[at])];
    const box = { x: x + slot * 0.15, y, width: slot * 0.7, height: chart.y(0) - y, rx: 3 };
    chart.svg.append(drawn("rect", { class: isOpen ? "bar open" : "bar", ...box }));
    chart.label(x + slot / 2, time.format(start));
  });
  chart.show(windows.length > 0);
}

function drawTop(products) {
  const most = Math.max(...products.map((product) => Number(product.sales)), 1);
  byId("top").replaceChildren(...products.map((product) => {
    const bar = drawn("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none" });
    bar.append(drawn("rect", { width: (100 * Number(product.sales)) / most, height: 4 }));
    const drinks = element("span", { class: "drinks" }, ` ${whole.format(product.drinks)} drinks`);
    return element("li", {}, element("span", { class: "name" }, product.name, drinks), dollars.format(product.sales), bar);
  }));
  if (products.length === 0) byId("top").append(element("li", { class: "empty" }, "waiting for Spark"));
}

function showVerdict(check) {
  const [kind, text] = { true: ["equal", "stream equals batch"], false: ["differs", "stream differs from batch"] }[check.equal]
    ?? ["waiting", "stream equals batch?"];
  byId("verdict").className = `verdict ${kind}`;
  byId("verdict").dataset.purchases = check.purchases;
  byId("verdict").querySelector("strong").textContent = text;
  byId("verdict").querySelector("small").textContent = kind === "waiting"
    ? "waiting for Spark" : `computed again from the first of ${whole.format(check.purchases)} messages`;
  byId("checked").replaceChildren(...check.topics.map((topic) => element(
    "tr", {},
    element("td", {}, topic.topic),
    element("td", {}, whole.format(topic.batch_id)),
    element("td", {}, whole.format(topic.purchases)),
    element("td", { class: topic.differences === 0 ? "good" : "bad" }, whole.format(topic.differences)),
  )));
}

function showPipeline(state) {
  byId("programs").replaceChildren(...state.programs.map((program) => element("li", { class: program.state }, program.name)));
  const { state: name, for_s: seconds, kills } = state.pipeline;
  const times = kills === 0 ? "" : ` Killed ${kills === 1 ? "once" : `${kills} times`} so far.`;
  const text = {
    starting: `Spark is starting (${seconds} s).`,
    running: `Spark has been running for ${seconds} s.`,
    dead: "Spark is dead. It is started again in a moment; the topics stay as they are.",
  }[name];
  byId("pipeline").textContent = text + times;
  byId("kill").disabled = name === "dead";
}

function showFigures(state) {
  byId("sales").textContent = dollars.format(state.sales);
  byId("drinks").textContent = `${whole.format(state.drinks)} drinks`;
  byId("purchases").textContent = whole.format(state.purchases);
  byId("late").textContent = `${whole.format(state.late)} of them late, in no window`;
  byId("behind").textContent = whole.format(state.behind);
  byId("lags").textContent = `messages; by query ${Object.values(state.lags).map(whole.format).join(" · ")}`;
  const seconds = (value) => (value === null ? "–" : `${value.toFixed(1)} s`);
  const [first] = state.freshness;
  byId("fresh").textContent = first ? seconds(first.p50_s) : "–";
  byId("fresh-of").textContent = first ? `p50; p99 ${seconds(first.p99_s)}: SQL in ${first.engine}` : "no answer yet";
  byId("engines").replaceChildren(...state.freshness.map((found) => element(
    "tr", {},
    element("td", {}, found.engine),
    element("td", {}, seconds(found.p50_s)),
    element("td", {}, seconds(found.p99_s)),
    element("td", {}, `${whole.format(Object.values(found.took_ms).reduce((sum, ms) => sum + ms, 0))} ms`),
  )));
}

function showLetters(letters, count) {
  byId("dead").textContent = `${whole.format(count)} so far`;
  byId("letters").replaceChildren(...letters.map((letter) => element("li", {}, letter.reason, element("code", {}, letter.value))));
}

function render(state) {
  const now = new Date(state.time);
  byId("clock").textContent = `It is ${time.format(now)} in the shop; time passes ${state.speed} times as fast.`;
  showVerdict(state.check);
  showPipeline(state);
  showFigures(state);
  drawMinutes(state.minutes);
  drawHistory(state.history);
  drawTop(state.top);
  drawWindows(state.windows, now);
  showLetters(state.letters, state.dead);
}

byId("kill").addEventListener("click", () => fetch("/kill", { method: "POST" }));
const events = new EventSource("/events");
events.onmessage = (event) => {
  document.body.classList.remove("lost");
  render(JSON.parse(event.data));
};
events.onerror = () => {
  document.body.classList.add("lost");
  byId("pipeline").textContent = "The shop has ended, or cannot be reached.";
};
