"""Lower bounds of a layout's time, before its stages are cut and its state is sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.search.layouts.times import ZERO_BUBBLE

if TYPE_CHECKING:
    from torch_topoopt.plan.layout import Layout


def least_passes_s(layout: Layout, chain_s: float, *, splits_backward: bool) -> float:
    """Seconds that all micro-batches of `layout` take at least, for any cut into stages.

    All stages together take `chain_s` for a micro-batch. With `splits_backward`, a zero-bubble
    schedule may replace 1F1B.
    """
    stages, count = layout.pipeline, layout.micro_batches
    if stages == 1:
        return count * chain_s
    longest_s = chain_s / stages  # at least
    bubble_s = (chain_s - longest_s) / layout.interleave
    without_bubble_s = count * longest_s
    if layout.schedule in ("gpipe", "interleaved"):
        return without_bubble_s + bubble_s
    zero_bubble_s = without_bubble_s + bubble_s * ZERO_BUBBLE
    if layout.schedule == "zero-bubble":
        return zero_bubble_s
    least_s = _one_forward_one_backward_s(stages, count, chain_s)
    return min(least_s, zero_bubble_s) if splits_backward else least_s


def _one_forward_one_backward_s(stages: int, count: int, chain_s: float) -> float:
    """The least of `times._one_forward_one_backward` over all stages of `chain_s` together.

    Any stage computes all micro-batches after the stages in front of it have computed one. If this
    ends at time C at the latest, a stage leaves at least the part 1 - 1 / count of the rest of C to
    the stages behind it, so chain_s <= C * (1 - (1 - 1 / count) ** stages).

    Of more micro-batches than stages, the longest stage also waits for those behind it: for
    2 * behind_s - behind * longest_s at least. If the stages behind it are shorter by d together,
    longest_s >= (chain_s + d) / stages, and the iteration takes at least
    chain_s + (count - 1) * longest_s - d, which grows with d.
    """
    least_s = chain_s / (1 - (1 - 1 / count) ** stages)
    if count > stages:
        least_s = max(least_s, chain_s + (count - 1) * chain_s / stages)
    return least_s
