"""Predicted collectives of `auto` against breadth-first broadcast, the bound, and rings and trees.

    python benchmarks/collective_schedules.py
    python benchmarks/collective_schedules.py --networks 64-4-best --collectives all_gather

A network is SERVERS-DEGREE-MODE, on duplex ports of 100 Gb/s; mode best takes 2e9 operations. A
message costs 2 us, and 1 us for each link. For every size the table has the algorithm of auto, and
the time of auto over

  formula  breadth-first broadcast (arXiv 2202.03356) on the same cables: for every step alpha, and
           the bytes of the busiest link
  bound    the slowest cut, without latencies; of an all_reduce, of both of its phases

and the time of the fastest ring, tree, torus or doubling over that of auto (`rings`).
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from torch_topoopt.launcher.console import Terminal
from torch_topoopt.plan import BYTES_PER_GBPS, Cluster
from torch_topoopt.plan.units import format_bytes, format_seconds
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.best.ring_unions import WORK_PER_S
from torch_topoopt.topology.collectives.candidates import ALPHA_S, HOP_S, LinkGraph
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.topology.collectives.schedule_file import Collective

_NETWORKS = ("16-4-paper", "64-4-best", "128-4-paper", "128-4-best", "128-8-best")
_GBPS = 100.0
_OPERATIONS = 2e9
_SIZES = tuple(1 << power for power in range(10, 29, 2))
_PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
_OLD = frozenset({"ring", "multi_ring", "both_ways", "tree", "doubling", "torus"})


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--networks", nargs="+", default=_NETWORKS, metavar="N-D-MODE")
    options.add_argument(
        "--collectives", nargs="+", default=["all_reduce", "all_gather"], choices=list(_PHASES)
    )
    arguments = options.parse_args()
    terminal = Terminal()
    for network in arguments.networks:
        graph = _graph(network)
        started = time.perf_counter()
        step_shards = _breadth_first_shards(graph)
        built_s = time.perf_counter() - started
        for collective in arguments.collectives:
            rows = list(_rows(graph, collective, step_shards))
            columns = ("bytes", "auto", "time", "over formula", "over bound", "rings")
            terminal.table(f"{collective}, {network}", columns, rows)
        over = sum(step_shards) * _ports(graph) / (graph.servers - 1)
        terminal.line(
            f"breadth-first: {len(step_shards)} steps, {over:.3f} times the bytes of all ports, "
            f"made and replayed in {format_seconds(built_s)}"
        )


def _graph(name: str) -> LinkGraph:
    servers, degree, mode = name.split("-")
    cluster = Cluster(servers=int(servers), degree=int(degree), link_gbps=_GBPS)
    budget_s = _OPERATIONS / WORK_PER_S if mode == "best" else None
    search = NetworkSearch(budget_s=budget_s)
    network = find_network(cluster, default_demand(int(servers)), mode=mode, search=search)
    return LinkGraph(int(servers), cluster.pair_gbps(network.links), network.groups[0].rings)


def _ports(graph: LinkGraph) -> float:
    return sum(graph.rates.values()) / _GBPS / graph.servers


def _breadth_first_shards(graph: LinkGraph) -> list[float]:
    """Shards on the busiest link in every step of an all_gather."""
    (phase,) = graph.schedule("all_gather", graph.servers, "breadth_first").phases
    loads: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for part in phase.steps:
        pair = part.source, part.target
        loads[part.step][pair] += part.fraction * _GBPS / graph.rates[pair]
    return [max(loads[step].values()) for step in range(phase.count)]


def _rows(graph: LinkGraph, collective: Collective, shards: list[float]) -> Iterator[list[str]]:
    for size in _SIZES:
        priced = graph.priced(collective, size)
        seconds = {each.algorithm: each.seconds for each in priced.candidates}
        auto_s = seconds[priced.auto]
        transfer_s = sum(shards) * size / graph.servers / (_GBPS * BYTES_PER_GBPS)
        formula_s = _PHASES[collective] * (len(shards) * (ALPHA_S + HOP_S) + transfer_s)
        old_s = min(value for name, value in seconds.items() if name in _OLD)
        bound_s = priced.candidates[0].bound_seconds
        yield [
            format_bytes(size),
            priced.auto,
            format_seconds(auto_s),
            f"{auto_s / formula_s:.3f}",
            f"{auto_s / bound_s:.3g}",
            f"{old_s / auto_s:.2f}",
        ]


if __name__ == "__main__":
    main()
