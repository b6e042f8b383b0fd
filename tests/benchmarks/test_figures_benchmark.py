"""Figures: what is kept of their cells and found again, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from figures import cell, command, results_page, table
from figures.cell import REPOSITORY, Cell
from figures.figure import NEAR, Quantity
from figures.registry import all_figures, chosen
from figures.store import CellStore
from figures.workers import run_in_processes

FIGURES = all_figures()
CHEAP = ("10", "table-1", "table-2")  # of a second in all
COLUMNS = ("figure", "quantity", "model", "mode", "paper", "ours", "ratio", "within", "reason")


def run(out: Path, *words: str) -> int:
    return command.main([*words, "--out", str(out)])


def test_a_second_run_computes_nothing_and_writes_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *CHEAP, "--jobs", "1", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    written = {
        path.name: path.read_bytes()
        for path in tmp_path.iterdir()
        if path.suffix in (".csv", ".svg", ".json", ".md")
    }
    assert set(written) >= {"figure_10.csv", "figure_10.svg", "table.json", "results.md"}
    assert run(tmp_path, *CHEAP, "--jobs", "2", "--json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == first
    assert "0 cells computed" in output.err
    assert "all cells: " in output.err
    for name, content in written.items():
        assert (tmp_path / name).read_bytes() == content, name
    assert all(set(COLUMNS) <= set(row) for row in first["rows"])


def test_what_is_kept_is_found_by_function_parameters_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Cell.of("figures.cells.prices:of_parts", rates=[10])
    store = CellStore(tmp_path)
    assert store.known(asked) is None
    store.add(asked, cell.CellResult({"a": 1}, "", 0.5, 0.6))
    found = store.known(asked)
    assert found is not None
    assert (found.row, found.cpu_s) == ({"a": 1}, 0.5)
    assert store.known(Cell.of("figures.cells.prices:of_parts", rates=[25])) is None
    monkeypatch.setattr(cell, "sources_digest", lambda module: "other sources")
    assert store.known(asked) is None
    monkeypatch.undo()
    next(tmp_path.iterdir()).write_text('{"row": ')  # a run that was killed
    assert store.known(asked) is None


def test_the_longest_cells_come_first_and_before_them_those_without_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [Cell.of("figures.cells.prices:of_parts", rates=[rate]) for rate in range(4)]
    store = CellStore(tmp_path)
    for asked, cpu_s in zip(cells, (1.0, 3.0, 2.0), strict=False):
        store.add(asked, cell.CellResult({}, "", cpu_s, cpu_s))
    monkeypatch.setattr(cell, "sources_digest", lambda module: "other sources")
    ordered = [next(iter(of.parameters["rates"])) for of in store.longest_first(cells)]
    assert ordered == [3, 1, 2, 0]


def test_a_key_depends_on_what_the_cell_imports() -> None:
    sources = {path.name for path in cell.own_sources("figures.cells.networks")}
    assert sources == {"load_balance.py", "networks.py", "workloads.py"}
    for name in cell.SIMULATION:
        assert (REPOSITORY / name).exists()


def test_cells_that_fail_hang_or_kill_their_process_say_so() -> None:
    parts = "figures.cells.prices:of_parts"
    asked = {
        "fails": Cell.of(parts, rates="x"),
        "dies": Cell.of("os:_exit", status=3),
        "hangs": Cell.of("signal:pause", limit_s=0.2),
        "works": Cell.of(parts, rates=[10.0]),
    }
    results = dict(run_in_processes(list(asked.values()), 1))
    assert results[asked["fails"]].error.startswith("TypeError")
    assert results[asked["dies"]].error == "the process died"
    assert results[asked["hangs"]].error == "not done after 0.2 s"
    assert results[asked["works"]].error == ""
    assert results[asked["works"]].row["fixed"]["ocs_port"] == 520


def test_an_unknown_figure_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "30") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "figure: '30' is not one of " in error
    assert not list(tmp_path.iterdir())


def test_a_failed_cell_costs_its_figure_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cells: list[Cell], jobs: int) -> Any:
        return ((asked, cell.CellResult(None, "ValueError: no", 0.0, 0.0)) for asked in cells)

    monkeypatch.setattr(command, "run_in_processes", fail)
    assert run(tmp_path, "table-1") == 1
    assert "left out table-1: prices:of_parts" in capsys.readouterr().err
    assert not (tmp_path / "cells").exists()


def test_rows_of_quick_sizes_do_not_replace_full_ones(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    full = [{"figure": "14", "size": "full"}]
    kept = table.FigureTable(path, ["13", "14"])
    kept.replace("14", full)
    kept.replace("14", [{"figure": "14", "size": "quick"}])
    assert kept.rows == full
    kept.replace("13", [{"figure": "13", "size": "quick"}])
    assert [row["figure"] for row in table.FigureTable(path, []).rows] == ["13", "14"]


def rows_of_figure_14(**shared: Any) -> list[dict[str, Any]]:
    quantities = [
        Quantity("mean", 2.0, 1.0, mode="best", reason="few hops"),
        Quantity("largest", 3.0, 1.0, mode="best", reason="few hops"),
        Quantity("median", 1.0, 1.0, mode="best", reason="none"),
    ]
    known = {"size": "full", "cpu_s": 1.0, "seed": 0, "commit": "abc"}
    return table.rows_of(FIGURES["14"], quantities, **known | shared)


def test_the_results_page_numbers_the_reasons_below_a_table(tmp_path: Path) -> None:
    lines = results_page.results_page(rows_of_figure_14(), FIGURES, tmp_path).splitlines()
    assert "| quantity | mode | paper | ours | ours / paper | within 15 % |" in lines  # no model
    assert "| mean | best | 1 | 2 | 2 | no, 1 |" in lines
    assert "| largest | best | 1 | 3 | 3 | no, 1 |" in lines
    assert "| median | best | 1 | 1 | 1 | yes |" in lines
    assert lines.count("1. Few hops.") == 1


@pytest.mark.parametrize(("size", "plot"), [("full", "14.svg"), ("quick", "14.quick.svg")])
def test_the_results_page_shows_the_plots_that_exist(tmp_path: Path, size: str, plot: str) -> None:
    rows = rows_of_figure_14(size=size)
    shown = f"![Figure 14](figure_{plot})"
    assert shown not in results_page.results_page(rows, FIGURES, tmp_path)
    (tmp_path / f"figure_{plot}").touch()
    assert shown in results_page.results_page(rows, FIGURES, tmp_path)


def test_the_results_page_names_rows_of_an_unknown_figure(tmp_path: Path) -> None:
    rows = [row | {"figure": "30"} for row in rows_of_figure_14()]
    with refused(ValueError, 30):
        results_page.results_page(rows, FIGURES, tmp_path)


def test_the_share_counts_rows_with_a_papers_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = table.FigureTable(tmp_path / "table.json", list(FIGURES))
    kept.replace("14", rows_of_figure_14())
    kept.replace("12", [{**rows_of_figure_14()[0], "figure": "12", "within": None}])
    again = rows_of_figure_14()
    kept.replace("13", [{**row, "figure": "13", "quantity": "one"} for row in again])
    assert run(tmp_path, "--share") == 0
    words = capsys.readouterr().out
    assert "2 of 6 " in words
    assert "2 of 4 " in words, "one reading of Figure 13 is near, and one number of Figure 14"
    assert run(tmp_path, "12", "--share") == 0
    assert "no row" in capsys.readouterr().out
    page = results_page.results_page(kept.rows, FIGURES, tmp_path)
    assert table.share(kept.rows) in page


def test_names_of_figures_choose_them() -> None:
    assert [f.name for f in chosen(FIGURES, ["14", "10"])] == ["10", "14"]
    assert len(chosen(FIGURES, [])) == len(FIGURES)
    for figure in FIGURES.values():
        for quick in (True, False):
            cells = figure.cells(quick)
            assert len(set(cells)) == len(cells) > 0


def test_the_kept_table_gives_a_reason_for_every_difference() -> None:
    path = REPOSITORY / "figures" / "table.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert rows
    for row in rows:
        assert row["figure"] in FIGURES
        if row["paper"]:
            assert row["within"] == (abs(row["ratio"] - 1) <= NEAR)
        assert row["within"] is not False or row["reason"], row


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_made_at_quick_sizes(name: str, tmp_path: Path) -> None:
    assert run(tmp_path, name, "--quick", "--jobs", "2") == 0
    size = ".quick" if FIGURES[name].quick else ""
    assert {path.name for path in tmp_path.glob("figure_*")} == {
        f"figure_{name}{size}.{kind}" for kind in ("csv", "svg", "png")
    }


@pytest.mark.exhaustive
def test_a_ray_cluster_gives_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'ray>=2.50')")
    package = str(Path(command.__file__).parent)
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"py_modules": [package]})
    try:
        assert run(tmp_path / "ray", "table-2", "10", "--ray", "auto", "--json") == 0
        by_ray = json.loads(capsys.readouterr().out)["rows"]
    finally:
        ray.shutdown()
    assert run(tmp_path / "here", "table-2", "10", "--json") == 0
    here = json.loads(capsys.readouterr().out)["rows"]
    for row in (*by_ray, *here):
        row.pop("cpu_s")
    assert by_ray == here
