"""The stages of a layout's pipeline."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.search.stages import equal_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.layouts.cell_costs import CellCosts, PricedCell

    Cut = Callable[[Sequence[float], int], tuple[int, ...] | None]  # seconds of cells, chunks


class LayoutStage(NamedTuple):
    """The cells of a stage: how many of each kind, the `first` and the `last`.

    `copied`: it is not the stage of the table that its output layer shares, so it has a copy.
    `logits`: bytes of the model's output on one accelerator, if this stage makes it, and a tensor
    group has parts of it. `spans` has begin and end of the operators of each cell.
    """

    cells: tuple[tuple[PricedCell, int], ...]
    first: PricedCell
    last: PricedCell
    copied: bool
    logits: float
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, cells: Sequence[PricedCell], *, copied: bool, logits: float) -> LayoutStage:
        """The stage of these cells, in order."""
        counts = Counter(one.cell.kind for one in cells)
        kinds = {one.cell.kind: one for one in cells}
        counted = tuple((kinds[kind], count) for kind, count in counts.items())
        spans = tuple((one.cell.begin, one.cell.end) for one in cells)
        return cls(counted, cells[0], cells[-1], copied, logits, spans)

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


def stages_of(
    costs: CellCosts, layout: Layout, cut: Cut = least_longest
) -> tuple[LayoutStage, ...] | None:
    """The stages, cut between cells; None as `chunk_cells`, or if a cell cannot be divided so.

    With interleaving, stage i has chunks i, i + pipeline, and so on.
    """
    cells = costs.priced(layout)
    counts = None if cells is None else chunk_cells(cells, layout, cut)
    if cells is None or counts is None:
        return None
    bounds = (0, *itertools.accumulate(counts))
    home = (bisect.bisect_right(bounds, costs.shared_table) - 1) % layout.pipeline
    made = []
    for stage in range(layout.pipeline):
        mine: list[PricedCell] = []
        for chunk in range(stage, len(counts), layout.pipeline):
            mine += cells[bounds[chunk] : bounds[chunk + 1]]
        makes = stage == layout.pipeline - 1 and (
            layout.tensor == 1 or costs.gathers_output(layout)
        )
        logits = cells[-1].output_bytes if makes else 0.0
        made.append(LayoutStage.of(mine, copied=stage != home, logits=logits))
    return tuple(made)
