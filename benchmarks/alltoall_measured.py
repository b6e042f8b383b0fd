"""All-to-alls during which circuits move, on emulated hosts: measured beside predicted, as root.

    sudo .venv/bin/python benchmarks/alltoall_measured.py --servers 8 12
    sudo .venv/bin/python benchmarks/alltoall_measured.py --servers 8 --sizes zipf0.4 zipf1 hot
    sudo .venv/bin/python benchmarks/alltoall_measured.py --servers 8 --sizes zipf1 --static 2 4

For every delay R of the emulated switch and every number of topologies d: the time of
`all_to_all_single` on the slowest rank, the median of rounds that take every d in turn, beside what
`topoopt run` predicts: slots, d moves, and the one back to the plan's circuits. What a move takes
is measured before, as `topoopt run` does. `chosen` is the d of the shortest prediction; below each
table stands how much longer it takes than the d that is fastest when measured. The first call of
each d is checked and not counted.

With `--static`, circuits stay, and networks have so many ports of each server. Measured are the
plan's routes and those for the sizes (TOPOOPT_ALLTOALL_ROUTES), in turns.

Links are slow, so that they and not the processors are measured: the hosts of one machine move
SERVERS x CIRCUITS x BANDWIDTH at once.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from harness import moving_circuits
from harness.moving_circuits import LIMIT_S, MTU, PORTS, Given
from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import direct_fabric
from torch_topoopt import _core
from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.plan.units import format_seconds, parse_bytes, parse_gbps
from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.circuit_service import CircuitService
from torch_topoopt.reconfiguration.matrix_planning import planned
from torch_topoopt.topology.routing.loads import hop_bytes
from torch_topoopt.topology.routing.optimal_routes import link_counts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from harness.settings import Setting
    from torch_topoopt.plan import Plan
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.reconfiguration.choice import Moving

SIZES = ("equal", "zipf0.4", "zipf1", "hot")
_HOT = 2  # servers of "hot" that receive
_TIMES = 4  # as much as each of the others


@dataclass(frozen=True)
class Line:
    """One schedule: all times in seconds."""

    servers: int
    sizes: str
    delay_s: float
    topologies: int
    slots: int
    move_s: float
    predicted_s: float
    measured_s: tuple[float, ...]
    moving_s: tuple[float, ...]  # of them, in which circuits moved

    @property
    def median_s(self) -> float:
        return statistics.median(self.measured_s)


@dataclass(frozen=True)
class StaticLine:
    """An all-to-all over the plan's routes and over those for its sizes: all times in seconds."""

    servers: int
    degree: int
    sizes: str
    fewer_bytes: float  # on the busiest link, by prediction
    planned_s: tuple[float, ...]
    balanced_s: tuple[float, ...]


def matrix_of(sizes: str, servers: int, pair_bytes: int) -> NDArray[np.int64]:
    """Bytes of each pair, `pair_bytes` in the mean, and none for the server itself.

    "zipf1": the bytes of every server follow Zipf's law with that exponent, in an order of its own.
    "hot": two servers receive four times as much as the others.
    """
    shares = np.ones((servers, servers))
    if sizes == "hot":
        shares[:, :_HOT] = _TIMES
    elif sizes != "equal":
        random = np.random.default_rng(0)
        law = np.arange(1.0, servers + 1) ** -float(sizes.removeprefix("zipf"))
        shares = np.array([random.permutation(law) for _ in range(servers)])
    np.fill_diagonal(shares, 0.0)
    total = servers * (servers - 1) * pair_bytes
    return (shares / shares.sum() * total).astype(np.int64)


def run_rank(
    setting: Setting, matrix: NDArray[np.int64], calls: Sequence[bool], rank: int
) -> list[float]:
    """Seconds of each call, from when all are there; raises ValueError for a wrong result."""
    setting.become(rank)
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    seconds = [exchange(matrix, rank, number, checked) for number, checked in enumerate(calls)]
    dist.destroy_process_group()
    return seconds


