// Shared by all scripts of the page: its data, numbers with units, elements, the tooltip, figures
// that are drawn at their real width, and the tabs. Text of a user only ever becomes textContent.

const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;

// ---- numbers, in the same form as in the tables ----

function significant(value, digits = 3) {
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits));
  const exponent = Math.floor(Math.log10(Math.abs(rounded)));
  return rounded.toFixed(Math.max(0, digits - 1 - exponent));
}

// Without trailing zeros, as format_bytes and format_seconds in Python.
const short = (value, digits = 3) => String(Number(value.toPrecision(digits)));

function prefixed(value, unit, digits = 3) {
  let factor = 1;
  for (const letter of ["", "k", "M", "G", "T", "P", "E"]) {
    if (Number((value / factor).toPrecision(3)) < 1000 || letter === "E") {
      return `${short(value / factor, digits)} ${letter}${unit}`;
    }
    factor *= 1000;
  }
  return "";
}

const bytes = (value) => (value === null || value === undefined ? "–" : prefixed(value, "B"));

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 9.995e-4) return `${short(value * 1e6)} µs`;
  if (value < 0.9995) return `${short(value * 1e3)} ms`;
  if (value < 119.5) return `${short(value)} s`;
  const minutes = Math.floor(Math.round(value) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(value) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// One form for a rate, that of format_gbps in Python.
const rate = (gbps) =>
  gbps >= 1 ? `${Number(gbps.toPrecision(6))} Gb/s` : `${Number((gbps * 1000).toPrecision(6))} Mb/s`;

const percent = (value, digits = 1) => `${(value * 100).toFixed(digits)} %`;

function change(value, base) {
  const relative = value / base - 1;
  if (Math.abs(relative) < 0.0005) return "unchanged";
  return `${relative > 0 ? "+" : "−"}${(Math.abs(relative) * 100).toFixed(1)} %`;
}

// As much of a text as there is room for, at some 7 pixels a letter.
function fitted(text, width) {
  const letters = Math.floor(width / 7);
  return text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text;
}

const gbpsOf = (run, link) => (Array.isArray(run.gbps) ? run.gbps[link] : run.gbps);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// ---- elements ----

function add(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const el = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  add(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const line = (index) => `var(--line-${index % 8})`;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function table(columns, rows) {
  const cells = (tag, row) => row.map((cell, i) => el(tag, { class: i ? "number" : null }, cell));
  return el("div", { class: "scroll" },
    el("table", {},
      el("thead", {}, el("tr", {}, cells("th", columns))),
      el("tbody", {}, rows.map((row) => el("tr", {}, cells("td", row))))));
}

// Buttons of which one is pressed; `choose` gets the value of it.
function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === value)));
      choose(value);
    } }, text));
  return el("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

// ---- tooltip ----

const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
document.body.append(tip);

function showTip(event, lines) {
  tip.replaceChildren(...lines.map((text, i) => el("div", { class: i ? "" : "head" }, text)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  const left = Math.min(Math.max(4, event.clientX + 14), room - box.width - 4);
  const below = event.clientY + 18 + box.height < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? event.clientY + 18 : Math.max(4, event.clientY - box.height - 12)}px`;
}

const hideTip = () => { tip.hidden = true; };

// ---- figures ----

const figures = [];

// Calls draw(width) now, when the width changes, and when the theme does.
function figure(node, draw) {
  const entry = { node, draw, width: 0 };
  entry.redraw = () => { if (entry.width) draw(entry.width); };
  entry.fit = () => {
    const width = Math.floor(node.clientWidth);
    if (width && width !== entry.width) {
      entry.width = width;
      draw(width);
    }
  };
  figures.push(entry);
  new ResizeObserver(entry.fit).observe(node);
  return entry;
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  figures.forEach((entry) => entry.redraw()));

const holders = (name) => [...document.querySelectorAll(`[data-figure="${name}"]`)];
const runOf = (node) => runs[Number(node.dataset.run || 0)];

// ---- tabs ----

function tabs() {
  const list = document.querySelector("[role=tablist]");
  if (!list) return;
  const all = [...list.querySelectorAll("[role=tab]")];
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  function open(tab) {
    for (const other of all) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      panelOf(other).hidden = other !== tab;
    }
    const from = list.scrollLeft, to = tab.offsetLeft - list.offsetLeft;
    if (to < from || to + tab.offsetWidth > from + list.clientWidth) list.scrollLeft = to - 24;
  }

  // An address with #id opens the panel that holds the id.
  function follow() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const panel = target && target.closest("[role=tabpanel]");
    open(panel ? all.find((tab) => panelOf(tab) === panel) : all[0]);
    figures.forEach((entry) => entry.fit()); // before scrolling: what stands above has its height then
    if (!target || target === panel) window.scrollTo(0, 0);
    else target.scrollIntoView({ block: "start" });
  }

  list.addEventListener("keydown", (event) => {
    const at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = all[(to + all.length) % all.length];
    history.replaceState(null, "", tab.hash);
    open(tab);
    tab.focus();
  });
  window.addEventListener("hashchange", follow);
  document.documentElement.classList.add("tabbed");
  follow();
  window.addEventListener("beforeprint", () => {
    all.forEach((tab) => { panelOf(tab).hidden = false; });
    figures.forEach((entry) => entry.draw(Math.min(entry.node.clientWidth || 680, 680)));
  });
  window.addEventListener("afterprint", follow);
}
