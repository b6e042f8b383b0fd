"""The baselines of all-to-alls on moving circuits, and that ours are never slower."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import alltoall
import alltoall_plots
import numpy as np
import pytest
from support.refusals import named

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("workload", alltoall.WORKLOADS)
@pytest.mark.parametrize("degree", [1, 2])
def test_ours_is_never_slower_than_a_baseline(workload: str, degree: int) -> None:
    counts = alltoall.chunk_counts(7, workload, 16, seed=2)
    others = alltoall.baselines(counts, degree, seed=2)
    mine = alltoall.ours(counts, degree, workload, seed=2)
    assert set(others) >= {"circulant", "rings", "mixnet", "fast"}
    assert ("kautz" in others) == (degree > 1)
    for delay_s in alltoall.SWEPT_S:
        our_s, _ = alltoall.fastest(mine, delay_s)
        assert our_s <= min(alltoall.fastest([other], delay_s)[0] for other in others.values())


def test_sizes_have_the_mean_that_is_asked_for() -> None:
    for workload in alltoall.WORKLOADS:
        counts = alltoall.chunk_counts(40, workload, 32, seed=0)
        assert not np.diagonal(counts).any()
        assert 8 <= counts.sum() / (40 * 39) <= 8.7
    even = alltoall.chunk_counts(6, "uniform", 32, seed=0)
    assert set(even[~np.eye(6, dtype=bool)]) == {8}


def test_cells_delays_and_ratios_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("cells", "delays"):
        arguments = [what, "--servers", "5", "--degree", "1", "--workloads", "random"]
        monkeypatch.setattr("sys.argv", ["alltoall.py", *arguments])
        alltoall.main()
    monkeypatch.setattr("sys.argv", ["alltoall.py", "ratios", "--servers", "8"])
    alltoall.main()
    text = capsys.readouterr().out
    assert re.search(r"mean of 1 cells: [\d.]+% less; worst (0\.\d+|1\.000)", text)
    assert "servers, circuits, sizes: 5 1 random 32 MB; times in ms" in text
    assert re.search(r" 8  1\.100 \(d = +4\)", text)


def test_what_is_kept_is_not_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "cells.json"
    cell = ["--servers", "5", "--degree", "2", "--workloads", "zipf", "--keep", str(kept)]
    monkeypatch.setattr("sys.argv", ["alltoall.py", "cells", *cell])
    alltoall.main()
    first = capsys.readouterr().out
    monkeypatch.setattr(alltoall, "ours", None)
    alltoall.main()
    assert capsys.readouterr().out == first


def test_figures_are_drawn_from_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ["--workloads", "random", "zipf", "--keep", str(tmp_path / "cells.json")]
    monkeypatch.setattr(alltoall_plots, "_RATIO_SERVERS", (8, 16))
    monkeypatch.setattr(alltoall_plots, "_SHOWN_SLOTS", (8,))
    for what in (
        ["cells", "--servers", "4", "5", "--sizes", "8", *kept],
        ["cells", "--servers", "4", "--sizes", "16", "--degree", "1", *kept],
        ["plot", *kept[-2:], "--out", str(tmp_path / "plots")],
    ):
        monkeypatch.setattr("sys.argv", ["alltoall.py", *what])
        alltoall.main()
    drawn = capsys.readouterr().out
    names = {"networks-8MB", "sizes-4", "bounds", "delays"}
    files = {path.name for path in (tmp_path / "plots").iterdir()}
    assert files == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert all(f"{name}.png" in drawn for name in names)
    text = (tmp_path / "plots" / "networks-8MB.svg").read_text(encoding="utf-8")
    for word in ("4 servers, 2 circuits", "5 servers, 1 circuit", "kautz", "zipf", "time, ms"):
        assert word in text


def test_plots_of_nothing_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["alltoall.py", "plot", "--keep", "none.json"])
    with pytest.raises(SystemExit):
        alltoall.main()
    assert named(capsys.readouterr().err, "keep", "none.json")
