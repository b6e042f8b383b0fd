"""The testbed on emulated hosts: results, bytes and losses; never times. Most of it needs root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fabric.netns_fixtures import own_state, require_namespaces
from support.refusals import refused
from testbed import networks
from testbed.job import measure
from testbed.workload import MODEL_BYTES, SLOWER, workload_of

from figures import command
from figures.cell import Cell
from figures.cells import testbed
from figures.workers import run_in_processes
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.links.errors import FabricError

SMALL: dict[str, Any] = {"servers": 4, "degree": 3, "gbps": 0.1, "seed": 0}
LEAST_BYTES = 4


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the fabrics of this test."""
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    return tmp_path / "state" / "topoopt" / "fabrics"


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_sums_and_exchanges_are_right_on_every_network(network: str, hosts: Path) -> None:
    row = testbed.iteration(
        model="dlrm",
        network=network,
        **SMALL,
        iterations=1,
        batch=64,
        traffic_ratio=0.5,
        backends=list(networks.BACKENDS),
    )
    assert set(row["backends"]) == set(networks.BACKENDS)
    for found in row["backends"].values():
        assert found["wrong"] == 0
        assert found["iteration_s"] > 0
        assert found["predicted_s"] > row["compute_s"]
    assert row["traffic_ratio"] == pytest.approx(0.5, rel=1e-3)
    assert not list(hosts.iterdir())


def test_links_that_wait_for_one_another_at_a_switch_are_neither_lost_nor_slow(
    hosts: Path,
) -> None:
    """What one of them sends waits for a second and more in the queue of all."""
    workload = workload_of("dlrm", 12, batch=512, traffic_ratio=0.78)
    plan = networks.plan_for(workload, "Switch 25", 4, 0.01)
    with networks.wired(plan, "Switch 25", 0.01) as testbed_hosts:
        assert measure(testbed_hosts, workload, "topoopt", 1).wrong == 0
        logs = Path(testbed_hosts.folder).glob("rank*.log")
        said = "".join(log.read_text(encoding="utf-8") for log in logs)
    assert "topoopt WARNING" not in said, said


def test_links_carry_the_planned_bytes(hosts: Path) -> None:
    row = testbed.iteration(
        model="resnet50", network="TopoOpt", **SMALL, iterations=2, backends=["topoopt"]
    )
    assert row["backends"]["topoopt"]["wrong"] == 0
    assert row["backends"]["topoopt"]["bytes_apart"] < 0.005


def test_training_is_the_same_on_every_network_and_reaches_its_accuracy(hosts: Path) -> None:
    rows = [
        testbed.accuracy(network=network, **SMALL, steps=60, backend="topoopt")
        for network in networks.NETWORKS
    ]
    first = [(step, loss) for step, _, _, loss in rows[0]["points"]]
    for row in rows:
        assert row["reached_90_s"] is not None
        for (step, loss), (at, _, _, found) in zip(first, row["points"], strict=True):
            assert at == step
            assert found == pytest.approx(loss, rel=0.05, abs=0.02), step


def test_the_panel_has_the_circuits_of_the_plan(hosts: Path) -> None:
    row = testbed.wiring(**SMALL, model="vgg")
    assert len(row["circuits"]) == 2 * len(row["cables"]) == 4 * 3
    for ring in row["rings"]:
        assert sorted(ring) == [0, 1, 2, 3]


def test_a_cell_that_is_ended_leaves_no_hosts(hosts: Path) -> None:
    endless = Cell.of(
        "figures.cells.testbed:accuracy",
        **{**SMALL, "network": "Switch 25", "steps": 10**6, "backend": "gloo"},
        exclusive=True,
        limit_s=20.0,
    )
    ((_, result),) = run_in_processes([endless], 1)
    assert result.error == "not done after 20 s"
    assert hosts.is_dir(), "the cell had not come so far"
    assert not list(hosts.iterdir())


def test_without_namespaces_a_figure_is_left_out_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise FabricError("netns: needs root for network namespaces")

    monkeypatch.setattr(netns_kernel, "require", refuse)
    assert command.main(["19", "--quick", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "figures: left out 19: netns: needs root for network namespaces"
    assert error[1:] == [
        "all cells: 0 s of processor time, 0 s one by one",
        "0 rows, 0 cells computed",
        f"{tmp_path}/table.json: no row has a paper's number",
    ]


@pytest.mark.parametrize("model", ["vgg", "resnet50", "bert", "candle", "dlrm"])
def test_a_reduced_model_keeps_its_proportions(model: str) -> None:
    workload = workload_of(model, 12)
    apart = abs(workload.gradient_bytes - MODEL_BYTES)
    assert apart <= LEAST_BYTES * len(workload.stages)
    assert workload.stretched * workload.smaller == pytest.approx(SLOWER)
    assert (workload.exchanged_bytes > 0) == (model == "dlrm")
    assert workload.compute_s > 0


def test_a_switch_joins_all_hosts_and_its_rate_is_that_of_all_links() -> None:
    workload = workload_of("vgg", 4)
    times = {}
    for network in networks.NETWORKS:
        plan = networks.plan_for(workload, network, 3, 0.01)
        assert len(plan.network.links) == 4 * 3
        times[network] = networks.predicted(workload, plan, network, "topoopt", 3, 0.01)
    assert times["TopoOpt"] == pytest.approx(times["Switch 100"], rel=1e-3)
    assert times["Switch 25"] > times["Switch 100"]
    with refused(ValueError, "network", "Ring", "TopoOpt"):
        networks.plan_for(workload, "Ring", 3, 0.01)
