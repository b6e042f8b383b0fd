"""The stages of a layout's pipeline."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.stages import equal_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch_topoopt.plan.layout import BlockField, Layout
    from torch_topoopt.search.layouts.cell_costs import CellCosts, PricedCell

    Cut = Callable[[Sequence[float], int], tuple[int, ...] | None]  # seconds of cells, chunks


class LayoutStage(NamedTuple):
    """The cells of a stage: how many are equal, and all `in_order`.

    `copied`: it is not the stage of the table that its output layer shares, so it has a copy.
    `logits`: bytes of the model's output on one accelerator, if this stage makes it, and a tensor
    group has parts of it. `gives` are the bytes that each of its chunks sends to the next chunk.
    """

    cells: tuple[tuple[PricedCell, int], ...]
    in_order: tuple[PricedCell, ...]
    copied: bool
    logits: float
    gives: tuple[float, ...]

    @classmethod
    def of(
        cls,
        cells: Sequence[PricedCell],
        *,
        copied: bool,
        logits: float,
        gives: Sequence[float] = (),
    ) -> LayoutStage:
        """The stage of these cells, in order."""
        counts = Counter((one.cell.kind, one.again, one.reshards) for one in cells)
        of_kind = {(one.cell.kind, one.again, one.reshards): one for one in cells}
        counted = tuple((of_kind[kind], count) for kind, count in counts.items())
        return cls(counted, tuple(cells), copied, logits, tuple(gives))

    @property
    def first(self) -> PricedCell:
        """The first cell."""
        return self.in_order[0]

    @property
    def last(self) -> PricedCell:
        """The last cell."""
        return self.in_order[-1]

    @property
    def alike(self) -> Hashable:
        """Equal for stages of one layout that take the same time."""
        counts = tuple((one.cell.kind, one.again, one.reshards, n) for one, n in self.cells)
        return counts, self.first.cell.kind, self.last.cell.kind, self.copied, self.logits

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return sum(one.cell.block for one in self.in_order)

    @property
    def resharded(self) -> LayoutStage:
        """Its cells that are gathered again, if the layout reshards."""
        return self._replace(cells=tuple(one for one in self.cells if one[0].reshards))

    def sum(self, field: str) -> float:
        """The sum of a field of CellCost over the cells."""
        return float(sum(count * getattr(one.cost, field) for one, count in self.cells))

    @property
    def parameter_bytes(self) -> float:
        """Parameters that all accelerators of a tensor group's place have: all but experts."""
        whole = self.sum("parameter_bytes") - self.sum("expert_bytes")
        return whole + (self.sum("copied_bytes") if self.copied else 0.0)

    @property
    def gradient_bytes(self) -> float:
        """As `parameter_bytes`, of the parameters that are trained."""
        whole = self.sum("gradient_bytes") - self.sum("expert_gradient_bytes")
        return whole + (self.sum("copied_bytes") if self.copied else 0.0)


def least_longest(seconds: Sequence[float], chunks: int) -> tuple[int, ...] | None:
    """Where chunks but the first begin, for the least time of the longest."""
    cut = equal_stages(seconds, tuple(range(1, len(seconds))), 1, chunks)
    return None if cut is None else cut.cuts


def chunk_cells(
    cells: Sequence[PricedCell], layout: Layout, cut: Cut = least_longest
) -> tuple[int, ...] | None:
    """The number of cells of each chunk: those of `layout`, else cut by `cut`; None if there are
    fewer blocks than chunks, or other cells than those of `layout`."""
    chunks = layout.pipeline * layout.interleave
    if layout.cells:
        return layout.cells if sum(layout.cells) == len(cells) else None
    if chunks > sum(one.cell.block for one in cells) + (chunks == 1):
        return None
    cuts = cut([one.cost.forward_s + one.cost.backward_s for one in cells], chunks)
    if cuts is None:
        return None
    return tuple(end - begin for begin, end in itertools.pairwise((0, *cuts, len(cells))))


def first_blocks(
    are_blocks: Sequence[bool], counts: Sequence[int], layout: Layout, field: BlockField
) -> list[bool]:
    """Whether each cell is a block that `field` of `layout` names; `counts` has the cells of each
    chunk. Raises ValueError if a stage has fewer blocks."""
    first: tuple[int, ...] = getattr(layout, field)
    if not first:
        return list(are_blocks)
    before = [0] * layout.pipeline
    found = []
    for stage, is_block in zip(_stage_of(counts, layout), are_blocks, strict=True):
        found.append(is_block and before[stage] < first[stage])
        before[stage] += is_block
    for stage, (blocks, named) in enumerate(zip(before, first, strict=True)):
        if named > blocks:
            raise ValueError(f"{field}: {named}, but stage {stage} has {blocks} blocks")
    return found


def _stage_of(counts: Sequence[int], layout: Layout) -> list[int]:
    """The stage of each cell."""
    return [chunk % layout.pipeline for chunk, count in enumerate(counts) for _ in range(count)]


def _chosen(
    cells: Sequence[PricedCell], counts: Sequence[int], layout: Layout
) -> Sequence[PricedCell]:
    """`cells` with what `layout` chooses for each; raises as `first_blocks`.

    Other cells than blocks follow them: as if the same part of each were computed again.
    """
    if not layout.recompute_blocks and not layout.reshard_blocks:
        return cells
    are_blocks = [one.cell.block for one in cells]
    again = first_blocks(are_blocks, counts, layout, "recompute_blocks")
    reshards = first_blocks(are_blocks, counts, layout, "reshard_blocks")
    stage_of = _stage_of(counts, layout)
    blocks = Counter(itertools.compress(stage_of, are_blocks))
    repeated = Counter(itertools.compress(stage_of, again))
    parts = [
        repeated[stage] / blocks[stage] if blocks[stage] else float(not layout.recompute_blocks)
        for stage in range(layout.pipeline)
    ]
    return [
        one._replace(again=float(again[i]), reshards=reshards[i])
        if one.cell.block
        else one._replace(again=parts[stage])
        for i, (one, stage) in enumerate(zip(cells, stage_of, strict=True))
    ]


def stages_of(
    costs: CellCosts, layout: Layout, cut: Cut = least_longest
) -> tuple[LayoutStage, ...] | None:
    """The stages, cut between cells; None as `chunk_cells`, or if a cell cannot be divided so.
    Raises ValueError if `layout` names more blocks of a stage than there are.

    With interleaving, stage i has chunks i, i + pipeline, and so on.
    """
    priced = costs.priced(layout)
    counts = None if priced is None else chunk_cells(priced, layout, cut)
    if priced is None or counts is None:
        return None
    cells = _chosen(priced, counts, layout)
    bounds = (0, *itertools.accumulate(counts))
    home = (bisect.bisect_right(bounds, costs.shared_table) - 1) % layout.pipeline
    made = []
    for stage in range(layout.pipeline):
        mine: list[PricedCell] = []
        gives: list[float] = []
        for chunk in range(stage, len(counts), layout.pipeline):
            mine += cells[bounds[chunk] : bounds[chunk + 1]]
            if chunk < len(counts) - 1:
                gives.append(mine[-1].output_bytes)
        makes = stage == layout.pipeline - 1
        logits = costs.output_bytes(layout, cells[-1]) if makes else 0.0
        made.append(LayoutStage.of(mine, copied=stage != home, logits=logits, gives=gives))
    return tuple(made)
