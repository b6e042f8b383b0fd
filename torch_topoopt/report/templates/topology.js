// The network: servers on a circle, by forces, or in racks, with the rings of AllReduce in colour.
// Cables of short strides bend outwards on the circle, so that they do not vanish into its rim.

const cableColour = (family) => (family < 0 ? "var(--muted)" : line(family));
const distance = (a, b, size) => Math.min((a - b + size) % size, (b - a + size) % size);

function circle(run, size) {
  const outside = shortStrides(run);
  const radius = size / 2 - (run.servers <= 32 ? 16 : 28) - 9 * outside.length;
  const at = (server, r) => {
    const angle = -Math.PI / 2 + (2 * Math.PI * server) / run.servers;
    return [size / 2 + r * Math.cos(angle), size / 2 + r * Math.sin(angle)];
  };
  const places = Array.from({ length: run.servers }, (_, server) => at(server, radius));
  const depth = depths(run);
  const path = (a, b) => {
    const span = distance(a, b, run.servers);
    const rank = outside.indexOf(span);
    const first = (b - a + run.servers) % run.servers === span ? a : b;
    const [x0, y0] = places[a], [x1, y1] = places[b];
    if (rank >= 0) {
      const [u, v] = at(first + span / 2, radius * (1 / Math.cos((Math.PI * span) / run.servers)) + 2 * (8 + 9 * rank));
      return [x0, y0, u, v, x1, y1];
    }
    const [u, v] = at(first + span / 2, radius * (2 * depth(span) - Math.cos((Math.PI * span) / run.servers)));
    return [x0, y0, u, v, x1, y1];
  };
  const every = run.servers <= 64 ? 1 : run.servers <= 160 ? 4 : 16;
  const labels = places.map((_, server) => (server % every ? null : [...at(server, radius + (run.servers <= 32 ? 0 : 16 + 9 * outside.length)), String(server)]));
  return { places, path, labels, height: size, radius: run.servers <= 32 ? 12 : run.servers <= 160 ? 3.2 : 1.9 };
}

// How near to the centre the middle of a chord comes, as a part of the radius: chords of few strides
// among many servers keep apart, where straight ones would all lie along the rim.
function depths(run) {
  const straight = (span) => Math.cos((Math.PI * span) / run.servers);
  const outside = shortStrides(run);
  const spans = [...new Set(run.cables.map(([a, b]) => distance(a, b, run.servers)))].filter((span) => !outside.includes(span)).sort((a, b) => a - b);
  if (run.servers < 24 || spans.length > 6) return straight;
  return (span) => Math.min(straight(span), 0.72 - (0.6 * spans.indexOf(span)) / spans.length);
}

// Strides that are too short for a chord, shortest first; at most four of them.
function shortStrides(run) {
  if (run.servers < 24) return [];
  const spans = new Set(run.cables.map(([a, b]) => distance(a, b, run.servers)));
  return [...spans].filter((span) => span <= Math.max(1, run.servers / 40)).sort((a, b) => a - b).slice(0, 4);
}

const bent = (places, bend) => (a, b) => {
  const [x0, y0] = places[a], [x1, y1] = places[b];
  return [x0, y0, (x0 + x1) / 2 - bend * (y1 - y0), (y0 + y1) / 2 + bend * (x1 - x0), x1, y1];
};

function forces(run, size) {
  const margin = 18;
  const places = run.places.map(([x, y]) => [margin + x * (size - 2 * margin), margin + y * (size - 2 * margin)]);
  const named = run.servers <= 64;
  const labels = places.map(([x, y], server) => (named || server % 16 === 0 ? [x, named && run.servers > 32 ? y - 9 : run.servers <= 32 ? y : y - 8, String(server)] : null));
  return { places, path: bent(places, 0.05), labels, height: size, radius: run.servers <= 32 ? 12 : run.servers <= 160 ? 4 : 2.4 };
}

