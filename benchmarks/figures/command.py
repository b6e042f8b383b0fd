"""The command: cells that are missing are computed, and figures made as their cells are there."""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from figures import plots
from figures.cell import REPOSITORY, Cell, CellResult
from figures.registry import all_figures, chosen
from figures.results_page import file_stem, heading, results_page
from figures.store import CellStore
from figures.table import FigureTable, rows_of, share
from figures.workers import run_in_processes
from torch_topoopt.launcher.errors import BAD_INPUT, CHECK_FAILED, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from figures.figure import Figure

INTERRUPTED = 130
_OUT = REPOSITORY / "figures"
_PAGE = "results.md"  # in the folder of the table


@dataclass
class FigureRun:
    """One call of the command. `computed` counts the cells that were not kept from before."""

    figures: Sequence[Figure]
    quick: bool
    out: Path
    jobs: int
    ray: str | None
    console: Console
    table: FigureTable
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    computed: int = 0
    cells_cpu_s: float = 0.0  # of all cells of the figures, those kept from before included
    cells_wall_s: float = 0.0

    def run(self) -> None:
        """Computes what is missing, and makes every figure once its cells are there."""
        store = CellStore(self.out / "cells")
        able = self._able()
        cells = {figure.name: list(figure.cells(self.quick)) for figure in able}
        every = list(dict.fromkeys(cell for listed in cells.values() for cell in listed))
        results = {cell: kept for cell in every if (kept := store.known(cell)) is not None}
        # Longest first: a long cell that comes last runs alone.
        missing = store.longest_first(cell for cell in every if cell not in results)
        waiting = able
        with _progress(self.console) as progress:
            bar = progress.add_task("cells", total=len(every), completed=len(results))
            waiting = self._make_ready(waiting, cells, results)
            for cell, result in self._computed(missing):
                results[cell] = result
                if result.error:
                    self.console.print(f"{cell.name}: {result.error}", markup=False)
                else:
                    store.add(cell, result)
                self.computed += 1
                waiting = self._make_ready(waiting, cells, results)
                progress.advance(bar)
        self.cells_cpu_s = sum(result.cpu_s for result in results.values())
        self.cells_wall_s = sum(result.wall_s for result in results.values())

    def _able(self) -> list[Figure]:
        """The figures that this machine can make; the others are left out, with the reason."""
        able = []
        for figure in self.figures:
            if reason := figure.obstacle():
                self.left_out.append(f"{figure.name}: {reason}")
            else:
                able.append(figure)
        return able

    def _computed(self, missing: list[Cell]) -> Iterator[tuple[Cell, CellResult]]:
        if not missing:
            return
        here = missing
        if self.ray is not None:
            from figures.ray_tasks import run_on_ray

            yield from run_on_ray([c for c in missing if not c.exclusive], self.ray)
            here = [cell for cell in missing if cell.exclusive]
        yield from run_in_processes(here, self.jobs)

    def _make_ready(
        self,
        waiting: list[Figure],
        cells: dict[str, list[Cell]],
        results: dict[Cell, CellResult],
    ) -> list[Figure]:
        """Makes the figures whose cells are all there; returns the others."""
        left = []
        for figure in waiting:
            needed = cells[figure.name]
            if not all(cell in results for cell in needed):
                left.append(figure)
            elif failed := next((cell for cell in needed if results[cell].error), None):
                self.left_out.append(f"{figure.name}: {failed.name}: {results[failed].error}")
            else:
                self._make(figure, needed, [results[cell] for cell in needed])
        return left

    def _make(self, figure: Figure, cells: list[Cell], results: list[CellResult]) -> None:
        pairs = [(c.parameters, r.row) for c, r in zip(cells, results, strict=True)]
        made = figure.make(pairs, self.quick)
        seeds = sorted({parameters["seed"] for parameters, _ in pairs if "seed" in parameters})
        shared = {
            "size": "quick" if self.quick and figure.quick else "full",
            "cpu_s": round(sum(result.cpu_s for result in results), 1),
            "seed": seeds[0] if len(seeds) == 1 else seeds or 0,
            "commit": commit(),
        }
        small = shared["size"] == "quick"
        stem = self.out / file_stem(figure.name, shared["size"])
        _write_csv(stem.with_name(stem.name + ".csv"), made.csv, shared)
        sizes = figure.quick if small else figure.full
        title = f"{heading(figure.name)}: {figure.title}" + (f" ({sizes})" if sizes else "")
        plots.save(made.draw, title, made.size_inches, stem)
        rows = rows_of(figure, made.quantities, **shared)
        for row in rows:
            if row["within"] is False and not row["reason"] and small:
                row["reason"] = f"quick: {figure.quick}"
        self.table.replace(figure.name, rows)
        self.rows += rows
        where = stem.relative_to(Path.cwd()) if stem.is_relative_to(Path.cwd()) else stem
        self.console.print(f"{title}: {where}.svg, {shared['cpu_s']:g} s of processor time")


