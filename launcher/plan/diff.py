"""`topoopt diff`: the differences of two plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK
from torch_topoopt.launcher.plan.placement_text import placement_text
from torch_topoopt.plan.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Placement
    from torch_topoopt.planner.difference import PlanDifference

_DESCRIPTION = """\
Shows what two plans do differently: which operators are placed otherwise, which cables and rings
only one of them has, for how many pairs of servers the routes differ, and what that changes in the
prediction. Plans of different models or clusters may be compared as well."""

_EXAMPLES = """\
  topoopt plan dlrm --servers 16 --degree 4 --bandwidth 100Gbps -o both.json
  topoopt plan dlrm --servers 16 --degree 4 --bandwidth 100Gbps --ablation search-only -o half.json
  topoopt diff half.json both.json
  topoopt diff half.json both.json --json"""

_MOST_OPERATORS = 20  # in the table; --json has all


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("diff", _DESCRIPTION, _EXAMPLES)
    options.add_argument("a", metavar="PLAN_A", help="a plan.json")
    options.add_argument("b", metavar="PLAN_B", help="another")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    from torch_topoopt.plan import Plan
    from torch_topoopt.planner.difference import difference

    arguments = make_parser().parse_args(argv)
    found = difference(documents.load(Plan, arguments.a), documents.load(Plan, arguments.b))
    if arguments.json:
        console.print_json(found)
    else:
        _show(console.Terminal(), found)
    return OK


def _show(terminal: Terminal, found: PlanDifference) -> None:
    if found.is_empty:
        terminal.line("the plans do the same")
        return
    if found.fields:
        rows = [(change.field, str(change.a), str(change.b)) for change in found.fields]
        terminal.table("Planned for", ("field", "A", "B"), rows)
    if found.operators:
        shown = found.operators[:_MOST_OPERATORS]
        title = f"Strategy: {counted(len(found.operators), 'operator')} placed differently"
        terminal.table(
            title, ("operator", "A", "B"), [(name, _text(a), _text(b)) for name, a, b in shown]
        )
        if len(found.operators) > len(shown):
            terminal.line(f"... and {len(found.operators) - len(shown)} more, with --json")
    terminal.line(
        f"network: {counted(found.links_in_both, 'link')} in both, "
        f"{len(found.links_only_in_a)} only in A, {len(found.links_only_in_b)} only in B; "
        f"{counted(len(found.groups), 'group')} with other rings"
    )
    terminal.line(
        f"routes: those of {found.routes_changed} of {found.routes_in_all} ordered pairs of "
        "servers differ"
    )
    if found.prediction:
        figures = [
            (
                change.field,
                _amount(change.field, change.a),
                _amount(change.field, change.b),
                f"{change.b / change.a:.4f}" if change.a else "-",
            )
            for change in found.prediction
        ]
        terminal.table("Prediction", ("figure", "A", "B", "B / A"), figures)


def _text(placement: Placement | None) -> str:
    return "-" if placement is None else placement_text(placement)


def _amount(field: str, value: float) -> str:
    return format_bytes(value) if field.endswith("bytes") else format_seconds(value)
