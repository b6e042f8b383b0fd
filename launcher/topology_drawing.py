"""A drawing of a network: servers on a circle, links as lines, one colour per AllReduce ring."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Network

_MOST_LABELS = 64


def draw(path: str, cluster: Cluster, network: Network, title: str) -> None:
    """Writes the drawing to `path`, in the format of its suffix.

    A link has the colour of the first ring that uses it (on duplex, both directions of a ring have
    one colour); links of no ring are grey. Raises OSError if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    count = cluster.servers
    angles = [math.pi / 2 - 2 * math.pi * server / count for server in range(count)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    colours = _ring_colours(network)
    lines: dict[tuple[int, int], str] = {}
    for link in network.links:
        ends = min(link.source, link.target), max(link.source, link.target)
        colour = colours.get(ends, "0.75")
        if lines.get(ends, "0.75") == "0.75":
            lines[ends] = colour
    figure = Figure(figsize=(8, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.add_collection(
        LineCollection(
            [(places[a], places[b]) for a, b in lines],
            colors=list(lines.values()),
            linewidths=max(0.3, min(1.6, 40 / count)),
        )
    )
    across, up = zip(*places, strict=True)
    axes.scatter(across, up, s=max(4, 900 / count), color="0.15", zorder=3)
    if count <= _MOST_LABELS:
        for server, (x, y) in enumerate(places):
            axes.annotate(str(server), (1.07 * x, 1.07 * y), ha="center", va="center", fontsize=8)
    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    figure.savefig(path, dpi=150)


def _ring_colours(network: Network) -> dict[tuple[int, int], str]:
    """The ends of a hop of a ring, the lower first -> the ring's colour."""
    colours: dict[tuple[int, int], str] = {}
    seen: set[frozenset[tuple[int, int]]] = set()
    for group in network.groups:
        for ring in group.rings:
            following = (*ring.servers[1:], ring.servers[0])
            hops = [(min(a, b), max(a, b)) for a, b in zip(ring.servers, following, strict=True)]
            if frozenset(hops) in seen:
                continue
            for hop in hops:
                colours.setdefault(hop, f"C{len(seen) % 10}")
            seen.add(frozenset(hops))
    return colours
