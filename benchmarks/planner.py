"""The gain of planning for the paper's six models, and its cost: one table.

    python benchmarks/planner.py                # 128 servers, degree 4 and 8, 100 Gb/s
    python benchmarks/planner.py --models dlrm,vgg -n 16 -d 4 -J planner.json
    python benchmarks/planner.py --gaps         # against the optimum of small instances

Every case runs in a process of its own, and its row is printed, and with -J written, when it is
done: a run that is stopped goes on where it was, given the same file. Predicted seconds of one
iteration, at flow level:

DP           data parallel, on TopologyFinder's network for it; - where it does not fit into memory
search       strategy searched on that network (`topoopt plan --ablation search-only`)
topology     strategy searched on an ideal switch, then wired for (`--ablation topology-only`)
both         the alternation, as `topoopt plan` does it
switch       an ideal switch, with the best strategy found on it
plan s       wall time of "both", profile included; "CPU s" is what it needs on an idle processor
MB           most memory that the process had until then
props/s      proposals that one chain judges in a second of one processor, on the network of "both"
simulated    share of them that were simulated: others changed nothing, do not fit into memory, or
             keep a server or a link busy for longer than they may take
x full       how many times longer the same chain takes if it simulates every proposal whole
x flow       the same where the flow level prices every proposal
rank, ratio  Spearman's rank correlation of the coarse simulator's seconds with those of the flow
             level, and the median and range of their ratio, over --samples strategies

With --gaps, instead: how far plans of small jobs are from the optimum, in both modes of
TopologyFinder (references/optimality_gaps.py says of which jobs and of what; "promising" strategies
are those that bounds did not rule out). The exit code is 1 if a case is left out, the median of a
mode is above 0 or a gap of mode best above 2 %.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.separate_cases import ResultFile, choice_of, in_a_process, numbers, peak_megabytes
from references.optimality_gaps import MODES, gap_cases, gap_of, run_gap, summary_of_gaps
from torch_topoopt.launcher.errors import BAD_INPUT, CHECK_FAILED, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.plan import Plan
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

MODELS = ("dlrm", "bert", "candle", "ncf", "resnet50", "vgg")
_COLUMNS = ("case", "DP", "search", "topology", "both", "switch", "plan s", "CPU s", "MB")
_COLUMNS += ("props/s", "simulated", "x full", "x flow", "rank", "ratio")
_WIDTHS = (22, *(11,) * 5, *(9,) * 4, 11, 8, 8, 7, 19)
_WARMING = 500  # proposals of a chain before it is measured
_MEASURED = 4000  # and while it is: it cools down over both, as in a search
_FLOW_S = 5.0  # of one processor, for a chain at flow level


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    from torch_topoopt.launcher.documents import op_graph_of
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.alternation import plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.starts.planning_starts import planning_starts
    from torch_topoopt.search.strategy_space import DIMENSIONS
    from torch_topoopt.search.two_levels import TwoLevelSearch
    from torch_topoopt.sim import predict_ideal_switch

    cluster = Cluster(case["servers"], case["degree"], case["gbps"], accelerator="a100")
    options = PlanningOptions(evaluations=case["evaluations"], seed=case["seed"])
    began, cpu_began = time.perf_counter(), time.process_time()
    graph = op_graph_of(case["model"], accelerators=cluster.servers)
    both = plan(graph, cluster, options)
    row: dict[str, Any] = {
        **case,
        "both_s": both.prediction.iteration_s,
        "planning_seconds": time.perf_counter() - began,
        "planning_cpu_seconds": time.process_time() - cpu_began,
        "peak_mb": peak_megabytes(),
        "rounds": [[entry.strategy_s, entry.network_s] for entry in both.rounds],
    }
    for name in ("search-only", "topology-only"):
        made = plan(graph, cluster, replace(options, ablation=name))
        row[name.replace("-", "_") + "_s"] = made.prediction.iteration_s
    try:
        plain = plan(graph, cluster, replace(options, strategy_space="data-parallel"))
        row["data_parallel_s"] = plain.prediction.iteration_s
    except ValueError as error:
        row["data_parallel_s"], row["data_parallel_error"] = None, str(error)
    problem = SearchProblem(graph, cluster, dimensions=DIMENSIONS)
    starts = tuple(dict.fromkeys((both.strategy, *planning_starts(problem))))
    problem = problem.changed(both.network, starts)
    switch = TwoLevelSearch(problem.changed(None, starts), seed=case["seed"])
    best = switch.run(case["evaluations"])
    row["ideal_switch_s"] = predict_ideal_switch(graph, cluster, best).iteration_s
    return {**row, **speed_of(problem), **agreement_of(problem, both, case["samples"])}


def speed_of(problem: SearchProblem) -> dict[str, Any]:
    """Proposals per second of one processor: as the search does it, whole, and at flow level."""
    from torch_topoopt.search.chains import Chain
    from torch_topoopt.search.mcmc import StrategySearch

    cpu_s, results = [], []
    for fully in (False, True):
        chain = Chain(problem, 0, 0)
        if fully:
            chain.simulate_fully()
        chain.cool(_WARMING + _MEASURED)
        chain.step(_WARMING)
        began = time.process_time()
        chain.step(_MEASURED)
        cpu_s.append(time.process_time() - began)
        results.append(chain.result())
    flow = StrategySearch(replace(problem, starts=problem.starts[:1]))
    began, judged = time.process_time(), 0
    while time.process_time() - began < _FLOW_S and judged < _MEASURED:
        flow.step(1)
        judged += 1
    flow_s = (time.process_time() - began) / judged
    return {
        "proposals_per_s": _MEASURED / cpu_s[0],
        "simulated_share": results[0].simulations / results[0].evaluations,
        "full_over_delta": cpu_s[1] / cpu_s[0],
        "flow_over_delta": flow_s / (cpu_s[0] / _MEASURED),
    }


def agreement_of(problem: SearchProblem, plan: Plan, samples: int) -> dict[str, Any]:
    """The coarse simulator's seconds against the flow level's."""
    from scipy.stats import spearmanr

    from torch_topoopt import _core
    from torch_topoopt.search.lowering import degrees_of, lower_job, lower_network
    from torch_topoopt.sim import predict

    strategies = sampled(problem, samples)
    cluster = problem.cluster
    job = lower_job(problem.op_graph, cluster, degrees_of(strategies))
    simulator = _core.CoarseSimulator(job, lower_network(cluster, plan.network))
    coarse = [simulator.run(strategy) for strategy in strategies]
    flow = [predict(problem.op_graph, cluster, plan.network, s).iteration_s for s in strategies]
    ratios = [a / b for a, b in zip(coarse, flow, strict=True)]
    return {
        "rank_correlation": float(spearmanr(coarse, flow).statistic),
        "ratio_median": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
    }


def sampled(problem: SearchProblem, count: int) -> list[Strategy]:
    """The starts, and strategies that differ from one of them in 1, 2, 4 .. operators."""
    from torch_topoopt.plan import Placement
    from torch_topoopt.search.strategy_space import strategy_space

    rng = random.Random(0)
    graph = problem.op_graph
    space = strategy_space(graph, problem.cluster.servers)
    found = list(dict.fromkeys(problem.starts))
    while len(found) < count:
        strategy = list(rng.choice(problem.starts))
        changes = min(len(strategy), 2 ** rng.randrange(7))
        for i in rng.sample(range(len(strategy)), changes):
            move = rng.choice(space.moves_of(i))
            name = graph.operators[i].name
            strategy[i] = Placement.of(name, rng.choice(move.arrangements), move.degrees)
        found.append(tuple(strategy))
    return found[:count]


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cases that the options ask for."""
    if options.gaps:
        yield from gap_cases(options.instances, options.evaluations)
        return
    for degree in options.degrees:
        for model in options.models:
            yield {
                "model": model,
                "servers": options.servers,
                "degree": degree,
                "gbps": options.gbps,
                "evaluations": options.evaluations,
                "seed": options.seed,
                "samples": options.samples,
            }


