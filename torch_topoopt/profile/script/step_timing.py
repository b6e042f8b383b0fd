"""The time of a script's step on this machine without its messages: all ranks at once."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.op_graph import GradientBuckets
from torch_topoopt.plan.codec import decode
from torch_topoopt.profile.script.document import CollectiveCall, CommunicationTrace
from torch_topoopt.profile.script.runner import ScriptError, World, start_child
from torch_topoopt.profile.script.step_events import CallWait, Computation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.processes.fork_server import ForkServer
    from torch_topoopt.profile.script.runner import TrainingScript
    from torch_topoopt.profile.script.step_events import StepEvent

DEFAULT_LIMIT_S = 120.0
_COMPUTATION = "computation"
_PHASES = ("forward", "backward", "rest")


@dataclass(frozen=True)
class StepTiming:
    """Seconds of a step on the average rank, as long as all ranks share this machine.

    `forward_s` and `backward_s` (with the loss) are those of the model; `rest_s` is what is beside
    them: data loading, optimizer, Python. `buckets` are those of DistributedDataParallel, None
    where the script has no such module. `steps` were timed on every rank, `ranks_at_once` of which
    the machine's processors can run at full speed. `events` has the typical step of each rank; its
    computation has a processor by itself.
    """

    steps: int
    ranks_at_once: int
    forward_s: float
    backward_s: float
    rest_s: float
    buckets: GradientBuckets | None
    events: tuple[tuple[StepEvent, ...], ...]

    @property
    def step_s(self) -> float:
        return self.forward_s + self.backward_s + self.rest_s

    @property
    def computation_s(self) -> float:
        """Processor time of the typical step, on the average rank."""
        computations = (e for events in self.events for e in events if isinstance(e, Computation))
        return sum(each.processor_s for each in computations) / len(self.events)


def time_steps(
    script: str,
    arguments: Sequence[str],
    *,
    world_size: int,
    ranks_per_server: int = 1,
    variables: Mapping[str, str] | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    server: ForkServer | None = None,
) -> StepTiming:
    """Runs `script` as all of `world_size` ranks at once for a few steps, without any message.

    A rank has the `variables` in its environment, and torchrun's own. Ranks that are more than the
    processors share them: a step takes a rank's processor time as many times longer, and what it
    waits for anything else. The script's output is dropped, and the processes that are left when
    the steps are timed, or after `limit_s`, are ended. PyTorch is imported by `server`, or by a
    process of its own.

    Raises ScriptError, in one line, if the script raises, ends before that, or takes too long.
    """
    world = World(world_size, ranks_per_server)
    job = {
        "script": script,
        "arguments": list(arguments),
        "environments": [world.environment(rank) for rank in range(world_size)],
    }
    with tempfile.TemporaryDirectory(prefix="topoopt-steps-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **(variables or {})}
        module = "torch_topoopt.profile.script.timed_child"
        process = start_child(module, folder, folder / "errors.log", environment, server)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ScriptError(f"{script}: too few steps within {limit_s:g} s") from None
        finally:
            process.kill_group()
        answers = [_answer(folder, script, rank) for rank in range(world_size)]
    return summed_up(answers, len(os.sched_getaffinity(0)))


def summed_up(answers: Sequence[dict[str, Any]], processors: int) -> StepTiming:
    """The timing of what the ranks wrote, which share so many processors."""
    share = max(1.0, len(answers) / processors)
    phases = {}
    for name in _PHASES:
        of_ranks = [_middle([_seconds(s, name, share) for s in a["steps"]]) for a in answers]
        phases[name] = statistics.fmean(of_ranks)
    found = answers[0]["buckets"]
    return StepTiming(
        steps=min(len(answer["steps"]) for answer in answers),
        ranks_at_once=processors,
        forward_s=phases["forward"],
        backward_s=phases["backward"],
        rest_s=phases["rest"],
        buckets=GradientBuckets(*found) if found else None,
        events=tuple(_typical_step(answer["events"]) for answer in answers),
    )


def trace_of(script: TrainingScript, timing: StepTiming) -> CommunicationTrace:
    """The typical step of every rank as a trace of one iteration."""
    ranks = tuple(range(len(timing.events)))
    calls = [
        event for events in timing.events for event in events if isinstance(event, CollectiveCall)
    ]
    return CommunicationTrace(
        version=CommunicationTrace.VERSION,
        script=script.name,
        arguments=script.arguments,
        world_size=len(ranks),
        ranks=ranks,
        iterations=1,
        calls=tuple(calls),
    ).validate()


def _typical_step(steps: Sequence[Sequence[Sequence[Any]]]) -> tuple[StepEvent, ...]:
    """The events of the most frequent kind of step, with the middle of their times."""
    kinds: dict[str, list[Sequence[Sequence[Any]]]] = defaultdict(list)
    for step in steps:
        kinds[json.dumps([event for event in step if event[0] != _COMPUTATION])].append(step)
    alike = max(kinds.values(), key=len)
    return tuple(_event(same) for same in zip(*alike, strict=True))


def _event(same: Sequence[Sequence[Any]]) -> StepEvent:
    """One event from the `same` one of several steps."""
    kind, *values = same[0]
    if kind == _COMPUTATION:
        _, processor_s, waiting_s = zip(*same, strict=True)
        return Computation(_middle(processor_s), max(0.0, _middle(waiting_s)))
    return CallWait(values[0]) if kind == "wait" else decode(CollectiveCall, values[0])


def _seconds(step: dict[str, Any], name: str, share: float) -> float:
    processor_s, waiting_s = step.get(name, (0.0, 0.0))
    return float(processor_s * share + max(0.0, waiting_s))


def _middle(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def _answer(folder: Path, script: str, rank: int) -> dict[str, Any]:
    path = folder / f"{rank}.json"
    if not path.exists():
        log = folder / f"{rank}.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        last = "".join(text.strip().splitlines()[-1:])
        raise ScriptError(f"{script}, rank {rank}: ended early: {last}")
    answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "error" in answer:
        raise ScriptError(f"{script}, rank {rank}: {answer['error']}")
    return answer
