"""All-to-alls during which circuits move, against baselines: the paper's Figures 11 to 14.

    python benchmarks/alltoall.py cells --servers 8 16 32          # Figure 11: flows of 32 MB
    python benchmarks/alltoall.py cells --servers 16 --sizes 8 16 32 64           # Figure 12
    python benchmarks/alltoall.py ratios --servers 32 64 512 4096                 # Figure 13
    python benchmarks/alltoall.py delays --servers 16 --degree 1 --workloads random   # Figure 14

`make figures FIGURES="alltoall-11"` also draws them, and compares with the paper's numbers.

800 Gb/s, alpha 500 ns, chunks of 4 MB, as in "To Reconfigure or Not to Reconfigure"; sizes are
means, in MB. Baselines: circulant and kautz, static, as DirectConnect's, with the routes of its
linear program; rings, TopoOpt's union of strides; mixnet, circuits for the largest demands; fast, a
sum of permutations. Their other routes and their schedules are made as ours are, and all are
replayed. `cells` prints, for each, the delay at which reconfiguring gains most (as the figures do),
what ours and the best baseline take then, and over all delays the largest ratio of the two: above 1
ours would be slower. `ratios` prints slots over Theorem 1's bound, the worst of all numbers of
topologies, with one circuit and chunks that stay.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from torch_topoopt.reconfiguration.all_to_all.schedule import (
    PORT,
    SENDER,
    SOURCE,
    TARGET,
    circulant_links,
)
from torch_topoopt.reconfiguration.all_to_all.sequence_routes import sequence_schedule
from torch_topoopt.reconfiguration.all_to_all.single_cycles import (
    best_shifts,
    paper_shifts,
    shift_hops,
)
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import assigned
from torch_topoopt.reconfiguration.all_to_all.verification import verify
from torch_topoopt.topology.finder.select_permutations import select_permutations
from torch_topoopt.topology.finder.totient_perms import totient_perms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

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


def paper_sequences(counts: NDArray[np.int32], degree: int, seed: int) -> list[Timed]:
    """(topologies, slots) of the paper's sequences, where a chunk stays on one topology.

    A topology takes a slot for each chunk of its busiest circuit. Servers are relabelled for
    unequal sizes.
    """
    found = []
    for strategy in strategies(len(counts), degree, mode="paper", seed=seed):
        parts = assigned(strategy.schedule, counts, seed=seed)
        slots = busiest_circuits(strategy.schedule, counts[np.ix_(parts, parts)])
        found.append((strategy.reconfigurations, slots))
    return found


def busiest_circuits(schedule: AllToAllSchedule, counts: NDArray[np.int32]) -> int:
    """Chunks of the busiest circuit of each topology, added up, if pairs take the routes of
    `schedule` with all their chunks."""
    sends = schedule.whole().sends
    carried = np.zeros(schedule.links.shape, dtype=np.int64)
    circuit = (schedule.topology_of(sends), sends[:, SENDER], sends[:, PORT])
    np.add.at(carried, circuit, counts[sends[:, SOURCE], sends[:, TARGET]])
    return int(carried.max(axis=(1, 2)).sum())


def fastest(found: Sequence[Timed], delay_s: float) -> tuple[float, int]:
    """(seconds, topologies) of the fastest."""
    costs = CircuitCosts(800, 500e-9, delay_s)
    return min((costs.seconds(slots, d, CHUNK_MB * 1e6), d) for d, slots in found)


@dataclass(frozen=True)
class Gain:
    """The delay at which reconfiguring gains most: seconds and topologies of the fastest schedule,
    and the fastest baseline. `worst` is the largest ratio of both times at any delay."""

    delay_s: float
    seconds: float
    topologies: int
    baseline_s: float
    baseline: str
    worst: float

    @property
    def reduction(self) -> float:
        return 1 - self.seconds / self.baseline_s


def most_gained(others: Mapping[str, Timed], found: Sequence[Timed]) -> Gain:
    """Over all delays of SWEPT_S, of schedules `found` against the baselines `others`."""
    rows = []
    for delay_s in SWEPT_S:
        best_s, best = min((fastest([other], delay_s)[0], name) for name, other in others.items())
        own_s, d = fastest(found, delay_s)
        rows.append((own_s / best_s, delay_s, own_s, d, best_s, best))
    _, delay_s, own_s, d, best_s, best = min(rows)
    return Gain(delay_s, own_s, d, best_s, best, max(rows)[0])


def cells(
    chosen: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, Timed], list[Timed]]]:
    """(name, baselines, ours) of every combination that is requested."""
    every = itertools.product(chosen.servers, chosen.degree, chosen.workloads, chosen.sizes)
    for n, degree, workload, size in every:
        counts = chunk_counts(n, workload, size, chosen.seed)
        others = baselines(counts, degree, chosen.seed)
        name = f"{n:7}  {degree:8}  {workload:8} {size:3g} MB"
        yield name, others, ours(counts, degree, workload, chosen.seed)


def show_cells(chosen: argparse.Namespace) -> None:
    columns = f"{'delay':>20}{'ours':>13}{'d':>5}{'best baseline':>18}   less  worst"
    print(f"servers  circuits  sizes{columns}")
    gains = []
    for name, others, mine in cells(chosen):
        gain = most_gained(others, mine)
        gains.append(gain)
        print(
            f"{name}  {gain.delay_s:8.2g} s  {gain.seconds * 1e3:8.2f} ms {gain.topologies:4}  "
            f"{gain.baseline_s * 1e3:8.2f} ms {gain.baseline:10}{gain.reduction:6.1%}  "
            f"{gain.worst:.3f}",
            flush=True,
        )
    mean = np.mean([gain.reduction for gain in gains])
    worst = max(gain.worst for gain in gains)
    print(f"mean of {len(gains)} cells: {mean:.2%} less; worst {worst:.3f}")


def shift_slots(servers: int) -> dict[str, dict[int, int]]:
    """With one circuit and chunks that stay, slots by the number of topologies: of chosen sets of
    shifts, of the paper's order, and of Theorem 1."""
    table = shift_hops(servers)
    chosen = {
        d: int(table[list(shifts)].min(axis=0).sum(dtype=np.int64))
        for d, shifts in best_shifts(servers).items()
    }
    hops = np.full(servers, 4 * servers, dtype=np.int64)
    paper = {}
    for d, shift in enumerate(paper_shifts(servers), 1):
        hops = np.minimum(hops, table[shift])
        paper[d] = int(hops.sum())
    bound = {d: uncarried_bound_slots(servers, 1, d) for d in chosen}
    return {"chosen sets": chosen, "the paper's order": paper, "Theorem 1": bound}


def worst_gap(slots: Mapping[str, Mapping[int, int]], name: str) -> tuple[float, int]:
    """(slots over Theorem 1's bound, topologies) where that is largest."""
    return max((count / slots["Theorem 1"][d], d) for d, count in slots[name].items())


def show_ratios(chosen: argparse.Namespace) -> None:
    print("servers  chosen sets      the paper's order")
    for n in chosen.servers:
        slots = shift_slots(n)
        own, paper = worst_gap(slots, "chosen sets"), worst_gap(slots, "the paper's order")
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


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", choices=["cells", "ratios", "delays"])
    options.add_argument("--servers", type=int, nargs="+", default=[8, 16, 32])
    options.add_argument("--degree", type=int, nargs="+", default=[1, 2])
    options.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options.add_argument("--sizes", type=float, nargs="+", default=[32.0], help="mean, MB")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    show = {"cells": show_cells, "ratios": show_ratios, "delays": show_delays}
    show[chosen.what](chosen)


if __name__ == "__main__":
    main()
