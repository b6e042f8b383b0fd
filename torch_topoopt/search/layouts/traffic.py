"""From a layout to its demand on the network, and to its placements on servers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import AllToAll, Demand, GroupDemand, PairDemand, PairTable, Placement
from torch_topoopt.search.layouts.server_groups import server_sets
from torch_topoopt.search.layouts.times import Groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.layouts.links import RankGroup
    from torch_topoopt.search.layouts.prices import LayoutPrice
    from torch_topoopt.search.layouts.stages import LayoutStage
    from torch_topoopt.search.layouts.state import StateBytes
    from torch_topoopt.search.layouts.times import StateGroups


class Gathered(NamedTuple):
    """Bytes that each group of a kind gathers or scatters in an iteration."""

    group: RankGroup
    size_bytes: float


def gathers(layout: Layout, stage: LayoutStage, state: StateBytes) -> list[Gathered]:
    """The AllGathers and ReduceScatters of a stage in one iteration, by group.

    A backward pass repeats those of activations. Full recomputation repeats those of the forward
    pass of blocks, too. The output of the model is gathered for the loss.
    """
    groups, count = Groups.of(layout), layout.micro_batches
    tensor = 2 * sum(cells * one.cost.tensor.size_bytes for one, cells in stage.cells)
    if layout.recompute == "full":
        tensor += sum(
            n * one.again * one.cost.repeated_bytes for one, n in stage.cells if one.cell.block
        )
    context = sum(cells * one.cost.context.size_bytes for one, cells in stage.cells)
    # FSDP sums the gradients of a tensor group where it exchanges them with other copies.
    sums = 1 if layout.zero_stage < 2 and layout.data * layout.context > 1 else count
    logits = stage.logits * layout.tensor
    found = [
        Gathered(groups.tensor, count * tensor),
        Gathered(groups.tensor, 2 * sums * stage.sum("summed_bytes") * state.exchanged),
        Gathered(groups.tensor, count * logits),
        Gathered(groups.context, 3 * count * context),  # also the gradients of keys and values
        Gathered(groups.context, count * logits * layout.context),
    ]
    both, again = ((of.parameter_bytes, of.sum("expert_bytes")) for of in (stage, stage.resharded))
    gradients = stage.gradient_bytes, stage.sum("expert_gradient_bytes")
    for i, of in enumerate((groups.state, groups.expert_state)):
        found += _state_gathers(layout, of, (both[i], again[i]), gradients[i] * state.exchanged)
    return found


def _state_gathers(
    layout: Layout,
    groups: StateGroups,
    parameter_bytes: tuple[float, float],
    gradient_bytes: float,
) -> list[Gathered]:
    """Those of parameters, all and those gathered again, and of gradients: what is sharded is
    exchanged by every micro-batch, and the rest once."""
    if layout.sharding == "none":
        return [Gathered(groups.copies, 2 * gradient_bytes)]
    count = layout.micro_batches
    scatters = count if layout.zero_stage >= 2 else 1
    gathered, again = parameter_bytes
    if layout.zero_stage == 3:
        gathered = count * (gathered + layout.reshard * again)
    shares = gradient_bytes / groups.shards.ranks
    return [
        Gathered(groups.shards, gathered + scatters * gradient_bytes),
        Gathered(groups.replicas, 2 * shares),
    ]


def layout_demand(price: LayoutPrice, box: int, state: StateBytes) -> Demand:
    """The demand of one iteration between boxes of `box` accelerators.

    A gather and a scatter of b bytes each are an AllReduce of b bytes. Experts exchange all with
    all; neighbouring stages send activations, and return their gradients.
    """
    layout = price.layout
    reduced: dict[tuple[int, ...], float] = defaultdict(float)
    exchanged: dict[tuple[int, ...], float] = defaultdict(float)
    per_stage = layout.accelerators // layout.pipeline
    for at, stage in enumerate(price.stages):
        ranks = range(at * per_stage, (at + 1) * per_stage)
        for group, size_bytes in gathers(layout, stage, state):
            for servers, count in server_sets(group, ranks, box).items():
                reduced[servers] += count * size_bytes / 2
        for servers, size_bytes in _copied(price, at, box, state):
            reduced[servers] += size_bytes
        repeats = layout.recompute == "full"
        tokens = layout.micro_batches * sum(
            cells * (2 + repeats * one.again) * one.cost.expert.size_bytes
            for one, cells in stage.cells
        )
        experts = Groups.of(layout).expert
        for servers, count in server_sets(experts, ranks, box).items():
            inside = experts.ranks / len(servers)
            each = count * inside * inside * tokens / experts.ranks
            exchanged[servers] += each
    return Demand(
        tuple(
            GroupDemand(tuple(sorted(servers)), round(size))
            for servers, size in sorted(reduced.items())
            if round(size)
        ),
        PairTable(
            tuple(
                AllToAll(servers, round(size))
                for servers, size in sorted(exchanged.items())
                if round(size)
            ),
            _sends(price, box),
        ),
    )


def _copied(
    price: LayoutPrice, at: int, box: int, state: StateBytes
) -> Iterator[tuple[tuple[int, ...], float]]:
    """The sums of the gradients of a table and its copy in stage `at`, by servers."""
    layout, stage = price.layout, price.stages[at]
    size_bytes = stage.sum("copied_bytes") if stage.copied else 0.0
    if not size_bytes:
        return
    per_stage = layout.accelerators // layout.pipeline
    home = next(i for i, other in enumerate(price.stages) if not other.copied)
    for rank in range(per_stage):
        servers = ((rank + home * per_stage) // box, (rank + at * per_stage) // box)
        if servers[0] != servers[1]:
            yield servers, size_bytes * state.exchanged / layout.state_shards


def _sends(price: LayoutPrice, box: int) -> tuple[PairDemand, ...]:
    """The activations of neighbouring stages, one way and back."""
    layout, stages = price.layout, price.stages
    per_stage = layout.accelerators // layout.pipeline
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for at, stage in enumerate(stages):
        size = layout.micro_batches * sum(stage.gives)
        if not size or layout.pipeline == 1:
            continue
        for rank in range(at * per_stage, (at + 1) * per_stage):
            source, target = rank // box, (rank + per_stage) % layout.accelerators // box
            if source != target:
                sent[source, target] += size
                sent[target, source] += size
    return tuple(PairDemand(*pair, round(size)) for pair, size in sorted(sent.items()))


def layout_placements(op_graph: OpGraph, price: LayoutPrice, box: int) -> tuple[Placement, ...]:
    """The servers of each operator: those of its stage."""
    layout = price.layout
    per_stage = layout.accelerators // layout.pipeline
    servers_of: dict[int, tuple[int, ...]] = {}
    for at, stage in enumerate(price.stages):
        servers = dict.fromkeys(rank // box for rank in range(at * per_stage, (at + 1) * per_stage))
        for one in stage.in_order:
            its = range(one.cell.begin, one.cell.end)
            servers_of.update(dict.fromkeys(its, tuple(servers)))
    return tuple(
        Placement(operator.name, servers_of[i]) for i, operator in enumerate(op_graph.operators)
    )
