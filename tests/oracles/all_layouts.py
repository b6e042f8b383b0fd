"""Every layout of a small cluster on every cabling as a ring, priced by the flow simulator."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import Demand, GroupDemand
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.layout import RECOMPUTES, SHARDINGS, Layout
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.layout_program import program_of
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.plan import Cluster, Network
    from torch_topoopt.planner.layout_planning import LayoutPlanning
    from torch_topoopt.search.layouts.prices import LayoutPrice


class SimulatedLayout(NamedTuple):
    """A layout with its time on `network`."""

    layout: Layout
    network: Network
    seconds: float


def all_layouts(accelerators: int, batch_size: int, experts: int = 1) -> Iterator[Layout]:
    """Every valid value of every dimension."""
    counts = [k for k in range(1, accelerators + 1) if accelerators % k == 0]
    for tensor, context, data, pipeline in itertools.product(counts, repeat=4):
        if tensor * context * data * pipeline != accelerators or batch_size % data:
            continue
        share = batch_size // data
        sizes = [k for k in range(1, share + 1) if share % k == 0]
        parts = [k for k in range(1, experts + 1) if experts % k == 0]
        chunks = (1, 2, 4, 8) if pipeline > 1 else (1,)
        shards = [k for k in counts if data * context % k == 0]
        for (
            size,
            expert,
            interleave,
            state_shards,
            sharding,
            reshard,
            recompute,
        ) in itertools.product(sizes, parts, chunks, shards, SHARDINGS, (True, False), RECOMPUTES):
            if (sharding == "none") != (state_shards == 1):
                continue
            if reshard is False and sharding != "parameters":
                continue
            schedule = "interleaved" if interleave > 1 else "1f1b"
            try:
                made = Layout(
                    tensor, context, data, expert, pipeline, interleave, sharding, state_shards,
                    reshard, recompute, schedule, size, share // size,
                ).validate()  # fmt: skip
            except DocumentError:
                continue
            yield made
            if pipeline > 1 and interleave == 1 and not made.why_no_zero_bubble:
                yield replace(made, schedule="zero-bubble")


def rings_of_four(cluster: Cluster) -> list[Network]:
    """The three rings of four servers with two ports; none of other clusters."""
    if (cluster.servers, cluster.degree) != (4, 2):
        return []
    found = []
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)):
        cables = itertools.pairwise((*order, 0))
        pairs = tuple(GroupDemand(tuple(sorted(pair)), 10**9) for pair in cables)
        found.append(find_network(cluster, Demand(pairs, ()), mode="paper"))
    return found


def fastest_of_all(
    planning: LayoutPlanning, networks: Sequence[Network], trust: float
) -> SimulatedLayout:
    """The fastest layout that fits, on the best of the networks.

    Not simulated are layouts whose computation alone takes longer than the best iteration so far,
    or whose price is `trust` times as long: most of the time would be theirs.
    """
    best = None
    prices = planning.prices
    splits = (operator.split("experts") for operator in planning.op_graph.operators)
    experts = max((split.max_degree for split in splits if split is not None), default=1)
    found: list[LayoutPrice] = []
    for layout in all_layouts(planning.accelerators, planning.op_graph.batch_size, experts):
        if layout.schedule == "zero-bubble" and not prices.splits_backward:
            continue
        price = prices.price(layout)
        if price is not None and price.memory.total <= planning.memory_bytes:
            found.append(price)
    found.sort(key=lambda price: price.times.step_s)
    for price in found:
        if best is not None and price.times.step_s > trust * best.seconds:
            break
        if best is not None and prices.least_s(price.layout) > best.seconds:
            continue
        for network in networks:
            seconds = simulated_s(planning, network, price.layout)
            if best is None or seconds < best.seconds:
                best = SimulatedLayout(price.layout, network, seconds)
    assert best is not None
    return best


def simulated_s(planning: LayoutPlanning, network: Network, layout: Layout) -> float:
    """Seconds of an iteration, by the flow simulator."""
    made = program_of(planning.prices, planning.cluster, network, layout)
    return run_program(made.program).completion_s
