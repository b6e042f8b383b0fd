"""Benchmarks that are a list of cases: each in a process of its own, its row kept once it is done.

A case is what JSON can hold; its result is the case with figures added, or with `error`. A script
that uses this takes `--case CASE` (JSON), runs that one and prints the result, and writes all of
them with `-J FILE`, after every case. So memory and processor time are those of one case, one that
fails or takes too long does not end the others, and a run that is stopped keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_VERSION = 1


def peak_megabytes() -> float:
    """The most memory that this process had in RAM."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def in_a_process(script: str, case: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """`case` run by a fresh interpreter of `script`; `error` says what went wrong with it.

    A case that has an error already (a shape that cannot be) is returned as it is.
    """
    if "error" in case:
        return case
    command = [sys.executable, str(Path(script).resolve()), "--case", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {**case, "error": f"not done after {limit_s:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {**case, "error": lines[-1] if lines else f"exit code {done.returncode}"}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


class ResultFile:
    """The results of one benchmark, in the order of their cases, in FILE if there is one."""

    def __init__(self, path: str | None, benchmark: str, *, resume: bool) -> None:
        """With `resume`, those are kept that FILE has already; the ones that failed run again.

        Raises ValueError if FILE is not one that this benchmark wrote.
        """
        self._path, self._benchmark = path, benchmark
        self.results: list[dict[str, Any]] = []
        if not resume or path is None or not Path(path).exists():
            return
        document = json.loads(Path(path).read_text())
        head = {"benchmark": benchmark, "version": _VERSION}
        if not isinstance(document, dict) or any(document.get(k) != head[k] for k in head):
            raise ValueError(f"{path}: not a file that the benchmark {benchmark!r} wrote")
        self.results = [row for row in document["results"] if "error" not in row]

    def known(self, case: dict[str, Any]) -> dict[str, Any] | None:
        """The result of `case`, if there is one."""
        asked = json.loads(json.dumps(case))  # tuples are lists in the file
        return next((r for r in self.results if all(r.get(k) == asked[k] for k in asked)), None)

    def add(self, result: dict[str, Any]) -> None:
        """Keeps a new result, and writes the file."""
        self.results.append(result)
        if self._path is not None:
            head = {"benchmark": self._benchmark, "version": _VERSION}
            text = json.dumps({**head, "results": self.results}, indent=1)
            Path(self._path).write_text(text + "\n")


def choice_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A type for argparse: some of `known`, joined by commas."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return chosen

    return parse


def numbers(text: str) -> tuple[int, ...]:
    """A type for argparse: whole numbers, joined by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers joined by commas") from None
