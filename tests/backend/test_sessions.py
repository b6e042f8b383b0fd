"""Process groups that come and go, in a process that forks."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from support.limits import limit_s

from torch_topoopt.runtime import backend


def create_a_group_of_the_same_name_again(rank: int, world: int) -> list[float]:
    dist.init_process_group("topoopt")
    sums = []
    for _ in range(3):
        # Named after its members, and the name is free again once the group is destroyed.
        group = dist.new_group([0, 1], use_local_synchronization=True)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        sums.append(tensor.sum().item())
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    return sums


def test_a_group_may_have_the_name_of_one_that_was_destroyed(tmp_path):
    outcomes = run_ranks(make_plan(2, 1), tmp_path, create_a_group_of_the_same_name_again)
    assert values(outcomes) == [[6.0] * 3] * 2


def use_the_groups_of_the_parent(answers: multiprocessing.Queue) -> None:
    with pytest.raises(RuntimeError, match="this process was forked from a rank") as caught:
        dist.all_reduce(torch.ones(3))
    backend._leave()  # as at the exit of the interpreter
    dist.destroy_process_group()
    answers.put(str(caught.value))


def fork_a_process(rank: int, world: int) -> tuple[int | None, str, float]:
    dist.init_process_group("topoopt")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=use_the_groups_of_the_parent, args=(answers,))
    child.start()
    answer = answers.get(timeout=limit_s(30))
    child.join(limit_s(30))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # the rank itself has lost nothing
    dist.destroy_process_group()
    return child.exitcode, answer, tensor.sum().item()


def test_a_forked_process_gets_an_error_and_ends_without_harm(tmp_path):
    for exit_code, answer, total in values(run_ranks(make_plan(2, 1), tmp_path, fork_a_process)):
        assert exit_code == 0
        assert "communicate in the rank itself" in answer
        assert total == 6.0
