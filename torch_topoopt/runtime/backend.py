"""The process group "topoopt" in PyTorch: its registration, and the C++ backend's Plan.

A rank of `topoopt run` finds its Plan and Wiring in the environment. Every server has the same
number of ranks, in the order of the servers. The first process group connects this rank with the
others of its server and, if it is the server's leader, opens the server's links. Later groups share
these connections.

Environment: TOPOOPT_PLAN, TOPOOPT_WIRING (paths of the two documents), TOPOOPT_RUN_DIR (folder for
the final byte counters of the links), TOPOOPT_LOG=info|debug, TOPOOPT_ALGORITHM=
auto|ring|multi_ring|both_ways|tree|doubling|torus|swing|breadth_first|packing|flooding|one_shot
(over links, for collectives that support it), TOPOOPT_ALLTOALL_ROUTES=plan (all-to-alls take the
plan's routes, whatever their sizes), TOPOOPT_SHARED_MEMORY=0 (links also between the ranks of
one server), TOPOOPT_TAKE_OVER (see torch_topoopt.runtime.requested_backends),
TOPOOPT_COMPARE_PLACES=0 (with TORCH_DISTRIBUTED_DEBUG=DETAIL, ranks may call a collective at
different places of the script).
"""

from __future__ import annotations

import atexit
import copy
import functools
import importlib
import logging
import os
import sys
import weakref
import zlib
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torch_topoopt.discovery.host import shared_memory_allowed
from torch_topoopt.environment import misspelt
from torch_topoopt.links.shared_segment import open_segment
from torch_topoopt.runtime import requested_backends
from torch_topoopt.runtime.c10d_hooks import watch_groups
from torch_topoopt.runtime.c10d_names import open_name_locks
from torch_topoopt.runtime.job import Job, end_past_jobs, job_of, job_with, jobs, let_go, open_job
from torch_topoopt.runtime.job_network import Place
from torch_topoopt.runtime.versions import check_build
from torch_topoopt.supervision.dumps import is_of_script

if TYPE_CHECKING:
    from types import FrameType

    from torch_topoopt.links.identity import Identity
    from torch_topoopt.runtime.session_types import GroupConfig

_NAME = "topoopt"
_PLACES_VARIABLE = "TOPOOPT_COMPARE_PLACES"
_LOG_LEVELS = ("debug", "info", "warning", "error")

log = logging.getLogger("torch_topoopt")


@functools.cache
def _extension() -> Any:
    check_build(torch.__version__)
    return importlib.import_module("torch_topoopt._backend")


def prepared_extension() -> Any:
    """The C++ backend, after a check of the environment."""
    _check_log_level()
    _in_place()
    return _extension()


def load() -> None:
    """Loads the C++ backend; raises ImportError.

    In the parent of ranks, before it forks, this takes 1.5 ms. Each rank would need 3 ms, because
    it writes to many pages that it shares with the parent.
    """
    _extension()


def register() -> None:
    """Registers "topoopt" with torch.distributed, and applies the environment.

    A second call after a fork applies the environment of that moment.
    """
    if not hasattr(dist.Backend, _NAME.upper()):
        _register()
    _adopt_environment()


def _register() -> None:
    # Does not query for a device, for that would break ranks that fork.
    devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
    dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=devices)
    # For "cpu:topoopt,cuda:nccl" and the like, PyTorch looks up the first name of this dict, in
    # capitals, among lower-case names; without this, a group would have no default backend.
    plugins = dist.Backend._plugins
    dist.Backend._plugins = {_NAME: plugins[_NAME.upper()], **plugins}
    open_name_locks(checking_group)
    watch_groups(_NAME, _join, let_go)


def _adopt_environment() -> None:
    """In a rank of `topoopt run`, a process group without a named backend is a "topoopt" one.

    Also applies the requested replacement of backends and the log level.
    """
    planned = "TOPOOPT_PLAN" in os.environ
    if planned:
        dist.Backend.default_device_backend_map["cpu"] = _NAME
    if planned or requested_backends.TAKE_OVER_VARIABLE in os.environ:
        requested_backends.watch(_NAME, default=planned)
    level = os.environ.get("TOPOOPT_LOG", "")
    if level in _LOG_LEVELS:  # _create rejects others, so that `import torch` still works
        logging.basicConfig(format="%(name)s %(levelname)s: %(message)s")
        log.setLevel(level.upper())


def _check_log_level() -> None:
    level = os.environ.get("TOPOOPT_LOG", "")
    if level and level not in _LOG_LEVELS:
        raise RuntimeError(f"TOPOOPT_LOG: {level!r} is not one of {', '.join(_LOG_LEVELS)}")


def _warn_of_misspelt_variables() -> None:
    for name, near in misspelt(os.environ).items():
        log.warning("topoopt: %s is not a variable; did you mean %s?", name, near)


