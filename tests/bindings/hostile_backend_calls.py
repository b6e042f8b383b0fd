"""As hostile_calls, for torch_topoopt._backend: sessions, groups and their options."""

from __future__ import annotations

import os
import pickle
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from hostile_calls import Call, main

from torch_topoopt.runtime import backend

_backend = backend._extension()


def _session(rank: Any, size: Any, links: Any, routes: Any, window: Any, closed: Any) -> Any:
    """Links with the descriptor "socket" get one that is connected."""
    if isinstance(links, list):
        links = [
            tuple(_connected() if part == "socket!" else part for part in link)
            if isinstance(link, tuple)
            else link
            for link in links
        ]
    session = _backend.Session(
        rank=rank, size=size, links=links, routes=routes, window_bytes=window, closed=closed
    )
    session.link_counters()
    session.begin_iteration()
    return session


def _connected() -> int:
    near, far = socket.socketpair()
    os.dup(far.fileno())  # the other end stays, in this process
    return near.detach()


def _closed(why: str) -> None:
    pass


_LINK = ("socket", 1, 0, 0, 1, 0, "socket!", True)
_SESSION = (0, 3, [_LINK], [([0, 1, 2], 1.0)], 1 << 20, _closed)


def _iteration_bytes(first: Any, count: Any) -> Any:
    session = _session(*_SESSION)
    return session.iteration_bytes(first, count)


def _measured(*arguments: Any) -> Any:
    return _session(*_SESSION).measure_cost(*arguments)


def _released(limit: Any) -> Any:
    """No rank is at the other end of its link: it waits for its end for `limit` at most."""
    session = _session(*_SESSION)
    session.hold()
    session.release(limit)


def _released_aborted(why: Any) -> Any:
    session = _session(*_SESSION)
    session.hold()
    session.release_aborted(why)


def _group(session: Any, options: Any, store: Any, splitter: Any, *arguments: Any) -> Any:
    if session == "session":
        session = _session(*_SESSION)
    if options == "options":
        options = _backend.ProcessGroupTopoopt.Options(timedelta(seconds=0.05))
    if store == "store":
        store = dist.HashStore()
    name, channel, rank, ranks, servers, rings, hops, cost, segment_fd, algorithm = arguments
    group = _backend.ProcessGroupTopoopt(
        session=session, name=name, channel=channel, rank=rank, ranks=ranks, servers=servers,
        rings=rings, hops=hops, cost=cost, segment_fd=segment_fd, algorithm=algorithm,
        options=options, store=store, splitter=splitter,
    )  # fmt: skip
    group.ring_counters()
    group.shutdown()


def _companion(companion: Any) -> Any:
    group = _backend.ProcessGroupTopoopt
    return group.end_with(companion, companion)


def _unpickled(*state: Any) -> Any:
    kind = _backend.ProcessGroupTopoopt.Options
    return kind.__setstate__(kind.__new__(kind), state)


def calls() -> list[Call]:
    """Every constructor and method that takes something of Python's."""
    ring = [([0, 1], 1.0)]
    cost = (1e-5, 1e-5, 1e-9, 1e-9)
    whole = ("g", 3, 0, [0, 1], [0, 1], ring, [0, 1, 1, 0], cost, -1, "auto")
    # one member alone: there is no other to measure with
    alone = (0, [0], [0], [([0], 1.0)], [0], 1e-9, timedelta(seconds=0.05))
    return [
        Call("Session", _session, _SESSION),
        Call("Session.iteration_bytes", _iteration_bytes, (0, 2)),
        Call("Session.measure_cost", _measured, alone),
        Call("Session.release", _released, (timedelta(seconds=0.05),)),
        Call("Session.release_aborted", _released_aborted, ("why",)),
        Call("ProcessGroupTopoopt", _group, ("session", "options", "store", None, *whole)),
        Call("ProcessGroupTopoopt.end_with", _companion, (None,)),
        Call("Options", _backend.ProcessGroupTopoopt.Options, (timedelta(seconds=1),)),
        Call("Options, unpickled", _unpickled, (timedelta(seconds=1), "name", "what", [0, 1])),
        Call("Options, copied", pickle.loads, (b"",)),
        Call("team_segment_bytes", _backend.team_segment_bytes, (2,)),
    ]


if __name__ == "__main__":
    main(calls())
