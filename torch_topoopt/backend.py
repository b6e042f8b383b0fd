"""The process group "topoopt" in PyTorch: registers it, and hands the Plan to the C++ backend.

Started by `topoopt run`, a rank finds its Plan and Wiring in the environment. The first process
group opens the links of this server and nothing else; later ones share them. Ranks are servers, in
the same order.

Environment: TOPOOPT_PLAN, TOPOOPT_WIRING (paths of the two documents), TOPOOPT_RUN_DIR (where the
byte counters of the links are written at the end), TOPOOPT_LOG=info|debug.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import logging
import os
import sys
import zlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torch_topoopt.data_model import DocumentError, write_text_atomically
from torch_topoopt.fabric.links import OpenLink, describe, open_links
from torch_topoopt.fabric.wiring import Wiring
from torch_topoopt.plan import Plan, Ring

_NAME = "topoopt"
_WINDOW_BYTES = 4 << 20  # per flow in the network; see csrc/transport/endpoint.h
_CONNECT_TIMEOUT_S = 60.0

log = logging.getLogger("torch_topoopt")


class BuildMismatchError(ImportError):
    """The C++ backend was built with another torch than the one that is imported."""


def check_build() -> None:
    """Raises BuildMismatchError if the C++ backend does not fit this torch, or was never built."""
    record = Path(__file__).with_name("_build_info.json")
    remedy = "build it with: pip install --no-build-isolation -e ."
    if not record.exists():
        raise BuildMismatchError(f"torch_topoopt's C++ backend is not built; {remedy}")
    built_with = json.loads(record.read_text())["torch"]
    if built_with != torch.__version__:
        raise BuildMismatchError(
            f"torch_topoopt's C++ backend was built with torch {built_with}, but this is torch "
            f"{torch.__version__}; re{remedy}"
        )


def _extension() -> Any:
    check_build()
    return importlib.import_module("torch_topoopt._backend")


def register() -> None:
    """Makes "topoopt" known to torch.distributed; harmless if it is known already.

    In a rank started by `topoopt run`, a process group that names no backend is a "topoopt" one.
    """
    if hasattr(dist.Backend, _NAME.upper()):
        return
    dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])
    if "TOPOOPT_PLAN" in os.environ:
        dist.Backend.default_device_backend_map["cpu"] = _NAME
        _default_to_topoopt()
    if level := os.environ.get("TOPOOPT_LOG"):
        logging.basicConfig(format="%(name)s %(levelname)s: %(message)s")
        log.setLevel(level.upper())


def _default_to_topoopt() -> None:
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original(_NAME if backend is None else backend, *args, **kwargs)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


@dataclass
class _Job:
    """What the process groups of this process share."""

    plan: Plan
    rank: int
    session: Any  # _backend.Session
    channels: dict[int, str]
    groups: list[Any]


_job: _Job | None = None


def _create(options: Any, _backend_options: object) -> Any:
    """torch.distributed's creator: one process group for `options.global_ranks_in_group`."""
    global _job
    extension = _extension()
    if _job is None or _job.session.closed:
        if options.global_ranks_in_group:
            raise RuntimeError("topoopt: the default process group is gone; create it anew first")
        _job = _open_job(extension, options)
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    group = extension.ProcessGroupTopoopt(
        session=_job.session,
        name=options.group_id,
        channel=_channel(_job, options.group_id),
        rank=options.group_rank,
        ranks=ranks,
        rings=[
            ([ranks.index(server) for server in ring.servers], ring.share)
            for ring in rings_of(_job.plan, ranks)
        ],
        timeout=_as_timedelta(options.timeout),
    )
    _job.groups.append(group)
    return group


def _as_timedelta(timeout: timedelta | float) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def _channel(job: _Job, group_name: str) -> int:
    """The number that all ranks give to a group; its name is all that they have in common."""
    channel = zlib.crc32(group_name.encode()) & 0x7FFFFFFF
    other = job.channels.setdefault(channel, group_name)
    if other != group_name:
        raise RuntimeError(f"topoopt: groups {other!r} and {group_name!r} have the same channel")
    return channel


