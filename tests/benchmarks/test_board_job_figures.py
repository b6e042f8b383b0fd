"""Figures of jobs on boards: mixes that fill them, and what is made of the rows."""

from __future__ import annotations

from itertools import islice
from typing import Any

import board_allocation
import pytest

from figures.cells import board_jobs
from figures.registry import all_figures


@pytest.mark.parametrize("law", ["powers", "uniform"])
def test_mixes_fill_all_boards_with_jobs_that_fit(law: str) -> None:
    weights = board_jobs.size_weights(law, 8, 6)
    assert sum(weights.values()) == pytest.approx(1)
    assert 7 not in weights  # one row of seven boards fits nowhere in 8x6 both ways
    mixes = list(islice(board_jobs.job_mixes(law, 8, 6, 1), 40))
    assert mixes == list(islice(board_jobs.job_mixes(law, 8, 6, 1), 40))
    assert mixes != list(islice(board_jobs.job_mixes(law, 8, 6, 2), 40))
    for mix in mixes:
        assert sum(mix) == 48
        assert set(mix) <= set(weights)


def test_samples_that_do_not_fit_begin_the_next_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of 3, 3, 3, 1 boards and so on, for four boards."""
    draws = iter([0.9, 0.9, 0.9, 0.1, 0.1, 0.1])

    class Listed:
        def __init__(self, seed: str) -> None:
            pass

        def random(self) -> float:
            return next(draws)

    monkeypatch.setattr(board_jobs, "size_weights", lambda *_: {1: 0.5, 3: 0.5})
    monkeypatch.setattr(board_jobs.random, "Random", Listed)
    assert list(islice(board_jobs.job_mixes("powers", 2, 2, 0), 3)) == [[3, 1], [3, 1], [3, 1]]


def test_cells_compare_sets_of_heuristics_on_the_same_mixes() -> None:
    shared: dict[str, Any] = {"law": "uniform", "columns": 8, "rows": 8, "mixes": 6, "seed": 3}
    greedy = board_jobs.utilisations(**shared, variant="transpose + aspect", failed=2)
    found = board_jobs.utilisations(**shared, variant="ruin-recreate, transpose + aspect", failed=2)
    assert all(0 <= a <= b <= 1 for a, b in zip(greedy, found, strict=True))
    assert sum(found) > sum(greedy)
    rows = board_jobs.tree_fractions(**shared, variant="greedy", per_leaf=4)
    assert all(0 <= f <= 1 for kind in rows.values() for f in kind)
    sizes = board_jobs.boards_by_size(law="uniform", columns=8, rows=8, mixes=20, seed=0)
    for kind in ("distribution", "mixes"):
        assert sum(part for _, part in sizes[kind]) == pytest.approx(1)


def row_of(function: str, parameters: dict[str, Any]) -> Any:
    every = [*board_jobs.VARIANTS, *board_jobs.BOUNDS]
    better = 0.1 * every.index(parameters.get("variant", "greedy"))
    if function == "figure_5":
        return board_jobs.figure_5()
    if function == "boards_by_size":
        parts = [[1, 0.5], [4, 0.5]]
        return {"distribution": parts, "mixes": parts, "jobs_mean_boards": 2.5}
    if function == "tree_fractions":
        return {kind: [0.2, 0.4] for kind in ("all-to-all", "AllReduce", "utilisation")}
    return [0.1 + better, 0.2 + better, 0.2 + better]


@pytest.mark.parametrize("number", [5, 7, 8, 9, 10])
def test_every_figure_is_made_of_its_rows(number: int) -> None:
    figure = all_figures()[f"hx-{number}"]
    cells = figure.cells(True)
    rows = [(c.parameters, row_of(c.function.partition(":")[2], c.parameters)) for c in cells]
    made = figure.make(rows, True)
    assert made.csv
    found = {(q.quantity, q.model, q.mode): q.ours for q in made.quantities}
    assert len(found) == len(made.quantities)
    if number == 5:
        assert all(q.ours == q.paper for q in made.quantities)
    if number == 8:
        of = "Hx2Mesh, 16x16 boards", "transpose"
        assert found["utilisation, median", *of] == pytest.approx(0.3)
        assert len(made.quantities) == 4 * 11 * (3 + 1)
    if number == 9:
        of = "Hx4Mesh, 32x32 boards", "greedy"
        assert found["AllReduce: part of tree traffic on upper levels, maximum", *of] == 0.4
    if number == 10:
        # median, mean and part above 70 %; two meshes have a bound, too
        assert len(made.quantities) == 3 * (4 * 3 + 2) * 5


def test_the_speed_of_each_set_of_heuristics_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert board_allocation.main(["--boards", "8x8", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("8x8 boards, ")
    assert len(lines) == 2 + len(board_jobs.VARIANTS)
    assert board_allocation.main(["--boards", "8"]) == 2
    assert "boards: '8' is not COLUMNSxROWS" in capsys.readouterr().err


def test_no_variant_exceeds_the_bound_of_its_shapes() -> None:
    mixes: dict[str, Any] = {
        "law": "powers",
        "columns": 8,
        "rows": 8,
        "mixes": 30,
        "failed": 0,
        "seed": 3,
    }
    bound = board_jobs.utilisations(**mixes, variant="bound, transpose + aspect")
    for variant in board_jobs.VARIANTS:
        found = board_jobs.utilisations(**mixes, variant=variant)
        assert all(ours <= most for ours, most in zip(found, bound, strict=True))
