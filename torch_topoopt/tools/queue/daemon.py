"""The daemon of a shared cluster: repeatedly advances every job by one step.

`step` reads the database and acts on the state of each job (see `jobs`). It keeps no essential
state: after a kill, the next daemon starts with `recover`, and continues from the database, the
switches, and the jobs' processes, which outlive it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.switches.selector import flip
from torch_topoopt.fabric.switches.switch import SwitchError
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Plan
from torch_topoopt.tools.queue import jobs as j
from torch_topoopt.tools.queue.launching import commands_of, environment_of, prepare_folder
from torch_topoopt.tools.queue.mesh_places import MeshPlaces, boards_text
from torch_topoopt.tools.queue.partition import (
    cables_of,
    lay_out,
    partition,
    selected_ports,
    sides_of,
    unheld,
)
from torch_topoopt.tools.queue.scheduler import Waiting, assign, holdings_of, may_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.switches.selector import Selector
    from torch_topoopt.tools.queue.jobs import QueuedJob
    from torch_topoopt.tools.queue.processes import LocalProcesses
    from torch_topoopt.tools.queue.scheduler import Holding
    from torch_topoopt.tools.queue.store import Store
    from torch_topoopt.tools.queue.switch_work import Changes, SwitchWork

_MOST_RETRY_S = 60.0
_START_AGAIN_S = 10.0  # a supervisor without an identity file by then has failed
_KILL_S = 30.0  # from the request to end until remaining processes are killed


class Daemon:
    """`retry_s`: after a first failure; twice as long after each further one, up to a minute.

    `check_s`: how often the circuits of jobs are compared with the switches. `topoopt`: the words
    that start it on this machine.
    """

    def __init__(
        self,
        store: Store,
        cluster: ClusterFile,
        work: SwitchWork,
        selector: Selector | None,
        processes: LocalProcesses,
        *,
        topoopt: Sequence[str],
        retry_s: float = 1.0,
        check_s: float = 30.0,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._work = work
        self._selector = selector
        self._processes = processes
        self._topoopt = tuple(topoopt)
        self._retry_s = retry_s
        self._check_s = check_s
        self._pending: dict[int, tuple[str, Future[Changes]]] = {}
        self._started_at: dict[int, float] = {}  # monotonic; when a supervisor was started
        self._stopped_at: dict[int, float] = {}
        self._checked_at: dict[int, float] = {}
        self._unverified: set[int] = set()  # ready before this daemon started; not checked yet
        self._sweep: Future[Changes] | None = None
        self._sweep_at: float | None = None
        self._sweep_failures = 0
        self._mesh = MeshPlaces.of(cluster)
        self._proposed: tuple[int, frozenset[int]] | None = None  # job, and those that hold servers
        self._mark = store.meta("id") or ""
        self._steps: dict[str, Callable[[QueuedJob], bool]] = {
            j.PREPARING: self._prepare,
            j.READY: self._wait_for_servers,
            j.STARTING: self._start,
            j.RUNNING: self._watch,
            j.STOPPING: self._stop,
            j.CLEARING: self._clear,
        }

    def recover(self) -> None:
        """Logs the last daemon's jobs, and schedules their checks. Call once, before `step`."""
        self._store.log(None, f"the daemon has started (process {os.getpid()})")
        for job in self._store.jobs(ended=False):
            if job.state != j.QUEUED:  # nothing was begun of a job in the queue
                self._store.log(job.id, f"recovered: {self._found(job)}")
            if job.state == j.READY:
                self._unverified.add(job.id)
        self._sweep_at = 0.0

    def step(self) -> bool:
        """Acts on every job once; returns whether any advanced."""
        self._processes.reap()
        progress = self._sweep_sockets()
        for job in self._store.jobs(ended=False):
            if job.state in self._steps:
                progress |= self._steps[job.state](job)
        return self._schedule() or progress

    def _found(self, job: QueuedJob) -> str:
        if job.state in (j.PREPARING, j.CLEARING):
            return f"it was {job.state}; the rest of the work on its switches is done again"
        if job.state == j.READY:
            return "it was ready; its circuits are being checked"
        identity = self._processes.find(self._folder(job))
        if identity is None:
            return f"it was {job.state}, and no process of it was started yet"
        if self._processes.ended(self._folder(job)):
            return f"it was {job.state}, and ended while no daemon ran"
        if identity.alive:
            return f"it was {job.state}; its process {identity.pid} runs on and is adopted"
        return f"it was {job.state}, and its process {identity.pid} is gone"

    def _schedule(self) -> bool:
        jobs = self._store.jobs(ended=False)
        queue = [Waiting(job.id, job.servers, job.ports) for job in jobs if job.state == j.QUEUED]
        by_id = {job.id: job for job in jobs}
        progress = False
        choose = None if self._mesh is None else self._mesh.choose
        assigned = assign(sides_of(self._cluster), holdings_of(jobs), queue, choose)
        if self._mesh is not None and not assigned and queue:
            self._propose(self._mesh, queue[0], holdings_of(jobs))
        for found in assigned:
            job = by_id[found.job]
            try:
                plan = Plan.from_json(job.plan)
                layout = lay_out(plan, self._cluster, found.servers, found.side)
            except (FabricError, ValueError) as error:
                return self._store.move(job, j.FAILED, f"failed: {error}", problem=str(error))
            names = ", ".join(found.servers)
            text = f"gets {names} on the {found.side} side; its circuits are being set"
            if self._mesh is not None:
                text = f"gets {boards_text(self._mesh.sub_mesh(found.servers))}: {names}"
            progress |= self._store.assign(job, layout, j.PREPARING, text)
        return progress

    def _propose(self, mesh: MeshPlaces, waiting: Waiting, holdings: Sequence[Holding]) -> None:
        """Logs once which jobs would have to move for the first of the queue."""
        state = waiting.job, frozenset(holding.job for holding in holdings)
        if state == self._proposed:
            return
        self._proposed = state
        servers = {holding.job: holding.servers for holding in holdings}
        plan = mesh.moves_for(servers, waiting.job, waiting.servers)
        moved = [move for move in plan.moves if move.before is not None]
        if not moved:
            return
        moves = "; ".join(f"job {m.job.name} to {boards_text(m.after)}" for m in moved)
        cost = mesh.cost()
        self._store.log(
            waiting.job,
            f"no sub-mesh is free; it would start if these moved ({plan.seconds(cost):.3g} s with "
            f"{cost.checkpoint_bytes / 2**30:g} GiB of an accelerator): {moves}",
        )

    def _prepare(self, job: QueuedJob) -> bool:
        if job.cancelled:
            return self._leave(job)
        changes = self._changed(job, "set")
        if changes is None:
            return False
        self._checked_at[job.id] = time.monotonic()
        light = f"its circuits carry light ({_count(changes)})"
        return self._store.move(job, j.READY, light if changes else "it needs no circuits")

    def _wait_for_servers(self, job: QueuedJob) -> bool:
        if job.cancelled:
            return self._leave(job)
        self._check(job)
        if job.id in self._unverified:
            return False
        holdings = holdings_of(self._store.jobs(ended=False))
        mine = next((h for h in holdings if h.job == job.id), None)
        if mine is None or not may_start(mine, holdings):
            return False
        return self._store.take_servers(job, j.STARTING, "its servers are free; it starts")

    def _start(self, job: QueuedJob) -> bool:
        if job.cancelled:
            return self._store.move(job, j.STOPPING, "is ended before it has started")
        if time.time() < job.next_try_at:
            return False
        folder = self._folder(job)
        try:
            self._flip(job)
            if identity := self._processes.find(folder):
                return self._store.move(job, j.RUNNING, f"runs as process {identity.pid}")
            if time.monotonic() - self._started_at.get(job.id, -_START_AGAIN_S) >= _START_AGAIN_S:
                prepare_folder(folder, job, self._cluster)
                self._processes.start(
                    folder,
                    commands_of(folder, job, self._cluster, self._topoopt),
                    environment_of(folder, job, self._cluster),
                    self._mark_of(job),
                )
                self._started_at[job.id] = time.monotonic()
        except SwitchError as error:
            self._postpone(job, str(error))
        except (OSError, FabricError, ValueError) as error:
            self._postpone(job, f"its processes cannot be started: {error}")
        return False

    def _flip(self, job: QueuedJob) -> None:
        """Flips the 1x2 switches to the side of the job. Raises SwitchError."""
        assert job.layout is not None
        ports = selected_ports(self._cluster, job.layout.servers)
        if self._selector is None or not ports:
            return
        side, began = job.layout.side, time.monotonic()
        if moved := flip(self._selector, dict.fromkeys(ports, side)):
            took_ms = 1e3 * (time.monotonic() - began)
            text = f"{len(moved)} ports flipped to the {side} side in {took_ms:.0f} ms"
            self._store.log(job.id, text)

    def _watch(self, job: QueuedJob) -> bool:
        folder = self._folder(job)
        identity = self._processes.find(folder)
        alive = identity is not None and identity.alive
        if ended := self._processes.ended(folder):  # read after `alive`, because it is written last
            code = ended.exit_code
            outcome = j.FAILED if code else j.DONE
            text = f"ended with exit code {code}"
            if code:
                codes = ", ".join(f"{name} {c}" for name, c in ended.exit_codes.items() if c)
                text += f" ({codes}); see {folder}"
            return self._free(job, outcome, text, exit_code=code)
        if not alive:
            text = "its supervisor is gone without an exit code (killed, or the machine restarted)"
            return self._free(job, j.FAILED, text, problem=text)
        if job.cancelled:
            return self._store.move(job, j.STOPPING, "is being ended")
        self._check(job)
        return False

    def _stop(self, job: QueuedJob) -> bool:
        folder = self._folder(job)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._processes.find(folder) is None and self._processes.forbid(folder):
            return self._free(job, j.CANCELLED, "cancelled before it had started")
        identity = self._processes.find(folder)
        if identity is None:
            # forbidden by the last daemon, or a supervisor about to write its identity
            return self._processes.forbidden(folder) and self._free(
                job, j.CANCELLED, "cancelled before it had started"
            )
        ended = self._processes.ended(folder)
        if ended or not identity.alive:
            code = {"exit_code": ended.exit_code} if ended else {}
            return self._free(job, j.CANCELLED, "cancelled; all its processes have ended", **code)
        now = time.monotonic()
        if job.id not in self._stopped_at:
            self._stopped_at[job.id] = now
            self._processes.stop(identity)
        elif now - self._stopped_at[job.id] > _KILL_S:
            self._processes.kill_marked(self._mark_of(job))
        return False

    def _clear(self, job: QueuedJob) -> bool:
        changes = self._changed(job, "remove")
        if changes is None:
            return False
        outcome = job.outcome or j.FAILED
        return self._store.release_sides(
            job, outcome, f"{outcome}; its circuits are gone ({_count(changes)})"
        )

    def _leave(self, job: QueuedJob) -> bool:
        """Ends a job that has no processes."""
        text = "cancelled; its circuits are being removed"
        return self._store.move(job, j.CLEARING, text, outcome=j.CANCELLED)

    def _free(self, job: QueuedJob, outcome: str, text: str, **values: Any) -> bool:
        """Frees the servers of a job after its last process has ended."""
        if self._processes.kill_marked(self._mark_of(job)):
            return False  # check again: processes take a moment to end
        return self._store.release_servers(job, j.CLEARING, text, outcome=outcome, **values)

    def _changed(self, job: QueuedJob, what: str) -> Changes | None:
        """Has the switches set ("set") or cleared ("remove"); None until that is done."""
        pending = self._pending.get(job.id)
        if pending is None:
            if time.time() >= job.next_try_at:
                self._pending[job.id] = (what, self._ask(job, wired=what == "set"))
            return None
        if not pending[1].done():
            return None
        del self._pending[job.id]
        if pending[0] != what:
            return None  # left over from the state before
        try:
            return pending[1].result()
        except FabricError as error:
            self._postpone(job, str(error))
            return None

    def _check(self, job: QueuedJob) -> None:
        """Checks the switches periodically, and sets missing circuits again."""
        pending = self._pending.get(job.id)
        if pending is None:
            now = time.monotonic()
            every_s = self._check_s
            if job.attempts:
                every_s = min(every_s, self._back_off_s(job.attempts - 1))
            if now - self._checked_at.get(job.id, -every_s) >= every_s:
                self._checked_at[job.id] = now
                self._pending[job.id] = ("check", self._ask(job, wired=True))
            return
        if not pending[1].done():
            return
        del self._pending[job.id]
        try:
            if lines := _lines(pending[1].result()):
                self._store.log(job.id, f"its circuits had changed and are set again: {lines}")
            if job.state == j.RUNNING:
                self._flip(job)
        except FabricError as error:
            self._postpone(job, f"its circuits cannot be checked: {error}")
            return
        self._unverified.discard(job.id)
        if job.problem is not None:
            self._store.settle(job, "its circuits are as they should be")

    def _ask(self, job: QueuedJob, *, wired: bool) -> Future[Changes]:
        assert job.layout is not None
        part = partition(self._cluster, job.layout.servers, job.layout.side)
        return self._work.configure(part, cables_of(job.layout) if wired else {})

    def _sweep_sockets(self) -> bool:
        """Once after the start: removes circuits between sockets that no job holds."""
        if self._sweep is None:
            if self._sweep_at is None or time.monotonic() < self._sweep_at:
                return False
            held = [
                (s, h.side) for h in holdings_of(self._store.jobs(ended=False)) for s in h.servers
            ]
            part = unheld(self._cluster, held)
            if part is not None:
                self._sweep = self._work.configure(part, {})
            self._sweep_at = None
            return False
        if not self._sweep.done():
            return False
        try:
            if lines := _lines(self._sweep.result()):
                self._store.log(None, f"circuits of no job were removed: {lines}")
            self._sweep_failures = 0
        except FabricError as error:
            self._store.log(None, f"sockets without a job cannot be looked at: {error}")
            self._sweep_at = time.monotonic() + self._back_off_s(self._sweep_failures)
            self._sweep_failures += 1
        self._sweep = None
        return True

    def _postpone(self, job: QueuedJob, problem: str) -> None:
        self._store.postpone(job, problem, time.time() + self._back_off_s(job.attempts))

    def _back_off_s(self, attempts: int) -> float:
        return min(_MOST_RETRY_S, self._retry_s * 2.0 ** min(attempts, 20))

    def _folder(self, job: QueuedJob) -> Path:
        return self._store.folder / "jobs" / str(job.id)

    def _mark_of(self, job: QueuedJob) -> str:
        return f"{self._mark}:{job.id}"


def _count(changes: Changes) -> str:
    counts = Counter({"added": 0, "removed": 0})
    for difference in changes.values():
        counts["added"] += len(difference.add)
        counts["removed"] += len(difference.remove)
    return f"{counts['added']} added, {counts['removed']} removed"


def _lines(changes: Changes) -> str:
    return ", ".join(f"{name} {line}" for name, d in changes.items() for line in d.describe())
