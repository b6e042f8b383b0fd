"""`topoopt plan --server-file`: a server as NCCL describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.nccl_topologies import dgx
from support.refusals import named
from support.small_op_graphs import chain

from torch_topoopt.launcher.main import main
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    chain(3).save("graph.json")
    (tmp_path / "nccl.xml").write_text(dgx())
    return tmp_path


def plan(*arguments: str) -> int:
    return main(["plan", "graph.json", "--server-file", "nccl.xml", *arguments])


def test_it_says_what_is_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--servers", "2", "--parallel-links", "--no-failures", "--evaluations", "10")
    assert plan(*quick) == 0
    assert named(capsys.readouterr().out, "nccl.xml", "NVLink", "mlx5_7", "slower eth0")
    cluster = Plan.load("plan.json").cluster
    assert (cluster.accelerators_per_server, cluster.inside_gbps) == (8, 3600)
    assert (cluster.degree, cluster.link_gbps) == (8, 400)
    given = ("--degree", "1", "--bandwidth", "100Gbps", "--accelerators-per-server", "4")
    assert plan(*quick, *given, "--inside-bandwidth", "900Gbps") == 0
    cluster = Plan.load("plan.json").cluster
    assert (cluster.accelerators_per_server, cluster.inside_gbps) == (4, 900)
    assert (cluster.degree, cluster.link_gbps) == (1, 100)


def test_it_is_refused_beside_a_cluster_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--cluster", "lab.yaml") == 2
    assert named(capsys.readouterr().err, "server-file", "cluster file")
