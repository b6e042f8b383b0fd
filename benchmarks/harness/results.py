"""The results of all benchmarks: benchmarks/results.json, which the page "Measured" shows.

A benchmark calls `add_record_option` for its parser, and `record` with its results where that
option is given.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from torch_topoopt.plan.codec import Document, DocumentError, brief

RESULTS = Path(__file__).parents[1] / "results.json"
PAGE_MARK = "<!-- results -->"  # place of the table on the page
NOT_NOTED = "not noted"  # date of results that were measured before dates were kept
MOST_WORDS = 15  # longest phrase in a cell of the table
PROGRAMS = ("python", "sudo", "topoopt", "torchrun", "pytest", "make")

RatioOf = Literal["", "speed", "time"]
_RATIO_WORDS: dict[RatioOf, str] = {"": "", "speed": "as fast", "time": "the time"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured value, or one ratio to a peer, with the command that repeats it.

    A ratio divides topoopt by the peer: more is better in speed, less in time.
    """

    # not written while they are not set
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset(
        {"value", "value_range", "outcome", "unit"}
        | {"peer", "peer_value", "ratio", "ratio_range", "ratio_of"}
    )

    what: str
    value: float | None = None
    value_range: tuple[float, ...] | None = None  # least and greatest
    outcome: str = ""  # in place of a value, where the result is no number
    unit: str = ""
    peer: str = ""
    peer_value: float | None = None  # in the same unit
    ratio: float | None = None
    ratio_range: tuple[float, ...] | None = None
    ratio_of: RatioOf = ""
    machine: str
    date: str
    command: str

    def problem(self) -> str:
        """The first rule that is broken, as "field: why"; "" if none is."""
        for name in ("what", "machine", "date", "command"):
            if not getattr(self, name).strip():
                return f"{name}: is empty"
        for name in ("what", "outcome", "peer", "machine"):
            text = getattr(self, name)
            if len(text.split()) > MOST_WORDS or set(text) & set("|\n"):
                return f"{name}: {brief(text)} is not one line of at most {MOST_WORDS} words"
        for name in ("value_range", "ratio_range"):
            ends = getattr(self, name)
            if ends is not None and (len(ends) != 2 or ends[0] > ends[1]):
                return f"{name}: {brief(ends)} is not the least and the greatest value"
        measured = (self.value, self.value_range, self.ratio, self.ratio_range)
        if (measured == (None,) * 4) == (not self.outcome):
            return "value: give a value, a range or a ratio, or an outcome in their place"
        has_ratio = self.ratio is not None or self.ratio_range is not None
        if has_ratio != bool(self.ratio_of):
            return f"ratio_of: {self.ratio_of!r} does not fit ratio {self.ratio}"
        if (has_ratio or self.peer_value is not None) and not self.peer:
            return "peer: is missing, but there is a ratio or a value of it"
        if self.date != NOT_NOTED and not re.fullmatch(r"\d{4}-\d\d-\d\d", self.date):
            return f"date: {self.date!r} is not like 2026-11-28, nor {NOT_NOTED!r}"
        if self.command.split()[0] not in PROGRAMS:
            return f"command: {brief(self.command)} does not begin with {' or '.join(PROGRAMS)}"
        return ""


