"""The results as a page: one table per figure, with the reason of every row outside 15 %.

`make figures` writes it beside the table, as figures/results.md; `make site` makes it a page of the
documentation. It is never committed: figures/table.json is its source.
"""

from __future__ import annotations

from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from figures.table import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from figures.figure import Figure

Row = dict[str, Any]

# Paths are relative to figures/, where `make figures` writes the page.
_INTRODUCTION = """# Results of every figure

These are the numbers of figures/table.json, which `make figures` computes.
[The papers' figures](../docs/planning/figures.md) explains what each figure shows, what the columns
mean, and why some numbers differ from the paper's. The last column of a table says whether our
number is within 15 % of the paper's. The number after "no" is that of the reason below the table.
"""


def results_page(rows: Sequence[Row], figures: Mapping[str, Figure], folder: Path) -> str:
    """The page in Markdown, with the plots of `folder` that exist.

    Raises ValueError for rows of a figure that is not in `figures`.
    """
    by_figure = {name: list(group) for name, group in groupby(rows, lambda row: row["figure"])}
    for name in by_figure:
        if name not in figures:
            raise ValueError(
                f"figure: {name!r} is not one of {', '.join(figures)}; remove its rows"
            )
    lines = [_INTRODUCTION, *_overview(figures, by_figure)]
    for name, group in by_figure.items():
        lines += _section(figures[name], group, folder)
    return "\n".join(lines)


def heading(name: str) -> str:
    """The heading of a figure, such as "Figure 11a"; its anchor on the page follows from it."""
    return f"Figure {name}" if name[0].isdigit() else name.replace("-", " ").capitalize()


def file_stem(name: str, size: str) -> str:
    """The name of a figure's CSV and plots without their suffix."""
    return f"figure_{name}" + (".quick" if size == "quick" else "")


def _overview(figures: Mapping[str, Figure], by_figure: Mapping[str, Sequence[Row]]) -> list[str]:
    lines = _table_head(("figure", "title", "rows", "compared with a paper", "within 15 %"))
    for name, rows in by_figure.items():
        compared = [row for row in rows if row["within"] is not None]
        near = sum(row["within"] for row in compared)
        link = f"[{heading(name)}](#{heading(name).lower().replace(' ', '-')})"
        counts = (len(rows), len(compared), near) if compared else (len(rows), "", "")
        lines.append(_table_row((link, figures[name].title, *counts)))
    return [*lines, "", f"Altogether, {share(chain(*by_figure.values()))}.", ""]


def _section(figure: Figure, rows: Sequence[Row], folder: Path) -> Iterator[str]:
    first = rows[0]
    sizes = figure.quick if first["size"] == "quick" else figure.full
    yield from (f"## {heading(figure.name)}", "")
    yield f"{_capital(figure.title)}: {figure.about}. Command: `make figure-{figure.name}`."
    facts = (
        f"sizes: {first['size']}" + (f" ({sizes})" if sizes else ""),
        f"{first['cpu_s']:.0f} s of processor time",
        f"seed {str(first['seed']).strip('[]')}",
        f"commit {first['commit']}",
    )
    yield _capital("; ".join(facts)) + "."
    yield ""
    plot = folder / f"{file_stem(figure.name, first['size'])}.svg"
    if plot.is_file():
        yield from (f"![{heading(figure.name)}]({plot.name})", "")
    reasons = {reason: place for place, reason in enumerate(_reasons(rows), 1)}
    columns = {
        "quantity": [row["quantity"] for row in rows],
        "model": [row["model"] for row in rows],
        "mode": [row["mode"] for row in rows],
        "paper": [_number(row["paper"]) for row in rows],
        "ours": [_number(row["ours"]) for row in rows],
        "ours / paper": [_number(row["ratio"]) for row in rows],
        "within 15 %": [_within(row, reasons) for row in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    yield from _table_head(tuple(filled))
    yield from (_table_row(cells) for cells in zip(*filled.values(), strict=True))
    yield ""
    if reasons:
        yield from (f"{place}. {_capital(reason)}." for reason, place in reasons.items())
        yield ""


def _reasons(rows: Iterable[Row]) -> list[str]:
    """Every reason once, in the order of the rows."""
    return list(dict.fromkeys(row["reason"] for row in rows if row["reason"]))


def _within(row: Row, reasons: Mapping[str, int]) -> str:
    if row["within"] is None:
        return ""
    return "yes" if row["within"] else f"no, {reasons[row['reason']]}"


def _table_head(names: tuple[str, ...]) -> list[str]:
    return [_table_row(names), _table_row("---" for _ in names)]


def _table_row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
