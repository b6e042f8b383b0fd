"""torch's elastic agent for one attempt of a job, which ends with a failure or to grow.

torch restarts ranks on the same nodes with the same environment. A job here may continue with fewer
or more servers, on another plan and other links. So in_progress.py has the loop over attempts, and
the agent only sets torchrun's variables for this one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision.statuses import read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.launcher.rendezvous.hosts_attempt import HostsAttempt
    from torch_topoopt.supervision.job_files import JobFolder

_LOOK_S = 0.05
_NOTICE_S = 1.0  # for the other ranks to notice a failure and to dump
_DUMP_S = 3.0  # for the others, after a request to dump


@dataclass
class Attempt:
    """A start of the ranks after `number` restarts, of at most `most`.

    `stopped` are the ranks found stopped (SIGSTOP) when others failed, `ended_well` those with exit
    code 0 by then; `others` is the number of ranks that ended because of the failed ones. On
    several hosts `hosts` is the rendezvous of the agents, and ends the attempt on all of them.
    Ranks leave their dumps in `job`. `grows` is called while all ranks are well: whether they are
    stopped now for an attempt on more servers. `interrupted_s` is the monotonic time when this
    host's ranks were ended while they were well, if so.
    """

    number: int
    most: int
    job: JobFolder
    hosts: HostsAttempt | None = None
    stopped: list[int] = field(default_factory=list)
    others: int = 0
    ended_well: list[int] = field(default_factory=list)
    grows: Callable[[], bool] = bool
    interrupted_s: float | None = None


class AttemptInterrupted(Exception):  # noqa: N818 - no error of this host
    """Ranks of another host have failed, or the job grows: this host's ranks were ended."""


@contextlib.contextmanager
def attempting(attempt: Attempt) -> Iterator[None]:
    """Inside, elastic_launch makes one attempt: TORCHELASTIC_RESTART_COUNT is its number."""
    from torch.distributed.elastic.agent.server.api import WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.launcher import api

    class OneAttempt(LocalElasticAgent):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            if attempt.hosts is not None:
                spec = options["spec"]
                spec.rdzv_handler, spec.master_addr, spec.master_port = attempt.hosts, None, None
            super().__init__(*arguments, **options)
            self._remaining_restarts = attempt.most - attempt.number  # sets torchrun's variable

        def _monitor_workers(self, worker_group: Any) -> Any:
            if any(_has_failed(worker.id) for worker in worker_group.workers):
                if attempt.hosts is not None:
                    _notice_failure(attempt, attempt.hosts)
                attempt.stopped += _kill_stopped(worker_group.workers)
                _await_dumps(attempt, worker_group.workers)
            result = super()._monitor_workers(worker_group)
            if result.state == WorkerState.FAILED:  # all have ended
                here = [int(worker.global_rank) for worker in worker_group.workers]
                attempt.ended_well = [rank for rank in here if rank not in result.failures]
            if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                self._remaining_restarts = 0  # the agent ends with this attempt
            if result.state == WorkerState.HEALTHY and attempt.grows():
                _interrupt(attempt)
            return result

        def _restart_workers(self, worker_group: Any) -> None:
            if attempt.hosts is not None:
                attempt.hosts.notice(failed=False)
                if attempt.hosts.has_failed():
                    _await_dumps(attempt, worker_group.workers)
                _interrupt(attempt)
            super()._restart_workers(worker_group)

        def _exit_barrier(self) -> None:
            if attempt.hosts is None:  # else the launchers wait for each other
                super()._exit_barrier()

    before = api.LocalElasticAgent
    api.LocalElasticAgent = OneAttempt
    try:
        yield
    finally:
        api.LocalElasticAgent = before


def _interrupt(attempt: Attempt) -> NoReturn:
    attempt.interrupted_s = time.monotonic()
    raise AttemptInterrupted


def _notice_failure(attempt: Attempt, hosts: HostsAttempt) -> None:
    """A failed rank ends the attempt on all hosts. If the job grows, it misses a stopped rank."""
    grows = hosts.grown() is not None
    hosts.notice(failed=not grows)
    if grows:
        _interrupt(attempt)


def _kill_stopped(workers: list[Any]) -> list[int]:
    """The stopped ranks; they would not react to the agent's SIGTERM, so they get SIGKILL.

    Without that the agent would wait for them for half a minute.
    """
    found = []
    for worker in workers:
        if _state(worker.id) == "T":
            found.append(int(worker.global_rank))
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.id, signal.SIGKILL)
    return found


def _await_dumps(attempt: Attempt, workers: list[Any]) -> None:
    """Waits until the remaining ranks have dumped their flight recorders: torch ends them next.

    They dump when they notice the failure, and otherwise on request.
    """
    job = attempt.job
    late = _until_none(_without_dump, attempt, workers, _NOTICE_S)
    if not late:
        return
    before = {worker.id: _changed_ns(job, attempt, worker) for worker in late}
    with contextlib.suppress(OSError):  # the launcher warns if its folder is broken
        job.ask_for_dumps("another rank has failed")
        _until_none(
            lambda attempt, worker: _changed_ns(job, attempt, worker) == before[worker.id],
            *(attempt, late, _DUMP_S),
        )


def _until_none(
    holds: Callable[[Attempt, Any], bool], attempt: Attempt, workers: list[Any], limit_s: float
) -> list[Any]:
    """Waits while the condition holds for a running worker; returns those that still fulfil it."""
    deadline = time.monotonic() + limit_s
    while True:
        workers = [w for w in workers if not _has_ended(w.id) and holds(attempt, w)]
        if not workers or time.monotonic() >= deadline:
            return workers
        time.sleep(_LOOK_S)


def _without_dump(attempt: Attempt, worker: Any) -> bool:
    """Whether this rank is in a job, and has not yet noticed its failure."""
    try:
        status = read_status(attempt.job.status(int(worker.global_rank)))
    except DocumentError:
        return False
    return status.attempt == attempt.number and not status.failure


def _changed_ns(job: JobFolder, attempt: Attempt, worker: Any) -> int:
    try:
        return job.dump(attempt.number, int(worker.global_rank)).stat().st_mtime_ns
    except OSError:
        return 0


def _has_ended(process: int) -> bool:
    return _ended(process) is not None


def _has_failed(process: int) -> bool:
    """Whether this child has ended with a failure."""
    found = _ended(process)
    return bool(found) and found != (os.CLD_EXITED, 0)


def _ended(process: int) -> tuple[int, ...] | None:
    """The end of this child, (code, status), without reaping it, which the agent does; () if it is
    reaped, None if it runs."""
    try:
        found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ()
    return None if found is None else (found.si_code, found.si_status)


def _state(process: int) -> str:
    """The state of proc(5): "T" is stopped; "" without a process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
