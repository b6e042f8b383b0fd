"""What ranks say about their all-to-alls, and what moves, on the memory twin of a fabric."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest
from support.limits import limit_s
from support.memory_mover import MemoryMover

from torch_topoopt.reconfiguration import expected_calls
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.single_cycles import shift_schedule
from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import uneven_strategy
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.circuit_messages import hops_of
from torch_topoopt.reconfiguration.circuit_service import CircuitService
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives
from torch_topoopt.reconfiguration.installed_circuits import InstalledCircuits
from torch_topoopt.reconfiguration.requested_calls import MovedCollective, MovedExchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

SERVERS = 4
ALL = "0,1,2,3 0,1,2,3"  # ranks, and their servers
LIMIT_S = limit_s(10.0)
SCHEDULE = shift_schedule(SERVERS, (1, 3))
OF_PAIRS = shift_schedule(2, (1,))
COSTS = CircuitCosts(0.1, 1e-4, 0.01)
BenchT = TypeVar("BenchT", "Bench", "GroupBench")


class FakeRank:
    """Says lines, and reads those that come, one at a time."""

    def __init__(self, path: str, number: int, server: int | None = None) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(LIMIT_S)
        self.connection.connect(path)
        self._file = self.connection.makefile("r")
        self.reach = "free"
        self.say(f"rank {number} {number if server is None else server}")
        self.greeting = self.hear()

    def say(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\n")

    def hear(self) -> str:
        """The next line that is no `hold`, `wait` or `free`."""
        line = self.hear_any()
        return self.hear() if line == self.reach else line

    def hear_any(self) -> str:
        line = self._file.readline().rstrip("\n")
        if line == "free" or line.startswith(("hold ", "wait ")):
            self.reach = line
        return line

    def wait_for_reach(self, line: str) -> None:
        while self.reach != line:
            self.hear_any()

    def close(self) -> None:
        self._file.close()
        self.connection.close()


class CollectiveChoices:
    """Moves circuits for an AllReduce."""

    least_s = 0.25
    present: tuple[bool, ...] = ()  # topologies that the plan has

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, float, tuple[int, ...]]] = []
        (_, self.schedule) = stepped_collectives("all_reduce", SERVERS, 1, COSTS, 1e6)

    def __call__(
        self, collective: str, total_bytes: int, planned_s: float, servers: tuple[int, ...]
    ) -> Choice:
        self.calls.append((collective, total_bytes, planned_s, servers))
        moves = collective == "all_reduce"
        schedule, why = (self.schedule, "moves") if moves else (None, "stays")
        return Choice(schedule, why, present=self.present)


class Bench:
    def __init__(self, *, ahead: bool = False) -> None:
        self.mover = MemoryMover()
        self.matrices: list[NDArray[np.int64]] = []
        self.groups: list[tuple[int, ...]] = []  # the servers of each
        self.ended: list[MovedExchange | MovedCollective] = []
        self._over = threading.Semaphore(0)
        self.choices = CollectiveChoices()
        self.service = CircuitService(
            SERVERS, self.mover, self._choose, self._on_end, self.choices, ahead=ahead
        )
        self.ranks = [FakeRank(self.service.path, server) for server in range(SERVERS)]

    def _choose(self, matrix: NDArray[np.int64], servers: tuple[int, ...]) -> Choice:
        self.matrices.append(matrix)
        self.groups.append(servers)
        if matrix.sum() < 1000:
            return Choice(None, "small")
        return Choice(SCHEDULE if len(servers) == SERVERS else OF_PAIRS, "large")

    def _on_end(self, ended: MovedExchange | MovedCollective) -> None:
        self.ended.append(ended)
        self._over.release()

    def wait_for_end(self) -> MovedExchange | MovedCollective:
        assert self._over.acquire(timeout=LIMIT_S)
        return self.ended[-1]

    def ask_collective(self, name: str, number: int, size: int = 1000) -> None:
        self.all_say(f"collective 5 {number} {ALL} {name} {size} 77 0.5 -")

    def all_say(self, line: str) -> None:
        for rank in self.ranks:
            rank.say(line)

    def all_hear(self) -> str:
        """The same on all ranks."""
        (line,) = {rank.hear() for rank in self.ranks}
        return line


@contextlib.contextmanager
def opened(bench: BenchT) -> Iterator[BenchT]:
    yield bench
    for rank in bench.ranks:
        rank.close()
    bench.service.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with opened(Bench()) as bench:
        yield bench


def ask(bench: Bench, number: int, size: int = 1000) -> None:
    """Server s has `size` + 10 s + t bytes for server t."""
    for server, rank in enumerate(bench.ranks):
        sizes = ",".join(str(size + 10 * server + target) for target in range(SERVERS))
        rank.say(f"ask 5 {number} {ALL} {sizes} -")


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
    assert bench.mover.topologies == [dict(enumerate(one)) for one in SCHEDULE.links.tolist()]
    for topology in range(3):
        assert bench.mover.at == [(), (0,), (1,), ()][: topology + 1]
        bench.all_say(f"ready 5 0 {topology}")
        assert bench.all_hear() == f"moved 5 0 {topology}"
    assert bench.mover.at == [(), (0,), (1,), ()]
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
    assert bench.mover.at == [()]


def test_topologies_that_stay_dark_stop_it_on_all_ranks(bench: Bench) -> None:
    bench.mover.dark = {1}
    begin(bench, 0)
    bench.all_say("ready 5 0 0")
    assert bench.all_hear() == "moved 5 0 0"
    bench.all_say("ready 5 0 1")
    assert bench.all_hear() == "stop 5 0 topology 1 stays dark"
    assert bench.mover.at == [(), (0,), ()]
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
    assert bench.mover.at == [(), (0,), ()]
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
    assert bench.mover.at == [(), (0,), ()]
    bench.ranks[2].say("lost 5 0 rank 1 acknowledges nothing")  # too late
    begin_first_topology(bench, 1)


def test_a_second_one_waits_until_the_circuits_are_back(bench: Bench) -> None:
    begin(bench, 0)
    for rank in bench.ranks:
        rank.say(f"ask 6 0 {ALL} 0,0,0,0 -")
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
    assert bench.mover.at == [(), (0,), ()]


def test_circuits_are_back_when_it_is_closed(bench: Bench) -> None:
    begin(bench, 0)
    bench.all_say("ready 5 0 0")
    assert bench.all_hear() == "moved 5 0 0"
    bench.service.close()
    assert bench.mover.at == [(), (0,), ()]
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
    assert bench.mover.at == [(), (0,), (1,), (0,), ()]
    *links, last = bench.choices.schedule.links.tolist()
    assert bench.mover.topologies == [dict(enumerate(one)) for one in links]
    assert last == links[0]
    ended = bench.wait_for_end()
    assert isinstance(ended, MovedCollective)
    assert (ended.collective, ended.total_bytes, ended.error) == ("all_reduce", 1000, "")
    assert 0 <= ended.moving_s <= ended.seconds
    assert bench.choices.calls == [("all_reduce", 1000, 0.5, tuple(range(SERVERS)))]
    bench.ask_collective("all_reduce", 1)
    assert bench.all_hear() == f"move 5 1 {ident} {channel}", "hops are sent once"


@pytest.mark.parametrize(
    ("present", "installed"),
    [
        ((True, False, True), [(), (0,), ()]),
        ((True, False, False), [(), (0,), (1,), ()]),
        ((True, True, True), [()]),
    ],
)
def test_topologies_of_the_plan_are_not_moved_to(
    bench: Bench, present: tuple[bool, ...], installed: list[tuple[int, ...]]
) -> None:
    bench.choices.present = present
    bench.ask_collective("all_reduce", 0)
    assert bench.all_hear().startswith("blocks ")
    assert bench.all_hear().startswith("move 5 0 ")
    for topology in range(4):
        bench.all_say(f"ready 5 0 {topology}")
        assert bench.all_hear() == f"moved 5 0 {topology}"
    assert bench.mover.at == installed
    ended = bench.wait_for_end()
    assert ended.error == ""
    assert ended.choice.moves == (len(installed) - 1)
    assert (ended.moving_s > 0) == (len(installed) > 1)


def test_a_collective_that_does_not_pay_stays(bench: Bench) -> None:
    bench.ask_collective("all_gather", 2)
    assert bench.all_hear() == "stay 5 2"
    bench.all_say("done 5 2")
    assert bench.wait_for_end().choice.schedule is None
    assert bench.mover.at == [()]


@pytest.mark.parametrize(
    "other", [f"collective 5 0 {ALL} all_reduce 8 78 0.5 -", f"ask 5 0 {ALL} 1,1,1,1 -"]
)
def test_ranks_that_disagree_compare_their_calls_on_the_plans_circuits(
    bench: Bench, other: str
) -> None:
    for rank in bench.ranks[1:]:
        rank.say(f"collective 5 0 {ALL} all_reduce 8 77 0.5 -")
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


# ---- groups of some servers ---------------------------------------------------------------------


class GroupBench:
    """Moves circuits for AllReduces and keeps them for others; groups are tuples of servers."""

    def __init__(self, *, ahead: bool = False) -> None:
        self.mover = MemoryMover()
        self.ended: list[MovedExchange | MovedCollective] = []
        self._over = threading.Semaphore(0)
        self.service = CircuitService(
            SERVERS, self.mover, None, self._on_end, self._choose(), ahead=ahead
        )
        self.ranks = [FakeRank(self.service.path, server) for server in range(SERVERS)]

    def _on_end(self, ended: MovedExchange | MovedCollective) -> None:
        self.ended.append(ended)
        self._over.release()

    def wait_for_ends(self, count: int) -> list[MovedExchange | MovedCollective]:
        for _ in range(count):
            assert self._over.acquire(timeout=LIMIT_S)
        return self.ended

    @staticmethod
    def _choose() -> CollectiveChoices:
        choices = CollectiveChoices()
        (choices.schedule, *_) = stepped_collectives("all_reduce", 2, 1, COSTS, 1e6)
        return choices

    def request(
        self, group: tuple[int, ...], collective: str = "all_reduce", only: int | None = None
    ) -> None:
        for server in group if only is None else (only,):
            members = ",".join(map(str, group))
            request = (
                f"collective {channel(group)} 0 {members} {members} {collective} 1000 77 0.5 -"
            )
            self.ranks[server].say(request)

    def say(self, group: tuple[int, ...], what: str, *words: int) -> None:
        for server in group:
            self.ranks[server].say(" ".join(map(str, (what, channel(group), 0, *words))))

    def hear(self, group: tuple[int, ...]) -> str:
        """The first word of the next answer, which is for that group on all members."""
        found = set()
        for server in group:
            line = self.ranks[server].hear()
            if line.startswith("blocks"):
                line = self.ranks[server].hear()
            what, of, *_ = line.split(" ")
            assert of == str(channel(group))
            found.add(what)
        (answer,) = found
        return answer

    def pass_by(self) -> None:
        """Returns when the service has handled all earlier messages."""
        rank = FakeRank(self.service.path, SERVERS)
        rank.close()


def channel(group: tuple[int, ...]) -> int:
    return 100 + 10 * group[0] + group[1]


@pytest.fixture
def groups() -> Iterator[GroupBench]:
    with opened(GroupBench()) as bench:
        yield bench


def test_a_group_moves_its_own_servers_and_others_learn_whom_they_reach(
    groups: GroupBench,
) -> None:
    groups.request((3, 1))
    assert groups.hear((3, 1)) == "move"
    groups.say((3, 1), "ready", 0)
    assert groups.hear((3, 1)) == "moved"
    assert groups.mover.topologies == [{3: [1], 1: [3]}]
    groups.say((3, 1), "ready", 1)
    assert groups.hear((3, 1)) == "moved"
    assert groups.mover.at == [(), (0,), ()]
    for server in (0, 2):
        lines = [groups.ranks[server].hear_any() for _ in range(6)]
        change = ["wait 0,2", "hold 0,2", "wait 0,2", "hold 0,1,2,3"]
        assert lines == ["hold 0,1,2,3", *change, "free"]
    (ended,) = groups.wait_for_ends(1)
    assert isinstance(ended, MovedCollective)
    assert ended.members == 2


def test_groups_that_are_ready_together_move_together(groups: GroupBench) -> None:
    pairs = ((0, 1), (2, 3))
    for pair in pairs:
        groups.request(pair)
        assert groups.hear(pair) == "move"
    groups.service._circuits.move_s = 2 * LIMIT_S  # as if the last move had taken so long
    for topology in (0, 1):
        for pair in pairs:
            groups.say(pair, "ready", topology)
        for pair in pairs:
            assert groups.hear(pair) == "moved"
        groups.service._circuits.move_s = 2 * LIMIT_S
    assert groups.mover.at == [(), (0, 1), ()]


def test_a_group_does_not_wait_for_another_longer_than_a_move_takes(groups: GroupBench) -> None:
    for pair in ((0, 1), (2, 3)):
        groups.request(pair)
        assert groups.hear(pair) == "move"
    for topology in (0, 1):
        groups.say((0, 1), "ready", topology)
        assert groups.hear((0, 1)) == "moved"
    assert groups.mover.at == [(), (0,), ()]
    groups.say((2, 3), "ready", 0)
    assert groups.hear((2, 3)) == "moved"
    assert groups.mover.at == [(), (0,), (), (1,)]


def test_groups_that_share_a_server_take_turns(groups: GroupBench) -> None:
    groups.request((0, 1))
    assert groups.hear((0, 1)) == "move"
    groups.request((1, 2))
    groups.pass_by()
    groups.request((2, 3))  # would overtake (1, 2), for which it has to wait
    groups.pass_by()
    for topology in (0, 1):
        groups.say((0, 1), "ready", topology)
        assert groups.hear((0, 1)) == "moved"
    assert groups.hear((1, 2)) == "move"
    for topology in (0, 1):
        groups.say((1, 2), "ready", topology)
        assert groups.hear((1, 2)) == "moved"
    assert groups.hear((2, 3)) == "move"


def test_circuits_do_not_move_while_a_collective_uses_those_of_the_plan(
    groups: GroupBench,
) -> None:
    groups.request((0, 1), "all_gather")
    assert groups.hear((0, 1)) == "stay"
    groups.request((2, 3))
    groups.pass_by()
    groups.request((1, 2), "all_gather")  # not before (2, 3), which waits already
    groups.pass_by()
    groups.say((0, 1), "done")
    assert groups.hear((2, 3)) == "move"
    for topology in (0, 1):
        groups.say((2, 3), "ready", topology)
        assert groups.hear((2, 3)) == "moved"
    assert groups.hear((1, 2)) == "stay"


def test_a_request_that_others_never_join_holds_up_nobody(groups: GroupBench) -> None:
    groups.request((0, 1), only=0)
    groups.request((1, 2))
    assert groups.hear((1, 2)) == "move"
    for topology in (0, 1):
        groups.say((1, 2), "ready", topology)
        assert groups.hear((1, 2)) == "moved"


def move_both(groups: GroupBench) -> None:
    for pair in ((0, 1), (2, 3)):
        groups.request(pair)
        assert groups.hear(pair) == "move"
        groups.say(pair, "ready", 0)
        assert groups.hear(pair) == "moved"
    assert groups.mover.at == [(), (0,), (0, 1)]


def test_lost_circuits_stop_their_own_group_only(groups: GroupBench) -> None:
    move_both(groups)
    groups.mover.lose("no light on 1A-2B", 0)
    assert groups.hear((0, 1)) == "stop"
    assert groups.mover.at == [(), (0,), (0, 1), (1,)]
    groups.say((2, 3), "ready", 1)
    assert groups.hear((2, 3)) == "moved"
    assert [ended.error for ended in groups.wait_for_ends(2)] == ["no light on 1A-2B", ""]


def test_a_move_that_fails_stops_all_groups_whose_circuits_have_moved(groups: GroupBench) -> None:
    groups.mover.dark = {1}
    groups.request((0, 1))
    assert groups.hear((0, 1)) == "move"
    groups.say((0, 1), "ready", 0)
    assert groups.hear((0, 1)) == "moved"
    groups.request((2, 3))
    assert groups.hear((2, 3)) == "move"
    groups.say((2, 3), "ready", 0)
    for pair in ((0, 1), (2, 3)):
        assert groups.hear(pair) == "stop"
    assert groups.mover.at == [(), (0,), ()]
    assert {ended.error for ended in groups.wait_for_ends(2)} == {"topology 1 stays dark"}


def test_a_rank_that_disconnects_stops_its_own_groups_only(groups: GroupBench) -> None:
    move_both(groups)
    groups.ranks[0].close()
    assert groups.ranks[1].hear().startswith(f"stop {channel((0, 1))} 0 server 0 has left")
    groups.say((2, 3), "ready", 1)
    assert groups.hear((2, 3)) == "moved"


def test_ranks_that_connect_again_get_the_hops_again(groups: GroupBench) -> None:
    move_both(groups)
    for pair in ((0, 1), (2, 3)):
        groups.say(pair, "ready", 1)
        assert groups.hear(pair) == "moved"
    for server in (0, 1):
        groups.ranks[server].close()
        groups.ranks[server] = FakeRank(groups.service.path, server)
    groups.request((0, 1))
    for server in (0, 1):
        assert groups.ranks[server].hear().startswith("blocks ")
    groups.request((2, 3))
    for server in (2, 3):
        assert groups.ranks[server].hear().startswith("move ")


# ---- several ranks on a server ------------------------------------------------------------------


def test_all_ranks_of_a_server_take_part_in_a_move(groups: GroupBench) -> None:
    """Ranks 0 and 1 are on server 2, ranks 2 and 3 on server 0."""
    for rank in groups.ranks:
        rank.close()
    groups.ranks = [
        FakeRank(groups.service.path, number, server) for number, server in enumerate((2, 2, 0, 0))
    ]
    for number in range(4):
        groups.ranks[number].say("collective 7 0 0,1,2,3 2,2,0,0 all_reduce 1000 77 0.5 -")
    for rank in groups.ranks:
        assert rank.hear().startswith("blocks ")
        assert rank.hear().startswith("move 7 0 ")
    for topology in (0, 1):
        for rank in groups.ranks[:3]:
            rank.say(f"ready 7 0 {topology}")
        groups.pass_by()
        assert len(groups.mover.at) == 1 + topology
        groups.ranks[3].say(f"ready 7 0 {topology}")
        assert {rank.hear() for rank in groups.ranks} == {f"moved 7 0 {topology}"}
    assert groups.mover.topologies == [{2: [0], 0: [2]}]
    (ended,) = groups.wait_for_ends(1)
    assert ended.members == 4


def test_an_all_to_all_of_some_ranks_moves_the_circuits_of_their_servers(bench: Bench) -> None:
    for rank in (3, 1):
        bench.ranks[rank].say(f"ask 9 0 3,1 3,1 {1000 * rank},7 -")
    for rank in (3, 1):
        assert bench.ranks[rank].hear().startswith("schedule ")
        *_, a, b, c, d = bench.ranks[rank].hear().split(" ")
        assert [a, b, c, d] == ["3000", "7", "1000", "7"]
    assert bench.matrices[0].tolist() == [[3000, 7], [1000, 7]]
    assert bench.groups == [(3, 1)]
    for topology in (0, 1):
        for rank in (3, 1):
            bench.ranks[rank].say(f"ready 9 0 {topology}")
        assert {bench.ranks[rank].hear() for rank in (3, 1)} == {f"moved 9 0 {topology}"}
    assert bench.mover.topologies == [{3: [1], 1: [3]}]
    ended = bench.wait_for_end()
    assert isinstance(ended, MovedExchange)
    assert (ended.members, ended.total_bytes) == (2, 4014)


# ---- circuits for the next collective -----------------------------------------------------------


@pytest.fixture
def ahead() -> Iterator[Bench]:
    """Its collectives have topologies 0, on which all servers reach each other, and 1."""
    with opened(Bench(ahead=True)) as bench:
        bench.choices.schedule = stepped_collectives("all_gather", SERVERS, 1, COSTS, 1e6)[1]
        assert bench.choices.schedule.strides == ((1,), (2,))
        yield bench


def all_reduce(bench: Bench, number: int, size: int = 1000) -> None:
    bench.ask_collective("all_reduce", number, size)
    line = bench.all_hear()
    if line.startswith("blocks"):
        line = bench.all_hear()
    assert line.startswith(f"move 5 {number} ")
    for topology in range(bench.choices.schedule.reconfigurations + 1):
        bench.all_say(f"ready 5 {number} {topology}")
        assert bench.all_hear() == f"moved 5 {number} {topology}"
    assert bench.wait_for_end().error == ""


def exchange(bench: Bench, number: int) -> None:
    begin(bench, number)
    for topology in range(3):
        bench.all_say(f"ready 5 {number} {topology}")
        assert bench.all_hear() == f"moved 5 {number} {topology}"
    assert bench.wait_for_end().error == ""


def stay(bench: Bench, number: int) -> None:
    """The collective uses the circuits of the plan."""
    bench.ask_collective("all_gather", number)
    assert bench.all_hear() == f"stay 5 {number}"
    assert bench.mover.at[-1] == ()
    bench.all_say(f"done 5 {number}")
    bench.wait_for_end()


def test_the_first_topology_of_the_next_collective_is_installed_while_ranks_compute(
    ahead: Bench,
) -> None:
    at = ahead.mover.at
    all_reduce(ahead, 0)
    ahead.mover.wait_for(())  # nothing is expected
    all_reduce(ahead, 1)
    ahead.mover.wait_for((0,))
    all_reduce(ahead, 2)
    ahead.mover.wait_for((0,))
    assert at == [(), (0,), (1,), (), (0,), (1,), (0,), (1,), (0,)]
    stay(ahead, 3)
    assert at[-2:] == [(0,), ()]


def test_it_is_installed_after_a_collective_on_the_circuits_of_the_plan(ahead: Bench) -> None:
    for number in (0, 2):
        all_reduce(ahead, number)
        ahead.mover.wait_for(())
        stay(ahead, number + 1)
    ahead.mover.wait_for((0,))


def test_a_collective_that_ends_on_the_topology_of_the_next_one_moves_nothing(
    ahead: Bench,
) -> None:
    ahead.choices.schedule = stepped_collectives("all_gather", SERVERS, 1, COSTS, 1e6)[0]
    all_reduce(ahead, 0)
    ahead.mover.wait_for(())
    for number in range(1, 4):
        all_reduce(ahead, number)
    assert ahead.mover.at == [(), (0,), (), (0,)]
    assert ahead.ended[-1].moving_s == 0


def test_a_wrong_guess_costs_one_move_and_is_not_repeated(ahead: Bench) -> None:
    at = ahead.mover.at
    for number in (0, 1):
        all_reduce(ahead, number)
        ahead.mover.wait_for((0,) if number else ())
    stay(ahead, 2)  # not the all_reduce that was expected
    assert at == [(), (0,), (1,), (), (0,), (1,), (0,), ()]
    for number in (3, 4):
        all_reduce(ahead, number)
        ahead.mover.wait_for(())  # the all_gather is expected, which uses the plan's circuits
    stay(ahead, 5)
    ahead.mover.wait_for((0,))
    assert at[8:] == [*2 * [(0,), (1,), ()], (0,)]


def test_circuits_that_wait_for_a_collective_in_vain_are_those_of_the_plan_again(
    ahead: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_calls, "_LEAST_S", 0.0)
    monkeypatch.setattr(expected_calls, "_GAPS", 0.0)
    for number in range(2):
        all_reduce(ahead, number)
        ahead.mover.wait_for(())
    assert ahead.mover.at == [(), (0,), (1,), (), (0,), (1,), (0,), ()]


@pytest.fixture
def apart() -> Iterator[Bench]:
    """The topology 0 of its collectives joins servers 0 and 2, and 1 and 3."""
    with opened(Bench(ahead=True)) as bench:
        assert bench.choices.schedule.strides[0] == (2,)
        for number in range(2):
            all_reduce(bench, number)
            bench.mover.wait_for((0,) if number else ())
        yield bench


def test_a_rank_with_messages_for_others_gets_the_circuits_of_the_plan(apart: Bench) -> None:
    for number in (1, 3):
        apart.ranks[number].wait_for_reach("hold 1,3")
    apart.ranks[1].say("restore")
    for rank in apart.ranks:
        rank.wait_for_reach("free")
    assert apart.mover.at[-2:] == [(0,), ()]


def test_messages_between_collectives_are_expected_like_these(apart: Bench) -> None:
    """Rank 1 sends to server 2 between the second and the third one of each step."""
    steps = 3
    for step in range(steps):
        for number in range(3):
            size, call = 100 * number + 8, 3 * step + number + 10
            for rank in apart.ranks:
                used = "2" if rank is apart.ranks[1] and number == 2 else "-"
                rank.say(f"collective 5 {call} {ALL} all_reduce {size} 77 0.5 {used}")
            assert apart.all_hear().startswith(f"move 5 {call} ")
            for topology in range(4):
                apart.all_say(f"ready 5 {call} {topology}")
                assert apart.all_hear() == f"moved 5 {call} {topology}"
            apart.mover.wait_for((0,) if step > 0 and number != 1 else ())
            assert apart.wait_for_end().error == ""


def test_a_topology_that_cannot_be_installed_ahead_fails_no_collective(ahead: Bench) -> None:
    for number in (0, 1):
        begin(ahead, number)
        for topology in range(3):
            if (number, topology) == (1, 2):
                ahead.mover.dark = {0}
            ahead.all_say(f"ready 5 {number} {topology}")
            assert ahead.all_hear() == f"moved 5 {number} {topology}"
        assert ahead.wait_for_end().error == ""
        ahead.mover.wait_for(())
    assert ahead.mover.at == [(), (0,), (1,), (), (0,), (1,), ()]


# ---- circuits for the next collective of a group ------------------------------------------------


@pytest.fixture
def groups_ahead() -> Iterator[GroupBench]:
    with opened(GroupBench(ahead=True)) as bench:
        yield bench


def run(groups: GroupBench, *together: tuple[int, ...]) -> None:
    """AllReduces of groups, at the same time."""
    for group in together:
        groups.request(group)
    for group in together:
        assert groups.hear(group) == "move"
    for topology in (0, 1):
        for group in together:
            groups.say(group, "ready", topology)
        for group in together:
            assert groups.hear(group) == "moved"
    groups.wait_for_ends(len(together))


def test_circuits_of_a_group_stay_for_its_next_collective(groups_ahead: GroupBench) -> None:
    run(groups_ahead, (0, 1))
    groups_ahead.mover.wait_for(())
    for _ in range(3):
        run(groups_ahead, (0, 1))
    assert groups_ahead.mover.at == [(), (0,), (), (0,)]
    groups_ahead.ranks[0].wait_for_reach("hold 0,1")
    groups_ahead.ranks[2].wait_for_reach("hold 2,3")


def test_circuits_move_to_the_groups_of_the_next_phase(
    groups_ahead: GroupBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a move took so long that all groups are ready before the next one."""
    long_s = property(lambda _: LIMIT_S, lambda _, seconds: None)
    monkeypatch.setattr(InstalledCircuits, "move_s", long_s, raising=False)
    phases = (((0, 1), (2, 3)), ((0, 2), (1, 3)))  # tensor and data groups
    for step in range(3):
        for phase in phases:
            run(groups_ahead, *phase)
            if step == 0:
                groups_ahead.mover.wait_for(())
    tensor, data = (tuple(sorted(map(groups_ahead.mover.number_of, phase))) for phase in phases)
    groups_ahead.mover.wait_for(tensor)
    assert groups_ahead.mover.at == [(), tensor, (), data, (), tensor, data, tensor, data, tensor]


def test_a_group_that_waits_for_slow_ranks_keeps_no_circuits_from_others(
    groups_ahead: GroupBench,
) -> None:
    """Server 0 is expected in (0, 1), but (0, 2) comes."""
    for _ in range(2):
        run(groups_ahead, (0, 1))
    groups_ahead.mover.wait_for((0,))
    run(groups_ahead, (0, 2))
    at = groups_ahead.mover.at
    assert at[at.index((1,)) - 1] == (0,)
