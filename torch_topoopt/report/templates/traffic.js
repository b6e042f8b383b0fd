// Heatmaps of bytes from server to server (TopoOpt paper, Figures 1, 8 and 9), and what loads a link.

const HEAT = 20;

// Cells: "from,to" -> value, parallel links added up.
function linkCells(run, values) {
  const cells = new Map();
  values.forEach((value, i) => {
    if (value === null) return;
    const key = run.links[i][0] * run.servers + run.links[i][2];
    cells.set(key, (cells.get(key) || 0) + value);
  });
  return cells;
}

function demandCells(run) {
  const cells = new Map();
  const { levels, low, high } = run.demand;
  for (let i = 0; i < levels.length; i += 1) {
    const level = parseInt(levels[i], 36);
    if (level) cells.set(i, low * (high / low) ** ((level - 1) / 34));
  }
  return cells;
}

function heatmapKinds(run) {
  const kinds = [], traffic = run.traffic;
  const unit = traffic && traffic.basis === "share" ? (v) => percent(v, 2) : bytes;
  if (traffic && traffic.predicted) kinds.push(["predicted", "Links, predicted", linkCells(run, traffic.predicted), unit, "carries"]);
  if (traffic && traffic.measured) kinds.push(["measured", "Links, measured", linkCells(run, traffic.measured), unit, "carried"]);
  if (run.demand) kinds.push(["demand", "Demand", demandCells(run), bytes, "has to send about"]);
  return kinds;
}

function heatmaps() {
  for (const node of holders("heatmap")) {
    const run = runOf(node), kinds = heatmapKinds(run);
    if (!kinds.length) continue;
    // All links, of both runs where there are two, are on one scale; demand has its own, logarithmic.
    const top = runs.flatMap(heatmapKinds).filter((k) => k[0] !== "demand").reduce((most, k) => Math.max(most, ...k[2].values()), 0);
    const grid = el("div", { class: run.servers <= 4 ? "columns three" : "columns" });
    for (const kind of kinds) grid.append(heatmap(run, kind, top));
    node.append(grid);
  }
}

