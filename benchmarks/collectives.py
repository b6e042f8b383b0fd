"""Speed of every collective, beside gloo and Open MPI in alternating rounds of the same run.

    python benchmarks/collectives.py --on shared-memory --ranks 2 -b 8 -e 100M
    python benchmarks/collectives.py --on loopback --ranks 4 -o all_reduce,all_to_all
    sudo python benchmarks/collectives.py --on fabric --ranks 12 --degree 4 --bandwidth 25Mbps
    topoopt run --servers 5 --degree 4 --bandwidth 50Mbps benchmarks/collectives.py -e 8M

Options and columns are those of nccl-tests: `size` is the whole buffer of a rank, `time` one call
on the slowest rank, algbw = size / time, busbw = algbw times what the operation must move per byte,
#wrong the elements that a first, untimed call got wrong. `x` is how many times faster topoopt is
than the other, the median of the rounds' ratios. `of bound` is the least time that the links allow
(bounds.py) / time: with a direct fabric from the TCP goodput of one link, measured there and then.
`of model` is the modelled time of the algorithm that `auto` prefers / time, with the latencies that
the ranks measured, and acknowledgements on every link. `cpu` is the CPU time of topoopt's ranks per
call, on average.

Buffers do not change from call to call, as in other benchmarks: a rank that reads the memory of
another one finds it in its own caches then. With --renew they are written before every call, and
the time that this takes by itself is taken off.

gloo runs in the same processes, in a second group; Open MPI in processes of its own. On a direct
fabric both reach all hosts over addresses that the hosts' kernels forward; rank order follows the
stride of 1, so gloo's ring needs no forwarding: its best order. `--peers nothing` is a group that
sends nothing (in all_reduce it does nothing at all, elsewhere it may copy inputs to outputs): what
is left is PyTorch's own part of a call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist

from harness import idle_backend
from harness.direct_fabric import make_torus
from harness.mpi import DATATYPES as MPI_DATATYPES
from harness.mpi import REDUCE_OPS as MPI_REDUCE_OPS
from harness.mpi import MpiClient, MpiError, mpi_ranks
from harness.rank_processes import call_in_processes, exit_code_of
from harness.results import Result, add_record_option, measured_now, record
from harness.settings import Setting, direct_fabric, loopback, planned_fabric, shared_memory
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.netns.shaper import paced_share
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import CostModel, Plan
from torch_topoopt.plan.codec import decode
from torch_topoopt.plan.units import format_bytes, parse_gbps
from torch_topoopt.report.bounds import bus_factor, least_seconds
from torch_topoopt.tools.bench.operations import (
    DATATYPES,
    IN_PLACE,
    REDUCE_OPS,
    REDUCING,
    ROOTED,
    Case,
)
from torch_topoopt.tools.bench.options import OPERATIONS, parse_size
from torch_topoopt.tools.bench.timing import GroupPeer, over_ranks, sizes, target_at
from torch_topoopt.topology.collectives.candidates import LinkGraph
from torch_topoopt.topology.collectives.schedule_file import Collective

_DEFAULT_PEERS = ["gloo", "openmpi"]
_PEERS = (*_DEFAULT_PEERS, idle_backend.NAME)
_RUN_LIMIT_S = 3600.0
_MOST_ITERATIONS = 1000
_MODEL_BYTES = 8 << 20


def build_model() -> torch.nn.Module:
    """For the plan of `topoopt run`: a model with as many bytes of gradients as a long message."""
    return torch.nn.Linear(1 << 10, _MODEL_BYTES >> 12, bias=False)


def example_batch(batch_size: int = 64) -> torch.Tensor:
    return torch.zeros(batch_size, 1 << 10)


class MpiPeer:
    """Open MPI, driven by rank 0; the other ranks answer with nothing."""

    name = "openmpi"
    cpu_s = 0.0

    def __init__(self, client: MpiClient | None, *, renews: bool = False) -> None:
        self._client = client
        self._renews = renews

    def runs(self, case: Case) -> bool:
        reducing = case.operation in REDUCING
        return case.datatype in MPI_DATATYPES and (not reducing or case.reduce_op in MPI_REDUCE_OPS)

    def wrong(self, case: Case) -> int:
        return self._client.wrong(case) if self._client else 0

    def seconds(self, case: Case, warm_up: int, iterations: int) -> float:
        client = self._client
        return client.seconds(case, warm_up, iterations, renews=self._renews) if client else 0.0


class IdlePeer(GroupPeer):
    """A backend that does nothing, which is not wrong."""

    def wrong(self, case: Case, *, in_place: bool = False) -> int:
        super().wrong(case, in_place=in_place)
        return 0


Peer = GroupPeer | MpiPeer


@dataclass
class Measurement:
    """One peer's result of one case; `seconds` has one entry per round, of the slowest rank."""

    seconds: list[float]
    cpu_s: float
    wrong: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def measure(peers: list[Peer], case: Case, options: argparse.Namespace) -> dict[str, Measurement]:
    """Alternating rounds of all peers that can run `case`; the same on every rank."""
    peers = [peer for peer in peers if peer.runs(case)]
    wrong, iterations = {}, {}
    for peer in peers:
        started = time.perf_counter()
        wrong[peer.name] = peer.wrong(case)
        first_s = over_ranks([time.perf_counter() - started], dist.ReduceOp.MAX)[0]
        if first_s < 10 * options.round_seconds:  # else a warm-up costs more than it is worth
            first_s = over_ranks([peer.seconds(case, options.warmup_iters, 3)], dist.ReduceOp.MAX)[
                0
            ]
        fitting = round(options.round_seconds / max(first_s, 1e-9))
        iterations[peer.name] = options.iters or min(max(1, fitting), _MOST_ITERATIONS)
    seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    cpu: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(options.rounds):
        for peer in peers if turn % 2 == 0 else reversed(peers):
            seconds[peer.name].append(peer.seconds(case, 0, iterations[peer.name]))
            cpu[peer.name].append(peer.cpu_s)
    result = {}
    for peer in peers:
        name = peer.name
        slowest = over_ranks(seconds[name], dist.ReduceOp.MAX)
        cpu_s, wrongs = over_ranks(
            [statistics.median(cpu[name]), float(wrong[name])], dist.ReduceOp.SUM
        )
        result[name] = Measurement(slowest, cpu_s / dist.get_world_size(), int(wrongs))
    return result


