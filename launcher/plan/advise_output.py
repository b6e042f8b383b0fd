"""The result of `topoopt advise`, and its drawing, ports, times and costs for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher.plan import cabling_text, plan_tables
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds

if TYPE_CHECKING:
    from torch_topoopt.comparison.cabling.advice import CablingOption
    from torch_topoopt.comparison.cabling.sheets import LabelledCable, Names
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.launcher.plan.failure_tables import WorstLoss
    from torch_topoopt.launcher.price_lists import PriceList
    from torch_topoopt.plan import Cluster, Plan

_MOST_LISTED = 12  # servers; up to here ports are listed one by one


@dataclass(frozen=True)
class Advice:
    """All output; the first of the `alternatives` is the requested one."""

    JSON_FIELDS: ClassVar = (
        "cluster.servers", "ports=cluster.degree", "gbps=cluster.link_gbps", "model", "cables",
        "dark_ports", "rings", "sizes", "alternatives",
        ("cable_loss", "disconnecting", "failures.all_reduce_bandwidth"), "output", "files",
    )  # fmt: skip

    cluster: Cluster
    plan: Plan
    names: Names
    cables: tuple[LabelledCable, ...]
    alternatives: tuple[CablingOption, ...]
    sizes: tuple[float, ...]
    disconnecting: tuple[str, ...]
    failures: WorstLoss
    output: str | None = None  # the folder, and the names of its files
    files: list[str] | None = None

    def model(self) -> str | None:
        return self.plan.model or None

    def dark_ports(self) -> int:
        return self.cluster.dark_ports(self.plan.network.links)

    @property
    def rings(self) -> list[tuple[int, ...]]:
        """The rings over all servers."""
        groups = (g for g in self.plan.network.groups if len(g.servers) == self.cluster.servers)
        return [ring.servers for group in groups for ring in group.rings]


def title(advice: Advice) -> str:
    cluster = advice.cluster
    return (
        f"{counted(cluster.servers, 'server')}, {counted(cluster.degree, 'port')} of "
        f"{format_gbps(cluster.link_gbps)} each, {counted(len(advice.cables), 'cable')}"
    )


def facts(advice: Advice) -> list[str]:
    """Lines about the whole wiring."""
    from torch_topoopt.topology.routing.hop_counts import hop_summary

    cluster, network = advice.cluster, advice.plan.network
    hops = hop_summary(cluster.servers, network.links)
    apart = f"servers are {hops.mean:.3g} cables apart on average, {hops.diameter} at most"
    lines = [
        _shape(advice),
        counted(len(advice.rings), "AllReduce ring") + (f"; {apart}" if hops.diameter > 1 else ""),
        _loss(advice),
        *plan_tables.dark_ports_lines(cluster, network),
    ]
    return [line for line in lines if line]


def _shape(advice: Advice) -> str:
    """The common name of the graph, where it has one."""
    count = advice.cluster.servers
    pairs = {cable.servers for cable in advice.cables}
    parallel = len(advice.cables) > len(pairs)
    beside = ", some cables in parallel" if parallel else ""
    if count == 2:
        return "a pair: all cables join the same two servers"
    if len(pairs) == count * (count - 1) // 2:
        return f"a full mesh: every server has a cable to every other{beside}"
    neighbours = [sum(server in pair for pair in pairs) for server in range(count)]
    if set(neighbours) == {2} and len(pairs) == count:
        return f"a ring{beside}"
    return beside.removeprefix(", ")


def _loss(advice: Advice) -> str:
    if advice.disconnecting:
        listed = ", ".join(advice.disconnecting[:6])
        if len(advice.disconnecting) > 6:
            listed += f" and {len(advice.disconnecting) - 6} more"
        return f"the loss of {listed} disconnects the servers"
    left = advice.failures.all_reduce_bandwidth
    kept = "" if left is None else f"; AllReduce keeps at least {100 * left:.0f} % of its bandwidth"
    return f"the loss of any one cable disconnects nobody{kept}"


def show(terminal: Terminal, advice: Advice, prices: PriceList) -> None:
    """Drawing, list of cables and the table of alternatives."""
    terminal.line(title(advice))
    for line in facts(advice):
        terminal.line(f"  {line}")
    for line in cabling_text.draw_text(advice.names.servers, advice.cables):
        terminal.line(line)
    _show_cables(terminal, advice)
    _show_alternatives(terminal, advice, prices)


def _show_cables(terminal: Terminal, advice: Advice) -> None:
    if advice.cluster.servers <= _MOST_LISTED:
        rows = [
            (
                cable.label,
                *(text for end in cable.ends for text in (end.place, end.address)),
            )
            for cable in advice.cables
        ]
        columns = ("cable", "one end", "address", "other end", "address")
        terminal.table("Plug these cables", columns, rows)
        return
    # common facts once: a row for each server, the peers of its ports in order
    peers: list[dict[int, str]] = [{} for _ in advice.names.servers]
    for cable in advice.cables:
        (a, b), (a_port, b_port) = cable.servers, cable.ports
        peers[a][a_port], peers[b][b_port] = cable.ends[1].place, cable.ends[0].place
    ports = range(advice.cluster.degree)
    terminal.table(
        "Plug these cables: where each port leads",
        ("server", *(advice.names.port(port) for port in ports)),
        [
            (name, *(own.get(port, "-") for port in ports))
            for name, own in zip(advice.names.servers, peers, strict=True)
        ],
    )


def _show_alternatives(terminal: Terminal, advice: Advice, prices: PriceList) -> None:
    """A column for each alternative, as there are more figures than these."""
    others = advice.alternatives
    rows: list[tuple[str, list[str]]] = []
    if advice.alternatives[0].iteration_s is not None:
        rows.append(("iteration", [_seconds(o.iteration_s) for o in others]))
    for name, field in (("AllReduce", "all_reduce_s"), ("all-to-all", "all_to_all_s")):
        for i, size in enumerate(advice.sizes):
            times = [format_seconds(getattr(o.times, field)[i]) for o in others]
            rows.append((f"{name} {format_bytes(size)}", times))
    rows += [
        ("cables", [str(other.cables) for other in others]),
        (prices.heading, [_dollars(prices.cost(other)) for other in others]),
        (
            "one cable lost",
            ["disconnects" if other.disconnecting else "goes on" for other in others],
        ),
    ]
    terminal.table(
        "What this gives, and what else would",
        ("", f"{others[0].name} (this)", *(other.name for other in others[1:])),
        [(name, *values) for name, values in rows],
    )
    for line in (prices.legend, *_changes(others[0], others[1:], prices)):
        terminal.line(line)


def _changes(
    first: CablingOption, others: tuple[CablingOption, ...], prices: PriceList
) -> list[str]:
    """A line per alternative: the factor for the largest sizes, and the cost."""
    lines = []
    for other in others:
        parts = []
        if first.iteration_s and other.iteration_s:
            parts.append(f"iteration {_factor(first.iteration_s, other.iteration_s)}")
        parts.append(
            f"AllReduce {_factor(first.times.all_reduce_s[-1], other.times.all_reduce_s[-1])}"
        )
        parts.append(
            f"all-to-all {_factor(first.times.all_to_all_s[-1], other.times.all_to_all_s[-1])}"
        )
        before, after = prices.cost(first), prices.cost(other)
        if before is not None and after is not None:
            more = after - before
            parts.append(f"{_dollars(abs(more))} {'more' if more >= 0 else 'less'}")
        lines.append(f"{other.name}: {', '.join(parts)}")
    return lines


def _factor(before_s: float, after_s: float) -> str:
    ratio = before_s / after_s
    if abs(ratio - 1) < 0.005:
        return "as fast"
    return f"{ratio:.2f}x as fast" if ratio > 1 else f"{1 / ratio:.2f}x as slow"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _dollars(amount: float | None) -> str:
    return "-" if amount is None else f"${amount:,.0f}"
