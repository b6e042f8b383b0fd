"""Short messages spread over all ways that a pair of servers has."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

import torch_topoopt
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan, Route
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES, SIZE = 40, 6000


def send_short_messages(rank: int, world: int) -> list[int]:
    """Rank 0 to rank `world` / 2, each with a tag of its own; returns what each link has sent.

    Ways make up for what they carried before, so as many go first that are not counted.
    """
    dist.init_process_group("topoopt")
    for tag in range(2 * MESSAGES):
        if tag == MESSAGES:
            dist.barrier()
            before = [link["sent_bytes"] for link in torch_topoopt.stats()["links"]]
        if rank == 0:
            dist.isend(torch.zeros(SIZE, dtype=torch.uint8), world // 2, tag=tag).wait()
        elif rank == world // 2:
            dist.irecv(torch.zeros(SIZE, dtype=torch.uint8), 0, tag=tag).wait()
    dist.barrier()  # relays have forwarded all
    after = [link["sent_bytes"] for link in torch_topoopt.stats()["links"]]
    dist.destroy_process_group()
    return [b - a for a, b in zip(before, after, strict=True)]


def test_messages_of_their_own_tags_share_the_routes_of_a_pair(tmp_path: Path) -> None:
    plan = make_plan(4, 2)
    others = [r for r in plan.network.routes if (r.servers[0], r.servers[-1]) != (0, 2)]
    both_ways = (Route((0, 1, 2), 0.5), Route((0, 3, 2), 0.5))
    network = dataclasses.replace(plan.network, routes=(*others, *both_ways))
    plan = dataclasses.replace(plan, network=network).validate()
    sent = values(run_ranks(plan, tmp_path, send_short_messages))[0]
    assert len(sent) == 2
    assert sum(sent) >= MESSAGES * SIZE
    assert abs(sent[0] - sent[1]) <= 2 * SIZE, "server 2 is two hops away both ways round"


def test_a_message_uses_all_parallel_links_at_once(tmp_path: Path) -> None:
    cluster = Cluster(2, 2, 10.0, parallel_links=True)
    demand = Demand((GroupDemand((0, 1), 1 << 20),), ())
    plan = Plan.of_network(cluster, find_network(cluster, demand), demand, model="test")
    assert len(plan.network.links) == 4
    sent = values(run_ranks(plan, tmp_path, send_short_messages))[0]
    assert len(sent) == 2
    # 6000 bytes are one part of 4096 and a rest, which goes over the other link
    assert min(sent) >= MESSAGES * (SIZE - 4096)
    assert abs(sent[0] - sent[1]) <= 2 * SIZE


def test_relayed_messages_share_parallel_links(tmp_path: Path) -> None:
    """A pair with one route used the first of two cables alone, at the source and at the relay."""
    plan = make_plan(4, 2)
    others = [r for r in plan.network.routes if (r.servers[0], r.servers[-1]) != (0, 2)]
    again = [
        dataclasses.replace(
            link, source_port=link.source_port + 2, target_port=link.target_port + 2
        )
        for link in plan.network.links
    ]
    network = dataclasses.replace(
        plan.network,
        links=(*plan.network.links, *again),
        routes=(*others, Route((0, 1, 2), 1.0)),
    )
    cluster = dataclasses.replace(plan.cluster, degree=4, parallel_links=True)
    plan = Plan.of_network(cluster, network, plan.demand, model="test")
    of_rank = values(run_ranks(plan, tmp_path, send_short_messages))
    for rank in (0, 1):
        idle, used = sorted(of_rank[rank])[:2], sorted(of_rank[rank])[2:]
        assert sum(used) >= MESSAGES * SIZE
        assert used[1] - used[0] <= 2 * SIZE
        assert max(idle) < SIZE
