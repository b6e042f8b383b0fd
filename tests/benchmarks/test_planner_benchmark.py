"""benchmarks/planner.py: gaps to the optimum of small instances, rows, going on where it was."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import optimality_gaps
import planner as benchmark
import pytest

from torch_topoopt.plan import Cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("mode", ["paper", "best"])
@pytest.mark.parametrize(("servers", "degree"), [(3, 2), (4, 2)])
def test_plans_of_tiny_jobs_are_optimal(servers: int, degree: int, mode: str) -> None:
    case = {"servers": servers, "degree": degree, "operators": 2, "mode": mode}
    found = optimality_gaps.run_gap({**case, "seed": 3, "evaluations": 500})
    assert found["optimum_s"] > 0
    assert abs(found["gap"]) < 1e-9
    assert "0.00%" in benchmark.line_of(found)


def test_with_two_ports_every_ring_is_among_the_networks() -> None:
    graph = optimality_gaps.small_job(random.Random(0), 2, 4)
    cluster = Cluster(4, 2, 10.0)
    strategies = optimality_gaps.every_strategy(graph, 4)
    assert len(strategies) == len(set(strategies)) == 11**2
    orders = {
        tuple(tuple(ring) for ring, _ in network.rings([0, 1, 2, 3]))
        for network in optimality_gaps.every_network(graph, cluster, strategies)
    }
    rings = {ring[::-1][-1:] + ring[::-1][:-1] for order in orders for ring in order}
    assert len({frozenset(zip(r, r[1:] + r[:1], strict=True)) for r in rings}) == 6


def test_a_case_has_all_figures_and_a_row() -> None:
    options = benchmark.parse_arguments(
        ["--models", "vgg", "-n", "4", "-d", "2", "--evaluations", "50", "--samples", "3"]
    )
    (case,) = benchmark.cases(options)
    assert (case["model"], case["servers"], case["degree"]) == ("vgg", 4, 2)
    figures = {
        f"{name}_s": 0.1
        for name in ("data_parallel", "search_only", "topology_only", "both", "ideal_switch")
    }
    measured = ("planning_seconds", "planning_cpu_seconds", "peak_mb", "proposals_per_s")
    measured += ("simulated_share", "full_over_delta", "flow_over_delta", "rank_correlation")
    measured += ("ratio_median", "ratio_least", "ratio_most")
    line = benchmark.line_of({**case, **figures, **dict.fromkeys(measured, 2.0)})
    assert line.startswith("vgg 4 x 2")
    assert len(benchmark.row_of(benchmark._COLUMNS)) == len(line)
    assert "left out: too large" in benchmark.line_of({**case, "error": "too large"})


def test_a_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def run(script: str, case: dict[str, Any], limit_s: float) -> dict[str, Any]:
        ran.append(case["seed"])
        return {**case, "optimum_s": 1.0, "found_s": 1.0, "gap": 0.0}

    monkeypatch.setattr(benchmark, "in_a_process", run)
    file = tmp_path / "gaps.json"
    for instances, expected in ((1, 8), (2, 16), (2, 16)):
        options = ["--gaps", "--instances", str(instances), "-J", str(file)]
        assert benchmark.run_all(benchmark.parse_arguments(options)) == 0
        assert len(ran) == expected
    assert len(json.loads(file.read_text())["results"]) == 16
    assert "best: median 0.00%, worst 0.00% of 8" in capsys.readouterr().out
