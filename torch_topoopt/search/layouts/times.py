"""The time of an iteration under a layout.

Blocks run one after the other; exchanges of a tensor or expert group delay them, those of state and
of keys and values run beside them. Stages follow the schedule, whose bubble is in closed form.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch_topoopt.search.accelerators import BANDWIDTH
from torch_topoopt.search.layouts.host_state import copy_seconds, host_seconds
from torch_topoopt.search.layouts.links import RankGroup
from torch_topoopt.search.layouts.software import SPLIT_BACKWARD

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.accelerators import HostMemory
    from torch_topoopt.search.layouts.cell_costs import CellCost, PricedCell
    from torch_topoopt.search.layouts.links import Boxes
    from torch_topoopt.search.layouts.software import Software
    from torch_topoopt.search.layouts.stages import LayoutStage
    from torch_topoopt.search.layouts.state import StateBytes

_BUCKET_BYTES = 25e6  # DistributedDataParallel's
_UNHIDDEN = 0.1  # of the exchange of gradients: the last bucket, after the backward pass
ZERO_BUBBLE = 1 / 3  # of 1F1B's bubble (ZB-H1; Qi et al. 2023, table 1, if passes are equal)


class StepTimes(NamedTuple):
    """Seconds of an iteration: `step_s`, and its parts on the slowest stage.

    `exchange_s`: activations and tokens; `bubble_s`: waiting for other stages; `state_s`: gradients
    and parameters, where no computation hides them.
    """

    step_s: float
    compute_s: float
    exchange_s: float
    bubble_s: float
    state_s: float
    optimizer_s: float


class _Pass(NamedTuple):
    """A pass of a micro-batch through cells: computation, the exchanges that delay it, and both
    with the host. Besides, the links of the group that exchanges state are busy for `links_s` with
    other exchanges. Sharded parameters take `gather_s` before the pass, and their gradients
    `scatter_s` after it."""

    compute_s: float = 0.0
    exchange_s: float = 0.0
    chain_s: float = 0.0
    links_s: float = 0.0
    gather_s: float = 0.0
    scatter_s: float = 0.0

    def plus(self, other: _Pass, times: int = 1) -> _Pass:
        return _Pass(*(a + times * b for a, b in zip(self, other, strict=True)))


class _Passes(NamedTuple):
    """Both passes of a micro-batch through a stage, and their seconds. No scatter comes before the
    first forward pass, and no gather after the last backward pass: they take `ends_s` more."""

    forward: _Pass
    backward: _Pass
    forward_s: float
    backward_s: float
    ends_s: float


class CellSeconds(NamedTuple):
    """The computation of a cell for a micro-batch: its forward pass, its backward pass without
    recomputation, and that. The host takes `host_s` for the calls of a forward pass."""

    forward_s: float
    backward_s: float
    again_s: float
    host_s: float


class Groups(NamedTuple):
    """The groups of a rank."""

    tensor: RankGroup
    context: RankGroup
    expert: RankGroup
    state: StateGroups
    expert_state: StateGroups

    @classmethod
    def of(cls, layout: Layout) -> Groups:
        """The groups of `layout`, in its order of ranks."""
        tensor, expert = layout.tensor, layout.expert
        copies, shards = layout.data * layout.context, layout.state_shards
        return cls(
            RankGroup(tensor, 1),
            RankGroup(layout.context, tensor),
            RankGroup(expert, 1),
            StateGroups.of(copies, shards, tensor),
            StateGroups.of(copies * tensor // expert, layout.expert_shards, expert),
        )

    def shares(self, sizes: StateSizes) -> StateSizes:
        """The part of sharded state that one accelerator has."""
        return StateSizes(
            sizes.dense / self.state.shards.ranks, sizes.experts / self.expert_state.shards.ranks
        )


class StateGroups(NamedTuple):
    """The groups of ranks with the same parameters: all copies, those that share state, and those
    with the same share."""

    copies: RankGroup
    shards: RankGroup
    replicas: RankGroup

    @classmethod
    def of(cls, copies: int, shards: int, stride: int) -> StateGroups:
        replicas = RankGroup(max(1, copies // shards), stride * shards)
        return cls(RankGroup(copies, stride), RankGroup(shards, stride), replicas)


class StateSizes(NamedTuple):
    """Bytes of parameters or gradients on one accelerator: those of experts apart."""

    dense: float
    experts: float


class CellCopies(NamedTuple):
    """Seconds of a micro-batch for a cell's share: copies of parameters from the host, and of
    gradients to it; and their sum there."""

    fetch_s: float
    return_s: float
    sum_s: float


def fetches_late(layout: Layout) -> bool:
    """Whether parameters are copied from the host only when they are needed, not ahead."""
    return layout.offload == "host" and layout.state_shards == 1


def parameters_of(cost: CellCost, *, copied: bool) -> StateSizes:
    """The parameters of a cell; `copied` as in LayoutStage."""
    dense = cost.parameter_bytes - cost.expert_bytes + copied * cost.copied_bytes
    return StateSizes(dense, cost.expert_bytes)


class StepModel:
    """Times of layouts on `boxes`, trained by `software`, with state on accelerators or `host`."""

    def __init__(
        self,
        boxes: Boxes,
        software: Software,
        state: StateBytes,
        memory_bytes_per_s: float,
        host: HostMemory | None = None,
    ) -> None:
        self.boxes, self.software, self.state = boxes, software, state
        self.memory_bytes_per_s, self.host = memory_bytes_per_s, host

    def times(self, layout: Layout, stages: Sequence[LayoutStage]) -> StepTimes:
        """Seconds of an iteration of `stages`, which are those of `layout`."""
        groups = Groups.of(layout)
        of_stage = {stage.alike: stage for stage in stages}
        of_kind = {alike: self._passes(layout, groups, one) for alike, one in of_stage.items()}
        passes = [of_kind[stage.alike] for stage in stages]
        count = layout.micro_batches
        passes_s = self._scheduled_s(layout, stages[0], passes)
        its = max(passes, key=_both)  # of the slowest stage
        bubble_s = passes_s - count * _both(its)
        state_s, optimizer_s = self._after_passes(layout, groups, stages, passes)
        return StepTimes(
            passes_s + state_s + optimizer_s,
            count * (its.forward.compute_s + its.backward.compute_s),
            count * (its.forward.exchange_s + its.backward.exchange_s),
            bubble_s,
            state_s,
            optimizer_s,
        )

    def _after_passes(
        self,
        layout: Layout,
        groups: Groups,
        stages: Sequence[LayoutStage],
        passes: Sequence[_Passes],
    ) -> tuple[float, float]:
        """Seconds of state and of the optimizer after the last pass of the first stage, for the
        stage that ends last. Each stage ends its passes before the stages in front of it."""
        known: dict[Hashable, tuple[float, float]] = {}
        found = []
        before_s = 0.0
        for stage, its in zip(stages, passes, strict=True):
            if (alike := stage.alike) not in known:
                state_s = self._state_s(layout, groups, stage, its)
                known[alike] = state_s, self.optimizer_s(layout, stage)
            state_s, optimizer_s = known[alike]
            found.append((state_s - before_s, optimizer_s))
            before_s += its.backward_s / layout.interleave
        return max(found, key=sum)

    def least_passes_s(self, layout: Layout, stages: Sequence[LayoutStage]) -> float:
        """Seconds of all micro-batches without the exchange of state, the sum of gradients and
        recomputation: no sharding of `layout` takes less."""
        of_stage = {stage.alike: stage for stage in stages}
        of_kind = {
            alike: _Passes(_Pass(), _Pass(), *self.chains_s(layout, stage), 0.0)
            for alike, stage in of_stage.items()
        }
        return self._scheduled_s(layout, stages[0], [of_kind[stage.alike] for stage in stages])

    def chains_s(self, layout: Layout, stage: LayoutStage) -> tuple[float, float]:
        """The forward and the backward pass of a micro-batch, as in `least_passes_s`."""
        layout = replace(layout, recompute="none", recompute_blocks=(), offload="none")
        groups = Groups.of(layout)
        forward_s = backward_s = self.loss_s(stage)
        forward_s += sum(gather_s for _, gather_s in self._output_gathers(layout, groups, stage))
        for one, count in stage.cells:
            ahead, back = self._cell_passes(layout, groups, stage, one)
            forward_s += count * ahead.chain_s
            backward_s += count * back.chain_s
        return forward_s, backward_s

    def _scheduled_s(self, layout: Layout, first: LayoutStage, passes: Sequence[_Passes]) -> float:
        """Seconds of all micro-batches; `passes` are those of each stage."""
        send_s = self._send_s(layout, first)
        if layout.schedule == "1f1b":
            return _one_forward_one_backward(layout.micro_batches, passes, send_s)
        return _chunked(layout, passes, send_s)

    def _passes(self, layout: Layout, groups: Groups, stage: LayoutStage) -> _Passes:
        loss_s, summed_s = self.loss_s(stage), self.summed_s(layout, stage)
        gathers = self._output_gathers(layout, groups, stage)
        output_s = sum(seconds for _, seconds in gathers)
        loss = _Pass(
            loss_s, output_s, loss_s + output_s, self._shared_s(_of_state(layout, groups), gathers)
        )
        ahead: list[tuple[_Pass, int]] = []
        back: list[tuple[_Pass, int]] = []
        for one, count in stage.cells:
            its = self._cell_passes(layout, groups, stage, one)
            ahead += _runs(its[0], count)
            back = [*_runs(its[1], count), *back]
        ahead[-1] = ahead[-1][0].plus(loss), ahead[-1][1]
        begin_s = loss_s + summed_s
        gather_s, scatter_s = ahead[0][0].gather_s, back[-1][0].scatter_s
        again_s = back[0][0].gather_s
        forward_s = self._seconds(ahead, scatter_s, again_s)
        backward_s = self._seconds(back, 0.0, gather_s)
        ends_s = self._seconds(ahead, 0.0, again_s) + self._seconds(back, 0.0, 0.0)
        return _Passes(
            _total(ahead),
            _total(back).plus(_Pass(begin_s, 0.0, begin_s)),
            forward_s,
            begin_s + backward_s,
            max(0.0, gather_s + scatter_s + ends_s - forward_s - backward_s),  # 0 but for rounding
        )

    def _output_gathers(
        self, layout: Layout, groups: Groups, stage: LayoutStage
    ) -> list[tuple[RankGroup, float]]:
        """The gathers of the model's output, and their seconds."""
        if not self.software.gathers_output:
            return []
        logits = stage.logits * layout.tensor
        return [
            (groups.tensor, self.boxes.gather_s(logits, groups.tensor)),
            (groups.context, self.boxes.gather_s(logits * layout.context, groups.context)),
        ]

    def _seconds(self, cells: Sequence[tuple[_Pass, int]], before_s: float, next_s: float) -> float:
        """A pass through cells in order. While one computes, gradients of the one before are
        scattered, and parameters of the next are gathered: before the first for `before_s`, and
        after the last for `next_s`."""
        seconds = 0.0
        after_s = (*(its.gather_s for its, _ in cells[1:]), next_s)
        for (its, count), gather_s in zip(cells, after_s, strict=True):
            if count > 1:  # amid a run of equal cells
                gather_s, before_s = its.gather_s, its.scatter_s
            beside_s = gather_s + before_s
            slowed_s = self.software.contention * min(its.chain_s, beside_s)
            seconds += count * max(its.chain_s + slowed_s, beside_s + its.links_s)
            before_s = its.scatter_s
        return seconds

    def loss_s(self, stage: LayoutStage) -> float:
        """The loss in one pass of a micro-batch."""
        return self._moved_s(stage.logits * self.software.loss_passes) / 2

    def summed_s(self, layout: Layout, stage: LayoutStage) -> float:
        """Adding the gradients of a micro-batch to those of earlier ones, on the accelerator."""
        if layout.micro_batches == 1 or layout.sums_on_host:
            return 0.0
        shards = layout.state_shards if layout.zero_stage >= 2 else 1
        return self._moved_s(stage.gradient_bytes / shards * self.state.summed)

    def cell_seconds(self, layout: Layout, one: PricedCell) -> CellSeconds:
        """The computation of a cell, and the calls of its host."""
        software, cost = self.software, one.cost
        calls = cost.tensor.count + cost.expert.count
        fused = 1 - software.streams
        forward_s = cost.forward_s - fused * cost.streamed_forward_s
        again_s = {
            "none": 0.0,
            "selective": software.streams * cost.streamed_forward_s,
            "full": forward_s,
        }[layout.recompute]
        return CellSeconds(
            forward_s,
            cost.backward_s - fused * cost.streamed_backward_s,
            one.again * again_s,
            cost.operators * software.host_s
            + calls * self._call_s(layout, RankGroup(layout.tensor, 1)),
        )

    def _cell_passes(
        self, layout: Layout, groups: Groups, stage: LayoutStage, one: PricedCell
    ) -> tuple[_Pass, _Pass]:
        """Forward and backward."""
        boxes, software, cost = self.boxes, self.software, one.cost
        tensor_s = boxes.gather_s(cost.tensor.size_bytes, groups.tensor, cost.tensor.count)
        expert_s = boxes.all_to_all_s(cost.expert.size_bytes, groups.expert, cost.expert.count)
        context_s = boxes.gather_s(cost.context.size_bytes, groups.context, cost.context.count)
        exchange_s = tensor_s * software.exposes + expert_s
        its = self.cell_seconds(layout, one)
        recomputed = one.again * (layout.recompute == "full")
        between = ((groups.tensor, tensor_s), (groups.expert, expert_s))
        of_state = _of_state(layout, groups)
        shared_s = self._shared_s(of_state, between)
        beside_s = self._shared_s(groups.context, between)
        split = layout.schedule == "zero-bubble" and software.splits_backward
        issued = 2 * (SPLIT_BACKWARD if split else 1)
        forward_s = max(its.forward_s + exchange_s, context_s + beside_s, its.host_s)
        summed_s = 2 * boxes.gather_s(cost.summed_bytes, groups.tensor)
        shared_summed_s = self._shared_s(of_state, [(groups.tensor, summed_s)])
        behind_s = self._shared_s(groups.context, [(groups.tensor, summed_s)])
        backward_s = max(
            its.backward_s + exchange_s + summed_s,
            2 * context_s + beside_s + behind_s,
            issued * its.host_s,
        )
        backward_s += its.again_s + recomputed * exchange_s
        context = self._shared_s(of_state, [(groups.context, context_s)])
        ahead = _Pass(its.forward_s, exchange_s, forward_s, shared_s + context)
        back = _Pass(
            its.backward_s + its.again_s,
            (1 + recomputed) * exchange_s + summed_s,
            backward_s,
            (1 + recomputed) * shared_s + shared_summed_s + 2 * context,
        )
        return self._with_state(layout, groups, stage, one, (ahead, back))

    # parameters: a cell, the layout that it is in, and its passes
    def _with_state(
        self,
        layout: Layout,
        groups: Groups,
        stage: LayoutStage,
        one: PricedCell,
        passes: tuple[_Pass, _Pass],
    ) -> tuple[_Pass, _Pass]:
        """The passes of a cell with the exchange of its state, and the copies of the host's."""
        (ahead, back), again = passes, layout.reshard and one.reshards
        gather_s, scatter_s = self.shards_s(layout, groups, one.cost, copied=stage.copied)
        copies = self.copies_s(layout, groups, one.cost, copied=stage.copied)
        if fetches_late(layout):
            ahead = ahead._replace(chain_s=ahead.chain_s + copies.fetch_s)
            back = back._replace(chain_s=back.chain_s + again * copies.fetch_s)
        else:
            gather_s += copies.fetch_s
        # of all micro-batches, those whose gradients the host waits for
        waits = 1 - 1 / layout.micro_batches if layout.sums_on_host else 0.0
        back = back._replace(
            chain_s=back.chain_s + waits * (scatter_s + copies.return_s + copies.sum_s),
            links_s=back.links_s + waits * scatter_s,
            gather_s=again * gather_s,
            scatter_s=(1 - waits) * (scatter_s + copies.return_s),
        )
        return ahead._replace(gather_s=gather_s), back

    def copies_s(
        self, layout: Layout, groups: Groups, cost: CellCost, *, copied: bool
    ) -> CellCopies:
        """The copies of a cell's share of the state, for every micro-batch; `copied` as in
        LayoutStage."""
        if self.host is None or layout.offload == "none":
            return CellCopies(0.0, 0.0, 0.0)
        parameters = sum(groups.shares(parameters_of(cost, copied=copied)))
        gradients = groups.shares(self.gradients_of(cost, copied=copied))
        trained = sum(gradients) / self.state.exchanged
        return CellCopies(
            copy_seconds(self.host, parameters * self.state.stored),
            copy_seconds(self.host, sum(gradients)) if layout.replicas == 1 else 0.0,
            host_seconds(self.host, trained * self.state.summed),
        )

    def last_copy_s(self, layout: Layout, gradients: StateSizes) -> float:
        """The copy of an accelerator's share of gradients to the host after their sum over
        replicas."""
        if self.host is None or layout.offload == "none" or layout.replicas == 1:
            return 0.0
        return copy_seconds(self.host, sum(gradients))

    def shards_s(
        self, layout: Layout, groups: Groups, cost: CellCost, *, copied: bool
    ) -> tuple[float, float]:
        """The gather of a cell's sharded parameters, and the scatter of their gradients; `copied`
        as in LayoutStage."""
        if layout.sharding != "parameters" or layout.state_shards == 1:
            return 0.0, 0.0
        gather_s = self._gather_s(groups, parameters_of(cost, copied=copied), "shards")
        scatter_s = self._gather_s(groups, self.gradients_of(cost, copied=copied), "shards")
        return gather_s, scatter_s

    def _shared_s(self, group: RankGroup, exchanges: Iterable[tuple[RankGroup, float]]) -> float:
        """Seconds of the exchanges that take the links of `group`: those between boxes, or inside
        them."""
        if group.ranks == 1:
            return 0.0
        crosses = self.boxes.crosses
        return sum(seconds for other, seconds in exchanges if crosses(other) == crosses(group))

    def _call_s(self, layout: Layout, tensor: RankGroup) -> float:
        """What the host takes for one exchange of a tensor group."""
        software, boxes = self.software, self.boxes
        seconds = software.exchange_s
        if tensor.ranks > boxes.accelerators:
            seconds += software.far_rank_s * tensor.ranks
        if layout.pipeline > 1 and layout.accelerators > boxes.accelerators:
            seconds += software.pipeline_rank_s * tensor.ranks
        return seconds

    def _send_s(self, layout: Layout, first: LayoutStage) -> float:
        """A micro-batch's activations from a stage to the next."""
        if layout.pipeline == 1:
            return 0.0
        stride = layout.tensor * layout.context * layout.data
        return self.boxes.send_s(first.last.output_bytes, stride, layout.pipeline - 1)

    def _state_s(
        self, layout: Layout, groups: Groups, stage: LayoutStage, passes: _Passes
    ) -> float:
        """What the exchange of gradients and parameters adds to an iteration."""
        gradients = self._exchanged(
            StateSizes(stage.gradient_bytes, stage.sum("expert_gradient_bytes"))
        )
        ahead, back = passes.forward, passes.backward
        # gradients of the first cell come last
        first_gradients = self.gradients_of(stage.first.cost, copied=stage.copied)
        summed_s, last_summed_s = (
            2 * self._gather_s(groups, shares, "replicas") + self.last_copy_s(layout, shares)
            for shares in map(groups.shares, (gradients, first_gradients))
        )
        if layout.shards_parameters:
            return passes.ends_s + self._after(summed_s, back, last_summed_s)
        begin_s = self._cell_passes(layout, groups, stage, stage.last)[1].chain_s
        calls = math.ceil(sum(gradients) / _BUCKET_BYTES)
        if layout.sharding == "none":
            reduce_s = 2 * self._gather_s(groups, gradients, "copies", calls)
            last_s = 2 * self._gather_s(groups, first_gradients, "copies")
            return self._after(reduce_s, back, last_s, begin_s)
        calls = int(stage.sum("operators")) // 2
        scatter_s = self._gather_s(groups, gradients, "shards", calls)
        last_s = self._gather_s(groups, first_gradients, "shards")
        seconds = self._after(scatter_s + summed_s, back, last_s + last_summed_s, begin_s)
        if layout.sharding == "gradients":  # scattered after each micro-batch
            more_s = max(0.0, scatter_s + back.links_s - back.chain_s)
            seconds += (layout.micro_batches - 1) * more_s
        parameters = StateSizes(stage.parameter_bytes, stage.sum("expert_bytes"))
        gather_s = self._gather_s(groups, parameters, "shards", calls)
        if self.software.gathers_early:
            gather_s = self._after(gather_s, ahead)
        return seconds + gather_s

    def _gather_s(
        self,
        groups: Groups,
        sizes: StateSizes,
        among: Literal["copies", "shards", "replicas"],
        calls: int = 1,
    ) -> float:
        """A gather or a scatter of state."""
        dense, experts = getattr(groups.state, among), getattr(groups.expert_state, among)
        seconds = self.boxes.gather_s(sizes.dense, dense, calls)
        return seconds + self.boxes.gather_s(sizes.experts, experts, calls)

    def gradients_of(self, cost: CellCost, *, copied: bool) -> StateSizes:
        """The gradients of a cell as groups sum them; `copied` as in LayoutStage."""
        experts = cost.expert_gradient_bytes
        dense = cost.gradient_bytes - experts + copied * cost.copied_bytes
        return self._exchanged(StateSizes(dense, experts))

    def _exchanged(self, gradients: StateSizes) -> StateSizes:
        """Gradients in the type in which groups sum them."""
        return StateSizes(*(size * self.state.exchanged for size in gradients))

    @staticmethod
    def _after(
        exchange_s: float, beside: _Pass, last_s: float = 0.0, begin_s: float = 0.0
    ) -> float:
        """What an exchange of state takes after the pass beside which it runs, from `begin_s` on;
        its last `last_s` do not begin before the end."""
        after_s = exchange_s + beside.links_s + begin_s - beside.chain_s
        return max(after_s, last_s, _UNHIDDEN * exchange_s)

    def optimizer_s(self, layout: Layout, stage: LayoutStage) -> float:
        """The optimizer's step of an accelerator, or of its host."""
        size = stage.gradient_bytes / layout.state_shards
        size += stage.sum("expert_gradient_bytes") / layout.expert_shards
        if self.host is not None and layout.offload == "host":
            return host_seconds(self.host, size * self.state.moved)
        return self._moved_s(size * self.state.moved)

    def _moved_s(self, size_bytes: float) -> float:
        """Seconds of moving so many bytes through the memory."""
        return size_bytes / (self.memory_bytes_per_s * BANDWIDTH)


