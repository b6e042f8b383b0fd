// One simulated iteration over time: servers that compute, every collective, every link.

const LEVELS = "0123456789abcdefghijklmnopqrstuv";

function timelines() {
  for (const node of holders("timeline")) {
    const run = runOf(node), timeline = run.timeline;
    if (!timeline) continue;
    const body = el("div", { class: "plot" });
    node.append(body);
    figure(body, (width) => {
      const left = Math.min(190, Math.max(96, width * 0.24));
      body.replaceChildren(bars(run, width, left), raster(run, width, left));
    });
  }
}

function bars(run, width, left) {
  const { iteration_s: end, computing, cargoes } = run.timeline;
  const names = cargoes.map(cargoText);
  const above = names.some((name) => fitted(name, left - 12) !== name);  // above their bars, where one is long
  const row = above ? 38 : 24, tall = 34, height = tall + 10 + row * cargoes.length + 24, right = 12;
  const px = (t) => left + (t / end) * (width - left - right);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Timeline of one iteration of ${seconds(end)}: compute and ${counted(cargoes.length, "collective")}` });
  for (const t of ticks(0, end, Math.max(2, Math.floor((width - left) / 90)))) {
    root.append(svg("line", { x1: px(t), x2: px(t), y1: 0, y2: height - 20, class: "rule" }), svg("text", { x: px(t), y: height - 5, class: px(t) > width - 30 ? "tick end" : "tick middle" }, seconds(t)));
  }
  root.append(svg("text", { x: left - 8, y: tall / 2 + 5, class: "name end" }, "compute"));
  let d = `M${left} ${tall}`;
  computing.forEach((share, i) => { d += `V${(tall - share * (tall - 4)).toFixed(1)}H${px(((i + 1) / computing.length) * end).toFixed(1)}`; });
  const area = svg("path", { d: `${d}V${tall}Z`, class: "area" });
  area.addEventListener("pointermove", (event) => {
    const at = Math.floor(((event.clientX - root.getBoundingClientRect().left - left) / (width - left - right)) * computing.length);
    if (computing[at] !== undefined) showTip(event, [`at ${seconds(((at + 0.5) / computing.length) * end)}`, `${Math.round(computing[at] * 100)} % of the servers compute`]);
  });
  area.addEventListener("pointerleave", hideTip);
  root.append(area);
  cargoes.forEach((cargo, i) => {
    const top = tall + 10 + i * row, y = above ? top + 15 : top;
    const bar = svg("rect", { x: px(cargo.start_s), y, width: Math.max(2, px(cargo.end_s) - px(cargo.start_s)), height: 17, rx: 3, style: `fill:${line(i)}` });
    bar.addEventListener("pointermove", (event) => showTip(event, [cargoText(cargo), `${seconds(cargo.start_s)} to ${seconds(cargo.end_s)}`, `${bytes(cargo.size_bytes)} on all links, ${counted(cargo.operators, "operator")}`]));
    bar.addEventListener("pointerleave", hideTip);
    const text = names[i];
    const at = above ? { x: 0, y: top + 11, class: "name" } : { x: left - 8, y: y + 13, class: "name end" };
    root.append(bar, svg("text", at, fitted(text, above ? width : left - 12), svg("title", {}, text)));
  });
  return root;
}

// A row of pixels for every link, the most loaded on top; darker is busier.
function raster(run, width, left) {
  const rows = run.timeline.utilisation, order = run.links.map((_, i) => i).sort((a, b) => run.traffic.predicted[b] - run.traffic.predicted[a]);
  const bins = rows[0].length, wide = width - left - 12, high = Math.min(220, Math.max(60, rows.length * 5)), ratio = window.devicePixelRatio || 1;
  const canvas = el("canvas", { width: wide * ratio, height: high * ratio, role: "img", "aria-label": `Utilisation of ${counted(rows.length, "link")} over the iteration, the most loaded on top` });
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const tones = Array.from({ length: HEAT }, (_, i) => colour(`heat-${i}`));
  for (let y = 0; y < high; y += 1) {
    const link = rows[order[Math.min(order.length - 1, Math.floor((y / high) * order.length))]];
    for (let bin = 0; bin < bins; bin += 1) {
      const level = LEVELS.indexOf(link[bin]);
      if (!level) continue;
      pen.fillStyle = tones[Math.min(HEAT - 1, Math.floor((level / 31) * (HEAT - 1)))];
      pen.fillRect((bin / bins) * wide, y, wide / bins + 0.5, 1);
    }
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const bin = Math.floor(((event.clientX - box.left) / wide) * bins), place = Math.floor(((event.clientY - box.top) / high) * order.length);
    const i = order[place];
    if (i === undefined || bin < 0 || bin >= bins) return;
    showTip(event, [`link ${linkText(run, i)}`, `at ${seconds(((bin + 0.5) / bins) * run.timeline.iteration_s)}: ${Math.round((LEVELS.indexOf(rows[i][bin]) / 31) * 100)} % busy`]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  return el("div", { class: "raster" }, el("div", { class: "side", style: `width:${left}px` }, `${counted(rows.length, "link")}, most loaded on top`), canvas);
}
