"""A drawing of a network: servers on a circle, links as lines, one colour per AllReduce ring."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster, Network, Pair, Ring


_MOST_LABELS = 64  # more servers have their numbers at every n-th only
_MOST_ARROWS = 32  # with more servers heads of arrows would hide the links
_MOST_ROWS = 12  # of the legend
_GREY = "0.72"


def draw(path: str, cluster: Cluster, network: Network, title: str) -> None:
    """Writes the drawing to `path`, in the format of its suffix.

    A link has the colour of the first ring that uses it; links of no ring are grey. On duplex a
    cable is one straight line and both directions of a ring have one colour; on simplex a link is a
    bent arrow, so that the two directions do not overlap. Raises OSError if the file cannot be
    written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    count = cluster.servers
    directed = cluster.ports == "simplex"
    angles = [math.pi / 2 - 2 * math.pi * server / count for server in range(count)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    colours, names = _ring_colours(network, count, directed=directed)
    lines = {
        ends: colours.get(ends, _GREY)
        for ends in sorted({_ends(link.source, link.target, directed) for link in network.links})
    }
    figure = Figure(figsize=(8, 9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=12)
    axes.set_aspect("equal")
    axes.set_axis_off()
    width = max(0.4, min(1.6, 40 / count))
    _draw_links(axes, places, lines, width, directed=directed)
    across, up = zip(*places, strict=True)
    axes.scatter(across, up, s=max(6, 900 / count), color="0.15", zorder=3)
    step = math.ceil(count / _MOST_LABELS) * (2 if count > 2 * _MOST_LABELS else 1)
    for server in range(0, count, step):
        x, y = places[server]
        axes.annotate(str(server), (1.07 * x, 1.07 * y), ha="center", va="center", fontsize=9)
    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    entries = [(colour, name) for name, colour in names.items() if colour in lines.values()]
    if len(entries) > _MOST_ROWS:
        more = len(entries) - _MOST_ROWS + 1
        entries = [*entries[: _MOST_ROWS - 1], ("none", f"and {more} more rings")]
    if _GREY in lines.values():
        entries.append((_GREY, "links of no ring"))
    handles = [Line2D([], [], color=colour, linewidth=2) for colour, _ in entries]
    figure.legend(
        handles, [name for _, name in entries], loc="outside lower center", ncols=4,
        fontsize=9, frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=150)


def _ends(source: int, target: int, directed: bool) -> Pair:
    return (source, target) if directed else (min(source, target), max(source, target))


def _draw_links(
    axes: Any,
    places: list[tuple[float, float]],
    lines: dict[Pair, str],
    width: float,
    *,
    directed: bool,
) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import FancyArrowPatch

    if not directed:
        segments = [(places[a], places[b]) for a, b in lines]
        axes.add_collection(LineCollection(segments, colors=list(lines.values()), linewidths=width))
        return
    head = "-|>" if len(places) <= _MOST_ARROWS else "-"
    for (a, b), colour in lines.items():
        arrow = FancyArrowPatch(
            places[a], places[b], connectionstyle="arc3,rad=0.1", arrowstyle=head,
            mutation_scale=9, shrinkA=4, shrinkB=4, color=colour, linewidth=width,
        )  # fmt: skip
        axes.add_patch(arrow)


def _ring_colours(
    network: Network, servers: int, *, directed: bool
) -> tuple[dict[Pair, str], dict[str, str]]:
    """The ends of a hop -> the colour of the first ring over it, and ring's name -> its colour."""
    colours: dict[Pair, str] = {}
    names: dict[str, str] = {}
    seen: set[frozenset[Pair]] = set()
    for group in network.groups:
        for ring in group.rings:
            hops = [_ends(a, b, directed) for a, b in ring.hops]
            if frozenset(hops) in seen:
                continue
            colour = f"C{len(seen) % 10}"
            for hop in hops:
                colours.setdefault(hop, colour)
            seen.add(frozenset(hops))
            names[f"ring {len(seen)}: {_name(ring, servers, directed=directed)}"] = colour
    return colours, names


def _name(ring: Ring, servers: int, *, directed: bool) -> str:
    size, step = len(ring.servers), ring.stride
    if step is None:
        return f"{size} servers"
    name = f"+{step}" if directed else f"±{min(step, size - step)}"
    return name if size == servers else f"{name} of {size} servers"
