"""Process groups that are no part of torch.distributed's world, for libraries that make their own.

torchft keeps one among the replicas of a model, beside the default group of each replica: after a
failure it aborts it and makes another, over a store with another prefix, with other ranks and
another world size. Such a group has a job of its own, with links of its own; what happens to it
leaves the default group alone, and the other way round.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_topoopt.runtime import backend
from torch_topoopt.runtime.job import open_job
from torch_topoopt.runtime.job_network import Place

_TIMEOUT = timedelta(minutes=30)  # that of torch.distributed


def new_process_group(
    store: Any, rank: int, world_size: int, timeout: timedelta | float = _TIMEOUT
) -> dist.ProcessGroup:
    """A process group "topoopt" of the `world_size` processes that call this with the same `store`.

    Nothing of it is known to torch.distributed; `timeout` (seconds, or a timedelta) is of meeting
    and of every operation. Its `abort()` or `shutdown()` ends it, and after either another may be
    made, with a prefix of its own in the store (dist.PrefixStore). Raises ValueError for a rank
    outside 0..world_size - 1, and FabricError where the others do not come or cannot be reached.
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
    made = dist.ProcessGroup(store, rank, world_size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    made._set_default_backend(kind)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        made._register_backend(torch.device(device), kind, group)
    return made
