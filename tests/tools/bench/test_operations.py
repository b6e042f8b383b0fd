"""Expected results of operations, against results written out by hand."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.refusals import refused

from harness.rank_processes import RankError, call_in_processes
from torch_topoopt.tools.bench.operations import Buffers, Case
from torch_topoopt.tools.bench.options import OPERATIONS
from torch_topoopt.tools.bench.timing import GroupPeer

if TYPE_CHECKING:
    from pathlib import Path


def case(operation: str, *, reduce_op: str = "sum", size_bytes: int = 32, ranks: int = 2) -> Case:
    return Case(operation, size_bytes, "float", reduce_op, 0, ranks - 1, ranks)


def test_counts_are_per_rank_where_the_buffer_is_split() -> None:
    split, whole = case("all_gather", size_bytes=44), case("all_reduce", size_bytes=44)
    assert (split.count, split.elements, split.moved_bytes) == (5, 10, 40)
    assert (whole.count, whole.elements, whole.moved_bytes) == (11, 11, 44)


def test_a_reduction_is_right_only_if_every_element_is() -> None:
    buffers = Buffers(case("all_reduce"), rank=1)
    assert buffers.input.tolist() == [1, 2, 3, 4, 5, 6, 0, 1]
    buffers.output.copy_(torch.tensor([1, 3, 5, 7, 9, 11, 6, 1]))
    assert buffers.wrong() == 0
    buffers.output[3] = 8
    assert buffers.wrong() == 1


@pytest.mark.parametrize(
    ("reduce_op", "first"), [("prod", 2), ("min", 0), ("max", 1), ("avg", 0.5)]
)
def test_every_reduce_op_has_its_own_result(reduce_op: str, first: float) -> None:
    buffers = Buffers(case("all_reduce", reduce_op=reduce_op, size_bytes=4), rank=0)
    buffers.output.fill_(first)
    assert buffers.wrong() == 0
    buffers.output.fill_(3)
    assert buffers.wrong() == 1


def test_only_the_root_of_a_reduce_and_the_receiver_of_a_send_have_a_result() -> None:
    for operation, rank, wrong in (("reduce", 1, 0), ("sendrecv", 0, 0), ("sendrecv", 1, 8)):
        assert Buffers(case(operation), rank).wrong() == wrong, (operation, rank)


def test_gloo_gets_every_operation_right(tmp_path: Path) -> None:
    def run(rank: int) -> dict[str, int]:
        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=3
        )
        wrong = {}
        for operation in OPERATIONS:
            buffers = Buffers(case(operation, size_bytes=240, ranks=3), rank)
            buffers.call(dist.group.WORLD)
            wrong[operation] = buffers.wrong()
        dist.destroy_process_group()
        return wrong

    assert call_in_processes(3, run, limit_s=60.0) == [dict.fromkeys(OPERATIONS, 0)] * 3


def test_a_process_that_fails_is_named_and_the_others_end() -> None:
    def run(rank: int) -> None:
        if rank == 1:
            raise ValueError("no cable")

    with refused(RankError, "rank 1", "ValueError"):
        call_in_processes(2, run, limit_s=20.0)


def test_a_process_that_is_late_is_named() -> None:
    with refused(RankError, "rank 0", 0.2):
        call_in_processes(1, lambda _: time.sleep(60), limit_s=0.2)


def test_what_is_renewed_is_what_the_rank_sends() -> None:
    for operation, rank, sends in [
        ("all_reduce", 0, True),
        ("all_to_all", 1, True),
        ("sendrecv", 0, True),
        ("sendrecv", 1, False),
    ]:
        buffers = Buffers(case(operation), rank)
        before = buffers.input.clone()
        buffers.renew()
        assert (buffers.input == (1 if sends else before)).all(), (operation, rank)


def _seconds_with_new_buffers(rank: int, store: str) -> float:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    peer = GroupPeer("gloo", dist.group.WORLD, rank, renews=True)
    assert peer.wrong(case("all_to_all")) == 0
    seconds = peer.seconds(case("all_to_all"), 1, 20)
    assert peer.cpu_s >= 0
    dist.destroy_process_group()
    return seconds


def test_calls_are_timed_without_what_renews_their_buffers(tmp_path: Path) -> None:
    body = functools.partial(_seconds_with_new_buffers, store=str(tmp_path / "store"))
    assert all(0 < seconds < 60 for seconds in call_in_processes(2, body, limit_s=120))