def exchange(
    matrix: NDArray[np.int64],
    rank: int,
    number: int,
    checked: bool,
    group: dist.ProcessGroup | None = None,
) -> float:
    """Seconds of one call, from when all are there; raises ValueError for a wrong result."""
    sent, received = matrix[rank].tolist(), matrix[:, rank].tolist()
    own = torch.cat(
        [
            torch.full((size,), (rank * 17 + target * 5 + number) % 251, dtype=torch.uint8)
            for target, size in enumerate(sent)
        ]
    )
    into = torch.zeros(sum(received), dtype=torch.uint8)
    dist.barrier()
    began = time.perf_counter()
    dist.all_to_all_single(into, own, received, sent, group=group)
    seconds = time.perf_counter() - began
    for source, part in enumerate(into.split(received) if checked else ()):
        if not bool((part == (source * 17 + rank * 5 + number) % 251).all()):
            raise ValueError(f"call {number}: what rank {source} has sent came out wrong")
    return seconds


def run_static_rank(
    setting: Setting, matrix: NDArray[np.int64], rounds: int, rank: int
) -> list[list[float]]:
    """Seconds of each round over the plan's routes, and over those for the sizes."""
    setting.become(rank)
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    groups = []
    for routes in ("plan", "auto"):
        os.environ["TOPOOPT_ALLTOALL_ROUTES"] = routes
        groups.append(dist.new_group())
    seconds = [
        [exchange(matrix, rank, number, number == 0, group) for group in groups]
        for number in range(1 + rounds)
    ]
    dist.destroy_process_group()
    return seconds[1:]


class GivenExchanges(Given["Moving[AllToAllSchedule]"]):
    """Answers all-to-alls with schedules in the order in which they were given."""

    def __call__(self, matrix: NDArray[np.int64], servers: tuple[int, ...]) -> Choice:
        moving = self.next()
        why = f"{moving.schedule.reconfigurations} topologies"
        return Choice(moving.schedule, why, present=moving.present)


def candidates(
    chooser: AllToAllChooser, matrix: NDArray[np.int64]
) -> list[Moving[AllToAllSchedule]]:
    """All schedules for equal sizes; for others the fastest of them, and the planned one."""
    everybody = tuple(range(len(matrix)))
    equal = [chooser.moving(one, matrix, everybody) for one in chooser.schedules]
    if np.ptp(matrix[~np.eye(len(matrix), dtype=bool)]) == 0:
        return equal
    fastest = min(equal, key=lambda moving: moving.seconds)
    made = planned(matrix, chooser.degree, chooser.costs)
    return [fastest, chooser.moving(made, matrix, everybody)]


def lines_of(options: argparse.Namespace, servers: int, sizes: str, delay_s: float) -> list[Line]:
    gbps = parse_gbps(options.bandwidth)
    matrix = matrix_of(sizes, servers, round(parse_bytes(options.bytes_per_pair)))
    with direct_fabric(servers, PORTS, gbps, MTU, switch_delay_s=delay_s) as setting:
        assert setting.plan is not None
        assert setting.fabric is not None
        mover = setting.fabric.circuit_mover(setting.plan)
        move_s = measured_move_s(setting.plan, mover, options.circuits)
        chooser = AllToAllChooser(
            setting.plan,
            move_s,
            circuits=options.circuits,
            gbps=setting.fabric.paced_gbps(setting.plan),
        )
        schedules = candidates(chooser, matrix)
        calls = [False] * len(schedules) * options.rounds
        given = GivenExchanges(schedules * (1 + options.rounds))
        with CircuitService(servers, mover, given, given.ended, ahead=False) as service:
            setting.environment[CIRCUITS_VARIABLE] = service.path
            run = partial(run_rank, setting, matrix, [True] * len(schedules) + calls)
            seconds = np.array(call_in_processes(servers, run, limit_s=LIMIT_S)).max(axis=0)
    measured, moving = given.rounds(seconds, 1 + options.rounds)
    return [
        Line(
            servers,
            sizes,
            delay_s,
            one.schedule.reconfigurations,
            one.schedule.slots,
            move_s,
            one.seconds,
            tuple(times),
            tuple(moves),
        )
        for one, times, moves in zip(schedules, measured, moving, strict=True)
    ]


