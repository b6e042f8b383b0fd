"""What planning is worth for the paper's six models, and what it costs: one table.

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
simulated    share of them that changed something that fits; only these are simulated
x full       how many times longer the same chain takes if it simulates every proposal whole
x flow       the same where the flow level prices every proposal
rank, ratio  Spearman's rank correlation of the coarse simulator's seconds with those of the flow
             level, and the median and range of their ratio, over --samples strategies

With --gaps, instead: random jobs of few operators on few servers. The optimum is the least time of
all strategies that split by samples (strategy_space without further dimensions), each on every
network that TopologyFinder makes for any of them, with the servers in any order: with two ports per
server these are all rings. The gap is that of `plan` to it; the exit code is 1 if the median of a
mode is above 0 or a gap of mode best above 2 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher.errors import BAD_INPUT, CHECK_FAILED, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt import _core
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

MODELS = ("dlrm", "bert", "candle", "ncf", "resnet50", "vgg")
_COLUMNS = ("case", "DP", "search", "topology", "both", "switch", "plan s", "CPU s", "MB")
_COLUMNS += ("props/s", "simulated", "x full", "x flow", "rank", "ratio")
_WIDTHS = (22, *(11,) * 5, *(9,) * 4, 11, 8, 8, 7, 19)
_MEASURED = 4000  # proposals of a chain that is measured
_FLOW_S = 5.0  # of one processor, for a chain at flow level


def peak_megabytes() -> float:
    """The most memory that this process had in RAM."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    from torch_topoopt.launcher.documents import op_graph_of
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner import plan
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import starting_strategies
    from torch_topoopt.search.two_levels import TwoLevelSearch
    from torch_topoopt.sim import predict_ideal_switch

    cluster = Cluster(case["servers"], case["degree"], case["gbps"], accelerator="a100")
    options = {"evaluations": case["evaluations"], "seed": case["seed"]}
    began, cpu_began = time.perf_counter(), time.process_time()
    graph = op_graph_of(case["model"], accelerators=cluster.servers)
    both = plan(graph, cluster, **options)
    row: dict[str, Any] = {
        **case,
        "both_s": both.prediction.iteration_s,
        "planning_seconds": time.perf_counter() - began,
        "planning_cpu_seconds": time.process_time() - cpu_began,
        "peak_mb": peak_megabytes(),
        "rounds": [[entry.strategy_s, entry.network_s] for entry in both.rounds],
    }
    for name in ("search-only", "topology-only"):
        made = plan(graph, cluster, ablation=name, **options)  # type: ignore[arg-type]
        row[name.replace("-", "_") + "_s"] = made.prediction.iteration_s
    try:
        plain = plan(graph, cluster, strategy_space="data-parallel", seed=case["seed"])
        row["data_parallel_s"] = plain.prediction.iteration_s
    except ValueError as error:
        row["data_parallel_s"], row["data_parallel_error"] = None, str(error)
    starts = (both.strategy, *starting_strategies(graph, cluster))
    switch = TwoLevelSearch(SearchProblem(graph, cluster, None, starts), seed=case["seed"])
    best = switch.run(case["evaluations"])
    row["ideal_switch_s"] = predict_ideal_switch(graph, cluster, best).iteration_s
    problem = SearchProblem(graph, cluster, both.network, starts)
    return {**row, **speed_of(problem), **agreement_of(problem, both, case["samples"])}


def speed_of(problem: SearchProblem) -> dict[str, Any]:
    """Proposals per second of one processor: as the search does it, whole, and at flow level."""
    from torch_topoopt.search.chains import Chain
    from torch_topoopt.search.mcmc import StrategySearch

    cpu_s = []
    for fully in (False, True):
        chain = Chain(problem, 0, 0)
        if fully:
            chain.simulate_fully()
        chain.step(500)  # what is kept from then on
        began = time.process_time()
        chain.step(_MEASURED)
        cpu_s.append(time.process_time() - began)
    result = chain.result()
    flow = StrategySearch(replace(problem, starts=problem.starts[:1]))
    began, judged = time.process_time(), 0
    while time.process_time() - began < _FLOW_S and judged < _MEASURED:
        flow.step(1)
        judged += 1
    flow_s = (time.process_time() - began) / judged
    return {
        "proposals_per_s": _MEASURED / cpu_s[0],
        "simulated_share": result.simulations / result.evaluations,
        "full_over_delta": cpu_s[1] / cpu_s[0],
        "flow_over_delta": flow_s / (cpu_s[0] / _MEASURED),
    }


