"""Groups of a traced script outside torch.distributed, and the quorums of torchft that make them.

A rank that is traced runs without the others, so torchft's servers, which connect from Rust, would
wait for them. Here a quorum has all replicas of the job from its first step on.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import _create_fake_pg

_EXTENSION = "torchft._torchft"


class ReplicaServer:
    """torchft's ManagerServer and LighthouseServer."""

    def __init__(self, *_: Any, world_size: int = 1, store_addr: str = "", **__: Any) -> None:
        self._address = f"{world_size} {store_addr}"

    def address(self) -> str:
        return self._address

    def shutdown(self) -> None:
        pass


class ReplicaClient:
    """torchft's ManagerClient. Consecutive ranks of the job are a replica."""

    def __init__(self, job_rank: int, job_size: int, address: str, **_: Any) -> None:
        size, self._store_address = address.split(" ")
        self._replica, self._replicas = job_rank // int(size), job_size // int(size)

    def _quorum(self, *, step: int, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(
            quorum_id=0,
            replica_rank=self._replica,
            replica_world_size=self._replicas,
            recover_src_manager_address="",
            recover_src_replica_rank=None,
            recover_dst_replica_ranks=[],
            store_address=self._store_address,
            max_step=step,
            max_replica_rank=self._replica,
            max_world_size=self._replicas,
            heal=False,
            commit_failures=0,
            replica_ids=[f"replica_{i}" for i in range(self._replicas)],
        )

    def should_commit(self, group_rank: int, step: int, should_commit: bool, **_: Any) -> bool:
        return should_commit


def install(job_rank: int, job_size: int) -> None:
    """Replaces torch_topoopt.new_process_group and the servers and clients of torchft."""
    package: Any = sys.modules[__name__.partition(".")[0]]
    package.new_process_group = functools.partial(_new_process_group, job_rank, job_size)
    extension: Any = ModuleType(_EXTENSION)
    extension.LighthouseServer = extension.ManagerServer = ReplicaServer
    extension.ManagerClient = functools.partial(ReplicaClient, job_rank, job_size)
    sys.modules[_EXTENSION] = extension


def _new_process_group(
    job_rank: int, job_size: int, store: Any, rank: int, world_size: int, **_: Any
) -> Any:
    """A fake group of one rank of each replica. Replicas have equally many ranks of the job."""
    between = job_size // world_size
    members = [job_rank + (i - rank) * between for i in range(world_size)]
    if not between or members[0] < 0 or members[-1] >= job_size:
        raise ValueError(
            f"new_process_group: rank={rank}, world_size={world_size}: this profile has rank "
            f"{job_rank} of {job_size}, and replicas of as many ranks each"
        )
    made: Any = dist.ProcessGroup(store, rank, world_size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    made._set_default_backend(kind)
    fake = _create_fake_pg(SimpleNamespace(group_rank=rank, group_size=world_size), None)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        made._register_backend(torch.device(device), kind, fake)
    dist.distributed_c10d._world.pg_group_ranks[made] = {
        member: i for i, member in enumerate(members)
    }
    return made
