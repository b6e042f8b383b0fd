"""`topoopt advise`: what it prints, writes, and refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.launcher.main import main
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = ("--bandwidth", "200Gbps", "--mode", "paper")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["advise", *ARGUMENTS, *arguments]) == 0
    return capsys.readouterr().out


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(run(capsys, *arguments, "--json"))
    return value


def test_six_desktops_in_a_ring(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cabling"
    text = run(capsys, "--servers", "6", "--degree", "2", "-o", str(folder))
    assert "a ring\n" in text
    assert "the loss of any one cable disconnects nobody" in text
    assert "3 ports, cabled: AllReduce 1.50x as fast" in text
    assert f"topoopt run --cluster {folder}/cluster.yaml --nnodes 6 train.py" in text
    names = ("cabling.svg", "cabling.html", "cables.csv", "labels.csv", "cluster.yaml", "plan.json")
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert len(load_cluster(str(folder / "cluster.yaml")).cables) == 6
    plan = Plan.load(folder / "plan.json")
    assert plan.failures is not None


@pytest.mark.parametrize(
    ("arguments", "prices"), [([], "TopoOpt"), (["--prices", "hammingmesh"], "HammingMesh")]
)
def test_costs_are_by_one_list_of_prices(
    capsys: pytest.CaptureFixture[str], arguments: list[str], prices: str
) -> None:
    text = run(capsys, "--servers", "4", "--degree", "2", *arguments)
    lines = text.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  cost, ")] == [prices]
    assert [line.split()[0] for line in lines if " prices: " in line] == [prices]


@pytest.mark.parametrize(
    ("servers", "ports", "said"),
    [
        ("2", "1", "the loss of C01 disconnects the servers"),
        ("2", "4", "a pair: all cables join the same two servers"),
        ("4", "3", "a full mesh: every server has a cable to every other\n"),
        ("4", "5", "a full mesh: every server has a cable to every other, some cables in parallel"),
        ("5", "3", "1 of 15 ports stays dark"),
        ("20", "3", "where each port leads"),
    ],
)
def test_other_shapes(
    capsys: pytest.CaptureFixture[str], servers: str, ports: str, said: str
) -> None:
    assert said in run(capsys, "--servers", servers, "--degree", ports)


def test_json_has_cables_times_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(capsys, "--servers", "4", "--degree", "2", "--sizes", "1MB,1GB")
    assert len(found["cables"]) == 4
    assert found["sizes"] == [1e6, 1e9]
    assert [(a["kind"], a["ports"]) for a in found["alternatives"]] == [
        *(("cables", 2), ("cables", 3)),
        *(("switch", 1), ("switch", 2)),
    ]
    assert all(a["cost"] > 0 and a["cable_cost"] > 0 for a in found["alternatives"])
    assert found["cable_loss"] == {"disconnecting": [], "all_reduce_bandwidth": 0.5}
    assert found["model"] is None
    assert sorted(found["rings"][0]) == [0, 1, 2, 3]


def test_a_model_has_iterations(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "vgg:tiny", "--evaluations", "20")
    found = results(capsys, "--servers", "3", "--degree", "2", *model)
    assert all(a["iteration_s"] > 0 for a in found["alternatives"])
    assert "iteration" in run(capsys, "--servers", "3", "--degree", "2", *model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--degree", "2"), "servers: missing"),
        (("--servers", "3", "--degree", "1"), "degree: 1 port of each server joins two"),
        (("--servers", "3", "--degree", "2", "--names", "a", "b"), "names: 2 for 3 servers"),
        (("--servers", "2", "--degree", "1", "--names", "a", "a"), "--names: duplicate name 'a'"),
        (("--servers", "3", "--degree", "2", "--interfaces", "a"), "interfaces: 1 for 2 ports"),
        (("--servers", "3", "--degree", "2", "--sizes", "0B"), "sizes: 0B has one"),
        (("--servers", "3", "--degree", "2", "--subnet", "x"), "subnet: 'x' is not a network"),
        (("--servers", "3", "--degree", "2", "--batch-size", "8"), "batch-size, evaluations"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["advise", *ARGUMENTS, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    arguments = ("--servers", "3", "--degree", "2", "-o", str(tmp_path / "taken"))
    assert main(["advise", *ARGUMENTS, *arguments]) == 2
    assert "output: " in capsys.readouterr().err
