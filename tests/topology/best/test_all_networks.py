"""Mode best against all networks there are, of up to 7 servers and 3 simplex ports.

tests/cpp/topology/all_networks.cc tries them, networks with unused ports and those that are no
union of rings among them. On duplex ports there is nothing to try: 2 ports make one ring at most,
and 3 are refused for more than two servers (`test_best.rings_of_all_servers` tries the orders of
that ring).
"""

from __future__ import annotations

import os
import random
import subprocess
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s

from torch_topoopt import _core
from torch_topoopt.plan import AllToAll, Cluster, Demand, Network, PairDemand, PairTable
from torch_topoopt.topology.best.find_best import find_best_network
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.measures.figures import moore_bound_hops
from torch_topoopt.topology.routing.hop_counts import hop_summary

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).parents[2] / "cpp" / "topology" / "all_networks.cc"
# n: regular digraphs of degree 2 (OEIS A007107) and 3 (A007105), servers labelled
REGULAR = {
    2: {3: 1, 4: 9, 5: 216, 6: 7570, 7: 357435},
    3: {4: 1, 5: 44, 6: 7570, 7: 1975560},
}
LARGER = [(6, 1), (6, 2), (6, 3), (7, 1), (7, 2), (7, 3)]
SIZES = [
    *[(n, d) for n in range(3, 6) for d in (1, 2, 3) if d < n],
    *[pytest.param(*size, marks=pytest.mark.exhaustive) for size in LARGER],
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("all_networks") / "all_networks"
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-O2", str(SOURCE), "-o", str(path)]
    subprocess.run(command, check=True, timeout=limit_s(120))
    return path


def try_all(
    program: Path, servers: int, degree: int, matrices: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """The least cost for each matrix of weights, and the number of regular networks."""
    text = "\n".join(" ".join(map(str, matrix)) for matrix in matrices)
    command = [str(program), str(servers), str(degree)]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, timeout=3000
    )
    *costs, regular, _ = map(int, done.stdout.split())
    return costs, regular


def random_pairs(servers: int, chooser: random.Random) -> tuple[PairDemand, ...]:
    """Some pairs of servers, few or nearly all, with very different bytes."""
    every = list(permutations(range(servers), 2))
    some = chooser.sample(every, chooser.randint(1, len(every)))
    return tuple(PairDemand(a, b, round(10 ** chooser.uniform(0, 6))) for a, b in some)


@pytest.mark.parametrize(("servers", "degree"), SIZES)
def test_no_network_has_fewer_hops_or_fewer_bytes_times_hops(
    program: Path, servers: int, degree: int
) -> None:
    cluster = Cluster(servers, degree, 100.0, "simplex")
    chooser = random.Random(servers * 10 + degree)
    demands = [random_pairs(servers, chooser) for _ in range(5 if servers < 6 else 12)]
    matrices = [[1] * servers**2]
    for pairs in demands:
        matrices.append([0] * servers**2)
        for pair in pairs:
            matrices[-1][servers * pair.source + pair.target] = pair.size_bytes
    costs, regular = try_all(program, servers, degree, matrices)
    assert regular == REGULAR.get(degree, {}).get(servers, regular)

    uniform = Demand((), PairTable((AllToAll(tuple(range(servers)), 1000),)))
    found = find_best_network(cluster, uniform, NetworkSearch(budget_s=0.05))
    hops = hop_summary(servers, found.links).mean * servers * (servers - 1)
    assert round(hops) == costs[0]

    for pairs, least in zip(demands, costs[1:], strict=True):

        def price(network: Network, pairs: tuple[PairDemand, ...] = pairs) -> float:
            links = [(link.source, link.target) for link in network.links]
            away = _core.hop_matrix(servers, links)
            return float(sum(p.size_bytes * int(away[p.source, p.target]) for p in pairs))

        best = find_best_network(
            cluster,
            Demand((), pairs),
            NetworkSearch(budget_s=0.01 if servers < 6 else 0.05, price=price),
        )
        assert price(best) == least


def test_seven_servers_of_three_ports_meet_the_moore_bound_for_hops() -> None:
    """So that this one size is proven for hops without trying 80 million networks."""
    cluster = Cluster(7, 3, 100.0, "simplex")
    uniform = Demand((), PairTable((AllToAll(tuple(range(7)), 1000),)))
    found = find_best_network(cluster, uniform, NetworkSearch(budget_s=0.05))
    bound = moore_bound_hops(7, 3, duplex=False)
    assert hop_summary(7, found.links).mean == pytest.approx(bound)
