"""OpGraphs of traces that torch.profiler writes."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.refusals import refused
from torch.profiler import ProfilerActivity, profile, schedule

from torch_topoopt.profile.kineto import load_trace
from torch_topoopt.profile.profiling import ProfileError

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 32


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10, bias=False)
    )


def step(net: torch.nn.Module) -> None:
    labels = torch.zeros(BATCH, dtype=torch.int64)
    torch.nn.functional.cross_entropy(net(torch.randn(BATCH, 64)), labels).backward()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "mlp.json"
    net = model()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step(net)
    recorded.export_chrome_trace(str(path))
    return path


def test_operators_have_their_gradients_times_and_shapes(trace: Path) -> None:
    graph = load_trace(trace, BATCH)
    assert (graph.model, graph.batch_size) == ("mlp", BATCH)
    assert [o.kind.removeprefix("aten::") for o in graph.operators] == [
        *("linear", "relu", "linear", "cross_entropy_loss")
    ]
    assert [o.parameter_gradient_bytes for o in graph.operators] == [
        *(4 * (64 * 128 + 128), 0, 4 * 128 * 10, 0)
    ]
    assert [o.forward_flops for o in graph.operators[::2]] == [
        *(2 * BATCH * 64 * 128, 2 * BATCH * 128 * 10)
    ]
    assert [o.output_bytes for o in graph.operators] == [
        *(4 * BATCH * 128, 4 * BATCH * 128, 4 * BATCH * 10, 0)
    ]
    assert all(o.splittable and len(o.measured) == 1 for o in graph.operators)
    assert all(
        o.measured[0].forward_s > 0 and o.measured[0].backward_s > 0 for o in graph.operators
    )


def test_of_several_steps_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    net = model()
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path)),
    ) as recorded:
        for _ in range(4):
            step(net)
            recorded.step()
    assert [o.parameter_gradient_bytes for o in load_trace(path, BATCH).operators] == [
        *(4 * (64 * 128 + 128), 0, 4 * 128 * 10, 0)
    ]


def test_kernels_are_what_takes_time_where_there_are_some(trace: Path, tmp_path: Path) -> None:
    document = json.loads(trace.read_text())
    events: list[dict[str, Any]] = document["traceEvents"]
    products = [e for e in events if e["name"] in ("aten::addmm", "aten::mm")]
    events += [
        {
            **{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7},
            **{"ts": event["ts"] + 1e6, "dur": 250.0},
            "args": {"External id": event["args"]["External id"]},
        }
        for event in products
    ]
    path = tmp_path / "gpu.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    first, relu, *_ = load_trace(path, BATCH).operators
    assert first.measured[0].forward_s == pytest.approx(250e-6)
    assert first.measured[0].backward_s == pytest.approx(250e-6)  # no gradient of the input
    assert (relu.measured[0].forward_s, relu.measured[0].backward_s) == (0, 0)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("{", ("Kineto",)),
        ("[]", ("traceEvents",)),
        ('{"traceEvents": []}', ("backward",)),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', ("ts",)),
        (
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": [], "ts": 1, "dur": 1, '
            '"args": {"Sequence number": {}}}]}',
            ("Kineto", "dict"),
        ),
    ],
)
def test_what_is_no_trace_is_refused(
    tmp_path: Path, content: str, tokens: tuple[object, ...]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with refused(ProfileError, *tokens):
        load_trace(path, BATCH)
