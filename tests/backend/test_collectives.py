"""Every collective against values computed locally, on networks with and without relays."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (0, 1, 7, 1000, 300_007)
_LONGEST = 700_001
_PERIOD, _STEP = 251, 7
_INVERSE_STEP = pow(_STEP, -1, _PERIOD)
DTYPES = (torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64)


def block(rank: int, size: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """The input of `rank`, (7 i + 31 rank + salt) mod 251 mod 100; every rank can compute it."""
    first = (rank * 31 + salt) * _INVERSE_STEP % _PERIOD
    return _pattern(dtype)[first : first + size].clone()


@functools.cache
def _pattern(dtype: torch.dtype) -> torch.Tensor:
    """What blocks are parts of: most of the time of these tests went into remainders."""
    return (torch.arange(_LONGEST + _PERIOD) * _STEP % _PERIOD % 100).to(dtype)


def check_overlapping_exchange(rank: int, world: int) -> None:
    """The output of all_to_all_single is its input, or shares memory with it."""
    for size in SIZES:
        for shift in {0, 1, size * world // 2, size * world}:
            memory = torch.zeros(size * world + shift)
            given, output = memory[: size * world], memory[shift:]
            given.copy_(torch.cat([block(rank, size, salt=to) for to in range(world)]))
            dist.all_to_all_single(output, given)
            expected = torch.cat([block(sender, size, salt=rank) for sender in range(world)])
            assert torch.equal(output, expected), (size, shift)


def check_broadcast(rank: int, world: int) -> None:
    for size in SIZES:
        for dtype in DTYPES:
            root = (size + len(str(dtype))) % world
            tensor = block(rank, size, dtype)
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, block(root, size, dtype)), (size, dtype)


def check_reduce(rank: int, world: int) -> None:
    for size in SIZES:
        root = size % world
        tensor = block(rank, size)
        dist.reduce(tensor, root)
        total = sum(block(r, size) for r in range(world))
        assert torch.equal(tensor, total if rank == root else block(rank, size)), size


def check_all_gather(rank: int, world: int) -> None:
    for size in SIZES:
        for dtype in DTYPES:
            outputs = [torch.empty(size, dtype=dtype) for _ in range(world)]
            dist.all_gather(outputs, block(rank, size, dtype))
            assert all(torch.equal(o, block(r, size, dtype)) for r, o in enumerate(outputs))
        flat = torch.empty(world * size)
        dist.all_gather_into_tensor(flat, block(rank, size))
        assert torch.equal(flat, torch.cat([block(r, size) for r in range(world)]))


def check_uneven_all_gather(rank: int, world: int) -> None:
    outputs = [torch.empty(1000 * r) for r in range(world)]
    dist.all_gather(outputs, block(rank, 1000 * rank))
    assert all(torch.equal(o, block(r, 1000 * r)) for r, o in enumerate(outputs))


def check_gather_and_scatter(rank: int, world: int) -> None:
    for size in SIZES:
        root = (size + 1) % world
        outputs = [torch.empty(size) for _ in range(world)] if rank == root else None
        dist.gather(block(rank, size), outputs, root)
        if outputs is not None:
            assert all(torch.equal(o, block(r, size)) for r, o in enumerate(outputs))
        inputs = [block(r, size, salt=5) for r in range(world)] if rank == root else None
        output = torch.empty(size)
        dist.scatter(output, inputs, root)
        assert torch.equal(output, block(rank, size, salt=5))


def check_reduce_scatter(rank: int, world: int) -> None:
    for size in (*SIZES, _LONGEST):
        inputs = [block(rank, size, salt=to) for to in range(world)]
        expected = sum(block(r, size, salt=rank) for r in range(world))
        output = torch.empty(size)
        dist.reduce_scatter(output, inputs)
        assert torch.equal(output, expected), size
        flat = torch.cat(inputs)
        dist.reduce_scatter_tensor(output, flat, op=dist.ReduceOp.AVG)
        assert torch.allclose(output, expected / world), size
        assert torch.equal(flat, torch.cat(inputs)), "the input must not change"


def check_reduce_scatter_into_its_own_input(rank: int, world: int) -> None:
    flat = torch.cat([block(rank, 5000, salt=to) for to in range(world)])
    dist.reduce_scatter_tensor(flat[rank * 5000 : (rank + 1) * 5000], flat)
    expected = sum(block(r, 5000, salt=rank) for r in range(world))
    assert torch.equal(flat[rank * 5000 : (rank + 1) * 5000], expected)


def check_all_to_all(rank: int, world: int) -> None:
    for size in SIZES:
        output = torch.empty(world * size)
        dist.all_to_all_single(output, torch.cat([block(rank, size, salt=t) for t in range(world)]))
        assert torch.equal(output, torch.cat([block(r, size, salt=rank) for r in range(world)]))
    splits_in = [(rank + 1) * (to + 1) for to in range(world)]
    splits_out = [(r + 1) * (rank + 1) for r in range(world)]
    output = torch.empty(sum(splits_out), 3)
    sent = torch.full((sum(splits_in), 3), float(rank))
    dist.all_to_all_single(output, sent, splits_out, splits_in)
    expected = torch.cat([torch.full((n, 3), float(r)) for r, n in enumerate(splits_out)])
    assert torch.equal(output, expected)
    outputs = [torch.empty(100 * (r + 1)) for r in range(world)]
    dist.all_to_all(outputs, [block(rank, 100 * (rank + 1), salt=to) for to in range(world)])
    assert all(torch.equal(o, block(r, 100 * (r + 1), salt=rank)) for r, o in enumerate(outputs))


def check_point_to_point(rank: int, world: int) -> None:
    works, received = [], {}
    for peer in set(range(world)) - {rank}:
        for size in SIZES:
            sent = block(rank, size, salt=peer)
            works.append(dist.isend(sent, peer, tag=size))
    for peer in set(range(world)) - {rank}:
        for size in reversed(SIZES):
            received[peer, size] = torch.empty(size)
            works.append(dist.irecv(received[peer, size], peer, tag=size))
    for work in works:
        work.wait()
    for (peer, size), tensor in received.items():
        assert torch.equal(tensor, block(peer, size, salt=rank)), (peer, size)
    dist.barrier()
    if rank == 0:
        sources = set()
        for _ in range(world - 1):
            tensor = torch.zeros(3)
            source = dist.recv(tensor, tag=9)
            assert torch.equal(tensor, torch.full((3,), float(source)))
            sources.add(source)
        assert sources == set(range(1, world))
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=9)


def check_layouts_and_types(rank: int, world: int) -> None:
    strided = torch.zeros(20, 10)
    strided[:, ::2] += rank + 1
    dist.all_reduce(strided[:, ::2])
    total = sum(range(1, world + 1))
    assert (strided[:, ::2] == total).all()
    assert (strided[:, 1::2] == 0).all()
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False, True]
    number = torch.tensor([complex(rank, 1)])
    dist.all_reduce(number)
    assert number.item() == complex(world * (world - 1) / 2, world)
    scaled = torch.ones(5)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    assert torch.equal(scaled, torch.full((5,), world * 0.5))


def check_objects_and_groups(rank: int, world: int) -> None:
    objects: list[object] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]
    members = [r for r in range(world) if r % 2 == 0]
    evens = dist.new_group(members)
    everyone = dist.new_group(list(range(world)))
    if rank in members:
        tensor = torch.full((70_000,), float(rank))
        dist.all_reduce(tensor, group=evens)
        assert (tensor == sum(members)).all()
    tensor = torch.ones(11)
    dist.all_reduce(tensor, group=everyone)
    assert (tensor == world).all()


def check_async_and_futures(rank: int, world: int) -> None:
    tensors = [torch.full((size + 1,), float(rank)) for size in SIZES]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = works[-1].get_future().then(lambda future: future.value()[0] * 2)
    for work in works:
        assert work.wait()
        assert work.is_completed()
    total = world * (world - 1) / 2
    assert all((tensor == total).all() for tensor in tensors)
    assert (doubled.wait() == 2 * total).all()


def check_a_callback_may_wait_for_a_collective(rank: int, world: int) -> None:
    """As the PowerSGD hook does: a deadlock if futures were completed on the progress thread."""

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = future.value()[0]
        dist.all_reduce(tensor)
        return tensor

    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert (work.get_future().then(again).wait() == world * world).all()


CHECKS: tuple[Callable[[int, int], None], ...] = (
    check_broadcast,
    check_reduce,
    check_all_gather,
    check_uneven_all_gather,
    check_gather_and_scatter,
    check_reduce_scatter,
    check_reduce_scatter_into_its_own_input,
    check_all_to_all,
    check_overlapping_exchange,
    check_point_to_point,
    check_layouts_and_types,
    check_objects_and_groups,
    check_async_and_futures,
    check_a_callback_may_wait_for_a_collective,
)


def run_all_checks(rank: int, world: int) -> int:
    for life in range(2):  # the second group is created after the first has been destroyed
        dist.init_process_group("topoopt")
        for check in CHECKS if life == 0 else CHECKS[:1]:
            check(rank, world)
        dist.barrier()
        dist.destroy_process_group()
    return len(CHECKS)


@pytest.mark.parametrize(
    ("servers", "degree", "ports"),
    [
        (1, 1, "duplex"),
        (2, 1, "duplex"),
        (3, 2, "duplex"),
        (4, 2, "duplex"),
        (5, 4, "duplex"),
        (8, 2, "duplex"),
        (5, 1, "simplex"),
    ],
)
def test_every_collective_is_right(servers, degree, ports, tmp_path):
    plan = make_plan(servers, degree, ports=ports)
    assert values(run_ranks(plan, tmp_path, run_all_checks)) == [len(CHECKS)] * servers
