"""Jobs of a shared cluster: their specification and their states.

    queued -> preparing -> ready -> starting -> running -> clearing -> done | failed | cancelled
                                                   stopping ^

Each state is an intent, recorded in the database before the daemon acts; the next state confirms
it. So after a crash a daemon finds the step that may be half done, and repeats it: every act is
idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from torch_topoopt.fabric.ssh import reach_command
from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from torch_topoopt.fabric.switches.selector import Side

QUEUED = "queued"  # no servers yet
PREPARING = "preparing"  # has servers and a side; its circuits are being set there
READY = "ready"  # its circuits carry light; waits until its servers are free
STARTING = "starting"  # its servers are its own; 1x2 switches flip, processes start
RUNNING = "running"
STOPPING = "stopping"  # cancelled while it had processes
CLEARING = "clearing"  # its processes are gone; its circuits are being removed
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"

FINAL = frozenset({DONE, FAILED, CANCELLED})
# states with the job's circuits set; in all others they are removed
WIRED = frozenset({PREPARING, READY, STARTING, RUNNING, STOPPING})


@dataclass(frozen=True)
class JobSpec(Document):
    """The commands to start once the servers are wired. Paths are absolute.

    `launch`: "run" is one `topoopt run` on the daemon's machine, which emulates the servers;
    "hosts" is one `topoopt run --cluster` per server, reached by the command `reach` (words, in
    which {server} and {management} stand for those of the server); "program" is `script` itself,
    once, with the job's plan and cluster file in its environment.
    """

    KIND: ClassVar[str] = "JobSpec"
    VERSION: ClassVar[int] = 1

    version: int
    launch: Literal["run", "hosts", "program"]
    script: str
    arguments: tuple[str, ...]
    folder: str
    reach: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()  # NAME=value

    @property
    def where(self) -> str:
        """A description of the machines that run it."""
        return {
            "run": "emulated on the daemon's machine; the servers themselves run nothing "
            "(--launch hosts starts it on them)",
            "hosts": "on its servers",
            "program": "one program on the daemon's machine",
        }[self.launch]

    def validate(self) -> Self:
        if not self.script:
            raise DocumentError("script: missing")
        if (self.launch == "hosts") != bool(self.reach):
            raise DocumentError("reach: launch hosts needs it, and no other has it")
        for i, word in enumerate(self.reach):
            try:
                reach_command([word], server="h0", management="10.0.0.1")
            except (LookupError, ValueError):
                raise DocumentError(
                    f"reach[{i}]: {word!r}: braces stand for {{server}} and {{management}} only"
                ) from None
        for i, variable in enumerate(self.environment):
            if not variable.partition("=")[0] or "=" not in variable:
                raise DocumentError(f"environment[{i}]: {variable!r} is not NAME=value")
        return self


@dataclass(frozen=True)
class Connection:
    """A cable through a switch: between two of its sockets, and so between two server ports."""

    switch: str
    sockets: tuple[str, ...]
    ends: tuple[str, ...]  # "h0:p0", in the order of the sockets

    def __str__(self) -> str:
        a, b = self.sockets
        return f"{self.switch}: {a}-{b} ({self.ends[0]}, {self.ends[1]})"


@dataclass(frozen=True)
class JobLayout(Document):
    """The resources of a job: its servers in the order of its plan, their side, its cables."""

    KIND: ClassVar[str] = "Layout"
    VERSION: ClassVar[int] = 1

    version: int
    side: Literal["switch", "lookahead"]
    servers: tuple[str, ...]
    connections: tuple[Connection, ...]

    def validate(self) -> Self:
        return self


@dataclass(frozen=True)
class QueuedJob:
    """A row of the database. Times are seconds since the epoch.

    `order`: its rank in the assignment of servers. `outcome`: its final state after clearing.
    `problem`: the reason for a delay; retried at `next_try_at`, after `attempts`.
    """

    id: int
    name: str
    state: str
    submitted_at: float
    changed_at: float
    servers: int
    ports: int
    plan: str
    spec: JobSpec
    cancelled: bool
    layout: JobLayout | None
    order: int | None
    outcome: str | None
    exit_code: int | None
    problem: str | None
    attempts: int
    next_try_at: float

    @property
    def side(self) -> Side | None:
        return self.layout.side if self.layout else None

    @property
    def title(self) -> str:
        return f"job {self.id} ({self.name})"
