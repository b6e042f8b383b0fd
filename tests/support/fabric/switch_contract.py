"""The contract of every circuit switch, independent of its protocol.

A driver's tests subclass `SwitchContract` and make a `Bench`: the driver, connected to a device
(the in-memory twin, or a test server that speaks the real protocol over a real socket), and the
hands of a person who stands beside that device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.limits import limit_s, slowness
from support.refusals import refused

from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    CircuitError,
    Difference,
    Fence,
    reconcile,
)
from torch_topoopt.fabric.switches.configure import Snapshot, configure, preview, restore
from torch_topoopt.fabric.switches.manual_panel import ManualPanel
from torch_topoopt.fabric.switches.switch import NotSettled, SwitchError, cable_circuits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.fabric.switches.switch import CircuitSwitch

LIMIT_S = limit_s(20.0)


@dataclass
class Bench:
    """A driver, and hands on its device: what they do does not go through the driver.

    The device has sockets "1" to "8" at least, and no circuits. `brake(circuit)`: it is accepted
    and never carries light. `cut_after(n)`: the connection breaks, or the device refuses, once n
    more circuits were changed; after that all is well again. `ignore()`: the device answers that
    all is well and does nothing from now on.
    """

    switch: CircuitSwitch
    circuits: Callable[[], frozenset[Circuit]]
    brake: Callable[[Circuit], Any]
    cut_after: Callable[[int], Any]
    ignore: Callable[[], Any]


def ports_of(switch: CircuitSwitch, *sockets: str) -> Fence:
    return Fence(frozenset(port for socket in sockets for port in switch.fibres(socket)))


class SwitchContract:
    """Subclass as `TestX(SwitchContract)` with a fixture `bench` of type Bench."""

    def test_it_starts_without_circuits(self, bench: Bench) -> None:
        assert bench.switch.circuits() == frozenset()

    def test_its_capabilities_fit_its_ports(self, bench: Bench) -> None:
        capabilities = bench.switch.capabilities()
        assert capabilities.ingress | capabilities.egress == set(capabilities.ports)
        assert len(set(capabilities.ports)) == len(capabilities.ports)
        if capabilities.duplex:
            assert capabilities.ingress == capabilities.egress
        transmit, receive = bench.switch.fibres("1")
        assert transmit in capabilities.ingress
        assert receive in capabilities.egress

    def test_a_socket_that_it_does_not_have_is_an_error_with_its_name(self, bench: Bench) -> None:
        with refused(SwitchError, 99999):
            bench.switch.fibres("99999")

    def test_cables_are_made_moved_and_removed(self, bench: Bench) -> None:
        switch = bench.switch
        fence = ports_of(switch, "1", "2", "3", "4")
        first = frozenset(cable_circuits(switch, "1", "2") + cable_circuits(switch, "3", "4"))
        second = frozenset(cable_circuits(switch, "1", "3"))
        for wanted in (first, second, frozenset[Circuit]()):
            before = bench.circuits()
            assert configure(switch, wanted, fence, timeout_s=LIMIT_S) == reconcile(before, wanted)
            assert bench.circuits() == wanted == switch.circuits()

    def test_a_preview_changes_nothing_and_names_what_would(self, bench: Bench) -> None:
        wanted = cable_circuits(bench.switch, "1", "2")
        difference = preview(bench.switch, wanted, ports_of(bench.switch, "1", "2"))
        assert difference == Difference((), reconcile((), wanted).add)
        assert bench.circuits() == frozenset()

    def test_what_is_there_already_is_left_alone(self, bench: Bench) -> None:
        wanted = cable_circuits(bench.switch, "1", "2")
        fence = ports_of(bench.switch, "1", "2")
        configure(bench.switch, wanted, fence, timeout_s=LIMIT_S)
        assert not configure(bench.switch, wanted, fence, timeout_s=LIMIT_S)
        bench.switch.apply(Difference((), wanted))  # a request sent twice
        assert bench.circuits() == set(wanted)
        bench.switch.apply(Difference(wanted, ()))
        bench.switch.apply(Difference(wanted, ()))
        assert bench.circuits() == frozenset()

    def test_other_jobs_keep_their_circuits(self, bench: Bench) -> None:
        switch = bench.switch
        theirs = cable_circuits(switch, "5", "6")
        configure(switch, theirs, ports_of(switch, "5", "6"), timeout_s=LIMIT_S)
        ours = cable_circuits(switch, "1", "2")
        fence = ports_of(switch, "1", "2", "3")
        configure(switch, ours, fence, timeout_s=LIMIT_S)
        assert bench.circuits() == {*theirs, *ours}
        configure(switch, (), fence, timeout_s=LIMIT_S)
        assert bench.circuits() == set(theirs)

    def test_a_port_of_another_job_is_refused_and_nothing_changes(self, bench: Bench) -> None:
        switch = bench.switch
        configure(
            switch, cable_circuits(switch, "4", "5"), ports_of(switch, "4", "5"), timeout_s=LIMIT_S
        )
        before = bench.circuits()
        with refused(CircuitError, "not a port"):
            configure(
                switch,
                cable_circuits(switch, "1", "5"),
                ports_of(switch, "1", "2"),
                timeout_s=LIMIT_S,
            )
        with refused(CircuitError, "in use"):
            configure(
                switch,
                cable_circuits(switch, "1", "4"),
                ports_of(switch, "1", "4"),
                timeout_s=LIMIT_S,
            )
        assert bench.circuits() == before

    def test_a_snapshot_brings_back_what_was(self, bench: Bench, tmp_path: Path) -> None:
        switch = bench.switch
        fence = ports_of(switch, "1", "2", "3")
        first = cable_circuits(switch, "1", "2")
        configure(switch, first, fence, timeout_s=LIMIT_S)
        path = tmp_path / "snapshot.json"
        second = cable_circuits(switch, "2", "3")
        configure(switch, second, fence, timeout_s=LIMIT_S, snapshot=path)
        assert bench.circuits() == set(second)
        restore(switch, Snapshot.load(path), timeout_s=LIMIT_S)
        assert bench.circuits() == set(first)

    def test_a_change_that_breaks_off_is_undone(self, bench: Bench) -> None:
        switch = bench.switch
        fence = ports_of(switch, *"12345678")
        first = frozenset(cable_circuits(switch, "1", "2") + cable_circuits(switch, "3", "4"))
        configure(switch, first, fence, timeout_s=LIMIT_S)
        bench.cut_after(1)
        second = cable_circuits(switch, "5", "6") + cable_circuits(switch, "7", "8")
        with refused(SwitchError, "restored"):
            configure(switch, second, fence, timeout_s=LIMIT_S)
        assert bench.circuits() == first

    def test_circuits_without_light_are_named_and_undone(self, bench: Bench) -> None:
        switch = bench.switch
        good, bad = cable_circuits(switch, "1", "2"), cable_circuits(switch, "3", "4")
        for circuit in bad:
            bench.brake(circuit)
        with refused(NotSettled, "restored") as caught:
            configure(switch, good + bad, ports_of(switch, *"1234"), timeout_s=0.5 * slowness())
        assert caught.value.circuits == set(bad)
        assert bench.circuits() == frozenset()

    def test_a_device_that_says_yes_and_does_nothing_is_found(self, bench: Bench) -> None:
        bench.ignore()
        wanted = cable_circuits(bench.switch, "1", "2")
        fence = ports_of(bench.switch, "1", "2")
        if isinstance(bench.switch, ManualPanel):  # it repeats a person's words; hosts find this
            configure(bench.switch, wanted, fence, timeout_s=0.5 * slowness())
            assert bench.switch.circuits() == set(wanted)
        else:
            with pytest.raises(SwitchError):
                configure(bench.switch, wanted, fence, timeout_s=0.5 * slowness())
        assert bench.circuits() == frozenset()

    def test_closing_twice_is_harmless(self, bench: Bench) -> None:
        bench.switch.close()
        bench.switch.close()
