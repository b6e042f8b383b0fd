"""Predictions of every bar of the testbed's Figures 19, 20 and 21, from their CSVs.

    python benchmarks/figures 19 20 21        # measures them: root, nothing else running
    python benchmarks/predicted_bars.py       # median and largest difference over all bars

A bar is a model or batch on one network with one backend; its difference is that of the measured
iteration from the predicted one, relative to the predicted. Bars that are apart by more than
--most come with what is known of them. The exit code is 1 where there are any, or where the median
is not below --median.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FIGURES = ("19", "20", "21")
_FOLDER = Path(__file__).resolve().parents[1] / "figures"


@dataclass(frozen=True)
class Bar:
    """Seconds of an iteration, and the load average before it was measured."""

    figure: str
    name: str
    measured_s: float
    predicted_s: float
    load: float

    @property
    def apart(self) -> float:
        return self.measured_s / self.predicted_s - 1


def bars_of(figure: str, rows: Iterable[Mapping[str, str]]) -> list[Bar]:
    """The bars of one figure's CSV; Figure 20 has a row for each point of a curve, all of which
    have the curve's mean."""
    found: dict[str, Bar] = {}
    for row in rows:
        where = f"{row['network']}, {row['backend']}"
        name = where if figure == "20" else f"{row['model']}, batch {row['batch']}, {where}"
        measured = float(row["step_s" if figure == "20" else "iteration_s"])
        predicted, load = float(row["predicted_s"]), float(row["load_average"])
        found[name] = Bar(figure, name, measured, predicted, load)
    return list(found.values())


def show(bars: list[Bar], most: float, median_most: float) -> bool:
    """Prints what the docstring says; whether both limits are kept."""
    for figure in _FIGURES:
        apart = [abs(bar.apart) for bar in bars if bar.figure == figure]
        print(f"Figure {figure}: {_summary(apart)}")
    every = [abs(bar.apart) for bar in bars]
    print(f"all: {_summary(every)}")
    far = sorted((b for b in bars if abs(b.apart) > most), key=lambda b: -abs(b.apart))
    for bar in far:
        print(
            f"more than {most:.0%}: Figure {bar.figure}, {bar.name}: {bar.measured_s:.3f} s, "
            f"predicted {bar.predicted_s:.3f} s ({bar.apart:+.1%}); load average {bar.load:.2f}"
        )
    return not far and median(every) < median_most


def _summary(apart: list[float]) -> str:
    return f"{len(apart)} bars, median {median(apart):.1%}, largest {max(apart):.1%}"


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, default=_FOLDER, help="folder of the CSVs")
    options.add_argument("--most", type=float, default=0.2, help="of a bar (default: 0.2)")
    options.add_argument("--median", type=float, default=0.1, help="of all (default: 0.1)")
    arguments = options.parse_args()
    bars: list[Bar] = []
    for figure in _FIGURES:
        path = arguments.out / f"figure_{figure}.csv"
        try:
            with path.open(encoding="utf-8", newline="") as file:
                bars += bars_of(figure, csv.DictReader(file))
        except OSError as error:
            options.error(f"{path}: {error.strerror}; `make figure-{figure}` measures it")
        except (KeyError, ValueError, ZeroDivisionError) as error:
            options.error(f"{path}: is not the CSV of Figure {figure} ({error})")
    return 0 if show(bars, arguments.most, arguments.median) else 1


if __name__ == "__main__":
    sys.exit(main())
