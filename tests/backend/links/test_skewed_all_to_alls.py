"""All-to-alls of unequal sizes over circuits that move, on eight emulated hosts, as root."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.backend.moving_circuits import MovingBench, compared, sent_bytes
from support.backend.ranks import make_plan, values
from support.fabric.netns_fixtures import own_state, require_namespaces
from support.limits import limit_s
from support.matrices import zipf

from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser
from torch_topoopt.reconfiguration.matrix_planning import planned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.choice import Choice

SERVERS = 8
PAIR_BYTES = 30_000
DEAD = 3  # a rank


def noisy(seed: int, draw: int) -> NDArray[np.int64]:
    """One of two matrices, with bytes for itself and up to 4 % of noise."""
    matrix = zipf(SERVERS, 1.0, PAIR_BYTES, seed) + 100 * np.eye(SERVERS, dtype=np.int64)
    random = np.random.default_rng([seed, draw])
    return (matrix * random.uniform(0.96, 1.04, matrix.shape)).astype(np.int64)


MATRICES = [
    noisy(0, 0),
    noisy(0, 1),
    noisy(0, 2),
    noisy(1, 0),
    noisy(1, 1),
    noisy(1, 2),
    noisy(0, 3),
]


def exchange(rank: int, matrix: NDArray[np.int64], *, async_op: bool = False) -> torch.Tensor:
    sent, received = matrix[rank].tolist(), matrix[:, rank].tolist()
    own = torch.randint(256, (sum(sent),), generator=torch.Generator().manual_seed(rank))
    into = torch.zeros(sum(received), dtype=torch.uint8)
    dist.all_to_all_single(into, own.to(torch.uint8), received, sent)
    return into


def all_exchanges(rank: int, world: int) -> list[torch.Tensor]:
    return [exchange(rank, matrix) for matrix in MATRICES]


def until_a_member_dies(rank: int, world: int) -> str:
    """The error of the third all-to-all, during which a rank ends."""
    dist.init_process_group("topoopt", timeout=timedelta(seconds=limit_s(120)))
    for matrix in MATRICES[:2]:
        exchange(rank, matrix)
    dist.barrier()
    before = sent_bytes("port0")
    matrix = 10 * MATRICES[2]
    sent, received = matrix[rank].tolist(), matrix[:, rank].tolist()
    into = torch.empty(sum(received), dtype=torch.uint8)
    own = torch.zeros(sum(sent), dtype=torch.uint8)
    work = dist.all_to_all_single(into, own, received, sent, async_op=True)
    if rank == DEAD:
        deadline = time.monotonic() + limit_s(30)
        while sent_bytes("port0") < before + PAIR_BYTES:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os._exit(1)
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


class PatientChooser:
    """An AllToAllChooser that waits for the plans that it begins; keeps the choices.

    The all-to-all after that one does not wait: ranks may measure its time.
    """

    def __init__(self) -> None:
        # Circuits are faster than this, so that tests are fast.
        self.chooser = AllToAllChooser(make_plan(SERVERS, 2), 0.01, always=True, gbps=0.001)
        self.choices: list[Choice] = []

    def __call__(self, matrix: NDArray[np.int64], servers: tuple[int, ...]) -> Choice:
        self.choices.append(self.chooser(matrix, servers))
        if self.chooser.plans._planning is not None:
            self.chooser.plans._planning._process.wait(limit_s(60))
        return self.choices[-1]


@pytest.fixture
def choose() -> Iterator[PatientChooser]:
    choose = PatientChooser()
    yield choose
    choose.chooser.close()


@pytest.fixture(params=[None])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    choose: PatientChooser,
) -> Iterator[MovingBench]:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    with contextlib.ExitStack() as stack:
        yield MovingBench(tmp_path, stack, SERVERS, request.param, choose)


def test_matrices_that_come_again_run_over_their_own_schedules(
    bench: MovingBench, choose: PatientChooser
) -> None:
    right = values(bench.run(functools.partial(compared, calls=all_exchanges)))
    assert right == [[True] * len(MATRICES)] * SERVERS
    assert [exchange.error for exchange in bench.ended] == [""] * len(MATRICES)
    assert [exchange.choice for exchange in bench.ended] == choose.choices
    for exchanged, matrix in zip(bench.ended, MATRICES, strict=True):
        assert exchanged.matrix.tolist() == matrix.tolist()
    equal = choose.chooser.schedules
    programs = [choice.schedule for choice in choose.choices]
    assert programs[0] in equal
    assert programs[1] in equal
    assert "; the schedule for equal sizes; one for these sizes is being planned" in (
        choose.choices[1].kind
    )
    for index, base in ((2, 1), (5, 4)):
        of_planner = MATRICES[base].copy()
        np.fill_diagonal(of_planner, 0)
        expected = planned(of_planner, choose.chooser.degree, choose.chooser.costs)
        found = programs[index]
        assert found is not None
        assert found not in equal
        assert found.links.tolist() == expected.links.tolist()
        assert found.sends.tolist() == expected.sends.tolist()
    assert programs[6] is programs[2]
    assert programs[5] is not programs[2]


@pytest.mark.parametrize("bench", [0.02], indirect=True)
def test_a_member_that_dies_ends_it_for_the_others(
    bench: MovingBench, choose: PatientChooser
) -> None:
    outcomes = bench.run(until_a_member_dies)
    assert choose.choices[2].schedule not in choose.chooser.schedules
    for rank, outcome in enumerate(outcomes):
        if rank != DEAD:
            assert outcome.error is None
            assert f"rank {DEAD}" in outcome.value or f"server {DEAD}" in outcome.value
    assert [bool(exchange.error) for exchange in bench.ended] == [False, False, True]
