# Made by `make stubs` from csrc/bind; tests/bindings/test_stubs.py compares.
"""
The process group "topoopt".
"""

from __future__ import annotations

import collections.abc
import datetime
import typing

import torch
import torch._C._distributed_c10d
import torch.distributed.distributed_c10d

import torch_topoopt.plan

class LinkSpec:
    """
    A connected link, whose descriptor a Session takes over. `kind`: "socket", "shm" or "fabric",
    over libfabric's `provider`; `peer`: the rank at the other end; `cable`: its index among the
    session's cables, -1 for ranks of one server; `tls_key`: 32 bytes that both ends share, with
    which the link is encrypted, or none; `threads`: the long batches of a fast socket that is not
    encrypted are moved by threads of its own; `zero_copy`: its long payloads are sent from where
    they lie, "off", "on" until the kernel copies all the same, or "always".
    """
    def __init__(
        self,
        link: torch_topoopt.plan.Link,
        fd: int,
        sends: bool,
        kind: typing.Literal["socket", "shm", "fabric"],
        peer: int,
        cable: int = -1,
        tls_key: bytes = b"",
        provider: str = "",
        threads: bool = False,
        zero_copy: typing.Literal["off", "on", "always"] = "off",
    ) -> None: ...

class CableEnds:
    """
    A connection between ranks `a` and `b` of different servers: `link` is its name as seen from
    `a`, which alone sends unless it is `duplex`. `rate` is that of each direction in Gb/s; 1 for
    all if none is known.
    """
    def __init__(
        self, link: torch_topoopt.plan.Link, a: int, b: int, duplex: bool, rate: float = 1.0
    ) -> None: ...

class FabricOffer:
    @property
    def address(self) -> str:
        """
        An IP address, or "".
        """
    @property
    def domain(self) -> str:
        """
        An interface or an RDMA device.
        """
    @property
    def provider(self) -> str: ...

class HopTable:
    """
    Links on the shortest route between each two servers. The rules are those of
    torch_topoopt.plan.RouteTable; a pair that none of them serves has its link, or 0.
    """
    def __init__(
        self,
        servers: int,
        links: collections.abc.Sequence[torch_topoopt.plan.Link],
        by_offset: collections.abc.Sequence[torch_topoopt.plan.StrideRoute],
        next_hops: collections.abc.Sequence[collections.abc.Sequence[int]],
        listed: collections.abc.Sequence[torch_topoopt.plan.Route],
    ) -> None: ...
    def at(self, source: int, target: int) -> int: ...

class CircuitClient:
    """
    This rank's connection to what moves the circuits of its job.
    """

class GroupConfig:
    """
    A group of ranks of a session: `ranks[rank]` is this one. `rings` visit the first member of
    every server, as indices into `ranks`.
    """

    algorithm: str
    cost: torch_topoopt.plan.CostModel
    name: str
    def __init__(
        self,
        rank: int,
        ranks: collections.abc.Sequence[int],
        servers: collections.abc.Sequence[int],
        rings: collections.abc.Sequence[torch_topoopt.plan.Ring],
        hops: HopTable,
    ) -> None: ...
    @property
    def channel(self) -> int: ...
    @channel.setter
    def channel(self, arg0: int) -> None: ...
    @property
    def circuits(self) -> CircuitClient:
        """
        Of a group with one rank on each server, member i on server i; or None.
        """
    @circuits.setter
    def circuits(self, arg0: CircuitClient) -> None: ...
    @property
    def grid(self) -> list[list[int]]:
        """
        Rows of the same members, where their servers form a torus; empty: none.
        """
    @grid.setter
    def grid(self, arg0: collections.abc.Sequence[collections.abc.Sequence[int]]) -> None: ...
    @property
    def planned_routes_only(self) -> bool:
        """
        All-to-alls take the plan's routes, whatever their sizes.
        """
    @planned_routes_only.setter
    def planned_routes_only(self, arg0: bool) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def rings(self) -> list[torch_topoopt.plan.Ring]: ...
    @property
    def routes(self) -> list[torch_topoopt.plan.Route]:
        """
        Between members' servers over others, as their frames take them.
        """
    @routes.setter
    def routes(self, arg0: collections.abc.Sequence[torch_topoopt.plan.Route]) -> None: ...
    @property
    def segment_fd(self) -> int:
        """
        Of memory that all members share; -1: none.
        """
    @segment_fd.setter
    def segment_fd(self, arg0: int) -> None: ...
    @property
    def servers(self) -> list[int]: ...

