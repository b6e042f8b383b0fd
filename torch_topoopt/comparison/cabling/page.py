"""The page to print and take to the rack: drawing, list of cables, labels to cut out."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import counted, format_gbps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.comparison.cabling.sheets import LabelledCable

_STYLE = """\
body { font: 15px sans-serif; color: #1b1f24; background: white; max-width: 60em; margin: 1em auto;
  padding: 0 1em; }
svg { width: 100%; height: auto; max-height: 90vh; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid #d3d9e0; padding: .25em .6em; text-align: left; }
tr { break-inside: avoid; }
.scroll { overflow-x: auto; }
.labels { display: grid; grid-template-columns: repeat(auto-fill, 54mm); }
.label { border: 1px dashed #57606a; padding: 2mm; height: 19mm; box-sizing: border-box;
  break-inside: avoid; overflow: hidden; }
.label b { font-size: 15px; }
.label span { display: block; font-size: 12px; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; }
  body { color: #e6eaf0; background: #14181f; }
  th, td { border-color: #2c3442; }
  svg { filter: invert(.92) hue-rotate(180deg); } }
@media screen and (max-width: 600px) {
  h1 { font-size: 20px; }
  thead { display: none; }
  table, tbody, tr, th, td { display: block; border: 0; padding: .1em 0; }
  tr { border-bottom: 1px solid #98a2b3; padding: .5em 0; }
  td:first-child, td:first-child + th { display: inline-block; margin-right: .6em; }
  td[data-name]::before { content: attr(data-name) ": "; color: #66707f; } }
@media print { h2 { break-before: page; } body { margin: 0; } }"""


def page_of(title: str, facts: Sequence[str], svg: str, cables: Sequence[LabelledCable]) -> str:
    """One self-contained HTML file; `facts` are its first lines."""
    labels = [
        f'<div class="label"><b>{cable.label}</b><span>{escape(here.place)}</span>'
        f"<span>to {escape(there.place)}</span></div>"
        for cable in cables
        for here, there in (cable.ends, cable.ends[::-1])
    ]
    rows = [
        f"<tr><td>☐</td><th>{cable.label}</th>"
        + "".join(
            f'<td data-name="{name}">{escape(end.place)}</td>'
            f'<td data-name="address">{end.address}</td>'
            for name, end in zip(("one end", "other end"), cable.ends, strict=True)
        )
        + f'<td data-name="rate">{format_gbps(cable.gbps)}</td></tr>'
        for cable in cables
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *(f"<p>{escape(fact[:1].upper() + fact[1:])}.</p>" for fact in facts),
            svg,
            f"<h2>{counted(len(cables), 'cable')}</h2>",
            '<div class="scroll"><table>',
            "<thead><tr><th>plugged</th><th>cable</th><th>one end</th><th>address</th>"
            "<th>other end</th><th>address</th><th>rate</th></tr></thead><tbody>",
            *rows,
            "</tbody></table></div>",
            f"<h2>{counted(len(labels), 'label')}, one for each end</h2>",
            '<div class="labels">',
            *labels,
            "</div></body></html>",
            "",
        ]
    )
