"""The section on collectives for which circuits could move: the choices and their times."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from markupsafe import Markup

from torch_topoopt.report.html import MISSING, element, paragraph, seconds, section, size, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.report.run_folder import AllToAllRecord, Run

_COLUMNS = (
    "collective", "ranks", "choice", "bytes", "number", "topologies", "predicted, moving",
    "predicted, staying", "measured", "of it moves", "stopped",
)  # fmt: skip
_TEXT = (
    "Before each the launcher chose between circuits that move during it and those of the plan. "
    "Times are of one, as means of those that were not stopped; predictions with moves count the "
    "one back to the plan's circuits."
)


def all_to_all_section(run: Run) -> Markup:
    """The section; empty if the run had no such collective."""
    records = run.metrics.all_to_alls if run.metrics else []
    if not records:
        return Markup("")
    alike: dict[tuple[str, int, int, int, str], list[AllToAllRecord]] = {}
    for record in records:
        of = (record.collective, record.members, record.total_bytes)
        key = (*of, record.topologies, record.why)
        alike.setdefault(key, []).append(record)
    body = table(
        "Collectives on circuits that may move", _COLUMNS, [_row(group) for group in alike.values()]
    )
    reasons = dict.fromkeys(record.error for record in records if record.error)
    stopped = Markup("")
    if reasons:
        items = element("ul", *(element("li", reason) for reason in reasons))
        stopped = Markup("").join([paragraph("Stopped, as circuits did not carry light:"), items])
    return section(
        "alltoalls", "Collectives on circuits that may move", paragraph(_TEXT), body, stopped
    )


def _row(records: Sequence[AllToAllRecord]) -> tuple[str, ...]:
    """The row of collectives of one size with the same choice."""
    first = records[0]
    whole = [record for record in records if not record.error]
    return (
        first.collective,
        str(first.members or MISSING),
        first.why.partition(":")[0],
        size(first.total_bytes),
        str(len(records)),
        str(first.topologies or "none"),
        seconds(first.moving_predicted_s),
        seconds(first.static_predicted_s),
        seconds(fmean(record.seconds for record in whole)) if whole else MISSING,
        seconds(fmean(record.moving_s for record in whole)) if whole else MISSING,
        str(len(records) - len(whole) or "none"),
    )
