"""AllReduce on 16 emulated hosts wired as a torus and as a HammingMesh: measured beside the model.

    sudo .venv/bin/python benchmarks/torus_collectives.py
    sudo .venv/bin/python benchmarks/torus_collectives.py --quick -J torus.json --plot torus.png
    sudo .venv/bin/python benchmarks/torus_collectives.py --networks "12 hosts"

The hosts are a 4 x 4 torus, and 2 x 2 boards of 2 x 2 (Hx2Mesh), between which cables run through
emulated switches. The network is the same for all algorithms: one ring, one way and both ways, two
rings both ways on the Hamiltonian cycles that share no cable, rows and columns ("torus"), double
binary trees, recursive doubling, and "auto", what the backend chooses by what it measured of
messages when the job started. The first call of each is checked, element by element, and not
counted; rounds take every algorithm in turn, "both ways" apart, which is a job of its own. Times
are of the slowest rank, medians of rounds. "12 hosts" have 4 links each, on TopoOpt's network: as
many rings as there are links, no rows and columns.

The model is that of the HammingMesh paper (section V-A2) with p accelerators, S bytes, the time a
of one step and b of one byte on one link: 2 p a + 2 S b (one ring), 2 p a + S b (both ways),
2 p a + S b / 2 (two rings both ways), 4 sqrt(p) a + S b (1 + 2 sqrt(p)) / (4 sqrt(p)) (torus). a is
what the backend measured of a message over one link, b is from the TCP goodput of a link; both are
printed. For the other algorithms the paper has no model.

Links are slow, so that they and not the processors are measured: 64 links of 20 Mb/s are 1.3 Gb/s
on one machine. Of short messages the processors decide: all hosts share them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from figures import plots
from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import planned_fabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Cluster, CostModel, Demand, Group, GroupDemand, Plan
from torch_topoopt.plan.codec import decode
from torch_topoopt.plan.network import rings_of
from torch_topoopt.plan.units import parse_gbps
from torch_topoopt.runtime import backend
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from matplotlib.figure import Figure as Canvas

    from harness.settings import Setting

_ROWS = _COLUMNS = 4
_SERVERS = _ROWS * _COLUMNS
_MTU = 9000
_LIMIT_S = 1200.0
_ROUND_S = 0.1  # of calls, by what one ring takes
_MOST_CALLS = 20
_PATTERN = 7  # element i of rank r is (r + i) % 7: sums are exact
_CROSSINGS = (("trees", "torus"), ("torus", "two rings"), ("one ring", "torus"))

# In a table's order: the name and what TOPOOPT_ALGORITHM is.
_ALGORITHMS = {
    "one ring": "ring",
    "both ways": "multi_ring",  # on a plan of one cycle
    "two rings": "multi_ring",
    "torus": "torus",
    "trees": "tree",
    "doubling": "doubling",
    "auto": "auto",
}
_MOST_DOUBLED = 256 << 10  # bytes; what the backend doubles at most
BOARDS = {"4x4 torus": None, "2x2 Hx2Mesh": (2, 2), "12 hosts": None}
_DEFAULT_NETWORKS = ("4x4 torus", "2x2 Hx2Mesh")
_HOSTS = 12  # of the network that is no torus
_OF_TORI = ("both ways", "torus")  # algorithms


@dataclasses.dataclass(frozen=True)
class Job:
    """What every one of `servers` ranks of one launch does: `calls` of each size and round, by each
    algorithm.

    `documents` are variables of the environment that name its plan and wiring.
    """

    servers: int
    documents: Mapping[str, str]
    algorithms: tuple[str, ...]
    calls: Mapping[int, int]
    rounds: int


# ---- one rank ------------------------------------------------------------------------------------


def run_rank(setting: Setting, job: Job, rank: int) -> dict[str, dict[int, Any]]:
    """Algorithm -> bytes -> seconds of a call in each round; and what auto chose ("chosen").

    Raises ValueError for a wrong result.
    """
    setting.become(rank)
    os.environ.update(job.documents)
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    groups = {}
    for name in job.algorithms:
        os.environ["TOPOOPT_ALGORITHM"] = _ALGORITHMS[name]
        groups[name] = dist.new_group()
    found: dict[str, dict[int, Any]] = {name: {} for name in (*job.algorithms, "chosen")}
    for size_bytes, calls in job.calls.items():
        fitting = {
            n: g for n, g in groups.items() if n != "doubling" or size_bytes <= _MOST_DOUBLED
        }
        for name, group in fitting.items():
            before = _sent(group)
            _check(group, name, size_bytes, rank, job.servers)
            found[name][size_bytes] = []
            if name == "auto":
                found["chosen"][size_bytes] = _described(before, _sent(group))
        for turn in range(job.rounds):
            order = list(fitting.items())
            for name, group in order if turn % 2 == 0 else reversed(order):
                found[name][size_bytes].append(_seconds(group, size_bytes, calls))
    dist.destroy_process_group()
    return found


def _check(group: Any, name: str, size_bytes: int, rank: int, servers: int) -> None:
    places = torch.arange(size_bytes // 4)
    tensor = ((rank + places) % _PATTERN).float()
    dist.all_reduce(tensor, group=group)
    expected = torch.stack([(other + places) % _PATTERN for other in range(servers)]).sum(0)
    if wrong := int((tensor != expected).sum()):
        raise ValueError(f"{name}, {size_bytes} B: {wrong} of {len(places)} elements are wrong")


def _seconds(group: Any, size_bytes: int, calls: int) -> float:
    tensor = torch.zeros(size_bytes // 4)
    dist.barrier(group)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - began) / calls


def _sent(group: Any) -> dict[tuple[str, int], int]:
    """Bytes of each kind and index of schedules, of the group."""
    return {
        (entry["kind"], entry["index"]): entry["sent_bytes"]
        for entry in backend.stats()["rings"]
        if entry["group"] == group.group_name
    }


def _described(before: Mapping[Any, int], after: Mapping[Any, int]) -> list[str]:
    """The kinds of schedules that carried something between the two; rings one by one."""
    used = sorted(key for key, sent in after.items() if sent > before.get(key, 0))
    return [f"ring {index}" if kind == "ring" else kind for kind, index in used]


def _choice(of_ranks: Sequence[Sequence[str]]) -> str:
    used = {name for of_rank in of_ranks for name in of_rank}
    rings = sum(name.startswith("ring ") for name in used)
    if rings:
        return "one ring" if rings == 1 else f"{rings} rings"
    return {"direct": "doubling", "tree": "trees"}.get(*used, "torus")


# ---- the model -----------------------------------------------------------------------------------


def model_seconds(
    name: str, size_bytes: int, alpha_s: float, beta_s: float, servers: int = _SERVERS
) -> float | None:
    """HammingMesh paper, section V-A2; None for what it has no model of."""
    root = math.sqrt(servers)
    moved_s = size_bytes * beta_s
    return {
        "one ring": 2 * servers * alpha_s + 2 * moved_s,
        "both ways": 2 * servers * alpha_s + moved_s,
        "two rings": 2 * servers * alpha_s + moved_s / 2,
        "torus": 4 * root * alpha_s + moved_s * (1 + 2 * root) / (4 * root),
    }.get(name)


def crossing_bytes(times: Mapping[int, tuple[float, float]]) -> float | None:
    """The size from which on the second is faster: between two sizes, on logarithmic axes.

    The last such place; None where the second is never faster, 0 where it always is.
    """
    gaps = [(size, math.log(first / second)) for size, (first, second) in sorted(times.items())]
    if gaps[-1][1] <= 0:
        return None
    for (low, below), (high, above) in reversed(list(pairwise(gaps))):
        if below <= 0 < above:
            return low * (high / low) ** (-below / (above - below))
    return 0.0


# ---- one network ---------------------------------------------------------------------------------


def plans(gbps: float) -> tuple[Plan, Plan]:
    """Of the torus, with two cycles both ways and with one of them both ways."""
    cluster = torus_cluster(_ROWS, _COLUMNS, gbps)
    network = torus_network(cluster, _ROWS, _COLUMNS)
    everyone, *lines = network.groups
    cycle = rings_of([everyone.rings[0].servers], both_ways=True)
    single = dataclasses.replace(
        network, groups=(Group(everyone.servers, cycle, everyone.grid), *lines)
    )
    demand = Demand((), ())
    both, one = (
        Plan.of_network(cluster, each, demand, model="benchmark") for each in (network, single)
    )
    return both, one


def plan_of_hosts(gbps: float) -> Plan:
    """TopoOpt's network for an AllReduce of all hosts, of four links each."""
    cluster = Cluster(_HOSTS, 4, gbps)
    demand = Demand((GroupDemand(tuple(range(_HOSTS)), 1 << 30),), ())
    return Plan.of_network(cluster, find_network(cluster, demand), demand, model="benchmark")


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All times on one network, and what they are compared with."""
    gbps = parse_gbps(options.bandwidth)
    is_torus = name in _DEFAULT_NETWORKS
    both, one = plans(gbps) if is_torus else (plan_of_hosts(gbps), None)
    names = tuple(each for each in _ALGORITHMS if is_torus or each not in _OF_TORI)
    servers = both.cluster.servers
    beta_s = 1 / both.cluster.link_bytes_per_s
    calls = {
        size: max(1, min(_MOST_CALLS, round(_ROUND_S / (2 * size * beta_s))))
        for size in options.sizes
    }
    with planned_fabric(both, NetnsOptions(gbps=gbps, mtu=_MTU), BOARDS[name]) as setting:
        folder = Path(setting.environment["TOPOOPT_RUN_DIR"])
        setting.environment["XDG_CACHE_HOME"] = str(folder)  # so that this job measures
        several = tuple(algorithm for algorithm in names if algorithm != "both ways")
        found = _launched(setting, Job(servers, {}, several, calls, options.rounds))
        document = json.loads((folder / "cost_model.json").read_text())
        cost = decode(CostModel, document["cost_model"])
        if one is not None:
            documents = _with_plan(setting, dataclasses.replace(one, cost_model=cost), folder)
            again = Job(servers, documents, ("both ways",), calls, options.rounds)
            found |= {"both ways": _launched(setting, again)["both ways"]}
        assert setting.link_bytes_per_s is not None, "links have a rate"
        return {
            "network": name,
            "servers": servers,
            "setting": setting.description,
            "cost_model": dataclasses.asdict(cost),
            "alpha_s": cost.alpha_s + cost.per_hop_latency_s,
            "beta_s": 1 / setting.link_bytes_per_s,
            "chosen": found.pop("chosen"),
            "seconds": {algorithm: found[algorithm] for algorithm in names},
        }


def _with_plan(setting: Setting, plan: Plan, folder: Path) -> dict[str, str]:
    """The documents of a plan that has the cables of the setting's, and other rings."""
    wiring = Wiring.load(setting.environment["TOPOOPT_WIRING"])
    paths = {"TOPOOPT_PLAN": folder / "other-plan.json", "TOPOOPT_WIRING": folder / "other.json"}
    plan.save(paths["TOPOOPT_PLAN"])
    dataclasses.replace(wiring, plan_digest=plan.digest()).save(paths["TOPOOPT_WIRING"])
    return {name: str(path) for name, path in paths.items()}