def _in_place() -> bool:
    """Whether host-accessible device tensors are used in place."""
    value = os.environ.get("TOPOOPT_DEVICE_MEMORY", "auto")
    if value not in ("auto", "copy"):
        raise RuntimeError(f"TOPOOPT_DEVICE_MEMORY: {value!r} is not one of auto, copy")
    return value == "auto"


def _planned_routes_only() -> bool:
    """Whether all-to-alls take the plan's routes whatever their sizes."""
    value = os.environ.get("TOPOOPT_ALLTOALL_ROUTES", "auto")
    if value not in ("auto", "plan"):
        raise RuntimeError(f"TOPOOPT_ALLTOALL_ROUTES: {value!r} is not one of auto, plan")
    return value == "plan"


def _create(options: Any, backend_options: Any) -> Any:
    """torch.distributed's creator: one process group for `options.global_ranks_in_group`."""
    extension = prepared_extension()
    timeout = as_timedelta(options.timeout)
    ranks = tuple(options.global_ranks_in_group)
    if not ranks:  # the default group
        end_past_jobs("a new default process group was created")
        ranks = tuple(range(options.group_size))
        if options.group_rank == 0:
            _warn_of_misspelt_variables()
        place = Place(options.group_rank, ranks, options.group_size)
        job = open_job(extension, place, options.store, timeout)
    else:
        # Without `join`, only the members of the group take part.
        place = Place(options.group_rank, ranks, dist.get_world_size())
        job = job_of(ranks) or open_job(extension, place, options.store, timeout)
    requested_backends.note_opened()
    own = own_options(extension, backend_options, timeout)
    own.group_name = options.group_id
    return open_group(extension, job, list(ranks), own, options.store)


def _join(timeout: timedelta | float | None) -> None:
    """Opens the job of all ranks, before some of them make the first "topoopt" group.

    The others relay for the group, so they take part without being members.
    """
    ranks = tuple(range(dist.get_world_size()))
    if job_of(ranks) is not None:
        return
    limit = c10d._get_default_timeout(dist.Backend(_NAME)) if timeout is None else timeout
    _check_log_level()
    place = Place(dist.get_rank(), ranks, len(ranks))
    store = dist.PrefixStore(_NAME, c10d._get_default_store())
    open_job(_extension(), place, store, as_timedelta(limit)).hold()


def own_options(extension: Any, given: Any, timeout: timedelta) -> Any:
    """A copy of the caller's pg_options, or new ones, with the group's timeout."""
    kind = extension.ProcessGroupTopoopt.Options
    if given is not None and not isinstance(given, kind):
        raise TypeError(
            f"topoopt: pg_options: {type(given).__name__} is not ProcessGroupTopoopt.Options"
        )
    options = kind() if given is None else copy.copy(given)
    options._timeout = timeout
    return options


def open_group(extension: Any, job: Job, ranks: list[int], options: Any, store: Any) -> Any:
    """The group of those ranks of the job; `options` has its name and timeout."""
    options.global_ranks_in_group = ranks
    config = job.group(ranks)
    config.name, config.cost = options.group_name, job.cost_for(ranks)
    config.algorithm = os.environ.get("TOPOOPT_ALGORITHM", "auto")
    config.planned_routes_only = _planned_routes_only()
    # A group with a reused name finds the keys of its first life there.
    number = store.add(f"lives/{job.life}/{config.name}/{config.rank}", 1)
    life = f"life{job.life}.{number}"
    config.channel = _channel(job, f"{config.name}/{number}")
    store = dist.PrefixStore(life, store)
    identity = job.identity.derived(f"segment {life} {config.name}")
    config.segment_fd = _open_segment(extension, config, store, identity)
    if config.rank == 0:
        engine = "in shared memory" if config.segment_fd >= 0 else _describe_links(config)
        at = ", ".join(map(str, sorted(set(config.servers))))
        log.info("group %s: ranks %s on servers %s; collectives %s", config.name, ranks, at, engine)
        if why := job.why_circuits_stay(config):
            log.info("group %s: its all-to-alls keep the plan's circuits: %s", config.name, why)
    group = extension.ProcessGroupTopoopt(
        job.session,
        config,
        options,
        store,
        functools.partial(_split, weakref.ref(job), ranks),
        in_place=_in_place(),
    )
    job.groups = {**_open_groups(job), config.channel: group}
    return group


def _open_segment(extension: Any, config: GroupConfig, store: Any, identity: Identity) -> int:
    """The memory of a group whose members are all on one server; -1 if it has none."""
    size = len(config.servers)
    if len(set(config.servers)) > 1 or not 1 < size <= extension.MAX_TEAM_MEMBERS:
        return -1
    if not shared_memory_allowed():
        return -1
    return open_segment(
        dist.PrefixStore("segment", store),
        identity,
        config.ranks,
        config.rank,
        extension.team_segment_bytes(size),
        lambda why: log.warning(
            "group %s: its ranks cannot share memory and use links instead: %s", config.name, why
        ),
    )


