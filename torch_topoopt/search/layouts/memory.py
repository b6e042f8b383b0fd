"""The memory of an accelerator under a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.layouts.stages import LayoutStage
from torch_topoopt.search.layouts.uneven import CellMemory, cells_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.accelerators import Accelerator
    from torch_topoopt.search.layouts.cell_costs import PricedCell
    from torch_topoopt.search.layouts.software import Software
    from torch_topoopt.search.layouts.state import StateBytes

_GATHERED_CELLS = 2  # the one that computes, and the one gathered ahead of it
RUNTIME_BYTES = 2.5e9  # the driver's context, and buffers of communication libraries
_USABLE = 0.96  # of the memory; an allocator leaves gaps (assumed)


def usable_bytes(device: Accelerator) -> float:
    """Bytes that a layout may use on one accelerator, its runtime included."""
    return _USABLE * device.memory_bytes - max(0.0, device.reserved_bytes - RUNTIME_BYTES)


class StepMemory(NamedTuple):
    """Bytes of one accelerator: `gathered` are parameters of cells in use, `runtime` what is not
    allocated by PyTorch. Its state takes `host` bytes of the host's memory."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    runtime: float
    host: float = 0.0

    @property
    def allocated(self) -> float:
        """What PyTorch allocates."""
        return self.total - self.runtime

    @property
    def total(self) -> float:
        """All bytes of the accelerator."""
        return sum(self[:-1])


def memory_of(
    layout: Layout, stages: Sequence[LayoutStage], state: StateBytes, software: Software
) -> StepMemory:
    """The memory of the stage that needs most, and the most that one needs of its host."""
    found = [memory_of_stage(layout, stages[i], i, state, software) for i in range(len(stages))]
    most = max(found, key=lambda memory: memory.total)
    return most._replace(host=max(memory.host for memory in found))


def cells_in_memory(
    layout: Layout,
    cells: Sequence[PricedCell],
    state: StateBytes,
    software: Software,
    memory_bytes: float,
) -> tuple[int, ...] | None:
    """The number of cells of each stage that fits into `memory_bytes`, for the least time of the
    longest; None if none does. For 1F1B, one chunk a stage."""
    of_kind: dict[int, CellMemory] = {}
    for one in cells:
        if one.cell.kind not in of_kind:
            of_kind[one.cell.kind] = _memory_of_cell(layout, one, state, software)
    memory = [of_kind[one.cell.kind] for one in cells]
    fixed = RUNTIME_BYTES + max(one.again for one in memory)
    if layout.shards_parameters and layout.reshard:
        fixed += _GATHERED_CELLS * max(one.cost.parameter_bytes for one in cells)
    room = [memory_bytes - fixed] * layout.pipeline
    room[-1] -= software.loss_outputs * cells[-1].output_bytes
    kept = [micro_batches_kept(layout, stage) for stage in range(layout.pipeline)]
    seconds = [one.cost.forward_s + one.cost.backward_s for one in cells]
    return cells_within(seconds, memory, kept, room)


def _memory_of_cell(
    layout: Layout, one: PricedCell, state: StateBytes, software: Software
) -> CellMemory:
    """From the memory of stages of this cell alone: the last one, and the one before."""
    stage = LayoutStage.of([one], copied=True, logits=0.0)
    last, before = (
        memory_of_stage(layout, stage, index, state, software)
        for index in (layout.pipeline - 1, layout.pipeline - 2)
    )
    whole = last.parameters + last.gradients + last.optimizer
    if not layout.reshard:
        whole += last.gathered
    kept = before.activations - last.activations
    return CellMemory(whole, kept, last.activations - kept)