def rings_of(plan: Plan, ranks: list[int]) -> list[Ring]:
    """The rings over `ranks`: the plan's if it has that group, or both ways round a short cycle."""
    members = set(ranks)
    for group in plan.network.groups:
        if set(group.servers) == members and group.rings:
            return list(group.rings)
    if len(ranks) == 1:
        return [Ring(tuple(ranks), 1.0)]
    order = _short_cycle(plan, sorted(ranks))
    if len(ranks) == 2 or plan.cluster.ports == "simplex":
        return [Ring(order, 1.0)]
    return [Ring(order, 0.5), Ring(tuple(reversed(order)), 0.5)]


def _short_cycle(plan: Plan, ranks: list[int]) -> tuple[int, ...]:
    """Visits the ranks by nearest neighbour, counted in hops; ties to the lower rank."""
    hops = {
        pair: min(len(route.servers) - 1 for route in routes)
        for pair, routes in plan.network.routes_by_pair().items()
    }
    order = [ranks[0]]
    left = ranks[1:]
    while left:
        here = order[-1]
        nearest = min(left, key=lambda rank: (hops[here, rank], rank))
        order.append(nearest)
        left.remove(nearest)
    return tuple(order)


def _open_job(extension: Any, options: Any) -> _Job:
    plan, wiring = _load_documents(options.group_size)
    rank = options.group_rank
    store = options.store
    timeout_s = min(_as_timedelta(options.timeout).total_seconds(), _CONNECT_TIMEOUT_S)
    # A group that is created again after its end finds the keys of its first life in the store.
    life = store.add(f"lives/{rank}", 1)
    opened = open_links(
        plan,
        wiring,
        rank,
        timeout_s=timeout_s,
        listening=lambda: store.set(f"listening/{life}/{rank}", "1"),
        wait_for=lambda other: store.wait(
            [f"listening/{life}/{other}"], timedelta(seconds=timeout_s)
        ),
    )
    for link in opened:
        _log_link(link)
    session = extension.Session(
        rank=rank,
        size=options.group_size,
        links=[_as_tuple(link) for link in opened],
        routes=[(list(route.servers), route.weight) for route in plan.network.routes],
        window_bytes=_WINDOW_BYTES,
        closed=functools.partial(_on_closed, rank),
    )
    return _Job(plan, rank, session, {}, [])


def _load_documents(world_size: int) -> tuple[Plan, Wiring]:
    try:
        plan_path, wiring_path = os.environ["TOPOOPT_PLAN"], os.environ["TOPOOPT_WIRING"]
    except KeyError as error:
        raise RuntimeError(
            f"topoopt: {error.args[0]} is not set: the backend needs a plan and its wiring; "
            "start this script with `topoopt run`"
        ) from None
    plan = Plan.load(plan_path)
    if plan.cluster.servers != world_size:
        raise DocumentError(
            f"{plan_path}: the plan is for {plan.cluster.servers} servers, but this job has "
            f"{world_size} ranks"
        )
    return plan, Wiring.load(wiring_path).check(plan)


def _log_link(opened: OpenLink) -> None:
    connection = opened.connection
    near, far = connection.getsockname(), connection.getpeername()
    log.info("%s: %s:%d - %s:%d", describe(opened.link), *near, *far)


def _as_tuple(opened: OpenLink) -> tuple[int, int, int, int, int, bool]:
    link = opened.link
    ends = (link.source, link.source_port, link.target, link.target_port)
    return (*ends, opened.connection.detach(), opened.sends)


def stats() -> list[dict[str, Any]]:
    """What this rank has sent on each of its links so far.

    One dict per link: source, source_port, target, target_port, sent_bytes (payload, own and
    relayed), relayed_bytes (the part that came from other ranks), received_bytes, overhead_bytes
    (headers and control frames), seconds (with something to send). Empty before the first group.
    """
    return [] if _job is None else list(_job.session.link_counters())


def _on_closed(rank: int, why: str) -> None:
    if why:
        log.warning("rank %d: the job did not end in good order: %s", rank, why)
    run_dir = os.environ.get("TOPOOPT_RUN_DIR")
    if run_dir:
        document = {"version": 1, "rank": rank, "links": stats()}
        write_text_atomically(Path(run_dir) / f"links-rank{rank}.json", json.dumps(document) + "\n")


@atexit.register
def _leave() -> None:
    """Ends the job in good order; after an uncaught exception, tells the other ranks at once."""
    if _job is None or _job.session.closed:
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        _job.session.fail(f"{type(error).__name__}: {error}")
        return
    for group in _job.groups:
        group.shutdown()
