"""What ranks say about their all-to-alls, and what moves, on the memory twin of a fabric."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.limits import limit_s
from support.memory_mover import MemoryMover

from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.single_cycles import shift_schedule
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import uneven_strategy
from torch_topoopt.reconfiguration.circuit_service import (
    Choice,
    CircuitService,
    MovedCollective,
    MovedExchange,
    hops_of,
)
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

SERVERS = 4
LIMIT_S = limit_s(10.0)
SCHEDULE = shift_schedule(SERVERS, (1, 3))
COSTS = CircuitCosts(0.1, 1e-4, 0.01)


class FakeRank:
    """Says lines, and reads those that come, one at a time."""

    def __init__(self, path: str, server: int) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(LIMIT_S)
        self.connection.connect(path)
        self._file = self.connection.makefile("r")
        self.say(f"server {server}")
        self.greeting = self.hear()

    def say(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\n")

    def hear(self) -> str:
        return self._file.readline().rstrip("\n")

    def close(self) -> None:
        self._file.close()
        self.connection.close()


class CollectiveChoices:
    """Moves circuits for an AllReduce."""

    least_s = 0.25

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, float]] = []
        (_, self.schedule) = stepped_collectives("all_reduce", SERVERS, 1, COSTS, 1e6)

    def __call__(self, collective: str, total_bytes: int, planned_s: float) -> Choice:
        self.calls.append((collective, total_bytes, planned_s))
        moves = collective == "all_reduce"
        return Choice(self.schedule if moves else None, "moves" if moves else "stays")


class Bench:
    def __init__(self) -> None:
        self.mover = MemoryMover()
        self.matrices: list[NDArray[np.int64]] = []
        self.ended: list[MovedExchange | MovedCollective] = []
        self._over = threading.Semaphore(0)
        self.choices = CollectiveChoices()
        self.service = CircuitService(SERVERS, self.mover, self._choose, self._on_end, self.choices)
        self.ranks = [FakeRank(self.service.path, server) for server in range(SERVERS)]

    def _choose(self, matrix: NDArray[np.int64]) -> Choice:
        self.matrices.append(matrix)
        return Choice(None, "small") if matrix.sum() < 1000 else Choice(SCHEDULE, "large")

    def _on_end(self, ended: MovedExchange | MovedCollective) -> None:
        self.ended.append(ended)
        self._over.release()

    def wait_for_end(self) -> MovedExchange | MovedCollective:
        assert self._over.acquire(timeout=LIMIT_S)
        return self.ended[-1]

    def ask_collective(self, name: str, number: int, size: int = 1000) -> None:
        self.all_say(f"collective 5 {number} {name} {size} 77 0.5")

    def all_say(self, line: str) -> None:
        for rank in self.ranks:
            rank.say(line)

    def all_hear(self) -> str:
        """The same on all ranks."""
        (line,) = {rank.hear() for rank in self.ranks}
        return line


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for rank in bench.ranks:
        rank.close()
    bench.service.close()


def ask(bench: Bench, number: int, size: int = 1000) -> None:
    """Server s has `size` + 10 s + t bytes for server t."""
    for server, rank in enumerate(bench.ranks):
        sizes = " ".join(str(size + 10 * server + target) for target in range(SERVERS))
        rank.say(f"ask 5 {number} {sizes}")


def begin(bench: Bench, number: int) -> None:
    ask(bench, number)
    line = bench.all_hear()
    if line.startswith("schedule"):
        line = bench.all_hear()
    assert line.startswith(f"move 5 {number} ")


def test_each_topology_comes_when_all_are_ready_and_the_plans_circuits_last(bench: Bench) -> None:
    begin(bench, 0)
    expected = [1000 + 10 * s + t for s in range(SERVERS) for t in range(SERVERS)]
    assert bench.matrices[0].ravel().tolist() == expected
    assert bench.mover.topologies == SCHEDULE.links.tolist()
    for topology in range(3):
        assert bench.mover.at == [None, 0, 1, None][: topology + 1]
        bench.all_say(f"ready 5 0 {topology}")
        assert bench.all_hear() == f"moved 5 0 {topology}"
    assert bench.mover.at == [None, 0, 1, None]
    exchange = bench.wait_for_end()
    assert isinstance(exchange, MovedExchange)
    assert exchange.choice.why == "large"
    assert exchange.matrix.ravel().tolist() == expected
    assert exchange.total_bytes == sum(expected)
    assert 0 <= exchange.moving_s <= exchange.seconds
    begin(bench, 1)
    assert len(bench.mover.topologies) == 2, "they are prepared once"


def test_one_that_does_not_pay_stays(bench: Bench) -> None:
    ask(bench, 3, size=0)
    assert bench.all_hear() == "stay 5 3"
    bench.ranks[0].say("done 5 3")
    assert not bench.ended
    for rank in bench.ranks[1:]:
        rank.say("done 5 3")
    assert bench.wait_for_end().choice.schedule is None
    assert bench.mover.at == [None]


def test_topologies_that_stay_dark_stop_it_on_all_ranks(bench: Bench) -> None:
    bench.mover.dark = {1}
    begin(bench, 0)
    bench.all_say("ready 5 0 0")
    assert bench.all_hear() == "moved 5 0 0"
    bench.all_say("ready 5 0 1")
    assert bench.all_hear() == "stop 5 0 topology 1 stays dark"
    assert bench.mover.at == [None, 0, None]
    assert bench.wait_for_end().error == "topology 1 stays dark"
    bench.mover.dark = set()
    begin(bench, 1)
    bench.all_say("ready 5 1 0")
    assert bench.all_hear() == "moved 5 1 0"


def begin_first_topology(bench: Bench, number: int) -> str:
    """The channel of the chunks."""
    ask(bench, number)
    line = bench.all_hear()
    if line.startswith("schedule"):
        line = bench.all_hear()
    what, group, name, _, channel, *_ = line.split(" ")
    assert [what, group, name] == ["move", "5", str(number)]
    bench.all_say(f"ready 5 {number} 0")
    assert bench.all_hear() == f"moved 5 {number} 0"
    return channel


def test_circuits_that_are_lost_while_they_are_used_stop_it_on_all_ranks(bench: Bench) -> None:
    first = begin_first_topology(bench, 0)
    bench.mover.lose("")  # something else has happened
    bench.mover.lose("no light on 1A-2B")
    assert bench.all_hear() == "stop 5 0 no light on 1A-2B"
    assert bench.mover.at == [None, 0, None]
    assert bench.wait_for_end().error == "no light on 1A-2B"
    second = begin_first_topology(bench, 1)
    assert second != first, "what is left of the first one's chunks is on its way yet"
    bench.mover.lose("")
    for topology in (1, 2):
        bench.all_say(f"ready 5 1 {topology}")
        assert bench.all_hear() == f"moved 5 1 {topology}"
    assert bench.wait_for_end().error == ""
    assert begin_first_topology(bench, 2) == second


def test_a_rank_that_is_not_answered_stops_it_on_all_ranks(bench: Bench) -> None:
    begin_first_topology(bench, 0)
    bench.ranks[3].say("lost 5 0 rank 1 acknowledges nothing")
    assert bench.all_hear() == "stop 5 0 server 3: rank 1 acknowledges nothing"
    assert bench.mover.at == [None, 0, None]
    bench.ranks[2].say("lost 5 0 rank 1 acknowledges nothing")  # too late
    begin_first_topology(bench, 1)


def test_a_second_one_waits_until_the_circuits_are_back(bench: Bench) -> None:
    begin(bench, 0)
    for rank in bench.ranks:
        rank.say("ask 6 0 0 0 0 0")
    for topology in range(3):
        bench.all_say(f"ready 5 0 {topology}")
        assert bench.all_hear() == f"moved 5 0 {topology}"
    assert bench.all_hear() == "stay 6 0"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_that_leaves_stops_it_for_the_others(bench: Bench, leaves: bool) -> None:
    begin(bench, 0)
    bench.all_say("ready 5 0 0")
    assert bench.all_hear() == "moved 5 0 0"
    if leaves:
        bench.ranks[2].say("leave 5 0 it is broken")
    else:
        bench.ranks[2].close()
    why = "it is broken" if leaves else "server 2 has left"
    assert bench.ranks[0].hear() == f"stop 5 0 {why}"
    assert bench.ranks[1].hear() == f"stop 5 0 {why}"
    assert bench.wait_for_end().error == why
    assert bench.mover.at == [None, 0, None]


def test_circuits_are_back_when_it_is_closed(bench: Bench) -> None:
    begin(bench, 0)
    bench.all_say("ready 5 0 0")
    assert bench.all_hear() == "moved 5 0 0"
    bench.service.close()
    assert bench.mover.at == [None, 0, None]
    assert bench.mover.closed


def test_ranks_learn_what_to_request(bench: Bench) -> None:
    assert {rank.greeting for rank in bench.ranks} == {"asks 1 0.25"}
    with CircuitService(SERVERS, MemoryMover(), None) as service:
        rank = FakeRank(service.path, 0)
        assert rank.greeting == "asks 0 inf"
        rank.close()


def test_circuits_move_for_an_all_reduce_and_ranks_get_its_hops(bench: Bench) -> None:
    bench.ask_collective("all_reduce", 0)
    what, ident, parts, blocks, *words = bench.all_hear().split(" ")
    assert [what, int(parts), int(blocks)] == ["blocks", 1, SERVERS]
    sent = []
    while words:
        count = int(words.pop(0))
        hops = np.array(words[: 5 * count], dtype=np.int64).reshape(-1, 5)
        sent.append([tuple(hop) for hop in hops.tolist()])
        del words[: 5 * count]
    assert sent == bench.choices.schedule.hops()
    assert len(sent) == 3
    what, group, number, program, channel = bench.all_hear().split(" ")
    assert [what, group, number, program] == ["move", "5", "0", ident]
    for topology in range(4):
        bench.all_say(f"ready 5 0 {topology}")
        assert bench.all_hear() == f"moved 5 0 {topology}"
    assert bench.mover.at == [None, 0, 1, 2, None]
    assert bench.mover.topologies == bench.choices.schedule.links.tolist()
    ended = bench.wait_for_end()
    assert isinstance(ended, MovedCollective)
    assert (ended.collective, ended.total_bytes, ended.error) == ("all_reduce", 1000, "")
    assert 0 <= ended.moving_s <= ended.seconds
    assert bench.choices.calls == [("all_reduce", 1000, 0.5)]
    bench.ask_collective("all_reduce", 1)
    assert bench.all_hear() == f"move 5 1 {ident} {channel}", "hops are sent once"


def test_a_collective_that_does_not_pay_stays(bench: Bench) -> None:
    bench.ask_collective("all_gather", 2)
    assert bench.all_hear() == "stay 5 2"
    bench.all_say("done 5 2")
    assert bench.wait_for_end().choice.schedule is None
    assert bench.mover.at == [None]


@pytest.mark.parametrize("other", ["collective 5 0 all_reduce 8 78 0.5", "ask 5 0 1 1 1 1"])
def test_ranks_that_disagree_compare_their_calls_on_the_plans_circuits(
    bench: Bench, other: str
) -> None:
    for rank in bench.ranks[1:]:
        rank.say("collective 5 0 all_reduce 8 77 0.5")
    bench.ranks[0].say(other)
    assert bench.all_hear() == "stay 5 0"
    bench.all_say("done 5 0")
    begin(bench, 1)
    assert not bench.ended
    assert not bench.choices.calls


def uneven_schedule() -> AllToAllSchedule:
    counts = np.arange(SERVERS * SERVERS, dtype=np.int32).reshape(SERVERS, SERVERS) % 5
    np.fill_diagonal(counts, 0)
    (even, *_) = strategies(SERVERS, 2)
    return uneven_strategy(even, counts).schedule


@pytest.mark.parametrize("schedule", [SCHEDULE, uneven_schedule()], ids=["even", "uneven"])
def test_hops_follow_the_links_and_deliver_every_chunk(schedule: AllToAllSchedule) -> None:
    counts = schedule.chunk_counts()
    at = {(s, t, part): s for s, t in np.argwhere(counts) for part in range(counts[s, t])}
    for topology, hops in enumerate(hops_of(schedule)):
        for sender, receiver, *chunk in hops:
            assert at[tuple(chunk)] == sender
            assert receiver in schedule.links[topology, sender]
            at[tuple(chunk)] = receiver
    assert all(where == target for (_, target, _), where in at.items())
