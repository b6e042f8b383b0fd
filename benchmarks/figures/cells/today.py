"""One iteration of a GPT or a mixture of experts on every architecture, at flow level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from figures.cells.workloads import cluster_of, graph_of
from torch_topoopt import _core
from torch_topoopt.architectures import ARCHITECTURES
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.planner.pricing import PairPricing
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.lowering import degrees_of, lower_ideal_switch, lower_job
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_strategies
from torch_topoopt.search.strategy_space import DIMENSIONS
from torch_topoopt.search.traffic import demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Strategy

_ADAM = 2.0  # bytes that the optimizer keeps for each byte of gradients
_BEST_WIRED = 2  # strategies, by mode best
_MOVING = ("ocs-reconfig", "ocs-reconfig-no-forwarding", "sip-ml")
_MOST_MOVING = 128  # servers among which circuits may move here

_Times = dict[str, tuple[float, str]]  # seconds and the strategy, by network


# parameters: the model, its cluster, its parts, and the strategies on every network, which have at
# most `max_transfers` transfers one way
def on_every_network(
    *,
    model: str,
    servers: int,
    degree: int,
    gbps: float,
    micro_batches: int,
    priced: int,
    max_transfers: int,
    seed: int,
) -> Any:
    """Seconds of an iteration on each architecture, of the fastest of `priced` strategies there.

    These are those that are fastest on an ideal switch of what an expert would try, without layers
    in runs, which seldom are on other networks. Without a search: what it could still gain is not
    in the ratios. Circuits that move get the ideal
    switch's, as in the paper (section 5.1). "TopoOpt, best" is wired for the two
    that are fastest with mode paper.
    """
    graph = graph_of(model, servers)
    cluster = cluster_of(servers, degree, gbps)
    tried = _strategies(graph, cluster, micro_batches, max_transfers, priced)
    times = _on_topoopt(graph, cluster, tried, micro_batches, seed)
    impossible: dict[str, str] = {}
    for name, build in ARCHITECTURES.items():
        if name == "topoopt":
            continue
        if name in _MOVING and servers > _MOST_MOVING:
            impossible[name] = f"circuits move among up to {_MOST_MOVING} servers here"
            continue
        for label, strategy in list(tried.items())[: 1 if name in _MOVING else None]:
            try:
                topology = build(cluster, demand(graph, strategy, servers), seed=seed)
            except ValueError as error:
                impossible[name] = str(error)
                break
            found = predict_architecture(
                topology, graph, cluster, strategy, micro_batches=micro_batches, seed=seed
            )
            times[name] = min(
                times.get(name, (found.iteration_s, label)), (found.iteration_s, label)
            )
    return {
        "iteration_s": {name: seconds for name, (seconds, _) in times.items()},
        "strategy": {name: label for name, (_, label) in times.items()},
        "tried": list(tried),
        "impossible": impossible,
        "batch_size": graph.batch_size,
        "parameter_bytes": sum(operator.parameter_bytes for operator in graph.operators),
    }


def _on_topoopt(
    graph: OpGraph,
    cluster: Cluster,
    tried: Mapping[str, Strategy],
    micro_batches: int,
    seed: int,
) -> _Times:
    """On TopologyFinder's networks of both modes, that of mode best never worse."""
    pricing = PairPricing(LoweredProblem(graph, cluster), PlanningOptions(seed=seed, mode="best"))

    def seconds(label: str, mode: str) -> float:
        pair = pricing.wired(tried[label], mode, micro_batches)  # type: ignore[arg-type]
        return pair.iteration_s

    paper = sorted((seconds(label, "paper"), label) for label in tried)
    best = [(seconds(label, "best"), label) for _, label in paper[:_BEST_WIRED]]
    return {"TopoOpt, paper": paper[0], "TopoOpt, best": min(paper[0], *best)}


def _strategies(
    graph: OpGraph, cluster: Cluster, micro_batches: int, max_transfers: int, most: int
) -> dict[str, Strategy]:
    """By name, the fastest on an ideal switch; of those that are equally fast, the first."""
    problem = SearchProblem(
        *(graph, cluster, None, ()),
        dimensions=DIMENSIONS,
        micro_batches=micro_batches,
        optimizer_factor=_ADAM,
        max_transfers=max_transfers,
    )
    named = expert_strategies(problem, runs=False)
    job = lower_job(graph, cluster, degrees_of(named.values()), micro_batches=micro_batches)
    coarse = _core.CoarseSimulator(job, lower_ideal_switch(cluster))
    fastest: dict[float, str] = {}
    for seconds, name in sorted((coarse.run(strategy), name) for name, strategy in named.items()):
        fastest.setdefault(float(f"{seconds:.6g}"), name)
    return {name: named[name] for name in list(fastest.values())[:most]}
