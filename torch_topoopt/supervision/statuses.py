"""The status that each rank of a running job writes once a second, read and checked."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision.dumps import PlainFields, read_plain

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import Link
    from torch_topoopt.supervision.job_files import JobFolder

_VERSION = 1
_RANK = re.compile(r"rank-\d+")
SLOW = 0.5  # fraction of the planned rate below which a busy link is degraded
_BUSY = 0.5  # fraction of time with data to send, below which the rate shows nothing


@dataclass(frozen=True)
class RunningCall:
    """An unfinished operation. `number` counts the collectives of its group; 0: a message."""

    name: str
    group: str
    number: int
    state: str  # "scheduled" or "started"
    seconds: float  # since it was called
    bytes: int


@dataclass(frozen=True)
class LinkRate:
    """The traffic of a link in the last second; `up`: it is not lost. `busy` is the fraction of
    time with data to send, `relay_peak_bytes` the peak of the relay queue so far."""

    link: Link
    up: bool
    gbps: float
    busy: float
    sent_bytes: int
    relayed_bytes: int
    relay_peak_bytes: int

    def state(self, planned_gbps: float | None) -> str:
        """ "up", "degraded" or "down"."""
        if not self.up:
            return "down"
        return "degraded" if self.degraded(planned_gbps) else "up"

    def degraded(self, planned_gbps: float | None) -> bool:
        """Whether a busy link was much slower than planned."""
        if planned_gbps is None or self.busy < _BUSY:
            return False
        return self.gbps / min(1.0, self.busy) < SLOW * planned_gbps


@dataclass(frozen=True)
class Status:
    """The state of one rank, `time_ns` after the epoch; `own_s`: its own work in a step."""

    JSON_FIELDS: ClassVar = (
        "rank", "world_size", "server", "attempt", "host", "process", "time_ns", "failure",
        "iteration", "called", "unfinished", "calls", "links", "alive", "relay_peak_bytes", "own_s",
    )  # fmt: skip

    rank: int
    world_size: int
    server: int
    attempt: int
    host: str
    process: int
    time_ns: int
    failure: str
    iteration: int
    called: int
    unfinished: int
    calls: tuple[RunningCall, ...]  # the first unfinished ones
    links: tuple[LinkRate, ...]  # outgoing
    own_s: float | None = None

    @property
    def relay_peak_bytes(self) -> int:
        return sum(link.relay_peak_bytes for link in self.links)

    @property
    def alive(self) -> bool:
        """Whether the process runs; True for other hosts, where it is not known."""
        if self.host != platform.node():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def read_statuses(job: JobFolder) -> dict[int, Status]:
    """Rank -> its status; an empty dict if no rank runs. Raises DocumentError."""
    found = {}
    if not job.statuses.is_dir():
        return {}
    for path in sorted(job.statuses.iterdir()):
        if _RANK.fullmatch(path.name) is None:
            continue
        try:
            status = read_status(path)
        except DocumentError:
            if path.exists():
                raise
            continue  # the rank has ended
        found[status.rank] = status
    return dict(sorted(found.items()))


def read_status(path: Path) -> Status:
    """Reads one status. Raises DocumentError if it is invalid."""
    fields = PlainFields(path, "", read_plain(path))
    if fields.take("version", int) != _VERSION:
        raise fields.error("version", f"{fields.values['version']} is not {_VERSION}")
    return Status(
        rank=fields.take("rank", int),
        world_size=fields.take("world_size", int),
        server=fields.take("server", int),
        attempt=fields.take("attempt", int),
        host=fields.take("host", str),
        process=fields.take("pid", int),
        time_ns=fields.take("time_ns", int),
        failure=fields.take("failure", str),
        iteration=fields.take("iteration", int),
        called=fields.take("operations_called", int),
        unfinished=fields.take("operations_unfinished", int),
        calls=tuple(_call(entry) for entry in fields.each("operations")),
        links=tuple(_rate(e) for e in fields.each("links") if e.take("sends", bool)),
    )


def _call(entry: PlainFields) -> RunningCall:
    return RunningCall(
        name=entry.take("name", str),
        group=entry.take("group", str),
        number=entry.take("collective", int),
        state=entry.take("state", str),
        seconds=entry.take("seconds", float),
        bytes=entry.take("bytes", int),
    )


def _rate(entry: PlainFields) -> LinkRate:
    return LinkRate(
        link=entry.link(),
        up=entry.take("up", bool),
        gbps=entry.take("gbps", float),
        busy=entry.take("busy", float),
        sent_bytes=entry.take("sent_bytes", int),
        relayed_bytes=entry.take("relayed_bytes", int),
        relay_peak_bytes=entry.take("relay_peak_bytes", int),
    )
