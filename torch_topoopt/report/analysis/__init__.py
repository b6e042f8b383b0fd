"""Analyses of a plan for a report: one module per question of its reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.planner.explain import Explanation
    from torch_topoopt.planner.layout_figures import LayoutFigures
    from torch_topoopt.report.analysis.architecture_costs import ArchitectureCost
    from torch_topoopt.report.analysis.iteration import SimulatedIteration
    from torch_topoopt.report.analysis.losses import Losses
    from torch_topoopt.report.analysis.what_if import WhatIf
    from torch_topoopt.report.run_folder import Run


_T = TypeVar("_T")


@dataclass(frozen=True)
class Analysis:
    """The results; None, or empty, if the plan lacks the model or network for an analysis."""

    iteration: SimulatedIteration | None = None
    explained: tuple[Explanation, ...] = ()
    what_if: WhatIf | None = None
    costs: tuple[ArchitectureCost, ...] = ()
    losses: Losses | None = None
    layout: LayoutFigures | None = None
    notes: tuple[str, ...] = ()


def analyse(run: Run, on_step: Callable[[str], None] = lambda step: None) -> Analysis:
    """Simulates and explains the plan of `run`; the same plan gives the same figures.

    `on_step` is called with the name of each next step. Impossible analyses are omitted; `notes`
    has the reasons.
    """
    from torch_topoopt.planner.explain import explain
    from torch_topoopt.planner.layout_figures import layout_figures
    from torch_topoopt.report.analysis.architecture_costs import architecture_costs
    from torch_topoopt.report.analysis.iteration import simulate
    from torch_topoopt.report.analysis.losses import losses
    from torch_topoopt.report.analysis.what_if import what_if
    from torch_topoopt.search.strategy_space import DIMENSIONS

    plan, graph = run.plan, run.graph
    notes: list[str] = []

    def part(name: str, work: Callable[[], _T], without: _T) -> _T:
        on_step(name)
        try:
            return work()
        except ValueError as error:
            notes.append(f"Not worked out: {name}: {error}.")
            return without

    of_cables = "the loss of each cable"
    if graph is None or not _belongs(run):
        lost = part(of_cables, lambda: losses(plan, None), None)
        return Analysis(losses=lost, notes=tuple(notes))
    known = graph
    if plan.layout is not None:  # which the other analyses do not change
        return Analysis(
            losses=part(of_cables, lambda: losses(plan, None), None),
            iteration=part("one iteration", lambda: simulate(known, plan), None),
            layout=part("the layout", lambda: layout_figures(known, plan), None),
            notes=tuple(notes),
        )
    dimensions = DIMENSIONS if plan.strategy_space == "full" else ()
    return Analysis(
        losses=part(of_cables, lambda: losses(plan, known), None),
        iteration=part("one iteration", lambda: simulate(known, plan), None),
        explained=part(
            "other splits of the operators",
            lambda: explain(
                known,
                plan.cluster,
                plan.network,
                plan.strategy,
                dimensions=dimensions,
                micro_batches=plan.micro_batches,
            ),
            (),
        ),
        what_if=part("other bandwidths, batches and degrees", lambda: what_if(known, plan), None),
        costs=part("other architectures", lambda: architecture_costs(known, plan), ()),
        notes=tuple(notes),
    )


def _belongs(run: Run) -> bool:
    """Whether the OpGraph is that of the plan's strategy."""
    plan, graph = run.plan, run.graph
    return (
        graph is not None
        and bool(plan.strategy)
        and plan.batch_size == graph.batch_size
        and [o.name for o in graph.operators] == [p.operator for p in plan.strategy]
    )
