"""torch's elastic agent for one attempt of a job: what failed ends it, and we start the next.

torch restarts ranks on the nodes and with the environment of before. A job here may go on with
fewer servers, on another plan and other links, so the loop over attempts is that of restarts.py,
and the agent only says in torchrun's variables which attempt this is.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.runtime.hosts_attempt import HostsAttempt


@dataclass
class Attempt:
    """Start number `number` (0: the first) of the ranks, of at most `most` + 1.

    `stopped` are the ranks that were found stopped (SIGSTOP) when others failed. On several hosts
    `hosts` is the rendezvous of the agents, and ends the attempt on all of them.
    """

    number: int
    most: int
    hosts: HostsAttempt | None = None
    stopped: list[int] = field(default_factory=list)


class EndedElsewhere(Exception):  # noqa: N818 - the error is another host's
    """Ranks of another host have failed, so those of this one were ended."""


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
            self._remaining_restarts = attempt.most - attempt.number  # hence the variable

        def _monitor_workers(self, worker_group: Any) -> Any:
            if any(_has_failed(worker.id) for worker in worker_group.workers):
                if attempt.hosts is not None:
                    attempt.hosts.notice(failed=True)
                attempt.stopped += _kill_stopped(worker_group.workers)
            result = super()._monitor_workers(worker_group)
            if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
                self._remaining_restarts = 0  # the agent ends with this attempt
            return result

        def _restart_workers(self, worker_group: Any) -> None:
            if attempt.hosts is not None:
                attempt.hosts.notice(failed=False)
                raise EndedElsewhere
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


def _kill_stopped(workers: list[Any]) -> list[int]:
    """The ranks that are stopped; they would not react to the agent's SIGTERM, so they get SIGKILL.

    Without that the agent would wait for them for half a minute.
    """
    found = []
    for worker in workers:
        if _state(worker.id) == "T":
            found.append(int(worker.global_rank))
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.id, signal.SIGKILL)
    return found


def _has_failed(process: int) -> bool:
    """Whether this child has ended, and not well; it is left for the agent to collect."""
    try:
        found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None and (found.si_code != os.CLD_EXITED or found.si_status != 0)


def _state(process: int) -> str:
    """That of proc(5): "T" is stopped; "" where there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