def memory_of_stage(
    layout: Layout, stage: LayoutStage, index: int, state: StateBytes, software: Software
) -> StepMemory:
    """The memory of `stage`, the one of that index."""
    zero = layout.zero_stage

    def held(whole: float, experts: float, sharded_from: int) -> float:
        if zero < sharded_from:
            return whole + experts
        return whole / layout.state_shards + experts / layout.expert_shards

    gradients = stage.gradient_bytes, stage.sum("expert_gradient_bytes")
    memory = StepMemory(
        held(stage.parameter_bytes, stage.sum("expert_bytes"), 3),
        held(*gradients, 2) * state.gradient,
        held(*gradients, 1) * state.optimizer,
        _activations(layout, stage, index, software),
        _gathered(layout, stage) if layout.shards_parameters else 0.0,
        RUNTIME_BYTES,
    )
    if layout.offload == "none":
        return memory
    on_host = memory.parameters + memory.gradients + memory.optimizer
    waits = layout.micro_batches > 1 and not layout.sums_on_host  # for the sum over replicas
    summed = held(*gradients, 2) * state.exchanged if waits else 0.0
    return memory._replace(parameters=0.0, gradients=summed, optimizer=0.0, host=on_host)


def _gathered(layout: Layout, stage: LayoutStage) -> float:
    """Parameters in use: all that are kept for the backward pass, and others while they compute."""
    whole = stage.parameter_bytes + stage.sum("expert_bytes")
    if not layout.reshard:
        return whole
    passing = stage.resharded
    if not passing.cells:
        return whole
    size = passing.parameter_bytes + passing.sum("expert_bytes")
    largest = max(one.cost.parameter_bytes for one, _ in passing.cells)
    return whole - size + min(size, _GATHERED_CELLS * largest)


def _activations(layout: Layout, stage: LayoutStage, index: int, software: Software) -> float:
    """What is kept of the micro-batches under way, and the largest that is made again for one.

    The blocks computed again are the first of a stage, so later ones are free by then.
    """
    kept = again = freed = 0.0
    for one, count in stage.cells:
        whole, less = _kept_of_cell(layout, one, software)
        kept += count * (one.again * less + (1 - one.again) * whole)
        if layout.recompute == "full" and one.again:
            again = max(again, one.cost.saved_bytes)
        if one.cell.block:
            freed += count * (1 - one.again) * whole
    again = max(again - freed, software.loss_outputs * stage.logits)
    kept *= micro_batches_kept(layout, index)
    if layout.pipeline > 1 and layout.micro_batches > 1:
        # The allocator frees blocks in another order than it made them. A single micro-batch of the
        # measured steps (benchmarks/measured_steps.py) loses nothing.
        kept *= 1 + software.fragments
        whole = layout.tensor * sum(stage.gives)
        kept += software.sent_copies * whole * micro_batches_kept(layout, index)
    return kept + again + _gradients_kept(layout, stage, index)


def _kept_of_cell(layout: Layout, one: PricedCell, software: Software) -> tuple[float, float]:
    """What a cell keeps of a micro-batch without recomputation, and with that of the layout."""
    keeps = software.keeps_gathered and layout.pipeline == 1
    gathered = one.cost.gathered_bytes if keeps else 0.0
    whole = one.cost.saved_bytes + gathered
    if layout.recompute == "full":
        return whole, one.output_bytes
    if layout.recompute == "selective":
        return whole, one.cost.selective_bytes + gathered
    return whole, whole


def _gradients_kept(layout: Layout, stage: LayoutStage, index: int) -> float:
    """Gradients of matrix products whose weights are computed later: those of `index` + 1
    micro-batches (of a chunk) in PyTorch's zero-bubble schedule."""
    if layout.schedule != "zero-bubble":
        return 0.0
    count = min(index + 1, layout.micro_batches) / layout.interleave
    return count * stage.sum("selective_bytes")


def micro_batches_kept(layout: Layout, stage: int) -> float:
    """The micro-batches whose activations `stage` keeps at once; interleaved ones are of a chunk,
    which counts as its share of the stage (Narayanan et al. 2021, section 2.2)."""
    count, depth = layout.micro_batches, layout.pipeline - stage
    if layout.schedule == "gpipe":
        return count
    if layout.schedule == "zero-bubble":
        return min(layout.pipeline, count)  # until gradients of weights are computed, too
    if layout.interleave == 1:
        return min(depth, count)
    chunks = 2 * (depth - 1) + (layout.interleave - 1) * layout.pipeline + 1
    return min(chunks / layout.interleave, count)
