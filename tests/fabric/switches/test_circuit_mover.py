"""Circuits of several switches move together, and back; routes are those of a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.plans import make_ring_plan
from support.refusals import refused

from torch_topoopt.fabric.switches.circuit_mover import RoutedCircuitMover
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.light_watch import PolledLight
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.spare_circuits import SwitchPort
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.plan import Link

SERVERS = 4


class Recorder:
    """Tables of hosts by number, and the current ones."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[int, Mapping[int, Link]]] = {}
        self.selected: dict[int, int] = {}
        self.forgotten = 0
        self.silent = False

    def write(self, number: int, firsts: Mapping[int, Mapping[int, Link]]) -> None:
        self.tables[number] = dict(firsts)

    def select(self, numbers: Mapping[int, int]) -> None:
        if self.silent:
            raise FabricError("h3 is gone")
        assert set(numbers.values()) <= set(self.tables)
        self.selected = dict(numbers)

    def forget(self) -> None:
        self.forgotten += 1
        self.tables.clear()

    def release(self) -> None:
        pass


class Bench:
    """Port 0 of every even server is on switch "a", as port 1 of every odd one; others on "b"."""

    def __init__(self, *, duplex: bool = False, sockets: int = SERVERS) -> None:
        self.plan = make_ring_plan(SERVERS)
        self.devices = {name: MemorySwitch(sockets, name=name, duplex=duplex) for name in "ab"}
        self.routes = Recorder()
        ports = [
            SwitchPort(server, port, "ab"[(server + port) % 2], str(server + 1))
            for server in range(SERVERS)
            for port in range(2)
        ]
        watched = {name: (device, PolledLight(device)) for name, device in self.devices.items()}
        self.mover = RoutedCircuitMover(self.plan, watched, ports, self.routes, limit_s=1.0)

    def pairs(self) -> list[tuple[int, int]]:
        """The servers that circuits join."""
        return sorted(
            (int(circuit.ingress[:-1]) - 1, int(circuit.egress[:-1]) - 1)
            for device in self.devices.values()
            for circuit in device.circuits()
        )


def shifted(*shifts: int) -> dict[int, list[int]]:
    return {s: [(s + shift) % SERVERS for shift in shifts] for s in range(SERVERS)}


def test_a_topology_takes_the_circuits_of_both_switches_and_the_plan_comes_back() -> None:
    bench = Bench()
    bench.mover.restore()
    of_plan = bench.pairs()
    assert of_plan == sorted((k.source, k.target) for k in bench.plan.network.links)
    number = bench.mover.prepare(shifted(1, 2))
    bench.mover.move([number])
    assert bench.pairs() == sorted((s, t) for s, ts in shifted(1, 2).items() for t in ts)
    assert bench.routes.selected == dict.fromkeys(range(SERVERS), number)
    firsts = bench.routes.tables[number]
    assert {link.target for link in firsts[1].values()} == {2, 3}
    bench.mover.restore()
    assert bench.pairs() == of_plan
    assert bench.routes.selected == {}


def test_if_one_switch_fails_both_have_the_circuits_of_the_plan_again() -> None:
    bench = Bench()
    bench.mover.restore()
    of_plan = bench.pairs()
    number = bench.mover.prepare(shifted(2, 3))
    bench.mover.move([number])
    dark = min(bench.devices["b"].circuits(), key=str)
    bench.mover.restore()
    bench.devices["b"].broken.add(dark)
    with refused(FabricError, "b", str(dark)):
        bench.mover.move([number])
    assert bench.pairs() == of_plan
    assert bench.routes.selected == {}


def test_lost_light_is_named_and_routes_are_written_again() -> None:
    bench = Bench()
    number = bench.mover.prepare(shifted(1, 2))
    bench.mover.move([number])
    assert bench.mover.lost(number) == ""
    lost = min(bench.devices["a"].circuits(), key=str)
    bench.devices["a"].broken.add(lost)
    why = bench.mover.lost(number)
    assert why.startswith("a: ")
    assert str(lost) in why
    assert bench.routes.forgotten == 1
    bench.devices["a"].broken.clear()
    bench.mover.move([number])
    assert set(bench.routes.tables) == {number}


def test_duplex_circuits_and_servers_on_other_switches_are_refused() -> None:
    with refused(FabricError, "a", "duplex"):
        Bench(duplex=True)
    bench = Bench()
    ports = [SwitchPort(0, 0, "a", "1"), SwitchPort(0, 1, "b", "1")]
    ports += [SwitchPort(s, p, "a", str(s + 1)) for s in range(1, SERVERS) for p in range(2)]
    watched = {name: (device, PolledLight(device)) for name, device in bench.devices.items()}
    with refused(FabricError, "server 1", "a, a", "a, b"):
        RoutedCircuitMover(bench.plan, watched, ports, bench.routes, limit_s=1.0)


def test_circuits_of_others_stay() -> None:
    bench = Bench(sockets=SERVERS + 1)
    theirs = Circuit(f"{SERVERS + 1}A", f"{SERVERS + 1}B")
    for device in bench.devices.values():
        device.apply(Difference((), (theirs,)))
    bench.mover.move([bench.mover.prepare(shifted(1, 2))])
    bench.mover.restore()
    assert all(theirs in device.circuits() for device in bench.devices.values())


def test_switches_have_the_circuits_of_the_plan_again_if_a_host_does_not_answer() -> None:
    bench = Bench()
    bench.mover.restore()
    of_plan = bench.pairs()
    bench.mover.move([bench.mover.prepare(shifted(1, 2))])
    bench.routes.silent = True
    with refused(FabricError, "h3"):
        bench.mover.restore()
    assert bench.pairs() == of_plan
