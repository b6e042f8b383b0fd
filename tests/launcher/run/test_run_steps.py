"""A run that measures steps before it plans, and one whose steps cannot be measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named

from torch_topoopt.fabric.netns.shaper import goodput_share
from torch_topoopt.launcher.run import fabrics
from torch_topoopt.links.sockets import unsent_bytes_at
from torch_topoopt.op_graph import DEFAULT_BUCKETS, GradientBuckets, OpGraph
from torch_topoopt.plan import Plan
from torch_topoopt.sim.script_iteration import EVEN_PACING, SEGMENT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 4))

def example_batch(samples=8):
    return torch.zeros(samples, 16)

if __name__ == "__main__":
    dist.init_process_group()
    fake = dist.group.WORLD._get_backend(torch.device("cpu")).name() == "fake"
    if fake and os.path.exists("unwell"):
        raise ValueError("no data")
    model = DistributedDataParallel(build_model(), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40 if fake else 6):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("unwell", [False, True])
def test_a_run_predicts_from_the_steps_of_its_script(
    launcher: Any, tmp_path: Path, unwell: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    if unwell:
        (tmp_path / "unwell").touch()
    launcher.measure_steps = True
    cluster = ("--servers", "2", "--degree", "1", "--bandwidth", "100Mbps")
    done = launcher.run("run", *cluster, "--run-dir", "here", "train.py")
    assert done.returncode == 0, done.stderr
    graph = OpGraph.load(tmp_path / "here" / "opgraph.json")
    if unwell:
        assert named(done.stdout, "estimate")
        assert "ValueError: no data" in done.stdout
        assert graph.measured_step is None
        assert graph.gradient_buckets == DEFAULT_BUCKETS
        return
    assert "steps without messages: " in done.stdout
    assert graph.gradient_buckets == GradientBuckets(2 * 2**20, 2 * 2**20)
    prediction = Plan.load(tmp_path / "here" / "plan.json").prediction
    assert graph.measured_step is not None
    assert prediction.compute_s > graph.measured_step.overhead_s > 0
    assert "of waiting for messages" in done.stdout


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 4))

def example_batch(samples=8):
    return torch.zeros(samples, 16)

if __name__ == "__main__":
    dist.init_process_group()
    fake = dist.group.WORLD._get_backend(torch.device("cpu")).name() == "fake"
    model = fully_shard(build_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40 if fake else 8):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("has_model", "measures"), [(True, True), (False, True), (True, False)])
def test_a_script_that_shards_its_model_is_predicted_from_its_own_calls(
    launcher: Any, tmp_path: Path, has_model: bool, measures: bool
) -> None:
    text = SHARDED if has_model else SHARDED.replace("build_model", "model_of_mine")
    (tmp_path / "train.py").write_text(text)
    launcher.measure_steps = measures
    cluster = ("--servers", "2", "--degree", "1", "--bandwidth", "100Mbps")
    done = launcher.run("run", *cluster, "--run-dir", "here", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    gradient_bytes = 4 * (16 * 64 + 64 + 64 * 4 + 4)
    plan = Plan.load(tmp_path / "here" / "plan.json")
    # half of the shards for the forward pass and of the sums of gradients: one group, unsharded
    assert plan.prediction.link_bytes == (gradient_bytes, gradient_bytes)
    assert found["iterations"]["link_bytes_difference"] < 0.01
    assert ("not those of data parallelism" in done.stderr) == has_model
    assert not (tmp_path / "here" / "opgraph.json").exists()
    assert (tmp_path / "here" / "report.html").exists()
    if measures:
        assert plan.prediction.iteration_s > plan.prediction.compute_s > 0
        assert found["iterations"]["predicted_s"] == plan.prediction.iteration_s
    else:
        assert found["iterations"]["predicted_s"] is None


def test_emulated_links_carry_early_bytes_as_they_are_limited() -> None:
    unsent_bytes = unsent_bytes_at(0.05)
    assert fabrics.link_pacing("loopback", "user", None, 0.05) == (1.5 * unsent_bytes, 0)
    burst_bytes, part_bytes = fabrics.link_pacing("netns", "user", None, 0.05)
    assert part_bytes == unsent_bytes
    assert burst_bytes == pytest.approx(0.004 * 50e6 / 8 * goodput_share(1500))
    assert fabrics.link_pacing("netns", "user", None, 1.0).part_bytes == SEGMENT_BYTES
    for fabric in fabrics.FABRICS:
        assert fabrics.link_pacing(fabric, "user", None, None) == EVEN_PACING
