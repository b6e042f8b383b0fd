"""AllReduce and others during which circuits move, on emulated hosts and an emulated switch, as
root."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.moving_circuits import SWITCH_VARIABLE, MovingBench, sent_bytes
from support.backend.ranks import make_plan, values
from support.fabric.netns_fixtures import own_state, require_namespaces
from support.limits import limit_s

from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.fabric.switches.circuits import Difference
from torch_topoopt.links.errors import FabricError
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.collective_choice import CollectiveChooser
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

SERVERS = 4
COSTS = CircuitCosts(0.02, 1e-4, 0.01)
ODD = 30_011  # elements, which no number of blocks divides
LARGE = 1_000_000  # floats; a link of 20 Mb/s carries them in 1.6 s


class EveryTopology:
    """Moves circuits for collectives of at least 100 bytes, with every number of topologies in
    turn."""

    least_s = 0.0

    def __init__(self) -> None:
        self.topologies: list[tuple[str, int]] = []
        self._schedules: dict[str, list[Any]] = {}

    def __call__(
        self, collective: str, total_bytes: int, planned_s: float, servers: tuple[int, ...]
    ) -> Choice:
        if total_bytes < 100:
            return Choice(None, "small")
        if not self._schedules.get(collective):
            self._schedules[collective] = self.schedules(collective)
        schedule = self._schedules[collective].pop(0)
        self.topologies.append((collective, schedule.reconfigurations))
        return Choice(schedule, "large")

    @staticmethod
    def schedules(collective: str) -> list[Any]:
        """Over one circuit of each server, and over two."""
        return [
            schedule
            for degree in (1, 2)
            for schedule in stepped_collectives(collective, SERVERS, degree, COSTS, 1e6)
        ]


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
REDUCTIONS = [
    *((dtype, op) for dtype in (*FLOATS, torch.int64) for op in ("SUM", "MAX")),
    *((torch.float32, op) for op in ("PRODUCT", "MIN", "AVG")),
    *((torch.int32, op) for op in ("BAND", "BOR", "BXOR", "MIN")),
    (torch.uint8, "SUM"),
    (torch.int8, "SUM"),
    (torch.bool, "BOR"),
    (torch.complex64, "SUM"),
]


def data(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, of which sums and products are exact in all types."""
    made = torch.arange(count) * (rank + 3) % 4 + 1
    return made % 2 == 0 if dtype == torch.bool else made.to(dtype)


def reduced(rank: int, world: int) -> list[torch.Tensor]:
    results = []
    for dtype, op in REDUCTIONS:
        own = data(rank, ODD, dtype)
        dist.all_reduce(own, getattr(dist.ReduceOp, op))
        results.append(own)
    return results


def others(rank: int, world: int) -> list[torch.Tensor]:
    """Each as often as there are schedules, and more; some of them asynchronous."""
    results = []
    for number in range(6):
        gathered = torch.zeros(world * ODD, dtype=torch.int32)
        works = [dist.all_gather_into_tensor(gathered, data(rank, ODD, torch.int32), async_op=True)]
        message = data(rank, ODD, torch.float64)
        works.append(dist.broadcast(message, number % world, async_op=True))
        part = torch.zeros(ODD)
        works.append(dist.reduce_scatter_tensor(part, data(rank, world * ODD), async_op=True))
        small = torch.full((3,), float(rank))
        works.append(dist.all_reduce(small, async_op=True))
        for work in works:
            work.wait()
        results += [gathered, message, part, small]
    return results


def compared(rank: int, world: int) -> list[bool]:
    """Whether topoopt's results are those of gloo, bit for bit."""
    found: list[list[torch.Tensor]] = []
    for backend in ("topoopt", "gloo"):
        dist.init_process_group(backend)
        # gloo averages nothing.
        results = [] if backend == "gloo" else reduced(rank, world)
        if backend == "gloo":
            for dtype, op in REDUCTIONS:
                own = data(rank, ODD, dtype)
                dist.all_reduce(own, getattr(dist.ReduceOp, "SUM" if op == "AVG" else op))
                results.append(own / world if op == "AVG" else own)
        found.append(results + others(rank, world))
        dist.destroy_process_group()
    return [torch.equal(a, b) for a, b in zip(*found, strict=True)]


SHARED = ((0, 1, 4, 5), (1, 3, 5, 7), (2, 3, 6, 7), (0, 3, 1, 2), (6, 5, 7))  # 2 ranks a server


