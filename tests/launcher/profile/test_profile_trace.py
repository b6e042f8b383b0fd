"""`topoopt profile --from-trace`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from support.refusals import named
from support.torch_traces import record

from torch_topoopt.launcher.main import main
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.profile.chakra_format import ChakraNode, ChakraTrace, NodeType, encode

if TYPE_CHECKING:
    from pathlib import Path


def test_a_chakra_trace_is_profiled_and_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = ChakraNode(0, "forward a", NodeType.COMP, duration_us=7)
    (tmp_path / "rank.0.et").write_bytes(encode(ChakraTrace((node,))))
    arguments = ("--from-trace", f"{tmp_path}/rank.0.et", "--batch-size", "4")
    assert main(["profile", *arguments, "-o", f"{tmp_path}/graph.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "rank"
    graph = OpGraph.load(tmp_path / "graph.json")
    assert graph.operators[0].measured[0].forward_s == 7e-6


def test_an_execution_trace_and_its_kineto_trace_are_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, x = torch.nn.Linear(16, 4), torch.randn(8, 16)
    execution, kineto = map(str, record(tmp_path, lambda: net(x).relu()))
    graph = f"{tmp_path}/graph.json"
    arguments = ("--batch-size", "8", "-o", graph, "--json")
    assert main(["profile", "--from-trace", execution, *arguments]) == 0
    assert not OpGraph.load(graph).operators[0].measured
    assert main(["profile", "--from-trace", kineto, execution, *arguments]) == 0
    assert OpGraph.load(graph).operators[0].measured[0].forward_s > 0
    network = ("--servers", "4", "--degree", "2", "--bandwidth", "10Gbps", "--evaluations", "10")
    assert main(["plan", graph, *network, "-o", f"{tmp_path}/plan.json"]) == 0
    capsys.readouterr()
    for files in ((execution, execution), (kineto, kineto), (execution, kineto, kineto)):
        assert main(["profile", "--from-trace", *files, *arguments]) == 2
        assert named(capsys.readouterr().err, "from-trace", "same run")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ((), ("MODEL", "missing")),
        (("--from-trace", "x.json"), ("batch-size", "missing")),
        (("--from-trace", "x.json", "--batch-size", "0"), ("batch-size", 1)),
        (("vgg", "--from-trace", "x.json"), ("from-trace", "MODEL")),
        (("--from-trace", "x.json", "--measure"), ("from-trace", "times")),
        (("--from-trace", "x.json", "--world-size", "2"), ("from-trace", "nothing")),
        (("--from-trace", "/no/x.json", "--batch-size", "1"), ("from-trace", "/no/x.json")),
        (("--from-trace", "bad.et", "--batch-size", "1"), ("Chakra", "empty")),
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
    (tmp_path / "bad.et").touch()
    assert main(["profile", *arguments]) == 2
    assert named(capsys.readouterr().err, *tokens)