function heatmap(run, [name, title, cells, unit, verb], top) {
  const body = el("div", { class: "plot" }), scale = el("div", { class: "scale" });
  const high = name === "demand" ? run.demand.high : top;
  const low = name === "demand" ? run.demand.low : 0;
  const step = (value) => {
    const part = name === "demand" ? (high > low ? Math.log(value / low) / Math.log(high / low) : 1) : high ? value / high : 0;
    return Math.min(HEAT - 1, Math.floor(part * HEAT));
  };
  figure(body, (width) => {
    const n = run.servers, size = Math.min(width - 34, 520, n * 76), cell = size / n, left = 34, ratio = window.devicePixelRatio || 1;
    const canvas = el("canvas", { width: (size + left) * ratio, height: (size + 26) * ratio, role: "img",
      "aria-label": `${title}: bytes from server (row) to server (column), up to ${unit(high)}` });
    canvas.style.width = `${size + left}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.strokeStyle = colour("grid");
    pen.strokeRect(left + 0.5, 0.5, size - 1, size - 1);
    const grown = Math.max(cell + 0.4, n > 200 && cells.size < n * n / 8 ? 2 : 1);
    pen.font = `${Math.min(11, cell / 2.6)}px system-ui, sans-serif`;
    pen.textAlign = "center";
    for (const [key, value] of cells) {
      const row = Math.floor(key / n), column = key % n, level = step(value);
      pen.fillStyle = colours.heat[level] || (colours.heat[level] = colour(`heat-${level}`));
      pen.fillRect(left + column * cell, row * cell, grown, grown);
      if (cell >= 30) {
        pen.fillStyle = colour(level >= 11 ? "heat-text-high" : "heat-text-low");
        pen.fillText(unit(value), left + (column + 0.5) * cell, (row + 0.5) * cell + 4, cell - 4);
      }
    }
    pen.fillStyle = colour("muted");
    pen.font = "11px system-ui, sans-serif";
    for (const server of ticks(0, n - 1, n <= 16 ? n : 7).filter(Number.isInteger)) {
      pen.textAlign = "center";
      pen.fillText(String(server), left + (server + 0.5) * cell, size + 15);
      pen.textAlign = "right";
      pen.fillText(String(server), left - 6, Math.max(9, (server + 0.5) * cell + 4));
    }
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - left) / cell), row = Math.floor((event.clientY - box.top) / cell);
      if (column < 0 || row < 0 || column >= n || row >= n) return hideTip();
      const value = cells.get(row * n + column);
      return showTip(event, [`${row} → ${column}`, value === undefined ? (name === "demand" ? "nothing to send" : "no link") : `${verb} ${unit(value)}`]);
    });
    canvas.addEventListener("pointerleave", hideTip);
    body.replaceChildren(canvas);
  });
  if (name === "demand" && low === high) {
    scale.append(el("span", {}, `each ${unit(high)}`));
  } else {
    scale.append(el("span", {}, name === "demand" ? unit(low) : "0"), el("span", { class: "ramp", "aria-hidden": "true" }), el("span", {}, unit(high)));
    if (name === "demand") scale.append(el("span", { class: "note" }, "logarithmic"));
  }
  return el("div", { class: "heat" }, el("h3", {}, title), body, scale);
}

const colours = { heat: [] };
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours.heat = []; });

// ---- what is on a link ----

function slowestLink(run) {
  const loads = run.traffic && run.traffic.predicted;
  if (!loads) return 0;
  return loads.reduce((best, size, i) => (size / gbpsOf(run, i) > loads[best] / gbpsOf(run, best) * (1 + 1e-9) ? i : best), 0);
}

// Stacked bars: which collective of which operators puts which bytes on the link.
function linkLoads() {
  for (const node of holders("link")) {
    const run = runOf(node), timeline = run.timeline;
    if (!timeline) continue;
    const slowest = slowestLink(run);
    const ordered = run.links.map((_, i) => i).sort((a, b) => run.traffic.predicted[b] - run.traffic.predicted[a]);
    const result = el("div", { "aria-live": "polite" });
    const options = el("datalist", { id: "links" }, ordered.slice(0, 2000).map((i) => el("option", { value: linkText(run, i) })));
    const box = el("input", { type: "search", list: "links", "aria-label": "Link", value: linkText(run, slowest),
      oninput: () => { const i = run.links.findIndex((_, k) => linkText(run, k) === box.value.trim()); if (i >= 0) show(i); } });
    const jump = (i) => { box.value = linkText(run, i); show(i); };
    const controls = el("div", { class: "controls" }, el("label", { class: "small" }, "Link ", box), options,
      el("div", { class: "choice", role: "group", "aria-label": "Links" },
        [["slowest", 0], ["median", Math.floor(ordered.length / 2)], ["least loaded", ordered.length - 1]].map(([name, at]) =>
          el("button", { type: "button", onclick: () => jump(ordered[at]) }, name))));
    node.append(controls, result);
    const mean = timeline.cargoes.map((_, c) => timeline.link_bytes.reduce((sum, row) => sum + row[c], 0) / timeline.link_bytes.length);
    function show(i) {
      const row = timeline.link_bytes[i], total = row.reduce((a, b) => a + b, 0);
      const busy = total * 8 / (gbpsOf(run, i) * 1e9);
      const rows = timeline.cargoes.map((cargo, c) => ({ cargo, size: row[c], mean: mean[c], colour: line(c) })).filter((entry) => entry.size > 0).sort((a, b) => b.size - a.size);
      const rank = ordered.indexOf(i) + 1;
      const average = mean.reduce((a, b) => a + b, 0);
      result.replaceChildren(
        el("p", {}, el("strong", {}, `${linkText(run, i)} `), `carries ${bytes(total)} per iteration, ${seconds(busy)} at ${rate(gbpsOf(run, i))}: `,
          `${percent(busy / timeline.iteration_s)} of the iteration, ${significant(average ? total / average : 1)}× the mean link, ${ordinal(rank)} of ${ordered.length} links by load.`),
        el("div", { class: "stack", "aria-hidden": "true" }, rows.map((entry) => el("span", { style: `flex:${entry.size};background:${entry.colour}` }))),
        table(["collective", "operators", "bytes on it", "share", "against the mean link"], rows.map((entry) => [
          el("span", { class: "line" }, el("span", { class: "dot", style: `background:${entry.colour}` }), cargoText(entry.cargo)),
          String(entry.cargo.operators), bytes(entry.size), percent(entry.size / total), entry.mean ? `${significant(entry.size / entry.mean)}×` : "–"])));
    }
    show(slowest);
  }
}

const ordinal = (n) => `${n}${n % 100 >= 11 && n % 100 <= 13 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th"}`;
const cargoText = (cargo) => (cargo.kind === "other" ? "all smaller ones" : `${cargo.kind} of ${cargo.label}`);
