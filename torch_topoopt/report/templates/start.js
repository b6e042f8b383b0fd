// Starts the page: the last of its scripts.

curves();
glances();
topologies();
heatmaps();
linkLoads();
timelines();
whatIf();
costs();
pulls();
for (const box of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(box.dataset.filter).querySelectorAll("tbody tr")];
  box.addEventListener("input", () => {
    const wanted = box.value.trim().toLowerCase();
    rows.forEach((row) => { row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted); });
  });
}
tabs();
