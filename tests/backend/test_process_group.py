"""A process group beside dense collectives: options, splits, monitored barriers."""

from __future__ import annotations

import copy
import os
import pickle
import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.runtime.backend import _extension

CPU = torch.device("cpu")
LATE_MS = 1000  # far more than a rank takes that does call


def default_store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def check_options(rank: int, world: int) -> None:
    options_type = _extension().ProcessGroupTopoopt.Options
    given = options_type(timeout=timedelta(seconds=50))
    given.group_desc = "described"
    dist.init_process_group("topoopt", timeout=timedelta(seconds=70), pg_options=given)
    options = dist.group.WORLD._get_backend(CPU).options
    assert isinstance(options, options_type)
    assert options._timeout == timedelta(seconds=70)
    assert options.global_ranks_in_group == list(range(world))
    assert options.group_desc == "described"
    for duplicate in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert duplicate._timeout == options._timeout
        assert duplicate.group_name == options.group_name
        assert duplicate.global_ranks_in_group == options.global_ranks_in_group
    subgroup = dist.new_group([0, 2], timeout=timedelta(seconds=9))
    if rank in (0, 2):
        options = subgroup._get_backend(CPU).options
        assert options.global_ranks_in_group == [0, 2]
        assert options._timeout == timedelta(seconds=9)
    with refused(TypeError, "pg_options", "ProcessGroupTopoopt.Options"):
        dist.new_group(pg_options=dist.ProcessGroupGloo._Options())


def check_split(rank: int, world: int) -> None:
    parent = dist.new_group([0, 2, 3])
    if rank == 1:
        return
    assert parent._get_backend(CPU).supports_splitting
    halves = parent.split_group([0, 2], group_name="outer two", timeout=timedelta(seconds=20))
    if rank == 2:
        assert halves is None
        return
    tensor = torch.tensor([float(rank)])
    halves.allreduce([tensor]).wait()
    assert tensor.item() == 3
    assert halves._get_backend(CPU).options.global_ranks_in_group == [0, 3]


def check_monitored_barrier(rank: int, world: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=limit_s(20)))
    dist.monitored_barrier(wait_all_ranks=True)
    pair = dist.new_group([1, 2])
    dist.monitored_barrier(pair, timeout=timedelta(seconds=limit_s(20)))
    for round_, wait_all_ranks in enumerate((False, True)):
        if rank in (0, 3):
            with pytest.raises(RuntimeError) as caught:
                dist.monitored_barrier(
                    timeout=timedelta(milliseconds=LATE_MS if rank == 0 else 60_000),
                    wait_all_ranks=wait_all_ranks,
                )
            missing = "Ranks 1, 2" if wait_all_ranks else "Rank 1"
            if rank == 0:
                assert f"{missing} failed to pass monitoredBarrier in {LATE_MS} ms" in str(
                    caught.value
                )
            else:
                assert "Rank 3 successfully reached monitoredBarrier" in str(caught.value)
            default_store().set(f"missed {round_} {rank}", "1")
        default_store().wait([f"missed {round_} 0", f"missed {round_} 3"], timedelta(seconds=20))
    # Nothing is harmed, though two ranks have called it less often.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == world).all()


def run_member_checks(rank: int, world: int) -> None:
    check_options(rank, world)
    check_split(rank, world)
    check_monitored_barrier(rank, world)
    dist.destroy_process_group()


def test_options_splits_and_monitored_barriers(tmp_path):
    values(run_ranks(make_plan(4, 2), tmp_path, run_member_checks))


def use_debug_checks(rank: int, world: int) -> list[str]:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    messages = []
    for _ in range(2):
        dist.init_process_group("topoopt")
        assert isinstance(
            dist.group.WORLD._get_backend(CPU), dist.distributed_c10d._ProcessGroupWrapper
        )
        tensor = torch.ones(5)
        dist.all_reduce(tensor)
        assert (tensor == world).all()
        dist.monitored_barrier(timeout=timedelta(seconds=limit_s(20)))
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(5 if rank else 6))
        messages.append(str(caught.value))
        dist.all_reduce(tensor)  # caught before anything was sent
        assert (tensor == world * world).all()
        dist.destroy_process_group()
    return messages


