"""Generalised Kautz networks as unions of rings: the very links of the family, at its hops."""

from __future__ import annotations

import random

import pytest
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.topology.best.kautz_rings import has_kautz_rings, kautz_rings
from torch_topoopt.topology.best.ring_unions import WORK_PER_S, search_rings
from torch_topoopt.topology.measures.figures import moore_bound_hops


@pytest.mark.parametrize(
    ("servers", "degree"), [(20, 4), (36, 2), (48, 3), (56, 7), (30, 5), (432, 2)]
)
def test_the_rings_are_hamiltonian_and_together_the_network_of_the_family(
    servers: int, degree: int
) -> None:
    rings = kautz_rings(servers, degree, random.Random(1), WORK_PER_S)
    assert rings is not None
    assert len(rings) == degree
    assert all(sorted(ring) == list(range(servers)) for ring in rings)
    links = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    assert sorted(links) == sorted(
        (u, -(degree * u + j) % servers) for u in range(servers) for j in range(1, degree + 1)
    )
    assert rings == kautz_rings(servers, degree, random.Random(1), WORK_PER_S)


@pytest.mark.parametrize(("servers", "degree"), [(20, 4), (56, 7)])
def test_a_kautz_network_proper_meets_the_moore_bound_and_ends_the_search(
    servers: int, degree: int
) -> None:
    """n = d^2 + d: the line digraph of a complete one, of diameter 2 (no ring searched is as good,
    within this work)."""
    found = search_rings(servers, degree, duplex=False, seed=0, work=WORK_PER_S // 2)
    bound = moore_bound_hops(servers, degree, duplex=False)
    assert found.cost == round(bound * servers * (servers - 1))
    assert len(found.rings) == degree


def test_432_servers_start_from_the_kautz_network_and_come_closer() -> None:
    seed = kautz_rings(432, 2, random.Random(0), WORK_PER_S)
    assert seed is not None
    links = [hop for ring in seed for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    cost = _core.hop_summary(432, links).sum
    assert search_rings(432, 2, duplex=False, seed=0, work=WORK_PER_S // 2).cost < cost


def test_six_servers_of_two_ports_have_no_such_rings_and_the_search_goes_on() -> None:
    """Exchanging the two links of one of n / 2 squares changes the parity of both permutations; two
    rings of n servers need an even number of squares, and here there are 3."""
    assert kautz_rings(6, 2, random.Random(0), WORK_PER_S // 100) is None
    found = search_rings(6, 2, duplex=False, seed=0, work=WORK_PER_S // 100)
    assert all(sorted(ring) == list(range(6)) for ring in found.rings)


@pytest.mark.parametrize(("servers", "degree"), [(128, 4), (10, 4), (9, 2), (12, 1)])
def test_other_sizes_have_links_to_themselves_or_no_squares(servers: int, degree: int) -> None:
    assert not has_kautz_rings(servers, degree)
    with refused(ValueError, "servers", servers, degree):
        kautz_rings(servers, degree, random.Random(0), 1)
