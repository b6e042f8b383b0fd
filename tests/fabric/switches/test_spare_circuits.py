"""Cables that move to spare ports, on a switch in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from support.refusals import refused

from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.light_watch import PolledLight
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.spare_circuits import SpareCircuits, SwitchPort
from torch_topoopt.fabric.switches.switch import SwitchUnreachable, cable_circuits
from torch_topoopt.plan import Link

FIRST, SECOND = Link(0, 0, 1, 0), Link(0, 1, 2, 0)
# server, port: socket of the planned ones, then of spares
SOCKETS = {(0, 0): "1", (1, 0): "2", (0, 1): "3", (2, 0): "4", (0, 2): "5", (1, 2): "6"}


def port(server: int, number: int) -> SwitchPort:
    return SwitchPort(server, number, "memory", SOCKETS[server, number])


@dataclass
class Lab:
    """Two cables on one switch, whose circuits are there; servers 0 and 1 have a spare port."""

    duplex: bool = False
    spares: tuple[SwitchPort, ...] = (port(0, 2), port(1, 2))
    switch: MemorySwitch = field(init=False)
    circuits: SpareCircuits = field(init=False)

    def __post_init__(self) -> None:
        self.switch = MemorySwitch(6, duplex=self.duplex, settle_s=0.01)
        cables = {FIRST: (port(0, 0), port(1, 0)), SECOND: (port(0, 1), port(2, 0))}
        for near, far in cables.values():
            self.switch.apply(Difference((), self.between(near, far)))
        watch = PolledLight(self.switch)
        self.circuits = SpareCircuits(
            {"memory": (self.switch, watch)}, cables, self.spares, limit_s=1.0
        )
        self.switch.clock.sleep(1.0)
        assert not self.circuits.dark()

    def between(self, near: SwitchPort, far: SwitchPort):  # type: ignore[no-untyped-def]
        return cable_circuits(self.switch, near.socket, far.socket)

    def break_between(self, near: SwitchPort, far: SwitchPort) -> None:
        self.switch.broken |= set(self.between(near, far))

    def present(self, *cables: tuple[SwitchPort, SwitchPort]) -> bool:
        """Whether the circuits are those of these cables."""
        return self.switch.circuits() == {c for cable in cables for c in self.between(*cable)}


OTHER = (port(0, 1), port(2, 0))


@pytest.mark.parametrize("duplex", [False, True])
def test_a_dark_cable_moves_to_spare_ports_and_the_others_stay(duplex: bool) -> None:
    lab = Lab(duplex)
    lab.break_between(port(0, 0), port(1, 0))
    assert lab.circuits.dark() == {FIRST}
    move = lab.circuits.move(FIRST)
    assert (move.moved, move.after, move.why) == (True, (port(0, 2), port(1, 2)), "")
    assert lab.present(OTHER, (port(0, 2), port(1, 2)))
    assert not lab.circuits.dark()


@pytest.mark.parametrize(
    ("spare", "after"),
    [(port(0, 2), (port(0, 2), port(1, 0))), (port(1, 2), (port(0, 0), port(1, 2)))],
)
def test_one_end_moves_if_only_its_server_has_a_spare_port(
    spare: SwitchPort, after: tuple[SwitchPort, SwitchPort]
) -> None:
    lab = Lab(spares=(spare,))
    lab.break_between(port(0, 0), port(1, 0))
    assert lab.circuits.move(FIRST).after == after
    assert lab.present(OTHER, after)


def test_spare_ports_that_stay_dark_are_passed_over_and_named() -> None:
    lab = Lab()
    for near in (port(0, 0), port(0, 2)):
        lab.break_between(near, port(1, 2))
    move = lab.circuits.move(FIRST)
    assert move.after == (port(0, 2), port(1, 0))
    assert "5A-6B" in move.why
    assert "1A-6B" in move.why
    assert lab.present(OTHER, move.after)


def test_a_cable_that_is_lost_again_tries_the_remaining_ports_and_all_once_it_was_back() -> None:
    lab = Lab()
    tried = [lab.circuits.move(FIRST).after for _ in range(3)]
    assert len({(port(0, 0), port(1, 0)), *tried}) == 4
    last = lab.circuits.move(FIRST)
    assert not last.moved
    assert "no spare ports" in last.why
    lab.circuits.is_back(FIRST)
    assert lab.circuits.move(FIRST).after == tried[0]


def test_a_cable_without_working_ports_keeps_its_circuits() -> None:
    lab = Lab()
    for near in (port(0, 0), port(0, 2)):
        for far in (port(1, 0), port(1, 2)):
            lab.break_between(near, far)
    assert not lab.circuits.move(FIRST).moved
    assert lab.present(OTHER, (port(0, 0), port(1, 0)))
    lab.switch.broken.clear()
    lab.switch.clock.sleep(1.0)
    assert not lab.circuits.dark(), "it can come back where it was"


def test_a_spare_port_serves_one_cable() -> None:
    lab = Lab()
    assert lab.circuits.move(FIRST).moved
    move = lab.circuits.move(SECOND)
    assert (move.moved, move.after) == (False, OTHER)
    assert lab.present(OTHER, (port(0, 2), port(1, 2)))


@pytest.mark.parametrize("field_name", ["switch", "subnet"])
def test_ports_of_another_switch_or_subnet_are_no_spares(field_name: str) -> None:
    spares = tuple(replace(port(s, 2), **{field_name: "other"}) for s in (0, 1))
    lab = Lab(spares=spares[:1])
    assert not lab.circuits.move(FIRST).moved


@pytest.mark.parametrize("foreign", [[("5A", "6B")], [("5A", "6B"), ("6A", "5B")]])
def test_circuits_of_others_on_spare_ports_stay(foreign: list[tuple[str, str]]) -> None:
    lab = Lab()
    taken = [Circuit(*ends) for ends in foreign]
    lab.switch.apply(Difference((), tuple(taken)))
    before = lab.switch.circuits()
    move = lab.circuits.move(FIRST)
    assert not move.moved
    assert "5A-6B" in move.why
    assert lab.switch.circuits() == before


def test_a_switch_that_does_not_answer_is_an_error_and_the_next_attempt_works() -> None:
    lab = Lab()
    lab.switch.deaf = True
    with refused(SwitchUnreachable, "memory", "no answer"):
        lab.circuits.move(FIRST)
    lab.switch.deaf = False
    assert lab.circuits.move(FIRST).after == (port(0, 2), port(1, 2))
