"""Every verb that reads a file says what it is where it was meant for another verb or program."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from torch_topoopt.launcher import completion
from torch_topoopt.launcher.main import main
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import file_kinds
from torch_topoopt.profile.chakra_format import ChakraNode, ChakraTrace, NodeType, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.plan import Plan

PLAN, GRAPH, CONFIG = "plan.json", "graph.json", "config.json"
KINETO, EXECUTION = "kineto.json", "execution.json"
SIMGRID, NCCL, EXO, RING = "simgrid.xml", "topology.xml", "exo.json", "ring.json"
CLUSTER, CHAKRA, INFRA, STATE = "lab.yaml", "rank.0.et", "infra.json", "state.json"

DESCRIBED = {
    PLAN: "but this is a Plan; `topoopt run --plan`",
    GRAPH: "but this is an OpGraph; `topoopt plan`",
    CONFIG: "but this is a Hugging Face model configuration; `topoopt plan`",
    KINETO: "but this is a trace of PyTorch's profiler (Kineto); `topoopt profile --from-trace`",
    EXECUTION: "but this is a PyTorch execution trace; `topoopt profile --from-trace`",
    SIMGRID: "but this is a platform of SimGrid; no command reads it",
    NCCL: "but this is a topology of NCCL",
    EXO: "but this is a list of addresses for MLX's ring",
    RING: "but this is a list of addresses for MLX's ring",
    CHAKRA: "but this is a Chakra trace; `topoopt profile --from-trace`",
    INFRA: "but this is an InfraGraph; `topoopt plan` and `discover` read it as --server-file",
    STATE: "but this is a state of exo (GET /state); `topoopt discover --hostfile` and --cluster",
    CLUSTER: "but this is a cluster file; `topoopt run`",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring_plan: Callable[..., Plan]) -> Path:
    monkeypatch.chdir(tmp_path)
    ring_plan(4).save(PLAN)
    graph = {f.name: [] for f in dataclasses.fields(OpGraph)} | {"version": OpGraph.VERSION}
    contents: dict[str, Any] = {
        GRAPH: graph,
        CONFIG: {"model_type": "llama", "hidden_size": 4096},
        KINETO: {"schemaVersion": 1, "traceEvents": []},
        EXECUTION: {"schema": "1.1.1-chakra.0.0.4", "nodes": []},
        EXO: ["10.0.0.1:5000", "10.0.0.2:5000"],
        RING: [["10.0.0.1:5000"], ["10.0.0.2:5000"]],
        INFRA: {"devices": [], "instances": [], "edges": []},
        STATE: {"topology": {}, "nodeNetwork": {}},
        SIMGRID: '<platform version="4.1"/>',
        NCCL: '<system version="1"/>',
        CLUSTER: "version: 1\nname: lab\nservers:\n  - {name: a}\n",
    }
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, encoding="utf-8")
    node = ChakraNode(0, "forward a", NodeType.COMP)
    (tmp_path / CHAKRA).write_bytes(encode(ChakraTrace((node,), attributes={"rank": 0})))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "file"),
    [
        *(("plan --servers 4", name) for name in (PLAN, KINETO, EXECUTION, CLUSTER, INFRA)),
        *((words, CHAKRA) for words in ("plan --servers 4", "simulate", "simulate --flows")),
        *(("doctor --cluster", name) for name in (CHAKRA, INFRA)),
        *(("plan vgg:tiny --servers 4 --server-file", name) for name in (CHAKRA, PLAN, EXO)),
        *(("export --check", name) for name in (CHAKRA, STATE)),
        ("alltoall --servers 4 --bandwidth 1Gbps --matrix", CHAKRA),
        ("discover --hostfile", CHAKRA),
        ("profile --batch-size 2 --from-trace", NCCL),
        ("compare --servers 4", PLAN),
        *(("simulate", name) for name in (GRAPH, CONFIG, CLUSTER)),
        *(("simulate --flows", name) for name in (SIMGRID, PLAN)),
        ("simulate --jobs", PLAN),
        ("simulate --routed-jobs", PLAN),
        *(("doctor --cluster", name) for name in (NCCL, EXO, RING, PLAN)),
        ("plan vgg:tiny --cluster", NCCL),
        ("run --servers 4", PLAN),
        ("run --plan", GRAPH),
        ("profile --batch-size 2 --from-trace", PLAN),
        ("export --check", SIMGRID),
        ("export --to dot", GRAPH),
        ("assign --tors 2 --spines 2 --flows", PLAN),
        ("allocate --boards 2x2 --jobs", PLAN),
        ("discover --hostfile", PLAN),
        ("plan vgg:tiny --servers 4 --strategy", GRAPH),
        ("plan vgg:tiny --servers 4 --costs", PLAN),
        ("topology --servers 4 --demand", PLAN),
        ("controller --token-file t --state-file s --network", PLAN),
        ("report", GRAPH),
        ("timeline", CONFIG),
        (f"diff {PLAN}", GRAPH),
        ("fabric up lab --plan", GRAPH),
    ],
)
def test_a_file_for_another_reader_is_named(
    words: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*words.split(), file]
    if words == "run --plan":
        given.append("train.py")
    assert main(given) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{file}: expected a" in error
    assert DESCRIBED[file] in error


def test_the_commands_that_are_named_exist() -> None:
    kinds = [shape.kind for shape in file_kinds._OBJECTS]
    kinds += [*file_kinds._XML_ROOTS.values(), *file_kinds._MAGIC.values()]
    kinds += [file_kinds._CHAKRA, file_kinds._CLUSTER, file_kinds._HOSTFILE, file_kinds._FLOWS]
    said = "; ".join([kind.readers for kind in kinds] + [*file_kinds._SOURCES.values()])
    named = re.findall(r"`topoopt ([a-z-]+)(?: ([a-z]+))?(?:[^`]*? (--[a-z-]+))?", said)
    assert len(named) > 10
    for verb, sub_verb, option in named:
        known = completion.parser_of(verb, sub_verb)._option_string_actions
        assert not option or option in known, f"{verb} {option}"


def test_the_standard_input_of_doctor_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / NCCL).open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert main(["doctor", "--cluster", "-"]) == 2
    assert DESCRIBED[NCCL] in capsys.readouterr().err


def test_a_plan_with_a_wrong_field_is_still_a_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads((folder / PLAN).read_text())
    del plan["seed"]
    (folder / PLAN).write_text(json.dumps(plan))
    assert main(["simulate", PLAN]) == 2
    assert capsys.readouterr().err == f"topoopt: error: {PLAN}: seed: missing field\n"