const perRack = (run) => (run.servers <= 32 ? 4 : run.servers <= 128 ? 8 : 16);

function racks(run, size) {
  const each = perRack(run), number = Math.ceil(run.servers / each);
  const across = Math.max(1, Math.min(number, Math.round(Math.sqrt(number * 1.3))));
  const down = Math.ceil(number / across);
  const wide = size / across, high = Math.max(58, Math.min(150, size / down));
  const columns = each > 8 ? 4 : 2, rows = Math.ceil(each / columns);
  const boxes = Array.from({ length: number }, (_, i) => ({
    x: (i % across) * wide + wide * 0.14, y: Math.floor(i / across) * high + 18, w: wide * 0.72, h: high - 30,
    text: `${i * each}–${Math.min(run.servers, (i + 1) * each) - 1}`,
  }));
  const places = Array.from({ length: run.servers }, (_, server) => {
    const box = boxes[Math.floor(server / each)], slot = server % each;
    return [box.x + ((slot % columns) + 0.5) * (box.w / columns), box.y + (Math.floor(slot / columns) + 0.5) * (box.h / rows)];
  });
  const small = run.servers > 32;
  const labels = small ? boxes.map((box) => [box.x + box.w / 2, box.y - 6, box.text]) : places.map(([x, y], server) => [x, y, String(server)]);
  return { places, path: bent(places, 0.12), labels, boxes, height: down * high + 8, radius: small ? 3 : 11 };
}

const curveText = ([x0, y0, u, v, x1, y1]) =>
  `M${x0.toFixed(1)} ${y0.toFixed(1)}Q${u.toFixed(1)} ${v.toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`;

// Draws `run`; `state`: {layout, hidden: families, server, cable, family, pulled, detours}.
// `pick` is called with {server} or {cable}.
function drawTopology(run, width, state, pick) {
  const size = Math.min(width, 680);
  const layout = { circular: circle, force: forces, rack: racks }[state.layout](run, size);
  const root = svg("svg", { viewBox: `0 0 ${size} ${layout.height}`, width: size, height: layout.height, class: "topology", role: "img",
    "aria-label": `${counted(run.servers, "server")} and ${counted(run.cables.length, run.duplex ? "cable" : "link")}, ${state.layout} layout; the list beside it names the rings` });
  for (const box of layout.boxes || []) root.append(svg("rect", { x: box.x, y: box.y, width: box.w, height: box.h, rx: 4, class: "rack" }));
  const many = run.cables.length > 400;
  const chosen = (cable, i) => state.cable === i || state.pulled === i || state.family === cable[2] ||
    (state.server !== null && state.server !== undefined && (cable[0] === state.server || cable[1] === state.server));
  const anything = run.cables.some(chosen);
  const parts = new Map(), strong = [], hits = [];
  run.cables.forEach((cable, i) => {
    if (state.hidden.has(cable[2])) return;
    const d = curveText(layout.path(cable[0], cable[1]));
    if (state.pulled !== i) parts.set(cable[2], (parts.get(cable[2]) || "") + d);
    if (chosen(cable, i)) strong.push([cable, i, d]);
    if (pick) hits.push(svg("path", { d, class: "hit", "data-cable": i }));
  });
  for (const [family, d] of [...parts].sort((a, b) => a[0] - b[0])) {
    root.append(svg("path", { d, class: "cable", style: `stroke:${cableColour(family)}`, "stroke-width": many ? 0.8 : run.servers > 32 ? 1.1 : 2,
      opacity: anything ? 0.16 : family < 0 ? 0.45 : many && state.layout !== "circular" ? 0.55 : 0.85 }));
  }
  for (const [cable, i, d] of strong) {
    root.append(svg("path", { d, class: "cable", style: `stroke:${state.pulled === i ? "var(--bad)" : cableColour(cable[2])}`,
      "stroke-width": state.family === cable[2] && many ? 1.2 : 2.4, "stroke-dasharray": state.pulled === i ? "3 4" : null }));
  }
  for (const way of state.detours || []) {
    const d = way.slice(1).map((to, i) => curveText(layout.path(way[i], to))).join("");
    root.append(svg("path", { d, class: "cable", style: "stroke:var(--ink)", "stroke-width": 2.2 }));
  }
  root.append(...hits);
  const big = layout.radius > 8;
  layout.places.forEach(([cx, cy], server) => {
    const on = server === state.server || (state.detours || []).some((way) => way.includes(server));
    root.append(svg("circle", { cx, cy, r: on && !big ? layout.radius + 2.5 : layout.radius, class: `server${big ? " big" : ""}${on ? " on" : ""}`, "data-server": server }));
  });
  for (const label of layout.labels) {
    if (label) root.append(svg("text", { x: label[0], y: label[1] + 4, class: big ? "label" : "label faint" }, label[2]));
  }
  if (pick) {
    root.addEventListener("pointermove", (event) => {
      const { server, cable } = event.target.dataset;
      if (server !== undefined) showTip(event, serverLines(run, Number(server)));
      else if (cable !== undefined) showTip(event, cableLines(run, Number(cable)));
      else hideTip();
    });
    root.addEventListener("pointerleave", hideTip);
    root.addEventListener("click", (event) => {
      const { server, cable } = event.target.dataset;
      pick(server !== undefined ? { server: Number(server) } : cable !== undefined ? { cable: Number(cable) } : {});
    });
  }
  return root;
}

