"""Random operations in random order, on several groups and threads at once, with random delays.

TOPOOPT_TEST_SEED chooses another sequence, TOPOOPT_TEST_STEPS a longer one.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import random
import threading
import time
import traceback
from typing import Any

import pytest
import torch.distributed as dist
from support.backend import networks
from support.backend.contract_cases import kinds_of, layouts_of
from support.backend.contract_operations import OPERATIONS, Case, Members, Started
from support.backend.ranks import make_plan, run_ranks, values

from torch_topoopt.runtime import job

SEED = int(os.environ.get("TOPOOPT_TEST_SEED", "1"))
STEPS = int(os.environ.get("TOPOOPT_TEST_STEPS", "200"))  # of each thread
LIMIT_S = 90 + STEPS
LARGEST = 100_000  # elements

_MOST_PENDING = 8  # asynchronous operations of one thread


@dataclasses.dataclass(frozen=True)
class Script:
    """The work of all ranks; `steps[t]` is for thread t: (index of the group, case)."""

    groups: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[tuple[int, Case], ...], ...]
    seed: int
    window_bytes: int


def _random_size(rng: random.Random) -> int:
    return rng.choice((0, 1, 2, int(LARGEST ** rng.random()), int(LARGEST ** rng.random())))


def _random_case(rng: random.Random, number: int) -> Case:
    operation = rng.choice(tuple(OPERATIONS))
    size = _random_size(rng)
    dtype, reduction = rng.choice(kinds_of(operation))
    layout = rng.choice(layouts_of(operation, size))
    return Case(operation, dtype, reduction, size, layout, rng.random() < 0.6, number)


def write_script(world: int, seed: int, *, threads: int, window_bytes: int) -> Script:
    """Every group belongs to one thread, for its members must agree on the order of operations."""
    rng = random.Random(seed)
    groups = [tuple(range(world))]
    groups += [
        tuple(rng.sample(range(world), rng.randint(min(2, world), world)))
        for _ in range(2 * threads - 1)
    ]
    steps = []
    for thread in range(threads):
        mine = range(thread, len(groups), threads)
        steps.append(tuple((rng.choice(mine), _random_case(rng, n)) for n in range(STEPS)))
    return Script(tuple(groups), tuple(steps), seed, window_bytes)


class Actor:
    """One thread of one rank. Finishes its asynchronous operations late, in random order."""

    def __init__(self, script: Script, thread: int, rank: int, members: list[Members]) -> None:
        self._steps = script.steps[thread]
        self._rank = rank
        self._members = members
        self._rng = random.Random(script.seed * 1000 + rank * 10 + thread)
        self._pending: list[tuple[str, Started]] = []
        self.done = 0
        self.error: str | None = None

    def run(self) -> None:
        where = "start"
        try:
            for index, (group, case) in enumerate(self._steps):
                members = self._members[group]
                if self._rank not in members.ranks:
                    continue
                where = f"step {index} on {members.ranks}: {case}"
                self._delay()
                started = OPERATIONS[case.operation](members, case)
                self._pending.append((where, started))
                while len(self._pending) > _MOST_PENDING or (
                    self._pending and (not case.asynchronous or self._rng.random() < 0.3)
                ):
                    where = self._finish_one()
            while self._pending:
                where = self._finish_one()
        except BaseException as error:
            traceback.print_exc()
            self.error = f"{where}: {type(error).__name__}: {error}"
            job.jobs[-1].session.fail(self.error)  # the others should not wait for this thread

    def _finish_one(self) -> str:
        where, started = self._pending.pop(self._rng.randrange(len(self._pending)))
        started.finish()
        self.done += 1
        return where

    def _delay(self) -> None:
        if self._rng.random() < 0.05:
            time.sleep(self._rng.random() * 0.01)


# Before torch 2.13, a group has its ranks in ascending order.
_ANY_ORDER: dict[str, Any] = (
    {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
)


def act(script: Script, rank: int, world: int) -> int:
    job._WINDOW_BYTES = script.window_bytes
    dist.init_process_group("topoopt")
    members = []
    for asked in script.groups:
        ranks = asked if _ANY_ORDER else tuple(sorted(asked))
        group = dist.new_group(list(ranks), **_ANY_ORDER)
        members.append(Members(group, ranks, ranks.index(rank) if rank in ranks else -1))
    actors = [Actor(script, t, rank, members) for t in range(len(script.steps))]
    threads = [threading.Thread(target=actor.run) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [actor.error for actor in actors if actor.error]
    assert not errors, f"seed {script.seed}: {errors}"
    dist.barrier()
    dist.destroy_process_group()
    return sum(actor.done for actor in actors)


SMALL_WINDOW_BYTES = 16 << 10  # less than one frame may carry
WINDOW_BYTES = 4 << 20


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(
    ("make", "world", "threads", "window_bytes"),
    [
        pytest.param(lambda: make_plan(2, 1), 2, 2, WINDOW_BYTES, id="2 on one cable"),
        pytest.param(
            lambda: networks.plan_of(5, networks.line(5)),
            5,
            2,
            SMALL_WINDOW_BYTES,
            id="5 in a line",
        ),
        pytest.param(
            lambda: networks.plan_of(5, networks.star(5)),
            5,
            1,
            SMALL_WINDOW_BYTES,
            id="5 in a star",
        ),
        pytest.param(
            lambda: networks.plan_of(6, networks.ring_with_chord(6)),
            6,
            2,
            SMALL_WINDOW_BYTES,
            id="6 on a ring with a chord",
        ),
        pytest.param(lambda: make_plan(5, 4), 5, 3, WINDOW_BYTES, id="5 on two strides"),
        pytest.param(lambda: make_plan(1, 1), 4, 2, WINDOW_BYTES, id="4 on one server"),
        pytest.param(
            lambda: networks.plan_of(3, networks.line(3)),
            6,
            2,
            SMALL_WINDOW_BYTES,
            id="2 on each server of a line",
        ),
    ],
)
def test_random_sequences_give_the_values_computed_locally(
    make, world, threads, window_bytes, tmp_path
):
    script = write_script(world, SEED, threads=threads, window_bytes=window_bytes)
    outcomes = run_ranks(
        make(), tmp_path, functools.partial(act, script), world=world, limit_s=LIMIT_S
    )
    expected = [
        sum(rank in script.groups[group] for steps in script.steps for group, _ in steps)
        for rank in range(world)
    ]
    assert values(outcomes) == expected, f"seed {SEED}"
