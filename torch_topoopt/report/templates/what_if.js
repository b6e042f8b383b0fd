// What another bandwidth, batch or number of ports would make of the iteration: interpolated between
// simulated iterations, linear in the time of a byte (bandwidth) and in the number of samples.

// Position in ascending `values`: [index, fraction].
function between(values, value) {
  let i = 0;
  while (i < values.length - 2 && value > values[i + 1]) i += 1;
  if (values.length === 1) return [0, 0];
  return [i, Math.min(1, Math.max(0, (value - values[i]) / (values[i + 1] - values[i])))];
}

const mix = (a, b, part) => (part === 0 ? a : part === 1 ? b : a === null || b === null ? null : a + (b - a) * part);

function predicted(model, degree, gbps, batch) {
  const table = model.degrees.find((entry) => entry.degree === degree).iteration_s;
  const times = model.gbps.map((value) => 1 / value).reverse();
  const [k, w] = between(times, 1 / gbps);
  const [j, v] = between(model.batches, batch);
  const at = (row) => mix(row[j], row[Math.min(j + 1, row.length - 1)], v);
  const rows = [...table].reverse();
  return mix(at(rows[k]), at(rows[Math.min(k + 1, rows.length - 1)]), w);
}

function whatIf() {
  for (const node of holders("what-if")) {
    const run = runOf(node), model = run.what_if;
    if (!model) continue;
    const base = Array.isArray(run.gbps) ? Math.min(...run.gbps) : run.gbps;
    const state = { gbps: base, batch: run.batch, degree: run.degree };
    const fixed = predicted(model, run.degree, base, run.batch);
    const out = el("output", { class: "big" }), note = el("div", { class: "note" }), body = el("div", { class: "plot" });
    const sliders = [
      slider("Bandwidth of a link", Math.log2(model.gbps[0]), Math.log2(model.gbps[model.gbps.length - 1]), 0.125, Math.log2(base), (v) => { state.gbps = 2 ** v; return rate(Number(state.gbps.toPrecision(3))); }),
      model.batches.length > 1 ? slider("Batch", Math.log2(model.batches[0]), Math.log2(model.batches[model.batches.length - 1]), 0.125, Math.log2(run.batch), (v) => { state.batch = 2 ** v; return `${Math.round(state.batch)} samples`; }) : null,
      model.degrees.length > 1 ? slider("Ports of a server", 0, model.degrees.length - 1, 1, model.degrees.findIndex((d) => d.degree === run.degree), (v) => { state.degree = model.degrees[v].degree; return counted(state.degree, "port"); }) : null,
    ].filter(Boolean);
    const reset = el("button", { type: "button", onclick: () => sliders.forEach((one) => one.reset()) }, "Back to the plan");
    node.append(el("div", { class: "what-if" }, el("div", {}, sliders.map((one) => one.node), reset), el("div", {}, out, note)), body);
    const drawn = figure(body, (width) => {
      const points = (degree) => Array.from({ length: 33 }, (_, i) => {
        const gbps = model.gbps[0] * (model.gbps[model.gbps.length - 1] / model.gbps[0]) ** (i / 32);
        return [gbps, predicted(model, degree, gbps, state.batch)];
      });
      const series = model.degrees.map((entry, i) => ({ name: counted(entry.degree, "port"), colour: line(i), points: points(entry.degree), step: false, dash: entry.degree === state.degree ? null : "5 4", thin: entry.degree !== state.degree }));
      body.replaceChildren(legend(series), chart(width, 260, { label: "Predicted iteration over the bandwidth of a link", series,
        x: { label: "bandwidth of a link", format: rate, log: true, ticks: width < 520 ? model.gbps.filter((_, i) => i % 2 === 0) : model.gbps },
        y: { label: "predicted iteration", format: seconds, zero: true }, marks: [{ x: state.gbps, text: seconds(predicted(model, state.degree, state.gbps, state.batch)) }] }));
    });
    function update() {
      const value = predicted(model, state.degree, state.gbps, state.batch);
      const same = Math.abs(value / fixed - 1) < 0.0005;
      out.textContent = seconds(value);
      note.textContent = same ? "predicted iteration, as planned" : `predicted iteration; the plan: ${seconds(fixed)}, ${change(value, fixed)}. ` +
        `${significant(state.batch / value)} samples/s, ${change(state.batch / value, run.batch / fixed)}.`;
      drawn.redraw();
    }
    sliders.forEach((one) => one.listen(update));
    update();
  }
}

function slider(name, low, high, step, start, format) {
  const shown = el("output", {}), box = el("input", { type: "range", min: low, max: high, step: "any", value: start, "aria-label": name });
  box.step = step === 1 ? 1 : (high - low) / Math.round((high - low) / step);
  box.value = start;
  const listeners = [];
  const update = () => {
    shown.textContent = format(Number(box.value));
    box.setAttribute("aria-valuetext", shown.textContent);
    listeners.forEach((listener) => listener());
  };
  box.addEventListener("input", update);
  update();
  return { node: el("label", { class: "slider" }, el("span", {}, name), shown, box), listen: (f) => listeners.push(f), reset: () => { box.value = start; update(); } };
}

// Cost against time of every architecture (TopoOpt paper, Figure 10): bars of both.
function costs() {
  for (const node of holders("costs")) {
    const rows = runOf(node).costs;
    if (!rows.length) continue;
    const body = el("div", { class: "plot" });
    node.append(body);
    figure(body, (width) => {
      const row = 26, left = Math.min(180, width * 0.36), half = (width - left) / 2, height = rows.length * row + 20;
      const slow = Math.max(...rows.map((r) => r.iteration_s)), fast = Math.min(...rows.map((r) => r.iteration_s)), dear = Math.max(...rows.map((r) => r.cost || 0));
      const wide = half - 78;
      // One slow architecture must not flatten the others: logarithmic, from a third of the fastest.
      const length = (s) => (Math.log(s / (fast / 3)) / Math.log(slow / (fast / 3))) * wide;
      const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Predicted iteration and cost of every architecture; the table below has the figures" });
      root.append(svg("text", { x: left, y: 11, class: "tick" }, "iteration (log.)"), svg("text", { x: left + half, y: 11, class: "tick" }, "cost"));
      rows.forEach((r, i) => {
        const y = 18 + i * row, own = i === 0;
        root.append(svg("text", { x: left - 8, y: y + 14, class: own ? "name end strong" : "name end" }, fitted(r.name, left - 8)),
          svg("rect", { x: left, y, width: Math.max(2, length(r.iteration_s)), height: row - 8, rx: 2, style: `fill:${own ? line(0) : "var(--bar)"}` }),
          svg("text", { x: left + length(r.iteration_s) + 6, y: y + 13, class: "tick" }, seconds(r.iteration_s)));
        if (r.cost === null) root.append(svg("text", { x: left + half, y: y + 13, class: "tick" }, "no price"));
        else root.append(svg("rect", { x: left + half, y, width: Math.max(2, (r.cost / dear) * wide), height: row - 8, rx: 2, style: `fill:${own ? line(1) : "var(--bar)"}` }),
          svg("text", { x: left + half + (r.cost / dear) * wide + 6, y: y + 13, class: "tick" }, `$ ${prefixed(Math.round(r.cost), "").trim()}`));
      });
      body.replaceChildren(root);
    });
  }
}
