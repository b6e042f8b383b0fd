"""All-to-alls during which circuits move, on emulated hosts and an emulated switch, as root."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.backend.moving_circuits import (
    SWITCH_VARIABLE,
    MovingBench,
    compared,
    sent_bytes,
)
from support.backend.ranks import values
from support.fabric.netns_fixtures import own_state, require_namespaces, require_nft
from support.limits import limit_s

from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.fabric.switches.circuits import Difference
from torch_topoopt.links.errors import FabricError
from torch_topoopt.reconfiguration.all_to_all.single_cycles import shift_schedule
from torch_topoopt.reconfiguration.choice import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

SERVERS = 4
LARGE = 2_000_000  # bytes for each other, of which links of 20 Mb/s carry one in 0.8 s


def sizes_of(world: int, seed: int) -> NDArray[np.int64]:
    """Rows for each other, every fifth of them none."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 3000, (world, world))
    sizes[random.random((world, world)) < 0.2] = 0
    return sizes


def uneven(rank: int, world: int, seed: int) -> torch.Tensor:
    sizes = sizes_of(world, seed)
    received, sent = sizes[:, rank].tolist(), sizes[rank].tolist()
    own = torch.randn(sum(sent), 3, generator=torch.Generator().manual_seed(100 * seed + rank))
    into = torch.full((sum(received), 3), torch.nan)
    dist.all_to_all_single(into, own, received, sent)
    return into


def listed(rank: int, world: int) -> torch.Tensor:
    own = [torch.full((2, 3), 10.0 * rank + target) for target in range(world)]
    if dist.get_backend() == "gloo":  # of torch 2.11, takes no lists
        received = torch.full((2 * world, 3), torch.nan)
        dist.all_to_all_single(received, torch.cat(own))
        return received.flatten()
    into = [torch.full((2, 3), torch.nan) for _ in range(world)]
    dist.all_to_all(into, own)
    return torch.cat([tensor.flatten() for tensor in into])


def even(rank: int, world: int) -> torch.Tensor:
    own = torch.arange(40_000 * world, dtype=torch.int64) * world + rank
    into = torch.zeros_like(own)
    dist.all_to_all_single(into, own)
    return into


def everything(rank: int, world: int) -> list[torch.Tensor]:
    """All-to-alls, with other collectives between them, which need the circuits of the plan."""
    results = [even(rank, world), uneven(rank, world, 1)]
    total = torch.full((10_000,), float(rank))
    work = dist.all_reduce(total, async_op=True)
    results.append(uneven(rank, world, 2))
    work.wait()
    results += [total, listed(rank, world)]
    dist.all_reduce(total)
    return [*results, total]


def in_groups(rank: int, world: int) -> list[torch.Tensor]:
    """All-to-alls of some ranks and of all, for which circuits move in turn."""
    some = dist.new_group([0, 2, 3])
    again = dist.new_group()  # all ranks
    results = []
    for group in (None, again):
        own = torch.arange(100_000 * world) * world + rank
        into = torch.zeros_like(own)
        work = dist.all_to_all_single(into, own, group=group, async_op=True)
        if rank != 1:
            part = torch.arange(3000, dtype=torch.float32) + 1000 * rank
            results.append(torch.zeros_like(part))
            dist.all_to_all_single(results[-1], part, group=some)
            dist.all_reduce(part, group=some)
            results.append(part)
        work.wait()
        results.append(into)
    return results


def with_a_dark_circuit(rank: int, world: int) -> tuple[str, list[bool]]:
    """The first all-to-all fails; the group goes on."""
    dist.init_process_group("topoopt")
    error = ""
    try:
        even(rank, world)
    except RuntimeError as caught:
        error = str(caught)
    total = torch.full((10_000,), float(rank))
    dist.all_reduce(total)
    into = even(rank, world).view(world, -1)
    right = [
        bool((into[source] % world == source).all())
        and int(into[source][0]) // world == 40_000 * rank
        for source in range(world)
    ]
    dist.destroy_process_group()
    return error, [bool((total == sum(range(world))).all()), *right]


def remove_a_circuit() -> None:
    switch = NetnsSwitch(os.environ[SWITCH_VARIABLE])
    (circuit,) = (circuit for circuit in switch.circuits() if circuit.ingress == "1A")
    switch.apply(Difference(remove=(circuit,), add=()))


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, timeout=limit_s(10))