def name_of(case: dict[str, Any]) -> str:
    shape = f"{case['servers']} x {case['degree']}"
    if "model" in case:
        return f"{case['model']} {shape}"
    return f"{case['kind']} {shape}, {case['operators']} ops, #{case['seed']}"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.4g} ms"


def line_of(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{name_of(result):<22} left out: {result['error']}"
    if "optimum_s" in result:
        gaps = "".join(f"{gap_of(result, mode):>9.2%}" for mode in MODES)
        counts = f"{result['strategies']:>11}{result['promising']:>10}{result['networks']:>10}"
        return f"{name_of(result):<30}{seconds(result['optimum_s']):>11}{gaps}{counts}"
    names = ("data_parallel", "search_only", "topology_only", "both", "ideal_switch")
    ratio = [f"{result[f'ratio_{key}']:.2f}" for key in ("median", "least", "most")]
    cells = [
        name_of(result),
        *(seconds(result[f"{name}_s"]) for name in names),
        f"{result['planning_seconds']:.1f}",
        f"{result['planning_cpu_seconds']:.1f}",
        f"{result['peak_mb']:.0f}",
        f"{result['proposals_per_s']:.0f}",
        f"{result['simulated_share']:.0%}",
        f"{result['full_over_delta']:.2f}",
        f"{result['flow_over_delta']:.0f}",
        f"{result['rank_correlation']:.3f}",
        f"{ratio[0]} ({ratio[1]}..{ratio[2]})",
    ]
    return row_of(cells)


def row_of(cells: Sequence[str]) -> str:
    first, *others = cells
    return f"{first:<{_WIDTHS[0]}}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(others, _WIDTHS[1:], strict=True)
    )


