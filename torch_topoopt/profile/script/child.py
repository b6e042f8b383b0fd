"""Runs the user's script as ranks of a world without the others, and records their calls.

`python -m torch_topoopt.profile.script.child FOLDER`, started by runner.py from a fork server.
FOLDER/jobs.json is an object {"stop_at_error": ..., "stop_when_alike": ..., "total_limit_s": ...,
"jobs": [...]}; job i leaves FOLDER/i.json, which is {"iterations": n, "calls": [...]} or {"error":
"one line"}, and what the script prints in FOLDER/i.log. Each job is a fork of this process, in
which the script runs as __main__. All of them end with the launcher, however that ends.

Every process group is PyTorch's fake one, for any backend of the script: a collective leaves
its tensors as they are, except that gathered ones are filled with this rank's own, and received
ones with 1. Integers that ranks send to each other do arrive, and a rank waits for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import runpy
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
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
from torch_topoopt.profile.script import checkpoints, replicas
from torch_topoopt.profile.script.integer_messages import Broker, Rank, RankChannel
from torch_topoopt.profile.script.memory import used_bytes
from torch_topoopt.profile.script.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


_LOOK_S = 0.2  # interval of checks of a job's memory


class EnoughSeen(BaseException):
    """Ends the script after its last iteration; no `except Exception` stops it."""


class IterationCounter:
    """Follows the optimizers: an iteration has ended when each of them has stepped once.

    How many there are is known when one steps for the second time. From `wanted` iterations on it
    calls `seen` with the calls, each with its iteration. It raises EnoughSeen once
    `continues(iteration)` is false.
    """

    def __init__(
        self,
        recorder: Recorder,
        wanted: int,
        seen: Callable[[int, list[Any]], None],
        continues: Callable[[int], bool],
    ) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._seen = seen
        self._continues = continues
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
        iterations, further = divmod(len(self._ends), len(self._optimizers))
        if not self._all_known or further or iterations < self._wanted:
            return
        self._seen(iterations, self._calls())
        if not self._continues(iterations):
            self.finished = True
            raise EnoughSeen

    @property
    def enough(self) -> bool:
        """Whether the calls of all wanted iterations have been seen."""
        return self._all_known and self.steps >= self._wanted * len(self._optimizers)

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
    """Runs all jobs: the next one starts when each before it has ended or waits for a message."""
    todo = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    jobs = _LiveJobs(folder, todo)
    for i, job in enumerate(todo["jobs"]):
        jobs.start(i)
        if not jobs.advance():
            return
        if todo["stop_when_alike"] and i == 0 and not jobs.live and _speaks_for_all(folder, job):
            return
    while jobs.live:
        jobs.broker.give_up()
        if not jobs.advance():
            return


@dataclasses.dataclass
class _LiveJob:
    """A job that has started. `left_s` does not fall while it waits for a message."""

    number: int
    job: dict[str, Any]
    pid: int
    descriptor: int
    left_s: float


class _LiveJobs:
    """The jobs that have started and not ended yet, and their messages."""

    def __init__(self, folder: Path, todo: dict[str, Any]) -> None:
        self.live: dict[Rank, _LiveJob] = {}
        self._folder = folder
        self._jobs = todo["jobs"]
        self._stop_at_error = todo["stop_at_error"]
        limit_s = todo["total_limit_s"]
        self._deadline = float("inf") if limit_s is None else time.monotonic() + limit_s
        self.broker = Broker([_rank_of(job) for job in self._jobs])

    def start(self, i: int) -> None:
        """Starts job i in a process of its own."""
        job, parent = self._jobs[i], os.getpid()
        rank = _rank_of(job)
        channel = self.broker.connect(rank)
        pid = os.fork()
        if pid == 0:
            die_with(parent)
            output = os.open(self._folder / f"{i}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            try:
                run(job, self._folder / f"{i}.json", channel)
                sys.stdout.flush()
            finally:
                os._exit(0)  # without waiting for threads that the script left behind
        self.live[rank] = _LiveJob(i, job, pid, os.pidfd_open(pid), job["time_limit_s"])

    def advance(self) -> bool:
        """Until each has ended or waits for a message. False after an error that ends all jobs."""
        while active := [rank for rank in self.live if rank not in self.broker.waiting]:
            since = time.monotonic()
            ready = wait(
                [
                    *(self.live[rank].descriptor for rank in active),
                    *(self.broker.connection(rank) for rank in active),
                ],
                max(0.0, min(_LOOK_S, *(self._left_s(rank) for rank in active))),
            )
            for rank in active:
                self.live[rank].left_s -= time.monotonic() - since
                if self.broker.connection(rank) in ready and self.broker.serve(rank):
                    continue
                ending = self._ending(rank, self.live[rank].descriptor in ready)
                if ending is not None and not self._ended(rank, ending):
                    return False
        return True

    def _left_s(self, rank: Rank) -> float:
        return min(self.live[rank].left_s, self._deadline - time.monotonic())

    def _ending(self, rank: Rank, has_ended: bool) -> int | str | None:
        """The exit code of a job (negative: its signal), or which limit it was killed at."""
        one = self.live[rank]
        memory_bytes = one.job["memory_bytes"]
        over = None
        if memory_bytes is not None and not has_ended:
            used = sum(used_bytes(other.pid) for other in self.live.values())
            over = "memory" if used > memory_bytes else None
        if over is None and self._left_s(rank) <= 0 and not has_ended:
            over = "time"
        if over is None and not has_ended:
            return None
        if over:
            os.kill(one.pid, signal.SIGKILL)
        _, status = os.waitpid(one.pid, 0)
        return over or os.waitstatus_to_exitcode(status)

    def _ended(self, rank: Rank, ending: int | str) -> bool:
        """Notes the end of a job; False for an error that ends all of them."""
        one = self.live.pop(rank)
        os.close(one.descriptor)
        self.broker.ended(rank)
        result = self._folder / f"{one.number}.json"
        if not result.exists():
            log = self._folder / f"{one.number}.log"
            write_result(result, {"error": _why_none(ending, one.job, log)})
        if not self._stop_at_error or "error" not in _answer(result):
            return True
        for other in self.live.values():
            os.kill(other.pid, signal.SIGKILL)
            os.waitpid(other.pid, 0)
        return False


def _rank_of(job: dict[str, Any]) -> Rank:
    return Rank(json.dumps([job["script"], job["arguments"], job["world_size"]]), job["rank"])


def _answer(result: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return answer


def _speaks_for_all(folder: Path, job: dict[str, Any]) -> bool:
    """Whether all ranks must make the same calls as the first after the first iteration: only
    collectives of the whole world with equal parts."""
    later = [c for c in _answer(folder / "0.json").get("calls", ()) if c["iteration"] > 0]
    return all(
        len(call["group"]) == job["world_size"]
        and call["operation"] not in ("Send", "Recv")
        and len(set(call["part_bytes"])) < 2
        for call in later
    )


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


def run(job: dict[str, Any], result: Path, channel: RankChannel) -> None:
    """Runs the script as one rank and writes `result`; how it ends never matters after that."""
    script = str(job["script"])
    os.environ.update(job["environment"], TORCHDYNAMO_DISABLE="1")
    torch._dynamo.config.disable = True
    if "OMP_NUM_THREADS" not in os.environ:  # ranks are run one after the other
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    if job["memory_bytes"] is not None:
        with contextlib.suppress(OSError):  # the out-of-memory killer's first choice
            Path("/proc/self/oom_score_adj").write_text("1000")
    recorder = Recorder(job["rank"], channel)
    iterations = IterationCounter(
        recorder,
        job["iterations"],
        lambda count, calls: write_result(result, {"iterations": count, "calls": calls}),
        lambda count: count < job["most_iterations"] and channel.continues(count),
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
    if not iterations.enough:
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
    replicas.install(rank, world_size)
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

    # By this name only: what PyTorch's own groups are made of keeps the fake one.
    dist.get_backend = lambda group=None: "topoopt"
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
