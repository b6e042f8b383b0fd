"""Data connections exist between linked servers, and nowhere else."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

from torch_topoopt.links.wiring import Wiring

ESTABLISHED = "01"


def address(field: str) -> str:
    return socket.inet_ntoa(bytes.fromhex(field.split(":")[0])[::-1])


LOOKS = 3  # a table that changes while it is read may lack a line, or have it twice


def list_connections(rank: int, world: int) -> list[tuple[str, str]]:
    """All established TCP connections of this machine, seen while all ranks train."""
    dist.init_process_group("topoopt")
    output = torch.empty(world)
    dist.all_to_all_single(output, torch.ones(world))  # every pair has exchanged something
    dist.all_reduce(torch.ones(100_000))
    connections = set()
    for _ in range(LOOKS):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, near, far, state = line.split()[:4]
            if state == ESTABLISHED:
                connections.add((near, far))
    dist.barrier()
    dist.destroy_process_group()
    return [(address(near), address(far)) for near, far in connections]


@pytest.mark.parametrize(("servers", "degree"), [(4, 2), (6, 2), (5, 4)])
def test_only_linked_servers_are_connected(servers, degree, tmp_path):
    plan = make_plan(servers, degree)
    seen = values(run_ranks(plan, tmp_path, list_connections))[0]
    wiring = Wiring.load(tmp_path / "wiring.json")  # other jobs on this machine have other blocks
    job = wiring.ports[0].address.split(".")[:2]
    # 127.J.S.P+1 is port P of server S of job J
    servers_of = [
        (int(near.split(".")[2]), int(far.split(".")[2]))
        for near, far in seen
        if near.split(".")[:2] == job
    ]
    assert sorted(servers_of) == sorted((link.source, link.target) for link in plan.network.links)