const linkText = (run, i) => `${run.links[i][0]}:${run.links[i][1]} → ${run.links[i][2]}:${run.links[i][3]}`;
const familyName = (run, family) => (family < 0 ? "no ring" : `ring${run.families[family].rings.length > 1 ? "s" : ""} ${run.families[family].name}`);

function cableText(run, cable) {
  const [a, ap, b, bp] = run.links[run.cables[cable][3]];
  return `${a}:${ap} ${run.duplex ? "–" : "→"} ${b}:${bp}`;
}

function reverseOf(run, link) {
  const [a, ap, b, bp] = run.links[link];
  return run.links.findIndex((l) => l[0] === b && l[1] === bp && l[2] === a && l[3] === ap);
}

function cableLines(run, cable) {
  const link = run.cables[cable][3];
  const lines = [`${run.duplex ? "cable" : "link"} ${cableText(run, cable)}`, `${rate(gbpsOf(run, link))}, ${familyName(run, run.cables[cable][2])}`];
  const sides = run.duplex ? [link, reverseOf(run, link)] : [link];
  for (const side of sides) {
    if (run.traffic && run.traffic.basis !== "share") {
      const known = [["predicted", run.traffic.predicted], ["measured", run.traffic.measured]].filter(([, values]) => values && values[side] !== null);
      if (known.length) lines.push(`${linkText(run, side)}  ${known.map(([name, values]) => `${bytes(values[side])} ${name}`).join(", ")}`);
    }
  }
  return lines;
}

function serverLines(run, server) {
  const near = run.cables.filter(([a, b]) => a === server || b === server).map(([a, b]) => (a === server ? b : a));
  return [`server ${server}`, `joined to ${[...new Set(near)].sort((a, b) => a - b).join(", ")}`];
}

// The network alone, for the overview.
function glances() {
  for (const node of holders("glance")) {
    const run = runOf(node);
    const state = { layout: "circular", hidden: new Set(), server: null, cable: null, family: null };
    const body = el("div", { class: "plot" });
    node.append(body);
    figure(body, (width) => body.replaceChildren(drawTopology(run, Math.min(width, 400), state, null)));
  }
}

