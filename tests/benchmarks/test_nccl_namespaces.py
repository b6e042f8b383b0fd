"""benchmarks/nccl_net.py: what routes can carry, and NCCL's plugin on namespaces, as root."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import nccl_net
import pytest
from support.fabric.netns_fixtures import require_namespaces
from support.nccl_harness import compiled

from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.nccl_wiring import write_nccl_wiring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.plan import Plan

GBPS = 0.02
SECONDS = 2.5  # of every transfer
RING_BYTES = 4 * 2 * (512 << 10)  # two slices of NCCL's for each host, 2.5 s
COLLNET_GBPS = 0.025
COLLNET_BYTES = 16 << 20
COLLNET_LEAST = 0.85
COLLNET_TRIES = 4  # the short queues of 48 links drop packets while the processor is busy
LEAST = 0.9  # of what the links can carry; headers take 0.07


def test_opposite_hosts_of_a_ring_have_both_ways_and_neighbours_one() -> None:
    plan = nccl_net.data_parallel_plan(4, 2, 1.0)
    routes = nccl_net.routes_of(plan)
    ways = {servers for servers, _ in routes[0, 2]}
    assert ways <= {(0, 1, 2), (0, 3, 2)}
    assert nccl_net.carried_gbps(plan, routes, [(0, 2)]) == pytest.approx(float(len(ways)))
    assert nccl_net.carried_gbps(plan, routes, [(0, 1)]) == pytest.approx(1.0)
    around = [(k, (k + 1) % 4) for k in range(4)]
    assert nccl_net.carried_gbps(plan, routes, around) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return nccl_net.data_parallel_plan(4, 2, GBPS)


@contextmanager
def _hosts(
    plan: Plan, folders: pytest.TempPathFactory, name: str = "nccl"
) -> Iterator[nccl_net.Hosts]:
    require_namespaces()
    harness = compiled("nccl_net_harness", folders)
    folder: Path = folders.mktemp(name)
    fabric = NetnsFabric(f"test-{name}-{os.getpid()}", NetnsOptions(gbps=plan.cluster.link_gbps))
    try:
        write_nccl_wiring(folder / "wiring", plan, fabric.connect(plan))
        yield nccl_net.Hosts(str(harness), fabric, plan, folder, per_server=1)
    finally:
        fabric.close()


@pytest.fixture(scope="module")
def hosts(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[nccl_net.Hosts]:
    with _hosts(plan, tmp_path_factory) as hosts:
        yield hosts


@pytest.mark.alone
@pytest.mark.parametrize("far", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_a_pair_gets_what_its_routes_carry(hosts: nccl_net.Hosts, plan: Plan, far: int) -> None:
    gbps = nccl_net.carried_gbps(plan, nccl_net.routes_of(plan), [(0, far)])
    size = int(gbps * nccl_net.BYTES_PER_GBPS * SECONDS)
    (measured,) = hosts.run("rate", str(size), "0", str(far))
    assert measured >= LEAST * gbps


@pytest.mark.alone
def test_a_ring_all_reduce_gets_its_links(hosts: nccl_net.Hosts) -> None:
    assert min(hosts.run("ring", str(RING_BYTES))) >= LEAST * GBPS


@pytest.mark.parametrize(
    "scenario",
    [("ring", str(RING_BYTES)), ("all_reduce", str(RING_BYTES * 2), str(nccl_net.CHUNK_BYTES))],
    ids=["ring", "collnet"],
)
def test_an_all_reduce_goes_on_without_a_cable(
    hosts: nccl_net.Hosts, scenario: tuple[str, ...]
) -> None:
    measured = hosts.run(*scenario, meanwhile=lambda: hosts.cut(0.8, 0.8))
    assert len(measured) == 4  # each with all that it was to get, which it has checked
    assert "its interface is down" in hosts.printed
    assert "is back" in hosts.printed


@pytest.mark.alone
@pytest.mark.parametrize(("servers", "degree"), [(4, 2), (12, 4)])
def test_collnet_gets_all_links(
    tmp_path_factory: pytest.TempPathFactory, servers: int, degree: int
) -> None:
    plan = nccl_net.data_parallel_plan(servers, degree, COLLNET_GBPS)
    least = COLLNET_LEAST * nccl_net.all_links_gbps(plan)
    best = 0.0
    with _hosts(plan, tmp_path_factory, "collnet") as hosts:
        for _ in range(COLLNET_TRIES):
            measured = hosts.run("all_reduce", str(COLLNET_BYTES), str(nccl_net.CHUNK_BYTES))
            assert len(measured) == servers
            best = max(best, min(measured))
            if best >= least:
                break
    assert best >= least
