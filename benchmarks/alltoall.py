"""All-to-alls during which circuits move, against baselines: the paper's Figures 11 to 14.

    python benchmarks/alltoall.py cells --servers 8 16 32          # Figure 11: flows of 32 MB
    python benchmarks/alltoall.py cells --servers 16 --sizes 8 16 32 64           # Figure 12
    python benchmarks/alltoall.py ratios --servers 32 64 512 4096                 # Figure 13
    python benchmarks/alltoall.py delays --servers 16 --degree 1 --workloads random   # Figure 14

800 Gb/s, alpha 500 ns, chunks of 4 MB, as in "To Reconfigure or Not to Reconfigure"; sizes are
means, in MB. Baselines: circulant and kautz, static, as DirectConnect's, with the routes of its
linear program; rings, TopoOpt's union of strides; mixnet, circuits for the largest demands; fast, a
sum of permutations. Their other routes and their schedules are made as ours are, and all are
replayed. `cells` prints, for each, the delay at which reconfiguring gains most (as the figures do),
what ours and the best baseline take then, and over all delays the largest ratio of the two: above 1
ours would be slower. `ratios` prints slots over Theorem 1's bound, the worst of all numbers of
topologies, with one circuit and chunks that stay.

`--keep FILE` stores what was planned, and takes from there what it has; `plot --keep FILE` draws
the figures of which it has cells, as SVG and PNG (`--out DIR`).
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.bounds import uncarried_bound_slots
from torch_topoopt.reconfiguration.all_to_all.comparison import Sizes, compared
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.demand_topologies import (
    greedy_links,
    permutation_schedule,
)
from torch_topoopt.reconfiguration.all_to_all.kautz_links import kautz_links
from torch_topoopt.reconfiguration.all_to_all.optimal_routes import (
    MOST_VARIABLES,
    optimal_schedule,
    variables,
)
from torch_topoopt.reconfiguration.all_to_all.schedule import circulant_links
from torch_topoopt.reconfiguration.all_to_all.sequence_routes import sequence_schedule
from torch_topoopt.reconfiguration.all_to_all.single_cycles import (
    best_shifts,
    paper_shifts,
    shift_hops,
)
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.verification import verify
from torch_topoopt.topology.finder.select_permutations import select_permutations
from torch_topoopt.topology.finder.totient_perms import totient_perms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

CHUNK_MB = 4
DELAYS_S = tuple(float(f"{10.0**exponent:.2g}") for exponent in np.arange(-6, 0.1, 0.5))
SWEPT_S = tuple(float(10.0**exponent) for exponent in np.arange(-6, 0.01, 1 / 16))
WORKLOADS = ("uniform", "random", "zipf")
Timed = tuple[int, int]  # topologies, slots


def chunk_counts(servers: int, workload: str, mean_mb: float, seed: int) -> NDArray[np.int32]:
    """Chunks of each pair."""
    draw = np.random.default_rng(seed)
    shape = (servers, servers)
    if workload == "uniform":
        sizes = np.full(shape, mean_mb)
    elif workload == "random":
        sizes = draw.uniform(0, 2 * mean_mb, shape)
    else:
        ranked = np.arange(1, servers * servers + 1) ** -0.4
        sizes = draw.permutation(ranked / ranked.mean() * mean_mb).reshape(shape)
    counts = np.ceil(sizes / CHUNK_MB).astype(np.int32)
    np.fill_diagonal(counts, 0)
    return counts


def baselines(counts: NDArray[np.int32], degree: int, seed: int) -> dict[str, Timed]:
    """(topologies, slots) of each."""
    n = len(counts)
    low = max(1, int(np.ceil((np.sqrt(2 * n - 1) - 1) / 2)))
    strides = (1,) if degree == 1 else tuple(range(low, low + degree))
    rings = select_permutations(n, degree, totient_perms(n, duplex=False))
    static = {
        "circulant": circulant_links(n, [strides]),
        "rings": circulant_links(n, [(*rings, *[0] * (degree - len(rings)))]),
        "mixnet": greedy_links(counts, degree, 1, seed=seed),
    }
    if degree > 1:
        static["kautz"] = kautz_links(n, degree)[None]
    schedules = {name: sequence_schedule(links, counts) for name, links in static.items()}
    if degree > 1 and variables(n, degree, 1) <= MOST_VARIABLES:  # with one there is one route
        for name in ("circulant", "kautz"):
            schedules[name] = optimal_schedule(static[name], counts)[0]
    schedules["fast"] = permutation_schedule(counts, degree)
    for schedule in schedules.values():
        verify(schedule)
    return {name: (s.reconfigurations, s.slots) for name, s in schedules.items()}


def ours(counts: NDArray[np.int32], degree: int, workload: str, seed: int) -> list[Timed]:
    """(topologies, slots) for every number of topologies that is tried."""
    n = len(counts)
    costs = CircuitCosts(800, 500e-9, 1e-6)
    options = compared(n, degree, costs, Sizes(CHUNK_MB * 1e6, counts), count="all", seed=seed)
    found = [(o.strategy.reconfigurations, o.strategy.slots) for o in options]
    if workload == "uniform":  # a schedule of one chunk per pair, as often as there are chunks
        chunks = int(counts.max())
        found += [(s.reconfigurations, s.slots * chunks) for s in strategies(n, degree, seed=seed)]
    return found


def fastest(found: Sequence[Timed], delay_s: float) -> tuple[float, int]:
    """(seconds, topologies) of the fastest."""
    costs = CircuitCosts(800, 500e-9, delay_s)
    return min((costs.seconds(slots, d, CHUNK_MB * 1e6), d) for d, slots in found)


def cells(
    chosen: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, Timed], list[Timed]]]:
    """(name, baselines, ours) of every combination that is asked for."""
    asked = itertools.product(chosen.servers, chosen.degree, chosen.workloads, chosen.sizes)
    for n, degree, workload, size in asked:
        kept = read_kept(chosen.keep)
        key = f"{n} {degree} {workload} {size:g} {chosen.seed}"
        if key not in kept:
            counts = chunk_counts(n, workload, size, chosen.seed)
            others = baselines(counts, degree, chosen.seed)
            kept[key] = {"others": others, "ours": ours(counts, degree, workload, chosen.seed)}
            if chosen.keep is not None:
                write_kept(chosen.keep, kept)
        name = f"{n:7}  {degree:8}  {workload:8} {size:3g} MB"
        yield name, kept[key]["others"], kept[key]["ours"]


def read_kept(path: Path | None) -> dict[str, Any]:
    """By servers, circuits, sizes, their mean and the seed: (topologies, slots) of all."""
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_kept(path: Path, kept: dict[str, Any]) -> None:
    """In one step: a stopped run leaves a whole file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def show_cells(chosen: argparse.Namespace) -> None:
    columns = f"{'delay':>20}{'ours':>13}{'d':>5}{'best baseline':>18}   less  worst"
    print(f"servers  circuits  sizes{columns}")
    reductions, worst_of_all = [], 0.0
    for name, others, mine in cells(chosen):
        rows = []
        for delay_s in SWEPT_S:
            best_s, best = min(
                (fastest([other], delay_s)[0], name) for name, other in others.items()
            )
            our_s, d = fastest(mine, delay_s)
            rows.append((our_s / best_s, delay_s, our_s, d, best_s, best))
        ratio, delay_s, our_s, d, best_s, best = min(rows)
        worst = max(rows)[0]
        reductions.append(1 - ratio)
        worst_of_all = max(worst_of_all, worst)
        print(
            f"{name}  {delay_s:8.2g} s  {our_s * 1e3:8.2f} ms {d:4}  {best_s * 1e3:8.2f} ms "
            f"{best:10}{1 - ratio:6.1%}  {worst:.3f}",
            flush=True,
        )
    mean = np.mean(reductions)
    print(f"mean of {len(reductions)} cells: {mean:.2%} less; worst {worst_of_all:.3f}")


