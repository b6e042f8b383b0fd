"""Process groups outside torch.distributed's world, for libraries that make their own.

torchft keeps one among the replicas of a model, in addition to the default group of each replica.
After a failure it aborts it and makes another, over a store with another prefix, with other ranks
and another world size. Such a group has a job and links of its own; its failures leave the default
group alone, and vice versa.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_topoopt.runtime import backend
from torch_topoopt.runtime.job import open_job
from torch_topoopt.runtime.job_network import Place
from torch_topoopt.runtime.requested_backends import note_opened

_TIMEOUT = timedelta(minutes=30)  # torch.distributed's default


def new_process_group(
    store: Any, rank: int, world_size: int, timeout: timedelta | float = _TIMEOUT
) -> dist.ProcessGroup:
    """A process group "topoopt" of the `world_size` processes that call this with the same `store`.

    torch.distributed does not know it. `timeout` (seconds, or a timedelta) limits the rendezvous
    and every operation. End it with `abort()` or `shutdown()`; then you may make another, with a
    prefix of its own in the store (dist.PrefixStore). Raises ValueError for a rank outside
    0..world_size - 1, and FabricError where the others do not come or cannot be reached.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank: {rank} is not in 0..{world_size - 1}")
    extension = backend.prepared_extension()
    limit = backend.as_timedelta(timeout)
    ranks = tuple(range(world_size))
    job = open_job(extension, Place(rank, ranks, world_size, separate=True), store, limit)
    try:
        own = backend.own_options(extension, None, limit)
        own.group_name = "separate"
        group = backend.open_group(extension, job, list(ranks), own, store)
    except BaseException as error:
        job.session.fail(f"{type(error).__name__}: {error}")
        raise
    note_opened()
    made = dist.ProcessGroup(store, rank, world_size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    made._set_default_backend(kind)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        made._register_backend(torch.device(device), kind, group)
    return made
