"""The contract of a Polatis driver on a protocol of the device, with faults of the device.

The tests of a protocol subclass `PolatisContract`. They have these fixtures: `device`;
`server`, a PolatisServer of it; `connect(server, user="admin", **options)`, which makes a driver
and closes it in the end; `switch`, one such driver. Drivers connect when they first must, so a test
may still change the device before.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pytest
from support.fabric.polatis_device import PolatisDevice, Subswitch
from support.fabric.switch_contract import LIMIT_S, Bench, SwitchContract, ports_of
from support.limits import slowness
from support.refusals import refused

from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
    cable_circuits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fabric.polatis_device import PolatisServer

    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.circuits import Fence
    from torch_topoopt.fabric.switches.polatis import PolatisSwitch

    Connect = Callable[..., PolatisSwitch]

PASSWORD = "s3cret/päss word"
C1, C2 = Circuit("1", "9"), Circuit("2", "10")


def device_with_users(monkeypatch: pytest.MonkeyPatch) -> PolatisDevice:
    """The password of all of them is in $POLATIS_PASSWORD."""
    monkeypatch.setenv("POLATIS_PASSWORD", PASSWORD)
    return PolatisDevice(users=dict.fromkeys(("admin", "alice", "bob"), PASSWORD))


def wired(switch: PolatisSwitch) -> tuple[Fence, frozenset[Circuit], tuple[Circuit, ...]]:
    """Sockets 1 to 4 with a cable 1-2; also what to ask for next: 1-3 and 2-4."""
    fence = ports_of(switch, *"1234")
    before = cable_circuits(switch, "1", "2")
    configure(switch, before, fence, timeout_s=LIMIT_S)
    return (
        fence,
        frozenset(before),
        cable_circuits(switch, "1", "3") + cable_circuits(switch, "2", "4"),
    )


class PolatisContract(SwitchContract):
    """`forbidden`: tokens of the error if user bob, who may only read, changes something."""

    forbidden: ClassVar[tuple[str, ...]]

    def entry(self, server: PolatisServer) -> SwitchEntry:
        """Of a cluster file, for this server."""
        raise NotImplementedError

    @pytest.fixture
    def bench(self, switch: PolatisSwitch, device: PolatisDevice) -> Bench:
        return Bench(
            switch,
            device.circuits,
            device.brake,
            cut_after=partial(setattr, device, "cut_after"),
            ignore=partial(setattr, device, "ignores", True),
        )

    def test_its_ports_are_the_device_s(self, server: PolatisServer, connect: Connect) -> None:
        switch = connect(server)
        capabilities = switch.capabilities()
        assert capabilities.ingress == {str(port) for port in range(1, 9)}
        assert capabilities.egress == {str(port) for port in range(9, 17)}
        assert switch.fibres("3") == ("3", "11")
        assert not capabilities.bulk

    def test_a_switch_with_fewer_outputs_has_fewer_sockets(
        self, device: PolatisDevice, switch: PolatisSwitch
    ) -> None:
        device.outputs, device.model = 4, "N-VST-8x4-LU1-DMHNV"
        assert switch.fibres("4") == ("4", "12")
        with refused(SwitchError, "1 to 4"):
            switch.fibres("5")
        assert len(switch.capabilities().ports) == 12

    def test_a_port_in_use_by_another_job_is_never_taken(
        self, device: PolatisDevice, switch: PolatisSwitch
    ) -> None:
        device.connect("admin", 5, 10)
        changes = list(device.changes)
        for circuit in (Circuit("1", "10"), Circuit("5", "9")):
            with refused(SwitchError, "5-10", "nothing was changed"):
                switch.apply(Difference((), (Circuit("3", "12"), circuit)))
        switch.apply(Difference((Circuit("5", "11"),), ()))  # not the circuit that is there
        assert device.changes == changes

    @pytest.mark.parametrize("circuit", [Circuit("1", "2"), Circuit("9", "1"), Circuit("1", "17")])
    def test_a_circuit_that_cannot_be_is_refused_before_anything_is_sent(
        self, device: PolatisDevice, switch: PolatisSwitch, circuit: Circuit
    ) -> None:
        with refused(SwitchError, "input"):
            switch.apply(Difference((), (C2, circuit)))
        assert device.changes == []

    @pytest.mark.parametrize("status", ["FAILED", "DISABLED"])
    def test_a_port_that_is_not_open_is_named_and_the_rest_undone(
        self, device: PolatisDevice, switch: PolatisSwitch, status: str
    ) -> None:
        fence, before, wanted = wired(switch)
        device.status[11] = status
        with refused(NotSettled, "port 11", status, "restored") as caught:
            configure(switch, wanted, fence, timeout_s=0.3 * slowness())
        assert caught.value.circuits == {Circuit("1", "11")}
        assert device.circuits() == before

    def test_without_a_transmitter_the_error_says_what_arrives(
        self, device: PolatisDevice, server: PolatisServer, connect: Connect
    ) -> None:
        device.lasers = {2}
        switch = connect(server)
        wanted, fence = cable_circuits(switch, "1", "2"), ports_of(switch, "1", "2")
        with refused(NotSettled, "1-10", "port 10", -66, "dBm"):
            configure(switch, wanted, fence, timeout_s=0.3 * slowness())
        assert device.circuits() == frozenset()
        configure(connect(server, check_light=False), wanted, fence, timeout_s=LIMIT_S)
        assert device.circuits() == set(wanted)

    def test_a_model_without_monitors_is_judged_by_its_ports(
        self, device: PolatisDevice, switch: PolatisSwitch
    ) -> None:
        device.monitors = False
        fence, _, wanted = wired(switch)
        device.status[11] = "FAILED"
        with refused(NotSettled, "port 11", "FAILED"):
            configure(switch, wanted, fence, timeout_s=0.3 * slowness())

    @pytest.mark.parametrize("preserves", [True, False])
    def test_a_restart_in_the_middle_of_a_change_is_survived(
        self, device: PolatisDevice, switch: PolatisSwitch, preserves: bool
    ) -> None:
        device.preserves = preserves
        fence, before, wanted = wired(switch)
        device.reboot_after = 3
        with refused(SwitchUnreachable, "restored"):
            configure(switch, wanted, fence, timeout_s=LIMIT_S)
        assert device.boots == 1
        assert device.circuits() == before

    def test_a_connection_that_broke_long_ago_is_opened_again(
        self, device: PolatisDevice, server: PolatisServer, switch: PolatisSwitch
    ) -> None:
        switch.circuits()
        server.drop()
        _, before, _ = wired(switch)
        assert device.circuits() == before

    def test_an_absent_device_is_an_error_at_once(
        self, server: PolatisServer, connect: Connect
    ) -> None:
        server.close()
        switch = connect(server, restart_s=600.0)
        with refused(SwitchUnreachable, "ocs0", f"127.0.0.1:{server.port}"):
            switch.circuits()

    def test_a_device_that_does_not_answer_is_given_up(
        self, server: PolatisServer, connect: Connect
    ) -> None:
        server.mute = True
        answer_s = 0.2 * slowness()  # enough for one answer
        switch = connect(server, timeout_s=answer_s, restart_s=600.0)
        with refused(SwitchUnreachable, f"{answer_s:g} s"):
            switch.circuits()

    def test_an_entry_of_a_cluster_file_becomes_the_driver(self, server: PolatisServer) -> None:
        switch = open_switch(self.entry(server))
        assert switch.fibres("3") == ("3", "11")
        switch.close()

    @pytest.mark.parametrize(
        ("model", "tokens"),
        [
            ("N-VST-16xCC-LU1", ("any port",)),
            ("MAX-DWDM", ("ports",)),
        ],
    )
    def test_a_model_that_it_cannot_drive_is_an_error(
        self, device: PolatisDevice, switch: PolatisSwitch, model: str, tokens: tuple[object, ...]
    ) -> None:
        device.model = model
        with refused(SwitchError, *tokens):
            switch.circuits()

    def test_the_older_yang_is_understood(
        self, device: PolatisDevice, switch: PolatisSwitch
    ) -> None:
        device.old_yang = True
        fence, before, wanted = wired(switch)
        assert device.circuits() == before
        device.status[11] = "FAILED"
        with refused(NotSettled, "port 11", "FAILED", "restored"):
            configure(switch, wanted, fence, timeout_s=0.3 * slowness())
        assert device.circuits() == before

    @pytest.mark.parametrize("hides", [True, False])
    def test_a_user_controls_its_sub_switch_and_nothing_else(
        self, device: PolatisDevice, server: PolatisServer, connect: Connect, hides: bool
    ) -> None:
        device.hides = hides
        for name, sockets in (("alice", (1, 2, 3)), ("bob", (4, 5, 6))):
            ports = frozenset(port for socket in sockets for port in (socket, 8 + socket))
            device.subswitches[name] = Subswitch(frozenset({name}), ports)
        device.connect("bob", 4, 13)
        switch = connect(server, "alice")
        assert switch.capabilities().ports == ("1", "2", "3", "9", "10", "11")
        with refused(SwitchError, "port 4", 1):
            switch.fibres("4")
        with refused(SwitchError, "port 12"):
            switch.apply(Difference((), (Circuit("1", "12"),)))
        fence = ports_of(switch, "1", "2")
        configure(switch, cable_circuits(switch, "1", "2"), fence, timeout_s=LIMIT_S)
        configure(switch, (), fence, timeout_s=LIMIT_S)
        assert device.circuits() == {Circuit("4", "13")}

    def test_a_read_only_user_gets_an_error_that_says_so(
        self, device: PolatisDevice, server: PolatisServer, connect: Connect
    ) -> None:
        device.viewers.add("bob")
        with refused(AuthenticationFailed, *self.forbidden):
            connect(server, "bob").apply(Difference((), (C1,)))
        assert device.changes == []

    def test_a_wrong_password_is_an_error_that_does_not_show_it(
        self, device: PolatisDevice, switch: PolatisSwitch, caplog: pytest.LogCaptureFixture
    ) -> None:
        device.users["admin"] = "another"
        caplog.set_level("DEBUG")
        with refused(AuthenticationFailed, "admin", "$POLATIS_PASSWORD") as caught:
            switch.circuits()
        basic = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
        for secret in (PASSWORD, basic):
            assert secret not in str(caught.value)
            assert secret not in caplog.text
