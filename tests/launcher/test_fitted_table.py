"""Tables on narrow terminals: no text is cut, and rows keep their names."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from support.dumps import collective, dump, save
from support.pseudo_terminal import lines_on_terminal
from support.running_job import a_running_job

from torch_topoopt.launcher import console
from torch_topoopt.launcher.fitted_table import FittedTable
from torch_topoopt.launcher.main import main
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from rich.console import RenderableType

WIDTHS = (60, 80, 120)
HEADINGS = st.text("abcdefgh", min_size=1, max_size=12)
WORDS = st.text("abcdefghij0123456789.", min_size=1, max_size=20)
CELLS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


def drawn(table: RenderableType, width: int, *, terminal: bool = True) -> list[str]:
    file = io.StringIO()
    of = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    of.print(table, crop=False)
    return file.getvalue().splitlines()


def check(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    check_lines(drawn(FittedTable("", columns, rows), width), columns, rows, width)


def check_lines(
    lines: list[str], columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> None:
    """Every word of the table is there, and every row has its name at the start of a line."""
    assert max(map(len, lines)) <= width
    lines = [line.replace(f" {columns[0]}: ", f" {columns[0]} ") for line in lines]
    words = set(" ".join(lines).split())
    for row in (columns, *rows):
        missing = {word for cell in row for word in cell.split()} - words
        assert not {word for word in missing if len(word) < width // 2}
    starts = [line.strip() for line in lines]
    starts += [line.removeprefix(f"{columns[0]} ") for line in starts]  # of a list
    for name, *_ in rows:
        assert len(name) > width // 2 or any(line.startswith(name) for line in starts), name


@given(
    st.integers(2, 9).flatmap(
        lambda count: st.tuples(
            st.lists(HEADINGS, min_size=count, max_size=count),
            st.lists(st.lists(CELLS, min_size=count, max_size=count), min_size=1),
        )
    ),
    st.integers(40, 120),
)
def test_no_word_is_cut_on_a_terminal_of_any_width(
    table: tuple[list[str], list[list[str]]], width: int
) -> None:
    columns, rows = table
    check(columns, rows, width)


def test_the_first_column_is_never_folded_and_figures_stay_whole() -> None:
    rows = [("AllReduce 64 MB", *["15.4 ms"] * 4), ("all-to-all 64 MB", *["10.2 ms"] * 4)]
    columns = ("", *(f"{count} ports, cabled (this)" for count in range(4)))
    lines = drawn(FittedTable("", columns, rows), 60)
    names = [line.strip().split("  ")[0] for line in lines if "ms" in line]
    assert names == ["AllReduce 64 MB", "all-to-all 64 MB"]
    assert all(line.count(" ms") == 4 for line in lines if "ms" in line)


def test_columns_go_below_each_other_with_the_names_of_the_rows() -> None:
    rows = [(f"architecture {i}", *[f"{i}{j}" * 6 for j in range(6)]) for i in range(3)]
    lines = drawn(FittedTable("", ("architecture", *"abcdef"), rows), 60)
    assert sum("architecture 1" in line for line in lines) == 2


def test_a_row_is_one_line_where_the_output_is_no_terminal() -> None:
    rows = [("rank 0", "one operation of many words " * 10, "train.py:7 in step")]
    lines = drawn(FittedTable("", ("rank", "operation", "at"), rows), 80, terminal=False)
    (line,) = (line for line in lines if "rank 0" in line)
    assert "train.py:7 in step" in line


@pytest.mark.parametrize(
    "arguments",
    [
        "advise --servers 4 --degree 2 --bandwidth 25Gbps",
        "advise --servers 16 --degree 4 --bandwidth 25Gbps",
        "alltoall --servers 8 --degree 1 --bandwidth 800Gbps",
        "allocate --boards 4x4 --jobs jobs.json",
        "compare gpt:tiny --servers 4 --evaluations 20 --rounds 1",
        "diff a.json b.json",
        "inspect dumps",
        "plan gpt:tiny --servers 4 --evaluations 20 --rounds 2 -o c.json --failures",
        "profile gpt:tiny",
        "top running --once",
        "topology --servers 8 --degree 4 --failures",
    ],
)
def test_the_tables_of_a_verb_fit_a_terminal(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    save_inputs(arguments)
    parts: list[RenderableType] = []
    with monkeypatch.context() as patches:
        patches.setattr(console.Terminal, "show", lambda terminal, part: parts.append(part))
        assert main(arguments.split()) == 0
    tables = [table for part in parts for table in tables_of(part)]
    assert tables
    for width in WIDTHS:

        def show(terminal: IO[str]) -> None:
            with monkeypatch.context() as patches:
                patches.setattr(sys, "stdout", terminal)
                for part in parts:
                    console.Terminal().show(part)

        lines = lines_on_terminal(width, show)
        for table in tables:
            cells = [[str(cell) for cell in row] for row in table.rows]
            check_lines(lines, table.columns, cells, width)


def save_inputs(arguments: str) -> None:
    """The files that the verb reads, in the current folder."""
    if "diff" in arguments:
        for name, degree in (("a", 2), ("b", 3)):
            plan = f"plan gpt:tiny --servers 4 --evaluations 20 --degree {degree} -o {name}.json"
            assert main(plan.split()) == 0
    Path("jobs.json").write_text('[{"name": "first", "boards": 4}]')
    save(JobFolder(Path("dumps")).dumps(0), dump(0, [collective(1)]), dump(1, []))
    if "running" in arguments:
        Path("running").mkdir()
        a_running_job(Path("running"))


def tables_of(part: RenderableType) -> list[FittedTable]:
    parts = part.renderables if isinstance(part, Group) else [part]
    return [table for table in parts if isinstance(table, FittedTable)]