class Table:
    """Prints the lines on rank 0 and keeps them for the JSON file."""

    def __init__(self, setting: Setting, options: argparse.Namespace, peers: list[str]) -> None:
        self._setting = setting
        self._options = options
        self._peers = peers
        self.results: list[dict[str, Any]] = []

    def head(self, operation: str) -> None:
        placed = "in-place" if operation in IN_PLACE else "out-of-place"
        print(f"#\n# {operation}, {placed}; time and cpu in us, bandwidths in GB/s")
        bound = " of bound of model" if self._setting.link_bytes_per_s else ""
        others = "".join(
            f" | {name + ' time':>13} {'busbw':>8} {'#wrong':>6} {'x':>6}"
            for name in self._peers
            if name != "topoopt"
        )
        print(
            f"# {'size':>11} {'count':>10} {'type':>8} {'redop':>5} {'root':>4} {'time':>11} "
            f"{'algbw':>8} {'busbw':>8} {'#wrong':>6} {'cpu':>9}{bound}{others}",
            flush=True,
        )

    def line(self, case: Case, measured: dict[str, Measurement]) -> None:
        own = measured["topoopt"]
        entry = self._entry(case, own)
        reduce_op = case.reduce_op if case.operation in REDUCING else "none"
        root = str(case.root) if case.operation in ROOTED else "-1"
        text = (
            f"  {case.moved_bytes:11} {case.count:10} {case.datatype:>8} {reduce_op:>5} {root:>4} "
            f"{own.median_s * 1e6:11.1f} {entry['algbw']:8.4g} {entry['busbw']:8.4g} "
            f"{own.wrong:6} {own.cpu_s * 1e6:9.1f}"
        )
        if self._setting.link_bytes_per_s:
            for name in ("of_bound", "of_model"):
                text += f" {entry[name]:8.3f}" if name in entry else f" {'-':>8}"
        for name in self._peers:
            if name == "topoopt":
                continue
            text += " | " + self._beside(case, name, measured, entry)
        print(text, flush=True)
        self.results.append(entry)

    def _beside(
        self, case: Case, name: str, measured: dict[str, Measurement], entry: dict[str, Any]
    ) -> str:
        if name not in measured:
            return f"{'not there':>13} {'-':>8} {'-':>6} {'-':>6}"
        other = measured[name]
        ratio = statistics.median(
            theirs / ours
            for theirs, ours in zip(other.seconds, measured["topoopt"].seconds, strict=True)
        )
        entry[name] = self._entry(case, other) | {"ratio": ratio}
        return (
            f"{other.median_s * 1e6:13.1f} {entry[name]['busbw']:8.4g} {other.wrong:6} {ratio:6.3g}"
        )

    def _entry(self, case: Case, measured: Measurement) -> dict[str, Any]:
        """In the units of nccl-tests: microseconds and GB/s."""
        algbw = case.moved_bytes / measured.median_s / 1e9
        entry: dict[str, Any] = {
            "operation": case.operation,
            "size": case.moved_bytes,
            "count": case.count,
            "type": case.datatype,
            "redop": case.reduce_op,
            "root": case.root,
            "time": measured.median_s * 1e6,
            "times": [seconds * 1e6 for seconds in measured.seconds],
            "algbw": algbw,
            "busbw": algbw * bus_factor(case.operation, case.ranks),
            "wrong": measured.wrong,
            "cpu": measured.cpu_s * 1e6,
        }
        if self._setting.plan is not None and self._setting.link_bytes_per_s is not None:
            least_s = least_seconds(
                self._setting.plan,
                case.operation,
                case.moved_bytes,
                self._setting.link_bytes_per_s,
            )
            if least_s is not None:
                entry["of_bound"] = least_s / measured.median_s
        if self._setting.fabric is not None and case.operation in get_args(Collective):
            model_s = modelled_seconds(self._setting.plan, case, self._options.mtu)
            entry["of_model"] = model_s / measured.median_s
        return entry

    def save(self, path: str) -> None:
        document = {
            "version": 1,
            "setting": self._setting.description,
            "options": vars(self._options),
            "results": self.results,
        }
        Path(path).write_text(json.dumps(document, indent=1) + "\n")

    def results_to_record(self) -> list[Result]:
        """One result per case and peer, and one for the bound."""
        place = self._setting.description.split(", MTU")[0]
        found = []
        for entry in self.results:
            what = f"{entry['operation']} of {format_bytes(entry['size'])}, {place}"
            ratios = {name: entry[name]["ratio"] for name in self._peers if name in entry}
            if "of_bound" in entry:
                ratios["bound of the links"] = entry["of_bound"]
            found += [
                measured_now(what, entry["time"], "us", peer=name, ratio=ratio, ratio_of="speed")
                for name, ratio in ratios.items()
            ] or [measured_now(what, entry["time"], "us")]
        return found


