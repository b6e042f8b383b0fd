"""OpGraphs of execution traces that torch.profiler writes, alone and with the Kineto trace."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.refusals import refused
from support.torch_traces import record

from torch_topoopt.models import MODELS
from torch_topoopt.profile.execution_trace import load_execution_trace
from torch_topoopt.profile.kineto import load_trace
from torch_topoopt.profile.profiling import ProfileError
from torch_topoopt.profile.profiling import profile as traced_model

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 4


class Branches(torch.nn.Module):
    """Two heads read one tensor through views, and their results meet in a product of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(16, 32)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(16, 8) for _ in range(2))
        self.out = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = torch.relu(self.stem(x)).split(16, dim=-1)
        first, second = (head(part) for head, part in zip(self.heads, parts, strict=True))
        return (first + second) @ self.out.t()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    net, x = Branches(), torch.randn(BATCH, 16)
    return record(tmp_path_factory.mktemp("traces"), lambda: net(x), steps=2)


def test_operands_follow_the_tensors_and_views_are_no_operators(
    traces: tuple[Path, Path],
) -> None:
    graph = load_execution_trace(traces[0], BATCH)
    kinds = [operator.kind.removeprefix("aten::") for operator in graph.operators]
    assert kinds == ["linear", "relu", "linear", "linear", "add", "matmul", "sum"]
    producers = [[o.producer for o in operator.operands] for operator in graph.operators]
    assert producers == [[], [0], [1], [1], [2, 3], [4], [5]]
    half, head = 4 * BATCH * 16, 4 * BATCH * 8
    sizes = [[o.size_bytes for o in operator.operands] for operator in graph.operators]
    assert sizes == [[], [2 * half], [half], [half], [head, head], [head], [head]]
    parameters = [operator.parameter_gradient_bytes for operator in graph.operators]
    of_head = 4 * (16 * 8 + 8)
    assert parameters == [4 * (16 * 32 + 32), 0, of_head, of_head, 0, 4 * 64, 0]
    assert all(operator.splittable for operator in graph.operators)
    assert not any(operator.measured for operator in graph.operators)


def test_a_tensor_with_two_readers_is_shared(tmp_path: Path) -> None:
    net = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    x = torch.randn(BATCH, 8)

    def step() -> torch.Tensor:
        stem = net[0](x)
        return net[1](stem) * net[2](stem)

    _, one, other, product, _ = load_execution_trace(record(tmp_path, step)[0], BATCH).operators
    assert one.operands == other.operands
    assert one.operands[0].tensor > 0
    assert [o.tensor for o in product.operands] == [0, 0]


def test_times_come_from_the_kineto_trace_of_the_run(traces: tuple[Path, Path]) -> None:
    execution, kineto = traces
    linked = load_execution_trace(execution, BATCH, kineto).operators
    of_kineto = load_trace(kineto, BATCH).operators
    timed = {o.kind: o.measured[0].forward_s for o in of_kineto if o.kind == "aten::relu"}
    assert timed == {"aten::relu": linked[1].measured[0].forward_s}
    assert all(o.measured[0].forward_s > 0 and o.measured[0].backward_s > 0 for o in linked)
    assert sum(o.measured[0].backward_s for o in linked) == pytest.approx(
        sum(o.measured[0].backward_s for o in of_kineto)
    )


def test_a_kineto_trace_of_another_run_is_refused(
    traces: tuple[Path, Path], tmp_path: Path
) -> None:
    net, x = torch.nn.Linear(16, 2), torch.randn(BATCH, 16)
    _, other = record(tmp_path, lambda: torch.tanh(net(x)))
    with refused(ProfileError, "operation", other, "one run"):
        load_execution_trace(traces[0], BATCH, other)


def test_nodes_that_chakra_linked_have_times_and_kernels(
    traces: tuple[Path, Path], tmp_path: Path
) -> None:
    document = json.loads(traces[0].read_text())
    nodes: list[dict[str, Any]] = document["nodes"]
    last = max(node["id"] for node in nodes)
    for node in nodes:
        node["inclusive_dur"] = 100
    kernels = [
        {**node, "id": last + 1 + i, "ctrl_deps": node["id"], "cat": "kernel", "name": "gemm"}
        for i, node in enumerate(n for n in nodes if n["name"] == "aten::addmm")
    ]
    path = tmp_path / "linked.json.gz"

    def written(nodes: list[dict[str, Any]]) -> Path:
        path.write_bytes(gzip.compress(json.dumps({**document, "nodes": nodes}).encode()))
        return path

    of_host = load_execution_trace(written(nodes), BATCH).operators
    assert of_host[1].measured[0].forward_s == pytest.approx(100e-6)
    stem, relu, *_ = load_execution_trace(written([*nodes, *kernels]), BATCH).operators
    assert stem.measured[0].forward_s == pytest.approx(100e-6)
    assert relu.measured[0].forward_s == 0


@pytest.mark.parametrize("name", ["gpt", "resnet50", "dlrm"])
def test_parameters_and_flops_are_those_of_the_traced_model(name: str, tmp_path: Path) -> None:
    module = MODELS[name]
    net, batch = module.build("tiny"), module.example_batch(BATCH, size="tiny")
    expected = traced_model(net, batch, name=name)

    def step() -> torch.Tensor:
        result: torch.Tensor = net(**batch) if isinstance(batch, dict) else net(*_words(batch))
        return result

    execution, kineto = record(tmp_path, step)
    graph = load_execution_trace(execution, BATCH)
    assert graph.parameter_gradient_bytes == expected.parameter_gradient_bytes
    assert graph.forward_flops == expected.forward_flops
    of_kineto = load_trace(kineto, BATCH)
    assert of_kineto.parameter_gradient_bytes == expected.parameter_gradient_bytes


def _words(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("{", ("PyTorch execution trace",)),
        ('{"schema": "1.1.1", "nodes": 1}', ("nodes",)),
        ('{"schema": "1.1.1", "nodes": []}', ("backward",)),
        (
            '{"schema": "1.0.1", "nodes": [{"id": 1, "name": "x", "inputs": []}]}',
            ("1.0.2", "attrs"),
        ),
        ('{"schemaVersion": 1, "traceEvents": []}', ("Kineto", "--from-trace")),
    ],
)
def test_what_is_no_execution_trace_is_refused(
    tmp_path: Path, content: str, tokens: tuple[object, ...]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with refused(ProfileError, path, *tokens):
        load_execution_trace(path, BATCH)


def test_another_batch_size_is_refused(traces: tuple[Path, Path]) -> None:
    for load in (load_execution_trace, load_trace):
        with refused(ProfileError, "batch-size", 7):
            load(traces[load is load_trace], 7)
