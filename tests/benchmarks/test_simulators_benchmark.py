"""benchmarks/simulators.py: what it measures is what it says."""

from __future__ import annotations

import flow_workloads
import pytest
import simulators


def test_a_row_has_the_exact_time_and_the_ratio_to_the_peer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = simulators.CASES["ring-16"]
    row = simulators._row("ring-16", "flow", simulators.measure(case.make, "flow"))
    assert row["completion_s"] * 1e3 == pytest.approx(case.exact_ms, rel=1e-9)
    simulators._show(row)
    assert "15.030000" in capsys.readouterr().out


def test_paths_of_the_fat_tree_climb_only_as_far_as_they_must() -> None:
    workload = flow_workloads.permutation(k=4, seed=2)
    assert (workload.hosts, workload.nodes) == (16, 36)
    assert {flow.source for flow in workload.flows} == set(range(16))
    assert {flow.target for flow in workload.flows} == set(range(16))
    for flow in workload.flows:
        same_edge = flow.source // 2 == flow.target // 2
        same_pod = flow.source // 4 == flow.target // 4
        assert len(flow.path) == (2 if same_edge else 4 if same_pod else 6)


def test_distinct_sizes_are_distinct() -> None:
    flows = flow_workloads.all_to_all(distinct_sizes=True, seed=1).flows
    assert len({flow.size_bytes for flow in flows}) == len(flows) == 4032
