"""A run folder as a page that needs no network, and its figures as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.codec import write_text_atomically
from torch_topoopt.report.analysis import Analysis, analyse
from torch_topoopt.report.page import render_page
from torch_topoopt.report.run_folder import read_plan, read_run
from torch_topoopt.report.summary import summarise

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from torch_topoopt.report.run_folder import Run

__all__ = ["summary", "write_comparison", "write_plan_report", "write_report"]


def write_report(
    run_dir: str | os.PathLike[str],
    *,
    analysed: bool = True,
    plots: str | os.PathLike[str] | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> Path:
    """Writes `report.html` into a run folder, whole or not at all, and returns its path.

    Reads `plan.json`, and `opgraph.json` and `metrics.jsonl` if they exist; without the last it is
    the page of a plan. The same files give the same bytes. `analysed` adds simulations
    (`analysis`), about a minute for 128 servers; `on_step` is called with each next step. Figures
    for a paper go into the folder `plots`, each as SVG and PNG.
    Raises DocumentError (a ValueError) if `plan.json` is missing, or if a file is corrupt or
    belongs to another plan; OSError if the folder cannot be read or written.
    """
    target = Path(run_dir) / "report.html"
    return _write(read_run(Path(run_dir)), target, analysed, plots, on_step)


def write_plan_report(
    plan: str | os.PathLike[str],
    *,
    analysed: bool = True,
    plots: str | os.PathLike[str] | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> Path:
    """Writes the page of a plan without a run next to it, as NAME.html; returns its path.

    It has predictions, network and strategy. Arguments and errors: see `write_report`.
    """
    target = Path(plan).with_suffix(".html")
    return _write(read_plan(Path(plan)), target, analysed, plots, on_step)


def _write(
    run: Run,
    target: Path,
    analysed: bool,
    plots: str | os.PathLike[str] | None,
    on_step: Callable[[str], None],
) -> Path:
    analysis = analyse(run, on_step) if analysed else Analysis()
    on_step("the page")
    write_text_atomically(target, render_page(run, analysis))
    if plots is not None:
        from torch_topoopt.report.plots import draw_all  # imports Matplotlib's figures

        on_step("figures")
        Path(plots).mkdir(parents=True, exist_ok=True)
        draw_all(run, analysis, Path(plots))
    return target


def write_comparison(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    analysed: bool = True,
    on_step: Callable[[str], None] = lambda step: None,
) -> Path:
    """Writes one page of two run folders or plans, in any combination, and returns its path.

    Raises like `write_report`.
    """
    from torch_topoopt.report.comparison_page import render_comparison

    paths = [Path(first), Path(second)]
    runs = [read_run(path) if path.is_dir() else read_plan(path) for path in paths]
    analyses = [analyse(run, on_step) if analysed else Analysis() for run in runs]
    names = [path.name if path.name != "plan.json" else str(path) for path in paths]
    write_text_atomically(Path(target), render_comparison(names, runs, analyses))
    return Path(target)


def summary(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The figures of the page as values that JSON can hold; raises like `write_report`.

    Times are in seconds, sizes in bytes, accuracies are fractions; None stands for what was not
    recorded. `traffic.basis` says what `measured_over_predicted` compares: bytes per "iteration",
    each link's "share" of all bytes, or nothing ("predicted": nothing was measured).
    """
    return summarise(read_run(Path(run_dir)))
