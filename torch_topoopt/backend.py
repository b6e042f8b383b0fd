"""The process group "topoopt" in PyTorch: registers it, and hands the Plan to the C++ backend.

Started by `topoopt run`, a rank finds its Plan and Wiring in the environment. A job has as many
ranks on every server, in the order of the servers. The first process group connects this rank with
the others of its server and, if it is the server's leader, opens the server's links; later groups
share these connections.

Environment: TOPOOPT_PLAN, TOPOOPT_WIRING (paths of the two documents), TOPOOPT_RUN_DIR (where the
byte counters of the links are written at the end), TOPOOPT_LOG=info|debug, TOPOOPT_ALGORITHM=
auto|ring|multi_ring|both_ways|tree|doubling (for the collectives that can be served that way),
TOPOOPT_TAKE_OVER (see torch_topoopt.asked_backends).
"""

from __future__ import annotations

import atexit
import copy
import functools
import importlib
import json
import logging
import os
import sys
import time
import weakref
import zlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt import asked_backends
from torch_topoopt.c10d_names import open_name_locks
from torch_topoopt.data_model import write_text_atomically
from torch_topoopt.discovery.discover import discover
from torch_topoopt.discovery.host import shared_memory_allowed
from torch_topoopt.fabric.rank_links import Timeouts, open_rank_links
from torch_topoopt.fabric.shared_segment import open_segment
from torch_topoopt.iteration_meter import IterationMeter
from torch_topoopt.job_network import StoreMeeting, given_network, link_tuples, log_link
from torch_topoopt.measuring import CostTuple, cost_of
from torch_topoopt.rank_layout import (
    RankLayout,
    forwarded_network,
    leader_rings,
    member_hops,
    rank_routes,
    rings_of,
)
from torch_topoopt.versions import check_build

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.plan import Network, Plan, Ring

_NAME = "topoopt"
_LOG_LEVELS = ("debug", "info", "warning", "error")
_WINDOW_BYTES = 4 << 20  # per flow in the network; see csrc/transport/endpoint.h
_CONNECT_TIMEOUT_S = 60.0

log = logging.getLogger("torch_topoopt")


@functools.cache
def _extension() -> Any:
    check_build(torch.__version__)
    return importlib.import_module("torch_topoopt._backend")


def load_in_ranks() -> None:
    """Loads the C++ backend early in processes that are ranks of a job."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _extension()


def register() -> None:
    """Makes "topoopt" known to torch.distributed; harmless if it is known already.

    In a rank started by `topoopt run`, a process group that names no backend is a "topoopt" one.
    """
    if hasattr(dist.Backend, _NAME.upper()):
        return
    # Whether there is a device is not asked here, for that would break ranks that fork.
    devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
    dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=devices)
    # For "cpu:topoopt,cuda:nccl" and the like, PyTorch looks for the first name of this dict, which
    # it writes in capitals, among names that it writes without; a group would have no default
    # backend.
    plugins = dist.Backend._plugins
    dist.Backend._plugins = {_NAME: plugins[_NAME.upper()], **plugins}
    open_name_locks(checking_group)
    planned = "TOPOOPT_PLAN" in os.environ
    if planned:
        dist.Backend.default_device_backend_map["cpu"] = _NAME
    if planned or asked_backends.TAKE_OVER_VARIABLE in os.environ:
        asked_backends.watch(_NAME, default=planned)
    level = os.environ.get("TOPOOPT_LOG", "")
    if level in _LOG_LEVELS:  # another one is an error, but not one of `import torch`: see _create
        logging.basicConfig(format="%(name)s %(levelname)s: %(message)s")
        log.setLevel(level.upper())


def _check_log_level() -> None:
    level = os.environ.get("TOPOOPT_LOG", "")
    if level and level not in _LOG_LEVELS:
        raise RuntimeError(f"TOPOOPT_LOG: {level!r} is not one of {', '.join(_LOG_LEVELS)}")


@dataclass
class _Job:
    """What the process groups of this process share."""

    plan: Plan
    wiring: Wiring
    layout: RankLayout
    rank: int
    life: int  # 1 for the first default group of this process, 2 after it was created anew, ...
    session: Any  # _backend.Session
    cost: CostTuple | None  # what messages cost, once it is known
    channels: dict[int, str]
    lives: dict[str, int]  # how often a group of a name was created
    groups: list[Any]
    meter: IterationMeter | None = None
    end_meter: Callable[[], None] | None = None


_job: _Job | None = None


def _create(options: Any, backend_options: Any) -> Any:
    """torch.distributed's creator: one process group for `options.global_ranks_in_group`."""
    global _job
    extension = _extension()
    _check_log_level()
    if _job is None or _job.session.closed:
        if options.global_ranks_in_group:
            raise RuntimeError("topoopt: the default process group is gone; create it anew first")
        _job = _open_job(extension, options)
        asked_backends.note_opened()
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    own = _own_options(extension, backend_options, _as_timedelta(options.timeout))
    own.group_name = options.group_id
    return _open_group(extension, _job, ranks, own, options.store)


