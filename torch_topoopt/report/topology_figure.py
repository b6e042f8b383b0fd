"""The drawing of a plan's network: servers on a circle, links, and the rings they carry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from torch_topoopt.report.svg import LINE_COLOURS, LINE_STYLES, ink, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torch_topoopt.plan import Network
    from torch_topoopt.report.results import NumberedRing

    # (x, y), and three of them: a quadratic curve or a triangle.
    Point = np.ndarray[tuple[int], np.dtype[np.float64]]
    Point3 = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def _arc(start: Point, end: Point, bend: float, gap: float) -> Point3:
    """Control points of a quadratic curve between two servers, `gap` away from both centres.

    Positive `bend` is to the left of the direction of travel, in chord lengths.
    """
    chord = end - start
    left = np.array([-chord[1], chord[0]])
    points = np.array([start, (start + end) / 2 + 2 * bend * left, end])
    cut = min(0.45, gap / float(np.hypot(*chord)))
    return _part(points, cut, 1 - cut)


def _at(points: Point3, t: float) -> Point:
    value: Point = (1 - t) ** 2 * points[0] + 2 * t * (1 - t) * points[1] + t * t * points[2]
    return value


def _part(points: Point3, t0: float, t1: float) -> Point3:
    """The quadratic curve between parameters t0 and t1 (its blossom)."""
    middle = (
        (1 - t0) * (1 - t1) * points[0]
        + (t0 * (1 - t1) + t1 * (1 - t0)) * points[1]
        + t0 * t1 * points[2]
    )
    return np.array([_at(points, t0), middle, _at(points, t1)])


def _arrow(points: Point3, size: float) -> Point3:
    """A triangle on the curve, past its middle, that points along it."""
    tip, before = _at(points, 0.64), _at(points, 0.60)
    along = (tip - before) / np.hypot(*(tip - before))
    across = np.array([-along[1], along[0]])
    return np.array(
        [
            tip + along * size / 2,
            tip - along * size / 2 + across * size * 0.4,
            tip - along * size / 2 - across * size * 0.4,
        ]
    )


def _curves(arcs: list[Point3]) -> Curve:
    codes = [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3] * len(arcs)
    return Curve(np.concatenate(arcs), codes)


def _triangles(arrows: list[Point3]) -> Curve:
    codes = [Curve.MOVETO, Curve.LINETO, Curve.LINETO, Curve.CLOSEPOLY] * len(arrows)
    return Curve(np.concatenate([np.vstack([a, a[:1]]) for a in arrows]), codes)


def server_positions(servers: int) -> list[Point]:
    """Server 0 at the top, the others clockwise on the unit circle."""
    angles = [math.pi / 2 - 2 * math.pi * i / servers for i in range(servers)]
    return [np.array([math.cos(a), math.sin(a)]) for a in angles]


def _layers(
    network: Network, rings: Sequence[NumberedRing]
) -> dict[tuple[int | None, bool], list[tuple[int, int, int]]]:
    """(ring or None for a link without one, has a link) -> hops as (from, to, how many before).

    Every link and every hop of a ring is drawn once. Of parallel links each ring takes one.
    """
    links: dict[tuple[int, int], int] = {}
    for link in network.links:
        links[link.source, link.target] = links.get((link.source, link.target), 0) + 1
    layers: dict[tuple[int | None, bool], list[tuple[int, int, int]]] = {}
    drawn: dict[tuple[int, int], int] = {}
    for ring in rings:
        for hop in ring.hops:
            before = drawn.get(hop, 0)
            drawn[hop] = before + 1
            layers.setdefault((ring.number, hop in links), []).append((*hop, before))
    for pair, count in links.items():
        for before in range(drawn.get(pair, 0), count):
            layers.setdefault((None, True), []).append((*pair, before))
    return layers


def _mean_chord(hops: list[tuple[int, int, int]], positions: list[Point]) -> float:
    lengths = [float(np.hypot(*(positions[a] - positions[b]))) for a, b, _ in hops]
    return round(sum(lengths) / len(lengths), 6)


def _radius(servers: int) -> float:
    """Of a server's disc, where the circle that servers stand on has radius 1."""
    return 0.075 if servers <= 12 else 0.05 if servers <= 32 else 0.008


def _draw_servers(axes: Axes, positions: list[Point]) -> None:
    servers = len(positions)
    inside = servers <= 32
    axes.scatter(
        [p[0] for p in positions], [p[1] for p in positions],
        s=(_radius(servers) * 2 * 72 * 6.2 / 2.36) ** 2, color=ink("card" if inside else "ink"),
        edgecolors=ink("ink"), linewidths=1.0 if inside else 0, zorder=3,
    )  # fmt: skip
    every = 1 if servers <= 48 else 4 if servers <= 128 else max(8, servers // 32)
    for server in range(0, servers, every):
        x, y = positions[server] * (1.0 if inside else 1.06)
        axes.text(x, y, str(server), ha="center", va="center_baseline", zorder=4,
                  size=9.5 if servers <= 16 else 7.5)  # fmt: skip


def _draw_layer(
    axes: Axes,
    ring: int | None,
    linked: bool,
    hops: list[tuple[int, int, int]],
    positions: list[Point],
) -> None:
    """The hops of one ring (None: links without a ring), as one line and one set of arrows."""
    servers = len(positions)
    width = 1.5 if servers <= 16 else 1.0 if servers <= 48 else 0.5
    gap = 1.25 * _radius(servers)
    arcs = [_arc(positions[a], positions[b], 0.06 + 0.06 * before, gap) for a, b, before in hops]
    colour = ink("muted" if ring is None else f"line-{ring % LINE_COLOURS}")
    style = LINE_STYLES[(ring or 0) // LINE_COLOURS % len(LINE_STYLES)]
    line = PathPatch(_curves(arcs), fill=False, edgecolor=colour)
    line.set(linewidth=width if linked and ring is not None else width * 0.7)
    line.set(linestyle=style if linked else (0, (2, 3)))
    axes.add_patch(line)
    size = 0.055 if servers <= 16 else 0.04 if servers <= 48 else 0.03
    every = 1 if servers <= 24 else max(2, servers // 16)
    arrows = _triangles([_arrow(arc, size) for arc in arcs[::every]])
    axes.add_patch(PathPatch(arrows, color=colour, linewidth=0))


def topology(servers: int, network: Network, rings: Sequence[NumberedRing]) -> str:
    """Servers on a circle, one curve per directed link, the links of each ring in its own colour.

    Arrows give the direction of travel (all hops up to 24 servers, some hops above). A dotted curve
    is a hop of a ring that has no link of its own; a thin grey one a link that no ring uses.
    """
    positions = server_positions(servers)
    layers = _layers(network, rings)
    # Long chords first, so that they do not hide short ones; links without a ring below all.
    order = sorted(
        layers, key=lambda key: (key[0] is not None, -_mean_chord(layers[key], positions), key)
    )

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-1.18, 1.18), ylim=(-1.18, 1.18), aspect="equal")
        axes.axis("off")
        for ring, linked in order:
            _draw_layer(axes, ring, linked, layers[ring, linked], positions)
        _draw_servers(axes, positions)

    label = (
        f"{servers} servers on a circle with {len(network.links)} directed links and "
        f"{len(rings)} AllReduce rings; the legend lists the rings"
    )
    return render("topology", (6.2, 6.2), label, draw)
