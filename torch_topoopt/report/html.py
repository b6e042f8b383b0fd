"""The building blocks of the page: escaping, numbers with units, tables, and its style.

The templates and `element` escape everything except `Markup`, since it may be a user's text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from torch_topoopt.plan.units import format_bytes, format_seconds, prefix
from torch_topoopt.report.theme import LINE_COLOURS, THEME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
_BLOCKS = _TEMPLATES.get_template("blocks.html").module


def element(tag: str, *content: str, **attributes: str) -> Markup:
    """`<tag attributes>content</tag>`; an attribute `class_` becomes `class`, `_` becomes `-`."""
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{names}>{''.join(map(escape, content))}</{tag}>")


def breakable(name: str) -> Markup:
    """A user's name with line breaks allowed after a point or an underscore."""
    return Markup(re.sub(r"([._]+)", r"\1<wbr>", str(escape(name))))


# ---- numbers -------------------------------------------------------------------------------------

MISSING = Markup('<span class="missing">–</span>')


def significant(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant digits, trailing zeros kept, never in exponent notation."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = int(f"{rounded:.1e}".split("e")[1])
    return f"{rounded:.{max(0, digits - 1 - exponent)}f}"


def _data(value: float, text: str) -> Markup:
    return element("data", text, value=repr(value))


def size(value: float | None) -> Markup:
    """Bytes, the exact value kept in the markup; a dash for None."""
    return MISSING if value is None else _data(value, format_bytes(value))


def count(value: int) -> Markup:
    """A number of operations or things, with a decimal prefix (k, M, G, T, P)."""
    factor, letter = prefix(value)
    return _data(value, f"{value / factor:.3g} {letter}".strip())


def seconds(value: float | None) -> Markup:
    """A duration, the exact value kept in the markup; a dash for None."""
    return MISSING if value is None else _data(value, format_seconds(value))


def percent(value: float | None, digits: int = 1) -> Markup:
    """A fraction as a percentage; a dash for None."""
    return MISSING if value is None else _data(value, f"{value * 100:.{digits}f} %")


def ratio(value: float | None, digits: int = 3) -> Markup:
    """A ratio such as "1.04×", to `digits` significant digits; a dash for None."""
    return MISSING if value is None else _data(value, f"{significant(value, digits)}×")


# ---- blocks --------------------------------------------------------------------------------------


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric_from: int = 1,
    total: Sequence[str] = (),
) -> Markup:
    """A table whose columns from `numeric_from` on hold numbers, aligned right.

    `total`, if given, is a last row that sums up the others.
    """
    return _block("table", caption, columns, rows, numeric_from, total)


def folded(summary: str, *content: str, is_open: bool) -> Markup:
    """Foldable content with a title line; `is_open` shows it from the start."""
    return Markup("").join(content) if is_open else _block("folded", summary, content)


def paragraph(*content: str, class_: str = "") -> Markup:
    return element("p", *content, **({"class_": class_} if class_ else {}))


def section(identity: str, title: str, *content: str) -> Markup:
    return _block("section", identity, title, content)


def named_line(line: int, name: str) -> Markup:
    """An entry of a legend: a short line as figures draw line number `line`, and its name."""
    style = ("solid", "dashed", "dotted", "double")[line // LINE_COLOURS % 4]
    return _block("named_line", f"border-top: 3px {style} var(--line-{line % LINE_COLOURS})", name)


def legend(entries: Iterable[tuple[int, str]]) -> Markup:
    """A line of (line number, name) entries."""
    return element("div", *(named_line(line, name) for line, name in entries), class_="legend")


# in the order of their dependencies
_SCRIPTS = ("base", "charts", "topology", "traffic", "timeline", "what_if", "failures", "start")


@dataclass(frozen=True)
class Panel:
    """The content of a tab."""

    identity: str
    name: str
    content: tuple[str, ...]


def page(
    title: str, header: Markup, panels: Sequence[Panel], footer: Markup, data: dict[str, Any]
) -> str:
    """A whole document; `data` is what its scripts draw."""
    theme = [
        " ".join(f"--{name}: {colours[i]};" for name, colours in THEME.items()) for i in range(2)
    ]
    folder = Path(__file__).parent / "templates"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    script = '\n(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    filled = [
        (panel.identity, panel.name, [block for block in panel.content if block])
        for panel in panels
    ]
    return _TEMPLATES.get_template("page.html").render(
        title=title,
        header=header,
        panels=[entry for entry in filled if entry[2]],
        footer=footer,
        theme=theme,
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        data=Markup(as_script(data)),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


def plot(name: str, caption: str = "", *, run: int = 0) -> Markup:
    """A place for the scripts' figure `name`, in the words of `templates/*.js`, of one of the runs
    that the page has data of."""
    text = element("figcaption", caption) if caption else ""
    return element("figure", element("div", data_figure=name, data_run=str(run)), text)


def filtered(identity: str, what: str, summary: str, body: str) -> Markup:
    """A folded long table with a box that filters its rows."""
    box = Markup(
        '<label class="small">Find <input type="search" data-filter="{}" aria-label="{}"></label>'
    ).format(identity, f"Find {what}")
    return folded(summary, box, element("div", body, id=identity), is_open=False)


def as_script(data: Any) -> str:
    """JSON for a script element, escaped so that no user's text ends the element."""
    text = json.dumps(_short(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _short(value: Any) -> Any:
    """Numbers to six digits, which is more than a picture shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(entry) for entry in value]
    return value


def _block(macro: str, *arguments: Any) -> Markup:
    return Markup(getattr(_BLOCKS, macro)(*arguments))
