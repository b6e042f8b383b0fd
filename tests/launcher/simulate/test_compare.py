"""`topoopt compare`, and a plan on another architecture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.refusals import named
from support.small_op_graphs import graph, operator

from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.simulate.compare_plot import BarChart

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = ("--servers", "6", "--degree", "4", "--bandwidth", "25Gbps")
QUICK = ("--rounds", "1", "--evaluations", "10")


def test_a_table_and_a_picture(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "compare.svg"
    names = ("--architectures", "topoopt,fat-tree,sip-ml", "--plot", str(picture))
    assert main(["compare", str(op_graph_file), *CLUSTER, *QUICK, *names]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in names[1].split(",")] == [
        "topoopt",
        "fat-tree",
        "sip-ml",
    ]
    assert out.startswith(
        "assumed: chain, 64 samples per iteration, 6 servers, each with 1 x a100 and 4 duplex "
        "ports of 25 Gb/s; strategy space all\n"
    )
    drawn = picture.read_text()
    assert drawn.lstrip().startswith("<?xml")
    assert drawn.count("<!-- no price -->") == 2, "sip-ml has neither a cost nor a value for it"


def test_all_architectures_come_with_the_fastest_first_and_a_legend(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(op_graph_file), *CLUSTER, *QUICK]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    for word in ("TopoOpt prices", "tax", "strategy"):
        assert any(line.startswith(f"{word}: ") for line in lines)
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["architectures"]
    names = [line.split()[0] for line in lines if " Gb/s " in line]
    order = sorted(rows, key=lambda row: row["iteration_s"])
    assert names == [row["architecture"] for row in order]


def test_a_slow_architecture_flattens_no_other_bar() -> None:
    assert BarChart("iteration (ms)", [0.3, 120.0, None]).is_logarithmic
    assert not BarChart("iteration (ms)", [0.3, 0.6]).is_logarithmic
    assert not BarChart("cost", [None]).is_logarithmic


def test_json_is_one_object(op_graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("--architectures", "ideal-switch,topoopt", "--json")
    assert main(["compare", str(op_graph_file), *CLUSTER, *QUICK, *names]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [entry["architecture"] for entry in figures["architectures"]] == [
        "ideal-switch",
        "topoopt",
    ]
    assert all(entry["iteration_s"] > 0 for entry in figures["architectures"])
    assert figures["equal_cost_fat_tree_gbps"] > 0


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (("--architectures", "torus,fattree"), ("architecture", "fattree")),
        (("--architectures", "torus,torus"), ("architectures", "torus,torus")),
        (("--plot", "picture.bmp"), ("plot", "picture.bmp")),
        (("--plot", "/nowhere/at/all.png"), ("folder",)),
        (("--accelerator", "abacus"), ("accelerator", "abacus")),
        (
            ("--architectures", "topoopt,torus", "--same-time", "hx2mesh"),
            ("same-time", "hx2mesh"),
        ),
        (
            ("--same-time", "topoopt", "--level", "packet"),
            ("same-time", "--same-time", "--level"),
        ),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...],
    tokens: tuple[object, ...],
    op_graph_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", str(op_graph_file), *CLUSTER, *options]) == 2
    err = capsys.readouterr().err
    assert named(err, *tokens)
    assert err.count("\n") == 1


def test_an_odd_number_of_ports_in_all_leaves_one_dark(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ("--servers", "5", "--degree", "3", "--bandwidth", "10Gbps")
    assert main(["compare", str(op_graph_file), *shape, *QUICK, "--architectures", "topoopt"]) == 0
    out = capsys.readouterr().out
    assert named(out, "1 of 15 ports", "dark")


def test_a_plan_on_another_architecture(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    assert main(["plan", str(op_graph_file), *CLUSTER, *QUICK, "-o", str(plan)]) == 0
    capsys.readouterr()
    simulate = ("simulate", str(plan), "--model", str(op_graph_file), "--architecture")
    assert main([*simulate, "fat-tree", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completion_s"] > 0
    assert main([*simulate, "fattree"]) == 2
    assert named(capsys.readouterr().err, "architecture", "fattree")
    packets = ("--level", "packet", "--transport", "roce")
    for level in ((), packets):
        assert main([*simulate, "sip-ml", *level, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["complete"]
        assert result["completion_s"] > 0


def test_architectures_are_compared_packet_by_packet_too(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", str(op_graph_file), *CLUSTER, *QUICK, "--json", "--architectures"]
    names = "topoopt,ideal-switch,ocs-reconfig"
    assert main([*command, names]) == 0
    flow = json.loads(capsys.readouterr().out)["architectures"]
    assert main([*command, names, "--level", "packet", "--transport", "roce"]) == 0
    packet = json.loads(capsys.readouterr().out)["architectures"]
    for fluid, queued in zip(flow, packet, strict=True):
        assert queued["architecture"] == fluid["architecture"]
        assert queued["cost"] == fluid["cost"]
        assert queued["iteration_s"] > 0.9 * fluid["compute_s"]
    assert main([*command, names, "--transport", "roce"]) == 2
    assert "level: transport needs --level packet" in capsys.readouterr().err


def test_what_an_architecture_cannot_be_is_a_note(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = ("--servers", "8", "--degree", "2", "--bandwidth", "25Gbps", *QUICK)
    command = ["compare", str(op_graph_file), *ring, "--architectures"]
    assert main([*command, "topoopt,kautz,torus"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "Gb/s  " in line] == [
        "topoopt",
        "torus",
    ]
    assert out.splitlines()[-1].startswith("note: not kautz: degree: 2 is too small for a kautz")
    assert main([*command, "kautz,torus", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["architecture"] for row in found["architectures"]] == ["torus"]
    assert found["impossible"].keys() == {"kautz"}
    assert main([*command, "kautz"]) == 2, "nothing is left to show"
    assert named(capsys.readouterr().err, "degree", 2, "kautz")


def test_costs_are_by_one_list_of_prices(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", str(op_graph_file), *CLUSTER, *QUICK, "--architectures", "torus"]

    def costs(*more: str) -> list[str]:
        assert main([*command, *more]) == 0
        out = capsys.readouterr().out
        (row,) = (line for line in out.splitlines() if line.startswith("  torus "))
        name = {(): "TopoOpt"}.get(more, "HammingMesh")
        assert [line.split(" prices: ")[0] for line in out.splitlines() if " prices: " in line] == [
            name
        ]
        return row.split()

    assert main([*command, "--json"]) == 0
    (torus,) = json.loads(capsys.readouterr().out)["architectures"]
    for arguments, field in (((), "cost"), (("--prices", "hammingmesh"), "cable_cost")):
        *_, cost, per_mdollar, _ = costs(*arguments)
        assert cost == f"${torus[field] / 1000:,.1f}k"
        expected = 1e6 / (torus["iteration_s"] * torus[field])
        assert float(per_mdollar.replace(",", "")) == pytest.approx(expected, rel=1e-3)


def test_the_cheaper_way_to_the_same_time_by_either_list_of_prices(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ("--servers", "16", "--degree", "4", "--bandwidth", "25Gbps", *QUICK)
    command = ["compare", str(op_graph_file), *cluster, "--architectures", "topoopt,hx2mesh"]
    command += ["--same-time", "topoopt"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert ", TopoOpt prices: " in out
    assert "HammingMesh prices" not in out
    assert "note: hx2mesh: " in out
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    same, placement = found["same_time"], found["placements"]["hx2mesh"]
    assert same["target_s"] == pytest.approx(found["architectures"][0]["iteration_s"])
    for row in same["architectures"]:
        assert row["iteration_s"] <= same["target_s"] * 1.001
    assert same["cheapest"].keys() == {"cost", "cable_cost"}
    mesh = found["architectures"][1]
    assert mesh["iteration_s"] <= placement["without_placement_s"]
    assert sorted(placement["order"]) == list(range(16))


def test_plan_and_compare_price_the_same_job(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (str(op_graph_file), *CLUSTER, *QUICK, "--mode", "best", "--routing", "single", "--json")
    assert main(["plan", *job, "-o", str(tmp_path / "plan.json")]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["compare", *job, "--architectures", "topoopt"]) == 0
    compared = json.loads(capsys.readouterr().out)
    for name in ("batch_size", "servers", "degree", "link_gbps", "accelerator"):
        assert planned[name] == compared[name], name
    (row,) = compared["architectures"]
    assert row["iteration_s"] <= planned["predicted"]["iteration_s"] * (1 + 1e-9)


@pytest.mark.parametrize("space", ["data-parallel", "samples", "pipeline"])
def test_every_strategy_space_is_compared(
    space: str, op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("compare", str(op_graph_file), *CLUSTER, *QUICK, "--strategy-space", space)
    assert main([*command, "--architectures", "topoopt,torus", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["architectures"]
    assert all(row["iteration_s"] > 0 for row in rows)


def test_a_model_that_cannot_be_split_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = graph(
        operator("only", flops=10**9, parameters=64, output=8, splittable=False), model="whole"
    )
    path = tmp_path / "opgraph.json"
    whole.save(path)
    assert main(["compare", str(path), *CLUSTER, *QUICK, "--architectures", "ideal-switch"]) == 0
    assert named(capsys.readouterr().out, "whole", "split", "64 samples")