# What rank 0 does to the circuits at its port 0, and what makes them whole again.
LOSSES: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "removed at the switch": (remove_a_circuit, lambda: None),
    "port down": (lambda: run("ip link set port0 down"), lambda: run("ip link set port0 up")),
    "silent": (
        lambda: run(
            "nft add table inet cut",
            "nft add chain inet cut in { type filter hook input priority 0 ; }",
            "nft add rule inet cut in iifname port0 drop",
        ),
        lambda: run("nft delete table inet cut"),
    ),
}


def with_a_lost_circuit(rank: int, world: int, loss: str) -> tuple[str, list[bool]]:
    """The first all-to-all ends while chunks travel; the group goes on."""
    cut, mend = LOSSES[loss]
    dist.init_process_group("topoopt", timeout=timedelta(seconds=limit_s(60)))
    dist.barrier()
    before = sent_bytes("port0")
    own = torch.zeros(world * LARGE, dtype=torch.uint8)
    work = dist.all_to_all_single(torch.empty_like(own), own, async_op=True)
    if rank == 0:
        deadline = time.monotonic() + limit_s(30)
        while sent_bytes("port0") < before + LARGE // 4:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        cut()
    error = ""
    try:
        work.wait()
    except RuntimeError as caught:
        error = str(caught)
    if rank == 0:
        mend()
    total = torch.full((10_000,), float(rank))
    dist.all_reduce(total)
    into = even(rank, world).view(world, -1)
    right = [bool((into[source] % world == source).all()) for source in range(world)]
    dist.destroy_process_group()
    return error, [bool((total == sum(range(world))).all()), *right]


SCHEDULE = shift_schedule(SERVERS, (1, 3))


OF_THREE = shift_schedule(3, (1, 2))


def choose(matrix: NDArray[np.int64], servers: tuple[int, ...]) -> Choice:
    if matrix.sum() < 1000:
        return Choice(None, "small")
    return Choice(SCHEDULE if len(servers) == SERVERS else OF_THREE, "large")


@pytest.fixture(params=[None])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MovingBench]:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    with contextlib.ExitStack() as stack:
        yield MovingBench(tmp_path, stack, SERVERS, request.param, choose)


def test_results_are_those_of_gloo(bench: MovingBench) -> None:
    assert (
        values(bench.run(functools.partial(compared, calls=everything))) == [[True] * 6] * SERVERS
    )
    assert [exchange.choice.why for exchange in bench.ended] == ["large"] * 3 + ["small"]
    assert all(not exchange.error for exchange in bench.ended)
    assert bench.fabric.switch().circuits() == bench.circuits_of(bench.plan.network.links)


def test_circuits_move_for_groups_of_some_ranks_in_turn_with_those_of_all(
    bench: MovingBench,
) -> None:
    for rank, right in enumerate(values(bench.run(functools.partial(compared, calls=in_groups)))):
        assert right == [True] * (2 if rank == 1 else 6)
    assert [exchange.choice.why for exchange in bench.ended] == ["large"] * 4
    assert sorted(exchange.members for exchange in bench.ended) == [3, 3, SERVERS, SERVERS]
    assert all(not exchange.error for exchange in bench.ended)
    assert bench.fabric.switch().circuits() == bench.circuits_of(bench.plan.network.links)


def test_a_circuit_that_stays_dark_stops_one_all_to_all(
    bench: MovingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = bench.mover.move
    moves = 0

    def fail_once(numbers: Iterable[int]) -> None:
        nonlocal moves
        moves += 1
        if moves == 2:
            bench.mover.restore()
            raise FabricError("no light on 2A-5B after 1 s")
        move(numbers)

    monkeypatch.setattr(bench.mover, "move", fail_once)
    for error, right in values(bench.run(with_a_dark_circuit)):
        assert "no light on 2A-5B after 1 s" in error
        assert all(right)
    assert [bool(exchange.error) for exchange in bench.ended] == [True, False]


@pytest.mark.parametrize("bench", [0.02], indirect=True)
@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("removed at the switch", r"lost the light on 1A-\d+B while it was used"),
        ("port down", r"lost the light on .*1A-\d+B.* while it was used"),
        ("silent", r"server \d: rank \d acknowledges nothing of what this rank sends it"),
    ],
)
def test_a_circuit_that_is_lost_while_chunks_travel_ends_that_all_to_all_at_once(
    bench: MovingBench, loss: str, why: str
) -> None:
    if loss == "silent":
        require_nft()
    for error, right in values(bench.run(functools.partial(with_a_lost_circuit, loss=loss))):
        assert re.search(why, error), error
        assert all(right)
    assert [bool(exchange.error) for exchange in bench.ended] == [True, False]
    assert bench.fabric.switch().circuits() == bench.circuits_of(bench.plan.network.links)