// The figure with its controls: layout, rings to show, and what was picked.
function topologies() {
  for (const node of holders("topology")) {
    const run = runOf(node);
    const state = { layout: "circular", hidden: new Set(), server: null, cable: null, family: null };
    const body = el("div", { class: "plot" }), picked = el("div", { class: "picked", "aria-live": "polite" });
    const drawn = figure(body, (width) => body.replaceChildren(drawTopology(run, width, state, pick)));
    const layouts = [["circular", "Circular"], ["force", "Force"], ["rack", "Racks"]].filter(([name]) => name !== "force" || run.places.length);
    const controls = el("div", { class: "controls" }, choice("Layout", layouts, state.layout, (layout) => { state.layout = layout; note.textContent = words[layout]; drawn.redraw(); }), serverBox(run, (server) => pick({ server })));
    const words = {
      circular: "Servers clockwise by number; cables of short strides bend outwards.",
      force: "Springs along cables (Fruchterman–Reingold): near servers are few hops apart.",
      rack: `${perRack(run)} servers to a rack, by number: an assumption of this drawing.`,
    };
    const note = el("p", { class: "note" }, words.circular);
    node.append(controls, familyButtons(run, state, () => drawn.redraw()), body, picked, note);
    function pick({ server = null, cable = null }) {
      Object.assign(state, { server, cable });
      drawn.redraw();
      picked.replaceChildren(...pickedText(run, state, pick));
    }
  }
}

function serverBox(run, choose) {
  const box = el("input", { type: "number", min: 0, max: run.servers - 1, inputmode: "numeric", "aria-label": "Show server", placeholder: "–",
    oninput: () => choose({ server: box.value === "" || box.value < 0 || box.value >= run.servers ? null : Number(box.value) }.server) });
  return el("label", { class: "small" }, "Server ", box);
}

const MOST_FAMILIES = 12;

function familyButtons(run, state, redraw) {
  const counts = new Map();
  for (const cable of run.cables) counts.set(cable[2], (counts.get(cable[2]) || 0) + 1);
  const families = [...counts.keys()].sort((a, b) => (a < 0) - (b < 0) || a - b);
  const buttons = families.slice(0, MOST_FAMILIES).map((family) => {
    const name = family < 0 ? "no ring" : run.families[family].name;
    const share = family < 0 ? "" : ` · ${Math.round(run.families[family].share * 100)} %`;
    const button = el("button", { type: "button", "aria-pressed": "true", title: "show or hide",
      onclick: () => {
        const shown = state.hidden.delete(family);
        if (!shown) state.hidden.add(family);
        button.setAttribute("aria-pressed", String(shown));
        redraw();
      },
      onpointerenter: () => { state.family = family; redraw(); }, onpointerleave: () => { state.family = null; redraw(); },
      onfocus: () => { state.family = family; redraw(); }, onblur: () => { state.family = null; redraw(); },
    }, el("span", { class: "dot", style: `background:${cableColour(family)}` }), `${name}${share} · ${counted(counts.get(family), run.duplex ? "cable" : "link")}`);
    return button;
  });
  const rest = families.length - buttons.length;
  return el("div", { class: "chips", role: "group", "aria-label": "Rings" }, buttons, rest > 0 ? el("span", { class: "note" }, `and ${rest} more`) : null);
}

function pickedText(run, state, pick) {
  const pull = (cable) => (run.losses && document.getElementById("pull")
    ? el("a", { href: "#pull", onclick: () => pullCable(cable) }, "what if it is pulled?") : null);
  if (state.cable !== null) {
    const [head, ...lines] = cableLines(run, state.cable);
    return [el("strong", {}, head), ...lines.map((text) => el("div", {}, text)), pull(state.cable)].filter(Boolean);
  }
  if (state.server === null) return [];
  const mine = run.cables.map((cable, i) => [cable, i]).filter(([cable]) => cable[0] === state.server || cable[1] === state.server);
  return [el("strong", {}, `server ${state.server}`), el("ul", { class: "plain" }, mine.map(([cable, i]) =>
    el("li", {}, el("button", { type: "button", class: "text", onclick: () => pick({ cable: i }) }, cableText(run, i)), ` ${familyName(run, cable[2])}`)))];
}
