"""The time of an iteration under a layout.

Blocks run one after the other; exchanges of a tensor or expert group delay them, those of state and
of keys and values run beside them. Stages follow the schedule, whose bubble is in closed form.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch_topoopt.search.accelerators import BANDWIDTH
from torch_topoopt.search.layouts.links import RankGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.layouts.cell_costs import CellCost
    from torch_topoopt.search.layouts.links import Boxes
    from torch_topoopt.search.layouts.software import Software
    from torch_topoopt.search.layouts.stages import LayoutStage
    from torch_topoopt.search.layouts.state import StateBytes

_BUCKET_BYTES = 25e6  # DistributedDataParallel's
_UNHIDDEN = 0.1  # of the exchange of gradients: the last bucket, after the backward pass
_ZERO_BUBBLE = 1 / 3  # of 1F1B's bubble (ZB-H1; Qi et al. 2023, table 1, if passes are equal)


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


class _Passes(NamedTuple):
    """Of a stage and a micro-batch."""

    forward_s: float
    backward_s: float
    compute_s: float
    exchange_s: float


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
            RankGroup(expert, 1 if expert > copies else tensor),
            StateGroups.of(copies, shards, tensor),
            StateGroups.of(copies * tensor // expert, layout.expert_shards, expert),
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


class Sizes(NamedTuple):
    """Bytes of parameters or gradients on one accelerator: those of experts apart."""

    dense: float
    experts: float


def _parameters(cost: CellCost) -> Sizes:
    return Sizes(cost.parameter_bytes - cost.expert_bytes, cost.expert_bytes)


class StepModel:
    """Times of layouts on `boxes`, trained by `software`."""

    def __init__(
        self, boxes: Boxes, software: Software, state: StateBytes, memory_bytes_per_s: float
    ) -> None:
        self.boxes, self.software, self.state = boxes, software, state
        self.memory_bytes_per_s = memory_bytes_per_s

    def times(self, layout: Layout, stages: Sequence[LayoutStage]) -> StepTimes:
        """Seconds of an iteration of `stages`, which are those of `layout`."""
        groups = Groups.of(layout)
        passes = [self._passes(layout, groups, stage) for stage in stages]
        each = [one.forward_s + one.backward_s for one in passes]
        slowest = max(range(len(stages)), key=each.__getitem__)
        stage, its = stages[slowest], passes[slowest]
        send_s = self._send_s(layout, stages[0])
        bubble_s = (sum(each) - each[slowest]) / layout.interleave
        if layout.schedule == "zero-bubble":
            bubble_s *= _ZERO_BUBBLE
        bubble_s += 2 * send_s * (layout.pipeline - 1)
        count = layout.micro_batches
        steady_s = count * (each[slowest] + 2 * send_s * layout.interleave)
        state_s = self._state_s(layout, groups, stage, its)
        optimizer_s = self.optimizer_s(layout, stage)
        return StepTimes(
            steady_s + bubble_s + state_s + optimizer_s,
            count * its.compute_s,
            count * its.exchange_s,
            bubble_s,
            state_s,
            optimizer_s,
        )

    def _passes(self, layout: Layout, groups: Groups, stage: LayoutStage) -> _Passes:
        loss_s, summed_s = self.loss_s(stage), self.summed_s(layout, stage)
        sums = [loss_s, loss_s + summed_s, 2 * loss_s + summed_s, 0.0]
        for one, count in stage.cells:
            for i, seconds in enumerate(self._cell_passes(layout, groups, one.cost)):
                sums[i] += count * seconds
        return _Passes(*sums)

    def loss_s(self, stage: LayoutStage) -> float:
        """The loss in one pass of a micro-batch."""
        return self._moved_s(stage.logits * self.software.loss_passes) / 2

    def summed_s(self, layout: Layout, stage: LayoutStage) -> float:
        """Adding the gradients of a micro-batch to those of earlier ones."""
        if layout.micro_batches == 1:
            return 0.0
        shards = layout.state_shards if layout.zero_stage >= 2 else 1
        return self._moved_s(stage.gradient_bytes / shards * self.state.summed)

    def cell_seconds(self, layout: Layout, cost: CellCost) -> CellSeconds:
        """The computation of a cell, and the calls of its host."""
        software = self.software
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
            again_s,
            cost.operators * software.host_s
            + calls * self._call_s(layout, RankGroup(layout.tensor, 1)),
        )

    def _cell_passes(self, layout: Layout, groups: Groups, cost: CellCost) -> _Passes:
        boxes, software = self.boxes, self.software
        tensor_s = boxes.gather_s(cost.tensor.size_bytes, groups.tensor, cost.tensor.count)
        expert_s = boxes.all_to_all_s(cost.expert.size_bytes, groups.expert, cost.expert.count)
        context_s = boxes.gather_s(cost.context.size_bytes, groups.context, cost.context.count)
        exchange_s = tensor_s * software.exposes + expert_s
        its = self.cell_seconds(layout, cost)
        again_s = its.again_s + (exchange_s if layout.recompute == "full" else 0.0)
        between = ((groups.tensor, tensor_s), (groups.expert, expert_s))
        far_s = self._far_s(groups.context, between)
        forward_s = max(its.forward_s + exchange_s, context_s + far_s, its.host_s)
        backward_s = max(its.backward_s + exchange_s, 2 * context_s + far_s, 2 * its.host_s)
        backward_s += again_s
        if layout.sharding == "parameters" and layout.state_shards > 1:
            ahead = *between, (groups.context, context_s)
            back = *between, (groups.context, 2 * context_s)
            shards = groups.state.shards
            state_s = self.shards_s(layout, groups, cost)
            forward_s = self._beside(forward_s, state_s[0], self._far_s(shards, ahead))
            backward_s = self._beside(backward_s, state_s[1], self._far_s(shards, back))
        compute_s = its.forward_s + its.backward_s + again_s
        return _Passes(forward_s, backward_s, compute_s, 2 * exchange_s)

    def shards_s(self, layout: Layout, groups: Groups, cost: CellCost) -> tuple[float, float]:
        """The exchange of a cell's sharded parameters beside its forward and its backward pass."""
        gather_s = self._gather_s(groups, _parameters(cost), "shards")
        scatter_s = self._gather_s(groups, self._gradients(cost), "shards")
        return gather_s, gather_s * layout.reshard + scatter_s

    def _far_s(self, group: RankGroup, exchanges: Iterable[tuple[RankGroup, float]]) -> float:
        """Seconds of the exchanges that share the links between boxes with those of `group`."""
        if not self.boxes.crosses(group):
            return 0.0
        return sum(seconds for other, seconds in exchanges if self.boxes.crosses(other))

    def _beside(self, pass_s: float, exchange_s: float, far_s: float) -> float:
        """A pass during which state is exchanged, over links that are busy for `far_s` besides."""
        slowed_s = self.software.contention * min(pass_s, exchange_s)
        return max(pass_s + slowed_s, exchange_s + far_s)

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
        """A micro-batch's activations from the first stage to the next; later ones are alike."""
        if layout.pipeline == 1:
            return 0.0
        stride = layout.tensor * layout.context * layout.data
        return self.boxes.send_s(first.last.output_bytes, stride)

    def _state_s(
        self, layout: Layout, groups: Groups, stage: LayoutStage, passes: _Passes
    ) -> float:
        """What the exchange of gradients and parameters adds to an iteration."""
        gradients = Sizes(stage.gradient_bytes, stage.sum("expert_gradient_bytes"))
        gradients = self._exchanged(gradients)
        if layout.sharding == "parameters" and layout.state_shards > 1:
            seconds = self._gather_s(groups, _parameters(stage.first.cost), "shards")
            seconds += self._gather_s(groups, self._gradients(stage.last.cost), "shards")
            shares = Sizes(
                gradients.dense / groups.state.shards.ranks,
                gradients.experts / groups.expert_state.shards.ranks,
            )
            summed_s = 2 * self._gather_s(groups, shares, "replicas")
            return seconds + self._after(summed_s, passes.backward_s)
        calls = math.ceil(sum(gradients) / _BUCKET_BYTES)
        if layout.sharding != "none":
            calls = int(stage.sum("operators")) // 2
        scatter_s = self._gather_s(groups, gradients, "copies", calls)
        if layout.sharding == "none":
            return self._after(2 * scatter_s, passes.backward_s)
        parameters = Sizes(stage.parameter_bytes, stage.sum("expert_bytes"))
        gather_s = self._gather_s(groups, parameters, "copies", calls)
        if self.software.gathers_early:
            gather_s = self._after(gather_s, passes.forward_s)
        return self._after(scatter_s, passes.backward_s) + gather_s

    def _gather_s(
        self,
        groups: Groups,
        sizes: Sizes,
        among: Literal["copies", "shards", "replicas"],
        calls: int = 1,
    ) -> float:
        """A gather or a scatter of state."""
        dense, experts = getattr(groups.state, among), getattr(groups.expert_state, among)
        seconds = self.boxes.gather_s(sizes.dense, dense, calls)
        return seconds + self.boxes.gather_s(sizes.experts, experts, calls)

    def _gradients(self, cost: CellCost) -> Sizes:
        experts = cost.expert_gradient_bytes
        return self._exchanged(Sizes(cost.gradient_bytes - experts, experts))

    def _exchanged(self, gradients: Sizes) -> Sizes:
        """Gradients in the type in which groups sum them."""
        return Sizes(*(size * self.state.exchanged for size in gradients))

    @staticmethod
    def _after(exchange_s: float, pass_s: float) -> float:
        """What an exchange of state takes after the pass beside which it begins."""
        return max(exchange_s - pass_s, _UNHIDDEN * exchange_s)

    def optimizer_s(self, layout: Layout, stage: LayoutStage) -> float:
        """The optimizer's step of an accelerator."""
        size = stage.gradient_bytes / layout.state_shards
        size += stage.sum("expert_gradient_bytes") / layout.expert_shards
        return self._moved_s(size * self.state.moved)

    def _moved_s(self, size_bytes: float) -> float:
        """Seconds of moving so many bytes through the memory."""
        return size_bytes / (self.memory_bytes_per_s * BANDWIDTH)
