"""AllReduce and others during which circuits move, on emulated hosts: measured beside predicted.

    sudo .venv/bin/python benchmarks/collectives_measured.py --servers 8 12
    sudo .venv/bin/python benchmarks/collectives_measured.py --servers 8 --circuits 2

For every delay R of the emulated switch and every number of topologies d: the time of the slowest
rank, the median of rounds that take every d in turn, and the prediction of `topoopt run`. With
d = 0, circuits stay. The time of a move is measured before, as `topoopt run` does. `chosen` has the
shortest prediction; the line below each table compares it with the fastest. The first call of each
d is checked and not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from harness import moving_circuits
from harness.moving_circuits import LIMIT_S, MTU, PORTS, Given
from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import direct_fabric
from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.plan.units import format_seconds, parse_bytes, parse_gbps
from torch_topoopt.reconfiguration.alltoall_choice import measured_move_s
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.circuit_service import CircuitService
from torch_topoopt.reconfiguration.collective_choice import CollectiveChooser
from torch_topoopt.reconfiguration.collectives.phases import COLLECTIVES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from harness.settings import Setting
    from torch_topoopt.reconfiguration.collectives.stepped import SteppedCollective


@dataclass(frozen=True)
class CollectiveLine:
    """One schedule: all times in seconds. `topologies` is 0 if circuits stay."""

    collective: str
    servers: int
    circuits: int
    total_bytes: int
    delay_s: float
    topologies: int
    move_s: float
    predicted_s: float
    measured_s: tuple[float, ...]
    moving_s: tuple[float, ...]  # of them, in which circuits moved

    @property
    def median_s(self) -> float:
        return statistics.median(self.measured_s)


class GivenCollectives(Given["SteppedCollective | None"]):
    """Answers requests with schedules in the order in which they were given; None: circuits
    stay."""

    least_s = 0.0

    def __init__(self, schedules: Sequence[SteppedCollective | None]) -> None:
        super().__init__(schedules)
        self.planned_s: dict[str, float] = {}  # by collective

    def __call__(
        self, collective: str, total_bytes: int, planned_s: float, servers: tuple[int, ...]
    ) -> Choice:
        self.planned_s[collective] = planned_s
        schedule = self.next()
        return Choice(schedule, "", present=() if schedule is None else schedule.of_the_plan)


def run_rank(
    setting: Setting, calls: Sequence[tuple[str, bool]], total_bytes: int, rank: int
) -> list[float]:
    """Seconds of each call, a collective and whether it is checked; raises ValueError for a wrong
    result."""
    setting.become(rank)
    torch.set_num_threads(1)
    dist.init_process_group("topoopt")
    count = total_bytes // 4 // setting.ranks * setting.ranks
    seconds = [one_call(name, count, rank, setting.ranks, checked) for name, checked in calls]
    dist.destroy_process_group()
    return seconds


def one_call(collective: str, count: int, rank: int, world: int, checked: bool) -> float:
    """Seconds of one call on a message of `count` floats, from when all are there."""
    message = torch.arange(count, dtype=torch.float32) % 97
    own = message * (rank + 1)
    total = message * (world * (world + 1) // 2)
    part = count // world
    mine = slice(rank * part, (rank + 1) * part)
    if collective == "all_reduce":
        result, right = own, total
        call = partial(dist.all_reduce, own)
    elif collective == "all_gather":
        result, right = torch.empty(count), message
        call = partial(dist.all_gather_into_tensor, result, message[mine].clone())
    elif collective == "reduce_scatter":
        result, right = torch.empty(part), total[mine]
        call = partial(dist.reduce_scatter_tensor, result, own)
    else:
        result, right = (own if rank == 0 else torch.zeros(count)), message
        call = partial(dist.broadcast, result, 0)
    dist.barrier()
    began = time.perf_counter()
    call()
    seconds = time.perf_counter() - began
    if checked and not torch.equal(result, right):
        raise ValueError(f"{collective}: rank {rank} has a wrong result")
    return seconds


def lines_of(options: argparse.Namespace, servers: int, delay_s: float) -> list[CollectiveLine]:
    """Of all collectives."""
    gbps = parse_gbps(options.bandwidth)
    total_bytes = round(parse_bytes(options.bytes)) // (4 * servers) * (4 * servers)
    with direct_fabric(servers, PORTS, gbps, MTU, switch_delay_s=delay_s) as setting:
        assert setting.plan is not None
        assert setting.fabric is not None
        mover = setting.fabric.circuit_mover(setting.plan)
        move_s = measured_move_s(setting.plan, mover, options.circuits)
        chooser = CollectiveChooser(
            setting.plan,
            move_s,
            circuits=options.circuits,
            gbps=setting.fabric.paced_gbps(setting.plan),
        )
        everybody = tuple(range(servers))
        tried: list[tuple[str, SteppedCollective | None]] = [
            (collective, schedule)
            for collective in options.collectives
            for schedule in (None, *chooser.schedules(collective, total_bytes, everybody))
        ]
        rounds = 1 + options.rounds
        given = GivenCollectives([schedule for _, schedule in tried] * rounds)
        calls = [(name, number == 0) for number in range(rounds) for name, _ in tried]
        with CircuitService(servers, mover, None, given.ended, given, ahead=False) as service:
            setting.environment[CIRCUITS_VARIABLE] = service.path
            run = partial(run_rank, setting, calls, total_bytes)
            seconds = np.array(call_in_processes(servers, run, limit_s=LIMIT_S)).max(axis=0)
    measured, moving = given.rounds(seconds, rounds)
    return [
        CollectiveLine(
            name,
            servers,
            options.circuits,
            total_bytes,
            delay_s,
            0 if schedule is None else schedule.reconfigurations,
            move_s,
            given.planned_s[name]
            if schedule is None
            else schedule.running_s(total_bytes, chooser.costs),
            tuple(times),
            tuple(moves),
        )
        for (name, schedule), times, moves in zip(tried, measured, moving, strict=True)
    ]


def report(lines: Sequence[CollectiveLine]) -> Iterator[str]:
    """A table of one collective, one number of servers and one delay."""
    first = lines[0]
    yield (
        f"# {first.collective} of {first.total_bytes / 1e6:g} MB, {first.servers} servers, "
        f"{first.circuits} circuits, R {format_seconds(first.delay_s)}, a move takes "
        f"{format_seconds(first.move_s)}"
    )
    yield (
        f"# {'d':>3} {'predicted':>10} {'measured':>10} {'ratio':>6} {'least':>10} {'most':>10} "
        f"{'moves':>10}"
    )
    for line in lines:
        yield (
            f"  {line.topologies:>3} {line.predicted_s:>8.3f} s {line.median_s:>8.3f} s "
            f"{line.median_s / line.predicted_s:>6.3f} {moving_circuits.spread(line, lines)}"
        )
    yield moving_circuits.over_fastest(lines)


def benchmark(options: argparse.Namespace) -> None:
    lines: list[CollectiveLine] = []
    for servers, delay_s in product(options.servers, options.delays):
        found = lines_of(options, servers, delay_s)
        for collective in options.collectives:
            of_one = [line for line in found if line.collective == collective]
            print("\n".join(report(of_one)), flush=True)
        lines += found
    moving_circuits.keep(options.json, lines)


def parse_arguments() -> argparse.Namespace:
    parser = moving_circuits.parser(__doc__)
    parser.add_argument("--collectives", nargs="+", default=list(COLLECTIVES), choices=COLLECTIVES)
    parser.add_argument("--bytes", default="3MB", help="of the whole message")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    return exit_code_of("collectives_measured", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
