"""Algorithm 5: ports, greed, halving, connectivity."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_topoopt.architectures.circuits import choose_circuits

if TYPE_CHECKING:
    from torch_topoopt.plan import Pair


@settings(max_examples=40, deadline=None)
@given(
    servers=st.integers(2, 12),
    degree=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    halve=st.booleans(),
    connect=st.booleans(),
)
def test_every_port_is_used_once_and_no_server_is_joined_to_itself(
    servers: int, degree: int, seed: int, halve: bool, connect: bool
) -> None:
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(servers) for b in range(servers) if a != b]
    demand = {pair: rng.uniform(0, 10) for pair in rng.sample(pairs, rng.randint(0, len(pairs)))}
    circuits = choose_circuits(
        servers, degree, demand, random.Random(1), halve=halve, connect=connect
    )
    assert all(source != target for source, target in circuits)
    sent = Counter(source for source, _ in circuits)
    received = Counter(target for _, target in circuits)
    assert sent == received  # so a part of the network is always one closed walk
    assert max(sent.values()) <= degree
    if servers > 2:
        assert set(sent.values()) == {degree}
    if connect and servers > 2:
        reached, stack = {0}, [0]
        while stack:
            here = stack.pop()
            for source, target in circuits:
                if source == here and target not in reached:
                    reached.add(target)
                    stack.append(target)
        assert reached == set(range(servers))


def test_the_largest_demand_is_halved_for_every_circuit_that_it_has() -> None:
    # 16 -> 8 -> 4: after two circuits for (0, 1) the 5 of (0, 2) is larger
    demand = {(0, 1): 16.0, (0, 2): 5.0, (0, 3): 3.0}
    circuits = choose_circuits(4, 3, demand, random.Random(0), halve=True, connect=False)
    assert [c for c in circuits if c[0] == 0] == [(0, 1), (0, 1), (0, 2)]


def test_without_a_discount_the_largest_demand_takes_every_port() -> None:
    demand = {(0, 1): 16.0, (0, 2): 15.0}
    circuits = choose_circuits(4, 3, demand, random.Random(0), halve=False, connect=False)
    assert [c for c in circuits if c[0] == 0] == [(0, 1)] * 3


def test_two_edge_replacement_joins_parts_over_the_circuits_with_the_least_bytes() -> None:
    rings = {(0, 1): 9.0, (1, 2): 9.0, (2, 0): 1.0, (3, 4): 9.0, (4, 5): 9.0, (5, 3): 1.0}
    apart = choose_circuits(6, 1, rings, random.Random(0), halve=True, connect=False)
    assert apart == sorted(rings)
    joined = choose_circuits(6, 1, rings, random.Random(0), halve=True, connect=True)
    assert joined == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]


@pytest.mark.parametrize("connect", [False, True])
def test_the_same_seed_gives_the_same_circuits(connect: bool) -> None:
    def chosen(seed: int) -> list[tuple[int, int]]:
        return choose_circuits(16, 3, {}, random.Random(seed), halve=True, connect=connect)

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def _algorithm_5(servers: int, degree: int, demand: dict[Pair, float], halve: bool) -> list[Pair]:
    """Lines 1 to 20 of the paper's listing, as printed; lines 13 and 14 once for each link."""
    demand = dict(demand)
    available_tx, available_rx = [degree] * servers, [degree] * servers
    links: list[Pair] = []
    while demand:
        v1, v2 = max(demand, key=lambda pair: (demand[pair], -pair[0], -pair[1]))
        links.append((v1, v2))
        if halve:
            demand[v1, v2] *= 1 / 2
        available_tx[v1] -= 1
        available_rx[v2] -= 1
        for u in range(servers):
            if available_tx[v1] == 0:
                demand.pop((v1, u), None)
            if available_rx[v2] == 0:
                demand.pop((u, v2), None)
    return sorted(links)


@pytest.mark.parametrize("halve", [True, False])
def test_circuits_are_those_of_the_listing(halve: bool) -> None:
    compared = 0
    for seed in range(60):
        rng = random.Random(seed)
        servers, degree = rng.randint(3, 9), rng.randint(1, 4)
        pairs = [(a, b) for a in range(servers) for b in range(servers) if a != b]
        demand = {pair: float(rng.choice((1, 2, 3, 10, 64))) for pair in pairs}
        wanted = _algorithm_5(servers, degree, demand, halve)
        if len(wanted) < degree * servers:
            continue  # a server has ports left for itself only; those are joined at random
        chosen = choose_circuits(servers, degree, demand, rng, halve=halve, connect=False)
        assert chosen == wanted
        compared += 1
    assert compared > 10
