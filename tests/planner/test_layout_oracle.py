"""Planned layouts against every layout of small clusters, priced by the flow simulator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from oracles.all_layouts import fastest_of_all, rings_of_four, simulated_s

from torch_topoopt.models import llama, qwen3_moe
from torch_topoopt.plan import Cluster
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.profile.profiling import profile
from torch_topoopt.profile.repeated_layers import with_occurrences
from torch_topoopt.search.batch_scaling import with_batch_size

SPARKS = Cluster(4, 2, 200.0, accelerator="gb10:bf16")
CARDS = Cluster(4, 2, 25.0, accelerator="rtx-4090:bf16")
H100_BOXES = Cluster(
    2, 4, 100.0, accelerators_per_server=4, accelerator="h100:bf16", parallel_links=True
)
CARD_BOXES = replace(H100_BOXES, degree=2, link_gbps=25.0, accelerator="rtx-4090:bf16")
TINY = replace(
    llama.SIZES["1b"], hidden=512, ffn=1536, heads=8, kv_heads=2, sequence=512, vocabulary=4096
)
BLOCKS_OF_8B = replace(llama.SIZES["8b"], blocks=4, sequence=4096)
MIXTURE = replace(
    qwen3_moe.SIZES["30b-a3b"], blocks=4, hidden=512, heads=8, kv_heads=4, head=64, experts=8,
    sequence=512, vocabulary=4096,
)  # fmt: skip


@pytest.mark.parametrize("trust", [2.0, pytest.param(math.inf, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("cluster", "size", "batch_size"),
    [
        (SPARKS, replace(TINY, blocks=4), 16),
        (CARDS, BLOCKS_OF_8B, 8),
        (CARDS, replace(TINY, blocks=4), 8),
        (H100_BOXES, BLOCKS_OF_8B, 8),
        (H100_BOXES, replace(TINY, blocks=8), 16),
        (CARD_BOXES, replace(llama.SIZES["1b"], blocks=8, sequence=2048), 8),
        (CARD_BOXES, replace(TINY, blocks=4), 8),
        (CARDS, MIXTURE, 4),
    ],
    ids=[
        *("sparks", "cards-8b", "cards", "boxes-8b", "boxes", "card-boxes-1b", "card-boxes"),
        "mixture",
    ],
)
def test_no_layout_is_five_per_cent_faster(
    cluster: Cluster, size: llama.LlamaSize, batch_size: int, trust: float
) -> None:
    with torch.device("meta"):
        module = llama.Llama(replace(size, blocks=2))
        tokens = torch.zeros(1, size.sequence, dtype=torch.long)
    graph = with_occurrences(profile(module, tokens, name="decoder"), size.blocks)
    graph = with_batch_size(graph, batch_size)
    planning = LayoutPlanning(graph, cluster, PlanningOptions(strategy_space="layouts"))
    planned = planning.best()
    networks = [planned.network, *rings_of_four(cluster)]
    best = fastest_of_all(planning, networks, trust)
    seconds = simulated_s(planning, planned.network, planned.price.layout)
    assert seconds <= 1.05 * best.seconds, (planned.price.layout, best.layout)
    assert planned.price.times.step_s == pytest.approx(seconds, rel=0.15)
