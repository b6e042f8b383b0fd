"""The plugin as NCCL's tuner: what its algorithms cost on the cables of a plan."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from support.limits import limit_s
from support.nccl_harness import compiled

from torch_topoopt.links.nccl_wiring import LIBRARY, nccl_layout, write_nccl_wiring
from torch_topoopt.links.rank_layout import rank_routes
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 60.0
VERSIONS = (2, 3, 4, 5, 6)
TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, PAT = 0, 1, 2, 3, 6
LL, LL128, SIMPLE = 0, 1, 2
BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = range(5)
GBPS = 1.0
THREAD_GBPS = 12.0  # what costs.cc says of a rank that sends, receives and relays
BYTES_PER_US = GBPS * 1e9 / 8 / 1e6
LARGE = 1 << 30  # where latency does not count


class Answer(NamedTuple):
    algorithm: int
    protocol: int
    channels: int
    costs: list[list[float]]  # us, of each algorithm with each protocol


Ask = Callable[..., Answer]


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("nccl_tuner_harness", tmp_path_factory)


def _plan(servers: int, degree: int, gbps: float = GBPS) -> Plan:
    cluster = Cluster(servers, degree, gbps)
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    return Plan.of_network(cluster, find_network(cluster, demand), demand, model="none")


def _wiring(plan: Plan) -> Wiring:
    """Addresses that nothing connects to."""
    ports = tuple(
        PortAddress(server, port, f"10.0.{server}.{port + 1}", None, None, plan.cluster.link_gbps)
        for server in range(plan.cluster.servers)
        for port in range(plan.cluster.degree)
    )
    return Wiring(Wiring.VERSION, "static", plan.digest(), 4000, ports)


@pytest.fixture
def ask(harness: Path, tmp_path: Path) -> Ask:
    def ask(
        plan: Plan | None,
        version: int,
        size_bytes: int,
        *,
        collective: int = ALL_REDUCE,
        nodes: int = 0,
        collnet: bool = False,
    ) -> Answer:
        variables = {k: v for k, v in os.environ.items() if k != "TOPOOPT_NCCL_WIRING"}
        if plan is not None:
            write_nccl_wiring(tmp_path / "wiring", plan, _wiring(plan))
            variables["TOPOOPT_NCCL_WIRING"] = str(tmp_path / "wiring")
            nodes = nodes or plan.cluster.servers
        sizes = [str(n) for n in (version, nodes, nodes, collective, size_bytes)]
        if collnet:
            sizes.append("collnet")
        printed = subprocess.run(
            [str(harness), str(LIBRARY), *sizes],
            env=variables,
            check=True,
            capture_output=True,
            text=True,
            timeout=limit_s(LIMIT_S),
        ).stdout.split()
        costs = list(map(float, printed[3:]))
        rows = [costs[i : i + 3] for i in range(0, len(costs), 3)]
        return Answer(*map(int, printed[:3]), rows)

    return ask


def _most_loaded_us(plan: Plan, traffic: list[tuple[int, int, float]]) -> float:
    """Microseconds of the busiest link, where each (source, target, bytes) takes its routes."""
    loads: Counter[tuple[int, int]] = Counter()
    layout = nccl_layout(plan)
    assert layout.server_of == tuple(range(plan.cluster.servers))
    for source, target, size_bytes in traffic:
        pair = (source, target)
        routes = [
            (route.servers, route.weight)
            for route in rank_routes(plan.network, layout, source)
            if (route.servers[0], route.servers[-1]) == pair
        ] or [(pair, 1.0)]
        for servers, weight in routes:
            for hop in pairwise(servers):
                loads[hop] += size_bytes * weight / sum(w for _, w in routes)
    links = Counter((link.source, link.target) for link in plan.network.links)
    return max(load / links[hop] / BYTES_PER_US for hop, load in loads.items())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_large_all_reduce_on_a_ring_takes_the_ring(ask: Ask, version: int) -> None:
    answer = ask(_plan(4, 2), version, LARGE)
    assert (answer.algorithm, answer.protocol) == (RING, SIMPLE)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_small_all_reduce_where_all_have_cables_takes_trees(ask: Ask, version: int) -> None:
    assert ask(_plan(8, 7), version, 256).algorithm == TREE


def test_costs_are_those_of_the_busiest_cable(ask: Ask) -> None:
    plan = _plan(4, 2)
    costs = ask(plan, 5, LARGE).costs
    around = [(k, (k + 1) % 4, LARGE * 1.5) for k in range(4)]
    assert costs[RING][SIMPLE] == pytest.approx(_most_loaded_us(plan, around), rel=0.01)
    # NCCL's two trees over four: 1 and 3 below 2, which is below 0, and its mirror image
    edges = [(1, 2), (3, 2), (2, 0), (2, 1), (0, 1), (1, 3)]
    both = [(a, b, LARGE / 2) for edge in edges for a, b in (edge, edge[::-1])]
    assert costs[TREE][SIMPLE] == pytest.approx(_most_loaded_us(plan, both), rel=0.01)
    assert costs[RING][LL] == pytest.approx(2 * costs[RING][SIMPLE], rel=0.01)
    assert costs[RING][LL128] == pytest.approx(128 / 120 * costs[RING][SIMPLE], rel=0.01)


def test_on_fast_cables_it_is_the_busiest_rank(ask: Ask) -> None:
    costs = ask(_plan(4, 2, gbps=200.0), 5, LARGE).costs
    in_and_out = 2 * 1.5 * LARGE
    assert costs[RING][SIMPLE] == pytest.approx(in_and_out * 8e-3 / THREAD_GBPS, rel=0.01)
    assert costs[RING][SIMPLE] < costs[TREE][SIMPLE]  # whose bytes are relayed, too


@pytest.mark.parametrize("collective", [ALL_GATHER, REDUCE_SCATTER])
def test_pat_pays_for_its_far_messages(ask: Ask, collective: int) -> None:
    plan = _plan(4, 2)
    costs = ask(plan, 5, LARGE, collective=collective).costs
    # two blocks of a quarter to the next server, one to the server after that
    traffic = [(k, (k + 1) % 4, LARGE / 2) for k in range(4)]
    traffic += [(k, (k + 2) % 4, LARGE / 4) for k in range(4)]
    assert costs[PAT][SIMPLE] == pytest.approx(_most_loaded_us(plan, traffic), rel=0.01)
    around = [(k, (k + 1) % 4, LARGE * 0.75) for k in range(4)]
    assert costs[RING][SIMPLE] == pytest.approx(_most_loaded_us(plan, around), rel=0.01)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_collnet_uses_all_links_of_a_large_all_reduce(ask: Ask, version: int) -> None:
    answer = ask(_plan(12, 4), version, LARGE, collnet=True)
    assert (answer.algorithm, answer.protocol) == (COLLNET_CHAIN, SIMPLE)
    all_links_us = 2 * 11 / 12 * LARGE / (4 * BYTES_PER_US)
    gamma = 0.2e-3  # us a byte: the engine's default for its sums
    summed_us = 2 * 11 / 12 * LARGE * gamma
    assert answer.costs[COLLNET_CHAIN][SIMPLE] == pytest.approx(all_links_us + summed_us, rel=0.01)


@pytest.mark.parametrize("collective", [ALL_GATHER, REDUCE_SCATTER])
def test_collnet_gathers_and_scatters_over_all_links(ask: Ask, collective: int) -> None:
    answer = ask(_plan(12, 4), 6, LARGE, collective=collective, collnet=True)
    assert answer.algorithm == COLLNET_DIRECT


def test_collnet_loses_where_the_thread_that_reduces_is_the_bound(ask: Ask) -> None:
    assert ask(_plan(4, 2, gbps=200.0), 6, LARGE, collnet=True).algorithm == RING


def test_what_nccl_excludes_stays_excluded(ask: Ask) -> None:
    costs = ask(_plan(4, 2), 5, LARGE).costs
    assert [row for i, row in enumerate(costs) if i not in (TREE, RING)] == [[-1] * 3] * 5


@pytest.mark.parametrize("version", VERSIONS)
def test_communicators_of_some_servers_are_left_to_nccl(ask: Ask, version: int) -> None:
    left = ask(_plan(4, 2), version, LARGE, nodes=3)
    alone = ask(None, version, LARGE, nodes=3)
    assert left == alone
    assert left.algorithm == (-1 if version == 2 else TREE)


def test_one_channel_where_links_are_slow(ask: Ask) -> None:
    assert ask(_plan(4, 2, gbps=25.0), 5, LARGE).channels == 0
    assert ask(_plan(4, 2), 5, LARGE).channels == 1