def run_all(options: argparse.Namespace) -> int:
    file = ResultFile(options.json, "planner", resume=True)
    heading = f"{'instance':<30}{'optimum':>11}{'paper':>9}{'best':>9}{'strategies':>11}"
    heading += f"{'promising':>10}{'networks':>10}"
    print(heading if options.gaps else row_of(_COLUMNS), flush=True)
    rows = []
    for case in cases(options):
        result = file.known(case)
        if result is None:
            result = in_a_process(__file__, case, options.limit)
            file.add(result)
        rows.append(result)
        print(line_of(result), flush=True)
    if not options.gaps:
        return OK
    good = summary_of_gaps(rows)
    return OK if good and not any("error" in row for row in rows) else CHECK_FAILED


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=choice_of(MODELS), default=MODELS, help="default: all six")
    parser.add_argument("-n", "--servers", type=int, default=128, help="default: 128")
    parser.add_argument("-d", "--degrees", type=numbers, default=(4, 8), help="default: 4,8")
    parser.add_argument("--gbps", type=float, default=100.0, help="of a port (default: 100)")
    parser.add_argument("--evaluations", type=int, default=50_000, help="of each round")
    parser.add_argument("--samples", type=int, default=30, help="strategies priced by both levels")
    parser.add_argument("--gaps", action="store_true", help="gaps to the optimum, instead")
    parser.add_argument("--instances", type=int, default=5, help="of each shape, with --gaps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of one case, at most")
    parser.add_argument("-J", "--json", metavar="FILE", help="write the results there; go on there")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main() -> int:
    options = parse_arguments()
    if options.case is not None:
        case = json.loads(options.case)
        print(json.dumps((run_case if "model" in case else run_gap)(case)))
        return OK
    try:
        return run_all(options)
    except (OSError, ValueError) as error:
        print(f"planner: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
