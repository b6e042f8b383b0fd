"""`topoopt hamiltonian`: two cycles over all servers of a torus without a common cable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, input_errors
from torch_topoopt.plan.network import hops_around

if TYPE_CHECKING:
    import argparse

_MOST_DRAWN = 24  # rows, and columns

_DESCRIPTION = """\
Two Hamiltonian cycles of a torus of R rows and C columns that share no cable: each passes every
server once, and together they use every cable. An AllReduce on both, each in both directions, keeps
all four links of every server busy ("HammingMesh", section V-A2 and appendix D).

There are two such cycles wherever R and C are 3 or more. A dimension of 2 has two cables between
its servers; then the other dimension must be even. Server row * C + column is in that row and
column, counted from 0.

Prints a drawing of a torus of up to 24 x 24, of which the first cycle has the heavy lines and the
second the dotted ones, and the servers of each cycle in their order, from server 0."""

_EXAMPLES = """\
  topoopt hamiltonian 4 4
  topoopt hamiltonian 12 4 --json"""


@dataclass(frozen=True)
class TorusCycles:
    """The result of `topoopt hamiltonian`."""

    rows: int
    columns: int
    cycles: tuple[tuple[int, ...], tuple[int, ...]]


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("hamiltonian", _DESCRIPTION, _EXAMPLES)
    options.add_argument("rows", type=int, metavar="R", help="rows of the torus")
    options.add_argument("columns", type=int, metavar="C", help="columns of the torus")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.plan.limits import check_items
    from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles

    rows, columns = arguments.rows, arguments.columns
    with input_errors():
        check_items(abs(rows * columns), "rows x columns", rows * columns, "servers")
        cycles = disjoint_cycles(rows, columns)
    if arguments.json:
        console.print_json(TorusCycles(rows, columns, cycles))
        return OK
    terminal = console.Terminal()
    if max(rows, columns) <= _MOST_DRAWN:
        for line in drawing(rows, columns, cycles[0]):
            terminal.line(line)
        terminal.line()
    for name, cycle in zip(("first", "second"), cycles, strict=True):
        terminal.line(f"{name}: {' '.join(map(str, cycle))}")
    return OK


def drawing(rows: int, columns: int, first: tuple[int, ...]) -> list[str]:
    """The torus with the cables of the first cycle in heavy lines and all others dotted.

    Lines that leave at an edge return at the opposite one.
    """
    heavy = _cables_of(rows, columns, first)
    lines = []
    for row in range(rows):
        east = ["━━━" if (row, column, 0) in heavy else "┄┄┄" for column in range(columns)]
        south = ["┃" if (row, column, 1) in heavy else "┊" for column in range(columns)]
        if row == 0:
            lines.append("   " + "   ".join(_last_south(rows, columns, heavy)))
        lines.append(east[-1][:2] + "".join(f" o {cable}" for cable in east)[:-1])
        lines.append("   " + "   ".join(south))
    return lines


def _last_south(rows: int, columns: int, heavy: set[tuple[int, int, int]]) -> list[str]:
    return ["┃" if (rows - 1, column, 1) in heavy else "┊" for column in range(columns)]


def _cables_of(rows: int, columns: int, cycle: tuple[int, ...]) -> set[tuple[int, int, int]]:
    """The row and column of each cable's northern or western end, and 0 if it runs east, else 1.

    Of the two cables in a dimension of two servers, either may be meant; the other cycle has the
    other.
    """
    cables = set()
    for a, b in hops_around(cycle):
        for (row, column), (to_row, to_column) in (
            (divmod(a, columns), divmod(b, columns)),
            (divmod(b, columns), divmod(a, columns)),
        ):
            if (row, (column + 1) % columns) == (to_row, to_column):
                cables.add((row, column, 0))
                break
            if ((row + 1) % rows, column) == (to_row, to_column):
                cables.add((row, column, 1))
                break
    return cables
