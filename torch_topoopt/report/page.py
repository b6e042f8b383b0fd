"""The page of one run or plan: the sections of each tab."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt import __version__
from torch_topoopt.report import answer_sections as answers
from torch_topoopt.report import network_sections as networks
from torch_topoopt.report import sections, work_section
from torch_topoopt.report.all_to_all_section import all_to_all_section
from torch_topoopt.report.failure_section import failure_section
from torch_topoopt.report.html import Panel, element, page
from torch_topoopt.report.page_data import page_data

if TYPE_CHECKING:
    from torch_topoopt.report.analysis import Analysis
    from torch_topoopt.report.run_folder import Run


def render_page(run: Run, analysis: Analysis) -> str:
    """The whole page of a run folder as HTML5; a plan's lacks the sections on the run."""
    run = replace(run, notes=(*run.notes, *analysis.notes))
    plan, ran = run.plan, run.metrics is not None
    of_run = (
        [
            sections.stages_section(run),
            sections.resized_sections(run),
            sections.training_section(run),
            *work_section.sections(run),
            sections.reproduce_section(run),
        ]
        if ran
        else []
    )
    panels = [
        Panel("overview", "Overview", (
            answers.answers_section(run, analysis),
            answers.glance_section(plan, analysis),
            sections.rounds_section(plan),
        )),
        Panel("run", "Run", tuple(of_run)),
        Panel("network", "Network", (
            networks.topology_section(plan),
            networks.wiring_section(plan),
        )),
        Panel("bytes", "Traffic", (
            networks.traffic_section(run),
            answers.slowest_section(plan, analysis),
            all_to_all_section(run),
        )),
        Panel("time", "Time", (
            answers.timeline_section(plan, analysis),
            sections.measured_section(run),
            sections.search_section(plan),
        )),
        Panel("split", "Strategy", (
            answers.splits_section(plan, analysis),
            sections.strategy_section(run, analysis.layout),
            sections.operators_section(run),
        )),
        Panel("changes", "What if", (
            answers.what_if_section(plan, analysis),
            answers.ports_section(plan, analysis),
            answers.costs_section(plan, analysis),
        )),
        Panel("losses", "Failures", (
            answers.pull_section(plan, analysis),
            failure_section(plan, analysis.losses),
        )),
    ]  # fmt: skip
    about = f"torch_topoopt {__version__} · plan {plan.digest()} · version {plan.version}"
    footer = element("footer", about)
    return page(
        f"{plan.model} on {plan.cluster.servers} servers of degree {plan.cluster.degree}",
        sections.headline(run),
        panels,
        footer,
        {"runs": [page_data(run, analysis)]},
    )