def show_ratios(chosen: argparse.Namespace) -> None:
    print("servers  chosen sets      the paper's order")
    for n in chosen.servers:
        table = shift_hops(n)
        own = max(
            (int(table[list(shifts)].min(axis=0).sum(dtype=np.int64)) / bound, d)
            for d, shifts in best_shifts(n).items()
            for bound in [uncarried_bound_slots(n, 1, d)]
        )
        hops = np.full(n, 4 * n, dtype=np.int64)
        nested = []
        for d, shift in enumerate(paper_shifts(n), 1):
            hops = np.minimum(hops, table[shift])
            nested.append((int(hops.sum()) / uncarried_bound_slots(n, 1, d), d))
        paper = max(nested)
        print(f"{n:7}  {own[0]:.3f} (d = {own[1]:3})  {paper[0]:.3f} (d = {paper[1]})", flush=True)


def show_delays(chosen: argparse.Namespace) -> None:
    for name, others, mine in cells(chosen):
        print(f"servers, circuits, sizes: {' '.join(name.split())}; times in ms")
        print(f"{'delay':>10}  {'d':>3}  {'ours':>8}  " + "  ".join(f"{o:>9}" for o in others))
        for delay_s in DELAYS_S:
            our_s, d = fastest(mine, delay_s)
            times = [fastest([other], delay_s)[0] * 1e3 for other in others.values()]
            print(
                f"{delay_s:8.2g} s  {d:3}  {our_s * 1e3:8.2f}  "
                + "  ".join(f"{ms:9.2f}" for ms in times),
                flush=True,
            )


def show_plots(chosen: argparse.Namespace) -> None:
    import alltoall_plots

    kept = read_kept(chosen.keep)
    for path in alltoall_plots.draw(
        kept, chosen.out, alltoall_plots.Pricing(fastest, DELAYS_S, SWEPT_S)
    ):
        print(path, flush=True)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", choices=["cells", "ratios", "delays", "plot"])
    options.add_argument("--servers", type=int, nargs="+", default=[8, 16, 32])
    options.add_argument("--degree", type=int, nargs="+", default=[1, 2])
    options.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options.add_argument("--sizes", type=float, nargs="+", default=[32.0], help="mean, MB")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", type=Path, help="store what was planned, and take it from there")
    options.add_argument("--out", type=Path, default=Path("alltoall-plots"), help="folder of plots")
    chosen = options.parse_args()
    if chosen.what == "plot" and (chosen.keep is None or not chosen.keep.exists()):
        options.error(f"keep: {chosen.keep} is no file; name one that cells or delays have stored")
    show = {"cells": show_cells, "ratios": show_ratios, "delays": show_delays, "plot": show_plots}
    show[chosen.what](chosen)


if __name__ == "__main__":
    main()
