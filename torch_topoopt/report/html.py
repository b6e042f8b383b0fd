"""The building blocks of the page: escaping, numbers with units, tables, and its style.

Whatever is not `Markup` is text from a user and is escaped on its way into the page, by the
templates beside this module and by `element`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from torch_topoopt.plan.units import prefix
from torch_topoopt.report.svg import LINE_COLOURS, THEME

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
    """Bytes with a decimal prefix, the exact value kept in the markup; a dash for None."""
    if value is None:
        return MISSING
    factor, letter = prefix(value)
    digits = f"{value:.0f}" if factor == 1 and value == int(value) else significant(value / factor)
    return _data(value, f"{digits} {letter}B")


def count(value: int) -> Markup:
    """A number of operations or things, with a decimal prefix (k, M, G, T, P)."""
    factor, letter = prefix(value)
    return _data(value, f"{value}" if factor == 1 else f"{significant(value / factor)} {letter}")


def seconds(value: float | None) -> Markup:
    """A duration in µs, ms, s or min, the exact value kept in the markup; a dash for None."""
    if value is None:
        return MISSING
    for limit, factor, unit in ((9.995e-4, 1e6, "µs"), (0.9995, 1e3, "ms"), (119.5, 1.0, "s")):
        if value < limit:
            return _data(value, f"{significant(value * factor)} {unit}")
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return _data(value, f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s")


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
    """Content behind a line that opens it; `is_open` shows it from the start."""
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


def page(title: str, *content: str) -> str:
    """A whole document."""
    theme = [
        " ".join(f"--{name}: {colours[i]};" for name, colours in THEME.items()) for i in range(2)
    ]
    return _TEMPLATES.get_template("page.html").render(title=title, content=content, theme=theme)


def _block(macro: str, *arguments: Any) -> Markup:
    return Markup(getattr(_BLOCKS, macro)(*arguments))
