"""The table of nccl-tests: head, lines and foot, and the same as JSON.

Source: github.com/NVIDIA/nccl-tests, src/util.cu and doc/PERFORMANCE.md: `size` is the whole
buffer of a rank, `count` the elements of a rank's part; algbw = size / time, busbw = algbw times
the bytes on the busiest link per byte of size. Columns are out of place and in place; N/A marks a
form that PyTorch does not have.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.plan import AllToAll, Demand, GroupDemand, PairDemand, PairTable
from torch_topoopt.report.bounds import bus_factor
from torch_topoopt.tools.bench.operations import REDUCING, ROOTED
from torch_topoopt.topology.routing.loads import link_bytes, traffic_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Pair, Plan
    from torch_topoopt.tools.bench.operations import Case

FORMS = ("out_of_place", "in_place")
_CELLS = f"{'time':>11}  {'algbw':>7}  {'busbw':>7}  {'#wrong':>6}"
_UNITS = f"{'(us)':>11}  {'(GB/s)':>7}  {'(GB/s)':>7}  {'':>6}"


@dataclass(frozen=True)
class TimedFigures:
    """A call in nccl-tests' units, us and GB/s; `nwrong`: None if results were not checked."""

    time: float
    alg_bw: float
    bus_bw: float
    nwrong: int | None


@dataclass(frozen=True)
class Timed:
    """One form of one case on one backend: seconds of a call on the slowest rank, elements that
    the first call got wrong on all ranks (None: not checked)."""

    seconds: float
    wrong: int | None

    def figures(self, case: Case) -> TimedFigures:
        algbw = case.moved_bytes / self.seconds / 1e9
        busbw = algbw * bus_factor(case.operation, case.ranks)
        return TimedFigures(self.seconds * 1e6, algbw, busbw, self.wrong)


@dataclass(frozen=True)
class Line:
    """A case with its forms by name, and the same for the compared backend, if any."""

    OMIT_IF_NONE: ClassVar = ("peer",)
    JSON_FIELDS: ClassVar = (
        "case.operation", "size=case.moved_bytes", "case.count", "type=case.datatype", "redop",
        "root", "out_of_place", "in_place", "peer=peer_figures",
    )  # fmt: skip

    case: Case
    forms: dict[str, Timed]
    peer: dict[str, Timed]

    def text(self) -> str:
        """The line of the table."""
        case = self.case
        cells = [
            f"{case.moved_bytes:>12}  {case.count:>12}  {case.datatype:>8}",
            f"{self.redop():>6}  {self.root():>6}",
            *(_cells(case, self.forms.get(form)) for form in FORMS),
        ]
        if self.peer:
            cells.append(_beside(self.forms, self.peer))
        return "  ".join(cells)

    def redop(self) -> str:
        return self.case.reduce_op if self.case.operation in REDUCING else "none"

    def root(self) -> int:
        return self.case.root if self.case.operation in ROOTED else -1

    def out_of_place(self) -> TimedFigures | None:
        return self._figures("out_of_place")

    def in_place(self) -> TimedFigures | None:
        return self._figures("in_place")

    def _figures(self, form: str) -> TimedFigures | None:
        return self.forms[form].figures(self.case) if form in self.forms else None

    def peer_figures(self) -> dict[str, TimedFigures] | None:
        return {form: t.figures(self.case) for form, t in self.peer.items()} or None


def _cells(case: Case, timed: Timed | None) -> str:
    if timed is None:
        return f"{'N/A':>11}  {'N/A':>7}  {'N/A':>7}  {'N/A':>6}"
    figures = timed.figures(case)
    wrong = "N/A" if timed.wrong is None else timed.wrong
    rates = (_rate(figures.alg_bw), _rate(figures.bus_bw))
    return "  ".join([f"{figures.time:>11.2f}", *rates, f"{wrong:>6}"])


def _rate(gbytes_per_s: float) -> str:
    """A rate in seven characters: two decimals as in nccl-tests, or three digits if small."""
    if gbytes_per_s >= 10 or gbytes_per_s == 0:
        return f"{gbytes_per_s:>7.2f}"
    return f"{gbytes_per_s:>7.3g}" if gbytes_per_s >= 1e-4 else f"{gbytes_per_s:>7.1e}"


def _beside(forms: dict[str, Timed], peer: dict[str, Timed]) -> str:
    """The compared backend's time, #wrong and time ratio, in the first form that both have."""
    form = next(form for form in FORMS if form in forms and form in peer)
    ratio = peer[form].seconds / forms[form].seconds
    wrong = "N/A" if peer[form].wrong is None else peer[form].wrong
    return f"{peer[form].seconds * 1e6:>11.2f}  {wrong:>6}  {ratio:>6.3g}"