def in_shared_groups(rank: int, world: int) -> list[bool]:
    """Collectives of groups with one or two ranks on a server, one after the other."""
    dist.init_process_group("topoopt")
    groups = {ranks: dist.new_group(list(ranks)) for ranks in SHARED}
    right = []
    for ranks, group in groups.items():
        if rank not in ranks:
            continue
        everything = [data(one, len(ranks) * ODD) for one in sorted(ranks)]
        own = data(rank, len(ranks) * ODD)
        part = torch.zeros(ODD)
        dist.reduce_scatter_tensor(part, own.clone(), group=group)
        place = sorted(ranks).index(rank)
        total = torch.stack(everything).sum(0)
        right.append(torch.equal(part, total[place * ODD : (place + 1) * ODD]))
        dist.all_reduce(own, group=group)
        right.append(torch.equal(own, total))
        gathered = torch.zeros(len(ranks) * ODD)
        dist.all_gather_into_tensor(gathered, data(rank, ODD), group=group)
        right.append(torch.equal(gathered, torch.cat([data(one, ODD) for one in sorted(ranks)])))
        message = data(rank, ODD)
        dist.broadcast(message, max(ranks), group=group)
        right.append(torch.equal(message, data(max(ranks), ODD)))
    dist.destroy_process_group()
    return right


def uneven(rank: int, world: int) -> list[bool]:
    """Blocks of different sizes, which gloo does not gather; some are empty."""
    dist.init_process_group("topoopt")
    sizes = [0, 30_001, 7, 12_000]
    right = []
    for _ in range(3):
        gathered = [torch.zeros(size) for size in sizes]
        dist.all_gather(gathered, data(rank, sizes[rank]))
        right += [torch.equal(one, data(other, sizes[other])) for other, one in enumerate(gathered)]
        part = torch.zeros(sizes[rank])
        dist.reduce_scatter(part, [data(rank, size) for size in sizes])
        total = torch.stack([data(other, sizes[rank]) for other in range(world)]).sum(0)
        right.append(torch.equal(part, total))
    dist.destroy_process_group()
    return right


def rounded(rank: int, world: int) -> list[bytes]:
    """Sums that depend on the order of additions."""
    dist.init_process_group("topoopt")
    results = []
    for number in range(5):
        own = torch.randn(ODD, generator=torch.Generator().manual_seed(10 * number + rank))
        dist.all_reduce(own)
        results.append(own.numpy().tobytes())
    dist.destroy_process_group()
    return results


GROUPS = ((0, 1), (2, 3), (3, 1), (0, 2), (1, 2, 3), (0, 1, 2, 3))  # also in other orders
ROUNDS = 3
CALLS = 6


def in_groups(rank: int, world: int) -> list[bool]:
    """Collectives of groups that share servers, at the same time; ranks call them in different
    orders."""
    dist.init_process_group("topoopt")
    groups = {ranks: dist.new_group(list(ranks)) for ranks in GROUPS}
    own = [ranks for ranks in GROUPS if rank in ranks]
    right = []
    for number in range(ROUNDS):
        works, checks = [], []
        for ranks in own[rank % len(own) :] + own[: rank % len(own)]:
            group = groups[ranks]
            total = data(rank, ODD + number)
            works.append(dist.all_reduce(total, group=group, async_op=True))
            checks.append((total, sum(data(one, ODD + number) for one in ranks)))
            gathered = torch.zeros(len(ranks) * ODD)
            works.append(
                dist.all_gather_into_tensor(gathered, data(rank, ODD), group=group, async_op=True)
            )
            checks.append((gathered, torch.cat([data(one, ODD) for one in sorted(ranks)])))
        for work in works:
            work.wait()
        right += [torch.equal(found, expected) for found, expected in checks]
    dist.destroy_process_group()
    return right


def with_a_fault(rank: int, world: int, cut: Callable[[], None] | None) -> tuple[str, bool]:
    """The first AllReduce fails; the group goes on."""
    dist.init_process_group("topoopt")
    dist.barrier()
    before = sent_bytes("port0")
    own = torch.ones(LARGE)
    work = dist.all_reduce(own, async_op=True)
    if rank == 0 and cut is not None:
        deadline = time.monotonic() + limit_s(30)
        while sent_bytes("port0") < before + LARGE // 2:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        cut()
    error = ""
    try:
        work.wait()
    except RuntimeError as caught:
        error = str(caught)
    again = data(rank, ODD)
    dist.all_reduce(again)
    total = torch.stack([data(other, ODD) for other in range(world)]).sum(0)
    dist.destroy_process_group()
    return error, torch.equal(again, total)


