"""Follows the metrics.jsonl of a run while it grows.

The launcher and the ranks (torch_topoopt.log, torch_topoopt/runtime/meters/step_log.py) write it.
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from torch_topoopt.plan import Link

if TYPE_CHECKING:
    from pathlib import Path

Element = TypeVar("Element")

_KEPT = 600  # points of a curve: ten minutes


class Point(NamedTuple):
    """A value of iteration `iteration`, `time_s` after the run began."""

    time_s: float
    iteration: int
    value: float


class TrainingLog:
    """The step times, losses and paths of links of a run, up to what read() has found.

    A loss that the script logs (`torch_topoopt.log(loss=...)`) replaces the losses observed in
    backward().
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step_s: deque[Point] = deque(maxlen=_KEPT)
        self.losses: deque[Point] = deque(maxlen=_KEPT)
        self.of_script = True  # the plan belongs to this script
        self.stage = ""  # the last one that ended
        # Links that follow a route controller: the switches of each; none with ECMP.
        self.paths: dict[Link, tuple[str, ...]] = {}
        self._logged_loss = False
        self._read_bytes = 0

    def read(self) -> None:
        """Reads the lines written since the last call; ignores other lines."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except OSError:
            return  # not written yet
        whole, newline, _ = data.rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind, time_s = event.get("event"), event.get("time_s")
        if not _is_number(time_s):
            return
        if kind == "demand":
            self.of_script = event.get("of_script") is not False
        elif kind == "route" and event.get("what") == "path":
            ends: object = event.get("ends")
            path: object = event.get("path")
            if _is_list_of(ends, int) and len(ends) == 4 and _is_list_of(path, str):
                self.paths[Link(*ends)] = tuple(path)
        elif kind == "stage":
            self.stage = str(event.get("name", ""))
        elif kind == "step":
            iteration = event.get("iteration")
            if type(iteration) is not int:
                return
            if _is_number(event.get("step_s")):
                self.step_s.append(Point(time_s, iteration, event["step_s"]))
            if _is_number(event.get("loss")) and not self._logged_loss:
                self.losses.append(Point(time_s, iteration, event["loss"]))
        elif kind == "train" and _is_number(event.get("loss")):
            if not self._logged_loss:
                self._logged_loss = True
                self.losses.clear()
            iteration = self.step_s[-1].iteration if self.step_s else 0
            self.losses.append(Point(time_s, iteration, event["loss"]))


def _is_list_of(value: object, kind: type[Element]) -> TypeGuard[list[Element]]:
    return isinstance(value, list) and all(type(element) is kind for element in value)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)
