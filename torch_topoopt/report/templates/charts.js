// Line charts with axes, a legend and a readout under the pointer: cumulative distributions of path
// length and link load, the search curve, accuracy and loss.

// Ticks at 1, 2 or 5 times a power of ten; of a logarithmic axis at powers of `base`.
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) found.push(i * step);
  return found;
}

// `series`: {name, colour, points: [[x, y]], step, dash}; `x` and `y`: {label, format, zero, log,
// ticks}. Returns the SVG; `marks` are {x, text} of vertical lines.
function chart(width, height, { x, y, series, marks = [], label }) {
  const left = 74, right = 26, top = 10, bottom = 40;
  const all = series.flatMap((one) => one.points);
  const range = (axis, values) => {
    let low = axis.zero ? 0 : Math.min(...values), high = Math.max(...values);
    if (axis.high !== undefined) high = axis.high;
    if (high === low) high = low + (Math.abs(low) || 1) * 0.1;
    return [low, high];
  };
  const [x0, x1] = range(x, all.map((p) => p[0]).concat(marks.map((m) => m.x)));
  const [y0, y1] = range(y, all.map((p) => p[1]));
  const scale = (axis, low, high, from, to) => axis.log
    ? (v) => from + (Math.log(v / low) / Math.log(high / low)) * (to - from)
    : (v) => from + ((v - low) / (high - low)) * (to - from);
  const px = scale(x, x0, x1, left, width - right), py = scale(y, y0, y1, height - bottom, top);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  for (const v of ticks(y0, y1, 5)) {
    root.append(svg("line", { x1: left, x2: width - right, y1: py(v), y2: py(v), class: "rule" }),
      svg("text", { x: left - 8, y: py(v) + 4, class: "tick end" }, y.format(v)));
  }
  const room = Math.max(2, Math.floor((width - left) / 90));
  const xs = x.ticks || (x.whole ? ticks(x0, x1, room).filter(Number.isInteger) : ticks(x0, x1, room));
  for (const v of xs) {
    root.append(svg("line", { x1: px(v), x2: px(v), y1: height - bottom, y2: height - bottom + 4, class: "axis" }),
      svg("text", { x: px(v), y: height - bottom + 17, class: "tick middle" }, x.format(v)));
  }
  root.append(svg("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
    svg("text", { x: (left + width - right) / 2, y: height - 5, class: "name middle" }, x.label),
    svg("text", { transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, class: "name middle" }, y.label));
  for (const mark of marks) {
    root.append(svg("line", { x1: px(mark.x), x2: px(mark.x), y1: top, y2: height - bottom, class: "mark" }),
      svg("text", { x: px(mark.x) + (px(mark.x) > width * 0.7 ? -5 : 5), y: top + 10,
        class: px(mark.x) > width * 0.7 ? "tick end" : "tick" }, mark.text));
  }
  for (const one of series) {
    let d = "";
    one.points.forEach(([u, v], i) => {
      if (i && one.step) d += `H${px(u).toFixed(1)}V${py(v).toFixed(1)}`;
      else d += `${i ? "L" : "M"}${px(u).toFixed(1)} ${py(v).toFixed(1)}`;
    });
    root.append(svg("path", { d, class: "curve", style: `stroke:${one.colour}`, "stroke-dasharray": one.dash || null,
      "stroke-width": one.thin ? 1 : 1.8 }));
    if (one.points.length <= 30 && !one.step) {
      for (const [u, v] of one.points) root.append(svg("circle", { cx: px(u), cy: py(v), r: 2.6, style: `fill:${one.colour}` }));
    }
  }
  const cross = svg("line", { y1: top, y2: height - bottom, class: "cross", visibility: "hidden" });
  root.append(cross);
  root.addEventListener("pointermove", (event) => {
    const at = event.clientX - root.getBoundingClientRect().left;
    let near = null;
    for (const [u] of all) if (near === null || Math.abs(px(u) - at) < Math.abs(px(near) - at)) near = u;
    if (near === null) return;
    cross.setAttribute("x1", px(near));
    cross.setAttribute("x2", px(near));
    cross.setAttribute("visibility", "visible");
    const lines = series.map((one) => {
      const before = one.points.filter(([u]) => u <= near * (1 + 1e-9));
      return before.length ? `${one.name}: ${y.format(before[before.length - 1][1])}` : null;
    }).filter((text) => text !== null);
    showTip(event, [`${x.label}: ${x.format(near)}`, ...lines]);
  });
  root.addEventListener("pointerleave", () => { hideTip(); cross.setAttribute("visibility", "hidden"); });
  return root;
}

function legend(series) {
  return el("div", { class: "legend" }, series.map((one) =>
    el("span", { class: "line" }, el("span", { class: "swatch", style: `border-top:3px ${one.dash ? "dashed" : "solid"} ${one.colour}` }), one.name)));
}

function plot(node, options) {
  const body = el("div", { class: "plot" });
  if (options.series.length > 1) node.append(legend(options.series));
  node.append(body);
  figure(body, (width) => body.replaceChildren(chart(width, options.height || Math.min(300, Math.max(200, width * 0.5)), options)));
}

// Cumulative: [[value, share of all that are at most it]].
function cumulative(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const points = [[sorted[0], 0]];
  sorted.forEach((value, i) => {
    if (i + 1 === sorted.length || sorted[i + 1] > value) points.push([value, (i + 1) / sorted.length]);
  });
  return points;
}

function curves() {
  const share = { label: "share", format: (v) => `${Math.round(v * 100)} %`, zero: true, high: 1 };
  const name = (run, i) => (runs.length > 1 ? `${"AB"[i]}: ${run.name}` : "all pairs of servers");
  for (const node of holders("hops")) {
    plot(node, {
      label: "Cumulative distribution of path length over pairs of servers",
      x: { label: "path length (hops)", format: (v) => `${v}`, zero: true, whole: true },
      y: { ...share, label: "share of pairs" },
      series: runs.map((run, i) => {
        let sum = 0;
        const points = [[run.hops.length ? run.hops[0][0] : 0, 0]].concat(run.hops.map(([hops, part]) => [hops, (sum += part)]));
        return { name: name(run, i), colour: line(i), points, step: true };
      }),
    });
  }
  for (const node of holders("loads")) loadCurve(node, share);
  for (const node of holders("search")) {
    const series = [];
    runs.forEach((run, i) => {
      if (!run.search.length) return;
      const which = runs.length > 1 ? `${"AB"[i]}: ` : "";
      series.push({ name: `${which}current state`, colour: line(2 * i + 1), thin: true, points: run.search.map((s) => [s[0], s[1]]) });
      series.push({ name: `${which}best so far`, colour: line(2 * i), step: true, points: run.search.map((s) => [s[0], s[2]]) });
    });
    if (series.length) {
      plot(node, { label: "Predicted iteration over evaluations of the search", series,
        x: { label: "evaluations", format: (v) => `${v}`, zero: true }, y: { label: "predicted iteration", format: seconds } });
    }
  }
  for (const node of holders("steps")) {
    plot(node, { label: "Cumulative distribution of the time of a step over the seconds of the run",
      x: { label: "time of a step on rank 0", format: seconds }, y: { ...share, label: "share of seconds" },
      series: [{ name: "steps", colour: line(0), points: cumulative(runOf(node).steps), step: true }] });
  }
  for (const node of holders("training")) trainingCurves(node, runOf(node).training);
}

function loadCurve(node, share) {
  const series = [];
  const inShares = runs.some((run) => run.traffic && run.traffic.basis === "share");
  runs.forEach((run, i) => {
    for (const [kind, name] of [["predicted", "predicted"], ["measured", "measured"]]) {
      const values = run.traffic && run.traffic[kind];
      if (!values) continue;
      const known = values.filter((v) => v !== null);
      series.push({ name: runs.length > 1 ? `${"AB"[i]}: ${name}` : name, colour: line(2 * i + (kind === "measured" ? 1 : 0)),
        points: cumulative(known), step: true });
    }
  });
  if (!series.length) return;
  const loads = series.flatMap((one) => one.points.map((point) => point[0]));
  const [least, most] = [Math.min(...loads), Math.max(...loads)];
  if (least === most) {
    const each = inShares ? `${percent(most)} of all bytes` : bytes(most);
    node.append(el("p", { class: "note" }, `Every link carries ${each}.`));
    return;
  }
  const zero = least < 0.8 * most;
  // Loads that differ by a thousandth need more digits for ticks that differ.
  const digits = 3 + Math.max(0, Math.ceil(Math.log10(most / (most - least))) - 1);
  plot(node, {
    label: "Cumulative distribution of the load of links", series,
    x: { label: inShares ? "share of all bytes on a link" : "bytes on a link", format: inShares ? (v) => percent(v, Math.max(1, digits - 2)) : (v) => prefixed(v, "B", digits), zero },
    y: { ...share, label: "share of links" },
  });
}

function trainingCurves(node, training) {
  const axis = { elapsed_s: "elapsed time", time_s: "time since the run began", "": "log line" }[training.axis] || training.axis;
  const x = { label: axis, format: training.axis.endsWith("_s") ? seconds : (v) => `${Number(v.toPrecision(4))}` };
  const kinds = [["accuracy", training.accuracies, (v) => percent(v)], ["loss", training.losses, (v) => significant(v)]];
  for (const [name, lines, format] of kinds) {
    const series = lines.filter(([, points]) => points.length).map(([key, points], i) => ({ name: key, colour: line(i), points }));
    if (!series.length) continue;
    if (name === "accuracy" && training.goal !== null) {
      const xs = series.flatMap((one) => one.points.map((p) => p[0]));
      series.push({ name: "target", colour: "var(--muted)", dash: "5 4", points: [[Math.min(...xs), training.goal], [Math.max(...xs), training.goal]] });
    }
    const body = el("div", {});
    node.append(body);
    plot(body, { label: `Training: ${name}`, series, x, y: { label: name, format } });
  }
}
