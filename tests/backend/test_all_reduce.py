"""all_reduce against gloo in the same processes, and its traffic against theory."""

from __future__ import annotations

import functools
import json
import os
import random

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

CASES = 1000
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
RELATIVE = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-6, torch.float64: 1e-12}
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
BIT_OPS = ("BAND", "BOR", "BXOR")


def random_case(rng: random.Random) -> tuple[tuple[int, ...], torch.dtype, str]:
    shape = tuple(rng.choice((0, 1, 2, 3, 5, 7, 16, 33)) for _ in range(rng.randrange(4)))
    if rng.random() < 0.1:
        shape = (rng.randrange(1, 60_000),)
    dtype = rng.choice(INTEGERS + FLOATS)
    ops = [op for op in OPS if op != "AVG" or dtype.is_floating_point]
    return shape, dtype, rng.choice([*ops, *BIT_OPS] if dtype in INTEGERS else ops)


def random_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_floating_point:  # positive, so that a relative error means something
        return (torch.rand(shape, generator=generator) + 0.5).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def reduced_by_gloo(
    cases: list[tuple[torch.dtype, str]], tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """All tensors of one type and operation in one call: most of the time went into gloo."""
    group = dist.new_group(backend="gloo")
    results = [torch.empty(0)] * len(tensors)
    for kind in sorted(set(cases), key=str):
        members = [index for index, case in enumerate(cases) if case == kind]
        op = kind[1]
        joined = torch.cat([tensors[index].reshape(-1) for index in members])
        # gloo has no average of 16-bit floats on every build: sum and divide
        dist.all_reduce(joined, getattr(dist.ReduceOp, "SUM" if op == "AVG" else op), group)
        if op == "AVG":
            joined /= dist.get_world_size()
        parts = joined.split([tensors[index].numel() for index in members])
        for index, part in zip(members, parts, strict=True):
            results[index] = part.reshape(tensors[index].shape)
    return results


def compare_with_gloo(rank: int, world: int) -> int:
    dist.init_process_group("topoopt")
    rng = random.Random(7)
    generator = torch.Generator().manual_seed(rank)
    cases = [random_case(rng) for _ in range(CASES)]
    tensors = [random_tensor(shape, dtype, generator) for shape, dtype, _ in cases]
    expected = reduced_by_gloo([(dtype, op) for _, dtype, op in cases], tensors)
    for case, (ours, theirs) in enumerate(zip(tensors, expected, strict=True)):
        shape, dtype, op = cases[case]
        dist.all_reduce(ours, op=getattr(dist.ReduceOp, op))
        what = (case, shape, dtype, op)
        if dtype in INTEGERS or op in ("MIN", "MAX"):
            assert torch.equal(ours, theirs), what
        else:
            error = (ours.double() - theirs.double()).abs()
            assert (error <= RELATIVE[dtype] * theirs.double().abs()).all(), what
    dist.destroy_process_group()
    return CASES


@pytest.mark.parametrize(("servers", "degree"), [(4, 2), (5, 4)])
def test_results_equal_gloo_on_a_thousand_random_tensors(servers, degree, tmp_path):
    assert values(run_ranks(make_plan(servers, degree), tmp_path, compare_with_gloo)) == (
        [CASES] * servers
    )


def reduce_one_tensor(rank: int, world: int) -> list[float]:
    os.environ.setdefault("TOPOOPT_ALGORITHM", "multi_ring")
    dist.init_process_group("topoopt")
    tensor = torch.full((240_000,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return [tensor.min().item(), tensor.max().item()]


@pytest.mark.parametrize(
    ("servers", "degree", "ports"),
    [(2, 1, "duplex"), (4, 2, "duplex"), (5, 4, "duplex"), (8, 2, "duplex"), (5, 2, "simplex")],
)
def test_link_counters_equal_theory_to_the_byte(servers, degree, ports, tmp_path):
    """A ring of g servers with share s of S bytes puts 2 (g - 1) / g s S bytes on each hop."""
    plan = make_plan(servers, degree, ports=ports)
    total = sum(range(1, servers + 1))
    outcomes = run_ranks(plan, tmp_path, reduce_one_tensor)
    assert values(outcomes) == [[total, total]] * servers
    expected = {(link.source, link.target): 0.0 for link in plan.network.links}
    for ring in plan.network.groups[0].rings:
        hop_bytes = 2 * (servers - 1) / servers * ring.share * 960_000
        for hop in zip(ring.servers, ring.servers[1:] + ring.servers[:1], strict=True):
            expected[hop] += hop_bytes
    measured = {}
    for rank in range(servers):
        for link in json.loads((tmp_path / f"links-rank{rank}.json").read_text())["links"]:
            measured[link["source"], link["target"]] = link["sent_bytes"]
            assert link["relayed_bytes"] == 0
    assert measured == expected


def reduce_over_the_graph(algorithm: str, rank: int, world: int) -> list[float]:
    os.environ["TOPOOPT_ALGORITHM"] = algorithm
    return reduce_one_tensor(rank, world)


@pytest.mark.parametrize("algorithm", ["breadth_first", "packing"])
def test_every_link_of_a_circulant_carries_the_same_bytes(algorithm, tmp_path):
    """n servers with d links: 2 (n - 1) / n / d of the bytes on each."""
    plan = make_plan(5, 4)
    outcomes = run_ranks(plan, tmp_path, functools.partial(reduce_over_the_graph, algorithm))
    assert values(outcomes) == [[15, 15]] * 5
    for rank in range(5):
        links = json.loads((tmp_path / f"links-rank{rank}.json").read_text())["links"]
        assert [link["sent_bytes"] for link in links] == [2 * 960_000 // 5] * 4


def gather_among_every_second(rank: int, world: int) -> float:
    os.environ["TOPOOPT_ALGORITHM"] = "breadth_first"
    dist.init_process_group("topoopt")
    group = dist.new_group(list(range(0, world, 2)))
    total = 0.0
    if rank % 2 == 0:
        output = torch.empty(world // 2 * 1000)
        dist.all_gather_into_tensor(output, torch.full((1000,), float(rank)), group)
        total = output.sum().item()
    dist.destroy_process_group()
    return total


def test_relays_carry_the_same_bytes_on_every_link_of_a_ring(tmp_path):
    """Every second of 8 servers: 3 / 2 shards on each link, of members and of relays."""
    outcomes = run_ranks(make_plan(8, 2), tmp_path, gather_among_every_second)
    assert values(outcomes) == [1000.0 * (2 + 4 + 6), 0.0] * 4
    for rank in range(8):
        links = json.loads((tmp_path / f"links-rank{rank}.json").read_text())["links"]
        assert [link["sent_bytes"] for link in links] == [6000, 6000]
        assert [link["relayed_bytes"] for link in links] == [6000 * (rank % 2)] * 2


def gather_and_scatter(rank: int, world: int) -> float:
    os.environ["TOPOOPT_ALGORITHM"] = "breadth_first"
    dist.init_process_group("topoopt")
    blocks = [torch.empty(1200) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.full((1200,), float(rank)), blocks, 0)
    output = torch.empty(1200)
    dist.scatter(output, blocks, 0)
    dist.destroy_process_group()
    return output.mean().item()


def test_links_of_the_root_share_a_gather_and_a_scatter_evenly(tmp_path):
    """Each of the 2 links to and from the root carries 7 / 2 of 7 blocks."""
    outcomes = run_ranks(make_plan(8, 2), tmp_path, gather_and_scatter)
    assert values(outcomes) == [float(rank) for rank in range(8)]
    sent = {}
    for rank in range(8):
        for link in json.loads((tmp_path / f"links-rank{rank}.json").read_text())["links"]:
            assert link["relayed_bytes"] == 0
            sent[link["source"], link["target"]] = link["sent_bytes"]
    assert [sent[0, 1], sent[0, 7], sent[1, 0], sent[7, 0]] == [7 * 1200 * 4 // 2] * 4


def reduce_twice(rank: int, world: int) -> list[bytes]:
    dist.init_process_group("topoopt")
    generator = torch.Generator().manual_seed(rank)
    tensor = torch.randn(100_003, generator=generator)
    results = []
    for _ in range(2):
        copy = tensor.clone()
        dist.all_reduce(copy)
        results.append(copy.numpy().tobytes())
    dist.destroy_process_group()
    return results


def test_the_same_sum_has_the_same_bits_every_time_and_everywhere(tmp_path):
    results = values(run_ranks(make_plan(5, 4), tmp_path, reduce_twice))
    assert len({bits for of_rank in results for bits in of_rank}) == 1
