"""As hostile_calls, for torch_topoopt._backend: sessions, groups and their options."""

from __future__ import annotations

import os
import pickle
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from hostile_calls import Call, main

from torch_topoopt.plan import CostModel, Link, Ring, Route, StrideRoute
from torch_topoopt.runtime import backend
from torch_topoopt.runtime.session_types import GroupConfig, LinkSpec

_backend = backend._extension()


def _session(rank: Any, size: Any, links: Any, routes: Any, window: Any, closed: Any) -> Any:
    session = _backend.Session(
        rank=rank, size=size, links=links, routes=routes, window_bytes=window, closed=closed
    )
    session.link_traffic()
    session.begin_iteration()
    return session


def _linked(descriptor: Any, *link: Any) -> Any:
    """A session with one link; the descriptor "socket!" is one that is connected."""
    plan_link, sends, kind, peer = link
    given = _connected() if descriptor == "socket!" else descriptor
    spec = LinkSpec(plan_link, given, sends, kind, peer)
    return _session(0, 3, [spec], [], 1 << 20, _closed)


def _connected() -> int:
    near, far = socket.socketpair()
    os.dup(far.fileno())  # the other end stays, in this process
    return near.detach()


def _closed(why: str) -> None:
    pass


def _link() -> Any:
    return LinkSpec(Link(0, 0, 1, 0), _connected(), True, "socket", 1)


def _one_link() -> Any:
    return _session(0, 3, [_link()], [Route((0, 1, 2), 1.0)], 1 << 20, _closed)


def _session_with_link(*arguments: Any) -> Any:
    rank, size, *others = arguments
    return _session(rank, size, [_link()], *others)


def _iteration_bytes(first: Any, count: Any) -> Any:
    session = _one_link()
    return session.iteration_bytes(first, count)


def _measured(timeout: Any, *group: Any) -> Any:
    return _one_link().measure_cost(GroupConfig(*group), timeout)


def _released(limit: Any) -> Any:
    """No rank is at the other end of its link: it waits for its end for `limit` at most."""
    session = _one_link()
    session.hold()
    session.release(limit)


def _released_aborted(why: Any) -> Any:
    session = _one_link()
    session.hold()
    session.release_aborted(why)


def _group(
    session: Any, options: Any, store: Any, splitter: Any, in_place: Any, *arguments: Any
) -> Any:
    if session == "session":
        session = _one_link()
    if options == "options":
        options = _backend.ProcessGroupTopoopt.Options(timedelta(seconds=0.05))
    if store == "store":
        store = dist.HashStore()
    name, channel, cost, segment_fd, algorithm, *members = arguments
    config = GroupConfig(*members)
    config.name, config.channel, config.cost = name, channel, cost
    config.segment_fd, config.algorithm = segment_fd, algorithm
    group = _backend.ProcessGroupTopoopt(session, config, options, store, splitter, in_place)
    group.ring_counters()
    group.shutdown()


def _companion(companion: Any) -> Any:
    group = _backend.ProcessGroupTopoopt
    return group.check_with(companion, companion, None)


def _unpickled(*state: Any) -> Any:
    kind = _backend.ProcessGroupTopoopt.Options
    return kind.__setstate__(kind.__new__(kind), state)


def calls() -> list[Call]:
    """Every constructor and method that takes something of Python's."""
    ring = [Ring((0, 1), 1.0)]
    cost = CostModel(1e-5, 1e-5, 1e-9, 1e-9)
    hops = _backend.HopTable(2, [Link(0, 0, 1, 0), Link(1, 0, 0, 0)], [], [], [])
    whole = ("g", 3, cost, -1, "auto", 0, [0, 1], [0, 1], ring, hops)
    # one member alone: there is no other to measure with
    alone = (timedelta(seconds=0.05), 0, [0], [0], [Ring((0,), 1.0)], hops)
    walks = [[0, 1, 1], [0, 1, 2], [1, 1, 2]]
    rules = (3, [Link(0, 0, 1, 0)], [StrideRoute((1, 1), 1.0)], walks, [Route((0, 1), 1.0)])
    link = ("socket!", Link(0, 0, 1, 0), True, "socket", 1)
    return [
        Call("LinkSpec", _linked, link),
        Call("HopTable", _backend.HopTable, rules),
        Call("Session", _session_with_link, (0, 3, [Route((0, 1, 2), 1.0)], 1 << 20, _closed)),
        Call("Session.iteration_bytes", _iteration_bytes, (0, 2)),
        Call("Session.measure_cost", _measured, alone),
        Call("Session.release", _released, (timedelta(seconds=0.05),)),
        Call("Session.release_aborted", _released_aborted, ("why",)),
        Call("ProcessGroupTopoopt", _group, ("session", "options", "store", None, True, *whole)),
        Call("ProcessGroupTopoopt.check_with", _companion, (None,)),
        Call("Options", _backend.ProcessGroupTopoopt.Options, (timedelta(seconds=1),)),
        Call("Options, unpickled", _unpickled, (timedelta(seconds=1), "name", "what", [0, 1])),
        Call("Options, copied", pickle.loads, (b"",)),
        Call("team_segment_bytes", _backend.team_segment_bytes, (2,)),
    ]


if __name__ == "__main__":
    main(calls())
