"""Transfers match the planner's price, and every message sent is one that its target expects."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_topoopt import _core
from torch_topoopt.parallel import on_ranks
from torch_topoopt.parallel.layouts import made_by, read_by
from torch_topoopt.parallel.transfers import Exchange
from torch_topoopt.plan import Placement

RANKS = 4
SETS = [servers for k in (1, 2, 4) for servers in permutations(range(RANKS), k)]
WAYS: list[dict[str, int]] = [{}, {"columns": 2}, {"columns": 4}, {"rows": 2}, {"rows": 4}]
PLACEMENTS = [
    Placement("operator", servers, **way)
    for servers in SETS
    for way in WAYS
    if len(servers) % max(way.values(), default=1) == 0
]


def sent(producer: Placement, consumer: Placement, *, whole: bool, ranks: int) -> Counter:
    """Fractions of the tensor from one rank to another; checks that both ends agree."""
    fractions: Counter[tuple[int, int]] = Counter()
    ends: Counter[object] = Counter()
    for rank in range(ranks):
        exchange = Exchange.of(made_by(producer), read_by(consumer, whole=whole), rank, 2)
        whole_area = exchange.grid.rows * exchange.grid.columns
        for parts, ways in ((exchange.sends, 1), (exchange.receives, -1)):
            for part in parts:
                height, width = (end - begin for begin, end in (part.rows, part.columns))
                pair = (rank, part.rank) if ways > 0 else (part.rank, rank)
                ends[pair, height, width] += ways
                if ways > 0:
                    fractions[pair] += height * width / whole_area
        assert exchange.reverse().reverse().sends == exchange.sends
    assert not any(ends.values())
    return fractions


@given(st.sampled_from(PLACEMENTS), st.sampled_from(PLACEMENTS), st.booleans())
@settings(max_examples=200)
def test_what_moves_is_what_the_planner_prices(
    producer: Placement, consumer: Placement, whole: bool
) -> None:
    priced: Counter[tuple[int, int]] = Counter()
    needs = (whole and consumer.parameter > 1, False)
    for transfer in _core.placement_transfers(producer, consumer, *needs):
        if transfer.source != transfer.target:
            priced[transfer.source, transfer.target] += transfer.fraction
    assert sent(producer, consumer, whole=whole, ranks=RANKS) == pytest.approx(priced)
    between: Counter[tuple[int, int]] = Counter()
    two = on_ranks((producer, consumer), 2)
    for (source, target), share in sent(*two, whole=whole, ranks=2 * RANKS).items():
        if source // 2 != target // 2:
            between[source // 2, target // 2] += share
    assert between == pytest.approx(priced), "servers of two ranks each"


def test_the_ranks_of_a_server_share_its_samples() -> None:
    placement = Placement("operator", (3, 1, 0, 2), columns=2)
    (two,) = on_ranks((placement,), 2)
    assert two.servers == (6, 2, 7, 3, 0, 4, 1, 5)
    assert (two.sample, two.columns) == (4, 2)
