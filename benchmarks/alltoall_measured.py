"""All-to-alls during which circuits move, on emulated hosts: measured beside predicted, as root.

    sudo .venv/bin/python benchmarks/alltoall_measured.py --servers 8 12

For every delay R of the emulated switch and every number of topologies d: the time of
`all_to_all_single` on the slowest rank, the median of rounds that take every d in turn, beside what
`topoopt run` predicts: slots, d moves, and the one back to the plan's circuits. What a move takes
is measured before, as `topoopt run` does. `chosen` is the d of the shortest prediction; below each
table stands how much longer it takes than the d that is fastest when measured. The first call of
each d is checked and not counted.

Links are slow, so that they and not the processors are measured: the hosts of one machine move
SERVERS x CIRCUITS x BANDWIDTH at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import direct_fabric
from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.plan.units import format_seconds, parse_bytes, parse_gbps
from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s
from torch_topoopt.reconfiguration.circuit_service import (
    Choice,
    CircuitService,
    MovedExchange,
)
from torch_topoopt.reconfiguration.matrix_planning import running_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from harness.settings import Setting
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

_MTU = 9000
_PORTS = 2  # of every server: a ring at least, on which ranks meet
_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Line:
    """One number of topologies: all times in seconds."""

    servers: int
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


def run_rank(setting: Setting, size_bytes: int, calls: Sequence[bool], rank: int) -> list[float]:
    """Seconds of each call, from when all are there; raises ValueError for a wrong result."""
    setting.become(rank)
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    world = dist.get_world_size()
    own = torch.empty(world, size_bytes, dtype=torch.uint8)
    seconds = []
    for number, checked in enumerate(calls):
        for target in range(world):
            own[target] = (rank * 17 + target * 5 + number) % 251
        into = torch.zeros_like(own)
        dist.barrier()
        began = time.perf_counter()
        dist.all_to_all_single(into, own)
        seconds.append(time.perf_counter() - began)
        for source in range(world if checked else 0):
            if not bool((into[source] == (source * 17 + rank * 5 + number) % 251).all()):
                raise ValueError(f"call {number}: what rank {source} has sent came out wrong")
    dist.destroy_process_group()
    return seconds


class Given:
    """Answers all-to-alls with schedules in the order in which they were given."""

    def __init__(self, schedules: Sequence[AllToAllSchedule]) -> None:
        self._left = iter(schedules)
        self.errors: list[str] = []
        self.moving_s: list[float] = []

    def __call__(self, matrix: NDArray[np.int64]) -> Choice:
        schedule = next(self._left)
        return Choice(schedule, f"{schedule.reconfigurations} topologies")

    def ended(self, exchange: MovedExchange) -> None:
        self.moving_s.append(exchange.moving_s)
        if exchange.error:
            self.errors.append(exchange.error)


def lines_of(options: argparse.Namespace, servers: int, delay_s: float) -> list[Line]:
    size_bytes = round(parse_bytes(options.bytes_per_pair))
    gbps = parse_gbps(options.bandwidth)
    matrix = np.full((servers, servers), size_bytes, dtype=np.int64)
    with direct_fabric(servers, _PORTS, gbps, _MTU, switch_delay_s=delay_s) as setting:
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
        schedules = chooser.schedules
        calls = [False] * len(schedules) * options.rounds
        given = Given(schedules * (1 + options.rounds))
        with CircuitService(servers, mover, given, given.ended) as service:
            setting.environment[CIRCUITS_VARIABLE] = service.path
            run = partial(run_rank, setting, size_bytes, [True] * len(schedules) + calls)
            seconds = np.array(call_in_processes(servers, run, limit_s=_LIMIT_S)).max(axis=0)
    if given.errors:
        raise ValueError(given.errors[0])
    shape = (1 + options.rounds, len(schedules))
    measured = seconds.reshape(shape)[1:].T.tolist()
    moving = np.array(given.moving_s).reshape(shape)[1:].T.tolist()
    return [
        Line(
            servers,
            delay_s,
            schedule.reconfigurations,
            schedule.slots,
            move_s,
            running_s(schedule, matrix, chooser.costs),
            tuple(times),
            tuple(moves),
        )
        for schedule, times, moves in zip(schedules, measured, moving, strict=True)
    ]


def report(lines: Sequence[Line]) -> Iterator[str]:
    """A table of one number of servers and one delay."""
    first = lines[0]
    chosen = min(lines, key=lambda line: line.predicted_s)
    fastest = min(lines, key=lambda line: line.median_s)
    yield (
        f"# {first.servers} servers, R {format_seconds(first.delay_s)}, a move takes "
        f"{format_seconds(first.move_s)}"
    )
    yield (
        f"# {'d':>3} {'slots':>6} {'predicted':>10} {'measured':>10} {'least':>10} {'most':>10} "
        f"{'moves':>10}"
    )
    for line in lines:
        mark = " chosen" if line is chosen else ""
        mark += " fastest" if line is fastest else ""
        yield (
            f"  {line.topologies:>3} {line.slots:>6} {line.predicted_s:>8.3f} s "
            f"{line.median_s:>8.3f} s {min(line.measured_s):>8.3f} s "
            f"{max(line.measured_s):>8.3f} s {statistics.median(line.moving_s):>8.3f} s{mark}"
        )
    yield f"# chosen / fastest: {chosen.median_s / fastest.median_s:.3f}"


def benchmark(options: argparse.Namespace) -> None:
    lines = []
    for servers in options.servers:
        for delay_s in options.delays:
            found = lines_of(options, servers, delay_s)
            print("\n".join(report(found)), flush=True)
            lines += found
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(line) for line in lines], indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, nargs="+", default=[8, 12], metavar="N")
    parser.add_argument(
        "--circuits", type=int, default=1, metavar="K", help="that move, of each server"
    )
    parser.add_argument(
        "--delays", type=float, nargs="+", default=[0.01, 0.15, 0.5], metavar="S", help="of R"
    )
    parser.add_argument("--bandwidth", default="30Mbps", help="of a link")
    parser.add_argument("--bytes-per-pair", default="375kB")
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("-J", "--json", metavar="FILE", help="keeps every number")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    return exit_code_of("alltoall_measured", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
