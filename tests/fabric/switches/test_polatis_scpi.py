"""The SCPI driver of Polatis switches against a test server on a real socket."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from support.fabric.polatis_contract import PolatisContract
from support.fabric.polatis_device import PolatisDevice
from support.fabric.polatis_scpi_server import PolatisScpiServer
from support.fabric.switch_contract import LIMIT_S, ports_of

from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.polatis_scpi import polatis_scpi
from torch_topoopt.fabric.switches.switch import SwitchError, cable_circuits
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.fabric.polatis_contract import Connect
    from support.fabric.polatis_device import PolatisServer

    from torch_topoopt.fabric.switches.polatis import PolatisSwitch


@pytest.fixture
def device() -> PolatisDevice:
    return PolatisDevice()


@pytest.fixture
def server(device: PolatisDevice) -> Iterator[PolatisScpiServer]:
    with PolatisScpiServer(device) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as opened:

        def connect(server: PolatisScpiServer, **options: Any) -> PolatisSwitch:
            limits = {"timeout_s": 5.0, "restart_s": 5.0} | options
            return opened.enter_context(closing(polatis_scpi("ocs0", *server.address, **limits)))

        yield connect


@pytest.fixture
def switch(server: PolatisScpiServer, connect: Connect) -> PolatisSwitch:
    return connect(server)


class TestPolatisScpi(PolatisContract):
    bulk = True

    def entry(self, server: PolatisServer) -> SwitchEntry:
        options = {"restart_s": 5, "check_light": False}
        return SwitchEntry("ocs0", "polatis-scpi", f"127.0.0.1:{server.port}", options=options)


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


def test_lines_may_end_without_a_carriage_return(device: PolatisDevice, connect: Connect) -> None:
    with PolatisScpiServer(device, line_end=b"\n") as server:
        switch = connect(server)
        wanted = cable_circuits(switch, "1", "2")
        configure(switch, wanted, ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
        assert device.circuits() == set(wanted)


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
    assert switch.circuits() == set(wanted)
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
    monkeypatch.setattr(
        "support.fabric.polatis_scpi_server._Session._run", lambda self, line: [reply]
    )
    with pytest.raises(SwitchError, match=re.escape(f"was answered {reply!r}, not two numbers")):
        switch.circuits()


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
