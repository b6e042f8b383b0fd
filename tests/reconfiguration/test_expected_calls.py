"""The circuits for the collectives that are expected next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch_topoopt.reconfiguration.expected_calls import Expectation, ExpectedCalls, FirstTopology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

NOBODY: frozenset[int] = frozenset()
PAIRS = {"01": (0, 1), "23": (2, 3), "02": (0, 2), "13": (1, 3)}  # requests of groups
ALL = range(4)


def first(request: str) -> FirstTopology:
    return FirstTopology(list(PAIRS).index(request), PAIRS[request], frozenset(PAIRS[request]))


class Steps:
    """Ranks 0 to 3, each on its own server; requests of pairs have the numbers 0 to 3."""

    def __init__(self) -> None:
        self.expected = ExpectedCalls()
        self.now = 0.0

    def call(self, request: str, used: Collection[int] = ()) -> None:
        """`used` by the first member."""
        members = PAIRS[request]
        of_members = dict.fromkeys(members, NOBODY) | {members[0]: frozenset(used)}
        self.expected.add(request, of_members, self.now)
        self.expected.begin(request, first(request))
        self.now += 1
        self.expected.end(members, self.now)

    def topologies(
        self,
        waiting: Iterable[int] = (),
        running: Iterable[int] = (),
        installed: Iterable[str] = (),
    ) -> set[int]:
        found = self.expected.topologies(
            {rank: [rank] for rank in ALL},
            waiting,
            running,
            {first(request).number: first(request).servers for request in installed},
            lambda number, _: frozenset(list(PAIRS.values())[number]),
        )
        return set(found)


def test_the_groups_of_the_next_phase_have_their_topologies() -> None:
    steps = Steps()
    for request in ("01", "23", "02", "13", "01", "23"):
        steps.call(request)
    assert steps.topologies() == {2, 3}
    assert steps.topologies(running=[3]) == {2}
    assert steps.topologies(waiting=[2]) == {3}


def test_a_group_waits_for_members_that_do_something_else() -> None:
    steps = Steps()
    for request in (*2 * ("01", "23", "02", "13"), "01"):
        steps.call(request)
    assert steps.topologies() == {1}, "ranks 2 and 3 are expected together next"
    assert steps.topologies(installed=["01"]) == {0, 1}, "0 and 1 need no other circuits yet"


def test_messages_for_other_servers_need_circuits_that_lead_there() -> None:
    for used, found in (((), {0}), ((0, 1), {0}), ((0, 2), set())):
        steps = Steps()
        for _ in range(3):
            steps.call("01", used)
        assert steps.topologies() == found
        assert steps.topologies(installed=["01"]) == found


def test_circuits_wait_for_four_times_the_usual_delay() -> None:
    steps = Steps()
    for _ in range(3):
        steps.now += 2
        steps.call("01")
    assert steps.expected.limit == math.inf
    steps.expected.wait([0, 1], steps.now)
    assert steps.expected.limit == steps.now + 8
    steps.expected.wait([1], steps.now + 5)
    assert steps.expected.limit == steps.now + 8, "rank 1 has waited since then"
    steps.expected.give_up(steps.now + 7.9)
    assert steps.topologies() == {0}
    steps.expected.give_up(steps.now + 8)
    assert steps.topologies() == set()
    assert steps.expected.limit == math.inf


def test_another_request_than_expected_is_doubted_only_where_circuits_waited() -> None:
    for waits in (False, True):
        steps = Steps()
        for request in ("01", "02", "01", "02", "01"):
            steps.call(request)
        assert steps.expected.of(0) == Expectation("02", NOBODY)
        if waits:
            steps.expected.wait([0], steps.now)
        for request in ("01", *4 * ("02", "01")):
            steps.call(request)
        assert steps.expected.of(0) == (None if waits else Expectation("02", NOBODY))
