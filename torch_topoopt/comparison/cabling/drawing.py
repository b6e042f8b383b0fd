"""The drawing of a cabling as an SVG file: servers on a circle, their ports, labelled cables."""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.comparison.cabling.sheets import LabelledCable

_SIZE = 900.0
_MOST_PORTS_SHOWN = 16  # servers; above, only the list has ports and labels
_COLOURS = ("#0072b2", "#d55e00", "#00875f", "#aa3377", "#8a6d00", "#4b3fa8", "#5f6b73", "#7a1f1f")

Point = tuple[float, float]


def circle(count: int, radius: float = 1.0) -> list[Point]:
    """Server 0 at the top, the others clockwise, y pointing down; two servers side by side."""
    turn = -math.pi / 2 if count > 2 else math.pi
    angles = [turn + 2 * math.pi * i / count for i in range(count)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]


def bends(cables: Sequence[LabelledCable]) -> list[float]:
    """How far each cable bows out, in steps; parallel cables are adjacent, others straight."""
    together: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, cable in enumerate(cables):
        together[cable.servers].append(i)
    found = [0.0] * len(cables)
    for indices in together.values():
        for place, i in enumerate(indices):
            found[i] = place - (len(indices) - 1) / 2
    return found


def draw_svg(names: Sequence[str], cables: Sequence[LabelledCable], title: str) -> str:
    """A whole SVG document; cables that skip equally many servers have one colour."""
    count = len(names)
    detailed = count <= _MOST_PORTS_SHOWN
    centre, radius = _SIZE / 2, _SIZE * (0.36 if detailed else 0.43)
    places = [(centre + x, centre + y) for x, y in circle(count, radius)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE:g} {_SIZE:g}" role="img" '
        'font-family="sans-serif" text-anchor="middle">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_SIZE:g}" height="{_SIZE:g}" fill="white"/>',
        f'<text x="{centre:g}" y="26" font-size="18">{escape(title)}</text>',
    ]
    skips = sorted({_skip(cable, count) for cable in cables})
    width = 3.0 if detailed else max(0.7, 90 / (count + 40))
    drawn = [
        _Curve(places, cable, bend * (26 if detailed else 5))
        for cable, bend in zip(cables, bends(cables), strict=True)
    ]
    for cable, curve in zip(cables, drawn, strict=True):
        colour = _COLOURS[skips.index(_skip(cable, count)) % len(_COLOURS)]
        parts.append(
            f'<path d="{curve.path()}" fill="none" stroke="{colour}" stroke-width="{width:.3g}">'
            f"<title>{escape(_line(cable))}</title></path>"
        )
    parts += _boxes(names, places, detailed)
    if detailed:
        for cable, curve in zip(cables, drawn, strict=True):
            parts += _ends(cable, curve)
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Curve:
    """A quadratic curve between the places of a cable's two servers."""

    def __init__(self, places: list[Point], cable: LabelledCable, bend: float) -> None:
        a, b = (places[server] for server in cable.servers)
        length = math.dist(a, b)
        across = ((a[1] - b[1]) / length, (b[0] - a[0]) / length)
        middle = (
            (a[0] + b[0]) / 2 + 2 * bend * across[0],
            (a[1] + b[1]) / 2 + 2 * bend * across[1],
        )
        self._points = (a, middle, b)
        self.length = length

    def path(self) -> str:
        (ax, ay), (mx, my), (bx, by) = self._points
        return f"M{ax:.1f} {ay:.1f}Q{mx:.1f} {my:.1f} {bx:.1f} {by:.1f}"

    def at(self, share: float) -> Point:
        a, m, b = self._points
        parts = ((1 - share) ** 2, 2 * share * (1 - share), share * share)
        return (
            sum(w * p[0] for w, p in zip(parts, (a, m, b), strict=True)),
            sum(w * p[1] for w, p in zip(parts, (a, m, b), strict=True)),
        )


def _skip(cable: LabelledCable, count: int) -> int:
    """The stride of a cable: by how many servers its ends are apart on the circle."""
    apart = (cable.servers[1] - cable.servers[0]) % count
    return min(apart, count - apart)


def _line(cable: LabelledCable) -> str:
    a, b = cable.ends
    return f"{cable.label}: {a.place} - {b.place}"


def _boxes(names: Sequence[str], places: list[Point], detailed: bool) -> Iterator[str]:
    wide = 16 + 9.5 * max(map(len, names))
    for number, ((x, y), name) in enumerate(zip(places, names, strict=True)):
        if detailed:
            yield (
                f'<rect x="{x - wide / 2:.1f}" y="{y - 17:.1f}" width="{wide:.1f}" height="34" '
                'rx="6" fill="#f5f7f9" stroke="#1b1f24"/>'
            )
            yield f'<text x="{x:.1f}" y="{y + 5:.1f}" font-size="16">{escape(name)}</text>'
        else:
            radius = max(2.5, min(11.0, 700 / len(names)))
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#f5f7f9" '
                f'stroke="#1b1f24"><title>{escape(name)}</title></circle>'
            )
            if len(names) <= 72:
                yield f'<text x="{x:.1f}" y="{y + 3.5:.1f}" font-size="10">{number}</text>'


def _ends(cable: LabelledCable, curve: _Curve) -> Iterator[str]:
    """A cable's label, away from its middle, where others cross, and the ports at its ends."""
    near = min(0.24, 52 / curve.length)
    for share, text, size, weight in (
        (near, cable.ends[0].port, 13, "normal"),
        (1 - near, cable.ends[1].port, 13, "normal"),
        (0.38, cable.label, 14, "bold"),
    ):
        x, y = curve.at(share)
        yield (
            f'<text x="{x:.1f}" y="{y + size / 3:.1f}" font-size="{size}" font-weight="{weight}" '
            f'stroke="white" stroke-width="4" paint-order="stroke">{escape(text)}</text>'
        )
