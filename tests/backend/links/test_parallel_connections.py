"""Jobs whose links have several connections each."""

from __future__ import annotations

import functools
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, require_tls, run_ranks, values
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.links.wiring import Wiring
from torch_topoopt.runtime import backend, job

if TYPE_CHECKING:
    from pathlib import Path

_LONG = 100_000  # elements: more than one connection takes at a time
_LIMIT_S = 30.0


def exchange(rank: int, world: int, step: int) -> None:
    """Sums, and messages from each to each, some of them relayed; checked to the bit."""
    for count in (1, _LONG):
        summed = torch.arange(count) * (rank + 1) + step
        dist.all_reduce(summed)
        factor = world * (world + 1) // 2
        assert torch.equal(summed, torch.arange(count) * factor + world * step)
        sent = torch.arange(count * world) + rank * step
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        own = torch.arange(rank * count, (rank + 1) * count)
        assert torch.equal(received, torch.cat([own + peer * step for peer in range(world)]))


def data_connections() -> list[socket.socket]:
    """This process's own descriptors of its links' connections, as copies."""
    addresses = {port.address for port in Wiring.load(os.environ["TOPOOPT_WIRING"]).ports}
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # no socket, or gone since
            continue
        connected = copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM
        try:
            if connected and copy.getpeername()[0] in addresses:
                found.append(copy)
                continue
        except OSError:  # a listener
            pass
        copy.close()
    return found


def own_bytes() -> list[int]:
    """Of each link; what it has relayed depends on how far the others are."""
    return [link["sent_bytes"] - link["relayed_bytes"] for link in backend.stats()["links"]]


def counted(per_link: int, encrypted: bool, rank: int, world: int) -> tuple[int, list[int]]:
    """How many connections this rank has, and what its links have sent of one sum."""
    os.environ["TOPOOPT_CONNECTIONS"] = str(per_link)
    os.environ["TOPOOPT_ENCRYPT"] = str(int(encrypted))
    os.environ["TOPOOPT_ALGORITHM"] = "multi_ring"
    dist.init_process_group("topoopt")
    exchange(rank, world, 1)
    before = own_bytes()
    dist.all_reduce(torch.ones(world * _LONG))
    after = own_bytes()
    open_ones = data_connections()
    for copy in open_ones:
        copy.close()
    dist.barrier()
    dist.destroy_process_group()
    return len(open_ones), [b - a for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("encrypted", [False, True])
def test_every_link_has_as_many_and_counts_their_bytes_as_its_own(
    encrypted, tmp_path: Path
) -> None:
    if encrypted:
        require_tls()
    servers, degree = 4, 2  # a ring: opposite servers have no link
    of_one = values(
        run_ranks(make_plan(servers, degree), tmp_path, functools.partial(counted, 1, False))
    )
    of_three = values(
        run_ranks(make_plan(servers, degree), tmp_path, functools.partial(counted, 3, encrypted))
    )
    assert [number for number, _ in of_one] == [degree] * servers
    assert [number for number, _ in of_three] == [3 * degree] * servers
    assert [sent for _, sent in of_three] == [sent for _, sent in of_one]


def lose_some(rank: int, world: int) -> int:
    """Loses one of three connections of a link, and then all three, while the job goes on."""
    os.environ["TOPOOPT_CONNECTIONS"] = "3"
    dist.init_process_group("topoopt")
    session = job.jobs[-1].session
    exchange(rank, world, 0)
    step = 1
    for lost in (1, 3):
        if rank == 0:
            connections = data_connections()
            for connection in connections[:lost]:
                connection.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                connection.close()
        deadline = time.monotonic() + limit_s(_LIMIT_S)
        while True:
            exchange(rank, world, step)
            step += 1
            state = torch.tensor([len(session.lost_cables()), time.monotonic() > deadline])
            dist.all_reduce(state, dist.ReduceOp.MAX)
            assert not state[1], f"lost connections: {int(state[0])}"
            if not state[0]:
                break
    exchange(rank, world, step)
    connections = data_connections()
    for connection in connections:
        connection.close()
    dist.barrier()
    dist.destroy_process_group()
    return len(connections)


def test_a_connection_that_is_lost_is_opened_anew_and_nothing_else_is(tmp_path: Path) -> None:
    numbers = values(run_ranks(make_plan(4, 2), tmp_path, lose_some))
    assert numbers == [6] * 4


def differ(rank: int, world: int) -> str:
    os.environ["TOPOOPT_CONNECTIONS"] = ("1", "2")[rank]
    with refused(Exception, "rank 1", "torch_topoopt") as caught:
        dist.init_process_group("topoopt")
    return str(caught.value)


def test_ranks_that_disagree_about_the_number_have_one_error(tmp_path: Path) -> None:
    for error in values(run_ranks(make_plan(2, 1), tmp_path, differ)):
        assert "; run all with the same --connections or TOPOOPT_CONNECTIONS" in error