def modelled_seconds(plan: Plan, case: Case, mtu: int) -> float:
    """By the cost model that this job has measured, for the algorithm that it prefers."""
    text = Path(os.environ["TOPOOPT_RUN_DIR"], "cost_model.json").read_text(encoding="utf-8")
    cost = decode(CostModel, json.loads(text)["cost_model"])
    share = paced_share(mtu)
    cables = plan.cluster.pair_gbps(plan.network.links)
    graph = LinkGraph(
        plan.cluster.servers,
        {pair: share * gbps for pair, gbps in cables.items()},
        plan.network.groups[0].rings,
        alpha_s=cost.alpha_s,
        hop_s=cost.per_hop_latency_s,
    )
    priced = graph.priced(case.operation, case.moved_bytes)
    return next(one.seconds for one in priced.candidates if one.algorithm == priced.auto)


def run_rank(setting: Setting, options: argparse.Namespace, mpi_folder: str | None) -> None:
    """The whole benchmark, as one of its ranks."""
    torch.set_num_threads(1)
    # torch 2.13 renamed all_gather_into_tensor; 2.11 has only that name.
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)
    dist.init_process_group("topoopt")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    renews = options.renew
    peers: list[Peer] = [GroupPeer("topoopt", dist.group.WORLD, rank, renews=renews)]
    if "gloo" in options.peers:
        peers.append(GroupPeer("gloo", dist.new_group(backend="gloo"), rank, renews=renews))
    if mpi_folder is not None:
        client = MpiClient(mpi_folder, ranks) if rank == 0 else None
        peers.append(MpiPeer(client, renews=renews))
    if idle_backend.NAME in options.peers:
        idle_backend.register()
        idle = dist.new_group(backend=idle_backend.NAME)
        peers.append(IdlePeer(idle_backend.NAME, idle, rank, renews=renews))
    table = Table(setting, options, [peer.name for peer in peers])
    target, hops = target_at(setting.plan, ranks, options.root, options.hops)
    if rank == 0:
        print(f"# {setting.description}")
        if "sendrecv" in options.operations:
            print(f"# sendrecv: rank {options.root} to rank {target}, hops: {hops}")
    for operation in options.operations:
        if rank == 0:
            table.head(operation)
        swept = sizes(options.minbytes, options.maxbytes, options.stepfactor, options.stepbytes)
        for size_bytes in [0] if operation == "barrier" else swept:
            case = Case(
                operation,
                size_bytes,
                options.datatype,
                options.redop,
                options.root,
                target,
                ranks,
            )
            measured = measure(peers, case, options)
            if rank == 0:
                table.line(case, measured)
    if rank == 0 and options.json:
        table.save(options.json)
    if rank == 0 and options.record:
        record(options.record, table.results_to_record())
    dist.destroy_process_group()