def head(peer: str | None) -> list[str]:
    """The lines above a table."""
    named = f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    columns = f"{named}  {_CELLS}  {_CELLS}"
    units = f"{'#':<{len(named)}}  {_UNITS}  {_UNITS}"
    units = f"#{'(B)':>11}  {'(elements)':>12}" + units[27:]
    above = f"{'#':<{len(named)}}  {'out-of-place':^37}  {'in-place':^37}"
    if peer is not None:
        columns += f"  {'time':>11}  {'#wrong':>6}  {'ratio':>6}"
        units += f"  {'(us)':>11}"
        above += f"  {peer:^27}"
    return [line.rstrip() for line in ("#", above, columns, units)]


def foot(lines: Sequence[Line]) -> list[str]:
    """The lines below: wrong elements, and the mean bus bandwidth."""
    wrong, mean = summary(lines)
    return [
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}",
        f"# Avg bus bandwidth    : {mean:g}",
        "#",
    ]


def summary(lines: Sequence[Line]) -> tuple[int, float]:
    """Wrong elements of all lines, the peer's apart, and the mean bus bandwidth in GB/s."""
    timed = [(line.case, form) for line in lines for form in line.forms.values()]
    wrong = sum(form.wrong or 0 for _, form in timed)
    rates = [form.figures(case).bus_bw for case, form in timed if case.moved_bytes]
    return wrong, statistics.fmean(rates) if rates else 0.0


@dataclass(frozen=True)
class LinkRow:
    """The measured bytes of a link per call, those predicted from the plan's rings and routes
    (None: no prediction), and its rate in Gb/s during the call; `rated_gbps` is that of the plan
    (None: not limited)."""

    operation: str
    size: int
    source: int
    target: int
    sent_bytes: float
    theory_bytes: float | None
    gbps: float
    rated_gbps: float | None


@dataclass(frozen=True)
class BenchResults:
    """The results of all cases, in the JSON format of nccl-tests; `config`: the options."""

    JSON_FIELDS: ClassVar = (
        "version", "backend", "torch", "ranks", "config", "results", "links",
        ("out_of_bounds", "count=wrong", "okay"),
        ("average_bus_bandwidth", "bandwidth=mean", "unit"),
    )  # fmt: skip

    torch: str
    ranks: int
    config: dict[str, Any]
    results: Sequence[Line]
    links: Sequence[LinkRow]
    version: int = 1
    backend: str = "topoopt"
    unit: str = "GB/s"

    def wrong(self) -> int:
        return summary(self.results)[0]

    def okay(self) -> bool:
        return self.wrong() == 0

    def mean(self) -> float:
        return summary(self.results)[1]


def link_lines(rows: Sequence[LinkRow]) -> list[str]:
    """The table of links, below the line of its case."""
    lines = [f"#   {'link':>9}  {'bytes':>12}  {'theory':>12}  {'Gb/s':>8}  {'of rate':>8}"]
    for row in rows:
        theory = "-" if row.theory_bytes is None else f"{row.theory_bytes:.0f}"
        share = "-" if not row.rated_gbps else f"{100 * row.gbps / row.rated_gbps:.1f} %"
        lines.append(
            f"#   {f'{row.source} > {row.target}':>9}  {row.sent_bytes:>12.0f}  {theory:>12}  "
            f"{row.gbps:>8.4g}  {share:>8}"
        )
    return lines


def theory_bytes(plan: Plan, case: Case) -> dict[Pair, float] | None:
    """(source, target) -> bytes of one call on the links between the two, by the plan's rings and
    routes; None for other operations.

    Short calls may use another algorithm than rings (docs/guides/groups.md).
    """
    everyone = tuple(range(plan.cluster.servers))
    halves = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}
    if case.operation in halves:
        asked = Demand((GroupDemand(everyone, case.moved_bytes),), ())
        share = halves[case.operation]
    elif case.operation == "all_to_all":
        each = case.moved_bytes // case.ranks
        asked, share = Demand((), PairTable((AllToAll(everyone, each),))), 1.0
    elif case.operation == "sendrecv":
        asked, share = Demand((), (PairDemand(case.root, case.target, case.moved_bytes),)), 1.0
    else:
        return None
    loads = link_bytes(plan.network, traffic_matrix(plan.network, asked, plan.cluster.servers))
    found: dict[Pair, float] = {}
    for link, load in zip(plan.network.links, loads.tolist(), strict=True):
        ends = link.source, link.target
        found[ends] = found.get(ends, 0.0) + share * load
    return found
