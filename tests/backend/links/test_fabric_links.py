"""Jobs whose links are libfabric's."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values
from support.refusals import refused

from torch_topoopt.runtime import backend

if TYPE_CHECKING:
    from pathlib import Path

_LONG = 100_000  # elements: far more than goes into one message


@pytest.fixture(autouse=True)
def _libfabric() -> None:
    from torch_topoopt import _backend

    if missing := _backend.fabric_missing():
        pytest.skip(missing)


def collectives(transport: str, rank: int, world: int) -> set[str]:
    """The kinds of this rank's links, after sums, exchanges and messages of all lengths."""
    os.environ["TOPOOPT_TRANSPORT"] = transport
    dist.init_process_group("topoopt")
    for count in (1, 1000, _LONG):
        tensor = torch.arange(count, dtype=torch.float64) + rank
        dist.all_reduce(tensor)
        expected = world * torch.arange(count, dtype=torch.float64) + sum(range(world))
        assert torch.equal(tensor, expected)
        sent = torch.arange(world * count, dtype=torch.int64) + rank
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        for other in range(world):
            part = torch.arange(rank * count, (rank + 1) * count) + other
            assert torch.equal(received[other * count : (other + 1) * count], part)
    other = (rank + world // 2) % world  # not linked in a ring of four: relayed
    out, into = torch.full((_LONG,), rank), torch.empty(_LONG, dtype=torch.int64)
    works = [dist.isend(out, other), dist.irecv(into, (rank - world // 2) % world)]
    for work in works:
        work.wait()
    assert (into == (rank - world // 2) % world).all()
    kinds = {link["kind"] for link in backend.stats()["links"]}
    dist.destroy_process_group()
    return kinds


@pytest.mark.parametrize(
    ("servers", "degree", "transport"), [(2, 1, "fabric:tcp"), (4, 2, "fabric:tcp")]
)
def test_collectives_and_relayed_messages(servers, degree, transport, tmp_path: Path) -> None:
    plan = make_plan(servers, degree)
    outcomes = run_ranks(plan, tmp_path, functools.partial(collectives, transport))
    assert values(outcomes) == [{"fabric"}] * servers


@pytest.mark.exhaustive
def test_collectives_over_shared_memory_of_libfabric(tmp_path: Path) -> None:
    outcomes = run_ranks(make_plan(2, 1), tmp_path, functools.partial(collectives, "fabric:shm"))
    assert values(outcomes) == [{"fabric"}] * 2


def train(rank: int, world: int) -> float:
    os.environ["TOPOOPT_TRANSPORT"] = "fabric:tcp"
    dist.init_process_group("topoopt")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 200)).square().sum().backward()
        optimizer.step()
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    dist.destroy_process_group()
    return total


def test_data_parallel_training_keeps_ranks_equal(tmp_path: Path) -> None:
    totals = values(run_ranks(make_plan(2, 1), tmp_path, train))
    assert totals[0] == totals[1]


def differ(rank: int, world: int) -> str:
    os.environ["TOPOOPT_TRANSPORT"] = ("tcp", "fabric:tcp")[rank]
    with refused(Exception, "rank 1", "torch_topoopt") as caught:
        dist.init_process_group("topoopt")
    return str(caught.value)


def test_ranks_that_disagree_about_the_transport_have_one_error(tmp_path: Path) -> None:
    for error in values(run_ranks(make_plan(2, 1), tmp_path, differ)):
        assert "; run all with the same --transport or TOPOOPT_TRANSPORT" in error