def parse_operations(text: str) -> list[str]:
    names = list(OPERATIONS) if text == "all" else text.split(",")
    for name in names:
        if name not in OPERATIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(OPERATIONS)}")
    return names


def parse_sides(text: str) -> tuple[int, int]:
    """The rows and columns of a torus; raises ArgumentTypeError."""
    rows, _, columns = text.partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) > 1 and int(columns) > 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not rows x columns, such as 4x4")
    return int(rows), int(columns)


def parse_peers(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in _PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(_PEERS)}, or none")
    return names


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-b", "--minbytes", type=parse_size, help="smallest size (8; fabric: 16M)")
    parser.add_argument("-e", "--maxbytes", type=parse_size, help="largest size (64M; fabric: 16M)")
    parser.add_argument("-f", "--stepfactor", type=int, default=4)
    parser.add_argument("-i", "--stepbytes", type=parse_size, default=0, help="instead of -f")
    parser.add_argument("-n", "--iters", type=int, default=0, help="per round; 0: as many as fit")
    parser.add_argument("-w", "--warmup_iters", type=int, default=1)
    parser.add_argument("-o", "--operations", type=parse_operations, default=["all_reduce"])
    parser.add_argument("-d", "--datatype", choices=DATATYPES, default="float")
    parser.add_argument("--redop", choices=REDUCE_OPS, default="sum")
    parser.add_argument("-r", "--root", type=int, default=0, help="also the sender of sendrecv")
    parser.add_argument("--hops", type=int, help="of sendrecv; default: to the farthest server")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the results there")
    add_record_option(parser)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (fabric: 3)")
    parser.add_argument("--round_seconds", type=float, default=0.1, help="with -n 0")
    parser.add_argument(
        "--renew", action="store_true", help="write what is sent before every call; not counted"
    )
    parser.add_argument(
        "--peers",
        type=parse_peers,
        default=_DEFAULT_PEERS,
        help=f"of {', '.join(_PEERS)}; or none (default: {','.join(_DEFAULT_PEERS)})",
    )
    started = parser.add_argument_group("ranks started by this script")
    started.add_argument("--on", choices=("shared-memory", "loopback", "fabric"))
    started.add_argument("--ranks", type=int, default=2)
    started.add_argument("--degree", type=int, help="links of a server (default: a ring)")
    started.add_argument(
        "--torus", type=parse_sides, metavar="RxC", help="of a fabric, in place of --degree"
    )
    started.add_argument("--bandwidth", help="of a link and direction, e.g. 25Mbps")
    started.add_argument("--pin", action="store_true", help="a processor for each rank, by turns")
    started.add_argument("--mtu", type=int, default=1500, help="of a fabric's cables")
    return parser


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(words)
    only = 16 << 20 if options.on == "fabric" else None
    options.minbytes = options.minbytes or only or 8
    options.maxbytes = options.maxbytes or max(options.minbytes, only or 64 << 20)
    if options.stepfactor < 2:
        parser.error(f"--stepfactor: {options.stepfactor} is not at least 2")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not at least 1")
    if options.record and not options.on:
        parser.error("--record: needs --on, because the command of another launcher is not known")
    if options.on and not 0 <= options.root < options.ranks:
        parser.error(f"--root: {options.root} is not a rank of 0..{options.ranks - 1}")
    if options.torus and options.torus[0] * options.torus[1] != options.ranks:
        parser.error(f"--torus: it has not {options.ranks} places, one for each of --ranks")
    if options.on == "fabric" and not options.bandwidth:
        parser.error("--bandwidth: a fabric needs the rate of a link, e.g. 25Mbps")
    return options


