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
import torch_topoopt.runtime.session_types

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

class CircuitClient:
    """
    This rank's connection to what moves the circuits of its job.
    """

class FlightRecorder:
    """
    The last `capacity` operations of this process.
    """
    def __init__(self, capacity: int) -> None: ...

class Session:
    """
    The links of this process, shared by all its process groups.
    """
    def __init__(
        self,
        rank: int,
        size: int,
        links: collections.abc.Sequence[torch_topoopt.runtime.session_types.LinkSpec],
        routes: collections.abc.Sequence[torch_topoopt.plan.Route],
        window_bytes: int,
        closed: collections.abc.Callable[[str], None],
        recorder: FlightRecorder | None = None,
        supervision: torch_topoopt.runtime.session_types.Supervision | None = None,
        cables: collections.abc.Sequence[torch_topoopt.runtime.session_types.SessionCable] = [],
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
    def circuit_client(
        self, fd: int, exchanges: bool, least_s: float, numbers: collections.abc.Sequence[int]
    ) -> CircuitClient:
        """
        To request moves of circuits over a connected stream socket, which it takes over: for
        all-to-alls if `exchanges`, and for other collectives that are predicted to take `least_s`
        or more. Whatever moves them knows the session's ranks by `numbers`.
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
        self, group: torch_topoopt.runtime.session_types.GroupConfig, timeout: datetime.timedelta
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
        config: torch_topoopt.runtime.session_types.GroupConfig,
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
    def device_memory(self) -> list[dict[str, typing.Any]]:
        """
        Memory of tensors on devices by its kind, as stats() has it.
        """
    def perform_nocolor_split(self, arg0: torch.device) -> None: ...
    def ring_counters(self) -> list[dict[str, typing.Any]]:
        """
        Bytes and seconds of each ring, tree and kind of direct message, as stats() has them.
        """
    def shutdown(self) -> None: ...
    @property
    def group_name(self) -> str: ...
    @property
    def is_shut_down(self) -> bool: ...
    @property
    def options(self) -> torch._C._distributed_c10d.Backend.Options: ...

def fabric_addresses(provider: str) -> list[str]:
    """
    The IP addresses of the interfaces that `provider` of libfabric can use. Raises RuntimeError
    without libfabric.
    """

def fabric_missing() -> str:
    """
    Why libfabric cannot be used, and what to install; "" if it can.
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
