"""Runs the user's script as ranks of a world without the others, and records their calls.

`python -m torch_topoopt.profile.script.child FOLDER`, started by runner.py from a fork server.
FOLDER/jobs.json is an object {"stop_at_error": ..., "stop_when_alike": ..., "total_limit_s": ...,
"jobs": [...]}; job i leaves FOLDER/i.json, which is {"calls": [...]} or {"error": "one line"}, and
what the script prints in FOLDER/i.log. Each job is a fork of this process, in which the script runs
as __main__. All of them end with the launcher, however that ends.

Every process group is PyTorch's fake one, for any backend of the script: a collective leaves
its tensors as they are, except that gathered ones are filled with this rank's own, and received
ones with 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.device_mesh
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from torch_topoopt.processes.rank_main import die_with
from torch_topoopt.profile.script import checkpoints
from torch_topoopt.profile.script.memory import used_bytes
from torch_topoopt.profile.script.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


_LOOK_S = 0.2  # interval of checks of a job's memory


class EnoughSeen(BaseException):
    """Ends the script after its last iteration; no `except Exception` stops it."""


class IterationCounter:
    """Follows the optimizers: an iteration has ended when each of them has stepped once.

    How many there are is known when one steps for the second time. After `wanted` iterations it
    calls `finish` with the calls, each with its iteration, and raises EnoughSeen.
    """

    def __init__(
        self, recorder: Recorder, wanted: int, finish: Callable[[list[Any]], None]
    ) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._finish = finish
        self._optimizers: list[Any] = []  # in the order of their first step
        self._all_known = False
        self._ends: list[int] = []  # how many calls had been made at the end of each step
        self._replicas: list[DistributedDataParallel] = []
        self._depth = 0  # one optimizer may step another
        self.finished = False
        self._forward = register_module_forward_pre_hook(self._before_forward)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    @property
    def steps(self) -> int:
        return len(self._ends)

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if torch.is_grad_enabled():
            self._recorder.setting_up = False
        if isinstance(module, DistributedDataParallel) and module not in self._replicas:
            self._replicas.append(module)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.finished:  # the script has caught EnoughSeen and goes on
            os._exit(0)
        self._depth += 1
        self._recorder.optimizing = True

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth -= 1
        self._recorder.optimizing = self._depth > 0
        if not self._all_known:
            self._rebuild_buckets()
            if any(optimizer is other for other in self._optimizers):
                self._all_known = True
                self._forward.remove()
            else:
                self._optimizers.append(optimizer)
        self._ends.append(len(self._recorder.calls))
        if self._all_known and len(self._ends) == self._wanted * len(self._optimizers):
            self.finished = True
            self._finish(self._calls())
            raise EnoughSeen

    def _rebuild_buckets(self) -> None:
        """Rebuilds the buckets, as DDP would at the start of its second forward pass, in the first
        iteration, so that the broadcast it needs is not taken for a part of every iteration."""
        self._recorder.setting_up = True
        for replica in self._replicas:
            replica.reducer._rebuild_buckets()
        self._recorder.setting_up = False

    def _calls(self) -> list[Any]:
        per_iteration = len(self._optimizers)
        ends = self._ends[per_iteration - 1 :: per_iteration]
        return [
            dataclasses.asdict(
                dataclasses.replace(call, iteration=sum(end <= index for end in ends))
            )
            for index, call in enumerate(self._recorder.calls)
        ]


def main(folder: Path) -> None:
    """Runs all jobs, one after the other."""
    todo = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    started = time.monotonic()
    for i, job in enumerate(todo["jobs"]):
        if todo["total_limit_s"] is not None:
            left_s = todo["total_limit_s"] - (time.monotonic() - started)
            job["time_limit_s"] = min(job["time_limit_s"], max(0.0, left_s))
        answer = _run_one(folder, i, job)
        if todo["stop_at_error"] and "error" in answer:
            return
        if todo["stop_when_alike"] and i == 0 and _speaks_for_all(answer, job):
            return


def _run_one(folder: Path, i: int, job: dict[str, Any]) -> dict[str, Any]:
    """Runs job i in a process of its own; returns what it left."""
    result = folder / f"{i}.json"
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with(parent)
        output = os.open(folder / f"{i}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            run(job, result)
            sys.stdout.flush()
        finally:
            os._exit(0)  # without waiting for threads that the script left behind
    ending = _wait(pid, job["time_limit_s"], job["memory_bytes"])
    if not result.exists():
        write_result(result, {"error": _why_none(ending, job, folder / f"{i}.log")})
    answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return answer


def _speaks_for_all(answer: dict[str, Any], job: dict[str, Any]) -> bool:
    """Whether all ranks must make the same calls in the last iteration: only collectives of the
    whole world with equal parts."""
    last = [c for c in answer.get("calls", ()) if c["iteration"] == job["iterations"] - 1]
    return all(
        len(call["group"]) == job["world_size"]
        and call["operation"] not in ("Send", "Recv")
        and len(set(call["part_bytes"])) < 2
        for call in last
    )


def _wait(pid: int, limit_s: float, memory_bytes: int | None) -> int | str:
    """The exit code of a child process (negative: its signal), or which limit it was killed at."""
    deadline = time.monotonic() + limit_s
    descriptor = os.pidfd_open(pid)
    over = ""
    try:
        while not over:
            left_s = deadline - time.monotonic()
            step_s = left_s if memory_bytes is None else min(left_s, _LOOK_S)
            if select.select([descriptor], [], [], max(0.0, step_s))[0]:
                break
            if memory_bytes is not None and used_bytes(pid) > memory_bytes:
                over = "memory"
            elif time.monotonic() >= deadline:
                over = "time"
    finally:
        os.close(descriptor)
    if over:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return over or os.waitstatus_to_exitcode(status)


def _why_none(ending: int | str, job: dict[str, Any], log: Path) -> str:
    if ending == "time":
        return (
            f"not {job['iterations']} iterations within {job['time_limit_s']:.3g} s (one ends when "
            f"every optimizer has stepped); give it less work, or more {job['time_option']}"
        )
    if ending == "memory":
        limit = job["memory_bytes"] / 1e9
        return f"more than {limit:.3g} GB of memory before {job['iterations']} iterations"
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return ": ".join([f"its process ended with code {ending}", *last])


def run(job: dict[str, Any], result: Path) -> None:
    """Runs the script as one rank and writes `result`; how it ends never matters after that."""
    script = str(job["script"])
    os.environ.update(job["environment"], TORCHDYNAMO_DISABLE="1")
    torch._dynamo.config.disable = True
    if "OMP_NUM_THREADS" not in os.environ:  # ranks are run one after the other
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    if job["memory_bytes"] is not None:
        with contextlib.suppress(OSError):  # the out-of-memory killer's first choice
            Path("/proc/self/oom_score_adj").write_text("1000")
    recorder = Recorder(job["rank"])
    iterations = IterationCounter(
        recorder,
        job["iterations"],
        lambda calls: write_result(result, {"calls": calls}),
    )
    _fake_process_groups(job["rank"], job["world_size"])
    checkpoints.write_none()
    sys.addaudithook(_no_network)
    sys.argv = [script, *job["arguments"]]
    sys.path[0] = os.getcwd() if job["module"] else str(Path(script).resolve().parent)
    needed = f"{job['iterations']} iterations are needed"
    error = ""
    try:
        with recorder:
            if job["module"]:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
        error = f"it ended after {_steps(iterations)}; {needed}"
    except EnoughSeen:
        pass
    except SystemExit as stop:
        error = f"it called sys.exit({stop.code!r}) after {_steps(iterations)}; {needed}"
    except BaseException as raised:  # a script may raise anything
        error = _one_line(raised, script)
    if not iterations.finished:
        write_result(result, {"error": error})


def _steps(iterations: IterationCounter) -> str:
    return "1 optimizer step" if iterations.steps == 1 else f"{iterations.steps} optimizer steps"


def write_result(result: Path, value: dict[str, Any]) -> None:
    """Writes atomically, because the parent process may read at any time."""
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(result)


class LoneStore(dist.HashStore):  # type: ignore[misc]
    """The TCPStore of a script that is traced, which would wait for ranks that do not run.

    Waiting for another rank's key fails after a second, instead of minutes.
    """

    def __init__(self, host_name: str, port: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.host, self.port = host_name, port
        self.set_timeout(timedelta(seconds=1))


def _fake_process_groups(rank: int, world_size: int) -> None:
    """Replaces init_process_group, new_group and TCPStore wherever PyTorch's modules have them.

    torch.distributed.rendezvous makes its stores by that name, too.
    """
    real_init, real_new = dist.init_process_group, dist.new_group

    @functools.wraps(real_init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        given = inspect.signature(real_init).bind(*args, **kwargs).arguments
        for name, mine in (("world_size", world_size), ("rank", rank)):
            value = given.get(name, -1)
            if value not in (-1, mine):
                raise ValueError(
                    f"init_process_group: {name}={value}, but this profile has {name} {mine}; "
                    f"take it from the variable {name.upper()}"
                )
        real_init(
            "fake",
            timeout=given.get("timeout"),
            world_size=world_size,
            rank=rank,
            store=FakeStore(),
        )

    @functools.wraps(real_new)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(real_new).bind(*args, **kwargs)
        for name in ("backend", "pg_options", "device_id"):
            bound.arguments.pop(name, None)
        return real_new(*bound.args, **bound.kwargs)

    replaced = (
        ("init_process_group", real_init, init_process_group),
        ("new_group", real_new, new_group),
        ("TCPStore", dist.TCPStore, LoneStore),
    )
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "torch":
            for name, real, fake in replaced:
                if vars(module).get(name) is real:
                    setattr(module, name, fake)


def _no_network(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: Python's own connections fail; those inside this machine by path do not."""
    if event in ("socket.connect", "socket.sendto") and isinstance(args[1], str | bytes):
        return
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        raise PermissionError("there is no network while a script is profiled")


def _one_line(error: BaseException, script: str) -> str:
    text = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    line = type(error).__name__
    if text:
        line += f": {text[0]}"
    elif frames:  # such as an assertion, whose condition says more than its name
        line += f": {frames[-1].line}"
        if frames[-1].filename != script:
            line += f" in {'/'.join(Path(frames[-1].filename).parts[-3:])}:{frames[-1].lineno}"
    if error.__cause__ is not None:
        line += f", caused by {_one_line(error.__cause__, '')}"
    own = [frame for frame in frames if frame.filename == script]
    return f"{line} (line {own[-1].lineno})" if own else line


if __name__ == "__main__":
    main(Path(sys.argv[1]))
