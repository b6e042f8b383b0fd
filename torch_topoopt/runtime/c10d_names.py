"""Enables features of torch.distributed that depend on a backend's name, for "topoopt" groups.

monitored_barrier rejects every backend except gloo, and TORCH_DISTRIBUTED_DEBUG=DETAIL adds a gloo
group, which connects all pairs of ranks, to any other. Other groups are unchanged.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:
    from collections.abc import Callable


def open_name_locks(make_checking_group: Callable[[Any, Any], Any]) -> None:
    """`make_checking_group` gets a group and a store, and makes the group for the checks."""
    barrier = _monitored_barrier(c10d.monitored_barrier)
    dist.monitored_barrier = c10d.monitored_barrier = barrier
    c10d._create_process_group_wrapper = _process_group_wrapper(
        c10d._create_process_group_wrapper, make_checking_group
    )


def _is_topoopt(backend: Any) -> bool:
    return type(backend).__module__ == "torch_topoopt._backend"


def _cpu_backend(group: Any) -> Any:
    """The backend of a group's CPU tensors, without its wrapper; None if it has none."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    return getattr(backend, "wrapped_pg", backend)


def _monitored_barrier(original: Any) -> Any:
    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        if group is None and dist.is_initialized():
            group = c10d._get_default_group()
        if group is None or c10d._rank_not_in_group(group) or not _is_topoopt(_cpu_backend(group)):
            original(group, timeout, wait_all_ranks)
            return
        backend = group._get_backend(torch.device("cpu"))
        if timeout is None:
            timeout = backend.options._timeout
        elif not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)
        group.monitored_barrier(timeout, wait_all_ranks)

    return monitored_barrier


def _process_group_wrapper(original: Any, make_checking_group: Callable[[Any, Any], Any]) -> Any:
    @functools.wraps(original)
    def create(wrapped_pg: Any, store_prefix: str, store: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_topoopt(wrapped_pg):
            return original(wrapped_pg, store_prefix, store, *args, **kwargs)
        store = dist.PrefixStore(f"checks:{store_prefix}", store)
        return c10d._ProcessGroupWrapper(wrapped_pg, make_checking_group(wrapped_pg, store))

    return create
