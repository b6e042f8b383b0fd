"""Schedules on topologies of any shape: Kautz graphs, balanced routes, forwarding, rounds."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.schedule_matrices import check_barriers, check_matrix_form, matrix_form
from support.refusals import refused

from torch_topoopt.reconfiguration.all_to_all.bounds import uncarried_bound_slots
from torch_topoopt.reconfiguration.all_to_all.forwarding import forwarded
from torch_topoopt.reconfiguration.all_to_all.kautz_links import kautz_links
from torch_topoopt.reconfiguration.all_to_all.link_routes import balanced_routes
from torch_topoopt.reconfiguration.all_to_all.rounds import paper_schedules
from torch_topoopt.reconfiguration.all_to_all.verification import verify


def test_the_kautz_graph_of_figure_9_with_its_loops_joined() -> None:
    as_ruled = kautz_links(8, 2, loops=True) + 1  # the figure counts from 1
    assert as_ruled.tolist()[:4] == [[8, 7], [6, 5], [4, 3], [2, 1]]
    looped = np.flatnonzero((as_ruled == np.arange(1, 9)[:, None]).any(axis=1))
    joined = kautz_links(8, 2)
    assert len(looped) == 2
    assert not np.any(joined == np.arange(8)[:, None])
    assert np.bincount(joined.ravel()).tolist() == [2] * 8


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 30), st.integers(2, 3))
def test_forwarding_delivers_and_keeps_the_busiest_link_busy(n: int, k: int) -> None:
    routes = balanced_routes(kautz_links(n, k), passes=4)
    _, _, taken = routes.paths()
    schedule = forwarded(routes)
    replay = verify(schedule)
    busiest = int(np.bincount(taken[taken >= 0]).max())
    assert busiest <= replay.slots <= busiest + taken.shape[1]
    assert replay.link_slots == int(routes.hops.sum())
    assert replay.slots >= uncarried_bound_slots(n, k, 1)
    assert check_matrix_form(schedule.links, matrix_form(schedule)) <= replay.slots


def test_balance_lowers_the_busiest_link() -> None:
    links = kautz_links(64, 2)
    shortest, balanced = balanced_routes(links, passes=1), balanced_routes(links)
    assert balanced.hops.sum() >= shortest.hops.sum()
    assert forwarded(balanced).slots <= 208  # with barriers more than 300
    assert forwarded(balanced).slots < forwarded(shortest).slots


def test_what_is_not_reached_is_an_error_or_left_out() -> None:
    links = np.array([[1], [0], [3], [2]], dtype=np.int32)
    with refused(ValueError, "links", "server 0", 2):
        balanced_routes(links)
    sources, targets, _ = balanced_routes(links, partial=True).paths()
    assert list(zip(sources.tolist(), targets.tolist(), strict=True)) == [
        (0, 1),
        (1, 0),
        (2, 3),
        (3, 2),
    ]


@pytest.mark.parametrize("base", ["circulant", "kautz"])
@pytest.mark.parametrize(("n", "k"), [(8, 2), (13, 3), (16, 2)])
def test_rounds_have_barriers_and_contraction_never_takes_more(base: str, n: int, k: int) -> None:
    before = None
    for d, schedule in enumerate(paper_schedules(n, k, base), 1):
        replay = verify(schedule)
        check_barriers(schedule)
        assert replay.reconfigurations == d
        assert replay.carried == 0
        assert check_matrix_form(schedule.links, matrix_form(schedule)) <= replay.slots
        assert replay.slots >= uncarried_bound_slots(n, k, d)
        assert before is None or replay.slots <= before
        before = replay.slots
    assert before is not None
    assert max(max(rounds, default=1) for rounds in schedule.rounds) == 1


def test_the_first_schedules_of_figures_8_and_9() -> None:
    """Eight servers, two circuits: 9 slots with barriers on the circulant, where the figure's 8
    contend; on the Kautz graph no more than the 17 of the rounds in the figure."""
    (circulant,) = islice(paper_schedules(8, 2, "circulant"), 1)
    (kautz,) = islice(paper_schedules(8, 2, "kautz"), 1)
    assert verify(circulant).slots == 9
    assert verify(kautz).slots <= 17
