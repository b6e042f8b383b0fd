"""The circuits of a plan are made, and then its links verified by all hosts."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fabric.switched_clusters import Memories, switched_file
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.cluster.static_plan import place
from torch_topoopt.fabric.cluster.switched import SwitchedFabric
from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.fabric.switches.circuits import Difference
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress, Wiring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.plans import RingPlan

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
    from torch_topoopt.plan import Plan

LIMIT_S = limit_s(20.0)


@pytest.fixture
def memories() -> Memories:
    return Memories(switched_file(4, [1, 1]))


class Board:
    """A Meeting of threads of one process."""

    def __init__(self) -> None:
        self._published: dict[str, str] = {}
        self._changed = threading.Condition()

    def publish(self, topic: str, text: str) -> None:
        with self._changed:
            self._published[topic] = text
            self._changed.notify_all()

    def collect(self, topic: str, ranks: Iterable[int], deadline: float) -> dict[int, str]:
        with self._changed:
            assert self._changed.wait_for(lambda: topic in self._published, LIMIT_S)
            return dict.fromkeys(ranks, self._published[topic])


class Verifier:
    """In place of the driver that tries the links: accepts them, unless there is a `problem`."""

    name = "verifier"

    def __init__(self, file: ClusterFile, problem: str = "") -> None:
        self.file = file
        self.problem = problem
        self.closed = False

    def connect(self, plan: Plan) -> Wiring:
        if self.problem:
            raise FabricError(self.problem)
        ports = tuple(
            PortAddress(*end, self.file.ports[name][1].ip, None)
            for end, name in sorted(place(plan, self.file).items())
        )
        return Wiring(1, self.name, plan.digest(), 20000, ports).validate().check(plan)

    def close(self) -> None:
        self.closed = True


def test_the_driver_makes_the_circuits_and_then_verifies(
    memories: Memories, ring_plan: RingPlan
) -> None:
    plan, board = ring_plan(4), Board()
    made: list[Verifier] = []

    def verify(file: ClusterFile) -> Verifier:
        made.append(Verifier(file))
        return made[-1]

    fabric = SwitchedFabric(memories.file, 0, board, verify, open_switch=memories.open)
    wiring = fabric.connect(plan)
    assert len(wiring.ports) == 8
    with memories.switches() as switches:
        wanted = place_on_switches(plan, memories.file).cables
        assert set(switches.preview(wanted).values()) == {Difference((), ())}
    other = SwitchedFabric(memories.file, 1, board, verify, open_switch=_never)
    assert other.connect(plan) == wiring
    with refused(FabricError, "wired"):
        fabric.connect(plan)
    fabric.close()
    fabric.close()
    assert made[0].closed


@pytest.fixture
def roomy() -> Memories:
    """Two servers with two ports on one switch, of which a plan for two needs one."""
    return Memories(switched_file(2, [2]))


def test_ports_without_a_planned_cable_are_spare_and_its_cable_moves_there(
    roomy: Memories, ring_plan: RingPlan
) -> None:
    plan, board = ring_plan(2), Board()
    fabric = SwitchedFabric(roomy.file, 0, board, Verifier, open_switch=roomy.open)
    assert fabric.spare_circuits(plan) is None, "nothing is wired"
    wiring = fabric.connect(plan)
    other = SwitchedFabric(roomy.file, 1, board, Verifier, open_switch=_never)
    assert other.connect(plan) == wiring
    addresses = {(p.server, p.address) for p in (*wiring.ports, *wiring.spares)}
    assert len(wiring.spares) == 2
    assert addresses == {(s, f"10.1.{p}.{s + 1}") for s in (0, 1) for p in (0, 1)}
    circuits = fabric.spare_circuits(plan)
    assert circuits is not None
    assert other.spare_circuits(plan) is None, "server 0 moves them"
    (link,) = circuits.links
    switch = roomy.by_name["ocs0"]
    switch.broken |= set(circuits.circuits_of(link))
    before = switch.circuits()
    assert circuits.dark() == {link}
    move = circuits.move(link)
    assert {(end.server, end.port) for end in move.after} == {
        (spare.server, spare.port) for spare in wiring.spares
    }
    assert not circuits.dark()
    assert len(switch.circuits()) == 2
    assert not before & switch.circuits()
    fabric.close()
    assert fabric.spare_circuits(plan) is None


def test_a_person_at_a_panel_is_no_switch_with_spare_ports(
    roomy: Memories, ring_plan: RingPlan
) -> None:
    entry = replace(roomy.file.switches[0], kind="manual")
    file = replace(roomy.file, switches=(entry,))
    fabric = SwitchedFabric(file, 0, Board(), Verifier, open_switch=roomy.open)
    assert fabric.connect(ring_plan(2)).spares == ()
    assert fabric.spare_circuits(ring_plan(2)) is None


def _never(entry: SwitchEntry) -> MemorySwitch:
    raise AssertionError("only server 0 talks to the switches")


def test_links_that_fail_on_the_hosts_side_undo_the_circuits(
    memories: Memories, ring_plan: RingPlan
) -> None:
    fabric = SwitchedFabric(
        memories.file,
        0,
        Board(),
        lambda file: Verifier(file, "link 0 to 1: no answer in time"),
        open_switch=memories.open,
    )
    with refused(FabricError, "ocs0", "ocs1", "restored"):
        fabric.connect(ring_plan(4))
    assert memories.circuits() == {"ocs0": frozenset(), "ocs1": frozenset()}


def test_all_hosts_are_notified_of_a_switch_that_failed(
    memories: Memories, ring_plan: RingPlan
) -> None:
    board = Board()
    memories.by_name["ocs1"].deaf = True
    hosts = [
        SwitchedFabric(memories.file, server, board, Verifier, open_switch=memories.open)
        for server in (0, 1)
    ]
    for host in hosts:
        with refused(FabricError, "ocs1", "no answer"):
            host.connect(ring_plan(4))
