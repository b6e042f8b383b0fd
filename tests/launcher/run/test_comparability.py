"""A measured iteration that says little is not held against the predicted one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.discovery.cable_rates import CableRate
from torch_topoopt.launcher import console
from torch_topoopt.launcher.run import comparability, link_bytes
from torch_topoopt.plan import Cluster, IterationTimes, LinkTraffic, Prediction
from torch_topoopt.plan.link_traffic import FEWEST_COMPARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Plan

CLUSTER = Cluster(2, 1, 10.0)
MANY = IterationTimes(FEWEST_COMPARED, 9.65e-3)
CONFIRMED = CableRate(("h0:p0", "h1:p0"), 10.0)
UNKNOWN = CableRate(("h0:p0", "h1:p0"), None)
SLOWER = CableRate(("h0:p0", "h1:p0"), 0.1)


@pytest.mark.parametrize(
    ("iterations", "rates", "paced", "why"),
    [
        (MANY, None, True, ""),
        (MANY, [CONFIRMED], False, ""),
        (replace(MANY, count=1), None, True, "fewer than 10 iterations"),
        (MANY, None, False, "10 Gb/s was assumed"),
        (MANY, [CONFIRMED, UNKNOWN], False, "no measurement confirms the rate of the links"),
        (MANY, [], False, "no measurement confirms"),  # of circuits
        (MANY, [CONFIRMED, SLOWER], False, "links of 10 Gb/s, and a cable carries 100 Mb/s"),
    ],
)
def test_the_reason_is_said_in_words(
    iterations: IterationTimes, rates: list[CableRate] | None, paced: bool, why: str
) -> None:
    found = comparability.why_not_compared(iterations, CLUSTER, rates, paced=paced)
    assert why in found
    assert bool(found) == bool(why)


def test_without_a_comparison_there_is_no_percentage(
    ring_plan: Callable[..., Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ring_plan(3)
    sizes = (1,) * len(plan.network.links)
    plan = replace(plan, prediction=Prediction(466e-6, 1e-6, 466e-6, 466e-6, sizes))
    links = [
        LinkTraffic(k.source, k.source_port, k.target, k.target_port, 5, 0, 0, 0, 1.0, 1.0)
        for k in plan.network.links
    ]
    few = IterationTimes(1, 9.65e-3)
    link_bytes.show(console.Terminal(), plan, links, few, why_not="WHY")
    line = next(line for line in capsys.readouterr().out.splitlines() if "iteration took" in line)
    assert "9.65 ms" in line
    assert "466 µs" in line
    assert "WHY" in line
    assert "%" not in line
    figures = link_bytes.iteration_figures(plan, links, few, why_not="WHY")
    assert figures is not None
    assert (figures.difference, figures.not_compared) == (None, "WHY")
    assert figures.link_bytes_difference == 0.0, "bytes do not depend on rates"
    link_bytes.show(console.Terminal(), plan, links, few)
    assert "+1970.8%" in capsys.readouterr().out


def test_only_cables_that_carry_less_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    stated = {CONFIRMED.ends: 10.0}
    comparability.show_rates(console.Terminal(), [CONFIRMED], stated)
    comparability.show_rates(console.Terminal(), [UNKNOWN], stated)
    assert capsys.readouterr().out == ""
    comparability.show_rates(console.Terminal(), [SLOWER], stated)
    assert "measured 100 Mb/s on 1 cable of 1, not 10 Gb/s" in capsys.readouterr().out


def test_a_few_bytes_on_an_idle_link_are_no_difference(ring_plan: Callable[..., Plan]) -> None:
    plan = ring_plan(3)
    sizes = [10**6] * len(plan.network.links)
    sizes[0] = 3
    plan = replace(plan, prediction=Prediction(1e-3, 1e-6, 1e-3, 1e-3, tuple(sizes)))
    measured = [0.0, *(1.01e6 for _ in sizes[1:])]
    links = [
        LinkTraffic(k.source, k.source_port, k.target, k.target_port, 5, 0, iteration_bytes=size)
        for k, size in zip(plan.network.links, measured, strict=True)
    ]
    figures = link_bytes.iteration_figures(plan, links, MANY)
    assert figures is not None
    assert figures.link_bytes_difference == pytest.approx(0.01)
