"""`topoopt` as a process of its own, and a small OpGraph as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.launcher import Launcher, wait_for

from torch_topoopt.op_graph import Operand, Operator, OpGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_for


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    started = Launcher(tmp_path)
    yield started
    started.wait_for_its_end()


def make_op_graph(layers: int = 6) -> OpGraph:
    """A chain of equal layers, by hand."""
    return OpGraph(
        version=OpGraph.VERSION,
        model="chain",
        batch_size=64,
        operators=tuple(
            Operator(
                name=f"layer{i}",
                kind="linear",
                forward_flops=10**9,
                backward_flops=2 * 10**9,
                parameter_bytes=4_000_000,
                parameter_gradient_bytes=4_000_000,
                output_bytes=1_000_000,
                saved_bytes=1_000_000,
                memory_bytes=6_000_000,
                splittable=True,
                operands=(Operand(i - 1, 1_000_000, 1_000_000),) if i else (),
            )
            for i in range(layers)
        ),
    ).validate()


@pytest.fixture
def op_graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "opgraph.json"
    make_op_graph().save(path)
    return path