def remove_a_circuit() -> None:
    switch = NetnsSwitch(os.environ[SWITCH_VARIABLE])
    (circuit,) = (circuit for circuit in switch.circuits() if circuit.ingress == "1A")
    switch.apply(Difference(remove=(circuit,), add=()))


def in_disagreement(rank: int, world: int) -> str:
    dist.init_process_group("topoopt")
    own = data(rank, ODD)
    try:
        if rank == 1:
            dist.broadcast(own, 0)
        else:
            dist.all_reduce(own)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.fixture(params=[None])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MovingBench, EveryTopology]]:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    choices = EveryTopology()
    with contextlib.ExitStack() as stack:
        yield MovingBench(tmp_path, stack, SERVERS, request.param, None, choices), choices


def check_ended(fabric: MovingBench) -> None:
    """No collective failed, and the plan's circuits are back."""
    assert not [ended.error for ended in fabric.ended if ended.error]
    links = fabric.plan.network.links
    assert fabric.fabric.switch().circuits() == fabric.circuits_of(links)


def check_every_topology(choices: EveryTopology) -> None:
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        used = {topologies for name, topologies in choices.topologies if name == collective}
        assert used == {one.reconfigurations for one in choices.schedules(collective)}


def test_results_are_those_of_gloo_with_every_number_of_topologies(
    bench: tuple[MovingBench, EveryTopology],
) -> None:
    fabric, choices = bench
    assert values(fabric.run(compared)) == [[True] * (len(REDUCTIONS) + 4 * 6)] * SERVERS
    check_every_topology(choices)
    check_ended(fabric)


def test_groups_that_share_servers_take_turns_and_their_results_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(SERVERS, 2, gbps=0.02)
    choices = CollectiveChooser(plan, COSTS.reconfiguration_s, always=True)
    with contextlib.ExitStack() as stack:
        fabric = MovingBench(tmp_path, stack, SERVERS, None, None, choices)
        calls = [2 * ROUNDS * sum(rank in group for group in GROUPS) for rank in range(SERVERS)]
        assert values(fabric.run(in_groups)) == [[True] * count for count in calls]
        assert {ended.members for ended in fabric.ended} == {2, 3, 4}
        check_ended(fabric)


def test_several_ranks_of_a_server_move_its_circuits_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    choices = EveryTopology()
    with contextlib.ExitStack() as stack:
        fabric = MovingBench(tmp_path, stack, SERVERS, None, None, choices, per_server=2)
        ranks = 2 * SERVERS
        assert values(fabric.run(compared)) == [[True] * (len(REDUCTIONS) + 4 * 6)] * ranks
        assert {ended.members for ended in fabric.ended} == {ranks}
        check_every_topology(choices)
        check_ended(fabric)


def test_groups_of_some_ranks_of_servers_with_two_move_circuits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(SERVERS, 2, gbps=0.02)
    choices = CollectiveChooser(plan, COSTS.reconfiguration_s, always=True)
    with contextlib.ExitStack() as stack:
        fabric = MovingBench(tmp_path, stack, SERVERS, None, None, choices, per_server=2)
        counts = [4 * sum(rank in group for group in SHARED) for rank in range(2 * SERVERS)]
        assert values(fabric.run(in_shared_groups)) == [[True] * count for count in counts]
        assert not [ended.error for ended in fabric.ended if ended.error]
        assert len(fabric.ended) == 4 * len(SHARED)


def repeated(rank: int, world: int) -> list[bool]:
    dist.init_process_group("topoopt")
    right = []
    for number in range(CALLS):
        count = ODD + number % 2
        gathered = torch.zeros(world * count)
        dist.all_gather_into_tensor(gathered, data(rank, count))
        right.append(torch.equal(gathered, torch.cat([data(one, count) for one in range(world)])))
        own, theirs = data(rank, 3), torch.zeros(3)  # on the circuits that are there
        work = dist.isend(own, (rank + 2) % world)
        dist.recv(theirs, (rank + 2) % world)
        work.wait()
        right.append(torch.equal(theirs, data((rank + 2) % world, 3)))
        dist.barrier()
    dist.destroy_process_group()
    return right