@dataclass(frozen=True)
class Results(Document):
    """All results, in the order in which they were recorded."""

    KIND: ClassVar[str] = "file of results"
    VERSION: ClassVar[int] = 1

    version: int
    results: tuple[Result, ...]

    def validate(self) -> Self:
        for index, result in enumerate(self.results):
            if problem := result.problem():
                raise DocumentError(f"results[{index}].{problem}")
        return self

    def table(self) -> str:
        """One row per result, in Markdown, grouped by benchmark, then by command.

        Machine, date and command are empty where they are those of the row above.
        """
        groups: dict[str, dict[tuple[str, ...], list[Result]]] = {}
        for result in self.results:
            runs = groups.setdefault(_measured_by(result), {})
            runs.setdefault(_run(result), []).append(result)
        head = ("what", "value", "peer", "ratio", "machine", "date", "command")
        lines = [head, ("---",) * len(head)]
        for runs in groups.values():
            for run, results in runs.items():
                cells = [_cells(result) for result in results]
                lines += [(*cells[0], *run), *((*row, "", "", "") for row in cells[1:])]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """Gives a benchmark the option `--record`."""
    parser.add_argument(
        "--record",
        metavar="FILE",
        nargs="?",
        const=str(RESULTS),
        type=_file_of_results,
        help="append the results to FILE (benchmarks/results.json, if FILE is left out)",
    )


def measured_now(
    what: str,
    value: float,
    unit: str,
    *,
    value_range: tuple[float, float] | None = None,
    peer: str = "",
    ratio: float | None = None,
    ratio_range: tuple[float, float] | None = None,
    ratio_of: RatioOf = "",
) -> Result:
    """A result of the benchmark that runs: of this machine, of today, with its command."""
    return Result(
        what=what,
        value=_rounded(value),
        value_range=None if value_range is None else tuple(map(_rounded, value_range)),
        unit=unit,
        peer=peer,
        ratio=None if ratio is None else _rounded(ratio),
        ratio_range=None if ratio_range is None else tuple(map(_rounded, ratio_range)),
        ratio_of=ratio_of,
        machine=_machine(),
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        command=_command(sys.argv),
    )


def record(path: str, results: list[Result]) -> None:
    """Appends to the file, and creates it if needed; raises DocumentError or OSError."""
    kept = Results.load(path).results if Path(path).exists() else ()
    Results(Results.VERSION, (*kept, *results)).validate().save(path)


def with_table(page: str) -> str:
    """The text of a page, with the table in the place of its mark."""
    return page.replace(PAGE_MARK, Results.load(RESULTS).table()) if PAGE_MARK in page else page


def _file_of_results(path: str) -> str:
    """Refuses a file that cannot be appended to, before hours of measuring."""
    try:
        if Path(path).exists():
            Results.load(path)
        elif not os.access(Path(path).parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{path}: its folder is missing or not writable")
    except (DocumentError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else os.uname().machine
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def _command(words: list[str]) -> str:
    """As a reader would type it, without the files of this run's results."""
    files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files.add_argument("-J", "--json")
    add_record_option(files)
    _, options = files.parse_known_args(words[1:])
    python = ["sudo", ".venv/bin/python"] if os.geteuid() == 0 else ["python"]
    return shlex.join([*python, f"benchmarks/{Path(words[0]).name}", *options])


def _measured_by(result: Result) -> str:
    """The script, or the program and its verb."""
    words = [word for word in result.command.split() if word not in ("sudo", ".venv/bin/python")]
    return " ".join(words[:1] if words[0].endswith(".py") else words[:2]).removeprefix("python ")


def _cells(result: Result) -> tuple[str, ...]:
    value = result.outcome or f"{_number(result.value, result.value_range)} {result.unit}".strip()
    peer = result.peer
    if result.peer_value is not None:
        peer += f": {result.peer_value:.12g} {result.unit}".rstrip()
    ratio = f"{_number(result.ratio, result.ratio_range)} x {_RATIO_WORDS[result.ratio_of]}"
    return (
        result.what,
        value if result.outcome or result.value is not None or result.value_range else "",
        peer,
        ratio if result.ratio_of else "",
    )


def _run(result: Result) -> tuple[str, ...]:
    return result.machine, result.date, f"`{result.command}`"


def _number(median: float | None, ends: tuple[float, ...] | None) -> str:
    """The value and its range, or the one that is known."""
    text = "" if median is None else f"{median:.12g}"
    if ends is None:
        return text
    between = f"{ends[0]:.12g} to {ends[1]:.12g}"
    return f"{text} ({between})" if text else between
