"""What the benchmarks of moving circuits share: schedules in turns, options and columns."""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.requested_calls import MovedCollective, MovedExchange

Schedule = TypeVar("Schedule")

MTU = 9000
PORTS = 2  # of every server: a ring at least, on which ranks meet
LIMIT_S = 3600.0


class TimedSchedule(Protocol):
    """All times in seconds."""

    @property
    def predicted_s(self) -> float: ...

    @property
    def measured_s(self) -> tuple[float, ...]: ...

    @property
    def moving_s(self) -> tuple[float, ...]: ...

    @property
    def median_s(self) -> float: ...


class Given(Generic[Schedule]):
    """Schedules for requests, in the order in which they were given, and what came of them."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._left = iter(schedules)
        self.errors: list[str] = []
        self.moving_s: list[float] = []

    def next(self) -> Schedule:
        return next(self._left)

    def ended(self, ended: MovedExchange | MovedCollective) -> None:
        self.moving_s.append(ended.moving_s)
        if ended.error:
            self.errors.append(ended.error)

    def rounds(self, seconds: NDArray[np.float64], rounds: int) -> tuple[Any, Any]:
        """Of each schedule the `seconds`, and those in which circuits moved, of all rounds but the
        first. Raises ValueError if a call was stopped."""
        if self.errors:
            raise ValueError(self.errors[0])
        both = (seconds, np.array(self.moving_s))
        measured, moving = (times.reshape(rounds, -1)[1:].T.tolist() for times in both)
        return measured, moving


def chosen_and_fastest(lines: Sequence[TimedSchedule]) -> tuple[TimedSchedule, TimedSchedule]:
    """The lines of the shortest prediction and of the shortest median."""
    return (
        min(lines, key=lambda line: line.predicted_s),
        min(lines, key=lambda line: line.median_s),
    )


def spread(line: TimedSchedule, lines: Sequence[TimedSchedule]) -> str:
    """The last columns of a line: the least and the most time, that of the moves, and marks."""
    chosen, fastest = chosen_and_fastest(lines)
    mark = " chosen" if line is chosen else ""
    mark += " fastest" if line is fastest else ""
    return (
        f"{min(line.measured_s):>8.3f} s {max(line.measured_s):>8.3f} s "
        f"{statistics.median(line.moving_s):>8.3f} s{mark}"
    )


def over_fastest(lines: Sequence[TimedSchedule]) -> str:
    """The line below a table."""
    chosen, fastest = chosen_and_fastest(lines)
    return f"# chosen / fastest: {chosen.median_s / fastest.median_s:.3f}"


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options of all these benchmarks."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--servers", type=int, nargs="+", default=[8, 12], metavar="N")
    made.add_argument(
        "--circuits", type=int, default=1, metavar="K", help="that move, of each server"
    )
    made.add_argument(
        "--delays", type=float, nargs="+", default=[0.01, 0.15, 0.5], metavar="S", help="of R"
    )
    made.add_argument("--bandwidth", default="30Mbps", help="of a link")
    made.add_argument("--rounds", type=int, default=3, help="that count")
    made.add_argument("-J", "--json", metavar="FILE", help="keeps every number")
    return made


def keep(path: str | None, lines: Sequence[Any]) -> None:
    """Writes all lines to the file of --json."""
    if path:
        Path(path).write_text(json.dumps([asdict(line) for line in lines], indent=1))