def test_circuits_move_ahead_of_collectives_that_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    choices = EveryTopology()
    schedule = stepped_collectives("all_gather", SERVERS, 1, COSTS, 1e6)[1]
    assert schedule.strides == ((1,), (2,))
    monkeypatch.setattr(choices, "schedules", lambda collective: [schedule])
    installed: list[tuple[int, ...]] = []
    with contextlib.ExitStack() as stack:
        fabric = MovingBench(tmp_path, stack, SERVERS, None, None, choices, ahead=True)
        move = fabric.mover.move

        def noted(numbers: Iterable[int]) -> None:
            installed.append(tuple(numbers))
            move(installed[-1])

        monkeypatch.setattr(fabric.mover, "move", noted)
        assert values(fabric.run(repeated)) == [[True] * 2 * CALLS] * SERVERS
        assert not [ended.error for ended in fabric.ended if ended.error]
    whole, ahead = [(0,), (1,), ()], [(1,), (0,)]
    # Two sizes alternate, so the third call is the first after which the next one is known. The
    # plan's circuits are back when ranks leave.
    assert installed == [*whole, *whole, (0,), *(CALLS - 2) * ahead, ()]


TENSOR, DATA = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def in_phases(rank: int, world: int) -> list[bool]:
    """Steps of tensor and data groups, with messages for all other ranks between some of them."""
    dist.init_process_group("topoopt")
    groups = {ranks: dist.new_group(list(ranks)) for ranks in TENSOR + DATA}
    right = []
    for step in range(CALLS):
        for ranks, group in groups.items():
            if rank in ranks:
                own = data(rank, ODD)
                dist.all_reduce(own, group=group)
                right.append(torch.equal(own, sum(data(one, ODD) for one in ranks)))
        if step in (2, 5):  # in none of the steps before
            shift = 1 + step % 2
            theirs = torch.zeros(step)
            work = dist.isend(data(rank, step), (rank + shift) % world)
            dist.recv(theirs, (rank - shift) % world)
            work.wait()
            right.append(torch.equal(theirs, data((rank - shift) % world, step)))
        if step > 2:  # in all of them
            dist.barrier()
    dist.destroy_process_group()
    return right


def test_groups_have_their_circuits_ahead_and_messages_for_others_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(SERVERS, 2, gbps=0.02)
    choices = CollectiveChooser(plan, COSTS.reconfiguration_s, always=True)
    with contextlib.ExitStack() as stack:
        fabric = MovingBench(tmp_path, stack, SERVERS, None, None, choices, ahead=True)
        assert values(fabric.run(in_phases)) == [[True] * (2 * CALLS + 2)] * SERVERS
        assert not [ended.error for ended in fabric.ended if ended.error]
        moving = [ended for ended in fabric.ended if ended.choice.moves]
        assert any(ended.moving_s == 0 for ended in moving)


def test_blocks_may_have_different_sizes(bench: tuple[MovingBench, EveryTopology]) -> None:
    fabric, choices = bench
    assert values(fabric.run(uneven)) == [[True] * 15] * SERVERS
    assert len(choices.topologies) == 6


def test_a_sum_has_the_same_bits_on_all_ranks(bench: tuple[MovingBench, EveryTopology]) -> None:
    first, *rest = values(bench[0].run(rounded))
    assert len(set(first)) == 5
    assert rest == [first] * (SERVERS - 1)


def test_a_circuit_that_stays_dark_stops_one_all_reduce(
    bench: tuple[MovingBench, EveryTopology], monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric, _ = bench
    move = fabric.mover.move
    moves = 0

    def fail_once(numbers: Iterable[int]) -> None:
        nonlocal moves
        moves += 1
        if moves == 1:
            fabric.mover.restore()
            raise FabricError("no light on 2A-5B after 1 s")
        move(numbers)

    monkeypatch.setattr(fabric.mover, "move", fail_once)
    for error, right in values(fabric.run(_without_a_cut)):
        assert "no light on 2A-5B after 1 s" in error
        assert right
    assert [bool(ended.error) for ended in fabric.ended] == [True, False]


def _without_a_cut(rank: int, world: int) -> tuple[str, bool]:
    return with_a_fault(rank, world, None)


def _with_a_cut(rank: int, world: int) -> tuple[str, bool]:
    return with_a_fault(rank, world, remove_a_circuit)


@pytest.mark.parametrize("bench", [0.02], indirect=True)
def test_a_circuit_that_is_lost_while_blocks_travel_stops_that_all_reduce(
    bench: tuple[MovingBench, EveryTopology],
) -> None:
    fabric, _ = bench
    for error, right in values(fabric.run(_with_a_cut)):
        assert "lost the light on 1A-" in error
        assert right
    assert [bool(ended.error) for ended in fabric.ended] == [True, False]


def test_ranks_that_call_different_collectives_get_both_names(
    bench: tuple[MovingBench, EveryTopology],
) -> None:
    for error in values(bench[0].run(in_disagreement)):
        assert "all_reduce" in error
        assert "broadcast" in error