def _launched(setting: Setting, job: Job) -> dict[str, dict[int, Any]]:
    """Of each algorithm and size the seconds of each round, on its slowest rank."""
    of_ranks = call_in_processes(job.servers, partial(run_rank, setting, job), limit_s=_LIMIT_S)
    merged: dict[str, dict[int, Any]] = {
        name: {
            size: [max(times) for times in zip(*(of[name][size] for of in of_ranks), strict=True)]
            for size in of_ranks[0][name]
        }
        for name in job.algorithms
    }
    if "auto" in job.algorithms:
        merged["chosen"] = {
            size: _choice([of["chosen"][size] for of in of_ranks]) for size in job.calls
        }
    return merged


def modelled(found: Mapping[str, Any], name: str, size: int) -> float | None:
    return model_seconds(name, size, found["alpha_s"], found["beta_s"], found["servers"])


def median_s(found: Mapping[str, Any], name: str, size: int) -> float:
    return statistics.median(found["seconds"][name][size])


def report(found: Mapping[str, Any]) -> Iterator[str]:
    """The table of one network, and where algorithms cross."""
    yield f"#\n# {found['network']}: {found['setting']}"
    cost = found["cost_model"]
    yield (
        f"# a {found['alpha_s'] * 1e6:.1f} us (a message {cost['alpha_s'] * 1e6:.1f}, a link "
        f"{cost['per_hop_latency_s'] * 1e6:.1f}), b {found['beta_s'] * 1e9:.2f} ns"
    )
    yield "# ms, measured (model)"
    yield f"# {'bytes':>8}" + "".join(f" {name:>16}" for name in found["seconds"]) + "  auto chose"
    for size in found["chosen"]:
        cells = []
        for name in found["seconds"]:
            if size not in found["seconds"][name]:
                cells.append("-")
                continue
            model_s = modelled(found, name, size)
            text = f"{median_s(found, name, size) * 1e3:.4g}"
            cells.append(text if model_s is None else f"{text} ({model_s * 1e3:.4g})")
        yield f"  {size:>8}" + "".join(f" {c:>16}" for c in cells) + f"  {found['chosen'][size]}"
    crossings = [pair for pair in _CROSSINGS if found["seconds"].keys() >= set(pair)]
    for first, second in crossings:
        measured = _crossing(found, first, second, partial(median_s, found))
        model = _crossing(found, first, second, partial(modelled, found))
        yield f"# {second} faster than {first}: measured {measured}, by the model {model}"


