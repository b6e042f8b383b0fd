"""`topoopt` that stays inside one stage: python stage_harness.py STAGE MARKER ARGUMENTS...

The stage's first call into the library creates the file MARKER and then waits for a signal. With
STAGE "search" nothing waits: MARKER appears when the C++ strategy search has reported progress.
With "topology" it appears when the search for a better network begins.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_topoopt.fabric.loopback import LoopbackFabric
from torch_topoopt.launcher.main import main
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner import demand_plan
from torch_topoopt.profile import profiling
from torch_topoopt.topology.best import find_best as best

STAGES: dict[str, tuple[Any, str]] = {
    "profile": (profiling, "profile"),
    "co-optimise": (planner.Planning, "run"),
    "wire": (LoopbackFabric, "_verify"),
    "restart": (demand_plan, "plan_for_remaining"),
}


def _hold(marker: Path) -> Callable[..., None]:
    def stay(*arguments: Any, **named: Any) -> None:
        marker.touch()
        time.sleep(600)
        raise TimeoutError("no signal came")

    return stay


def _announce_search(marker: Path) -> None:
    original = planner.Planning._report

    def report(self: Any, stage: Any, evaluations: int, now: Any = None) -> None:
        if evaluations:
            marker.touch()
        original(self, stage, evaluations, now)

    setattr(planner.Planning, "_report", report)  # noqa: B010 - mypy lets no method be replaced


def _announce_network(marker: Path) -> None:
    original = best.candidates

    def candidates(*arguments: Any, **named: Any) -> Any:
        marker.touch()
        return original(*arguments, **named)

    setattr(best, "candidates", candidates)  # noqa: B010


if __name__ == "__main__":
    stage, marker = sys.argv[1], Path(sys.argv[2])
    if stage == "search":
        _announce_search(marker)
    elif stage == "topology":
        _announce_network(marker)
    elif stage in STAGES:
        owner, name = STAGES[stage]
        setattr(owner, name, _hold(marker))
    sys.exit(main(sys.argv[3:]))
