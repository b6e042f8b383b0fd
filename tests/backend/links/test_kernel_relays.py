"""Kernel relays: the hosts forward and no rank does; in network namespaces, as root."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.host_ranks import run_on_hosts
from support.backend.ranks import make_plan
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces

from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.forwarded_links import unlinked_servers
from torch_topoopt.runtime import backend, job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ELEMENTS = 50_000
CROWDED_BYTES = 500_000


def exchange(rank: int, world: int) -> dict[str, Any]:
    """Every rank with every other one, and on a subgroup whose members have no link."""
    dist.init_process_group("topoopt")
    own = torch.arange(ELEMENTS * world, dtype=torch.int64) + rank
    other = torch.empty_like(own)
    dist.all_to_all_single(other, own)
    summed = torch.full((ELEMENTS,), rank)
    dist.all_reduce(summed)
    apart = dist.new_group([0, 2, 4])
    far = torch.full((ELEMENTS,), rank)
    if rank in (0, 2, 4):
        dist.all_reduce(far, group=apart)
    dist.barrier()
    links = backend.stats()["links"]
    dist.destroy_process_group()
    blocks = other.view(world, ELEMENTS)
    expected = torch.arange(rank * ELEMENTS, (rank + 1) * ELEMENTS)
    return {
        "all_to_all": all(bool((blocks[r] == expected + r).all()) for r in range(world)),
        "all_reduce": int(summed.unique()),
        "subgroup": int(far.unique()),
        "relayed": sum(link["relayed_bytes"] for link in links),
        "peers": sorted(link["target"] for link in links if link["source_port"] < 0),
    }


def over_hosts(
    servers: int, options: NetnsOptions, folder: Path, work: Callable[[int, int], Any]
) -> list[Any]:
    """What `work` returns on each server of a ring."""
    with contextlib.closing(NetnsFabric(a_name(), options)) as fabric:
        return run_on_hosts(fabric, make_plan(servers, 2), folder, work)


def crowd(rank: int, world: int) -> int:
    """Seconds of traffic of opposite servers, which fills the cables that neighbours send over."""
    dist.init_process_group("topoopt")
    sums, slow = dist.new_group(), 0
    for _ in range(2):
        sent = torch.full((world * CROWDED_BYTES,), rank, dtype=torch.uint8)
        received = torch.empty_like(sent)
        exchanged = dist.all_to_all_single(received, sent, async_op=True)
        summed = torch.ones(CROWDED_BYTES // 4, dtype=torch.int32)
        dist.all_reduce(summed, group=sums)
        exchanged.wait()
        assert received.view(world, -1)[:, 0].tolist() == list(range(world))
        assert int(summed[0]) == world
        slow += len(job.jobs[-1].session.slow_cables())
    dist.destroy_process_group()
    return slow


def test_cables_that_are_full_of_what_hosts_forward_are_not_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    options = NetnsOptions(relay="kernel", gbps=0.01, lossless=True)
    assert over_hosts(4, options, tmp_path, crowd) == [0, 0, 0, 0]


@pytest.mark.parametrize("relay", ["kernel", "user"])
def test_servers_without_a_link_talk_through_relays(
    relay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(6, 2)
    outcomes = over_hosts(6, NetnsOptions(relay=relay), tmp_path, exchange)
    for rank, outcome in enumerate(outcomes):
        assert outcome["all_to_all"]
        assert outcome["all_reduce"] == 15
        assert outcome["subgroup"] == (6 if rank in (0, 2, 4) else rank)
        expected = unlinked_servers(plan, rank) if relay == "kernel" else ()
        assert outcome["peers"] == list(expected)
    relayed = sum(outcome["relayed"] for outcome in outcomes)
    assert (relayed == 0) == (relay == "kernel")
