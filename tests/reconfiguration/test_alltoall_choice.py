"""Circuits move where that is faster, the way back included."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabric.netns_fixtures import make_plan
from support.limits import limit_s
from support.matrices import zipf
from support.memory_mover import MemoryMover
from support.refusals import refused

from torch_topoopt.reconfiguration import matrix_planning
from torch_topoopt.reconfiguration.all_to_all.comparison import Option, Sizes, compared
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts, count_moves
from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.verification import verify
from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s
from torch_topoopt.reconfiguration.matrix_planning import planned, running_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.reconfiguration.choice import Choice

SERVERS = 6


class OfAllServers(AllToAllChooser):
    def __call__(self, matrix: np.ndarray, servers: tuple[int, ...] = ()) -> Choice:
        return super().__call__(matrix, servers or tuple(range(len(matrix))))


def even(size_bytes: int, servers: int = SERVERS) -> np.ndarray:
    return np.full((servers, servers), size_bytes, dtype=np.int64)


def test_moving_pays_for_much_and_not_for_little() -> None:
    choose = OfAllServers(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    few, many = choose(even(1000)), choose(even(10_000_000))
    assert few.schedule is None
    assert few.why.startswith("moving does not pay: ")
    assert many.schedule is not None
    assert many.schedule.slots == 3, "of 2 circuits each, for 5 chunks"
    assert many.why.startswith("moving is faster: ")
    assert choose(even(1000)) == few


def test_it_is_the_fastest_that_moves_where_moving_was_asked_for() -> None:
    plan = make_plan(SERVERS, 2, gbps=0.1)
    few = OfAllServers(plan, 0.02, always=True)(even(1000))
    assert few.schedule is not None
    assert few.schedule.reconfigurations == 1
    assert few.why.startswith("reconfigure was requested: ")


def test_the_way_back_is_a_move_too() -> None:
    plan = make_plan(SERVERS, 2, gbps=0.1)
    slot_s = 1e6 * 8e-9 / 0.1

    def moves(move_s: float) -> bool:
        return OfAllServers(plan, move_s)(even(1_000_000)).schedule is not None

    # A link of the ring carries 1 + 2 + 3 chunks, as the kernel has one route for each pair. One
    # topology takes 4 slots and two take 3: with the way back both lose if a move takes more than
    # a slot, without it they would win up to 1.5 and 2.
    assert moves(0.8 * slot_s)
    assert not moves(1.2 * slot_s)


def test_uneven_matrices_are_bound_by_their_busiest_circuits() -> None:
    choose = OfAllServers(make_plan(SERVERS, 2, gbps=0.1), 0.02)
    matrix = even(0)
    matrix[0, 1] = 10_000_000  # a link of the plan
    assert choose(matrix).schedule is None


def noisy(matrix: np.ndarray, seed: int) -> np.ndarray:
    """Every pair with up to 5 % more or less."""
    random = np.random.default_rng(seed)
    return (matrix * random.uniform(0.95, 1.05, matrix.shape)).astype(np.int64)


def wait_for_plan(choose: AllToAllChooser) -> None:
    planning = choose.plans._planning
    assert planning is not None
    planning._process.wait(limit_s(60))


@pytest.fixture
def choose() -> Iterator[AllToAllChooser]:
    choose = OfAllServers(make_plan(8, 2, gbps=0.1), 0.02)
    yield choose
    choose.close()


EQUAL = "moving is faster; the schedule for equal sizes"


def test_sizes_that_come_again_get_the_schedule_of_the_planner(choose: AllToAllChooser) -> None:
    matrix = zipf(8, 1.0, 1_000_000)
    assert choose(matrix).kind == EQUAL
    second = choose(noisy(matrix, 1))
    assert second.kind == f"{EQUAL}; one for these sizes is being planned"
    assert second.schedule in choose.schedules
    wait_for_plan(choose)
    third = choose(noisy(matrix, 2))
    assert third.kind == "moving is faster; schedule 1 for such sizes"
    assert third.schedule is not None
    expected = planned(noisy(matrix, 1), 2, choose.costs)
    assert third.schedule.links.tolist() == expected.links.tolist()
    assert third.schedule.sends.tolist() == expected.sends.tolist()
    sizes = Sizes.of_matrix(noisy(matrix, 1).astype(float))
    options = compared(8, 2, choose.costs, sizes)
    assert expected.sends.tolist() in [
        option.strategy.schedule.sends.tolist() for option in options
    ]
    assert third.moving_predicted_s < 0.8 * second.moving_predicted_s


def test_other_sizes_get_another_schedule_and_known_ones_hit_the_cache(
    choose: AllToAllChooser,
) -> None:
    found = []
    for seed in range(2):
        matrix = zipf(8, 1.0, 1_000_000, seed)
        choose(matrix)
        choose(matrix)
        wait_for_plan(choose)
        found.append(choose(matrix).schedule)
    assert found[0] is not found[1]
    for seed, schedule in enumerate(found):
        for draw in range(3):
            choice = choose(noisy(zipf(8, 1.0, 1_000_000, seed), draw))
            assert choice.schedule is schedule
            assert choice.kind == f"moving is faster; schedule {seed + 1} for such sizes"
    assert choose.plans._planning is None


@pytest.mark.parametrize(
    "matrix",
    [even(2_000_000, 8), noisy(even(2_000_000, 8), 1), zipf(8, 1.0, 1000)],
    ids=["equal", "nearly equal", "too small for a move"],
)
def test_sizes_for_which_a_plan_gains_nothing_get_none(
    choose: AllToAllChooser, matrix: np.ndarray
) -> None:
    for _ in range(3):
        assert choose(matrix).kind.endswith("; the schedule for equal sizes")
    assert choose.plans._planning is None


def test_a_planner_that_ends_leaves_the_schedule_for_equal_sizes(choose: AllToAllChooser) -> None:
    matrix = zipf(8, 1.0, 1_000_000)
    choose(matrix)
    choose(matrix)
    assert choose.plans._planning is not None
    choose.plans._planning._process.kill()
    wait_for_plan(choose)
    for _ in range(2):
        choice = choose(matrix)
        assert (
            choice.kind == f"{EQUAL}; there is none for these sizes: the planner ended with code -9"
        )
        assert choice.schedule in choose.schedules
    assert choose.plans._planning is None


@pytest.mark.parametrize("found", [True, False])
def test_a_plan_that_takes_too_long_is_the_best_so_far(
    choose: AllToAllChooser, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    matrix = zipf(8, 1.0, 1_000_000)
    (first,) = compared(8, 2, choose.costs, Sizes.of_matrix(matrix.astype(float)), count=1)

    def endless(*_: object, on_option: Callable[[Option, float], None]) -> None:
        if found:
            on_option(first, 0.1)
        while True:
            pass

    monkeypatch.setattr(matrix_planning, "compared", endless)
    with contextlib.nullcontext() if found else refused(ValueError, "planning", "0.01 s"):
        assert planned(matrix, 2, choose.costs, limit_s=0.01) is first.strategy.schedule


def test_a_plan_without_a_pair_is_not_used_for_data_of_that_pair(choose: AllToAllChooser) -> None:
    matrix = zipf(8, 1.0, 1_000_000)
    matrix[0, 1] = 0
    choose(matrix)
    choose(matrix)
    wait_for_plan(choose)
    assert choose(matrix).schedule not in choose.schedules
    matrix[0, 1] = 1
    choice = choose(matrix)
    assert choice.schedule in choose.schedules


def test_a_topology_lasts_as_long_as_its_busiest_circuit_and_parallel_ones_are_one() -> None:
    costs = CircuitCosts(0.008, 0.5, 7.0)  # a byte takes a microsecond
    counts = np.zeros((3, 3), dtype=np.int32)
    counts[0, 1], counts[2, 1] = 2, 1
    links = np.array([[[1, 1], [1, 1], [1, 2]]], dtype=np.int32)
    sends = np.array([[0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 1, 1], [0, 2, 0, 2, 1, 0]], dtype=np.int32)
    schedule = AllToAllSchedule(links, ((1,),), sends, translated=False, counts=counts)
    assert running_s(schedule, 10**6 * counts.astype(np.int64), costs) == pytest.approx(14 + 3)
    assert running_s(schedule, np.diag([0, 0, 5]) @ counts, costs) == pytest.approx(14.5 + 5e-6)


def test_a_move_is_measured_there_and_back() -> None:
    mover = MemoryMover()
    assert measured_move_s(make_plan(SERVERS, 2), mover) >= 0
    assert mover.at == [(), *([(0,), ()] * 3)]


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


def test_servers_take_roles_that_fit_the_plan_whose_topologies_are_no_moves() -> None:
    choose = OfAllServers(make_plan(8, 2, gbps=0.1), 0.02, circuits=1)
    rings = [[[(server + stride) % 8] for server in range(8)] for stride in (1, 7)]
    matrix, saved = even(4_000_000, 8) * (1 - np.eye(8, dtype=np.int64)), []
    for schedule in choose.schedules:
        moving = choose.moving(schedule, matrix, tuple(range(8)))
        assert moving.present == tuple(links in rings for links in schedule.links.tolist())
        saved_s = running_s(schedule, matrix, choose.costs) - moving.seconds
        saved.append(schedule.reconfigurations + 1 - count_moves(moving.present))
        assert saved_s == pytest.approx(saved[-1] * 0.02)
    assert saved[0] == 2
    assert min(saved) > 0
    choice = choose(matrix)
    assert choice.moves == count_moves(choice.present)


def test_a_move_back_that_is_hidden_is_not_predicted() -> None:
    plan, matrix = make_plan(8, 2, gbps=0.1), even(4_000_000, 8) * (1 - np.eye(8, dtype=np.int64))
    seen, hidden = (OfAllServers(plan, 0.02, circuits=1, ahead=ahead) for ahead in (False, True))
    for one, other in zip(seen.schedules, hidden.schedules, strict=True):
        moving = [
            choose.moving(schedule, matrix, tuple(range(8)))
            for choose, schedule in ((seen, one), (hidden, other))
        ]
        saved_s = 0.0 if moving[0].present[-1] else 0.02
        assert moving[0].seconds - moving[1].seconds == pytest.approx(saved_s)


@pytest.mark.parametrize("unit", [1, 3, 5])
def test_a_schedule_with_other_roles_delivers_everything(unit: int) -> None:
    for found in strategies(8, 2):
        verify(found.schedule.relabelled(unit))
