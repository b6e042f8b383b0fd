"""One repetition of a fault of benchmarks/faults.py: inject, watch, repair, count what is left."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fault_injection.checked_job import CheckedJob
from fault_injection.fault_list import SILENCE_LIMIT_S, Fault, Scene
from torch_topoopt.fabric.netns import kernel as netns_kernel

if TYPE_CHECKING:
    import random

    from fault_injection.fault_list import Undo
    from fault_injection.strangers import StrangersAtTheStart
    from harness.settings import Setting

GOES_ON, ENDS, STALLS, HANGS = "goes on", "error", "stalls until repair", "hangs"
_LIMIT_S = 60.0  # of a collective
_GLOO_END_LIMIT_S = 3.0  # where gloo waits for it, as a rule
_NOTICE_S = 10.0
_ON_S = {"topoopt": 15.0, "gloo": 2.0}  # for the next steps while the fault lasts
_REPAIR_S = 30.0
_END_S = 15.0  # for an error on all ranks, beyond the limits that are set
_LEFT_S = 7.0  # for connections and processes that are about to end
_MOST_WAIT_S = 0.4  # before a fault
_SLOW_STEPS = 6
_CALLED_GONE = re.compile(r"\branks? [\d, ]+ (is|are) gone\b")
_UNHARMED_STEPS = 6  # after these, an error will not come


@dataclass
class Trial:
    """What one repetition was like. Seconds are from the moment of the fault.

    `detected_s`: until the first line or error that says so; `over_s`: until every rank has done a
    step that began after the fault, or has raised. `slower`: the time of a step while the fault
    lasts, relative to the usual one. `false_gone`: ranks that called a living rank gone.
    """

    outcome: str
    detected_s: float | None = None
    over_s: float | None = None
    slower: float | None = None
    said: str = ""
    wrong: int = 0
    false_gone: int = 0
    processes: int = 0
    namespaces: int = 0
    descriptors: int = 0
    memory_bytes: int = 0
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trials:
    """Repetitions on one fabric; a job is used for all faults that it survives. A context."""

    def __init__(self, setting: Setting, chance: random.Random) -> None:
        self._setting = setting
        self._chance = chance
        self._job: CheckedJob | None = None
        assert setting.fabric is not None, "a fabric"
        self._fabric = setting.fabric.layout.name
        self._namespaces = set(netns_kernel.of_fabric(self._fabric))
        setting.environment["TOPOOPT_SILENCE_LIMIT_S"] = f"{SILENCE_LIMIT_S:g}"

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *failure: object) -> None:
        self._drop()

    def run(self, fault: Fault, backend: str) -> Trial:
        """Raises UnavailableError, and RuntimeError where the fault could not be injected."""
        if fault.at_start is not None:
            return self._run_at_start(fault, backend)
        limit_s = _GLOO_END_LIMIT_S if backend == "gloo" and fault.ends else _LIMIT_S
        job = self._job_of(backend, min(limit_s, fault.limit_s or limit_s))
        job.pause(self._chance.uniform(0.0, _MOST_WAIT_S))
        trial = _Watched(fault, Scene(job, self._chance)).trial()
        return self._count(fault, trial, job)

    def _run_at_start(self, fault: Fault, backend: str) -> Trial:
        """The fault is there from before the ranks meet until the job runs."""
        begin = fault.at_start
        assert begin is not None
        self._drop()
        at = time.monotonic()
        self._job = job = CheckedJob(self._setting, backend, _LIMIT_S)
        strangers: list[StrangersAtTheStart] = []
        try:
            job.start(lambda: strangers.append(begin(sorted(self._namespaces))))
        except RuntimeError as error:
            trial = Trial(ENDS, detail=str(error))
        else:
            trial = Trial(GOES_ON, over_s=time.monotonic() - at, wrong=job.wrong)
        finally:
            for one in strangers:
                one.repair()
        if not all(one.visited for one in strangers):
            raise RuntimeError("no listener was found while the job started")
        return self._count(fault, trial, job)

    def _count(self, fault: Fault, trial: Trial, job: CheckedJob) -> Trial:
        """What is left behind."""
        if job.any_ended or trial.outcome == HANGS or not fault.leaves_no_trace:
            self._drop()
        trial.processes = self._left_processes(job)
        present = set(netns_kernel.of_fabric(self._fabric))
        trial.namespaces = len(present ^ self._namespaces)
        return trial

    def _job_of(self, backend: str, limit_s: float) -> CheckedJob:
        if self._job is not None and (self._job.backend, self._job.limit_s) != (backend, limit_s):
            self._drop()
        if self._job is None:
            self._job = CheckedJob(self._setting, backend, limit_s)
            self._job.start()
        return self._job

    def _drop(self) -> None:
        if self._job is not None:
            if self._job.any_ended:
                self._job.kill()
            else:
                self._job.stop()
            self._job = None

    def _left_processes(self, job: CheckedJob) -> int:
        """Those in the namespaces that are no ranks of the job."""
        ranks = {process.pid for process in job.running}
        deadline = time.monotonic() + _LEFT_S
        while left := set(netns_kernel.processes(self._namespaces)) - ranks:
            if time.monotonic() > deadline:
                break
            job.pump(0.05)
        return len(left)


class _Watched:
    """A fault under way, from the moment of its injection."""

    def __init__(self, fault: Fault, scene: Scene) -> None:
        self._fault = fault
        self._scene = scene
        self._job = scene.job
        self._first_event = len(self._job.events)
        self._wrong = self._job.wrong
        self._before = self._job.usage()
        self._at = 0.0

    def trial(self) -> Trial:
        undo: Undo | None = None
        self._at = time.monotonic()
        try:
            undo = self._fault.inject(self._scene)
            self._at = self._scene.injected_at or self._at
            trial = self._ended() if self._fault.ends else self._survived()
        finally:
            if undo is not None:
                undo.repair()
        if not self._fault.ends and trial.outcome in (GOES_ON, STALLS):
            self._recover(trial)
        if trial.detail and self._scene.chosen:
            trial.detail = f"{self._scene.chosen}: {trial.detail}"
        trial.wrong = self._job.wrong - self._wrong
        if not self._scene.dying:
            errors = (event.text for event in self._events() if event.is_error)
            trial.false_gone = sum(bool(_CALLED_GONE.search(text)) for text in errors)
        return trial

    def _survived(self) -> Trial:
        """While the fault lasts."""
        job, trial = self._job, Trial(GOES_ON)
        if job.backend == "topoopt" and self._fault.notice:
            job.wait(lambda: self._noticed() is not None or job.any_ended, _NOTICE_S)
        self._say(trial)
        if job.steps_done(2, _ON_S[job.backend]):
            trial.over_s = time.monotonic() - self._at
            job.pause(self._fault.settles_s)
            step_s = job.measure_steps(_SLOW_STEPS, _NOTICE_S)
            trial.slower = None if step_s is None else step_s / job.step_s
        elif not job.any_ended:
            trial.outcome = STALLS
        if job.any_ended:
            return self._ended()
        return trial

    def _recover(self, trial: Trial) -> None:
        """After the repair: all cables are back, and the ranks go on."""
        job = self._job
        back = job.wait(lambda: not job.has_lost_cables or job.any_ended, _REPAIR_S)
        on = job.steps_done(2, _REPAIR_S)
        if job.any_ended:
            self._raised(trial)
            return
        if not back or not on:
            trial.outcome = HANGS
            trial.detail = job.last_words()
            return
        if trial.over_s is None:
            trial.over_s = time.monotonic() - self._at
        job.wait(lambda: max(self._descriptors()) <= 0, _LEFT_S)
        trial.descriptors = max(0, *self._descriptors())
        after = job.usage().memory_bytes
        before = self._before.memory_bytes
        trial.memory_bytes = (sum(after.values()) - sum(before.values())) // len(before)

    def _descriptors(self) -> list[int]:
        now = self._job.usage().descriptors
        return [now[rank] - before for rank, before in self._before.descriptors.items()]

    def _ended(self) -> Trial:
        """All ranks that the fault leaves end by themselves."""
        job, dying, trial = self._job, self._scene.dying, Trial(ENDS)
        left = [process for process in job.ranks if process.rank not in dying]
        limit_s = _END_S + max(SILENCE_LIMIT_S, _GLOO_END_LIMIT_S)
        last = job.least_steps + _UNHARMED_STEPS

        def have_ended() -> bool:
            return all(process.exit_code is not None for process in left)

        ended = job.wait(lambda: have_ended() or job.least_steps >= last, limit_s)
        if ended and not have_ended():
            return Trial(GOES_ON, detail="no error")
        self._raised(trial)
        if not ended:
            trial.outcome = HANGS
            trial.detail = job.last_words()
        return trial

    def _raised(self, trial: Trial) -> None:
        """The errors of the ranks that are left; whether there is one of each."""
        trial.outcome = ENDS
        self._job.pump(0.0)
        dying = self._scene.dying
        errors = [e for e in self._events() if e.is_error and e.rank not in dying]
        if errors:
            trial.over_s = max(error.at for error in errors) - self._at
        self._say(trial)
        silent = {process.rank for process in self._job.ranks} - dying
        silent -= {error.rank for error in errors}
        codes = {process.exit_code for process in self._job.ranks if process.rank in silent}
        if errors and not self._fault.ends:
            trial.detail = self._job.last_words()
        elif silent:
            trial.detail = f"no error on ranks {sorted(silent)}, exit codes {codes}"

    def _say(self, trial: Trial) -> None:
        event = self._noticed()
        if event is not None:
            trial.detected_s = max(0.0, event.at - self._at)
            trial.said = event.text

    def _events(self) -> list[Any]:
        return self._job.events[self._first_event :]

    def _noticed(self) -> Any:
        """The first event of another rank that says what the fault promises; of gloo, any error."""
        promised = self._fault.notice.replace("{victim}", str(self._scene.victim))
        pattern = re.compile(promised if self._job.backend == "topoopt" else "")
        of_others = (e for e in self._events() if e.rank not in self._scene.dying)
        return (
            next((e for e in of_others if pattern.search(e.text)), None)
            if (promised or self._fault.ends)
            else None
        )