def agreement_of(problem: SearchProblem, plan: Plan, samples: int) -> dict[str, Any]:
    """How the coarse simulator's seconds compare with the flow level's."""
    from scipy.stats import spearmanr

    from torch_topoopt import _core
    from torch_topoopt.search.lowering import degrees_of, lower_job, lower_network, lower_placement
    from torch_topoopt.sim import predict

    strategies = sampled(problem, samples)
    cluster = problem.cluster
    job = lower_job(problem.op_graph, cluster, degrees_of(strategies))
    prices = _core.StrategyPrices(job, lower_network(cluster, plan.network))
    coarse = [prices.run([lower_placement(p) for p in strategy]) for strategy in strategies]
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


def in_a_process(case: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """`case` run by a fresh interpreter; `error` says what went wrong with it."""
    command = [sys.executable, str(Path(__file__).resolve()), "--case", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {**case, "error": f"not done after {limit_s:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {**case, "error": lines[-1] if lines else f"exit code {done.returncode}"}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What the options ask for."""
    if options.gaps:
        for mode in ("paper", "best"):
            for servers, degree, operators in ((3, 2, 4), (4, 2, 3), (5, 2, 3), (5, 4, 2)):
                for seed in range(options.instances):
                    shape = {"servers": servers, "degree": degree, "operators": operators}
                    yield {**shape, "mode": mode, "seed": seed, "evaluations": 3000}
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
    return f"{shape} {case['operators']} ops {case['mode']} #{case['seed']}"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.4g} ms"


def line_of(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{name_of(result):<22} left out: {result['error']}"
    if "gap" in result:
        return (
            f"{name_of(result):<28}{seconds(result['optimum_s']):>12}"
            f"{seconds(result['found_s']):>12}{result['gap']:>9.2%}"
        )
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


def known_results(path: str | None) -> list[dict[str, Any]]:
    """What an earlier run wrote; raises ValueError for a file of something else."""
    if path is None or not Path(path).exists():
        return []
    document = json.loads(Path(path).read_text())
    if not isinstance(document, dict) or document.get("benchmark") != "planner":
        raise ValueError(f"{path}: not a file that this benchmark wrote")
    results: list[dict[str, Any]] = document["results"]
    return results


def run_all(options: argparse.Namespace) -> int:
    results = known_results(options.json)
    titles = ("instance", "optimum", "plan", "gap")
    heading = f"{titles[0]:<28}{titles[1]:>12}{titles[2]:>12}{titles[3]:>9}"
    print(heading if options.gaps else row_of(_COLUMNS), flush=True)
    rows = []
    for case in cases(options):
        same = (r for r in results if "error" not in r and all(r.get(k) == case[k] for k in case))
        result = next(same, None)
        if result is None:
            result = run_gap(case) if options.gaps else in_a_process(case, options.limit)
            results.append(result)
        rows.append(result)
        print(line_of(result), flush=True)
        if options.json:
            document = {"benchmark": "planner", "version": 1, "results": results}
            Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    if options.gaps:
        return summary_of_gaps(rows)
    return OK


def summary_of_gaps(rows: list[dict[str, Any]]) -> int:
    """Prints the median and the worst gap of each mode."""
    failed = False
    for mode in ("paper", "best"):
        gaps = [row["gap"] for row in rows if row["mode"] == mode]
        print(f"{mode}: median {statistics.median(gaps):.2%}, worst {max(gaps):.2%} of {len(gaps)}")
        failed |= statistics.median(gaps) > 1e-9 or (mode == "best" and max(gaps) > 0.02)
    return CHECK_FAILED if failed else OK


def names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in MODELS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODELS)}")
    return chosen


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers joined by commas") from None


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=names, default=MODELS, help="default: all six")
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
        print(json.dumps(run_case(json.loads(options.case))))
        return OK
    try:
        return run_all(options)
    except (OSError, ValueError) as error:
        print(f"planner: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
