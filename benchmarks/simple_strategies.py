"""The default strategy of 32 jobs against simple strategies, and its spread over seeds.

    python benchmarks/simple_strategies.py
    python benchmarks/simple_strategies.py --only mlp,moe --seeds 5
    python benchmarks/simple_strategies.py --only tf,bert --space all --mode paper

Jobs are models of a few layers and shipped ones on 4 to 16 servers. Simple strategies are those of
`search.starts.experts` with 1, 2, 4, ... micro-batches: data parallelism, tables and layers on
servers of their own or in parts, experts over all servers, and pipelines. Each is priced at flow
level on the faster of two networks: TopologyFinder's for data parallelism, and its for the
strategy. AllReduces take the fastest schedule, or rings with `--mode paper`. In the space `all`,
times of models with blocks include the optimizer's step; layouts (L) are simulated in the terms of
strategies. The exit code is 1 if a default plan is slower than a simple strategy by more than
0.1 %, or if seeds differ by more than 1 %.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
from torch import nn

from torch_topoopt.launcher.documents import op_graph_of
from torch_topoopt.launcher.errors import CHECK_FAILED, OK
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.alternation import plan
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.planner.pricing import PairPricing
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.lowered_problem import LoweredProblem
from torch_topoopt.search.problem import SearchProblem
from torch_topoopt.search.starts.experts import expert_strategies
from torch_topoopt.search.starts.planning_starts import planning_starts
from torch_topoopt.search.strategies import everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.search.strategies import Strategy

Mode = Literal["paper", "best"]
_ALLOWED_LOSS = 1e-3
_ALLOWED_SPREAD = 0.01
_MOST_PRICED = 12  # simple strategies of each number of micro-batches, by the ideal switch
_SEQUENCE = 128


class Text(nn.Module):
    """Encoder layers between a table and an output layer."""

    def __init__(self, hidden: int, vocabulary: int, layers: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, hidden)
        layer = partial(nn.TransformerEncoderLayer, hidden, 8, 4 * hidden, batch_first=True)
        self.layers = nn.Sequential(*(layer() for _ in range(layers)))
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.layers(self.table(tokens)))
        return found


class Recommendation(nn.Module):
    """Tables, and layers on what they hold."""

    def __init__(self, tables: int = 8, entries: int = 200_000, width: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(entries, width) for _ in range(tables))
        self.layers = dense(tables * width, 1024, 3)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        looked_up = [table(keys[:, i]) for i, table in enumerate(self.tables)]
        found: torch.Tensor = self.layers(torch.cat(looked_up, 1))
        return found


def dense(inputs: int, width: int, layers: int) -> nn.Sequential:
    """Layers of one width."""
    widths = itertools.pairwise((inputs, *[width] * layers))
    made = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in widths]
    return nn.Sequential(*made, nn.Linear(width, 10))


_OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "mlp": (lambda: dense(4096, 4096, 8), lambda batch: torch.zeros(batch, 4096)),
    "tf": (
        lambda: Text(768, 30_000),
        lambda batch: torch.zeros(batch, _SEQUENCE, dtype=torch.long),
    ),
    "tfwide": (
        lambda: Text(2048, 8_000),
        lambda batch: torch.zeros(batch, _SEQUENCE, dtype=torch.long),
    ),
    "rec": (Recommendation, lambda batch: torch.zeros(batch, 8, dtype=torch.long)),
}
_PER_SERVER = {"mlp": 128, "tf": 16, "tfwide": 16, "rec": 1024}


class Case(NamedTuple):
    """A model on servers with ports."""

    model: str
    servers: int
    degree: int
    gbps: float


CASES = (
    # the twelve of the review
    Case("tfwide", 4, 3, 10), Case("mlp", 4, 2, 50), Case("mlp", 8, 4, 25),
    Case("tfwide", 16, 4, 10), Case("tf", 4, 2, 10), Case("tf", 6, 3, 25), Case("tf", 8, 2, 40),
    Case("rec", 4, 2, 25), Case("rec", 8, 2, 50), Case("rec", 12, 4, 10),
    Case("moe:gpt2-8e", 8, 2, 40), Case("gpt:gpt2", 8, 3, 10),
    # twenty more
    Case("mlp", 4, 2, 10), Case("mlp", 6, 2, 100), Case("mlp", 12, 3, 25), Case("mlp", 16, 4, 100),
    Case("tf", 12, 3, 10), Case("tf", 16, 4, 25), Case("tfwide", 8, 2, 25),
    Case("tfwide", 6, 3, 100), Case("rec", 6, 3, 10), Case("rec", 16, 2, 25), Case("vgg", 4, 2, 10),
    Case("vgg", 8, 4, 25), Case("bert:paper-6", 4, 3, 25), Case("bert:paper-6", 8, 2, 10),
    Case("dlrm:paper-6", 8, 4, 25), Case("dlrm:paper-6", 12, 3, 10),
    Case("candle:paper-6", 4, 2, 25), Case("candle:paper-6", 8, 4, 100),
    Case("ncf:paper-5.3", 8, 2, 25), Case("resnet50:paper-6", 8, 3, 10),
)  # fmt: skip


def op_graph(case: Case) -> OpGraph:
    """The profile of the case's model, with as many samples as its servers share."""
    if case.model not in _OWN:
        return op_graph_of(case.model, accelerators=case.servers)
    build, batch = _OWN[case.model]
    with torch.device("meta"):
        samples = batch(_PER_SERVER[case.model] * case.servers)
        return profile(build(), samples, name=case.model)


