// A cable is pulled: which rings and routes it takes with it, where they go, and what it costs.

let pullCable = () => {};

// The way with the fewest hops without a cable; where several next servers are equally near, the
// choice turns with source and target (topology/failures/degraded.py, Survivors.path).
function wayWithout(run, gone, source, target) {
  const near = Array.from({ length: run.servers }, () => []);
  run.cables.forEach(([a, b], i) => {
    if (i === gone) return;
    near[a].push(b);
    if (run.duplex) near[b].push(a);
  });
  const into = Array.from({ length: run.servers }, () => []);
  near.forEach((list, from) => { [...new Set(list)].forEach((to) => into[to].push(from)); });
  const hops = new Array(run.servers).fill(-1);
  hops[target] = 0;
  for (let edge = [target]; edge.length;) {
    const next = [];
    for (const at of edge) for (const from of into[at]) if (hops[from] < 0) { hops[from] = hops[at] + 1; next.push(from); }
    edge = next;
  }
  if (hops[source] < 0) return null;
  const way = [source];
  while (way[way.length - 1] !== target) {
    const at = way[way.length - 1];
    const ahead = [...new Set(near[at])].sort((a, b) => a - b).filter((s) => hops[s] === hops[at] - 1);
    way.push(ahead[(source + target) % ahead.length]);
  }
  return way;
}

function pulls() {
  for (const node of holders("pull")) {
    const run = runOf(node), losses = run.losses;
    if (!losses) continue;
    const names = run.cables.map((_, i) => cableText(run, i));
    const result = el("div", { "aria-live": "polite" }), body = el("div", { class: "plot" });
    const options = el("datalist", { id: "cables" }, names.slice(0, 2000).map((value) => el("option", { value })));
    const state = { layout: "circular", hidden: new Set(), server: null, cable: null, family: null, pulled: 0, detours: [] };
    const box = el("input", { type: "search", list: "cables", "aria-label": "Cable", oninput: () => { const i = names.indexOf(box.value.trim()); if (i >= 0) show(i); } });
    const step = (by) => el("button", { type: "button", onclick: () => pullCable((state.pulled + by + names.length) % names.length) }, by < 0 ? "previous" : "next");
    const kinds = losses.classes.map((entry, i) => el("button", { type: "button", onclick: () => pullCable(entry.worst_cable) }, `worst of kind ${i + 1}`));
    node.append(el("div", { class: "controls" }, el("label", { class: "small" }, run.duplex ? "Cable " : "Link ", box), options,
      el("div", { class: "choice", role: "group", "aria-label": "Cables" }, step(-1), step(1), kinds.slice(0, 4))), el("div", { class: "columns" }, result, body));
    const drawn = figure(body, (width) => body.replaceChildren(drawTopology(run, Math.min(width, 460), state, null)));
    pullCable = (i) => { box.value = names[i]; show(i); };
    function show(i) {
      const loss = losses.cables[i], kind = losses.classes[loss.class], [a, b] = run.cables[i];
      state.pulled = i;
      const pairs = run.duplex ? [[a, b], [b, a]] : [[a, b]];
      const ways = pairs.map(([from, to]) => loss.detours.find((way) => way[0] === from && way[way.length - 1] === to) || wayWithout(run, i, from, to)).filter(Boolean);
      const parallel = run.cables.some(([c, d], k) => k !== i && ((c === a && d === b) || (c === b && d === a)));
      state.detours = parallel ? [] : ways;
      const lines = [];
      if (loss.busiest_s === null) lines.push(el("p", { class: "bad" }, "The network is not connected without it: the job cannot go on."));
      else {
        if (kind.iteration_s !== null && losses.iteration_s !== null) {
          lines.push(el("p", {}, el("strong", {}, `Predicted iteration ${seconds(kind.iteration_s)}, ${change(kind.iteration_s, losses.iteration_s)} `), `(${seconds(losses.iteration_s)} with all cables), simulated ` +
            (kind.worst_cable === i ? "without this cable." : `without ${names[kind.worst_cable]}, the worst of ${counted(kind.cables, "cable")} whose loss costs alike.`)));
        }
        lines.push(table(["", "now", "without it"], [
          ["busiest link, per iteration", seconds(losses.busiest_s), `${seconds(loss.busiest_s)} (${change(loss.busiest_s, losses.busiest_s)})`],
          ["AllReduce alone", seconds(losses.all_reduce_s), `${seconds(loss.all_reduce_s)} (${change(loss.all_reduce_s, losses.all_reduce_s)})`],
          ["rings given up", "0", loss.of ? `${loss.given_up} of ${loss.of}` : "0"],
          ["ordered pairs with a route over it", String(loss.pairs), "0"]]));
        if (parallel) lines.push(el("p", {}, "A parallel cable between the same servers is left."));
        else if (ways.length) lines.push(el("p", {}, "What went over it then goes"), el("ul", { class: "plain" }, ways.map((way) => el("li", {}, way.join(" → ")))));
        const others = loss.detours.filter((way) => !ways.includes(way));
        if (others.length) lines.push(el("p", { class: "note" }, `${counted(others.length, "more planned detour")} of ring hops.`));
      }
      result.replaceChildren(...lines);
      drawn.redraw();
    }
    pullCable(losses.classes.length ? losses.classes[0].worst_cable : 0);
  }
}