def _crossing(
    found: Mapping[str, Any], first: str, second: str, seconds: Callable[[str, int], float | None]
) -> str:
    times = {}
    for size in found["chosen"]:
        pair = seconds(first, size), seconds(second, size)
        if pair[0] is None or pair[1] is None:
            return "-"
        times[size] = (pair[0], pair[1])
    size_bytes = crossing_bytes(times)
    if size_bytes is None:
        return "at no size"
    return f"from {size_bytes / 1024:.3g} KiB on" if size_bytes else "at every size"


# ---- the plot ------------------------------------------------------------------------------------


def draw(results: Sequence[Mapping[str, Any]], canvas: Canvas) -> None:
    """A panel for each network: markers are measured, dashed lines the model."""
    panels = canvas.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, found in zip(panels, results, strict=True):
        curves = {
            name: [(size / 1024, median_s(found, name, size) * 1e3) for size in sizes]
            for name, sizes in found["seconds"].items()
        }
        plots.lines(axes, curves, "message, KiB", "AllReduce, ms", log="xy")
        for index, name in enumerate(curves):
            model = [(size, modelled(found, name, size)) for size in found["seconds"][name]]
            points = [(size / 1024, s * 1e3) for size, s in model if s is not None]
            if points:
                axes.plot(*zip(*points, strict=True), "--", lw=1, color=plots.colour(index))
        axes.plot([], [], "--", lw=1, color="black", label="the paper's model")
        axes.set_title(
            f"{found['network']}: a {found['alpha_s'] * 1e6:.0f} us, "
            f"b {found['beta_s'] * 1e9:.0f} ns per byte of a link",
            fontsize=9,
        )
    plots.legend_below(canvas, panels[0], columns=4)


