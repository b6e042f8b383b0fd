"""`topoopt run` with strategies that are more than data parallel."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Placement, Plan
from torch_topoopt.report.run_folder import read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TABLES = """
import torch, torch.distributed as dist, torch_topoopt

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(4000, 32) for _ in range(4))
        self.top = torch.nn.Linear(128, 1)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, bags):
        vectors = [table(bags[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat(vectors, 1)) * self.scale

def build_model():
    return Net()

def example_batch():
    return torch.zeros(512, 4, 3, dtype=torch.long)

if __name__ == "__main__":
    dist.init_process_group()
    torch.manual_seed(0)
    model = torch_topoopt.parallelize(build_model(), example_batch())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        loss = model(torch.randint(4000, (256, 4, 3))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.py").write_text(TABLES)
    return tmp_path


def test_tables_are_placed_and_links_carry_what_was_predicted(launcher: Any, script: Path) -> None:
    cluster = ("--servers", "2", "--bandwidth", "200Mbps")
    options = ("--strategy-space", "full", "--json", "--run-dir", "here")
    done = launcher.run("run", *cluster, *options, "tables.py", TOPOOPT_ALGORITHM="multi_ring")
    assert done.returncode == 0, done.stderr
    assert named(done.stderr, "placed", "part")
    assert "5 of these may be split by columns or rows" in done.stderr
    assert named(done.stderr, "leaf module")
    figures = json.loads(done.stdout)
    plan = Plan.load(script / "here" / "plan.json")
    placed = {p.operator: p.servers for p in plan.strategy}
    tables = [p for p in plan.strategy if p.operator.startswith("tables")]
    assert [p.sample for p in tables] == [1] * 4, "no table is on both servers"
    assert placed["mul"] == placed["input"] == placed["output"] == (0, 1)
    iterations = figures["iterations"]
    assert iterations["count"] == 5
    assert iterations["measured_s"] > 0
    total = sum(link["iteration_bytes"] for link in figures["links"])
    assert total == pytest.approx(sum(plan.prediction.link_bytes), rel=1e-4)
    run = read_run(script / "here")
    assert run.metrics is not None
    assert run.metrics.iterations is not None
    assert run.metrics.iterations.seconds == iterations["measured_s"]


def test_a_plan_is_executed_for_the_module_that_it_was_made_for(
    script: Path, ring_plan: Callable[..., Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    everyone = (0, 1, 2, 3)
    names = ("tables.0", "tables.1", "tables.2", "tables.3", "cat", "top", "mul")

    def error_of(**placed: Any) -> str:
        strategy = tuple(placed.get(n, Placement(n, everyone)) for n in names)
        dataclasses.replace(ring_plan(4), strategy=strategy).save(script / "plan.json")
        assert main(["run", "--plan", "plan.json", "tables.py"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("topoopt: error: plan.json: strategy: operator ")
        assert error.count("\n") == 1
        assert not (script / "runs").exists()
        return error

    assert "'mul' cannot run on servers [1]: it reads a parameter that no leaf" in error_of(
        mul=Placement("mul", (1,))
    )
    assert "'top' cannot run on servers [0, 1, 2, 3]: its 1 columns cannot be cut" in error_of(
        top=Placement("top", everyone, columns=2)
    )
    assert "the strategy is not one of this module" in error_of(cat=Placement("other", (1,)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--plan plan.json --strategy-space full",
            "strategy-space: --strategy-space and --plan exclude each other",
        ),
        (
            "--plan plan.json --measure",
            "measure: --measure and --plan exclude each other",
        ),
        (
            "--servers 4 --strategy-space full --stages 2",
            "stages: is only for --strategy-space pipeline",
        ),
        (
            "--servers 4 --strategy-space pipeline --stages 3",
            "stages: 3 does not divide 4 servers evenly",
        ),
        (
            "--servers 4 --strategy-space pipeline --micro-batches 1",
            "micro-batches: must be at least 2",
        ),
        (
            "--servers 4 --strategy-space pipeline --micro-batches 4,1",
            "micro-batches: must be at least 2",
        ),
        ("--servers 4 --batch-size 33", "--batch-size: 33 "),  # before a trace could replace it
        ("--servers 4 --layout tensor=3", "--layout: tensor=3: "),
        ("--nnodes 3", "--nnodes: 3: "),
        (
            "--servers 4 --strategy-space full --model graph.json",
            "model: graph.json is a saved OpGraph; whether a strategy can be executed is decided",
        ),
    ],
)
def test_options_that_exclude_each_other(
    arguments: str,
    message: str,
    script: Path,
    ring_plan: Callable[..., Plan],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ring_plan(4).save(script / "plan.json")
    assert main(["run", "--run-dir", "here", *arguments.split(), "tables.py"]) == 2
    assert message in capsys.readouterr().err


STAGES = """
import torch, torch.distributed as dist, torch_topoopt

def build_model():
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))

def example_batch():
    return torch.zeros(64, 64)

if __name__ == "__main__":
    dist.init_process_group()
    torch.manual_seed(0)
    pipe = torch_topoopt.pipeline(build_model(), example_batch(), torch.nn.functional.mse_loss)
    assert (pipe.stages, pipe.replicas, pipe.micro_batches) == (2, 2, 4)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        pipe.step(torch.randn(32, 64), torch.zeros(32, 64))
        optimizer.step()
    dist.destroy_process_group()
"""


def test_a_pipeline_is_planned_and_carries_what_was_predicted(launcher: Any, script: Path) -> None:
    """On servers of two ranks each, which share the samples of their stage."""
    (script / "stages.py").write_text(STAGES)
    cluster = ("--servers", "2", "--accelerators-per-server", "2", "--bandwidth", "200Mbps")
    space = ("--strategy-space", "pipeline", "--stages", "2", "--micro-batches", "3,4", "--measure")
    done = launcher.run("run", *cluster, *space, "--json", "--run-dir", "here", "stages.py")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    plan = Plan.load(script / "here" / "plan.json")
    assert plan.micro_batches == 4
    assert "4 operators measured on " in done.stderr
    graph = OpGraph.load(script / "here" / "opgraph.json")
    assert all(operator.measured for operator in graph.operators)
    assert sorted({p.servers for p in plan.strategy}) == [(0,), (1,)]
    total = sum(link["iteration_bytes"] for link in figures["links"])
    assert total == pytest.approx(sum(plan.prediction.link_bytes), rel=1e-4)
    assert main(["run", "--plan", "here/plan.json", "tables.py"]) == 2, "another module"
