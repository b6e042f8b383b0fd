"""Boundaries of stages and servers that a descent moves last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.small_op_graphs import chain

from torch_topoopt.plan import Cluster, Placement
from torch_topoopt.search.last_changes import exchanged_servers, other_boundaries
from torch_topoopt.search.problem import SearchProblem

if TYPE_CHECKING:
    from torch_topoopt.search.strategies import Strategy

PROBLEM = SearchProblem(
    chain(8, flops=10**12), Cluster(4, 2, 100.0, accelerator="a100"), micro_batches=4
)


def on(*servers: int) -> Strategy:
    """The chain with an operator on each of these servers."""
    return tuple(Placement(f"layer{i}", (server,)) for i, server in enumerate(servers))


def test_a_boundary_that_balances_the_stages_comes_first() -> None:
    found = other_boundaries(PROBLEM, on(0, 0, 0, 0, 0, 0, 1, 1))
    assert found[0] == on(0, 0, 0, 0, 1, 1, 1, 1)


def test_boundaries_keep_the_order_of_the_stages() -> None:
    found = other_boundaries(PROBLEM, on(0, 0, 0, 1, 1, 2, 2, 2))
    assert found
    for strategy in found:
        servers = [placement.servers[0] for placement in strategy]
        assert servers == sorted(servers)


def test_every_two_servers_are_exchanged_once() -> None:
    found = exchanged_servers(PROBLEM, on(0, 0, 0, 0, 1, 1, 1, 1))
    assert on(1, 1, 1, 1, 0, 0, 0, 0) in found
    assert on(0, 0, 0, 0, 2, 2, 2, 2) in found
    assert len(set(found)) == len(found) == 5  # all pairs but the two idle servers


def test_operators_on_all_servers_have_no_others() -> None:
    everywhere = tuple(Placement(f"layer{i}", (0, 1, 2, 3)) for i in range(8))
    assert not exchanged_servers(PROBLEM, everywhere)
    assert not other_boundaries(PROBLEM, everywhere)
