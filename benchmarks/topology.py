"""The worth of TopologyFinder's networks, and the cost of finding them: one table.

    python benchmarks/topology.py -n 128 -d 4,8
    python benchmarks/topology.py -n 8,16 -d 2,4 --ports duplex --modes paper,best --budget 5
    python benchmarks/topology.py --models dlrm,bert -n 16 -d 4

Every case runs in a process of its own (with --models all in one, since neither time nor memory is
measured), and its row is printed, and with -J written, when it is done: a run that is stopped keeps
what it has, and with --resume the same command goes on with the cases that FILE does not have. Rows
of mode `best` say their budget in seconds; without --budget it is that of `topoopt topology`, a
second per 64 servers. The demand is that of `topoopt topology`: an AllReduce of 1 GB over all
servers and 100 MB from each server to all others evenly.

hops, diam   mean and largest of the least hops between servers
Moore        the least mean that any network of as many ports can have (undirected on duplex)
reduce       time of an AllReduce over that of 2 (n - 1) / n of its bytes on all ports of a server
all2all      time of an all-to-all over that of its bytes on all ports, on as many links each as in
             Moore's bound
load         bytes on the busiest link / mean over all links, under the demand
seconds      wall time of the call, imports left out; "CPU s" is what it needs on an idle machine
MB           most memory that the process had; "call MB" is what the call added to it
A case that cannot be, or is not done in time, is left out with its reason.

With --models, instead: predicted iteration time of plans of the paper's six models in mode `best`
over those in mode `paper`, strategies searched in both; the exit code is 1 if any is above 1. Each
server has one accelerator and its batch of the paper's List 1, so n servers have n times that; more
ports than other servers make parallel links.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from harness.separate_cases import ResultFile, choice_of, in_a_process, numbers, peak_megabytes
from torch_topoopt.launcher.errors import BAD_INPUT, CHECK_FAILED, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.op_graph import OpGraph

SERVERS = (8, 12, 16, 32, 64, 128, 256, 432, 1024)
DEGREES = (2, 4, 6, 8)
PORTS = ("duplex", "simplex")
MODES = ("paper", "released", "best")
MODELS = ("bert", "candle", "dlrm", "ncf", "resnet50", "vgg")
MODEL_SERVERS = (8, 12, 16, 32, 64, 128)
MODEL_DEGREES = (2, 4, 8)
_COLUMNS = (
    *("network", "hops", "diam", "Moore", "reduce", "all2all", "load", "seconds", "CPU s"),
    *("MB", "call MB"),
)
_MODEL_COLUMNS = ("network", "paper s", "best s", "best/paper")


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process; `error` instead of the figures if the case cannot be."""
    from torch_topoopt.plan import Cluster
    from torch_topoopt.sim.demand_seconds import fastest_for, reduced_bytes
    from torch_topoopt.topology.best.network_search import NetworkSearch
    from torch_topoopt.topology.find_network import find_network
    from torch_topoopt.topology.measures.figures import default_demand, figures_of

    cluster = Cluster(case["servers"], case["degree"], 100.0, case["ports"])
    demand = default_demand(cluster.servers)
    options = dict(case["options"])
    routing = options.pop("routing", "shortest")
    search = fastest_for(case["mode"], cluster, demand, NetworkSearch(**options))
    before_mb = peak_megabytes()
    started, started_cpu = time.perf_counter(), time.process_time()
    try:
        network = find_network(cluster, demand, mode=case["mode"], routing=routing, search=search)
    except ValueError as error:
        return {**case, "error": str(error)}
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
    peak_mb = peak_megabytes()
    reduced = reduced_bytes(cluster, network) if case["mode"] == "best" else None
    figures = figures_of(cluster, network, demand, reduced)
    return {
        **case,
        "mean_hops": figures.mean_hops,
        "diameter": figures.diameter,
        "moore_bound_hops": figures.moore_bound_hops,
        "all_reduce_over_bound": figures.all_reduce_over_bound,
        "all_to_all_over_bound": figures.all_to_all_over_bound,
        "max_over_mean_load": figures.max_link_load / figures.mean_link_load,
        "bandwidth_tax": figures.bandwidth_tax,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mb": peak_mb,
        "call_mb": peak_mb - before_mb,
    }


@cache
def graph_of(model: str, servers: int) -> OpGraph:
    """The model with the batch of List 1 on the one accelerator of every server."""
    from torch_topoopt.launcher.documents import op_graph_of

    return op_graph_of(model, accelerators=servers)


