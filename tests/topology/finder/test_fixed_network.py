"""Rings on cables that are given. What else is laid over them: see tests/discovery."""

from __future__ import annotations

from torch_topoopt.topology.finder.fixed_network import hamiltonian_cycle


def test_a_cycle_is_found_where_the_natural_order_is_none_and_denied_where_there_is_none() -> None:
    petersen = [(i, (i + 1) % 5) for i in range(5)] + [(i, i + 5) for i in range(5)]
    petersen += [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
    pairs = {(min(pair), max(pair)): 1.0 for pair in petersen}
    assert hamiltonian_cycle(10, pairs) is None, "the Petersen graph has no Hamiltonian cycle"
    grid = {(4 * y + x, 4 * y + x + 1): 1.0 for y in range(4) for x in range(3)}
    grid |= {(4 * y + x, 4 * y + x + 4): 1.0 for y in range(3) for x in range(4)}
    cycle = hamiltonian_cycle(16, grid)
    assert cycle is not None
    assert sorted(cycle) == list(range(16))
    for hop in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        assert (min(hop), max(hop)) in grid
