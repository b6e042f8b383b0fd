"""Circuits move where that is faster, the way back included."""

from __future__ import annotations

import numpy as np
from support.fabric.netns_fixtures import make_plan
from support.memory_mover import MemoryMover
from support.refusals import refused

from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s

SERVERS = 6


def even(size_bytes: int) -> np.ndarray:
    return np.full((SERVERS, SERVERS), size_bytes, dtype=np.int64)


def test_moving_pays_for_much_and_not_for_little() -> None:
    choose = AllToAllChooser(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    few, many = choose(even(1000)), choose(even(10_000_000))
    assert few.schedule is None
    assert few.why.startswith("moving does not pay: ")
    assert many.schedule is not None
    assert many.schedule.slots == 3, "of 2 circuits each, for 5 chunks"
    assert many.why.startswith("moving is faster: ")
    assert choose(even(1000)) is few


def test_it_is_the_fastest_that_moves_where_moving_was_asked_for() -> None:
    plan = make_plan(SERVERS, 2, gbps=0.1)
    few = AllToAllChooser(plan, 0.02, always=True)(even(1000))
    assert few.schedule is not None
    assert few.schedule.reconfigurations == 1
    assert few.why.startswith("reconfigure was requested: ")


def test_the_way_back_is_a_move_too() -> None:
    plan = make_plan(SERVERS, 2, gbps=0.1)
    slot_s = 1e6 * 8e-9 / 0.1

    def moves(move_s: float) -> bool:
        return AllToAllChooser(plan, move_s)(even(1_000_000)).schedule is not None

    # A link of the ring carries 1 + 2 + 3 chunks, as the kernel has one route for each pair. One
    # topology takes 4 slots and two take 3: with the way back both lose if a move takes more than
    # a slot, without it they would win up to 1.5 and 2.
    assert moves(0.8 * slot_s)
    assert not moves(1.2 * slot_s)


def test_uneven_matrices_are_bound_by_their_largest_chunks() -> None:
    choose = AllToAllChooser(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    matrix = even(0)
    matrix[0, 1] = 10_000_000  # a link of the plan
    assert choose(matrix).schedule is None


def test_a_move_is_measured_there_and_back() -> None:
    mover = MemoryMover()
    assert measured_move_s(make_plan(SERVERS, 2), mover) >= 0
    assert mover.at == [None, *([0, None] * 3)]


def test_the_move_that_is_measured_leaves_no_circuit_where_it_is() -> None:
    plan, mover = make_plan(SERVERS, 2), MemoryMover()
    measured_move_s(plan, mover)
    (targets,) = mover.topologies
    for link in plan.network.links:
        assert targets[link.source][link.source_port] != link.target
        assert link.target in targets[link.source]


def test_one_server_has_no_all_to_all() -> None:
    with refused(ValueError, "servers", 1):
        AllToAllChooser(make_plan(1, 1), 0.02)
