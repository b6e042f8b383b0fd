"""`topoopt plan --failures`, plans without them, and `--parallel-links`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from support.plans import make_ring_plan
from support.refusals import named

from torch_topoopt.launcher import documents
from torch_topoopt.launcher.main import main
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CLUSTER = ("--servers", "6", "--degree", "4", "--bandwidth", "25Gbps")
QUICK = ("--strategy-space", "data-parallel")


def test_a_plan_has_its_failures_and_shows_what_the_worst_cost(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    command = ["plan", str(op_graph_file), *CLUSTER, *QUICK, "-o", str(output)]
    assert main([*command, "--failures"]) == 0
    plan = Plan.load(output)
    assert plan.failures is not None
    assert len(plan.failures.links) == 12
    out = capsys.readouterr().out
    assert "Worst single-failure impact" in out
    for word in ("any cable", "any server", "AllReduce bandwidth left"):
        assert word in out
    size = ("--servers", "9", "--degree", "4", "--bandwidth", "25Gbps")
    command = ["plan", str(op_graph_file), *size, *QUICK, "-o", str(output)]
    assert main([*command, "--failures", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["failures"]
    assert summary["links"]["losses"] == 18
    assert summary["servers"]["losses"] == 9
    for kind in ("links", "servers"):
        assert summary[kind]["disconnecting"] == 0
        assert 0.5 <= summary[kind]["all_reduce_bandwidth"] < 1
        assert summary[kind]["busiest_link_s"] > summary["busiest_link_s"]


def test_a_plan_may_do_without_failures(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "with.json", tmp_path / "without.json"]
    for file, option in zip(files, ([], ["--no-failures"]), strict=True):
        command = ["plan", str(op_graph_file), *CLUSTER, *QUICK, "-o", str(file), "--json"]
        assert main([*command, *option]) == 0
        assert "failures" not in json.loads(capsys.readouterr().out)
    planned, bare = map(Plan.load, files)
    assert bare.failures is None
    assert replace(planned, failures=None) == bare


def test_parallel_links_are_asked_for(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    size = ("--servers", "3", "--degree", "4", "--bandwidth", "25Gbps")
    command = ["plan", str(op_graph_file), *size, *QUICK, "-o", str(output)]
    assert main(command) == 2
    assert named(capsys.readouterr().err, "parallel")
    assert not output.exists()
    assert main([*command, "--parallel-links"]) == 0
    assert len(Plan.load(output).network.links) == 12


def test_an_emulated_fabric_refuses_a_plan_with_links_of_unequal_rates(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    command = ["plan", str(op_graph_file), *CLUSTER, *QUICK, "--no-failures", "-o", str(output)]
    assert main(command) == 0
    plan = Plan.load(output)
    rates = ((25.0, 25.0, 50.0, 50.0),) * 6
    replace(plan, cluster=replace(plan.cluster, port_gbps=rates)).validate().save(output)
    script = tmp_path / "train.py"
    script.write_text("")
    capsys.readouterr()
    assert main(["run", "--plan", str(output), str(script)]) == 2
    assert named(capsys.readouterr().err, "cluster.port_gbps", "alike")


def test_many_servers_have_failures_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_ring_plan(4)
    monkeypatch.setattr(documents, "_MOST_WITH_FAILURES", 3)
    assert documents.with_failures(plan, documents.without_progress).failures is None
    asked = documents.with_failures(plan, documents.without_progress, asked=True)
    assert asked.failures is not None