def fewer_bytes(plan: Plan, matrix: NDArray[np.int64]) -> float:
    """Bytes of the busiest link over the plan's routes, compared with those for the sizes."""
    servers = plan.cluster.servers
    capacity = link_counts(servers, plan.network.links)
    edges = [(int(a), int(b), float(capacity[a, b])) for a, b in np.argwhere(capacity)]
    pairs = [(int(a), int(b), float(matrix[a, b])) for a, b in np.argwhere(matrix)]
    loads = np.zeros((servers, servers))
    shares = _core.balanced_shares(servers, edges, pairs)
    for (*_, size), paths in zip(pairs, shares, strict=True):
        for path, share in paths:
            for hop in pairwise(path):
                loads[hop] += share * size
    linked = capacity > 0
    planned = hop_bytes(plan.network, matrix.astype(np.float64))
    ratios = (planned[linked] / capacity[linked]).max() / (loads[linked] / capacity[linked]).max()
    return float(ratios)


def static_line_of(
    options: argparse.Namespace, servers: int, sizes: str, degree: int
) -> StaticLine:
    matrix = matrix_of(sizes, servers, round(parse_bytes(options.bytes_per_pair)))
    with direct_fabric(servers, degree, parse_gbps(options.bandwidth), MTU) as setting:
        assert setting.plan is not None
        run = partial(run_static_rank, setting, matrix, options.rounds)
        times = np.array(call_in_processes(servers, run, limit_s=LIMIT_S)).max(axis=0)
        fewer = fewer_bytes(setting.plan, matrix)
    planned_s, balanced_s = (tuple(column) for column in times.T.tolist())
    return StaticLine(servers, degree, sizes, fewer, planned_s, balanced_s)


def static_report(line: StaticLine) -> str:
    planned_s, balanced_s = statistics.median(line.planned_s), statistics.median(line.balanced_s)
    return (
        f"{line.servers} servers, degree {line.degree}, {line.sizes} sizes: plan's routes "
        f"{planned_s:.3f} s, for the sizes {balanced_s:.3f} s ({min(line.balanced_s):.3f} to "
        f"{max(line.balanced_s):.3f}); ratio {planned_s / balanced_s:.3f}, of the busiest link's "
        f"bytes {line.fewer_bytes:.3f}"
    )


def report(lines: Sequence[Line]) -> Iterator[str]:
    """A table of one number of servers and one delay."""
    first = lines[0]
    yield (
        f"# {first.servers} servers, {first.sizes} sizes, R {format_seconds(first.delay_s)}, "
        f"a move takes {format_seconds(first.move_s)}"
    )
    yield (
        f"# {'d':>3} {'slots':>6} {'predicted':>10} {'measured':>10} {'least':>10} {'most':>10} "
        f"{'moves':>10}"
    )
    for line in lines:
        yield (
            f"  {line.topologies:>3} {line.slots:>6} {line.predicted_s:>8.3f} s "
            f"{line.median_s:>8.3f} s {moving_circuits.spread(line, lines)}"
        )
    yield moving_circuits.over_fastest(lines)
    if first.sizes != "equal":
        yield f"# schedule for equal sizes / planned: {first.median_s / lines[-1].median_s:.3f}"


def benchmark(options: argparse.Namespace) -> None:
    lines: list[Line | StaticLine] = []
    for servers, sizes, degree in product(options.servers, options.sizes, options.static or ()):
        line = static_line_of(options, servers, sizes, degree)
        print(static_report(line), flush=True)
        lines.append(line)
    for servers in options.servers if options.static is None else ():
        for sizes, delay_s in product(options.sizes, options.delays):
            found = lines_of(options, servers, sizes, delay_s)
            print("\n".join(report(found)), flush=True)
            lines += found
    moving_circuits.keep(options.json, lines)


def parse_arguments() -> argparse.Namespace:
    parser = moving_circuits.parser(__doc__)
    parser.add_argument(
        "--static", type=int, nargs="+", metavar="D", help="circuits stay; ports of a server"
    )
    parser.add_argument("--bytes-per-pair", default="375kB")
    parser.add_argument("--sizes", nargs="+", default=["equal"], choices=SIZES, help="of pairs")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    return exit_code_of("alltoall_measured", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
