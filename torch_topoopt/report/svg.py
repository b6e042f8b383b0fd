"""Matplotlib figures as SVG elements that take their colours from the page they are inlined in.

Colours are not written into the SVG: every colour that a figure uses is a placeholder (`ink`) that
`render` replaces by a CSS variable of the page (`THEME`), so that one figure serves light pages,
dark pages and print. No text of a user may go into a figure. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

HEAT_STEPS = 20
HEAT_DARK_STEP = 11  # from here on text in a cell has the page's colour
# Eight line colours that stay apart for colour-blind readers (after Okabe and Ito), per theme.
_LINES = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff9250"),
    ("#00875f", "#2fcf9f"),
    ("#aa3377", "#f08cc8"),
    ("#8a6d00", "#f0e060"),
    ("#4b3fa8", "#b0a8ff"),
    ("#5f6b73", "#b8c4cc"),
    ("#7a1f1f", "#e8a598"),
)
LINE_COLOURS = len(_LINES)
LINE_STYLES: tuple[object, ...] = ("solid", (0, (4, 1.2)), (0, (1.2, 1.2)), (0, (5, 1, 1.2, 1)))


def _heat(theme: int) -> list[str]:
    """A sequential scale away from the page's background: more is stronger in both themes."""
    stops = np.linspace(0.2, 1.0, HEAT_STEPS) if theme == 0 else np.linspace(0.9, 0.05, HEAT_STEPS)
    colours = matplotlib.colormaps["YlGnBu"](stops)
    return [matplotlib.colors.to_hex(colour) for colour in colours]


def _theme() -> dict[str, tuple[str, str]]:
    theme = {
        "page": ("#ffffff", "#14171c"),
        "card": ("#f5f7f9", "#1c2128"),
        "ink": ("#1b1f24", "#e6e9ed"),
        "muted": ("#57606a", "#a0aab6"),
        "grid": ("#d3d9e0", "#3a424d"),
        "good": ("#116b37", "#5fd38d"),
        "bad": ("#a8201a", "#ff8f86"),
        "heat-text-low": ("#1b1f24", "#f2f5f8"),
        "heat-text-high": ("#ffffff", "#10141a"),
    }
    theme |= {f"line-{i}": pair for i, pair in enumerate(_LINES)}
    theme |= {f"heat-{i}": pair for i, pair in enumerate(zip(_heat(0), _heat(1), strict=True))}
    return theme


# Name of a CSS variable -> its colour on a light page and on a dark one.
THEME: dict[str, tuple[str, str]] = _theme()
_NAMES = tuple(THEME)


def ink(name: str) -> str:
    """The placeholder of CSS variable `name` inside matplotlib."""
    return f"#fe00{_NAMES.index(name):02x}"


_SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": ink("muted"),
    "axes.labelcolor": ink("ink"),
    "axes.titlesize": 10,
    "axes.titlecolor": ink("ink"),
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": ink("ink"),
    "text.parse_math": False,
    "xtick.color": ink("muted"),
    "ytick.color": ink("muted"),
    "xtick.labelcolor": ink("ink"),
    "ytick.labelcolor": ink("ink"),
    "grid.color": ink("grid"),
    "grid.linewidth": 0.6,
    "path.simplify": True,
}


# ---- from matplotlib to inline SVG ---------------------------------------------------------------

_REFERENCE = re.compile(r'url\(#([^)"]+)\)|href="#([^"]+)"')
_GEOMETRY = re.compile(r'(?<= )(d|transform|x|y|width|height|points)="([^"]*)"')


def _inline(svg: str, identity: str, label: str) -> str:
    """Turns a matplotlib SVG document into an element for an HTML page.

    `identity` makes identifiers unique; colours become CSS variables, fonts those of the page.
    """
    body = svg[svg.index("<svg") :]
    head, body = body.split(">", 1)
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    used = {name for pair in _REFERENCE.findall(body) for name in pair if name}

    def keep_id(match: re.Match[str]) -> str:
        return f' id="{identity}-{match[1]}"' if match[1] in used else ""

    body = re.sub(r' id="([^"]*)"', keep_id, body)
    body = re.sub(r'xlink:href="#', f'href="#{identity}-', body)
    body = body.replace("url(#", f"url(#{identity}-")
    body = _GEOMETRY.sub(
        lambda m: f'{m[1]}="{re.sub(r"-?[0-9]+[.][0-9]{3,}", _two_decimals, m[2])}"', body
    )
    body = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"#fe00([0-9a-f]{2})", lambda m: f"var(--{_NAMES[int(m[1], 16)]})", body)
    body = re.sub(r"\n\s*", "\n", body).strip()
    (box,) = re.findall(r'viewBox="([^"]*)"', head)
    return f'<svg class="figure" role="img" aria-label="{escape(label)}" viewBox="{box}">{body}'


def _two_decimals(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def render(
    identity: str, size_in: tuple[float, float], label: str, draw: Callable[[Figure], None]
) -> str:
    """Draws on a new figure with the report's settings, whatever matplotlibrc the user has."""
    text = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        matplotlib.rcParams["svg.hashsalt"] = identity
        figure = Figure(figsize=size_in)
        draw(figure)
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return _inline(text.getvalue(), identity, label)
