"""Work for a person at a patch panel: numbered moves, pictures of them, and the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal, Protocol
from xml.sax.saxutils import escape

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torch_topoopt.fabric.switches.switch import SwitchError
from torch_topoopt.plan.codec import write_text_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.fabric.switches.circuits import Circuit

_COLUMNS = 12  # sockets in a row of the pictures
_SIZE = 64  # of a socket in the SVG picture, in its units
_MARGIN = 40
_COLOURS = {"keep": "#999999", "remove": "#c62828", "add": "#2e7d32"}
_STYLES = {"keep": "", "remove": "bold red", "add": "bold green"}
_MARKS = {"keep": "=", "remove": "-", "add": "+"}


class PersonLeft(SwitchError):  # noqa: N818 - what happened
    """The person has left: the input ended."""


@dataclass(frozen=True)
class CableMove:
    """One cable to take out or to plug in."""

    verb: Literal["remove", "add"]
    circuit: Circuit

    def __str__(self) -> str:
        a, b = self.circuit.ports
        if self.verb == "remove":
            return f"take the cable out of sockets {a} and {b}"
        return f"plug a cable into sockets {a} and {b}"


@dataclass(frozen=True)
class Sheet:
    """All moves of one change, removals first, and the cables before it."""

    panel: str
    sockets: tuple[str, ...]
    before: frozenset[Circuit]
    moves: tuple[CableMove, ...]

    def cables(self) -> list[tuple[Literal["keep", "remove", "add"], Circuit]]:
        """Every cable before or after the change, and its move."""
        moved = [(move.verb, move.circuit) for move in self.moves]
        gone = {circuit for verb, circuit in moved if verb == "remove"}
        kept = sorted(self.before - gone, key=lambda c: self.sockets.index(c.ingress))
        return [*(("keep", circuit) for circuit in kept), *moved]


class Person(Protocol):
    """The person who does the moves."""

    def begin(self, sheet: Sheet) -> None:
        """Shows all moves to the person."""
        ...

    def done(self, sheet: Sheet, number: int) -> bool:
        """Waits for move `number` (from 1 on); False if it is impossible. Raises PersonLeft."""
        ...

    def show(self, text: str) -> None: ...


class TerminalPerson:
    """A person who reads `output` and answers, line by line, on `source`.

    `svg`: where the picture of the moves is also written, for a phone or a printer.
    """

    def __init__(self, source: IO[str], output: IO[str], svg: Path | None = None) -> None:
        self._source = source
        self._console = Console(file=output, highlight=False, soft_wrap=True)
        self._svg = svg
        self._all_done = False

    def begin(self, sheet: Sheet) -> None:
        self._all_done = False
        count = len(sheet.moves)
        self.show(f"{sheet.panel}: {count} move{'' if count == 1 else 's'}, in this order:")
        for number, move in enumerate(sheet.moves, 1):
            self._console.print(f"{number:>4}. {move}", style=_STYLES[move.verb], markup=False)
        self._console.print(terminal_picture(sheet))
        self.show("= stays, - comes out, + goes in; the number is the socket at the other end")
        if self._svg is not None:
            write_svg(sheet, self._svg)
            self.show(f"picture: {self._svg}")

    def done(self, sheet: Sheet, number: int) -> bool:
        move = f"move {number} of {len(sheet.moves)}: {sheet.moves[number - 1]}"
        while not self._all_done:
            self._console.print(
                f"{move}. Done? Enter: yes; a: yes, all moves; n: it cannot be done > ",
                end="",
                markup=False,
            )
            self._console.file.flush()
            answer = self._source.readline()
            if not answer:
                raise PersonLeft(f"{sheet.panel}: the input ended at {move}")
            match answer.strip().lower():
                case "" | "y" | "yes":
                    return True
                case "a" | "all":
                    self._all_done = True
                case "n" | "no":
                    return False
                case other:
                    self.show(f"{other!r} is none of Enter, a and n")
        return True

    def show(self, text: str) -> None:
        self._console.print(text, markup=False)


class AssumedPerson(TerminalPerson):
    """Shows the moves and assumes that each is done: for unattended jobs."""

    def __init__(self, output: IO[str], svg: Path | None = None) -> None:
        super().__init__(output, output, svg)

    def done(self, sheet: Sheet, number: int) -> bool:
        self.show(f"move {number} of {len(sheet.moves)} is taken as done")
        return True


def terminal_picture(sheet: Sheet) -> Table:
    """The panel's front with what happens in each socket; rows without a change are left out."""
    table = Table(box=box.SQUARE, show_header=False, show_lines=True, padding=0)
    for _ in range(min(_COLUMNS, len(sheet.sockets))):
        table.add_column(justify="center", min_width=4, no_wrap=True)
    changing = {port for move in sheet.moves for port in move.circuit.ports}
    for start in range(0, len(sheet.sockets), _COLUMNS):
        row = sheet.sockets[start : start + _COLUMNS]
        if changing & set(row):
            table.add_row(*(_cell(sheet, socket) for socket in row))
    return table


def _cell(sheet: Sheet, socket: str) -> Text:
    cell = Text(socket, style="bold")
    for verb, circuit in sheet.cables():
        if socket in circuit.ports:
            a, b = circuit.ports
            cell.append(f"\n{_MARKS[verb]}{b if socket == a else a}", style=_STYLES[verb])
    return cell


def write_svg(sheet: Sheet, path: Path) -> None:
    """The whole panel with its cables as curves; raises SwitchError if it cannot be written."""
    columns = min(_COLUMNS, len(sheet.sockets))
    rows = -(-len(sheet.sockets) // _COLUMNS)
    width, height = columns * _SIZE + 2 * _MARGIN, rows * _SIZE + 3 * _MARGIN
    places = {
        socket: (
            _MARGIN + (i % _COLUMNS) * _SIZE + _SIZE // 2,
            2 * _MARGIN + (i // _COLUMNS) * _SIZE + _SIZE // 2,
        )
        for i, socket in enumerate(sheet.sockets)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width // 2}" y="{_MARGIN}" font-size="16">{escape(sheet.panel)}: grey stays, '
        "red (dashed) comes out, green goes in</text>",
        *(_socket_svg(socket, *place) for socket, place in places.items()),
        *(_cable_svg(verb, *places[c.ingress], *places[c.egress]) for verb, c in sheet.cables()),
        "</svg>\n",
    ]
    try:
        write_text_atomically(path, "\n".join(parts))
    except OSError as error:
        raise SwitchError(
            f"{sheet.panel}: the picture {path} cannot be written ({error.strerror}); "
            "nothing was changed"
        ) from None


def _socket_svg(socket: str, x: int, y: int) -> str:
    side = _SIZE - 12
    return (
        f'<rect x="{x - side // 2}" y="{y - side // 2}" width="{side}" height="{side}" rx="6" '
        f'fill="#f4f4f4" stroke="#444444"/><text x="{x}" y="{y - 10}" font-size="14">'
        f"{escape(socket)}</text>"
    )


def _cable_svg(verb: str, x1: int, y1: int, x2: int, y2: int) -> str:
    y1, y2 = y1 + 8, y2 + 8  # below the number
    sag = 20 + abs(x2 - x1) // 8
    dashes = ' stroke-dasharray="7 5"' if verb == "remove" else ""
    return (
        f'<path class="{verb}" d="M{x1} {y1} Q{(x1 + x2) // 2} {(y1 + y2) // 2 + sag} {x2} {y2}" '
        f'fill="none" stroke="{_COLOURS[verb]}" stroke-width="4" stroke-linecap="round"{dashes}/>'
    )