def _runs(its: _Pass, count: int) -> list[tuple[_Pass, int]]:
    """`count` equal cells: the first, those amid, and the last."""
    if count < 3:
        return [(its, 1)] * count
    return [(its, 1), (its, count - 2), (its, 1)]


def _total(cells: Sequence[tuple[_Pass, int]]) -> _Pass:
    """The passes of all cells."""
    return reduce(lambda total, of: total.plus(*of), cells, _Pass())


def _of_state(layout: Layout, groups: Groups) -> RankGroup:
    """The group that exchanges state."""
    return groups.state.shards if layout.state_shards > 1 else groups.state.copies


def _both(passes: _Passes) -> float:
    return passes.forward_s + passes.backward_s


def _one_forward_one_backward(count: int, passes: Sequence[_Passes], send_s: float) -> float:
    """Seconds of `count` micro-batches, by the stage that decides.

    A stage computes all of them, after and before the stages in front of it. It waits for the
    first to come back from the stages behind it, while it begins as many as there are stages from
    it on, and so it does at the end. A message to each stage and back delays as many at a time.
    """
    before_s, behind_s = 0.0, sum(map(_both, passes))
    found = []
    for stage, its in enumerate(passes):
        behind_s -= _both(its)
        hops = len(passes) - 1 - stage
        begun = min(count, hops + 1)
        waits_s = max(0.0, behind_s - (begun - 1) * its.forward_s)
        if count > begun:
            waits_s += max(0.0, behind_s - (begun - 1) * its.backward_s)
        trips = max(1.0, count / begun)
        seconds = before_s + count * _both(its) + waits_s
        found.append(seconds + 2 * send_s * (stage + hops * trips))
        before_s += _both(its)
    return max(found)


def _chunked(layout: Layout, passes: Sequence[_Passes], send_s: float) -> float:
    """As `_one_forward_one_backward`, of the other schedules.

    A stage has other chunks to compute while activations of one are sent, but not before the first
    micro-batch has come back.
    """
    each = list(map(_both, passes))
    bubble_s = (sum(each) - max(each)) / layout.interleave
    if layout.schedule == "zero-bubble":
        bubble_s *= ZERO_BUBBLE
    bubble_s += 2 * send_s * (layout.pipeline * layout.interleave - 1)
    return layout.micro_batches * max(max(each), send_s * layout.interleave) + bubble_s
