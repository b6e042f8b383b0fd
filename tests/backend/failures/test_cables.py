"""Cables that fail while a job uses them, and come back; in network namespaces, as root."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.host_ranks import run_on_hosts
from support.backend.ranks import make_plan
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces, require_nft
from support.limits import limit_s

from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.runtime import job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SERVERS = 4
ELEMENTS = 20_000
LIMIT_S = 30.0


def dropping(what: str) -> tuple[list[str], list[str]]:
    """Commands that drop `what` (a match of nft) of what comes in at port 0, and that undo it."""
    return (
        [
            "nft add table inet cut",
            "nft add chain inet cut in { type filter hook input priority 0 ; }",
            f"nft add rule inet cut in iifname port0 {what} drop",
        ],
        ["nft delete table inet cut"],
    )


# What rank 0 does to its port 0, and how it undoes that.
FAULTS = {
    "down": (["ip link set port0 down"], ["ip link set port0 up"]),
    "silent": dropping(""),
}


def run_all(commands: list[str]) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, timeout=limit_s(10))


def communicate(rank: int, world: int, step: int) -> None:
    """One of everything, with results that are checked to the bit."""
    summed = torch.arange(ELEMENTS) * (rank + 1) + step
    dist.all_reduce(summed)
    assert torch.equal(summed, torch.arange(ELEMENTS) * (world * (world + 1) // 2) + world * step)
    sent = torch.arange(ELEMENTS * world) + rank * step
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    own = torch.arange(rank * ELEMENTS, (rank + 1) * ELEMENTS)
    expected = [own + peer * step for peer in range(world)]
    assert torch.equal(received, torch.cat(expected))
    root = step % world
    news = torch.full((ELEMENTS,), step if rank == root else -1)
    dist.broadcast(news, root)
    assert bool((news == step).all())


def steps_until(rank: int, world: int, first: int, *, cables_are_lost: bool) -> int:
    """Works until some rank, or no rank, has lost a cable; the number of the next step."""
    deadline = time.monotonic() + limit_s(LIMIT_S)
    for step in range(first, 1_000_000):
        communicate(rank, world, step)
        lost = torch.tensor([len(job.jobs[-1].session.lost_cables()), time.monotonic() > deadline])
        dist.all_reduce(lost, dist.ReduceOp.MAX)
        assert not lost[1], f"after {step} steps: lost cables: {int(lost[0])}"
        if bool(lost[0] > 0) is cables_are_lost:
            return step + 1
    raise AssertionError("unreachable")


def live_on(fault: str, rank: int, world: int) -> int:
    dist.init_process_group("topoopt")
    cut, repair = FAULTS[fault]
    communicate(rank, world, 0)
    step = 1
    for _ in range(2):
        if rank == 0:
            run_all(cut)
        step = steps_until(rank, world, step, cables_are_lost=True)
        communicate(rank, world, step)
        if rank == 0:
            run_all(repair)
        step = steps_until(rank, world, step + 1, cables_are_lost=False)
    communicate(rank, world, step)
    dist.destroy_process_group()
    return step


def live_with_small_packets(rank: int, world: int) -> int:
    """As where the two ends of a cable are set to different sizes of packets."""
    dist.init_process_group("topoopt")
    communicate(rank, world, 0)
    cut, repair = dropping("meta length > 1000")
    if rank == 0:
        run_all(cut)
    for step in range(1, 20):
        communicate(rank, world, step)
    if rank == 0:
        run_all(repair)
    communicate(rank, world, 20)
    dist.destroy_process_group()
    return 20


def run_on_cables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: Callable[[int, int], int], **more: str
) -> list[int]:
    """What `live` returns on each server of a ring of namespaces."""
    own_state(tmp_path, monkeypatch)
    with contextlib.closing(NetnsFabric(a_name(), NetnsOptions(relay="user"))) as fabric:
        return run_on_hosts(fabric, make_plan(SERVERS, 2), tmp_path, live, **more)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_goes_on_without_a_cable_and_takes_it_back(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    if fault == "silent":
        require_nft()
    steps = run_on_cables(tmp_path, monkeypatch, functools.partial(live_on, fault))
    assert len(set(steps)) == 1, "no rank has missed a step"


def test_a_job_goes_on_where_a_cable_passes_small_packets_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    require_nft()
    # Less than what the system takes to send again what is lost for the fifth time.
    limit = {"TOPOOPT_SILENCE_LIMIT_S": "5"}
    run_on_cables(tmp_path, monkeypatch, live_with_small_packets, **limit)