# ---- the command ---------------------------------------------------------------------------------


def benchmark(options: argparse.Namespace) -> None:
    results = []
    for name in options.networks:
        found = measure(name, options)
        print("\n".join(report(found)), flush=True)
        results.append(found)
    if options.json:
        document = {"version": 1, "options": vars(options), "results": results}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        title = f"AllReduce of emulated hosts, links of {options.bandwidth}: measured and model"
        plots.save(partial(draw, results), title, (11, 5), Path(options.plot).with_suffix(""))


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--networks", nargs="+", choices=tuple(BOARDS), default=list(_DEFAULT_NETWORKS),
        metavar="NAME", help=f"of {', '.join(map(repr, BOARDS))} (the first two)",
    )  # fmt: skip
    parser.add_argument("--bandwidth", default="20Mbps", help="of a link and direction (20Mbps)")
    parser.add_argument("--rounds", type=int, help="that count (5; --quick: 2)")
    parser.add_argument("--quick", action="store_true", help="1 KiB, 32 KiB and 1 MiB only")
    parser.add_argument("-J", "--json", metavar="FILE", help="keeps every number")
    parser.add_argument("--plot", metavar="FILE", help="as FILE.svg and FILE.png")
    options = parser.parse_args(words)
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not at least 1")
    factor = 32 if options.quick else 4
    options.sizes = [1024 * factor**step for step in range(3 if options.quick else 7)]
    return options


def main() -> int:
    options = parse_arguments()
    return exit_code_of("torus_collectives", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
