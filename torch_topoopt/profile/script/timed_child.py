"""Runs all ranks of a script at once, without its messages, and records the times of its steps.

`python -m torch_topoopt.profile.script.timed_child FOLDER`, started by step_timing.py from a fork
server. FOLDER/job.json says what to run; rank r leaves FOLDER/r.json, {"steps": ..., "buckets":
...} or {"error": "one line"}. Every process group is PyTorch's fake one, as in child.py:
nothing is sent, and what is received is ones.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from torch_topoopt.profile.script import checkpoints, child
from torch_topoopt.profile.script.recorder import completed
from torch_topoopt.profile.script.step_clock import StepClock

_KEY = "CPU"


def main(folder: Path) -> None:
    """Starts the ranks and waits for all of them; the parent process limits the time."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    ranks = {}
    for rank, environment in enumerate(job["environments"]):
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(environment)
            try:
                run(job, rank, len(job["environments"]), folder / f"{rank}.json")
            finally:
                os._exit(0)  # without waiting for threads that the script left behind
        ranks[pid] = rank
    for pid in ranks:
        os.waitpid(pid, 0)


def run(job: dict[str, Any], rank: int, world_size: int, result: Path) -> None:
    """Runs the script as one rank, up to the last step that is timed."""

    def finish(steps: list[Any], buckets: Any) -> None:
        child.write_result(result, {"steps": steps, "buckets": buckets})
        os._exit(0)

    script = str(job["script"])
    child._fake_process_groups(rank, world_size)
    checkpoints.write_none()
    library = _without_messages()
    sys.addaudithook(child._no_network)
    clock = StepClock(finish)
    clock.install()
    sys.argv = [script, *job["arguments"]]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
        clock.script_ended()
        error = "it ended after too few optimizer steps"
    except SystemExit as stop:
        clock.script_ended()
        error = f"it called sys.exit({stop.code!r}) after too few optimizer steps"
    except BaseException as raised:  # a script may raise anything
        error = child._one_line(raised, script)
    child.write_result(result, {"error": error})
    del library  # it has to live as long as the script runs


def _without_messages() -> Any:
    """Replaces operators of c10d whose results a script builds on, where the fake ones give none.

    A dispatch mode, as the Recorder is, would take longer than many an operator of a small model.
    """
    library = torch.library.Library("c10d", "IMPL")

    def all_reduce(tensors: Any, *_: Any) -> Any:
        return list(tensors), completed(list(tensors))

    def receive(tensors: Any, *_: Any) -> Any:
        for tensor in tensors:
            tensor.detach().fill_(1)
        return completed(list(tensors))

    library.impl("allreduce_", all_reduce, _KEY, allow_override=True)
    library.impl("recv_", receive, _KEY, allow_override=True)
    return library


if __name__ == "__main__":
    main(Path(sys.argv[1]))
