"""Groups of "topoopt" beside a default process group of another backend."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.backend.networks import plan_of, ring
from support.backend.ranks import run_bare_ranks, run_ranks, values
from support.refusals import named
from torch.distributed.device_mesh import init_device_mesh

from torch_topoopt.runtime import backend


def check_sums(group: dist.ProcessGroup, ranks: list[int]) -> None:
    """Every collective of a few kinds, of more than one message."""
    own = float(dist.get_rank() + 1)
    expected = float(sum(rank + 1 for rank in ranks))
    for count in (3, 70_001):
        total = torch.full((count,), own)
        dist.all_reduce(total, group=group)
        assert torch.equal(total, torch.full((count,), expected))
    gathered = torch.empty(len(ranks))
    dist.all_gather_into_tensor(gathered, torch.tensor([own]), group=group)
    assert gathered.tolist() == [rank + 1.0 for rank in ranks]
    dist.barrier(group=group)


def use_groups_beside(default: str) -> list[list[int]]:
    """The groups of this rank whose sums were right."""
    dist.init_process_group(default)
    seen = []
    for ranks in ([0, 2], [1, 3], [0, 1, 2], [3], [0, 1, 2, 3]):
        group = dist.new_group(ranks, backend="topoopt")
        if dist.get_rank() in ranks:
            check_sums(group, ranks)
            seen.append(ranks)
    dist.destroy_process_group(group)  # others go on
    group = dist.new_group([1, 2], backend="cpu:topoopt")
    if dist.get_rank() in (1, 2):
        check_sums(group, [1, 2])
        seen.append([1, 2])
    total = torch.ones(2)
    dist.all_reduce(total)  # of the default group
    assert total.tolist() == [4.0, 4.0]
    dist.destroy_process_group()
    assert all(job.session.closed for job in backend.jobs)
    return seen


def groups_beside_gloo(rank: int, world: int) -> list[list[int]]:
    return use_groups_beside("gloo")


def groups_beside_gloo_of_the_cpu(rank: int, world: int) -> list[list[int]]:
    return use_groups_beside("cpu:gloo")


def groups_of(rank: int) -> list[list[int]]:
    every = ([0, 2], [1, 3], [0, 1, 2], [3], [0, 1, 2, 3], [1, 2])
    return [ranks for ranks in every if rank in ranks]


@pytest.mark.parametrize("function", [groups_beside_gloo, groups_beside_gloo_of_the_cpu])
def test_groups_of_some_ranks_use_all_planned_links(tmp_path, function):
    # 0 and 2 have no cable: ranks relay that are in no group yet
    outcomes = run_ranks(plan_of(4, ring(4)), tmp_path, function)
    assert values(outcomes) == [groups_of(rank) for rank in range(4)]


@pytest.mark.parametrize("shared_memory", ["0", "1"])
def test_groups_of_some_ranks_discover_the_network_of_all(shared_memory):
    outcomes = run_bare_ranks(4, groups_beside_gloo, TOPOOPT_SHARED_MEMORY=shared_memory)
    assert values(outcomes) == [groups_of(rank) for rank in range(4)]


def come_and_go(rank: int, world: int) -> list[float]:
    sums = []
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    for life in range(3):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(f"life{life}", store), rank=rank, world_size=world
        )
        group = dist.new_group([0, 2], backend="topoopt")
        if rank != 1:
            total = torch.ones(5)
            dist.all_reduce(total, group=group)
            sums.append(total.sum().item())
        dist.barrier()
        if life == 1:
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
        assert all(job.session.closed for job in backend.jobs)
    return sums


def test_a_default_group_of_another_backend_may_end_and_come_again(tmp_path):
    outcomes = run_ranks(plan_of(3, ring(3)), tmp_path, come_and_go)
    assert values(outcomes) == [[10.0] * 3, [], [10.0] * 3]


def use_a_mesh(rank: int, world: int) -> tuple[str, str]:
    dist.init_process_group("gloo")
    mesh = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("dp", "tp"), backend_override={"dp": "topoopt"}
    )
    check_sums(mesh["dp"].get_group(), [rank % 2, rank % 2 + 2])
    names = (dist.get_backend(mesh["dp"].get_group()), dist.get_backend(mesh["tp"].get_group()))
    dist.destroy_process_group()
    return names


def test_one_dimension_of_a_mesh_may_be_topoopt(tmp_path):
    outcomes = run_ranks(plan_of(4, ring(4)), tmp_path, use_a_mesh)
    assert values(outcomes) == [("topoopt", "gloo")] * 4


def split_a_group(rank: int, world: int) -> int:
    dist.init_process_group("gloo")
    parent = dist.new_group(backend="topoopt")
    child = parent.split_group([0, 2] if rank % 2 == 0 else [1, 3], timedelta(seconds=30))
    ranks = [rank % 2, rank % 2 + 2]
    total = torch.tensor([rank + 1.0])
    child.allreduce([total]).wait()
    assert total.item() == sum(r + 1 for r in ranks)
    dist.destroy_process_group()
    return child.size()


def test_a_group_beside_another_backend_can_be_split(tmp_path):
    assert values(run_ranks(plan_of(4, ring(4)), tmp_path, split_a_group)) == [2] * 4


def make_a_group_alone(rank: int, world: int) -> str:
    dist.init_process_group("gloo")
    message = ""
    ranks = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(ranks, backend="topoopt", use_local_synchronization=True)
    check_sums(group, ranks)
    dist.destroy_process_group(group)
    if rank in (0, 2):  # no rank relays for them, for only they have come
        try:
            dist.new_group([0, 2], backend="topoopt", use_local_synchronization=True)
        except ValueError as error:
            message = str(error)
    group = dist.new_group([0, 2], backend="topoopt")
    if rank in (0, 2):
        check_sums(group, [0, 2])
    dist.destroy_process_group()
    return message


def test_members_that_come_alone_have_the_links_between_them_only(tmp_path):
    messages = values(run_ranks(plan_of(4, ring(4)), tmp_path, make_a_group_alone))
    assert (messages[1], messages[3]) == ("", "")
    for text in (messages[0], messages[2]):
        assert named(text, 0, 2, "reach")
        assert "without servers 1, 3" in text
