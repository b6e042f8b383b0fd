"""The scheduler: disjoint partitions, capacity, order, no starvation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from torch_topoopt.fabric.switches.selector import SIDES
from torch_topoopt.tools.queue.scheduler import (
    Assignment,
    Holding,
    ServerSides,
    Waiting,
    assign,
    fits,
    may_start,
)

if TYPE_CHECKING:
    from torch_topoopt.fabric.switches.selector import Side

BOTH: dict[Side, int] = {"switch": 2, "lookahead": 2}
ONE: dict[Side, int] = {"switch": 2, "lookahead": 0}


def _servers(count: int, ports: dict[Side, int] = BOTH) -> list[ServerSides]:
    return [ServerSides(f"h{i}", ports) for i in range(count)]


def _held(
    job: int, order: int, servers: str, side: Side = "switch", leaving: bool = False
) -> Holding:
    return Holding(job, order, frozenset(f"h{i}" for i in servers), side, leaving)


def test_jobs_get_idle_servers_in_their_order() -> None:
    found = assign(_servers(5), [], [Waiting(1, 2, 2), Waiting(2, 3, 2)])
    assert found == [
        Assignment(1, ("h0", "h1"), "switch"),
        Assignment(2, ("h2", "h3", "h4"), "switch"),
    ]


def test_the_next_job_gets_the_other_side_of_busy_servers() -> None:
    running = _held(1, 1, "0123")
    found = assign(_servers(4), [running], [Waiting(2, 4, 2)])
    assert found == [Assignment(2, ("h0", "h1", "h2", "h3"), "lookahead")]
    mine = Holding(2, 2, frozenset(found[0].servers), "lookahead", False)
    assert not may_start(mine, [running, mine])
    assert may_start(mine, [replace(running, leaving=True), mine])
    assert may_start(running, [running, mine])


def test_without_1x2_switches_it_waits_until_the_circuits_of_the_last_are_gone() -> None:
    for leaving in (False, True):
        held = [_held(1, 1, "01", leaving=leaving)]
        assert assign(_servers(2, ONE), held, [Waiting(2, 2, 2)]) == []
    assert assign(_servers(2, ONE), [], [Waiting(2, 2, 2)])


def test_no_job_overtakes_one_that_has_no_servers_yet() -> None:
    held = [_held(1, 1, "01"), _held(2, 2, "01", "lookahead")]
    assert assign(_servers(3), held, [Waiting(3, 3, 2), Waiting(4, 1, 2)]) == []
    assert assign(_servers(3), held, [Waiting(4, 1, 2)]) == [Assignment(4, ("h2",), "switch")]


def test_a_small_job_does_not_wait_for_a_large_one_on_other_servers() -> None:
    held = [_held(1, 1, "0"), _held(2, 2, "01", "lookahead")]
    small = assign(_servers(3), held, [Waiting(3, 1, 2)])[0]
    assert small.servers == ("h2",)
    assert may_start(_held(3, 3, "2"), held)
    assert not may_start(held[1], held)


def test_it_prefers_idle_servers_and_then_those_of_the_oldest_job() -> None:
    held = [_held(1, 1, "01"), _held(2, 2, "23")]
    assert assign(_servers(6), held, [Waiting(3, 2, 2)])[0].servers == ("h4", "h5")
    assert assign(_servers(4), held, [Waiting(3, 2, 2)])[0].servers == ("h0", "h1")


def test_all_servers_of_a_job_are_on_one_side() -> None:
    held = [_held(1, 1, "0"), _held(2, 1, "1", "lookahead")]
    assert assign(_servers(2), held, [Waiting(3, 2, 2)]) == []


def test_a_job_without_cables_still_needs_a_side_that_is_there() -> None:
    held = [_held(1, 1, "0")]
    assert assign(_servers(1, ONE), held, [Waiting(2, 1, 0)]) == []
    assert assign(_servers(1, BOTH), held, [Waiting(2, 1, 0)])[0].side == "lookahead"


def test_what_never_fits_is_known() -> None:
    assert fits(_servers(3), Waiting(1, 4, 2)) is None
    assert fits(_servers(3), Waiting(1, 3, 3)) is None
    mixed = [*_servers(2), ServerSides("h2", {"switch": 1, "lookahead": 1})]
    assert fits(mixed, Waiting(1, 3, 2)) is None
    assert fits(mixed, Waiting(1, 2, 2)) == Assignment(1, ("h0", "h1"), "switch")


@st.composite
def _days(draw: st.DrawFn) -> tuple[list[ServerSides], list[tuple[int, int]]]:
    """A cluster, and jobs (servers, rounds that each runs) in the order of submission."""
    count = draw(st.integers(1, 7))
    servers = [ServerSides(f"h{i}", draw(st.sampled_from([BOTH, BOTH, ONE]))) for i in range(count)]
    jobs = draw(st.lists(st.tuples(st.integers(1, count), st.integers(1, 4)), max_size=14))
    return servers, jobs


@settings(deadline=None, max_examples=150)
@given(_days(), st.integers(0, 2**32))
def test_partitions_are_disjoint_and_every_job_runs(
    day: tuple[list[ServerSides], list[tuple[int, int]]], seed: int
) -> None:
    """Plays a cluster, round by round, with submissions at random moments."""
    servers, jobs = day
    chance = random.Random(seed)
    sides = {s.name: {side for side in SIDES if s.ports[side] >= 2} for s in servers}
    waiting: list[Waiting] = []
    held: dict[int, Holding] = {}
    left: dict[int, int] = {}  # running -> rounds
    to_come = list(enumerate(jobs))
    assigned: list[int] = []
    finished: set[int] = set()
    rounds = 0
    while len(finished) < len(jobs):
        rounds += 1
        assert rounds <= 100 * (1 + len(jobs)), "a job starves"
        while to_come and chance.random() < 0.5:
            number, (count, _) = to_come.pop(0)
            waiting.append(Waiting(number, count, 2))
        for found in assign(servers, held.values(), waiting):
            assert found.job == waiting[0].job  # in order
            assert len(found.servers) == waiting.pop(0).servers
            assert all(found.side in sides[name] for name in found.servers)
            new = Holding(found.job, len(assigned) + 1, frozenset(found.servers), found.side, False)
            for other in held.values():
                assert other.side != new.side or not other.servers & new.servers
            held[found.job] = new
            assigned.append(found.job)
        for job in list(held):
            if held[job].leaving and chance.random() < 0.7:
                del held[job]  # its circuits are gone
                finished.add(job)
            elif job in left:
                left[job] -= 1
                if left[job] == 0:
                    del left[job]
                    held[job] = replace(held[job], leaving=True)
        for job, mine in held.items():
            if job not in left and not mine.leaving and may_start(mine, held.values()):
                for other in left:
                    assert not held[other].servers & mine.servers
                left[job] = jobs[job][1]
    assert assigned == sorted(assigned)
