"""A table that keeps all of its text on a terminal of any width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    _Cell: TypeAlias = str | Text

_WHOLE = 16  # characters: a cell up to this length, such as "15.4 ms", is never folded
_GAP, _NARROW_GAP = 3, 2  # characters between two columns
_INDENT = 2


@dataclass(frozen=True)
class FittedTable:
    """The first column names the rows; the others are figures and aligned to the right.

    On a terminal that is too narrow, headings are folded at spaces, then columns move closer and
    long cells are folded, too. If that is not enough, the columns go below each other in blocks,
    each with the first column. If a block cannot hold two columns, each row becomes a list. Where
    the output is no terminal a row is one line, however long, for grep and awk.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[_Cell]]
    left: Collection[str] = ()
    """Further columns that are aligned to the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, style="bold")
        columns = [
            _Column([_text(row[i]) for row in (self.columns, *self.rows)], i == 0)
            for i in range(len(self.columns))
        ]
        room = options.max_width
        whole = _folded([(c.natural, c.whole) for c in columns], room, _GAP)
        total = _total(whole, _GAP)
        if total <= room or not console.is_terminal:
            table = self._table(columns, whole, _GAP)
            yield from console.render(table, options.update_width(total))
        elif blocks := _blocks(columns, room):
            for block in blocks:
                widths = _folded([(c.natural, c.least) for c in block], room, _NARROW_GAP)
                yield self._table(block, widths, _NARROW_GAP)
        else:
            yield self._lists()

    def _table(self, columns: Sequence[_Column], widths: Sequence[int], gap: int) -> Table:
        left, right = divmod(gap - 1, 2)  # the box draws one space between columns
        table = Table(box=box.SIMPLE_HEAD, padding=(0, left + right, 0, left))
        for column, width in zip(columns, widths, strict=True):
            heading, *cells = column.cells
            folded = any(cell.cell_len > width for cell in cells)
            text = column.first or folded or heading.plain in self.left
            table.add_column(heading, width=width, justify="left" if text else "right")
        for row in zip(*(column.cells[1:] for column in columns), strict=True):
            table.add_row(*row)
        return table

    def _lists(self) -> Table:
        """A list for each row."""
        grid = Table.grid()
        heading = f"{self.columns[0]}: " if self.columns[0] else ""
        for name, *cells in self.rows:
            grid.add_row(Text.assemble(" ", heading, _text(name)))
            pairs = Table.grid(padding=(0, 2, 0, 0))
            pairs.add_column(no_wrap=True)
            pairs.add_column(overflow="fold")
            for column, cell in zip(self.columns[1:], cells, strict=True):
                pairs.add_row(column, _text(cell))
            grid.add_row(Padding(pairs, (0, 0, 0, _INDENT + 1)))
        return grid


class _Column:
    """Heading and cells of a column, and its widths in characters."""

    def __init__(self, cells: Sequence[Text], first: bool) -> None:
        heading, *values = self.cells = list(cells)
        self.first = first
        self.natural = max(cell.cell_len for cell in cells)
        self.whole = self.least = self.natural
        """The width that folds the heading alone, and that which also folds cells."""
        if not first:
            word = _longest_word(heading)
            self.whole = max([word, *(cell.cell_len for cell in values)])
            self.least = max([word, *map(_least_width, values)])


def _blocks(columns: Sequence[_Column], room: int) -> list[list[_Column]]:
    """The columns in as few blocks as fit into `room`; empty if two columns do not."""
    first, *others = columns
    blocks: list[list[_Column]] = []
    for column in others:
        if blocks and _total([c.least for c in [*blocks[-1], column]], _NARROW_GAP) <= room:
            blocks[-1].append(column)
        elif _total([first.least, column.least], _NARROW_GAP) <= room:
            blocks.append([first, column])
        else:
            return []
    return blocks


def _folded(ranges: Sequence[tuple[int, int]], room: int, gap: int) -> list[int]:
    """Widths from (most, least): the widest that can be folded becomes narrower until all fit."""
    widths = [most for most, _ in ranges]
    while _total(widths, gap) > room:
        foldable = [i for i, (_, least) in enumerate(ranges) if widths[i] > least]
        if not foldable:
            break
        widths[max(foldable, key=widths.__getitem__)] -= 1
    return widths


def _text(cell: _Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _total(widths: Sequence[int], gap: int) -> int:
    """Characters of a line: the box adds one at each side."""
    return sum(widths) + gap * len(widths) + 1


def _least_width(cell: Text) -> int:
    """Characters that must stay on one line."""
    return cell.cell_len if cell.cell_len <= _WHOLE else _longest_word(cell)


def _longest_word(cell: Text) -> int:
    return max(word.cell_len for word in cell.split(" "))
