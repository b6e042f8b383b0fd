"""Time to accuracy: a small VGG trained on scikit-learn's digits, with real computation.

The paper trains VGG19 on ImageNet (Figure 20). Here all gradients are real; a rank that has
computed faster than VGG19's time, stretched as `workload` says, waits for the rest before it sums
its gradients, so that computation stands to communication as it does there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import _dynamo  # noqa: F401  (ranks are forks: else each imports it, for two seconds)
from torch.nn.functional import cross_entropy

from testbed.workload import PAPER_GBPS, SLOWER
from torch_topoopt.launcher.documents import op_graph_of
from torch_topoopt.models.vgg import VGG, VGGSize
from torch_topoopt.plan import Placement
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import shard_cost

if TYPE_CHECKING:
    from torch_topoopt.search.accelerators import Accelerator

Convolutions = Literal["tf32", "fp32"]

_SIZE = VGGSize(((16, 16), (32, 32)), (256, 128), 10, 1, 8, 0.0, 10)
_LEARNING_RATE = 2e-3
_TESTED_EVERY = 5  # steps


@dataclass(frozen=True)
class AccuracyCurve:
    """What rank 0 saw after some of the steps: (step, seconds, accuracy, loss)."""

    points: list[tuple[int, float, float, float]]

    def reached_s(self, target: float) -> float | None:
        """When the test accuracy was first at least `target`; None if never."""
        return next((at for _, at, accuracy, _ in self.points if accuracy >= target), None)


def gradient_bytes() -> int:
    """What an AllReduce of all gradients sums."""
    return sum(4 * parameter.numel() for parameter in VGG(_SIZE).parameters())


def compute_s(servers: int) -> float:
    """VGG19's computation of a step on a server, stretched for this model's bytes."""
    seconds, whole = _vgg19(servers, "tf32")
    return seconds * SLOWER * gradient_bytes() / whole


def step_ratio(servers: int, links: int, convolutions: Convolutions) -> float:
    """VGG19's step over one of the paper's links, divided by that over `links` of them: computing,
    then an AllReduce at the full rate of the links."""
    seconds, whole = _vgg19(servers, convolutions)
    sent_s = 2 * (servers - 1) / servers * whole * 8 / (PAPER_GBPS * 1e9)
    return (seconds + sent_s) / (seconds + sent_s / links)


def _vgg19(servers: int, convolutions: Convolutions) -> tuple[float, int]:
    """Seconds that a server's A100 computes in a step, and bytes of the gradients."""
    graph = op_graph_of("vgg:vgg19", 32 * servers)
    device = accelerator("a100")
    if convolutions == "fp32":
        device = _without_tensor_cores(device)
    seconds = 0.0
    for operator in graph.operators:
        degrees = Placement(operator.name, tuple(range(servers))).degrees
        cost = shard_cost(device, operator, degrees, 1, 1)
        seconds += cost.forward_s + cost.backward_s
    return seconds, sum(operator.parameter_gradient_bytes for operator in graph.operators)


def _without_tensor_cores(device: Accelerator) -> Accelerator:
    """Convolutions use the FP32 units, and reach the fraction of their peak that dense layers
    reach."""
    known = device.classes
    passes = [
        own._replace(efficiency=dense.efficiency)
        for own, dense in zip(known["convolution"], known["dense"], strict=True)
    ]
    classes = {**known, "convolution": type(known["convolution"])(*passes)}
    return replace(device, tensor_flops=device.dense_flops, classes=classes)


def train(steps: int, step_compute_s: float, seed: int) -> AccuracyCurve:
    """`steps` steps as one rank of a process group; a batch has `_SIZE.batch_size` for each."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    digits = torch.tensor(labels)
    learnt, tested = train_test_split(
        torch.arange(len(digits)), test_size=0.2, random_state=seed, stratify=labels
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(VGG(_SIZE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    points: list[tuple[int, float, float, float]] = []
    dist.barrier()
    began, testing_s = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        step_began = time.perf_counter()
        batch = torch.randint(len(learnt), (_SIZE.batch_size * ranks,), generator=order)
        own = learnt[batch[rank::ranks]]
        optimizer.zero_grad()
        loss = cross_entropy(model(pixels[own]), digits[own])
        time.sleep(max(0.0, step_began + step_compute_s - time.perf_counter()))
        loss.backward()
        optimizer.step()
        if step % _TESTED_EVERY:
            continue
        total = loss.detach().clone()
        dist.all_reduce(total)
        now = time.perf_counter()
        with torch.no_grad():
            right = model.module(pixels[tested]).argmax(1) == digits[tested]
        accuracy = float(right.float().mean())
        points.append((step, now - began - testing_s, accuracy, float(total) / ranks))
        testing_s += time.perf_counter() - now
    return AccuracyCurve(points)
