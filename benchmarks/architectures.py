"""Iteration time over link bandwidth on every architecture (TopoOpt paper, Figures 11 and 27).

    python benchmarks/architectures.py dlrm --servers 128 --degree 4 --bandwidths 10,25,40,100,200

Prints milliseconds per iteration, and beside them the two ratios that the paper averages over the
bandwidths: fat-tree of equal cost / TopoOpt, and TopoOpt / ideal switch. `-J FILE` keeps all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.architectures import ARCHITECTURES
from torch_topoopt.comparison.compare import compare
from torch_topoopt.launcher import documents
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.options import PlanningOptions

if TYPE_CHECKING:
    from torch_topoopt.search.strategies import Strategy

# section 5.3, averages over the bandwidths of Figure 11 (128 servers, d = 4)
PAPER = {
    "candle": (2.8, 1.0),
    "vgg": (2.8, 1.0),
    "bert": (3.0, 1.0),
    "dlrm": (2.8, 1.3),
    "ncf": (2.1, 1.7),
}


def main() -> int:
    arguments = _arguments()
    names = arguments.architectures.split(",")
    per_server = arguments.accelerators_per_server
    graph = documents.op_graph_of(arguments.model)
    if not arguments.model.endswith(".json"):  # a model's own batch is that of one accelerator
        batch = graph.batch_size * arguments.servers * per_server
        graph = documents.op_graph_of(arguments.model, batch)
    print(
        f"{graph.model}, {graph.batch_size} samples, {arguments.servers} servers, degree "
        f"{arguments.degree}"
    )
    print(" ".join(["Gb/s".rjust(6), *(name.rjust(max(10, len(name))) for name in names)]))
    kept = []
    ratios: list[tuple[float, float]] = []
    known: dict[Strategy, None] = {}  # from lower bandwidths
    for gbps in sorted(map(float, arguments.bandwidths.split(","))):
        cluster = Cluster(
            arguments.servers,
            arguments.degree,
            gbps,
            accelerators_per_server=per_server,
            accelerator="a100",
        )
        started = time.process_time()
        options = PlanningOptions(rounds=arguments.rounds, evaluations=arguments.evaluations)
        result = compare(graph, cluster, names, options=options, known=tuple(known))
        known.update(dict.fromkeys(result.strategies.values()))
        times = {row.architecture: row.iteration_s for row in result.rows}
        cells = [f"{times[name] * 1e3:.2f}".rjust(max(10, len(name))) for name in names]
        print(" ".join([f"{gbps:6g}", *cells]), flush=True)
        kept.append(
            {
                "link_gbps": gbps,
                "equal_cost_gbps": result.equal_cost_gbps,
                "cpu_s": time.process_time() - started,
                "rows": [asdict(row) for row in result.rows],
            }
        )
        if {"fat-tree", "topoopt", "ideal-switch"} <= times.keys():
            ours = times["topoopt"]
            ratios.append((times["fat-tree"] / ours, ours / times["ideal-switch"]))
    if ratios:
        _print_ratios(ratios, PAPER.get(graph.model.split(":")[0]))
    if arguments.json_file:
        Path(arguments.json_file).write_text(json.dumps(kept, indent=2) + "\n")
    return 0


def _print_ratios(ratios: list[tuple[float, float]], paper: tuple[float, float] | None) -> None:
    means = [sum(column) / len(ratios) for column in zip(*ratios, strict=True)]
    stated = paper or ("not stated", "not stated")
    print(f"fat-tree of equal cost / TopoOpt: {means[0]:.2f} on average (paper: {stated[0]})")
    print(f"TopoOpt / ideal switch: {means[1]:.2f} on average (paper: {stated[1]})")


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("model", help="name of a model, file.py:callable, script.py, *.json")
    options.add_argument("--servers", type=int, default=128)
    options.add_argument("--degree", type=int, default=4)
    options.add_argument("--bandwidths", default="10,25,40,100,200", help="Gb/s of a port")
    options.add_argument("--architectures", default=",".join(ARCHITECTURES))
    options.add_argument("--accelerators-per-server", type=int, default=4)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--evaluations", type=int, default=5000, help="strategies per round")
    options.add_argument("-J", "--json-file", metavar="FILE", help="keep every number")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
