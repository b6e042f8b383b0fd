"""The optimum of small instances, by going through all strategies on all networks.

Random jobs of few operators on few servers. The optimum is the least time of all strategies that
split by samples (strategy_space without further dimensions), each on every network that
TopologyFinder makes for any of them, with the servers in any order: with two ports per server these
are all rings. The gap is that of `plan` to it.
"""

from __future__ import annotations

import itertools
import random
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt import _core
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy


def run_gap(case: dict[str, Any]) -> dict[str, Any]:
    """One small instance: the optimum of all strategies and networks, and the gap of `plan`."""
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner import plan

    rng = random.Random(case["seed"])
    graph = small_job(rng, case["operators"], case["servers"])
    cluster = Cluster(case["servers"], case["degree"], 10.0)
    optimum = optimum_of(graph, cluster)
    found = plan(
        graph, cluster, mode=case["mode"], strategy_space="samples", evaluations=case["evaluations"]
    ).prediction.iteration_s
    return {**case, "optimum_s": optimum, "found_s": found, "gap": found / optimum - 1}


def small_job(rng: random.Random, operators: int, servers: int) -> OpGraph:
    """Operators in which computing, AllReduce and transfers take times of the same order."""
    from torch_topoopt.op_graph import Operand, Operator, OpGraph

    made = []
    for i in range(operators):
        parameters = rng.choice([0, rng.randrange(10**5, 10**7)])
        producers = sorted(rng.sample(range(i), min(i, rng.randint(1, 2))))
        sizes = [rng.randrange(10**5, 10**7) for _ in producers]
        flops = rng.randrange(10**8, 10**10)
        made.append(
            Operator(
                name=f"op{i}",
                kind="linear",
                forward_flops=flops,
                backward_flops=2 * flops,
                parameter_bytes=parameters,
                parameter_gradient_bytes=parameters,
                output_bytes=10**6,
                saved_bytes=10**6,
                memory_bytes=0,
                splittable=True,
                operands=tuple(Operand(p, s, s) for p, s in zip(producers, sizes, strict=True)),
            )
        )
    return OpGraph(OpGraph.VERSION, "random", 60, tuple(made)).validate()


def optimum_of(graph: OpGraph, cluster: Cluster) -> float:
    """The least time of all strategies on all networks (see the top)."""
    from torch_topoopt import _core
    from torch_topoopt.plan import Degrees
    from torch_topoopt.search.lowering import lower_job, lower_placement
    from torch_topoopt.search.strategy_space import shard_counts

    strategies = every_strategy(graph, cluster.servers)
    counts = shard_counts(cluster.servers, graph.batch_size)
    job = lower_job(graph, cluster, {Degrees(k) for k in counts})
    lowered = [[lower_placement(p) for p in strategy] for strategy in strategies]
    return min(
        _core.simulate_iteration(job, network, strategy)[0]
        for network in every_network(graph, cluster, strategies)
        for strategy in lowered
    )


def every_strategy(graph: OpGraph, servers: int) -> list[Strategy]:
    """All of strategy_space, samples only."""
    from torch_topoopt.plan import Placement
    from torch_topoopt.search.strategy_space import strategy_space

    space = strategy_space(graph, servers)
    choices = [
        [
            Placement.of(operator.name, members, move.degrees)
            for move in space.moves_of(i)
            for members in move.arrangements
        ]
        for i, operator in enumerate(graph.operators)
    ]
    return list(itertools.product(*choices))


def every_network(
    graph: OpGraph, cluster: Cluster, strategies: Sequence[Strategy]
) -> list[_core.RoutedNetwork]:
    """What TopologyFinder makes for any of the strategies, with the servers in any order."""
    from torch_topoopt import _core
    from torch_topoopt.search.traffic import demand
    from torch_topoopt.topology.topology_finder import find_network

    found: dict[Any, dict[str, Any]] = {}
    for asked in dict.fromkeys(demand(graph, s, cluster.servers) for s in strategies):
        network = find_network(cluster, asked)
        routes = [route for routes in network.routes_by_pair().values() for route in routes]
        for order in itertools.permutations(range(cluster.servers)):
            named = {
                "links": sorted((order[a.source], order[a.target]) for a in network.links),
                "routes": sorted(([order[s] for s in r.servers], r.weight) for r in routes),
                "groups": [
                    (
                        sorted(order[s] for s in group.servers),
                        sorted(([order[s] for s in r.servers], r.share) for r in group.rings),
                    )
                    for group in network.groups
                ],
            }
            found.setdefault(repr(named), named)
    return [
        _core.RoutedNetwork(
            servers=cluster.servers,
            bytes_per_s=cluster.link_bytes_per_s,
            latency_s=cluster.link_latency_s,
            **named,
        )
        for named in found.values()
    ]


def summary_of_gaps(rows: list[dict[str, Any]]) -> bool:
    """Prints median and worst gap of each mode; whether they are as small as they should be."""
    failed = False
    for mode in ("paper", "best"):
        gaps = [row["gap"] for row in rows if row["mode"] == mode and "gap" in row]
        if not gaps:
            print(f"{mode}: none was done")
            continue
        print(f"{mode}: median {statistics.median(gaps):.2%}, worst {max(gaps):.2%} of {len(gaps)}")
        failed |= statistics.median(gaps) > 1e-9 or (mode == "best" and max(gaps) > 0.02)
    return not failed