class Terms:
    """Seconds of plans and strategies, all in the same terms."""

    def __init__(self, graph: OpGraph, cluster: Cluster, options: PlanningOptions) -> None:
        layouts = LayoutPlanning(graph, cluster, options)
        compares = options.strategy_space == "all" and layouts.has_blocks
        self._layouts = layouts if compares else None

    def of_plan(self, made: Plan) -> float:
        if made.layout is None:
            return self.of_strategy(made.strategy, made.prediction.iteration_s)
        assert self._layouts is not None
        return self._layouts.without_overheads_s(made)

    def of_strategy(self, strategy: Strategy, iteration_s: float) -> float:
        step_s = 0.0 if self._layouts is None else self._layouts.optimizer_s(strategy)
        return iteration_s + step_s


def best_simple(graph: OpGraph, cluster: Cluster, terms: Terms, mode: Mode) -> tuple[float, str]:
    """Seconds and name of the fastest simple strategy, on the schedules of plans of `mode`."""
    found = []
    lowered = LoweredProblem(graph, cluster, schedules=mode == "best")
    for count in (1, 2, 4, 8, 16, 32):
        if graph.batch_size % count:
            continue
        options = PlanningOptions(micro_batches=count)
        problem = SearchProblem(graph, cluster, dimensions=options.dimensions, micro_batches=count)
        try:
            starts = planning_starts(problem)
        except ValueError:  # too few samples
            continue
        problem = problem.changed(None, starts)
        named: dict[str, Strategy] = expert_strategies(problem, runs=False)
        if count == 1:
            named["data parallelism"] = everywhere(graph, cluster.servers)
        pricing = PairPricing(lowered, options)
        default = pricing.wire(everywhere(graph, cluster.servers), "paper", 1)
        ranked = sorted(named, key=lambda name: pricing.ideal_switch_s(named[name], count))
        for name in ranked[:_MOST_PRICED]:
            pairs = (
                pricing.price(named[name], default, count),
                pricing.wired(named[name], "paper", count),
            )
            batches = f", {count} micro-batches" if count > 1 else ""
            seconds = min(pair.iteration_s for pair in pairs)
            found.append((terms.of_strategy(named[name], seconds), name + batches))
    return min(found)


def run_case(case: Case, seeds: int, space: Literal["full", "all"], mode: Mode) -> bool:
    """Prints one row; whether a simple strategy is faster or seeds differ."""
    cluster = Cluster(case.servers, case.degree, case.gbps, accelerator="a100")
    graph = op_graph(case)
    options = PlanningOptions(micro_batches="auto", strategy_space=space, mode=mode)
    terms = Terms(graph, cluster, options)
    begun = time.process_time()
    plans = [plan(graph, cluster, replace(options, seed=seed)) for seed in range(seeds)]
    seconds = (time.process_time() - begun) / seeds
    times = [terms.of_plan(made) for made in plans]
    least_s, name = best_simple(graph, cluster, terms, mode)
    spread = max(times) / min(times) - 1
    fails = max(times) > least_s * (1 + _ALLOWED_LOSS) or spread > _ALLOWED_SPREAD
    print(
        f"{'!' if fails else ' '} {case.model:15} {case.servers:2} {case.degree} {case.gbps:4g} | "
        f"{max(times) * 1e3:9.3f} {spread:6.2%} {plans[0].micro_batches:2}"
        f"{' ' if plans[0].layout is None else 'L'} {seconds:6.1f} s | "
        f"{least_s * 1e3:9.3f} {name}",
        flush=True,
    )
    return fails


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="MODEL,...", help="begins of the names of models")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--space", choices=("full", "all"), default="full")
    parser.add_argument("--mode", choices=get_args(Mode), default="best")
    arguments = parser.parse_args()
    begins = tuple(arguments.only.split(",")) if arguments.only else ("",)
    print("model, servers, degree, Gb/s | plan ms, spread, micro-batches, CPU | best simple ms")
    failed = [
        run_case(case, arguments.seeds, arguments.space, arguments.mode)
        for case in CASES
        if case.model.startswith(begins)
    ]
    return CHECK_FAILED if any(failed) else OK


if __name__ == "__main__":
    sys.exit(main())
