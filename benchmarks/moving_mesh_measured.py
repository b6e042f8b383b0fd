"""A training script with tensor and data groups: circuits that move where that is predicted to be
faster, beside those of the plan.

    sudo .venv/bin/python benchmarks/moving_mesh_measured.py --servers 8 --tensor 4

Emulated hosts with an emulated switch train as mesh_training.py describes, as with `topoopt run
--collectives static` and `auto`, in turns; `alone` is auto without moves ahead of the next
collective. The table has the median of the steps but the first two of every turn. Below it is a
line for each collective that was compared: how often it moved circuits, both predictions, and the
mean time and that of its moves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh_training import train

from harness.moving_circuits import LIMIT_S, MTU, PORTS
from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import direct_fabric
from torch_topoopt.environment import CIRCUITS_VARIABLE
from torch_topoopt.plan.units import format_seconds, parse_gbps
from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s
from torch_topoopt.reconfiguration.circuit_service import CircuitService
from torch_topoopt.reconfiguration.collective_choice import CollectiveChooser
from torch_topoopt.reconfiguration.requested_calls import MovedCollective, MovedExchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.settings import Setting

CHOICES = ("static", "alone", "auto")
_UNCOUNTED = 2  # first steps of a turn: the sequence of collectives is known after them


def run_rank(
    setting: Setting, options: argparse.Namespace, rank: int
) -> tuple[list[float], list[float]]:
    setting.become(rank)
    steps = _UNCOUNTED + options.steps
    return train(options.tensor, options.hidden, options.batch, steps, experts=options.experts)


def turns(
    setting: Setting, options: argparse.Namespace
) -> tuple[float, dict[str, list[float]], dict[str, list[Any]], bool]:
    """The seconds of a move, those of the steps and the collectives that ended by choice, and
    whether the losses of all turns are equal up to 1e-5."""
    assert setting.plan is not None
    assert setting.fabric is not None
    mover = setting.fabric.circuit_mover(setting.plan)
    move_s = measured_move_s(setting.plan, mover)
    gbps = setting.fabric.paced_gbps(setting.plan)
    ended: dict[str, list[Any]] = {choice: [] for choice in CHOICES}
    seconds: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    losses = []
    run = partial(run_rank, setting, options)
    for choice in CHOICES * options.rounds:
        setting.environment.pop(CIRCUITS_VARIABLE, None)
        if choice == "static":
            found = call_in_processes(setting.ranks, run, limit_s=LIMIT_S)
        else:
            ahead = choice == "auto"
            chooser = CollectiveChooser(setting.plan, move_s, gbps=gbps, ahead=ahead)
            exchanges = AllToAllChooser(setting.plan, move_s, gbps=gbps, ahead=ahead)
            mover = setting.fabric.circuit_mover(setting.plan)
            with CircuitService(
                setting.ranks,
                mover,
                exchanges if options.experts else None,
                ended[choice].append,
                chooser,
                ahead=ahead,
            ) as service:
                setting.environment[CIRCUITS_VARIABLE] = service.path
                found = call_in_processes(setting.ranks, run, limit_s=LIMIT_S)
        steps = list(map(max, zip(*(times for _, times in found), strict=True)))
        seconds[choice] += steps[_UNCOUNTED:]
        losses.append([of_rank for of_rank, _ in found])
    same = all(
        abs(one - other) < 1e-5
        for turn_losses in losses[1:]
        for ours, theirs in zip(turn_losses, losses[0], strict=True)
        for one, other in zip(ours, theirs, strict=True)
    )
    return move_s, seconds, ended, same


def report(
    options: argparse.Namespace, move_s: float, seconds: dict[str, list[float]], same: bool
) -> Iterator[str]:
    yield (
        f"# {options.servers} servers, tensor groups of {options.tensor}, data groups of "
        f"{options.servers // options.tensor}, links of {options.bandwidth}, R "
        f"{format_seconds(options.delay)}, a move takes {format_seconds(move_s)}"
    )
    for choice, times in seconds.items():
        yield (
            f"  {choice:<8} {statistics.median(times):>8.3f} s a step (least {min(times):.3f} s, "
            f"most {max(times):.3f} s)"
        )
    static, alone, auto = (statistics.median(seconds[choice]) for choice in CHOICES)
    yield (
        f"# static / auto: {static / auto:.3f}, alone / auto: {alone / auto:.3f}; losses "
        f"{'equal' if same else 'DIFFER'}"
    )


def compared(ended: Sequence[MovedCollective | MovedExchange]) -> Iterator[str]:
    """A line for each collective, group size and size; raises ValueError if one was stopped."""
    lines: dict[tuple[str, int, int], list[MovedCollective | MovedExchange]] = defaultdict(list)
    for one in ended:
        if one.error:
            raise ValueError(one.error)
        name = one.collective if isinstance(one, MovedCollective) else "all_to_all"
        lines[name, one.members, one.total_bytes].append(one)
    for (collective, members, size), calls in sorted(lines.items()):
        choice = calls[0].choice
        moved = sum(one.choice.moves > 0 for one in calls)
        yield (
            f"  {collective:<14} of {size / 1e6:.3f} MB by {members}: {moved} of {len(calls)} "
            f"moved, predicted {choice.moving_predicted_s:.3f} s against "
            f"{choice.static_predicted_s:.3f} s, took "
            f"{statistics.mean(one.seconds for one in calls):.3f} s, of it moves "
            f"{statistics.mean(one.moving_s for one in calls):.3f} s"
        )


def benchmark(options: argparse.Namespace) -> None:
    if options.servers % options.tensor:
        raise ValueError(f"--tensor: {options.tensor} does not divide {options.servers} servers")
    gbps = parse_gbps(options.bandwidth)
    with direct_fabric(options.servers, PORTS, gbps, MTU, switch_delay_s=options.delay) as setting:
        move_s, seconds, ended, same = turns(setting, options)
    print("\n".join(report(options, move_s, seconds, same)))
    for choice in CHOICES[1:]:
        print(f"# {choice}")
        print("\n".join(compared(ended[choice])), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=8, metavar="N")
    parser.add_argument("--tensor", type=int, default=4, metavar="N", help="ranks of a group")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch", type=int, default=512, help="samples of a data group's member")
    parser.add_argument("--experts", action="store_true", help="all-to-alls of all ranks, too")
    parser.add_argument("--bandwidth", default="30Mbps", help="of a link")
    parser.add_argument("--delay", type=float, default=0.005, metavar="S", help="of R")
    parser.add_argument("--steps", type=int, default=3, help="of a turn that count")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each choice")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    return exit_code_of("moving_mesh_measured", lambda: benchmark(options))


if __name__ == "__main__":
    sys.exit(main())