def _describe_links(config: GroupConfig) -> str:
    """By the servers of the members on the rings."""
    rings = ", ".join(
        f"{'-'.join(str(config.servers[member]) for member in ring.servers)} ({ring.share:.0%})"
        for ring in config.rings
    )
    return f"over links, algorithm {config.algorithm}, rings over servers: {rings or 'none'}"


def _split(
    of_parent: weakref.ref[Job], parent_ranks: list[int], store: Any, ranks: list[int], given: Any
) -> Any:
    """The group of some members, given by their ranks in a group of `parent_ranks`."""
    job = of_parent()
    if job is None or job.session.closed:
        raise RuntimeError("topoopt: split: the process group was shut down")
    extension = _extension()
    options = own_options(extension, given, given._timeout)
    return open_group(extension, job, [parent_ranks[rank] for rank in ranks], options, store)


def checking_group(group: Any, store: Any) -> Any:
    """A second group of the same ranks, with which torch checks the calls of the first."""
    options = group.options
    ranks = list(options.global_ranks_in_group)
    job = job_with(group)
    options.group_name += "/checks"
    checking = open_group(_extension(), job, ranks, options, store)
    group.check_with(checking, place_of_caller if _compares_places() else None)
    return checking


def _compares_places() -> bool:
    value = os.environ.get(_PLACES_VARIABLE, "1")
    if value not in ("0", "1"):
        raise RuntimeError(f"{_PLACES_VARIABLE}: {value!r} is not one of 0, 1")
    return value == "1"


def place_of_caller() -> str:
    """The innermost script line of this thread, "train.py:12"; "" if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_of_script(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def as_timedelta(timeout: timedelta | float) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


def _channel(job: Job, unique_name: str) -> int:
    """The number of a group, equal on all its ranks; they only have its name in common.

    PyTorch may give the name of a destroyed group to a new one, which must not receive the old
    one's late messages. So the name includes the group's life.
    """
    channel = zlib.crc32(unique_name.encode()) & 0x7FFFFFFF
    if (other := _open_groups(job).get(channel)) is not None:
        raise RuntimeError(
            f"topoopt: groups {other.group_name!r} and {unique_name!r} have the same channel"
        )
    return channel


def _open_groups(job: Job) -> dict[int, Any]:
    return {number: group for number, group in job.groups.items() if not group.is_shut_down}


def _held_memory(job: Job) -> dict[str, int]:
    held: dict[str, tuple[int, int]] = job.session.held_memory()
    return {
        f"{kind}_{name}": number
        for kind, numbers in held.items()
        for name, number in zip(("bytes", "peak_bytes"), numbers, strict=True)
    } | {"remembered_entries": job.session.remembered_entries()}


def stats() -> dict[str, list[dict[str, Any]]]:
    """Bytes that this rank has sent so far: "links" and, for all open groups, "rings"; "memory",
    "device_memory".

    One dict per link: source, source_port, target, target_port (ports are -1 inside a server), kind
    ("socket" or "shm"), sent_bytes (payload, own and relayed), relayed_bytes (the part from other
    ranks), received_bytes, overhead_bytes (headers and control frames), seconds (with something to
    send), zero_copy_bytes (sent in place, and released by the kernel) and copied_bytes (the same,
    but the kernel has copied them; docs/guides/fast-links.md).

    One dict per ring, tree or kind of direct message of a group: group (its name), kind ("ring",
    "tree", "direct" or "torus"), index, ranks (in a ring's order, else empty), sent_bytes, seconds
    (in which an operation was active there).

    One dict per job of this rank's buffers, now and at most: relay_bytes, relay_peak_bytes (payload
    for other ranks), early_bytes, early_peak_bytes (messages without a posted receive),
    buffer_bytes, buffer_peak_bytes (all waiting payload), remembered_entries (open or recent flows
    and groups). One dict per group and kind of device memory: group, memory (its kind, or why it
    was copied), in_place (used without a copy), bytes (of operations so far).
    """
    rings = [
        {"group": group.group_name, **counters}
        for job in jobs
        for group in _open_groups(job).values()
        for counters in group.ring_counters()
    ]
    links = [asdict(link) for job in jobs for link in job.links()]
    for link in links:
        del link["iteration_bytes"]  # measured at the end
    memory = [_held_memory(job) for job in jobs]
    device_memory = [
        {"group": group.group_name, **use}
        for job in jobs
        for group in _open_groups(job).values()
        for use in group.device_memory()
    ]
    return {"links": links, "rings": rings, "memory": memory, "device_memory": device_memory}


@atexit.register
def _leave() -> None:
    """Shuts the jobs down; after an uncaught exception, notifies the other ranks at once."""
    error = getattr(sys, "last_value", None)
    for job in jobs:
        if job.session.closed or job.session.inherited:
            continue
        if error is not None:
            job.session.fail(f"{type(error).__name__}: {error}")
        else:
            if under_way := job.calls_under_way():
                log.warning("topoopt: rank %d ends %s", job.place.ranks[job.place.index], under_way)
            job.leave()


# torch_topoopt.runtime.autoload waits for this if this module was imported before torch.
if _after_import := globals().get("after_import"):
    _after_import()
