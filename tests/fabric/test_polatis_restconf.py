"""The RESTCONF driver of Polatis switches against a test server on a real socket."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from certificates import write_certificate
from polatis_device import PolatisDevice, Subswitch
from polatis_restconf_server import MEDIA_TYPE, PolatisRestconfServer
from switch_contract import LIMIT_S, Bench, SwitchContract, ports_of

from torch_topoopt.data_model import DocumentError
from torch_topoopt.fabric.cluster.cluster_file import SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.polatis_restconf import polatis_restconf
from torch_topoopt.fabric.switches.restconf import RestconfOptions
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
    cable_circuits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.fabric.switches.polatis import PolatisSwitch

PASSWORD = "s3cret/päss word"
C1, C2 = Circuit("1", "9"), Circuit("2", "10")


@pytest.fixture
def device() -> PolatisDevice:
    return PolatisDevice(users={"admin": PASSWORD, "alice": PASSWORD, "bob": PASSWORD})


@pytest.fixture
def server(device: PolatisDevice) -> Iterator[PolatisRestconfServer]:
    server = PolatisRestconfServer(device)
    yield server
    server.close()


@pytest.fixture
def connect(
    server: PolatisRestconfServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., PolatisSwitch]]:
    monkeypatch.setenv("POLATIS_PASSWORD", PASSWORD)
    opened: list[PolatisSwitch] = []

    def connect(user: str = "admin", **options: Any) -> PolatisSwitch:
        address = options.pop("address", server.address)
        check_light = options.pop("check_light", True)
        switch = polatis_restconf(
            "ocs0",
            address,
            user=user,
            password=PasswordSource(env="POLATIS_PASSWORD"),
            options=RestconfOptions(**{"insecure": True, "patience_s": 5.0} | options),
            check_light=check_light,
        )
        opened.append(switch)
        return switch

    yield connect
    for switch in opened:
        switch.close()


@pytest.fixture
def switch(connect: Callable[..., PolatisSwitch]) -> PolatisSwitch:
    return connect()


@pytest.fixture
def bench(switch: PolatisSwitch, device: PolatisDevice) -> Bench:
    def cut_after(count: int) -> None:
        device.cut_after = count

    def ignore() -> None:
        device.ignores = True

    return Bench(switch, device.circuits, device.brake, cut_after, ignore)


class TestPolatisRestconf(SwitchContract):
    pass


def test_its_ports_and_what_a_restart_does_are_the_device_s(
    device: PolatisDevice, connect: Callable[..., PolatisSwitch]
) -> None:
    capabilities = connect().capabilities()
    assert capabilities.ingress == {str(port) for port in range(1, 9)}
    assert capabilities.egress == {str(port) for port in range(9, 17)}
    assert capabilities.persistent
    assert capabilities.power
    device.preserves = device.monitors = False
    capabilities = connect().capabilities()
    assert not capabilities.persistent
    assert not capabilities.power


@pytest.mark.parametrize(
    ("model", "error"),
    [("N-VST-16xCC-LU1", "any port to any other"), ("MAX-DWDM", "does not say how many ports")],
)
def test_a_model_that_it_cannot_drive_is_an_error(
    device: PolatisDevice, switch: PolatisSwitch, model: str, error: str
) -> None:
    device.model = model
    with pytest.raises(SwitchError, match=error):
        switch.circuits()


def test_only_single_pairs_are_written(
    server: PolatisRestconfServer, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1, C2)))
    switch.apply(Difference((C1,), ()))
    writes = [line for line in server.asked if not line.startswith("GET")]
    pair = "/api/data/optical-switch:cross-connects/pair"
    assert writes == [f"PUT {pair}=1", f"PUT {pair}=2", f"DELETE {pair}=1"]


@pytest.mark.parametrize("tags", [True, False])
def test_a_port_in_use_by_another_job_is_never_taken(
    server: PolatisRestconfServer, device: PolatisDevice, switch: PolatisSwitch, tags: bool
) -> None:
    server.tags = tags
    device.connect("admin", 5, 10)
    changes = list(device.changes)
    for circuit in (Circuit("1", "10"), Circuit("5", "9")):
        with pytest.raises(SwitchError, match="in use by circuit 5-10; nothing was changed"):
            switch.apply(Difference((), (Circuit("3", "12"), circuit)))
    assert device.changes == changes


def test_an_input_that_somebody_takes_between_reading_and_writing_stays_theirs(
    server: PolatisRestconfServer, device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.circuits()
    device.before_request = lambda line: line.startswith("PUT") and device.connect("bob", 1, 12)
    with pytest.raises(SwitchError, match="port 1 is in use: somebody else connected it"):
        switch.apply(Difference((), (C1,)))
    assert device.circuits() == {Circuit("1", "12")}


def test_a_circuit_that_somebody_changes_before_it_is_removed_stays_theirs(
    server: PolatisRestconfServer, device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1,)))

    def take_over(line: str) -> None:
        if line.startswith("DELETE"):
            device.connect("bob", 1, 12)

    device.before_request = take_over
    with pytest.raises(SwitchError, match="somebody else changed the circuit of port 1"):
        switch.apply(Difference((C1,), ()))
    assert device.circuits() == {Circuit("1", "12")}
    switch.apply(Difference((C1,), ()))  # it is gone
    assert device.circuits() == {Circuit("1", "12")}


def test_a_circuit_that_somebody_replaced_is_not_removed_in_its_place(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1,)))
    device.before_request = lambda line: line.endswith("=1") and device.connect("bob", 1, 12)
    switch.apply(Difference((C1,), ()))
    assert device.circuits() == {Circuit("1", "12")}


def test_the_older_yang_is_understood(device: PolatisDevice, switch: PolatisSwitch) -> None:
    device.old_yang = True
    fence = ports_of(switch, *"1234")
    wanted = cable_circuits(switch, "1", "2")
    configure(switch, wanted, fence, timeout_s=LIMIT_S)
    assert device.circuits() == set(wanted)
    assert switch.power_dbm("10") == pytest.approx(-4.25)
    device.status[11] = "DISABLED"
    with pytest.raises(NotSettled, match=r"port 11 is DISABLED.*are restored"):
        configure(switch, cable_circuits(switch, "1", "3"), fence, timeout_s=0.2)
    assert device.circuits() == set(wanted)


@pytest.mark.parametrize("hides", [True, False])
def test_a_user_controls_its_sub_switch_and_nothing_else(
    device: PolatisDevice, connect: Callable[..., PolatisSwitch], hides: bool
) -> None:
    device.hides = hides
    for name, sockets in (("alice", (1, 2, 3)), ("bob", (4, 5, 6))):
        ports = frozenset(port for socket in sockets for port in (socket, 8 + socket))
        device.subswitches[name] = Subswitch(frozenset({name}), ports)
    device.connect("bob", 4, 13)
    switch = connect("alice")
    assert switch.capabilities().ports == ("1", "2", "3", "9", "10", "11")
    with pytest.raises(SwitchError, match="port 4 belongs to others; this user controls ports 1"):
        switch.fibres("4")
    with pytest.raises(SwitchError, match="port 12 belongs to others"):
        switch.apply(Difference((), (Circuit("1", "12"),)))
    fence = ports_of(switch, "1", "2")
    configure(switch, cable_circuits(switch, "1", "2"), fence, timeout_s=LIMIT_S)
    configure(switch, (), fence, timeout_s=LIMIT_S)
    assert device.circuits() == {Circuit("4", "13")}


def test_a_user_who_may_only_read_is_told_so(
    device: PolatisDevice, connect: Callable[..., PolatisSwitch]
) -> None:
    device.viewers.add("bob")
    with pytest.raises(AuthenticationFailed, match=r"'bob' may not PUT .*may only read"):
        connect("bob").apply(Difference((), (C1,)))


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    device: PolatisDevice,
    switch: PolatisSwitch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    device.users["admin"] = "another"
    caplog.set_level("DEBUG")
    with pytest.raises(AuthenticationFailed, match=r"user 'admin'.*\$POLATIS_PASSWORD") as caught:
        switch.circuits()
    basic = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    for secret in (PASSWORD, basic):
        assert secret not in str(caught.value)
        assert secret not in caplog.text


def test_https_is_verified(
    device: PolatisDevice, connect: Callable[..., PolatisSwitch], tmp_path: Path
) -> None:
    certificate = write_certificate(tmp_path / "switch.pem")
    server = PolatisRestconfServer(device, certificate)
    try:
        trusting = connect(address=server.address, insecure=False, ca_file=str(certificate))
        assert trusting.circuits() == frozenset()
        with pytest.raises(SwitchError, match=r"certificate .* is not trusted"):
            connect(address=server.address, insecure=False).circuits()
    finally:
        server.close()
    with pytest.raises(SwitchError, match="insecure: true"):
        connect(insecure=False)  # plain http


@pytest.mark.parametrize("status", ["FAILED", "DISABLED"])
def test_a_port_that_is_not_open_is_named_and_the_rest_undone(
    device: PolatisDevice, switch: PolatisSwitch, status: str
) -> None:
    fence = ports_of(switch, *"1234")
    before = cable_circuits(switch, "1", "2")
    configure(switch, before, fence, timeout_s=LIMIT_S)
    device.status[11] = status
    wanted = cable_circuits(switch, "1", "3") + cable_circuits(switch, "2", "4")
    with pytest.raises(NotSettled, match=f"port 11 is {status}.*are restored") as caught:
        configure(switch, wanted, fence, timeout_s=0.2)
    assert caught.value.circuits == {Circuit("1", "11")}
    assert device.circuits() == set(before)


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


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, "text/html", b"<html>"), "is not JSON"),
        ((200, MEDIA_TYPE, b"[1]"), "is not as its YANG says"),
        ((200, MEDIA_TYPE, b'{"optical-switch:x": {}}'), "is this a Polatis switch"),
        ((404, "text/html", b"nothing here"), "404: nothing here"),
        ((500, MEDIA_TYPE, b'{"ietf-restconf:errors": {"error": [{}]}}'), "500"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(
    server: PolatisRestconfServer, switch: PolatisSwitch, answer: Any, error: str
) -> None:
    server.answer_all = answer
    with pytest.raises(SwitchError, match=error):
        switch.circuits()


def test_an_entry_of_a_cluster_file_becomes_the_driver(
    server: PolatisRestconfServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLATIS_PASSWORD", PASSWORD)
    entry = SwitchEntry(
        "ocs0",
        "polatis-restconf",
        server.address,
        user="admin",
        password=PasswordSource(env="POLATIS_PASSWORD"),
        options={"insecure": True, "check_light": False, "patience_s": 5},
    )
    switch = open_switch(entry)
    assert switch.fibres("3") == ("3", "11")
    switch.close()
    with pytest.raises(DocumentError, match=r"options\.lock_s: .* no such option"):
        open_switch(SwitchEntry("ocs0", "polatis-restconf", "ocs", options={"lock_s": 1}))


def test_the_test_server_keeps_the_rules_of_restconf(
    server: PolatisRestconfServer, device: PolatisDevice
) -> None:
    login = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()

    def ask(method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"{server.address}/api/data/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Basic {login}", "Content-Type": MEDIA_TYPE} | headers,
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                content = response.read()
                return response.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            content = error.read()
            return error.code, json.loads(content) if content else None

    pairs = "optical-switch:cross-connects"
    entry = {"optical-switch:pair": [{"ingress": 1, "egress": 9}]}
    assert ask("POST", pairs, entry)[0] == 201
    assert ask("POST", pairs, entry)[0] == 409
    assert ask("GET", f"{pairs}/pair=1") == (200, entry)
    assert ask("PUT", f"{pairs}/pair=1", entry) == (204, None)
    assert ask("PUT", f"{pairs}/pair=2", entry)[0] == 400
    assert ask("PUT", f"{pairs}/pair=1", entry, **{"If-None-Match": "*"})[0] == 412
    assert ask("GET", f"{pairs}/pair=7")[0] == 404
    assert ask("GET", pairs, None, **{"If-None-Match": f'"{device.revision}"'})[0] == 304
    assert ask("PATCH", "cross-connects/pair", {"pair": [{"ingress": 2, "egress": 10}]})[0] == 204
    assert device.circuits() == {C1, C2}
    whole = {pairs: {"pair": [{"ingress": 2, "egress": 10}]}}
    assert ask("PUT", pairs, whole)[0] == 204
    assert device.circuits() == {C2}
    assert ask("DELETE", pairs)[0] == 204
    assert device.circuits() == frozenset()
    assert ask("PUT", "optical-switch:port-config", {})[0] == 405
