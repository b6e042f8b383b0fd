"""benchmarks/simulators.py: what it measures is what it says."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import simulators
from support.refusals import refused

from references import flow_workloads, simulator_peers
from torch_topoopt.sim import run_flows

if TYPE_CHECKING:
    from pathlib import Path


def test_a_row_has_the_exact_time_and_no_peer_where_none_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = simulators.CASES["ring-16"]
    path = str(tmp_path / "flows.txt")
    simulators.write_workload("ring-16", path)
    figures = simulators.measure(path, simulators.Run("ring-16", None))
    row = simulators.row_of(simulators.Run("ring-16", None), figures)
    assert row["completion_s"] * 1e3 == pytest.approx(case.exact_ms, rel=1e-9)
    assert row["peers"] == []
    simulators.show(row)
    assert capsys.readouterr().out.count("15.03000") == 2


def test_peers_stand_below_with_our_speed_as_a_multiple_of_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {
        "completion_s": 0.0163,
        "complete": True,
        "flows": 32512,
        "events": 1,
        "packet_hops": 6_600_000,
        "cpu_seconds": 0.5,
        "peak_memory_mb": 80.0,
    }
    row = simulators.row_of(simulators.Run("ring-128", "constant"), figures)
    assert [peer["simulator"] for peer in row["peers"]] == ["htsim"]  # its RoCE: no control either
    assert row["peers"][0]["faster"] == pytest.approx(13.2 / 3.3)
    simulators.show(row)
    ours, htsim = capsys.readouterr().out.splitlines()
    assert ours.split()[1:3] == ["packet/constant", "ours"]
    assert htsim.split()[-1] == "4.0"
    dctcp = simulators.row_of(simulators.Run("ring-128", "dctcp"), figures)
    assert [peer["simulator"] for peer in dctcp["peers"]] == ["htsim", "FlexNetPacket", "ns-3"]
    flow = simulators.row_of(simulators.Run("ring-128", None), {**figures, "packet_hops": 0})
    assert [round(peer["faster"], 3) for peer in flow["peers"]] == [0.046, 0.006]


def test_every_recorded_run_is_of_a_workload_and_transport_of_ours() -> None:
    for peer in simulator_peers.RECORDED:
        assert peer.workload in simulators.CASES
        assert peer in simulator_peers.recorded_runs(peer.workload, peer.level, peer.transport)


def test_ns3_is_measured_on_the_flows_of_the_file(tmp_path: Path) -> None:
    """With a fake interpreter: its output stands in the row."""
    printed = {"completion_s": 0.015, "complete": True, "packet_hops": 300, "cpu_seconds": 0.5}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps({**printed, 'peak_memory_mb': 7.0})}'\n")
    python.chmod(0o755)
    run = simulators.Run("ring-16", "constant")
    peer = simulators.run_ns3(str(python), "flows.txt", run)
    assert (peer.completion_ms, peer.packet_hops_per_s, peer.memory_mb) == (15.0, 600.0, 7.0)
    figures = {"packet_hops": 300, "cpu_seconds": 0.1, "completion_s": 0.015}
    row = simulators.row_of(run, figures, (peer,))
    assert row["peers"][-1]["faster"] == pytest.approx(5.0)
    assert not simulators.has_ns3(str(tmp_path / "missing"))
    python.write_text("#!/bin/sh\necho no such module >&2; exit 3\n")
    assert not simulators.has_ns3(str(python))
    with refused(RuntimeError, "ring-16", "module"):
        simulators.run_ns3(str(python), "flows.txt", run)


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


def test_shortest_steps_are_mirror_images() -> None:
    steps = flow_workloads.shortest_steps(16, (1, 5))
    assert steps[0] == [0]
    for distance in range(1, 16):
        path = steps[distance]
        assert path[0] == 0
        assert path[-1] == distance
        assert {(b - a) % 16 for a, b in pairwise(path)} <= {1, 5, 11, 15}
        if distance != 8:
            assert steps[16 - distance] == [-node % 16 for node in path]
    # 1 5 11 15, then 2 4 6 10 12 14 as sums of two of these, of three what is odd, and 8
    assert sorted(len(path) - 1 for path in steps) == [0, *[1] * 4, *[2] * 6, *[3] * 4, 4]


def test_an_iteration_of_dlrm_moves_the_bytes_of_its_layers_and_tables() -> None:
    hosts, layers = 8, ((16, 32), (32, 1))
    workload = flow_workloads.dlrm_iteration(hosts, (1, 3), tables=4, samples=2, layers=layers)
    transfers = 2 * 4 * (hosts - 1)
    embeddings, all_reduce = workload.flows[:transfers], workload.flows[transfers:]
    assert {flow.size_bytes for flow in embeddings} == {2 * 128 * 4}
    assert {flow.source for flow in embeddings[: transfers // 2]} == {0, 2, 4, 6}
    assert {flow.target for flow in embeddings[transfers // 2 :]} == {0, 2, 4, 6}
    gradients = 4 * (17 * 32 + 33 * 1)
    assert sum(flow.size_bytes for flow in all_reduce) == 2 * (hosts - 1) * (gradients // 4) * 4
    for flow in embeddings[transfers // 2 :] + all_reduce[:hosts]:
        arrived = [workload.flows[before].target for before in flow.after]
        assert arrived == [flow.source] * (3 if flow.source in {0, 2, 4, 6} else 4)
    measured = run_flows(workload.links, workload.flows, level="packet", transport="dctcp")
    assert measured.packet_hops == sum(len(flow.path) for flow in workload.flows)