def test_debug_level_detail_reports_mismatched_shapes_without_gloo(tmp_path):
    for messages in values(run_ranks(make_plan(4, 2), tmp_path, use_debug_checks)):
        for message in messages:
            assert "Detected mismatch between collectives on ranks" in message
            assert "TensorShape=[6]" in message
            assert "TensorShape=[5]" in message


def use_places(rank: int, world: int) -> list[str]:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    first, second = torch.ones(5), torch.full((5,), 100.0)

    def reduce_first() -> None:
        dist.all_reduce(first)

    def reduce_second() -> None:
        dist.all_reduce(second)

    dist.init_process_group("topoopt")
    messages = []
    for call in (reduce_second, reduce_first) if rank == 1 else (reduce_first, reduce_second):
        with pytest.raises(dist.DistBackendError) as caught:
            call()
        messages.append(str(caught.value))
    assert (first[0], second[0]) == (1, 100), "nothing was sent"
    if rank == 1:  # calls with a root and barriers may be in another branch
        dist.broadcast(first, 1)
        dist.barrier()
    else:
        dist.broadcast(first, 1)
        dist.barrier()
    reduce_first()
    assert first[0] == world
    dist.destroy_process_group()
    os.environ["TOPOOPT_COMPARE_PLACES"] = "0"
    dist.init_process_group("topoopt")
    (reduce_second if rank == 1 else reduce_first)()
    dist.destroy_process_group()
    return messages


def test_debug_level_detail_finds_equal_calls_in_another_order(tmp_path):
    outcomes = values(run_ranks(make_plan(3, 2), tmp_path, use_places))
    assert len({tuple(messages) for messages in outcomes}) == 1, "all raise the same"
    for message in outcomes[0]:
        places = dict(re.findall(r"rank (\d) called it at test_process_group.py:(\d+)", message))
        assert len(places) == 2
        assert places["0"] != places["1"]


def reduce_sparse_tensors(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, world)):
        dense = [torch.zeros(6, 4, dtype=torch.float64) for _ in range(world)]
        for r in range(world):
            dense[r][[r, 2 * r % 6, 5]] = torch.arange(12.0, dtype=torch.float64).view(3, 4) + r
        sparse = dense[rank].to_sparse(1)
        work = dist.all_reduce(sparse, op, async_op=True)
        after = torch.ones(3)
        dist.all_reduce(after)
        work.wait()
        assert torch.equal(sparse.to_dense(), sum(dense) / divisor)
        assert torch.equal(work.get_future().wait()[0].to_dense(), sum(dense) / divisor)
    empty = torch.sparse_coo_tensor(torch.empty(2, 0, dtype=torch.long), torch.empty(0), (3, 3))
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    with refused(ValueError, "shape", "type"):
        dist.all_reduce(torch.ones(3 + rank).to_sparse())
    with refused(ValueError, "sum", "average"):
        dist.all_reduce(torch.ones(3).to_sparse(), dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


def test_sparse_tensors_are_summed(tmp_path):
    values(run_ranks(make_plan(4, 2), tmp_path, reduce_sparse_tensors))


def wait_for_a_device(rank: int, world: int) -> float:
    dist.init_process_group("topoopt")
    dist.barrier(device_ids=[0])  # as accelerate does, on the CPU as well
    dist.barrier(device_ids=[0], async_op=True).wait()
    total = torch.ones(2)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.sum().item()


def test_a_barrier_of_devices_needs_no_device(tmp_path):
    assert values(run_ranks(make_plan(2, 1), tmp_path, wait_for_a_device)) == [4.0, 4.0]