def _own_options(extension: Any, given: Any, timeout: timedelta) -> Any:
    """A copy of the pg_options that a caller gave, or fresh ones, with the group's timeout."""
    kind = extension.ProcessGroupTopoopt.Options
    if given is not None and not isinstance(given, kind):
        raise TypeError(
            f"topoopt: pg_options: {type(given).__name__} is not ProcessGroupTopoopt.Options"
        )
    options = kind() if given is None else copy.copy(given)
    options._timeout = timeout
    return options


def _open_group(extension: Any, job: _Job, ranks: list[int], options: Any, store: Any) -> Any:
    """The group of those ranks of the job; `options` tells its name and timeout."""
    options.global_ranks_in_group = ranks
    servers = [job.layout.server_of[rank] for rank in ranks]
    rings = rings_of(job.plan, sorted(set(servers)), job.wiring.link_rates(job.plan))
    algorithm = os.environ.get("TOPOOPT_ALGORITHM", "auto")
    name, member = options.group_name, ranks.index(job.rank)
    channel = _channel(job, name)
    # A group that is created again after its end finds what its first life has left there.
    store = dist.PrefixStore(f"life{job.life}.{job.lives[name]}", store)
    if member == 0:
        _log_group(name, ranks, servers, rings)
    members = {
        "rank": member,
        "ranks": ranks,
        "servers": servers,
        "rings": leader_rings(rings, job.layout, ranks),
        "hops": member_hops(job.plan.network, job.layout, ranks),
    }
    if job.cost is None:
        job.cost = cost_of(job.plan, job.session, members, options._timeout)
    group = extension.StagingProcessGroup(
        session=job.session,
        name=name,
        channel=channel,
        **members,
        cost=job.cost,
        algorithm=algorithm,
        segment_fd=_open_segment(extension, name, store, member, servers)
        if algorithm == "auto"
        else -1,
        options=options,
        store=store,
        splitter=functools.partial(_split, ranks),
    )
    job.groups = [*(other for other in job.groups if not other.is_shut_down), group]
    return group


def _open_segment(extension: Any, name: str, store: Any, member: int, servers: list[int]) -> int:
    """The memory of a group whose members are all on one server; -1 if it has none."""
    size = len(servers)
    if len(set(servers)) > 1 or not 1 < size <= extension.MAX_TEAM_MEMBERS:
        return -1
    if not shared_memory_allowed():
        return -1
    descriptor = open_segment(
        dist.PrefixStore("segment", store),
        member,
        size,
        extension.team_segment_bytes(size),
        lambda why: log.warning(
            "group %s: its ranks cannot share memory and use links instead: %s", name, why
        ),
    )
    if descriptor >= 0:
        log.info("group %s: its %d ranks share memory", name, size)
    return descriptor


def _log_group(name: str, ranks: list[int], servers: list[int], rings: list[Ring]) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    orders = [f"{'-'.join(map(str, ring.servers))} ({ring.share:.0%})" for ring in rings]
    log.info(
        "group %s: ranks %s on servers %s; rings over servers: %s",
        name,
        ", ".join(map(str, ranks)),
        ", ".join(map(str, sorted(set(servers)))),
        ", ".join(orders) if len(set(servers)) > 1 else "none, all on one server",
    )


def _split(parent_ranks: list[int], store: Any, ranks: list[int], given: Any) -> Any:
    """The group of some members, given by their ranks in a group of `parent_ranks`."""
    if _job is None or _job.session.closed:
        raise RuntimeError("topoopt: split: the process group was shut down")
    extension = _extension()
    options = _own_options(extension, given, given._timeout)
    return _open_group(extension, _job, [parent_ranks[rank] for rank in ranks], options, store)


def checking_group(group: Any, store: Any) -> Any:
    """A second group of the same ranks, by which torch checks what the first is asked to do."""
    assert _job is not None, "the job was opened for the first group"
    options = group.options
    options.group_name += "/checks"
    checking = _open_group(_extension(), _job, list(options.global_ranks_in_group), options, store)
    group.end_with(checking)
    return checking


def _as_timedelta(timeout: timedelta | float) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def _channel(job: _Job, group_name: str) -> int:
    """The number that all ranks give to a group; its name is all that they have in common.

    PyTorch may give the name of a destroyed group to a new one; what is still on its way for the
    old one must not reach it.
    """
    life = job.lives[group_name] = job.lives.get(group_name, 0) + 1
    unique_name = f"{group_name}/{life}"
    channel = zlib.crc32(unique_name.encode()) & 0x7FFFFFFF
    other = job.channels.setdefault(channel, unique_name)
    if other != unique_name:
        raise RuntimeError(f"topoopt: groups {other!r} and {unique_name!r} have the same channel")
    return channel


