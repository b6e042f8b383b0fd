"""Draws the Mermaid flowchart of docs/project/architecture.md as SVG, without foreign scripts.

It knows what docs/rooms.py writes: subgraphs with a title and nodes, one below the other, and
arrows.
"""

from __future__ import annotations

import html
import re

WIDTH, BOX_HEIGHT, ROW = 900, 26, 84
GLYPH = 7.2  # the width of a letter in a box

_STYLE = (
    "<style>.floor{fill:#7a82901a}.title{fill:#7a8290;font-size:12px}.room{fill:#3b4252}"
    ".name{fill:#fff;font-size:12px;text-anchor:middle;dominant-baseline:central}"
    ".arrow{stroke:#7a8290;fill:none;opacity:.55}</style>"
)
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#7a8290"/></marker></defs>'
)


def svg(flowchart: str) -> str:
    """The picture; raises ValueError for a line that is none of those."""
    floors: list[tuple[str, list[str]]] = []
    arrows: list[tuple[str, str]] = []
    inside = False
    for line in flowchart.splitlines()[1:]:
        words = line.strip()
        if title := re.fullmatch(r'subgraph \w+\["(.*)"\]', words):
            floors.append((title[1], []))
            inside = True
        elif words == "end":
            inside = False
        elif arrow := re.fullmatch(r"(\w+) --> (\w+)", words):
            arrows.append((arrow[1], arrow[2]))
        elif inside and re.fullmatch(r"\w+", words):
            floors[-1][1].append(words)
        elif words:
            raise ValueError(f"flowchart: {line!r} is no subgraph, node or arrow")
    return _drawn(floors, arrows)


def _drawn(floors: list[tuple[str, list[str]]], arrows: list[tuple[str, str]]) -> str:
    at = _places([rooms for _, rooms in floors])
    parts = [_STYLE, _HEAD]
    for number, (title, _) in enumerate(floors):
        top = number * ROW
        parts.append(f'<rect class="floor" y="{top}" width="{WIDTH}" height="{ROW - 14}" rx="8"/>')
        parts.append(f'<text class="title" x="12" y="{top + 17}">{html.escape(title)}</text>')
    for a, b in arrows:
        if at[a][1] != at[b][1]:
            start, end = at[a][1] + BOX_HEIGHT / 2, at[b][1] - BOX_HEIGHT / 2 - 3
            line = f"M{at[a][0]:.0f} {start:.0f}L{at[b][0]:.0f} {end:.0f}"
            parts.append(f'<path class="arrow" marker-end="url(#head)" d="{line}"/>')
    for room, (x, y) in at.items():
        width = len(room) * GLYPH + 14
        place = f'x="{x - width / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}"'
        parts.append(
            f'<rect class="room" {place} width="{width:.0f}" height="{BOX_HEIGHT}" rx="6"/>'
        )
        parts.append(f'<text class="name" x="{x:.0f}" y="{y:.0f}">{room}</text>')
    size = f'viewBox="0 0 {WIDTH} {len(floors) * ROW}" role="img" aria-label="rooms and imports"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def _places(rows: list[list[str]]) -> dict[str, tuple[float, float]]:
    """The middle of every room's box."""
    places: dict[str, tuple[float, float]] = {}
    for number, rooms in enumerate(rows):
        step = WIDTH / max(1, len(rooms))
        for i, room in enumerate(rooms):
            places[room] = (step * (i + 0.5), number * ROW + 44)
    return places
