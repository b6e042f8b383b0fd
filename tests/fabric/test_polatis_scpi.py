"""The SCPI driver of Polatis switches against a test server on a real socket."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from polatis_device import PolatisDevice
from polatis_scpi_server import PolatisScpiServer
from switch_contract import LIMIT_S, Bench, SwitchContract, ports_of

from torch_topoopt.data_model import DocumentError
from torch_topoopt.fabric.cluster.cluster_file import SwitchEntry
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.polatis_scpi import polatis_scpi
from torch_topoopt.fabric.switches.switch import (
    NotSettled,
    SwitchError,
    SwitchUnreachable,
    cable_circuits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.fabric.switches.polatis import PolatisSwitch


@pytest.fixture
def device() -> PolatisDevice:
    return PolatisDevice()


@pytest.fixture
def server(device: PolatisDevice) -> Iterator[PolatisScpiServer]:
    server = PolatisScpiServer(device)
    yield server
    server.close()


@pytest.fixture
def switch(server: PolatisScpiServer) -> Iterator[PolatisSwitch]:
    switch = polatis_scpi("ocs0", *server.address, timeout_s=5.0, restart_s=5.0)
    yield switch
    switch.close()


@pytest.fixture
def bench(switch: PolatisSwitch, device: PolatisDevice) -> Bench:
    def cut_after(count: int) -> None:
        device.cut_after = count

    def ignore() -> None:
        device.ignores = True

    return Bench(switch, device.circuits, device.brake, cut_after, ignore)


class TestPolatisScpi(SwitchContract):
    pass


def test_its_ports_are_those_of_the_vendor(switch: PolatisSwitch) -> None:
    capabilities = switch.capabilities()
    assert capabilities.ingress == {str(port) for port in range(1, 9)}
    assert capabilities.egress == {str(port) for port in range(9, 17)}
    assert switch.fibres("3") == ("3", "11")
    assert capabilities.power
    assert capabilities.persistent
    assert capabilities.bulk


def test_a_switch_with_fewer_outputs_has_fewer_sockets(
    server: PolatisScpiServer, device: PolatisDevice, switch: PolatisSwitch
) -> None:
    device.outputs = 4
    assert switch.fibres("4") == ("4", "12")
    with pytest.raises(SwitchError, match="1 to 4"):
        switch.fibres("5")
    assert len(switch.capabilities().ports) == 12


def test_one_line_changes_many_circuits_and_names_both_ends_of_each(
    server: PolatisScpiServer, switch: PolatisSwitch
) -> None:
    circuits = (Circuit("1", "10"), Circuit("2", "9"))
    switch.apply(Difference((), circuits))
    switch.apply(Difference(circuits, ()))
    assert ":OXC:SWIT:CONN:ADD (@1,2),(@10,9)" in server.lines
    assert ":OXC:SWIT:CONN:SUB (@1,2),(@10,9)" in server.lines
    everything = re.compile(r"ONLY|DISC|\*RST", re.IGNORECASE)
    assert not [line for line in server.lines if everything.search(line)]


def test_a_port_in_use_by_another_job_is_never_taken(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    device.connect(None, 5, 10)
    changes = list(device.changes)
    for circuit in (Circuit("1", "10"), Circuit("5", "9")):
        with pytest.raises(SwitchError, match="in use by circuit 5-10; nothing was changed"):
            switch.apply(Difference((), (Circuit("3", "12"), circuit)))
    switch.apply(Difference((Circuit("5", "11"),), ()))  # it is not that circuit that is there
    assert device.changes == changes


def test_what_the_device_refuses_is_in_the_error(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    device.steals = False
    device.before_request = lambda line: "ADD" in line and device.connect(None, 5, 10)
    with pytest.raises(SwitchError, match=r"refused :OXC:SWIT:CONN:ADD .*-221 Settings conflict"):
        switch.apply(Difference((), (Circuit("1", "10"),)))
    assert device.circuits() == {Circuit("5", "10")}


def test_old_errors_of_others_are_not_blamed_on_a_change(
    server: PolatisScpiServer, switch: PolatisSwitch
) -> None:
    switch.circuits()
    server.errors.append((-113, "Undefined header"))
    switch.apply(Difference((), (Circuit("1", "9"),)))
    assert server.device.circuits() == {Circuit("1", "9")}


@pytest.mark.parametrize("status", ["FAILED", "DISABLED"])
def test_a_port_that_is_not_open_is_named_and_half_of_the_change_undone(
    device: PolatisDevice, switch: PolatisSwitch, status: str
) -> None:
    fence = ports_of(switch, *"1234")
    before = cable_circuits(switch, "1", "2")
    configure(switch, before, fence, timeout_s=LIMIT_S)
    device.status[11] = status
    wanted = cable_circuits(switch, "1", "3") + cable_circuits(switch, "2", "4")
    with pytest.raises(NotSettled, match=f"port 11 is {status}.*are restored") as caught:
        configure(switch, wanted, fence, timeout_s=0.3)
    assert caught.value.circuits == {Circuit("1", "11")}
    assert device.circuits() == set(before)


def test_without_a_transmitter_the_error_says_what_arrives(
    device: PolatisDevice, server: PolatisScpiServer, switch: PolatisSwitch
) -> None:
    device.lasers = {2}
    with pytest.raises(NotSettled, match=r"1-10 \(port 10 sees -66 dBm\)"):
        configure(
            switch, cable_circuits(switch, "1", "2"), ports_of(switch, "1", "2"), timeout_s=0.3
        )
    trusting = polatis_scpi("ocs0", *server.address, check_light=False)
    configure(
        trusting, cable_circuits(switch, "1", "2"), ports_of(switch, "1", "2"), timeout_s=LIMIT_S
    )
    trusting.close()


def test_a_model_without_monitors_is_judged_by_its_ports(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    device.monitors = False
    assert not switch.capabilities().power
    configure(
        switch, cable_circuits(switch, "1", "2"), ports_of(switch, "1", "2"), timeout_s=LIMIT_S
    )
    assert switch.power_dbm("10") is None


@pytest.mark.parametrize("preserves", [True, False])
def test_a_restart_in_the_middle_of_a_change_is_survived(
    device: PolatisDevice, switch: PolatisSwitch, preserves: bool
) -> None:
    device.preserves = preserves
    fence = ports_of(switch, *"1234")
    before = cable_circuits(switch, "1", "2")
    configure(switch, before, fence, timeout_s=LIMIT_S)
    device.reboot_after = 3
    wanted = cable_circuits(switch, "1", "3") + cable_circuits(switch, "2", "4")
    with pytest.raises(SwitchUnreachable, match="the circuits from before are restored"):
        configure(switch, wanted, fence, timeout_s=LIMIT_S)
    assert device.boots == 1
    assert device.circuits() == set(before)


def test_a_connection_that_broke_long_ago_is_opened_again(
    server: PolatisScpiServer, switch: PolatisSwitch
) -> None:
    switch.circuits()
    server.drop()
    wanted = cable_circuits(switch, "1", "2")
    configure(switch, wanted, ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
    assert server.device.circuits() == set(wanted)


def test_lines_may_end_without_a_carriage_return(device: PolatisDevice) -> None:
    server = PolatisScpiServer(device, line_end=b"\n")
    switch = polatis_scpi("ocs0", *server.address, timeout_s=5.0)
    wanted = cable_circuits(switch, "1", "2")
    configure(switch, wanted, ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
    assert device.circuits() == set(wanted)
    switch.close()
    server.close()


def test_nobody_there_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    switch = polatis_scpi("ocs0", *address, restart_s=600.0)
    with pytest.raises(SwitchUnreachable, match=f"ocs0: SCPI at 127.0.0.1:{address[1]}: .*refused"):
        switch.circuits()


def test_a_device_that_does_not_answer_is_given_up(server: PolatisScpiServer) -> None:
    server.mute = True
    switch = polatis_scpi("ocs0", *server.address, timeout_s=0.2)
    with pytest.raises(SwitchUnreachable, match=r"no answer within 0\.2 s"):
        switch.circuits()


def test_an_interrupted_question_does_not_shift_the_answers(
    server: PolatisScpiServer, switch: PolatisSwitch
) -> None:
    wanted = cable_circuits(switch, "1", "2")
    fence = ports_of(switch, "1", "2")
    configure(switch, wanted, fence, timeout_s=LIMIT_S)

    def interrupt(done: int, of: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.socket.recv", lambda *given: interrupt(0, 0, ""))
        with pytest.raises(KeyboardInterrupt):
            switch.circuits()
    assert switch.power_dbm("10") == pytest.approx(-4.25)
    with pytest.raises(KeyboardInterrupt):
        configure(switch, (), fence, timeout_s=LIMIT_S, progress=interrupt)
    assert server.device.circuits() == set(wanted)


@pytest.mark.parametrize("reply", ["", "16", "0,0", "SSH-2.0-OpenSSH_9.2", "(@1),(@17)"])
def test_something_else_on_the_port_is_an_error_with_what_it_said(
    server: PolatisScpiServer,
    switch: PolatisSwitch,
    reply: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polatis_scpi_server._Session._run", lambda self, line: [reply])
    with pytest.raises(SwitchError, match=re.escape(f"was answered {reply!r}, not two numbers")):
        switch.circuits()


@pytest.mark.parametrize("circuit", [Circuit("1", "2"), Circuit("9", "1"), Circuit("1", "17")])
def test_a_circuit_that_cannot_be_is_refused_before_anything_is_sent(
    server: PolatisScpiServer, switch: PolatisSwitch, circuit: Circuit
) -> None:
    with pytest.raises(SwitchError, match="is not a circuit from an input"):
        switch.apply(Difference((), (Circuit("2", "10"), circuit)))
    assert server.device.changes == []


def test_an_entry_of_a_cluster_file_becomes_the_driver(server: PolatisScpiServer) -> None:
    host, port = server.address
    entry = SwitchEntry(
        "ocs0", "polatis-scpi", f"{host}:{port}", options={"restart_s": 5, "check_light": False}
    )
    switch = open_switch(entry)
    assert switch.fibres("3") == ("3", "11")
    switch.close()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"user": "admin"}, "SCPI knows no users"),
        ({"address": "tcp://10.0.0.9"}, "address: 'tcp://10.0.0.9' is not a host or host:port"),
        ({"address": "ocs:99999"}, "address: 'ocs:99999' is not a host or host:port"),
        ({"options": {"checklight": True}}, "options.checklight: .* no such option"),
    ],
)
def test_an_entry_that_cannot_be_is_said_in_one_line(fields: dict[str, Any], error: str) -> None:
    entry = SwitchEntry("ocs0", "polatis-scpi", **({"address": "ocs"} | fields))
    with pytest.raises(DocumentError, match=f"switch ocs0: {error}"):
        open_switch(entry)


def test_the_test_server_keeps_the_rules_of_scpi(server: PolatisScpiServer) -> None:
    with socket.create_connection(server.address, 5) as connection:
        reader = connection.makefile()

        def ask(line: str) -> str:
            connection.sendall(line.encode())
            return reader.readline().strip()

        assert ask("*idn?\n").startswith("Polatis,N-VST-8x8")
        assert ask(":oxc:swit:conn:add (@1,2),(@9,10); stat?\r\n") == "(@1,2),(@9,10)"
        assert ask(":OXC:SWITch:CONNect:PORT? 2;*OPC?\n") == '"10";1'
        assert ask(":oxc:switc:size?\n:syst:err:all?\n") == '-113,"Undefined header"'
        assert ask(":oxc:swit:conn:add (@99),(@9);*OPC?\n") == "1"
        assert ask(":SYSTem:ERRor:ALL?\n") == '-222,"Data out of range"'
        assert ask(":system:error:all?\n") == '0,"No error"'