def run_models_case(case: dict[str, Any]) -> dict[str, Any]:
    """Predicted seconds of plans of one model in modes `paper` and `best`, in this process."""
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.alternation import plan
    from torch_topoopt.planner.options import PlanningOptions

    servers, degree = case["servers"], case["degree"]
    cluster = Cluster(
        *(servers, degree, 100.0, case["ports"]),
        accelerator="a100",
        parallel_links=degree >= servers,
    )
    graph = graph_of(case["model"], servers)
    result = dict(case)
    for mode in ("paper", "best"):
        started = time.perf_counter()
        try:
            planned = plan(graph, cluster, PlanningOptions(mode=mode, **case["options"]))
        except ValueError as error:
            return {**case, "error": str(error)}
        result[f"{mode}_s"] = planned.prediction.iteration_s
        result[f"{mode}_planning_seconds"] = time.perf_counter() - started
    return result


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cases that the options ask for; `error` where no network can have the shape."""
    extra = {"seed": options.seed}
    if options.budget is not None:
        extra["budget_s"] = options.budget
    with_routing = {} if options.routing is None else {"routing": options.routing}
    for servers in options.servers or (MODEL_SERVERS if options.models else SERVERS):
        for degree in options.degrees or (MODEL_DEGREES if options.models else DEGREES):
            for ports in options.ports:
                shape: dict[str, Any] = {"servers": servers, "degree": degree, "ports": ports}
                if ports == "duplex" and degree % 2:
                    shape["error"] = "a ring takes two duplex ports, so their number must be even"
                elif degree >= servers and not options.models:
                    shape["error"] = "more ports than other servers"
                if options.models:
                    search = {"seed": options.seed, "rounds": options.rounds}
                    search["evaluations"] = options.evaluations
                    for model in options.models:
                        yield {**shape, "model": model, "options": search}
                    continue
                for mode in options.modes:
                    searched = extra if mode == "best" else {}
                    yield {**shape, "mode": mode, "options": {**searched, **with_routing}}


def name_of(case: dict[str, Any]) -> str:
    budget_s = case["options"].get("budget_s")
    searched = "" if budget_s is None else f" {budget_s:g} s"
    kind = case.get("mode", case.get("model"))
    return f"{case['servers']} x {case['degree']} {case['ports']} {kind}{searched}"


def line_of(row: Sequence[str]) -> str:
    """A line of a table whose later rows are not known yet: columns of fixed widths."""
    return f"{row[0]:<28}" + "".join(f"{cell:>11}" for cell in row[1:])


def row_of(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        name_of(result),
        f"{result['mean_hops']:.3f}",
        str(result["diameter"]),
        f"{result['moore_bound_hops']:.3f}",
        f"{result['all_reduce_over_bound']:.3f}",
        f"{result['all_to_all_over_bound']:.3f}",
        f"{result['max_over_mean_load']:.3f}",
        f"{result['seconds']:.3f}",
        f"{result['cpu_seconds']:.3f}",
        f"{result['peak_mb']:.0f}",
        f"{result['call_mb']:.0f}",
    )


def models_row_of(result: dict[str, Any]) -> tuple[str, ...]:
    paper_s, best_s = result["paper_s"], result["best_s"]
    return name_of(result), f"{paper_s:.6g}", f"{best_s:.6g}", f"{best_s / paper_s:.4f}"


def run_all(options: argparse.Namespace) -> int:
    results: list[dict[str, Any]] = []
    file = ResultFile(options.json, "topology", resume=options.resume)
    print(line_of(_MODEL_COLUMNS if options.models else _COLUMNS), flush=True)
    for case in cases(options):
        result = file.known(case)
        if result is None:
            if "model" in case:  # nothing of the process is measured
                result = case if "error" in case else run_models_case(case)
            else:
                result = in_a_process(__file__, case, options.limit)
            file.add(result)
        results.append(result)
        print(line_of_result(result), flush=True)
    if not options.models:
        return OK
    count, worse = count_worse(results)
    print(f"best worse than paper in {worse} of {count} cases")
    return CHECK_FAILED if worse else OK


def line_of_result(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{name_of(result):<28} left out: {result['error']}"
    return line_of((models_row_of if "model" in result else row_of)(result))


def count_worse(results: list[dict[str, Any]]) -> tuple[int, int]:
    """The number of compared cases, and of those in which `best` is worse than `paper`."""
    good = [result for result in results if "error" not in result]
    return len(good), sum(r["best_s"] > r["paper_s"] * (1 + 1e-9) for r in good)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--servers", type=numbers, help=f"default: {SERVERS}")
    parser.add_argument("-d", "--degrees", type=numbers, help=f"default: {DEGREES}")
    parser.add_argument("--ports", type=choice_of(PORTS), help="default: both; --models: duplex")
    parser.add_argument("--modes", type=choice_of(MODES), default=MODES, help="default: all three")
    parser.add_argument("--models", type=choice_of(MODELS), help="compare best with paper on these")
    parser.add_argument("--budget", type=float, help="seconds, mode best (default: a 64th of n)")
    parser.add_argument("--routing", help="as in `topoopt topology` (default: that of the mode)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=2, help="of the planner, with --models")
    parser.add_argument("--evaluations", type=int, default=300, help="in each of these rounds")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of one case, at most")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--resume", action="store_true", help="keep the cases that -J's file has")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume: say with -J which file to go on with")
    options.ports = options.ports or (("duplex",) if options.models else PORTS)
    return options


def main() -> int:
    options = parse_arguments()
    if options.case is not None:
        case = json.loads(options.case)
        print(json.dumps((run_models_case if "model" in case else run_case)(case)))
        return OK
    try:
        return run_all(options)
    except (OSError, ValueError) as error:
        print(f"topology: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
