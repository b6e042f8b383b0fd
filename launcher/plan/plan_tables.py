"""Tables of a Plan for people, and its figures for `--json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher.plan.placement_text import servers_text
from torch_topoopt.plan.placement import PARALLELISM
from torch_topoopt.plan.result_json import within
from torch_topoopt.plan.units import counted, format_bytes, format_gbps, format_seconds

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Cluster, Network, Plan, Prediction, Ring

_LONG_RING = 16  # servers; the file of the plan has longer ones
CLUSTER_FIGURES = (
    "servers", "degree", "link_gbps", "ports", "accelerator", "accelerators_per_server",
)  # fmt: skip


def show_rounds(terminal: Terminal, plan: Plan) -> None:
    """The table of rounds of the alternating optimisation, predicted seconds per iteration.

    A round keeps the faster of its two pairs of strategy and network, if it is the best so far.
    Empty for a plan without predictions, and on a quiet terminal.
    """
    if not plan.rounds or terminal.quiet:
        return
    several = len({entry.micro_batches for entry in plan.rounds}) > 1
    columns = (
        *("after strategy search", "after TopologyFinder"),
        *("on a single ring", "on an ideal switch", "kept"),
    )
    terminal.table(
        "Predicted iteration time, round by round",
        ("round", *(("micro-batches",) if several else ()), *columns),
        [
            (
                str(number),
                *((str(entry.micro_batches),) if several else ()),
                format_seconds(entry.strategy_s),
                format_seconds(entry.network_s),
                format_seconds(entry.single_ring_s),
                format_seconds(entry.ideal_switch_s),
                format_seconds(min(entry.strategy_s, entry.network_s)) if entry.accepted else "no",
            )
            for number, entry in enumerate(plan.rounds, start=1)
        ],
    )


def show_plan(terminal: Terminal, plan: Plan, *, from_steps: bool = False) -> None:
    """Rounds, rings and strategy. `from_steps`: the times of a layout are those of its steps."""
    show_rounds(terminal, plan)
    for line in network_lines(plan):
        terminal.line(line)
    if plan.strategy:
        for line in strategy_lines(plan):
            terminal.line(line)
    if not plan.predicts_time:
        return
    prediction = plan.prediction
    how = "at flow level" if plan.layout is None else "in closed form"
    if plan.layout is not None and from_steps:
        how = "from measured steps"
    terminal.line(
        f"predicted iteration: {format_seconds(prediction.iteration_s)} {how} "
        f"({format_seconds(prediction.compute_s)} of it compute; "
        f"single ring {format_seconds(prediction.single_ring_s)}, "
        f"ideal switch {format_seconds(prediction.ideal_switch_s)})"
    )


def dark_ports_lines(cluster: Cluster, network: Network) -> list[str]:
    """A line on the ports without a cable; none if all are used."""
    dark = cluster.dark_ports(network.links)
    if not dark:
        return []
    ports = sum(map(cluster.ports_of, range(cluster.servers)))
    return [
        f"{dark} of {counted(ports, 'port')} {'stays' if dark == 1 else 'stay'} dark: "
        "no other server has a free port to join"
    ]


def network_lines(plan: Plan) -> list[str]:
    cluster, network = plan.cluster, plan.network
    duplex = cluster.ports == "duplex"
    kind = counted(len(network.links) // 2, "cable") if duplex else "simplex"
    pairs = cluster.servers * (cluster.servers - 1)
    lines = [
        f"network: {counted(cluster.servers, 'server')} of degree {cluster.degree}, "
        f"{counted(len(network.links), 'link')} ({kind}) of {_rates(plan)}, "
        f"{_relayed(network)} of {counted(pairs, 'ordered pair')} relayed"
    ]
    if plan.mode not in ("fixed", "discovered"):
        lines += dark_ports_lines(cluster, network)
    for group in network.groups:
        rings = [f"{_order(ring)} ({ring.share:.0%})" for ring in group.rings]
        everyone = len(group.servers) == cluster.servers
        who = counted(cluster.servers, "server") if everyone else servers_text(group.servers)
        lines.append(f"group of {who}: rings {', '.join(rings) or 'none'}")
    return lines


def _order(ring: Ring) -> str:
    """ "+3", or the servers in order; the first ones of a long ring."""
    if ring.stride is not None:
        return f"+{ring.stride}"
    shown = ring.servers if len(ring.servers) <= _LONG_RING else ring.servers[: _LONG_RING // 4]
    more = "" if shown == ring.servers else "-..."
    return "-".join(map(str, shown)) + more


def _relayed(network: Network) -> int:
    """The number of ordered pairs of servers without a link, which others relay."""
    ends = {(route.servers[0], route.servers[-1]) for route in network.routes}
    return len(ends - {(link.source, link.target) for link in network.links})


def _rates(plan: Plan) -> str:
    """The rate of the links, or the range of rates."""
    rates = sorted({plan.cluster.gbps_of(link) for link in plan.network.links})
    if len(rates) < 2:
        return format_gbps(plan.cluster.link_gbps)
    return f"{format_gbps(rates[0])} to {format_gbps(rates[-1])}"


def strategy_figures(plan: Plan) -> dict[str, int]:
    """The numbers of operators shared by all servers, by some, and placed on one."""
    count = plan.cluster.servers
    sizes = [len(placement.servers) for placement in plan.strategy]
    return {
        "all_servers": sum(size == count for size in sizes),
        "some_servers": sum(1 < size < count for size in sizes),
        "one_server": sum(size == 1 < count for size in sizes),
    }


def split_figures(plan: Plan) -> dict[str, int]:
    """The number of operators split along each dimension other than the samples."""
    return {
        dimension: sum(getattr(placement, dimension) > 1 for placement in plan.strategy)
        for dimension in PARALLELISM
    }


def strategy_lines(plan: Plan) -> list[str]:
    if plan.layout is not None:
        return [f"layout: {plan.layout}", _demand_line(plan)]
    sizes = strategy_figures(plan)
    if plan.strategy_space == "data-parallel":
        return [
            f"strategy: data parallel, {counted(len(plan.strategy), 'operator')} on all servers"
        ]
    lines = [
        f"strategy: {counted(sizes['all_servers'], 'operator')} on all servers, "
        f"{sizes['some_servers']} on some, {sizes['one_server']} on one server each"
    ]
    splits = [
        f"{count} {PARALLELISM[name]}" for name, count in split_figures(plan).items() if count
    ]
    if splits:
        lines.append(f"not data parallel: {', '.join(splits)}")
    if plan.micro_batches > 1:
        lines.append(f"micro-batches: {plan.micro_batches}, schedule 1F1B")
    lines.append(_demand_line(plan))
    return lines


def _demand_line(plan: Plan) -> str:
    reduced = sum(group.size_bytes for group in plan.demand.groups)
    sent = sum(pair.size_bytes for pair in plan.demand.pairs)
    return (
        f"demand per iteration: {format_bytes(reduced)} to AllReduce in "
        f"{counted(len(plan.demand.groups), 'group')}, {format_bytes(sent)} between "
        f"{counted(len(plan.demand.pairs), 'ordered pair')} of servers"
    )


@dataclass(frozen=True)
class PlanFigures:
    """The figures of a plan for `--json`; times in seconds, null where they are not predicted."""

    JSON_FIELDS: ClassVar = (
        *within("plan", "digest", "model", "batch_size", "seed"),
        *within("plan.cluster", *CLUSTER_FIGURES), "plan.strategy_space", "strategy", "splits",
        "plan.micro_batches", "link_count", "plan.network.groups", "plan.rounds",
        ("predicted",
         *within("prediction", "iteration_s", "compute_s", "single_ring_s", "ideal_switch_s")),
    )  # fmt: skip

    plan: Plan

    def strategy(self) -> dict[str, int]:
        return strategy_figures(self.plan)

    def splits(self) -> dict[str, int]:
        return split_figures(self.plan)

    def link_count(self) -> int:
        return len(self.plan.network.links)

    def prediction(self) -> Prediction | None:
        return self.plan.prediction if self.plan.predicts_time else None