def commit() -> str:
    """The commit that is checked out, with a + where files differ from it; "unknown" without git.
    What a run itself writes does not count."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(REPOSITORY), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()

    try:
        changed = git(
            "status", "--porcelain", "--", "torch_topoopt", "csrc", "models", "benchmarks"
        )
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _write_csv(path: Path, rows: Sequence[dict[str, Any]], shared: dict[str, Any]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*names, "size", "seed", "commit"])
        writer.writeheader()
        kept = {name: shared[name] for name in ("size", "seed", "commit")}
        writer.writerows({**row, **kept} for row in rows)


def _progress(console: Console) -> Progress:
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="figures",
        description="Computes figures and tables of the TopoOpt paper (docs/planning/figures.md).",
    )
    options.add_argument("figures", nargs="*", metavar="FIGURE", help="11a, 12, 11 (default: all)")
    options.add_argument("--quick", action="store_true", help="small sizes: minutes, not hours")
    options.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    options.add_argument("--ray", metavar="ADDRESS", help="cells as tasks of this cluster, or auto")
    options.add_argument("--out", type=Path, default=_OUT, help="folder (default: figures)")
    options.add_argument("--list", action="store_true", help="names the figures, and ends")
    options.add_argument("--share", action="store_true", help="counts rows of the kept table")
    options.add_argument("--json", action="store_true", help="prints the rows of the table")
    return options


def main(words: Sequence[str]) -> int:
    """Runs the command; returns the exit code: 1 where a figure was left out."""
    arguments = _parser().parse_args(words)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        if arguments.jobs < 1:
            raise ValueError(f"jobs: {arguments.jobs} is not at least 1")
        known = all_figures()
        figures = chosen(known, arguments.figures)
        if arguments.list:
            _list(figures)
            return OK
        table = FigureTable(arguments.out / "table.json", list(known))
        if arguments.share:
            names = {figure.name for figure in figures}
            print(share(row for row in table.rows if row["figure"] in names))
            return OK
        run = FigureRun(
            *(figures, arguments.quick, arguments.out, arguments.jobs, arguments.ray),
            *(console, table),
        )
        try:
            run.run()
        finally:
            if run.rows:
                page = results_page(table.rows, known, arguments.out)
                (arguments.out / _PAGE).write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        console.print(f"figures: {error}", markup=False)
        return BAD_INPUT
    except KeyboardInterrupt:
        console.print("figures: stopped; what is computed is kept", markup=False)
        return INTERRUPTED
    return _report(run, console, as_json=arguments.json)


def _report(run: FigureRun, console: Console, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"rows": run.rows, "left_out": run.left_out}, indent=1))
    for line in run.left_out:
        console.print(f"figures: left out {line}", markup=False)
    console.print(
        f"all cells: {run.cells_cpu_s:.0f} s of processor time, {run.cells_wall_s:.0f} s one by one"
    )
    console.print(f"{len(run.rows)} rows, {run.computed} cells computed")
    console.print(f"{run.out / 'table.json'}: {share(run.table.rows)}")
    return CHECK_FAILED if run.left_out else OK


def _list(figures: Sequence[Figure]) -> None:
    for figure in figures:
        print(f"{figure.name:<10} {figure.title}: {figure.about}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
