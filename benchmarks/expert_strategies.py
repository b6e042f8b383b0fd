"""The planner's search against strategies that an expert would try, and the spread over seeds.

    python benchmarks/expert_strategies.py --models dlrm,vgg --bandwidths 25,100,200
    python benchmarks/expert_strategies.py --models dlrm -n 8 --seeds 8

Of `search.starts.experts` those that are fastest on an ideal switch, as many with layers in runs
as without, each on the faster of two networks: TopologyFinder's for data parallelism, and its for
the strategy. All times are those of the flow level. The exit code is 1 if `plan` with its default
budget is slower than one of them by more than 0.1 %, or if the plans of several seeds differ by
more than 1 %.
"""

from __future__ import annotations

import argparse
import sys

from torch_topoopt.launcher.documents import op_graph_of
from torch_topoopt.launcher.errors import CHECK_FAILED, OK
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.planner.pricing import PairPricing
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_strategies
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.strategies import everywhere

_ALLOWED_LOSS = 1e-3
_ALLOWED_SPREAD = 0.01


def main() -> int:
    arguments = _arguments()
    print("model Gb/s | plan ms, spread over seeds | best expert ms: strategy", flush=True)
    failed = False
    for model in arguments.models.split(","):
        for gbps in map(float, arguments.bandwidths.split(",")):
            failed |= _case(arguments, model, gbps)
    return CHECK_FAILED if failed else OK


def _case(arguments: argparse.Namespace, model: str, gbps: float) -> bool:
    """Prints one row; whether an expert is faster or seeds differ."""
    cluster = Cluster(
        arguments.servers,
        arguments.degree,
        gbps,
        accelerators_per_server=arguments.accelerators_per_server,
        accelerator="a100",
    )
    graph = op_graph_of(model, accelerators=arguments.servers * arguments.accelerators_per_server)
    space, times = arguments.strategy_space, []
    for seed in range(arguments.seeds):
        options = PlanningOptions(
            seed=seed, strategy_space=space, evaluations=arguments.evaluations
        )
        times.append(plan(graph, cluster, options).prediction.iteration_s)
    problem = SearchProblem(graph, cluster, dimensions=options.dimensions)
    starts = planning_starts(problem)
    problem = problem.changed(None, starts)
    named = expert_strategies(problem)
    without = expert_strategies(problem, runs=False)
    coarse = problem.coarse_simulator(tuple(named.values()))
    ranked = sorted(named, key=lambda name: coarse.run(named[name]))
    fastest = [name for name in ranked if name in without][: arguments.most]
    fastest += [name for name in ranked if name not in without][: arguments.most]
    pricing = PairPricing(LoweredProblem(graph, cluster), options)
    default = pricing.wire(everywhere(graph, cluster.servers), "paper", 1)
    best = {}
    for name in fastest:
        pairs = (pricing.price(named[name], default, 1), pricing.wired(named[name], "paper", 1))
        best[name] = min(pair.iteration_s for pair in pairs)
    spread = max(times) / min(times) - 1
    row = f"{model} {gbps:g} | {max(times) * 1e3:.3f}, {spread:.2%} |"
    if best:
        name = min(best, key=best.__getitem__)
        row += f" {best[name] * 1e3:.3f}: {name} (of {len(named)})"
    print(row, flush=True)
    loses = bool(best) and max(times) > min(best.values()) * (1 + _ALLOWED_LOSS)
    return loses or spread > _ALLOWED_SPREAD


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--models", default="dlrm,bert,candle,ncf,resnet50,vgg")
    options.add_argument("--bandwidths", default="25,100,200", help="Gb/s of a port")
    options.add_argument("-n", "--servers", type=int, default=128)
    options.add_argument("-d", "--degree", type=int, default=4)
    options.add_argument("--accelerators-per-server", type=int, default=1)
    options.add_argument("--strategy-space", default="full", choices=["full", "samples"])
    options.add_argument("--evaluations", type=int)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--most", type=int, default=20, help="experts of each kind to price")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
