"""The colours of a report: variables of its page, and of figures for papers the light ones."""

from __future__ import annotations

import matplotlib
import numpy as np

HEAT_STEPS = 20
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
