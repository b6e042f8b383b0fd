"""A cabling drawn in a terminal: servers around a circle, cables as lines of Braille dots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.comparison.cabling.drawing import bends, circle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.comparison.cabling.sheets import LabelledCable

MOST_DRAWN = 12  # servers
_WIDE, _HIGH = 72, 23  # characters
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a cell, by row and column


class _Canvas:
    """Characters, each of 2 x 4 dots; text hides dots, but no other text."""

    def __init__(self, wide: int, high: int) -> None:
        self._dots = [[0] * wide for _ in range(high)]
        self._text: list[list[str | None]] = [[None] * wide for _ in range(high)]

    def dot(self, x: float, y: float) -> None:
        """At a place in characters, fractions included."""
        column, row = int(x), int(y)
        if 0 <= row < len(self._dots) and 0 <= column < len(self._dots[0]):
            self._dots[row][column] |= _DOTS[int((y - row) * 4)][int((x - column) * 2)]

    def write(self, x: float, y: float, text: str) -> bool:
        """Writes it centred there; False, without writing, if it would touch other text."""
        row = int(y)
        left = max(0, min(len(self._dots[0]) - len(text), round(x - len(text) / 2)))
        beside = self._text[row][max(0, left - 1) : left + len(text) + 1]
        if any(letter is not None for letter in beside):
            return False
        self._text[row][left : left + len(text)] = list(text)
        return True

    def lines(self) -> list[str]:
        rows = [
            "".join(
                letter or (chr(0x2800 + dots) if dots else " ")
                for letter, dots in zip(texts, of_row, strict=True)
            ).rstrip()
            for texts, of_row in zip(self._text, self._dots, strict=True)
        ]
        while rows and not rows[-1]:
            rows.pop()
        return rows


def draw_text(names: Sequence[str], cables: Sequence[LabelledCable]) -> list[str]:
    """The lines of the drawing, of at most `MOST_DRAWN` servers; none for more, because cables
    would hide each other."""
    count = len(names)
    if count > MOST_DRAWN:
        return []
    high = 5 + len(cables) if count == 2 else _HIGH
    canvas = _Canvas(_WIDE, high)
    wide = max(map(len, names)) + 4
    places = [
        (_WIDE / 2 + x * (_WIDE - wide) / 2, high / 2 + y * (high / 2 - 1))
        for x, y in circle(count)
    ]
    for (x, y), name in zip(places, names, strict=True):
        canvas.write(x, y, f"[{name}]")
    for cable, bend in zip(cables, bends(cables), strict=True):
        (ax, ay), (bx, by) = (places[server] for server in cable.servers)
        steps = 400
        for step in range(steps + 1):
            t = step / steps
            bow = 4 * t * (1 - t) * bend * 1.2  # downwards, in lines
            canvas.dot(ax + t * (bx - ax), ay + t * (by - ay) + bow)
        for t in (0.36, 0.64, 0.28, 0.5, 0.42, 0.58):
            bow = 4 * t * (1 - t) * bend * 1.2
            if canvas.write(ax + t * (bx - ax), ay + t * (by - ay) + bow, cable.label):
                break
    return canvas.lines()
