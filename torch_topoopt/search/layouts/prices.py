"""Times and memory of layouts of one model on one cluster."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.layouts.bounds import least_passes_s
from torch_topoopt.search.layouts.cell_costs import CellCosts
from torch_topoopt.search.layouts.memory import cells_in_memory, memory_of, memory_of_stage
from torch_topoopt.search.layouts.software import EAGER
from torch_topoopt.search.layouts.stages import (
    LayoutStage,
    chunk_cells,
    least_longest,
    stages_of,
)
from torch_topoopt.search.layouts.state import ADAMW
from torch_topoopt.search.layouts.times import StepModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.accelerators import Accelerator
    from torch_topoopt.search.layouts.links import Boxes
    from torch_topoopt.search.layouts.memory import StepMemory
    from torch_topoopt.search.layouts.software import Software
    from torch_topoopt.search.layouts.stages import Cut
    from torch_topoopt.search.layouts.state import StateBytes
    from torch_topoopt.search.layouts.times import StepTimes

NO_HOST = "offload: host is for accelerators with memory apart from their host's; use none"


class LayoutPrice(NamedTuple):
    """A layout with its time and memory."""

    layout: Layout
    times: StepTimes
    memory: StepMemory
    stages: tuple[LayoutStage, ...]


class LayoutPrices:
    """Prices layouts of `op_graph` on `boxes` of `device`, whose accelerators may use `host_bytes`
    of the host's memory each."""

    def __init__(
        self,
        op_graph: OpGraph,
        device: Accelerator,
        boxes: Boxes,
        *,
        software: Software = EAGER,
        state: StateBytes = ADAMW,
        cut: Cut = least_longest,
        host_bytes: float = math.inf,
    ) -> None:
        self._memory = state, software
        self.host_bytes = host_bytes
        self._cut = cut
        self.costs = CellCosts(op_graph, device)
        self._stages: dict[tuple[int, ...], tuple[LayoutStage, ...] | None] = {}
        self._wholes: dict[tuple[int, ...], LayoutStage | None] = {}
        self._chains_s: dict[tuple[int, ...], float] = {}
        self.model = StepModel(boxes, software, state, device.memory_bytes_per_s, device.host)

    def on(self, boxes: Boxes) -> LayoutPrices:
        """The same on other boxes; costs of cells are shared."""
        made = copy.copy(self)
        model = self.model
        made.model = StepModel(
            boxes, model.software, model.state, model.memory_bytes_per_s, model.host
        )
        made._chains_s = {}
        return made

    def fits(self, price: LayoutPrice, memory_bytes: float) -> bool:
        """Whether an accelerator needs no more than `memory_bytes`, and its host has the rest."""
        memory = price.memory
        return memory.total <= memory_bytes and memory.host <= self.host_bytes

    @property
    def splits_backward(self) -> bool:
        """Whether the trainer has a zero-bubble schedule."""
        return self._memory[1].splits_backward

    def price(self, layout: Layout) -> LayoutPrice | None:
        """The price of `layout`; None if the model cannot be divided so. Raises ValueError for a
        layout that is none, and for state on a host without memory of its own."""
        if layout.offload == "host" and self.model.host is None:
            raise ValueError(f"layout: {NO_HOST}")
        stages = self.stages(layout.validate())
        if stages is None:
            return None
        times = self.model.times(layout, stages)
        return LayoutPrice(layout, times, memory_of(layout, stages, *self._memory), stages)

    def least_s(self, layout: Layout) -> float:
        """The computation of the slowest stage, which an iteration of `layout` takes at least;
        infinity if the model cannot be divided so."""
        stages = self.stages(layout)
        if stages is None:
            return math.inf
        fused = 1 - self.model.software.streams
        return layout.micro_batches * max(
            stage.sum("forward_s")
            + stage.sum("backward_s")
            - fused * (stage.sum("streamed_forward_s") + stage.sum("streamed_backward_s"))
            for stage in stages
        )

    def bound_s(self, layout: Layout) -> float:
        """What `layout` takes at least, for any cut, sharding and recomputation, and for a
        zero-bubble schedule in place of 1F1B; infinity if the model cannot be divided so."""
        chain_s = self._chain_s(layout)
        return least_passes_s(layout, chain_s, splits_backward=self.splits_backward)

    def _chain_s(self, layout: Layout) -> float:
        """The least seconds of a micro-batch in all stages; infinity as in `bound_s`."""
        key = (*_division(layout), layout.accelerators, layout.pipeline > 1)
        if key not in self._chains_s:
            whole = self._whole(layout)
            bare = replace(layout, schedule="1f1b")
            self._chains_s[key] = (
                math.inf if whole is None else sum(self.model.chains_s(bare, whole))
            )
        return self._chains_s[key]

    def cut_bound_s(self, layout: Layout) -> float:
        """As `bound_s`, for the stages of `layout`: what it takes with them at least."""
        stages = self.stages(layout)
        if stages is None:
            return math.inf
        found = [self.model.least_passes_s(layout, stages)]
        if self.splits_backward and layout.pipeline > 1 and layout.schedule == "1f1b":
            other = replace(layout, schedule="zero-bubble")
            found.append(self.model.least_passes_s(other, stages))
        return min(found)

    def host_bound_s(self, layout: Layout) -> float:
        """As `bound_s`, if the state is on hosts: the mean over stages of their passes and the
        optimizer's step after these, with state sharded over all copies."""
        whole = self._whole(layout)
        if whole is None:
            return math.inf
        copies = layout.data * layout.context
        sharded = replace(layout, sharding="parameters", state_shards=copies, offload="host")
        passes_s = layout.micro_batches * self._chain_s(layout)
        return (passes_s + self.model.optimizer_s(sharded, whole)) / layout.pipeline

    def state_fits(self, layout: Layout, memory_bytes: float) -> bool:
        """Whether the state of a stage fits into `memory_bytes` if all have equal parts of it."""
        whole = self._whole(layout)
        if whole is None:
            return False
        memory = memory_of_stage(layout, whole, 0, *self._memory)
        state_bytes = memory.parameters + memory.gradients + memory.optimizer
        if memory.host / layout.pipeline > self.host_bytes:
            return False
        return state_bytes / layout.pipeline + memory.runtime <= memory_bytes

    def _whole(self, layout: Layout) -> LayoutStage | None:
        """All cells as one stage; None if the model cannot be divided so."""
        key = _division(layout)
        if key not in self._wholes:
            cells = self.costs.priced(layout)
            self._wholes[key] = (
                None
                if cells is None
                else LayoutStage.of(
                    cells, copied=False, logits=self.costs.output_bytes(layout, cells[-1])
                )
            )
        return self._wholes[key]

    def cut(self, layout: Layout) -> Layout:
        """`layout` with the cells of its chunks, if it has stages and the model can be divided."""
        cells = self.costs.priced(layout) if layout.pipeline > 1 else None
        counts = None if cells is None else chunk_cells(cells, layout, self._cut)
        return layout if counts is None else replace(layout, cells=counts)

    def cut_within(self, layout: Layout, memory_bytes: float) -> Layout | None:
        """`layout` with stages of other times that fit into memory; None if there are none."""
        cells = self.costs.priced(layout)
        if cells is None or layout.micro_batches == 1:
            return None
        counts = cells_in_memory(layout, cells, *self._memory, memory_bytes)
        return None if counts is None else replace(layout, cells=counts)

    def least_blocks(self, price: LayoutPrice, memory_bytes: float) -> Layout:
        """The layout of `price`, which fits and recomputes all blocks, with the least blocks of
        each stage that fit."""
        layout, none = price.layout, replace(price.layout, recompute="none")
        blocks = [stage.blocks for stage in price.stages]
        fewer = list(zip([0] * len(blocks), self._stage_bytes(none, price.stages), strict=True))
        enough = list(zip(blocks, self._stage_bytes(layout, price.stages), strict=True))
        enough = [
            low if low[1] <= memory_bytes else high for low, high in zip(fewer, enough, strict=True)
        ]
        while any(high[0] - low[0] > 1 for low, high in zip(fewer, enough, strict=True)):
            ends = zip(fewer, enough, strict=True)
            tried = [_between(low, high, memory_bytes) for low, high in ends]
            other = replace(layout, recompute_blocks=tuple(tried))
            stages = self.stages(other)
            assert stages is not None
            for i, size in enumerate(self._stage_bytes(other, stages)):
                (enough if size <= memory_bytes else fewer)[i] = tried[i], size
        least = [count for count, _ in enough]
        return layout if least == blocks else replace(layout, recompute_blocks=tuple(least))

    def _stage_bytes(self, layout: Layout, stages: Sequence[LayoutStage]) -> list[float]:
        return [
            memory_of_stage(layout, stage, i, *self._memory).total for i, stage in enumerate(stages)
        ]

    def stages(self, layout: Layout) -> tuple[LayoutStage, ...] | None:
        """The stages of `layout`; None if the model cannot be divided so."""
        if layout.recompute_blocks or layout.reshard_blocks:  # many, of few layouts
            return stages_of(self.costs, layout, self._cut)
        key = (
            *_division(layout),
            *(layout.pipeline, layout.interleave),
            *layout.cells,
        )
        if key not in self._stages:
            self._stages[key] = stages_of(self.costs, layout, self._cut)
        return self._stages[key]


def _division(layout: Layout) -> tuple[int, ...]:
    """What the costs of a cell depend on."""
    return layout.tensor, layout.context, layout.expert, layout.micro_batch


def _between(fewer: tuple[int, float], enough: tuple[int, float], memory_bytes: float) -> int:
    """The number of blocks that would be the least if memory were linear in it, between both;
    `enough` if no number is."""
    (low, most_bytes), (high, least_bytes) = fewer, enough
    if high - low <= 1:
        return high
    over = (most_bytes - memory_bytes) / max(1.0, most_bytes - least_bytes)
    return min(high - 1, max(low + 1, low + math.ceil(over * (high - low))))
