"""Kernel relays: the hosts forward and no rank does; in network namespaces, as root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_bare_ranks, values
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces

from torch_topoopt.fabric.forwarded_links import unlinked_servers
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.runtime import backend

if TYPE_CHECKING:
    from pathlib import Path

ELEMENTS = 50_000


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


@pytest.mark.parametrize("relay", ["kernel", "user"])
def test_servers_without_a_link_talk_through_relays(
    relay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(6, 2)
    fabric = NetnsFabric(a_name(), NetnsOptions(relay=relay))
    try:
        plan.save(tmp_path / "plan.json")
        fabric.connect(plan).save(tmp_path / "wiring.json")
        outcomes = values(
            run_bare_ranks(
                6,
                exchange,
                namespaces=[fabric.layout.namespace(server) for server in range(6)],
                store_address=fabric.management_address,
                TOPOOPT_PLAN=str(tmp_path / "plan.json"),
                TOPOOPT_WIRING=str(tmp_path / "wiring.json"),
            )
        )
    finally:
        fabric.close()
    for rank, outcome in enumerate(outcomes):
        assert outcome["all_to_all"]
        assert outcome["all_reduce"] == 15
        assert outcome["subgroup"] == (6 if rank in (0, 2, 4) else rank)
        expected = unlinked_servers(plan, rank) if relay == "kernel" else ()
        assert outcome["peers"] == list(expected)
    relayed = sum(outcome["relayed"] for outcome in outcomes)
    assert (relayed == 0) == (relay == "kernel")
