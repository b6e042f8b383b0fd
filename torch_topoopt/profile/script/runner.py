"""Runs the script once per profiled rank, each in a process of its own, and collects the calls."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.processes.fork_server import ForkServerError, shared
from torch_topoopt.processes.scratch import scratch_folder
from torch_topoopt.profile.script.document import CommunicationTrace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.processes.fork_server import ForkedProcess, ForkServer

LEAST_ITERATIONS = 2  # the first one also sets up
MOST_ITERATIONS = 16  # while they are quick, to find those that repeat
DEFAULT_TIME_LIMIT_S = 120.0
ALL_RANKS_UP_TO = 8  # ranks that are all profiled by default


@dataclass(frozen=True)
class TrainingScript:
    """The script of each rank: a file, or with `module` a module's name, as after `python -m`."""

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False


@dataclass(frozen=True)
class World:
    """`size` ranks on servers with `ranks_per_server` ranks each."""

    size: int
    ranks_per_server: int = 1

    def environment(self, rank: int) -> dict[str, str]:
        """A rank's environment without a network: variables of torchrun and of this package."""
        per_server = self.ranks_per_server
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(rank % per_server),
            "LOCAL_WORLD_SIZE": str(per_server),
            "GROUP_RANK": str(rank // per_server),
            "GROUP_WORLD_SIZE": str(self.size // per_server),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "topoopt-trace",
            "TOPOOPT_TRACE": "1",  # scripts can detect a trace
            "WANDB_MODE": "disabled",  # a trace is no run
        }


@dataclass(frozen=True)
class TraceLimits:
    """Limits of the trace of a script: `time_s` seconds, and `memory_bytes` at any time (None:
    no limit). `time_option` is what the user raises the first with."""

    time_s: float
    memory_bytes: int | None = None
    time_option: str = "--trace-timeout"


_RANK_LIMITS = TraceLimits(DEFAULT_TIME_LIMIT_S, time_option="--time-limit")


class ScriptError(Exception):
    """The script cannot be profiled; one line that names it."""


def trace_script(
    script: TrainingScript,
    world: World,
    *,
    ranks: Sequence[int] | None = None,
    iterations: int | None = None,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    limits: TraceLimits | None = None,
    server: ForkServer | None = None,
) -> CommunicationTrace:
    """Runs `script` for `iterations` iterations as each of `ranks`, one after the other.

    An iteration ends when every optimizer has stepped once. By default there are two, and up to 16
    as long as the further ones are quick. By default the ranks are all of them
    in a world of at most 8, else rank 0. `time_limit_s` is per rank. torch.compile leaves the model
    as it is. The script's output is dropped. With `limits`, which are for all ranks together,
    ranks beyond the first are only run where the first calls anything but collectives of the whole
    world, in which all ranks do the same. PyTorch is imported by `server`, or by a process of its
    own.

    Raises ScriptError if the script raises, exits or ends before that, or takes too long or too
    much memory, and ValueError for arguments that make no sense.
    """
    chosen = _ranks(ranks, world.size)
    if iterations is not None and iterations < LEAST_ITERATIONS:
        raise ValueError(
            f"iterations: must be at least 2 (got {iterations}), as the first one also sets up"
        )
    if not time_limit_s > 0:
        raise ValueError(f"time_limit_s: {time_limit_s} is not above 0")
    if not script.module and not Path(script.name).is_file():
        raise ScriptError(f"script: {script.name} is no file; name a training script")
    of_rank = limits or replace(_RANK_LIMITS, time_s=time_limit_s)
    answers = run_jobs(
        [job(script, world, rank, iterations=iterations, limits=of_rank) for rank in chosen],
        stop_when_alike=limits is not None,
        total_limit_s=limits.time_s if limits else None,
        server=server,
    )
    return trace_of_answers(script, world, dict(zip(chosen, answers, strict=False)))


def trace_of_answers(
    script: TrainingScript, world: World, answers: dict[int, dict[str, Any]]
) -> CommunicationTrace:
    """The calls of all `answers`, by rank; raises ScriptError for the first that is an error.

    Iterations between the first and those that repeat are left out.
    """
    for rank, answer in answers.items():
        if "error" in answer:
            raise ScriptError(f"{script.name}, rank {rank}: {answer['error']}")
    count = min(answer["iterations"] for answer in answers.values())
    calls = [call for answer in answers.values() for call in answer["calls"]]
    period = repeated_iterations(calls, count)
    left_out = count - period - 1
    kept = [
        call | {"iteration": max(0, call["iteration"] - left_out)}
        for call in calls
        if call["iteration"] == 0 or left_out < call["iteration"] < count
    ]
    # Through JSON, as the calls came, so that the strict reader checks what the processes wrote.
    fields = {
        "version": CommunicationTrace.VERSION,
        "script": script.name,
        "arguments": list(script.arguments),
        "world_size": world.size,
        "ranks": list(answers),
        "iterations": period + 1,
        "period": period,
        "calls": kept,
    }
    return CommunicationTrace.from_json(json.dumps(fields))


def repeated_iterations(calls: Sequence[dict[str, Any]], count: int) -> int:
    """How many of the last of `count` iterations repeat the ones before them; 1 if none do.

    All but the first if every iteration has other calls, so that their mean says most.
    """
    found: list[list[str]] = [[] for _ in range(count)]
    for call in calls:
        if call["iteration"] < count:
            found[call["iteration"]].append(json.dumps(call | {"iteration": 0}))
    later = list(map("".join, found[1:]))
    lengths = {}
    for period in range(1, len(later) // 2 + 1):
        alike = [a == b for a, b in zip(reversed(later), reversed(later[:-period]), strict=False)]
        length = period + (alike.index(False) if False in alike else len(alike))
        if length >= 2 * period:
            lengths[period] = length
    if lengths:
        return max(lengths, key=lambda period: lengths[period])
    return len(later) if len(set(later)) == len(later) > 2 else 1


def _ranks(ranks: Sequence[int] | None, world_size: int) -> list[int]:
    if world_size < 2:
        raise ValueError(f"world_size: must be at least 2 (got {world_size})")
    if ranks is None:
        return list(range(world_size)) if world_size <= ALL_RANKS_UP_TO else [0]
    for rank in ranks:
        if not 0 <= rank < world_size:
            raise ValueError(f"ranks: {rank} is not a rank of a world of {world_size}")
    if not ranks:
        raise ValueError("ranks: expected at least one")
    return sorted(set(ranks))


def job(
    script: TrainingScript,
    world: World,
    rank: int,
    *,
    iterations: int | None = None,
    limits: TraceLimits = _RANK_LIMITS,
) -> dict[str, Any]:
    """One rank of one script, for child.py; `limits` are for this rank alone."""
    most = MOST_ITERATIONS if iterations is None else iterations
    return {
        "script": script.name,
        "arguments": list(script.arguments),
        "rank": rank,
        "world_size": world.size,
        "iterations": LEAST_ITERATIONS if iterations is None else iterations,
        "most_iterations": most,
        "time_limit_s": limits.time_s,
        "memory_bytes": limits.memory_bytes,
        "time_option": limits.time_option,
        "module": script.module,
        "environment": world.environment(rank),
    }


def run_jobs(
    jobs: Sequence[dict[str, Any]],
    *,
    stop_at_error: bool = True,
    stop_when_alike: bool = False,
    total_limit_s: float | None = None,
    server: ForkServer | None = None,
) -> list[dict[str, Any]]:
    """The result of each job, in order: {"iterations": ..., "calls": ...} or {"error": ...}.

    The first error ends all others, whose results are empty. With `stop_when_alike` there is only
    the first, if all others must do the same.
    `total_limit_s` is for all of them together. Raises ScriptError.
    """
    todo = {
        "stop_at_error": stop_at_error,
        "stop_when_alike": stop_when_alike,
        "total_limit_s": total_limit_s,
        "jobs": list(jobs),
    }
    with scratch_folder() as folder:
        (folder / "jobs.json").write_text(json.dumps(todo), encoding="utf-8")
        errors = folder / "errors.log"
        process = start_child(
            "torch_topoopt.profile.script.child", folder, errors, os.environ, server
        )
        try:
            process.wait()  # it limits the time of each job itself
        finally:
            process.kill_group()
        paths = [folder / f"{i}.json" for i in range(len(jobs))]
        answers = [json.loads(path.read_text()) if path.exists() else {} for path in paths]
        while answers and not answers[-1]:
            del answers[-1]
        if process.returncode != 0 or not answers:
            text = errors.read_text(encoding="utf-8", errors="replace")
            last = "".join(text.strip().splitlines()[-1:])
            raise ScriptError(f"the process that profiles ended early: {last}")
    return answers


def start_child(
    module: str,
    folder: Path,
    errors: Path,
    environment: Mapping[str, str],
    server: ForkServer | None,
) -> ForkedProcess:
    """Runs `python -m MODULE FOLDER`, which leaves its messages in `errors`.

    Without a `server` one is started, which ends when the process runs. Raises ScriptError.
    """
    with (
        shared(server) as fork_server,
        open(os.devnull, "r+b") as nothing,
        errors.open("wb") as log,
    ):
        streams = (nothing.fileno(), nothing.fileno(), log.fileno())
        try:
            return fork_server.start(["-m", module, str(folder)], environment, streams=streams)
        except ForkServerError as error:
            raise ScriptError(str(error)) from None
