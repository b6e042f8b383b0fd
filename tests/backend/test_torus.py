"""AllReduce along the rows and columns of a torus."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import run_ranks, values

from torch_topoopt.links.rank_layout import RankLayout, grid_of, leader_grid
from torch_topoopt.plan import CostModel, Demand, Plan
from torch_topoopt.runtime import backend
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network

if TYPE_CHECKING:
    from pathlib import Path

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-6, torch.float64: 1e-12}
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
SIZES = (0, 1, 7, 100, 5003, 200_001)


def torus_plan(rows: int, columns: int) -> Plan:
    cluster = torus_cluster(rows, columns, 10.0)
    network = torus_network(cluster, rows, columns)
    return Plan.of_network(cluster, network, Demand((), ()), model="test")


def inputs(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * count + rank)
    if dtype.is_floating_point:
        return (torch.rand(count, generator=generator) + 0.5).to(dtype)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def reduced(op: str, count: int, dtype: torch.dtype, world: int) -> torch.Tensor:
    """By one process, floats with twice the precision."""
    wide = torch.float64 if dtype.is_floating_point else dtype
    combine = {
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }.get(op, torch.add)
    total = inputs(0, count, dtype).to(wide)
    for rank in range(1, world):
        total = combine(total, inputs(rank, count, dtype).to(wide))
    return total / world if op == "AVG" else total


def reduce_everything(rank: int, world: int) -> str:
    """The digest of all results."""
    os.environ["TOPOOPT_ALGORITHM"] = "torus"
    dist.init_process_group("topoopt")
    digest = hashlib.sha256()
    for dtype, op, count in product((*INTEGERS, *FLOATS), OPS, SIZES):
        if dtype.is_floating_point and op.startswith("B"):
            continue
        if not dtype.is_floating_point and op == "AVG":
            continue
        if count > 10_000 and op != "SUM":
            continue
        tensor = inputs(rank, count, dtype)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        expected = reduced(op, count, dtype, world)
        if dtype.is_floating_point:
            error = (tensor.double() - expected).abs()
            assert (error <= FLOATS[dtype] * expected.abs()).all(), (dtype, op, count)
        else:
            assert torch.equal(tensor, expected), (dtype, op, count)
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    used = {entry["kind"] for entry in backend.stats()["rings"] if entry["sent_bytes"]}
    assert used <= {"torus"}  # inside a server bytes are not counted
    dist.destroy_process_group()
    return digest.hexdigest()


@pytest.mark.parametrize(("rows", "columns", "world"), [(2, 3, 6), (2, 2, 8)])
def test_every_type_and_reduction_gives_the_same_bits_on_all_ranks(rows, columns, world, tmp_path):
    outcomes = run_ranks(torus_plan(rows, columns), tmp_path, reduce_everything, world=world)
    assert len(set(values(outcomes))) == 1


def reduce_one(rank: int, world: int) -> float:
    os.environ["TOPOOPT_ALGORITHM"] = "torus"
    dist.init_process_group("topoopt")
    tensor = torch.full((36 * 1000,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.sum().item()


def test_every_link_of_a_square_torus_carries_its_part_to_the_byte(tmp_path):
    """2 (g - 1) / g of a quarter of the bytes for g servers, as on four rings."""
    plan = torus_plan(3, 3)
    assert values(run_ranks(plan, tmp_path, reduce_one)) == [36_000.0 * 45] * 9
    for rank in range(9):
        links = json.loads((tmp_path / f"links-rank{rank}.json").read_text())["links"]
        assert [link["sent_bytes"] for link in links] == [2 * 8 / 9 * 36_000] * 4
        assert [link["relayed_bytes"] for link in links] == [0] * 4


def reduce_in_a_group(folder: Path, rank: int, world: int) -> float:
    """In one that is no torus of its plan."""
    os.environ["TOPOOPT_ALGORITHM"] = "torus"
    with (folder / f"stderr-{rank}").open("wb") as log:
        os.dup2(log.fileno(), 2)
    dist.init_process_group("topoopt")
    few = dist.new_group([0, 1, 5])
    tensor = torch.ones(1000)
    if rank in (0, 1, 5):
        for _ in range(3):
            dist.all_reduce(tensor, group=few)
    dist.destroy_process_group()
    return tensor[0].item()


def test_a_group_that_has_no_torus_says_that_it_takes_another_algorithm(tmp_path):
    outcomes = run_ranks(torus_plan(3, 3), tmp_path, partial(reduce_in_a_group, tmp_path))
    assert values(outcomes) == [27.0 if rank in (0, 1, 5) else 1.0 for rank in range(9)]
    written = "".join((tmp_path / f"stderr-{rank}").read_text() for rank in range(9))
    assert written.count("TOPOOPT_ALGORITHM=torus: group ") == 1
    assert "takes what costs least, for its members are no torus of the plan" in written


def reduce_by_choice(rank: int, world: int) -> list[list[str]]:
    """The kinds of schedules that carried a few bytes, and then many."""
    dist.init_process_group("topoopt")
    kinds = []
    seen: dict[str, int] = {}
    for count in (2, 1 << 18):
        dist.all_reduce(torch.ones(count))
        sent: dict[str, int] = {}
        for entry in backend.stats()["rings"]:
            sent[entry["kind"]] = sent.get(entry["kind"], 0) + entry["sent_bytes"]
        kinds.append(sorted(kind for kind in sent if sent[kind] > seen.get(kind, 0)))
        seen = sent
    dist.destroy_process_group()
    return kinds


def test_the_size_of_the_message_decides_and_all_ranks_decide_alike(tmp_path):
    model = CostModel(2e-5, 2e-5, 1e-10, 1e-8)
    plan = dataclasses.replace(torus_plan(3, 3), cost_model=model)
    outcomes = run_ranks(plan, tmp_path, reduce_by_choice)
    assert values(outcomes) == [[["graph"], ["graph"]]] * 9  # flooding, then breadth first


def test_only_the_group_of_all_servers_of_a_torus_has_its_grid():
    plan = torus_plan(2, 3)
    layout = RankLayout.even(6, 12)
    assert grid_of(plan, list(range(6))) == [[0, 1, 2], [3, 4, 5]]
    assert grid_of(plan, [0, 1, 2]) == []
    assert grid_of(plan, [0, 1, 2, 3]) == []
    ranks = [11, 9, 7, 5, 3, 1]  # a member of each server, from the last on
    assert leader_grid([[0, 1, 2], [3, 4, 5]], layout, ranks) == [[5, 4, 3], [2, 1, 0]]
