"""Several ranks per server: the leader holds the links, the others reach it in memory."""

from __future__ import annotations

import functools
import json
import os

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

from torch_topoopt.runtime import backend


def use_every_operation(rank: int, world: int) -> int:
    dist.init_process_group("topoopt")
    total = torch.full((10_007,), float(rank + 1))
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((10_007,), world * (world + 1) / 2))
    gathered = [torch.empty(33) for _ in range(world)]
    dist.all_gather(gathered, torch.full((33,), float(rank)))
    assert [int(t[32]) for t in gathered] == list(range(world))
    received = torch.empty(world)
    dist.all_to_all_single(received, torch.arange(world) + 100.0 * rank)
    assert torch.equal(received, torch.arange(world) * 100.0 + rank)
    odd = dist.new_group(list(range(1, world, 2)))
    if rank % 2:
        number = torch.tensor([rank])
        dist.all_reduce(number, group=odd)
        assert number.item() == sum(range(1, world, 2))
    neighbour = torch.tensor([rank])
    for source in range(world):  # every pair has its route, relayed or not
        copy = neighbour.clone()
        dist.broadcast(copy, source)
        assert copy.item() == source
    dist.barrier()
    dist.destroy_process_group()
    return world


@pytest.mark.parametrize(
    ("servers", "degree", "per_server", "ports"),
    [(4, 2, 2, "duplex"), (3, 2, 3, "duplex"), (2, 1, 4, "duplex"), (3, 2, 2, "simplex")],
)
def test_all_operations_work_with_several_ranks_per_server(
    servers, degree, per_server, ports, tmp_path
):
    plan = make_plan(servers, degree, ports=ports)
    world = servers * per_server
    assert values(run_ranks(plan, tmp_path, use_every_operation, world=world)) == [world] * world
    for rank in range(world):
        document = json.loads((tmp_path / f"links-rank{rank}.json").read_text())
        assert document["server"] == rank // per_server
        linked = {link["source"] for link in document["links"]}
        assert linked == ({document["server"]} if rank % per_server == 0 else set())


def describe_local_links(allowed: str, rank: int, world: int) -> list[tuple[str, bool]]:
    os.environ["TOPOOPT_SHARED_MEMORY"] = allowed
    use_every_operation(rank, world)
    dist.init_process_group("topoopt")
    dist.barrier()
    kinds = [(link["kind"], link["source_port"] < 0) for link in backend.stats()["links"]]
    dist.destroy_process_group()
    return sorted(kinds)


@pytest.mark.parametrize(("allowed", "kind"), [("0", "socket"), ("1", "shm")])
def test_shared_memory_between_ranks_of_a_server_can_be_turned_off(allowed, kind, tmp_path):
    function = functools.partial(describe_local_links, allowed)
    outcomes = run_ranks(make_plan(2, 1), tmp_path, function, world=4)
    local, planned = (kind, True), ("socket", False)
    assert values(outcomes) == [sorted([local, planned]), [local]] * 2


def test_ranks_of_one_server_need_no_link(tmp_path):
    assert values(run_ranks(make_plan(1, 1), tmp_path, use_every_operation, world=3)) == [3] * 3


def just_start(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")


def test_a_number_of_ranks_that_does_not_divide_over_the_servers_is_one_clear_error(tmp_path):
    for outcome in run_ranks(make_plan(4, 2), tmp_path, just_start, world=6):
        assert "the plan is for 4 servers, but this job has 6 ranks" in outcome.error
        assert "start 4 ranks or a multiple of it" in outcome.error