def _open_job(extension: Any, options: Any) -> _Job:
    rank, world_size = options.group_rank, options.group_size
    meet_s = _as_timedelta(options.timeout).total_seconds()
    timeouts = Timeouts(meet_s, min(meet_s, _CONNECT_TIMEOUT_S))
    meeting = StoreMeeting(options.store, rank)
    network = given_network(world_size)
    if network is None:
        network = discover(meeting, rank, world_size, time.monotonic() + meet_s)
    plan, wiring, layout = network.plan, network.wiring, network.layout
    links = open_rank_links(plan, wiring, layout, rank, meeting, timeouts, network.listeners)
    for link in links.planned:
        log_link(link, wiring)
    session = extension.Session(
        rank=rank,
        size=world_size,
        links=link_tuples(links, layout, rank),
        routes=rank_routes(_network_of(plan, wiring), layout, rank),
        window_bytes=_WINDOW_BYTES,
        closed=functools.partial(_on_closed, rank, layout.server_of[rank]),
    )
    job = _Job(plan, wiring, layout, rank, meeting.life, session, None, {}, {}, [])
    if "TOPOOPT_RUN_DIR" in os.environ:
        known = weakref.ref(job)  # else the meter would keep the links of a past job open
        job.meter = IterationMeter(
            lambda: _begin_iteration(known()),
            lambda first, count: _iteration_bytes(known(), first, count),
        )
        job.end_meter = job.meter.install()
    return job


def _network_of(plan: Plan, wiring: Wiring) -> Network:
    """The network as the ranks use it: where hosts forward, their kernels relay."""
    return forwarded_network(plan.network) if wiring.forwarded else plan.network


def stats() -> dict[str, list[dict[str, Any]]]:
    """What this rank has sent so far: "links" and, for all groups that are open, "rings".

    One dict per link: source, source_port, target, target_port (ports are -1 inside a server), kind
    ("socket" or "shm"), sent_bytes (payload, own and relayed), relayed_bytes (the part that came
    from other ranks), received_bytes, overhead_bytes (headers and control frames), seconds (with
    something to send). One dict per ring, tree or kind of direct message of a group: group (its
    name), kind ("ring", "tree" or "direct"), index, ranks (in a ring's order, else empty),
    sent_bytes, seconds (in which an operation had something to do there).
    """
    if _job is None:
        return {"links": [], "rings": []}
    rings = [
        {"group": group.group_name, **counters}
        for group in _job.groups
        if not group.is_shut_down
        for counters in group.ring_counters()
    ]
    return {"links": _link_stats(_job), "rings": rings}


def _link_stats(job: _Job) -> list[dict[str, Any]]:
    return list(job.session.link_counters())


def _planned_links(job: _Job) -> list[dict[str, Any]]:
    return [link for link in _link_stats(job) if link["source_port"] >= 0]


def _begin_iteration(job: _Job | None) -> int:
    return int(job.session.begin_iteration()) if job is not None else 0


def _iteration_bytes(job: _Job | None, first: int, count: int) -> tuple[list[int], list[list[int]]]:
    """Of this rank's own messages, and of the planned links, in their order."""
    if job is None:
        return [0] * count, []
    own, of_links = job.session.iteration_bytes(first, count)
    links = zip(_link_stats(job), of_links, strict=True)
    return own, [sent for link, sent in links if link["source_port"] >= 0]


def _on_closed(rank: int, server: int, why: str) -> None:
    if why:
        log.warning("rank %d: aborted: %s", rank, why)
    if _job is not None and _job.end_meter is not None:
        _job.end_meter()
    run_dir = os.environ.get("TOPOOPT_RUN_DIR")
    if run_dir and _job is not None:
        planned: list[dict[str, Any]] = [
            {name: value for name, value in link.items() if name != "kind"}  # all are sockets
            for link in _planned_links(_job)
        ]
        document = {"version": 1, "rank": rank, "server": server, "links": planned}
        seen = _job.meter.result() if _job.meter is not None else None
        if seen is not None:
            for link, size in zip(planned, seen.link_bytes, strict=True):
                link["iteration_bytes"] = size
            document["iterations"] = {
                "count": seen.count,
                "seconds": seen.seconds,
                "first_ended_s": _job.meter.first_ended_s if _job.meter is not None else None,
            }
        write_text_atomically(Path(run_dir) / f"links-rank{rank}.json", json.dumps(document) + "\n")


@atexit.register
def _leave() -> None:
    """Shuts the job down; after an uncaught exception, tells the other ranks at once."""
    if _job is None or _job.session.closed or _job.session.inherited:
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        _job.session.fail(f"{type(error).__name__}: {error}")
        return
    for group in _job.groups:
        group.shutdown()
