"""The arguments of the C++ backend's Session and groups; csrc/bind/session_types.h reads them.

Plain classes: a dataclass would add 0.2 to 0.8 ms to each import.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import CostModel, Link, Ring, Route


class LinkSpec:
    """A connected link; a Session then owns its descriptor.

    `kind` is "socket", "shm", or "fabric" over libfabric's `provider`. `peer` is the rank at the
    other end. `cable` is the index among the session's cables, -1 for ranks of one server.
    `tls_key` has 32 bytes that both ends share to encrypt the link; b"" does not encrypt it. With
    `threads`, own threads move the long batches of a fast, unencrypted socket. `zero_copy` sends
    long payloads from their memory: "on" until the kernel copies them nevertheless, or "always".
    """

    def __init__(
        self,
        link: Link,
        fd: int,
        sends: bool,
        kind: str,
        peer: int,
        *,
        cable: int = -1,
        tls_key: bytes = b"",
        provider: str = "",
    ) -> None:
        self.link, self.fd, self.sends, self.kind, self.peer = link, fd, sends, kind, peer
        self.cable, self.tls_key, self.provider = cable, tls_key, provider
        self.threads, self.zero_copy = False, "off"


class SessionCable:
    """A connection between ranks `a` and `b` of different servers.

    `link` is its name as seen from `a`, which alone sends unless it is `duplex`. `rate` is that of
    each direction in Gb/s: 1 for all if none is known, 0 for one over cables of others.
    """

    def __init__(self, link: Link, a: int, b: int, duplex: bool, rate: float) -> None:
        self.link, self.a, self.b, self.duplex, self.rate = link, a, b, duplex, rate


class GroupConfig:
    """A group of ranks of a session: `ranks[rank]` is this one.

    `rings` and `grid` visit the first member of every server, as indices into `ranks`; an empty
    grid is no torus. `hops` is a HopTable. `routes` are those of the members' frames over other
    servers. `segment_fd` is memory that all members share; -1: none. `circuits` is the
    CircuitClient, where each member is the only rank of its server.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        servers: Sequence[int],
        rings: Sequence[Ring],
        hops: Any,
    ) -> None:
        self.rank, self.ranks, self.servers, self.rings = rank, ranks, servers, rings
        self.hops = hops
        self.cost: CostModel | None = None  # required
        self.name, self.channel = "", 0
        self.grid: Sequence[Sequence[int]] = ()
        self.routes: Sequence[Route] = ()
        self.algorithm = "auto"
        self.planned_routes_only = False  # of all-to-alls, whatever their sizes
        self.segment_fd = -1
        self.circuits: Any = None


class SupervisedRank:
    """The rank of a Supervision, as torch.distributed numbers it.

    `library` is the first part of an operation's name in dumps, and `any_sender` an unknown sender.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        server: int,
        attempt: int,
        *,
        library: str = "c10d",
        any_sender: str = "?",
    ) -> None:
        self.rank, self.world_size, self.server, self.attempt = rank, world_size, server, attempt
        self.library, self.any_sender = library, any_sender


class Supervision:
    """The files that a Session writes for observers; an empty path is not written.

    When the file at `request_path` appears or changes, the flight recorder is dumped. `stacks_fd`
    is an eventfd that is raised before every dump, and `stacks_done_fd` a non-blocking one that is
    raised when the stacks are written; -1: none.
    """

    def __init__(self, of: SupervisedRank) -> None:
        self.of = of
        self.dump_path = self.status_path = self.request_path = ""
        self.dumps_failures = True  # False: only on request
        self.dump_limit = timedelta(seconds=15)  # how long an error waits for its dump
        self.warns_of_status = True  # if it cannot be written
        self.stacks_fd = self.stacks_done_fd = -1