def open_setting(options: argparse.Namespace) -> contextlib.AbstractContextManager[Setting]:
    gbps = parse_gbps(options.bandwidth) if options.bandwidth else None
    degree = options.degree or min(2, options.ranks - 1)
    if options.on == "shared-memory":
        return shared_memory(options.ranks)
    if options.on == "loopback":
        return loopback(options.ranks, degree, gbps)
    assert gbps is not None, "parse_arguments() asks for it"
    if options.torus:
        options_of_cables = NetnsOptions(gbps=gbps, mtu=options.mtu)
        return planned_fabric(make_torus(*options.torus, gbps), options_of_cables)
    return direct_fabric(options.ranks, degree, gbps, options.mtu)


def start_ranks(options: argparse.Namespace) -> None:
    with open_setting(options) as setting, contextlib.ExitStack() as peers:
        mpi_folder = None
        processors = sorted(os.sched_getaffinity(0)) if options.pin else []
        if "openmpi" in options.peers:
            try:
                mpi_folder = peers.enter_context(
                    mpi_ranks(setting.ranks, setting.mpi_options, processors)
                )
            except MpiError as error:
                print(f"# without Open MPI: {error}")

        def run(rank: int) -> None:
            setting.become(rank)
            if processors:
                os.sched_setaffinity(0, {processors[rank % len(processors)]})
            run_rank(setting, options, mpi_folder)

        call_in_processes(setting.ranks, run, limit_s=_RUN_LIMIT_S)


def setting_of_environment() -> Setting:
    """That of a rank which another launcher has started."""
    ranks = int(os.environ["WORLD_SIZE"])
    if "TOPOOPT_PLAN" not in os.environ:
        return Setting(f"{ranks} ranks without a plan", ranks, {})
    plan = Plan.load(os.environ["TOPOOPT_PLAN"])
    wiring = Wiring.load(os.environ["TOPOOPT_WIRING"])
    limited = all(port.gbps is not None for port in wiring.ports)
    one_rank_each = ranks == plan.cluster.servers
    cluster = plan.cluster
    return Setting(
        f"{wiring.fabric}, {cluster.servers} servers x {cluster.degree} links of "
        f"{cluster.link_gbps * 1000:g} Mb/s, {ranks} ranks",
        ranks,
        {},
        plan if one_rank_each else None,
        cluster.link_bytes_per_s if limited and one_rank_each else None,
    )


def benchmark(options: argparse.Namespace) -> None:
    if options.on:
        start_ranks(options)
    elif "RANK" in os.environ:
        run_rank(setting_of_environment(), options, None)
    else:
        raise InputError(
            "--on: say where to start ranks (shared-memory, loopback or fabric), or start this "
            "script with `topoopt run`"
        )


def main() -> int:
    options = parse_arguments()
    return exit_code_of("collectives", lambda: benchmark(options), MpiError)


if __name__ == "__main__":
    sys.exit(main())
