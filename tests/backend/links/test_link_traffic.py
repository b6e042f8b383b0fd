"""The bytes that each operation puts on each link equal theory, to the byte."""

from __future__ import annotations

import functools
import itertools
import json
import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import make_plan, run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.plan import Pair, Plan


BLOCK_BYTES = 240_000  # of each rank; divides evenly over the segments of all rings here


def run_operation(operation: str, rank: int, world: int) -> bool:
    os.environ["TOPOOPT_ALGORITHM"] = "multi_ring"
    dist.init_process_group("topoopt")
    block, whole = torch.ones(BLOCK_BYTES // 4), torch.ones(world * BLOCK_BYTES // 4)
    if operation == "all_reduce":
        dist.all_reduce(whole)
    elif operation == "reduce_scatter":
        dist.reduce_scatter_tensor(block, whole)
    elif operation == "all_gather":
        dist.all_gather_into_tensor(whole, block)
    elif operation == "all_to_all":
        dist.all_to_all_single(torch.empty_like(whole), whole)
    elif operation == "broadcast":
        dist.broadcast(whole, 1)
    elif operation == "reduce":
        dist.reduce(whole, 1)
    elif operation == "send":
        if rank == 0:
            dist.send(whole, world - 1)
        elif rank == world - 1:
            dist.recv(whole, 0)
    dist.destroy_process_group()
    return True


def pair_bytes(plan: Plan, operation: str) -> dict[Pair, float]:
    """Bytes from rank a to rank b as the end points of messages, relayed or not."""
    world = plan.cluster.servers
    if operation == "send":
        return {(0, world - 1): world * BLOCK_BYTES}
    if operation == "all_to_all":
        return dict.fromkeys(itertools.permutations(range(world), 2), BLOCK_BYTES)
    # On a hop of a ring: every block but one, and for all_reduce in both of its phases.
    times = 2 if operation == "all_reduce" else 1
    total: dict[Pair, float] = {}
    for ring in plan.network.groups[0].rings:
        for hop in zip(ring.servers, ring.servers[1:] + ring.servers[:1], strict=True):
            part = times * (world - 1) * BLOCK_BYTES * ring.share
            total[hop] = total.get(hop, 0) + part
    return total


def link_bytes(plan: Plan, pairs: dict[Pair, float]) -> dict[Pair, tuple[float, float]]:
    """(all bytes, those that its source relays) of every link."""
    routes = plan.network.routes_by_pair()
    loads = {(link.source, link.target): (0.0, 0.0) for link in plan.network.links}
    for pair, size in pairs.items():
        (route,) = routes[pair]
        for hop in itertools.pairwise(route.servers):
            sent, relayed = loads[hop]
            loads[hop] = (sent + size, relayed + (size if hop[0] != pair[0] else 0))
    return loads


def measured(folder: Path, world: int) -> dict[Pair, tuple[float, float]]:
    loads = {}
    for rank in range(world):
        for link in json.loads((folder / f"links-rank{rank}.json").read_text())["links"]:
            loads[link["source"], link["target"]] = (link["sent_bytes"], link["relayed_bytes"])
    return loads


PLANS = {
    "two strides": lambda: make_plan(5, 4),
    "a line": lambda: networks.plan_of(4, networks.line(4)),
    "a star": lambda: networks.plan_of(5, networks.star(5)),
    "a single ring": lambda: make_plan(4, 1, ports="simplex"),
}


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_ring_operations_load_each_link_as_theory_says(make, operation, tmp_path):
    check_loads(make(), operation, tmp_path)


@pytest.mark.parametrize("operation", ["all_to_all", "send"])
@pytest.mark.parametrize("make", [PLANS["a line"], PLANS["a star"]], ids=["a line", "a star"])
def test_messages_load_each_link_of_their_route(make, operation, tmp_path):
    check_loads(make(), operation, tmp_path)


def check_loads(plan: Plan, operation: str, folder: Path) -> None:
    outcomes = run_ranks(plan, folder, functools.partial(run_operation, operation))
    assert all(values(outcomes))
    expected = link_bytes(plan, pair_bytes(plan, operation))
    assert measured(folder, plan.cluster.servers) == expected


@pytest.mark.parametrize("operation", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    "make", [PLANS["two strides"], PLANS["a line"]], ids=["two strides", "a line"]
)
def test_one_copy_for_each_rank_is_sent_and_no_more(make: Callable[[], Plan], operation, tmp_path):
    """With any chains: n - 1 copies leave the ranks that own them, the rest is relayed."""
    plan = make()
    world = plan.cluster.servers
    outcomes = run_ranks(plan, tmp_path, functools.partial(run_operation, operation))
    assert all(values(outcomes))
    loads = measured(tmp_path, world)
    own = dict.fromkeys(range(world), 0.0)
    for (source, _), (sent, relayed) in loads.items():
        own[source] += sent - relayed
    assert sum(own.values()) == (world - 1) * world * BLOCK_BYTES
    if operation == "reduce":
        assert own == {rank: 0 if rank == 1 else world * BLOCK_BYTES for rank in range(world)}
