"""What an iteration computes, from the OpGraph of a small GPT."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from support.refusals import refused

from figures.papers.computing import iteration_compute_s
from torch_topoopt.models.gpt import GPT, GPTSize
from torch_topoopt.profile.profiling import profile
from torch_topoopt.shared_networks.routed.ring_jobs import SplitModel

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

SPLIT = SplitModel("gpt", 1e9, 1, 4, 8)


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    size = GPTSize(2, 1024, 16, 512, 1024, 1)
    return profile(lambda: GPT(size), torch.zeros(1, 512, dtype=torch.long), name="gpt")


def test_a_pipeline_takes_a_turn_for_each_micro_batch_and_stage(graph: OpGraph) -> None:
    turns = [iteration_compute_s(graph, SPLIT, micro_batches=m) / (m + 3) for m in (1, 4, 16)]
    assert turns == pytest.approx([turns[0]] * 3)


def test_stages_and_parts_are_faster_than_the_whole(graph: OpGraph) -> None:
    def turn_s(tensor: int, pipeline: int) -> float:
        split = replace(SPLIT, tensor=tensor, pipeline=pipeline)
        return iteration_compute_s(graph, split, micro_batches=1) / pipeline

    whole_s = turn_s(1, 1)
    assert whole_s / 4 <= turn_s(1, 4) < whole_s / 3, "eight blocks, embedding and head"
    assert whole_s / 2 < turn_s(2, 1) < whole_s, "norms are not split, and sums are added"


def test_twice_the_blocks_take_about_twice_as_long(graph: OpGraph) -> None:
    once_s, twice_s = (
        iteration_compute_s(graph, replace(SPLIT, blocks=blocks, pipeline=1), micro_batches=1)
        for blocks in (20, 40)
    )
    assert 1.8 * once_s < twice_s < 2 * once_s


def test_what_does_not_fit_is_named(graph: OpGraph) -> None:
    with refused(ValueError, "blocks", 8, 9):
        iteration_compute_s(graph, replace(SPLIT, pipeline=9), micro_batches=1)
    with refused(ValueError, "micro_batches", 0, 1):
        iteration_compute_s(graph, SPLIT, micro_batches=0)
    with refused(ValueError, "op_graph", 0, 1):
        iteration_compute_s(replace(graph, layers=()), SPLIT, micro_batches=1)
    with refused(ValueError, "accelerator", "abacus"):
        iteration_compute_s(graph, SPLIT, device="abacus", micro_batches=1)