class RingCounters:
    """
    What a ring, a tree or a kind of direct message of a group has carried.
    """
    @property
    def index(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def sent_bytes(self) -> int: ...

class FlightRecorder:
    """
    The last `capacity` operations of this process.
    """
    def __init__(self, capacity: int) -> None: ...
    @property
    def recorded(self) -> int: ...

class Supervision:
    """
    What a Session writes for others to see, of which rank. Paths may be empty: then nothing is
    written there. `request_path`: when this file appears or changes, the flight recorder is dumped;
    `stacks_fd`: an eventfd that is raised before every dump, or -1; `stacks_done_fd`: another one,
    without waiting, raised when the stacks are written.
    """

    dump_limit: datetime.timedelta
    dump_path: str
    dumps_failures: bool
    request_path: str
    status_path: str
    warns_of_status: bool
    def __init__(self, rank: int, world_size: int, server: int, attempt: int) -> None: ...
    def name_operations(self, library: str, any_sender: str) -> None:
        """
        In dumps: the first part of an operation's name, and a sender that is not known.
        """
    @property
    def stacks_done_fd(self) -> int: ...
    @stacks_done_fd.setter
    def stacks_done_fd(self, arg0: int) -> None: ...
    @property
    def stacks_fd(self) -> int: ...
    @stacks_fd.setter
    def stacks_fd(self, arg0: int) -> None: ...

class Session:
    """
    The links of this process, shared by all its process groups.
    """
    def __init__(
        self,
        rank: int,
        size: int,
        links: collections.abc.Sequence[LinkSpec],
        routes: collections.abc.Sequence[torch_topoopt.plan.Route],
        window_bytes: int,
        closed: collections.abc.Callable[[str], None],
        recorder: FlightRecorder | None = None,
        supervision: Supervision | None = None,
        cables: collections.abc.Sequence[CableEnds] = [],
        servers: collections.abc.Sequence[int] = [],
        silence_limit: datetime.timedelta = ...,
        workers: int = 0,
    ) -> None:
        """
        `cables` are those of all ranks, in the same order on all, or none; `servers`: the server of
        each rank. A rank that says nothing for `silence_limit` fails the session. So many
        `workers`, threads, add up long chunks of collectives.
        """
    def begin_iteration(self) -> int:
        """
        What is sent from now on belongs to the next iteration; returns its number.
        """
    def begin_move(self, cable: int) -> bool:
        """
        Before a cable that is in use is dialled anew, to be replaced; False if it is not.
        """
    def circuit_client(self, fd: int, members: int) -> CircuitClient:
        """
        To ask over a connected stream socket, which it takes over, what moves the circuits of the
        session's `members` servers.
        """
    def end_move(self, cable: int) -> None:
        """
        What was dialled has failed.
        """
    def fail(self, why: str) -> None: ...
    def held_memory(self) -> dict[str, tuple[int, int]]:
        """
        Bytes that this rank holds for others, now and at most: relay, early, buffer.
        """
    def hold(self) -> None: ...
    def iteration_bytes(self, first: int, count: int) -> tuple[list[int], list[list[int]]]:
        """
        Bytes of the messages of each iteration from `first` on: those of this rank, and what each
        link has sent of all that pass it.
        """
    def limit_cable(self, cable: int, bytes_per_s: int | None) -> None:
        """
        What the connection of a cable may send, until it has another one; None: no limit.
        """
    def link_traffic(self) -> list[torch_topoopt.plan.LinkTraffic]: ...
    def lost_cables(self) -> list[int]:
        """
        Cables of this rank that need a new connection, as indices.
        """
    def measure_cost(
        self, group: GroupConfig, timeout: datetime.timedelta
    ) -> torch_topoopt.plan.CostModel:
        """
        What messages cost, measured by all ranks of `group` together; the seconds per byte are
        those of `group.cost`.
        """
    def recorded_operations(self) -> bytes:
        """
        The flight recorder as a dump has it (supervision/dumps.py), without links; empty where
        nothing is recorded.
        """
    def release(self, limit: datetime.timedelta) -> None: ...
    def release_aborted(self, why: str) -> None: ...
    def remembered_entries(self) -> int:
        """
        Flows and channels of which something is remembered.
        """
    def replace_cable(self, cable: int, fd: int, tls_key: bytes = b"") -> None:
        """
        Goes on with a cable over a verified connection, which the session takes over; with a
        `tls_key`, if the cable had one.
        """
    def slow_cables(self) -> list[int]:
        """
        Cables over which this rank sends less than they should carry, as indices.
        """
    @property
    def cables_event(self) -> int:
        """
        An eventfd: lost_cables() or slow_cables() may have changed. -1 without cables.
        """
    @property
    def closed(self) -> bool: ...
    @property
    def inherited(self) -> bool: ...

class ProcessGroupTopoopt(torch._C._distributed_c10d.Backend):
    class Options(torch._C._distributed_c10d.Backend.Options):
        """
        What a process group is made with: ProcessGroupTopoopt.Options(timeout).
        """

        group_desc: str
        def __copy__(self) -> ProcessGroupTopoopt.Options: ...
        def __deepcopy__(self, arg0: dict[str, typing.Any]) -> ProcessGroupTopoopt.Options: ...
        def __getstate__(self) -> tuple[datetime.timedelta, str, str, list[int]]: ...
        def __init__(self, timeout: datetime.timedelta = ...) -> None: ...
        def __setstate__(self, arg0: tuple[typing.Any, ...]) -> None: ...

    def __init__(
        self,
        session: Session,
        config: GroupConfig,
        options: ProcessGroupTopoopt.Options,
        store: torch.distributed.distributed_c10d.Store,
        splitter: collections.abc.Callable[
            [
                torch.distributed.distributed_c10d.Store,
                list[int],
                torch._C._distributed_c10d.Backend.Options,
            ],
            torch._C._distributed_c10d.Backend,
        ],
        in_place: bool,
    ) -> None:
        """
        `in_place`: device tensors whose memory the host reaches are not copied.
        """
    def check_with(
        self, companion: ProcessGroupTopoopt, place_of_caller: collections.abc.Callable[[], str]
    ) -> None:
        """
        `companion`: a group of the same ranks, which ends with this one. `place_of_caller`: where
        the calling thread is in the script, which ranks compare, or None.
        """
    def device_memory(self) -> list[DeviceMemoryUse]:
        """
        Memory of tensors on devices, by its kind.
        """
    def perform_nocolor_split(self, arg0: torch.device) -> None: ...
    def ring_counters(self) -> list[RingCounters]: ...
    def shutdown(self) -> None: ...
    @property
    def group_name(self) -> str: ...
    @property
    def is_shut_down(self) -> bool: ...
    @property
    def options(self) -> torch._C._distributed_c10d.Backend.Options: ...

class DeviceMemoryUse:
    @property
    def bytes(self) -> int: ...
    @property
    def in_place(self) -> bool: ...
    @property
    def kind(self) -> str:
        """
        The kind of memory, or why it was copied.
        """

def fabric_missing() -> str:
    """
    Why libfabric cannot be used, and what to install; "" if it can.
    """

def fabric_offers(provider: str) -> list[FabricOffer]:
    """
    Interfaces of `provider` of libfabric. Raises RuntimeError without libfabric.
    """

def fabric_version() -> str:
    """
    The release of libfabric that is installed; "": none that this build can use.
    """

def quiet_torch_log() -> None:
    """
    Leaves torch's C++ warnings out of this process's stderr. A TCPStore writes some, without a
    limit, for every client that does not speak as it does; where nobody reads stderr, it stops.
    """

def team_segment_bytes(size: int) -> int:
    """
    Bytes that a group of `size` ranks on one server shares.
    """

MAX_TEAM_MEMBERS: int = 256
torch_version: str = "2.15.0"
