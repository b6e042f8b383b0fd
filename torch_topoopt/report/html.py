"""The building blocks of the page: escaping, numbers with units, tables, and its style.

Whatever is not `Markup` is text from a user and is escaped on its way into the page.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import prefix
from torch_topoopt.report.svg import LINE_COLOURS, THEME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Markup(str):
    """HTML that is finished: made here, every user's text in it escaped."""

    __slots__ = ()


def markup(value: str) -> str:
    """`value` as HTML: unchanged if it is Markup, else escaped."""
    return value if isinstance(value, Markup) else escape(value)


def element(tag: str, *content: str, **attributes: str) -> Markup:
    """`<tag attributes>content</tag>`; an attribute `class_` becomes `class`, `_` becomes `-`."""
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{names}>{''.join(map(markup, content))}</{tag}>")


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

    def cells(tag: str, row: Sequence[str], class_: str = "") -> Markup:
        made = []
        for i, value in enumerate(row):
            attributes = {"class_": "number"} if i >= numeric_from else {}
            scope = {"scope": "col"} if tag == "th" else {}
            made.append(element(tag, value, **attributes, **scope))
        return element("tr", *made, **({"class_": class_} if class_ else {}))

    head = element("thead", cells("th", columns))
    made = [cells("td", row) for row in rows]
    body = element("tbody", *made, *([cells("td", total, "total")] if total else []))
    whole = element("table", element("caption", caption), head, body)
    return element("div", whole, class_="scroll")


def folded(summary: str, *content: str, is_open: bool) -> Markup:
    """Content behind a line that opens it; `is_open` shows it from the start."""
    if is_open:
        return Markup("".join(map(markup, content)))
    return element("details", element("summary", summary), *content)


def paragraph(*content: str, class_: str = "") -> Markup:
    return element("p", *content, **({"class_": class_} if class_ else {}))


def section(identity: str, title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content, id=identity)


def named_line(line: int, name: str) -> Markup:
    """An entry of a legend: a short line as figures draw line number `line`, and its name."""
    style = ("solid", "dashed", "dotted", "double")[line // LINE_COLOURS % 4]
    border = f"border-top: 3px {style} var(--line-{line % LINE_COLOURS})"
    return element("span", element("span", class_="swatch", style=border), name, class_="line")


def legend(entries: Iterable[tuple[int, str]]) -> Markup:
    """A line of (line number, name) entries."""
    return element("div", *(named_line(line, name) for line, name in entries), class_="legend")


def _variables(theme: int) -> str:
    return " ".join(f"--{name}: {colours[theme]};" for name, colours in THEME.items())


_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
_MONO = 'ui-monospace, "SF Mono", "DejaVu Sans Mono", "Liberation Mono", monospace'
_STYLE = """
:root { color-scheme: light; %(light)s }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark; %(dark)s } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 %(font)s; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 10px; padding-bottom: 5px;
  border-bottom: 1px solid var(--grid); }
p { margin: 8px 0; max-width: 88ch; overflow-wrap: anywhere; }
.sub, figcaption, caption, .missing { color: var(--muted); }
.sub { margin: 4px 0 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: 12px 14px; }
.tile .name, .tile .note { font-size: 12.5px; color: var(--muted); overflow-wrap: anywhere; }
.tile .value { font-size: 22px; font-weight: 600; line-height: 1.35; }
.tile .good { color: var(--good); }
.tile .bad { color: var(--bad); }
.notes { border-left: 4px solid var(--bad); background: var(--card); padding: 8px 16px;
  margin: 18px 0; }
.notes ul { margin: 4px 0; padding-left: 18px; overflow-wrap: anywhere; }
nav { font-size: 13.5px; margin: 16px 0 0; display: flex; flex-wrap: wrap; gap: 4px 16px; }
a, summary { color: var(--line-0); text-underline-offset: 2px; }
.columns { display: grid; gap: 8px 36px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%%), 1fr)); }
.columns > * { min-width: 0; }
figure { margin: 12px 0; break-inside: avoid; }
figcaption { font-size: 13.5px; max-width: 88ch; overflow-wrap: anywhere; }
svg.figure { display: block; width: 100%%; height: auto; }
svg.figure * { stroke-linejoin: round; }
svg.figure text { font-family: %(font)s; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; margin: 14px 0; }
table { border-collapse: collapse; font-size: 13.5px; width: 100%%;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 6px; font-size: 13.5px; }
th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
td { overflow-wrap: anywhere; }
th { font-weight: 600; vertical-align: bottom; border-bottom-color: var(--muted); }
tbody tr:nth-child(even) { background: var(--card); }
th.number, td.number { text-align: right; }
td.number { white-space: nowrap; overflow-wrap: normal; }
tr.total td { font-weight: 600; border-top: 1px solid var(--muted); }
.swatch { display: inline-block; width: 24px; vertical-align: middle; margin-right: 8px; }
td .line { white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 20px; font-size: 13.5px;
  overflow-wrap: anywhere; }
code { font-family: %(mono)s; font-size: 13px; }
pre { background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: 12px 14px; white-space: pre-wrap; overflow-wrap: anywhere; margin: 10px 0; }
details { margin: 12px 0; }
summary { cursor: pointer; }
td details, td p { margin: 0; }
footer { margin-top: 44px; padding-top: 10px; border-top: 1px solid var(--grid);
  font-size: 12.5px; color: var(--muted); }
@page { margin: 14mm; }
@media print {
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2 { break-after: avoid; margin-top: 26px; }
  tr, .tile { break-inside: avoid; }
  .columns { grid-template-columns: 1fr 1fr; gap: 8px 20px; }
  table, caption, figcaption { font-size: 8.5pt; }
  th, td { padding: 3px 6px; }
}
"""


def page(title: str, *content: str) -> str:
    """A whole document. Its policy lets a browser load nothing and run nothing."""
    style = Markup(
        _STYLE % {"light": _variables(0), "dark": _variables(1), "font": _FONT, "mono": _MONO}
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    body = "\n".join(map(markup, content))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
