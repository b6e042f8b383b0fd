"""Boards, sub-meshes and who has which."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.shared_networks.allocation.allocation import Allocation
from torch_topoopt.shared_networks.allocation.board_job import BoardJob, ShapeRules
from torch_topoopt.shared_networks.allocation.boards import Boards, SubMesh

A, B = BoardJob("a", 2, 2), BoardJob("b", 1, 2)


def test_boards_are_columns_times_rows() -> None:
    boards = Boards.parse("5x3")
    assert (boards.columns, boards.rows, boards.working) == (5, 3, 15)


@pytest.mark.parametrize("text", ["5", "5x", "x5", "0x3", "3x0", "5x3x2", "-1x2", "5 x 3", "²x3"])
def test_what_is_no_mesh_of_boards_is_refused(text: str) -> None:
    with refused(ValueError, "boards", "COLUMNSxROWS"):
        Boards.parse(text)


def test_too_many_boards_are_refused() -> None:
    with refused(ValueError, 1, 1000000):
        Boards(1001, 1000)


def test_random_failures_are_those_of_the_seed() -> None:
    boards = Boards(6, 5, frozenset({(0, 0)})).with_random_failures(7, 3)
    assert boards == Boards(6, 5, frozenset({(0, 0)})).with_random_failures(7, 3)
    assert boards != Boards(6, 5, frozenset({(0, 0)})).with_random_failures(7, 4)
    assert boards.working == 30 - 8
    with refused(ValueError, "failed", 31, 0, 30):
        Boards(6, 5).with_random_failures(31, 0)
    with refused(ValueError, "failed", "[5, 0]", 5):
        Boards(6, 5, frozenset({(5, 0)}))


def test_a_submesh_numbers_its_boards_row_by_row() -> None:
    own = SubMesh((1, 4), (0, 2, 3))
    assert own.boards() == [(1, 0), (1, 2), (1, 3), (4, 0), (4, 2), (4, 3)]
    assert own.shape == (2, 3)


@pytest.mark.parametrize("numbers", [(), (1, 1), (2, 1), (-1, 0)])
def test_rows_and_columns_ascend(numbers: tuple[int, ...]) -> None:
    with refused(ValueError, "rows", "ascending"):
        SubMesh(numbers, (0,))


def test_broken_jobs_are_not_utilisation_and_released_boards_are_free() -> None:
    found = Allocation(Boards(3, 3), {A: SubMesh((0, 1), (0, 1)), B: SubMesh((2,), (0, 1))})
    assert found.validate().utilisation == 6 / 9
    assert found.holder((2, 1)) == B
    hurt = found.fail((0, 0))
    assert hurt.broken == [A]
    assert hurt.utilisation == 2 / 8
    left = found.release(B)
    assert left.holder((2, 1)) is None
    assert left.utilisation == 4 / 9
    with pytest.raises(KeyError):
        left.release(B)


@pytest.mark.parametrize(
    ("placed", "waiting", "tokens"),
    [
        ({A: SubMesh((0, 1), (0, 1)), B: SubMesh((1,), (1, 2))}, (), ("[1, 1]",)),
        ({A: SubMesh((0, 3), (0, 1))}, (), (3, "columns")),
        ({A: SubMesh((0, 1), (0, 1, 2))}, (), ("a", 6, 4)),
        ({A: SubMesh((0, 1), (0, 1))}, (A,), ("a", "waits")),
    ],
)
def test_what_cannot_be_is_refused(
    placed: dict[BoardJob, SubMesh], waiting: tuple[BoardJob, ...], tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        Allocation(Boards(3, 3), placed, waiting).validate()


def test_jobs_and_rules_out_of_range_are_refused() -> None:
    with refused(ValueError, "x", "0x2"):
        BoardJob("x", 0, 2)
    with refused(ValueError, "x", 0):
        BoardJob.square("x", 0)
    with refused(ValueError, "aspect", 0.5, 1):
        ShapeRules(most_aspect=0.5)
