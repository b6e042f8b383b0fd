"""Models that train as the plan of a layout says, compared with one process and with the plan."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from torch.utils._pytree import tree_map

import torch_topoopt
from torch_topoopt.parallel import pipeline
from torch_topoopt.plan import Cluster, Link
from torch_topoopt.plan.layout import Layout, layout_from
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.profile.model_files import TYPES, LoadedModel
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from torch_topoopt.plan import Plan
    from torch_topoopt.plan.layout import Precision

SERVERS, SAMPLES, RATE, LIMIT_S = 4, 8, 0.05, 240
STEPS = int(os.environ.get("TOPOOPT_TEST_TRAINED_STEPS", "4"))  # 12 in `make test-all`


class Family(NamedTuple):
    """A model, its batch (input and target) of a step, and its loss. Steps are those of SGD: AdamW
    magnifies the rounding of gradients that are zero."""

    build: Callable[[], torch.nn.Module]
    batch: Callable[[int], tuple[Any, torch.Tensor]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]

    def model(self) -> torch.nn.Module:
        """With the same values every time."""
        torch.manual_seed(7)
        return self.build()

    def plans(self, texts: Sequence[str], precision: Precision = "own") -> list[Plan]:
        """The plans of the layouts `texts` on one network of SERVERS servers."""
        loaded = LoadedModel(self.model, self.batch(0)[0], "family")
        if precision != "own":
            loaded = loaded.in_precision(precision)
        op_graph = profile(loaded.build, loaded.example_batch, name=loaded.name)
        cluster = Cluster(SERVERS, 3, 10.0, accelerator="cpu")
        layouts = [layout_from(text, SERVERS, SAMPLES) for text in texts]
        plans: list[Plan] = []
        network = make_plan(SERVERS, 3).network  # all servers with all others
        for layout in (*layouts, *layouts):  # the network of the second half has groups of all
            options = PlanningOptions(
                strategy_space="layouts", layout=layout, network=network, precision=precision
            )
            plans.append(LayoutPlanning(op_graph, cluster, options).plan())
            network = plans[-1].network
        return [replace(plan, network=network) for plan in plans[len(layouts) :]]

    def alone(self) -> list[float]:
        """The losses of one process."""
        model = self.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        losses = []
        for step in range(STEPS):
            inputs, target = self.batch(step)
            args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
            args = (args,) if isinstance(args, torch.Tensor) else args
            loss = self.loss(model(*args, **kwargs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


class OfRank(NamedTuple):
    """The losses of a rank of the last stage, and the bytes of a step by links between servers."""

    losses: list[float]
    sent: dict[Link, float]


def sent_bytes() -> dict[Link, int]:
    """By links between servers, so far."""
    return {
        Link(entry["source"], entry["source_port"], entry["target"], entry["target_port"]): entry[
            "sent_bytes"
        ]
        for entry in torch_topoopt.stats()["links"]
        if entry["source_port"] >= 0
    }


def train(family: Family, layout: Layout, precision: Precision = "own") -> OfRank:
    """Bytes are those of all steps but the first."""
    model, example = family.model(), family.batch(0)[0]
    dtype = TYPES.get(precision)
    pipe = pipeline(model, example, family.loss, strategy=layout, precision=dtype)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=RATE)
    losses, before = [], {}
    for step in range(STEPS):
        if step == 1:
            dist.barrier()
            before = sent_bytes()
        share = tree_map(lambda t: t.chunk(pipe.replicas)[pipe.replica], family.batch(step))
        optimizer.zero_grad()
        loss = pipe.step(*share)
        optimizer.step()
        if loss is not None:
            losses.append(loss.item())
    dist.barrier()
    after = sent_bytes()
    return OfRank(losses, {link: (after[link] - before[link]) / (STEPS - 1) for link in after})


def train_all(
    family: Family, layouts: Sequence[Layout], precision: Precision, rank: int, world: int
) -> list[OfRank]:
    # Short AllReduces take trees, and the plan has bytes of its rings.
    os.environ["TOPOOPT_ALGORITHM"] = "multi_ring"
    dist.init_process_group("topoopt")
    done = [train(family, layout, precision) for layout in layouts]
    dist.destroy_process_group()
    return done


def check(
    family: Family,
    texts: Sequence[str],
    folder: Path,
    *,
    precision: Precision = "own",
    other_bytes: Collection[str] = (),
) -> None:
    """Under each layout, losses are those of one process, and bytes those of the plan but for
    `other_bytes`."""
    plans = family.plans(texts, precision)
    layouts = [plan.layout for plan in plans if plan.layout is not None]
    function = functools.partial(train_all, family, layouts, precision)
    done: list[list[OfRank]] = values(run_ranks(plans[-1], folder, function, limit_s=LIMIT_S))
    expected = family.alone()
    for text, plan, of_ranks in zip(texts, plans, zip(*done, strict=True), strict=True):
        of_copies = [of.losses for of in of_ranks if of.losses]
        means = [sum(of_step) / len(of_step) for of_step in zip(*of_copies, strict=True)]
        margin = 1e-5 if precision == "own" else 0.1
        assert means == pytest.approx(expected, abs=margin), text
        if text not in other_bytes:
            check_bytes(text, plan, [of.sent for of in of_ranks])


def check_bytes(text: str, plan: Plan, of_ranks: list[dict[Link, float]]) -> None:
    """Each link carries the plan's bytes within 1 %."""
    sent: dict[Link, float] = {}
    for of_rank in of_ranks:
        for link, size in of_rank.items():
            sent[link] = max(size, sent.get(link, 0.0))
    predicted = dict(zip(plan.network.links, plan.prediction.link_bytes, strict=True))
    assert any(predicted.values())
    assert sum(sent.values()) == pytest.approx(sum(predicted.values()), rel=0.01), text
    # Short messages over two routes are not divided evenly.
    direct = {(link.source, link.target) for link in predicted}
    relayed = [p.size_bytes for p in plan.demand.pairs if (p.source, p.target) not in direct]
    margin = max(relayed, default=16)
    assert sent == {
        link: pytest.approx(size, rel=0.01, abs=margin) for link, size in predicted.items()
    }, text
