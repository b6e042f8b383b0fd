"""Tables of measured all-to-alls: what is chosen, what is fastest, and how far apart they are."""

from __future__ import annotations

import numpy as np
import pytest
from alltoall_measured import (
    GivenExchanges,
    Line,
    StaticLine,
    fewer_bytes,
    matrix_of,
    report,
    static_report,
)
from support.backend.ranks import make_plan

from torch_topoopt.reconfiguration.all_to_all.single_cycles import shift_schedule
from torch_topoopt.reconfiguration.choice import Moving
from torch_topoopt.reconfiguration.requested_calls import MovedExchange


def line(topologies: int, predicted_s: float, *measured_s: float) -> Line:
    moving_s = tuple(0.1 for _ in measured_s)
    return Line(
        8, "equal", 0.01, topologies, 30 - topologies, 0.02, predicted_s, measured_s, moving_s
    )


def test_the_shortest_prediction_is_held_against_the_fastest_median() -> None:
    lines = [line(1, 3.0, 3.1, 3.3, 3.2), line(2, 2.0, 2.4, 2.2, 9.0), line(3, 2.1, 2.0, 2.0, 2.0)]
    head, _, first, second, third, ratio = report(lines)
    assert head == "# 8 servers, equal sizes, R 10 ms, a move takes 20 ms"
    assert " ".join(first.split()) == "1 29 3.000 s 3.200 s 3.100 s 3.300 s 0.100 s"
    assert second.endswith(" chosen")
    assert third.endswith(" fastest")
    assert ratio == "# chosen / fastest: 1.200"


def test_schedules_are_given_in_their_order_and_errors_are_kept() -> None:
    schedules = [shift_schedule(4, strides) for strides in ((1,), (1, 3))]
    given = GivenExchanges([Moving(schedule, (True,), 1.0) for schedule in schedules])
    matrix, servers = np.ones((4, 4), np.int64), tuple(range(4))
    choices = [given(matrix, servers), given(matrix, servers)]
    assert [choice.moves for choice in choices] == [0, 2]
    assert [choice.schedule for choice in choices] == schedules
    with pytest.raises(StopIteration):
        given(matrix, servers)
    given.ended(MovedExchange(np.ones((4, 4), np.int64), choices[0], 1.0, 0.5))
    given.ended(MovedExchange(np.ones((4, 4), np.int64), choices[1], 1.0, 0.5, "dark"))
    assert given.errors == ["dark"]
    assert given.moving_s == [0.5, 0.5]


@pytest.mark.parametrize(("sizes", "most"), [("equal", 1), ("zipf1", 8), ("hot", 4)])
def test_matrices_have_the_mean_that_was_asked_for(sizes: str, most: int) -> None:
    matrix = matrix_of(sizes, 8, 100_000)
    pairs = matrix[~np.eye(8, dtype=bool)]
    assert matrix.trace() == 0
    assert pairs.mean() == pytest.approx(100_000, rel=1e-4)
    assert pairs.max() / pairs.min() == pytest.approx(most, rel=1e-3)


def test_routes_for_the_sizes_are_compared_by_medians() -> None:
    line = StaticLine(8, 2, "zipf1", 1.25, (2.0, 2.4, 9.0), (1.0, 2.0, 3.0))
    assert static_report(line).endswith("ratio 1.200, of the busiest link's bytes 1.250")


def test_a_plan_sends_all_data_between_opposite_servers_of_a_ring_one_way() -> None:
    """So its busiest link has 10 blocks, and 8 if both ways are used."""
    assert fewer_bytes(make_plan(8, 2), matrix_of("equal", 8, 100_000)) == pytest.approx(1.25)
