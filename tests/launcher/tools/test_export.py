"""`topoopt export`: every format, the check, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from conftest import make_op_graph
from support.plans import make_ring_plan
from support.refusals import named
from support.small_op_graphs import decoder

from torch_topoopt.launcher.main import main
from torch_topoopt.tools.export.formats import FORMATS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    make_op_graph().save(folder / "graph.json")
    assert main(["plan", f"{folder}/graph.json", "--servers", "4", "--degree", "2", "--evaluations",
                 "50", "-o", f"{folder}/plan.json", "--json"]) == 0  # fmt: skip
    decoder(4).save(folder / "decoder.json")
    assert main(["plan", f"{folder}/decoder.json", "--servers", "4", "--degree", "2", "--layout",
                 "sharding=parameters", "-o", f"{folder}/layout.json", "--json"]) == 0  # fmt: skip
    assert main(["advise", "--servers", "4", "--degree", "2", "--bandwidth", "10Gbps", "--mode",
                 "paper", "-o", f"{folder}/cabling"]) == 0  # fmt: skip
    return folder


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_is_written(
    planned: Path, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = "layout" if to in ("torchtitan", "megatron", "deepspeed", "accelerate") else "plan"
    arguments = ["export", f"{planned}/{plan}.json", "--to", to, "--json"]
    arguments += ["--cluster", f"{planned}/cabling/cluster.yaml"]
    capsys.readouterr()
    assert main([*arguments, "-o", f"{tmp_path}/out"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == to
    assert all((tmp_path / path).stat().st_size for path in found["files"])
    assert (tmp_path / "out").is_dir() == FORMATS[to].is_folder


def test_one_file_is_printed(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["export", f"{planned}/plan.json", "--to", "dot"]) == 0
    assert capsys.readouterr().out.startswith("graph topoopt {\n")


def test_the_limits_of_astra_sim_are_printed(
    planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["export", f"{planned}/plan.json", "--to", "astra-sim", "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "ns-3 sends on shortest paths" in printed
    assert (tmp_path / "limits.txt").read_text().rstrip() in printed


def test_msccl_files_are_checked(
    planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", f"{planned}/plan.json", "--to", "msccl", "-o", str(tmp_path)]) == 0
    path = tmp_path / "allreduce.xml"
    capsys.readouterr()
    assert main(["export", "--check", str(path)]) == 0
    assert "right: topoopt_rings, allreduce of 4 GPUs on 2 channels" in capsys.readouterr().out
    assert main(["export", "--check", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["right"], found["gpus"], found["channels"]) == (True, 4, 2)
    path.write_text(path.read_text().replace('type="rrcs"', 'type="rcs"'))
    assert main(["export", "--check", str(path), "--json"]) == 1
    assert named(json.loads(capsys.readouterr().out)["problem"], "lacks")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ((), ("plan", "to", "missing")),
        (("plan.json", "--to", "msccl"), ("output", "msccl")),
        (("plan.json", "--to", "dot", "--json"), ("output", "--json")),
        (("plan.json", "--to", "dot", "--check", "x"), ("check", "file")),
        (("nowhere.json", "--to", "dot"), ("nowhere.json",)),
        (("--check", "nowhere.xml"), ("check", "nowhere.xml")),
        (
            ("--check", "plan.json"),
            ("--check", "plan.json", "MSCCL"),
        ),
        (("plan.json", "--to", "mlx"), ("mlx", "names")),
        (("plan.json", "--to", "flexflow"), ("--model",)),
        (("plan.json", "--to", "dot", "-o", "no/such"), ("output", "no/such")),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    tokens: tuple[object, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_ring_plan(4).save(tmp_path / "plan.json")
    assert main(["export", *arguments]) == 2
    assert named(capsys.readouterr().err, *tokens)
