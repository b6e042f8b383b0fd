"""Differences of measured from predicted iterations over all bars of the testbed."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import predicted_bars
import pytest
from support.refusals import named

if TYPE_CHECKING:
    from pathlib import Path

_LIKE = {"model": "vgg", "batch": "384", "network": "TopoOpt", "backend": "topoopt"}


def _row(figure: str, apart: float, network: str = "TopoOpt") -> dict[str, str]:
    measured = {"step_s" if figure == "20" else "iteration_s": str(2.0 * (1 + apart))}
    return {**_LIKE, **measured, "network": network, "predicted_s": "2", "load_average": "0.3"}


def _write(folder: Path, rows: dict[str, list[dict[str, str]]]) -> None:
    for figure, listed in rows.items():
        with (folder / f"figure_{figure}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, listed[0])
            writer.writeheader()
            writer.writerows(listed)


def _main(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["predicted_bars.py", "--out", str(folder)])
    return predicted_bars.main()


def test_the_median_is_that_of_all_bars_and_a_curve_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far = [_row("20", 0.15) for _ in range(9)]
    near = [_row(f, -0.01, network) for f in ("19",) for network in ("TopoOpt", "Switch 25")]
    _write(tmp_path, {"19": near, "20": far, "21": [_row("21", 0.02)]})
    assert _main(monkeypatch, tmp_path) == 0
    assert "all: 4 bars, median 1.5%, largest 15.0%" in capsys.readouterr().out


def test_a_bar_that_is_too_far_apart_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {f: [_row(f, 0.01)] for f in ("19", "20")}
    _write(tmp_path, {**rows, "21": [_row("21", -0.3)]})
    assert _main(monkeypatch, tmp_path) == 1
    assert "more than 20%: Figure 21, vgg, batch 384, TopoOpt, topoopt: 1.400 s, predicted" in (
        capsys.readouterr().out
    )


def test_a_csv_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _main(monkeypatch, tmp_path)
    assert named(capsys.readouterr().err, "figure_19.csv", "make figure-19")
