"""The figures of a plan's layout, and the best layouts of other kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.planner.layout_planning import LayoutPlanning, trained_by
from torch_topoopt.search.layouts.space import divisions, least_recomputed, shardings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.layouts.memory import StepMemory
    from torch_topoopt.search.layouts.prices import LayoutPrice
    from torch_topoopt.search.layouts.times import StepTimes


@dataclass(frozen=True)
class LayoutFigures:
    """Seconds of an iteration, and bytes of the accelerator that needs most."""

    times: StepTimes
    memory: StepMemory


@dataclass(frozen=True)
class OtherLayout:
    """The best layout of a `kind`, wired for its own demand, and the reason why it is not the plan.

    `link_bytes` is the load of the busiest link.
    """

    kind: str
    layout: Layout
    iteration_s: float
    memory_bytes: float
    link_bytes: int
    why_not: str


def layout_figures(op_graph: OpGraph, plan: Plan) -> LayoutFigures:
    """The figures of the layout of `plan`, on its network."""
    assert plan.layout is not None
    planning = LayoutPlanning(op_graph, plan.cluster, trained_by(plan.trainer))
    price = planning.prices_on(plan.network).price(plan.layout)
    assert price is not None
    return LayoutFigures(price.times, price.memory)


def other_layouts(
    op_graph: OpGraph, plan: Plan, options: PlanningOptions
) -> tuple[OtherLayout, ...]:
    """The best of each simple kind; of a kind that does not fit, the one that needs least."""
    planning = LayoutPlanning(op_graph, plan.cluster, options)
    box = plan.cluster.accelerators_per_server
    kinds: dict[str, Callable[[Layout], bool]] = {
        "data parallel": lambda layout: _copies_only(layout) and layout.sharding == "none",
        "FSDP": lambda layout: _copies_only(layout) and layout.sharding == "parameters",
        "tensor in a box x FSDP": lambda layout: (
            1 < layout.tensor <= box
            and layout.context == layout.pipeline == layout.expert == 1
            and layout.sharding == "parameters"
        ),
        "pipeline": lambda layout: layout.pipeline > 1 and layout.context == layout.expert == 1,
    }
    best: dict[str, LayoutPrice] = {}
    for division in divisions(planning.accelerators, op_graph.batch_size, 1):
        for sharded in shardings(division, box):
            for kind in [kind for kind, matches in kinds.items() if matches(sharded)]:
                price = least_recomputed(planning.prices, sharded, planning.memory_bytes)
                if price is None:
                    price = planning.prices.price(replace(sharded, recompute="full"))
                if price is None:
                    continue
                if kind not in best or _order(planning, price) < _order(planning, best[kind]):
                    best[kind] = price
    found = (_other(planning, plan, kind, price) for kind, price in best.items())
    return tuple(other for other in found if other.layout != plan.layout)


def _copies_only(layout: Layout) -> bool:
    return layout.tensor == layout.context == layout.pipeline == layout.expert == 1


def _order(planning: LayoutPlanning, price: LayoutPrice) -> tuple[float, float]:
    """The fastest that fits; if none does, the one that needs least memory."""
    over = max(0.0, price.memory.total - planning.memory_bytes)
    return over, price.times.step_s


def _other(planning: LayoutPlanning, plan: Plan, kind: str, price: LayoutPrice) -> OtherLayout:
    wired = planning.fastest_wired(price.layout)
    made = planning.plan_of(wired)
    seconds, over = wired.price.times.step_s, price.memory.total - planning.memory_bytes
    if over > 0:
        why_not = f"needs {over / 1e9:.1f} GB more"
    else:
        why_not = f"{seconds / plan.prediction.iteration_s - 1:+.1%}"
    busiest = max(made.prediction.link_bytes, default=0)
    layout = planning.prices.cut(price.layout)
    return OtherLayout(kind, layout, seconds, price.memory.total, busiest, why_not)
