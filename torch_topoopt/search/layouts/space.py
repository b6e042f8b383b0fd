"""All layouts of a model on a number of accelerators, and the fastest that fit.

They are what an expert would enumerate: every factorisation of the accelerators over the
dimensions, every size of a micro-batch, and every way of sharding state.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from torch_topoopt.plan.layout import RECOMPUTES, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.plan.layout import Offload, OffloadChoice
    from torch_topoopt.search.layouts.prices import LayoutPrice, LayoutPrices

_INTERLEAVES = (1, 2, 4, 8)
# Of the least time without, at most. The rates of hosts come from data sheets and are not measured,
# so a smaller gain may be none.
_WORTH_OFFLOADING = 0.9
_ROUNDING = 1 - 1e-9  # of sums in another order


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [k for k in range(1, number + 1) if number % k == 0]


def divisions(accelerators: int, batch_size: int, most_experts: int) -> Iterator[Layout]:
    """All layouts without a choice of what is sharded and computed again."""
    for tensor, context, pipeline in itertools.product(divisors(accelerators), repeat=3):
        if accelerators % (tensor * context * pipeline):
            continue
        data = accelerators // (tensor * context * pipeline)
        if batch_size % data:
            continue
        share = batch_size // data
        stage = accelerators // pipeline
        experts = [k for k in divisors(most_experts) if stage % k == 0]
        for micro_batch, expert in itertools.product(divisors(share), experts):
            made = Layout(
                tensor,
                context,
                data,
                expert,
                pipeline,
                micro_batch=micro_batch,
                micro_batches=share // micro_batch,
            )
            yield made
            for interleave in _INTERLEAVES[1:] if pipeline > 1 else ():
                if made.micro_batches % pipeline == 0:
                    yield replace(made, interleave=interleave, schedule="interleaved")


def shardings(layout: Layout, box: int, offload: Offload = "none") -> Iterator[Layout]:
    """`layout` with every way of sharding state: over all copies, or over those in a box; with
    `offload`, only those whose state is there."""
    copies = layout.data * layout.context
    inside = box // layout.tensor if layout.tensor < box and box % layout.tensor == 0 else 1
    groups = dict.fromkeys(k for k in (copies, inside) if k > 1 and copies % k == 0)
    if offload == "host":
        on_host = replace(layout, sharding="parameters", offload="host")
        for shards, reshard in itertools.product(groups or (1,), (True, False)):
            yield replace(on_host, state_shards=shards, reshard=reshard)
        return
    yield layout
    for shards in groups:
        for sharding in ("optimizer", "gradients"):
            yield replace(layout, sharding=sharding, state_shards=shards)
        for reshard in (True, False):
            yield replace(layout, sharding="parameters", state_shards=shards, reshard=reshard)


def fastest_layouts(
    prices: LayoutPrices,
    accelerators: int,
    batch_size: int,
    *,
    memory_bytes: float,
    count: int = 8,
    most_experts: int = 1,
    why_not: Callable[[Layout], str] | None = None,
    offload: OffloadChoice = "none",
) -> list[LayoutPrice]:
    """The fastest layouts that fit into `memory_bytes`, and that `why_not` has no reason against,
    at most one of each factorisation of the accelerators.

    Of each, the least recomputation that fits: more of it is only slower. So are stages of other
    times than the equal ones. With `offload` "auto", those with state on the host come beside the
    others, but only if they are clearly faster than all of these.
    """
    chosen = Layout(recompute="full", recompute_blocks=(1,))
    alike = why_not is not None and bool(why_not(chosen))  # no choice for some blocks
    every = divisions(accelerators, batch_size, most_experts)
    bounds = sorted(((prices.bound_s(one) * _ROUNDING, one) for one in every), key=itemgetter(0))
    search = _Fastest(prices, memory_bytes, count, why_not, alike)
    found = [] if offload == "host" else search.among(bounds, "none")
    if offload != "none" and prices.model.host is not None:
        worth_s = _WORTH_OFFLOADING * _step_s(found[0]) if found else math.inf
        found = sorted([*found, *search.among(bounds, "host", worth_s)], key=_step_s)
    return found


@dataclass(frozen=True)
class _Fastest:
    """The fastest `count` layouts that fit, as `fastest_layouts` describes them."""

    prices: LayoutPrices
    memory_bytes: float
    count: int
    why_not: Callable[[Layout], str] | None
    alike: bool

    def among(
        self, bounds: list[tuple[float, Layout]], offload: Offload, slowest_s: float = math.inf
    ) -> list[LayoutPrice]:
        """Those of `bounds`, divisions with lower bounds of their times, that take less than
        `slowest_s`.

        Divisions with the least bounds come first, and the search ends with the first whose bound
        exceeds the slowest layout of the fastest `count`.
        """
        prices, box = self.prices, self.prices.model.boxes.accelerators
        found: dict[tuple[int, ...], LayoutPrice] = {}
        for bound_s, division in bounds:
            if bound_s > slowest_s or bound_s == math.inf:
                break
            least_s = bound_s if offload == "none" else prices.host_bound_s(division) * _ROUNDING
            key = division.tensor, division.context, division.expert, division.pipeline
            limit_s = min(slowest_s, _step_s(found[key]) if key in found else math.inf)
            if (
                max(bound_s, least_s) > limit_s
                or prices.cut_bound_s(division) * _ROUNDING > limit_s
            ):
                continue
            if self.why_not is not None and self.why_not(division):
                continue
            for sharded in shardings(division, box, offload):
                best = least_recomputed(
                    prices, sharded, self.memory_bytes, limit_s, alike=self.alike
                )
                if best is not None and _step_s(best) < limit_s:
                    found[key], limit_s = best, _step_s(best)
            if len(found) >= self.count:
                fastest = heapq.nsmallest(self.count, found.values(), key=_step_s)
                slowest_s = min(slowest_s, _step_s(fastest[-1]))
        fastest = heapq.nsmallest(self.count, found.values(), key=_step_s)
        if self.alike:
            return fastest
        kept = (_kept_where_it_gains(prices, one, self.memory_bytes) for one in fastest)
        return sorted(kept, key=_step_s)


def _kept_where_it_gains(
    prices: LayoutPrices, price: LayoutPrice, memory_bytes: float
) -> LayoutPrice:
    """`price`, or a faster layout that gathers the parameters of fewer or more blocks again.

    Memory that gathered parameters take is missing for activations: each change is priced with the
    least recomputation that fits. The numbers of all stages, or of one, change by steps that halve.
    """
    best, blocks = price, [stage.blocks for stage in price.stages]
    layout = price.layout
    if not layout.shards_parameters:
        return price
    again = [count * layout.reshard for count in blocks]
    moves = [range(layout.pipeline), *((stage,) for stage in range(layout.pipeline))]
    moves = moves[: 1 if layout.pipeline == 1 else None]
    step = max(blocks)
    while step > 1:
        step = (step + 1) // 2
        for stages, change in itertools.product(moves, (-step, step)):
            while True:
                tried = list(again)
                for stage in stages:
                    tried[stage] = min(blocks[stage], max(0, again[stage] + change))
                if tried == again:
                    break
                other = _resharding(layout, tried, blocks)
                found = least_recomputed(prices, other, memory_bytes, _step_s(best))
                if found is None or _step_s(found) >= _step_s(best):
                    break
                best, again = found, tried
    return best


def _resharding(layout: Layout, again: list[int], blocks: list[int]) -> Layout:
    """`layout` that gathers the parameters of so many blocks of each stage again."""
    some = tuple(again) if any(again) and again != blocks else ()
    return replace(
        layout, reshard=any(again), reshard_blocks=some, recompute="none", recompute_blocks=()
    )


def _step_s(price: LayoutPrice) -> float:
    return price.times.step_s


def least_recomputed(
    prices: LayoutPrices,
    layout: Layout,
    memory_bytes: float,
    limit_s: float = math.inf,
    *,
    alike: bool = False,
) -> LayoutPrice | None:
    """`layout` with the least recomputation that fits, of all blocks if they are `alike`; None if
    none does, or if all take longer than `limit_s`.

    Of a pipeline, its zero-bubble schedule if that is faster, or less recomputation with uneven
    stages.
    """
    if not prices.state_fits(layout, memory_bytes):
        return None
    found: list[LayoutPrice] = []
    for recompute in RECOMPUTES:
        price = prices.price(replace(layout, recompute=recompute))
        if price is None:
            return None
        if prices.fits(price, memory_bytes):
            if recompute == "none":
                return _with_less_bubble(prices, price, memory_bytes)
            some = None if alike else prices.price(prices.least_blocks(price, memory_bytes))
            fits = some is not None and prices.fits(some, memory_bytes)
            found.append(some if some is not None and fits else price)
            continue
        if recompute == "none" and _step_s(price) >= limit_s:
            return None
        other = _uneven(prices, price.layout, memory_bytes)
        if other is not None:
            found.append(other)
    return min(found, key=_step_s, default=None)


def _uneven(prices: LayoutPrices, layout: Layout, memory_bytes: float) -> LayoutPrice | None:
    """`layout` with stages of other times that fit."""
    if layout.pipeline == 1 or layout.interleave > 1 or layout.cells or layout.reshard_blocks:
        return None
    cut = prices.cut_within(layout, memory_bytes)
    price = None if cut is None else prices.price(cut)
    return price if price is not None and prices.fits(price, memory_bytes) else None


def _with_less_bubble(prices: LayoutPrices, price: LayoutPrice, memory_bytes: float) -> LayoutPrice:
    layout = replace(price.layout, schedule="zero-bubble")
    if layout.pipeline == 1 or not prices.splits_backward or layout.why_no_zero_bubble:
        return price
    other = prices.price(layout)
    fits = other is not None and prices.fits(other, memory_bytes)
    return other if other is not None and fits and _step_s(other) < _step_s(price) else price
