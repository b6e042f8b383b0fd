"""The NETCONF driver of Polatis switches against a test server on a real SSH connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paramiko
import pytest
from lxml import etree
from ncclient import manager
from ncclient.operations import RPCError
from polatis_device import PolatisDevice, Subswitch
from polatis_netconf_server import OPSW, PolatisNetconfServer
from switch_contract import LIMIT_S, Bench, SwitchContract, ports_of

from torch_topoopt.data_model import DocumentError
from torch_topoopt.fabric.cluster.cluster_file import SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.polatis_netconf import polatis_netconf
from torch_topoopt.fabric.switches.ssh_shell import SshLogin
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

    Connect = Callable[..., PolatisSwitch]
    Serve = Callable[..., PolatisNetconfServer]

PASSWORD = "s3cret päss word"
C1, C2 = Circuit("1", "9"), Circuit("2", "10")


@pytest.fixture(scope="module")
def host_key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


@pytest.fixture
def device() -> PolatisDevice:
    return PolatisDevice(users={"admin": PASSWORD, "alice": PASSWORD, "bob": PASSWORD})


@pytest.fixture
def serve(device: PolatisDevice, host_key: paramiko.PKey) -> Iterator[Serve]:
    servers: list[PolatisNetconfServer] = []

    def serve(key: paramiko.PKey = host_key, **options: Any) -> PolatisNetconfServer:
        servers.append(PolatisNetconfServer(device, key, **options))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Serve) -> PolatisNetconfServer:
    return serve()


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setenv("POLATIS_PASSWORD", PASSWORD)
    opened: list[PolatisSwitch] = []

    def connect(server: PolatisNetconfServer, user: str = "admin", **options: Any) -> PolatisSwitch:
        known_hosts = tmp_path / f"known_hosts_{server.port}"
        key = server.host_key
        known_hosts.write_text(f"[127.0.0.1]:{server.port} {key.get_name()} {key.get_base64()}\n")
        own = {name: options.pop(name) for name in ("lock_s", "check_light") if name in options}
        login = {
            "password": PasswordSource(env="POLATIS_PASSWORD"),
            "known_hosts": str(known_hosts),
            "timeout_s": 10.0,
        }
        switch = polatis_netconf(
            "ocs0",
            SshLogin("127.0.0.1", server.port, user, **(login | options)),
            restart_s=5.0,
            **own,
        )
        opened.append(switch)
        return switch

    yield connect
    for switch in opened:
        switch.close()


@pytest.fixture
def switch(server: PolatisNetconfServer, connect: Connect) -> PolatisSwitch:
    return connect(server)


@pytest.fixture
def bench(switch: PolatisSwitch, device: PolatisDevice) -> Bench:
    def cut_after(count: int) -> None:
        device.cut_after = count

    def ignore() -> None:
        device.ignores = True

    return Bench(switch, device.circuits, device.brake, cut_after, ignore)


class TestPolatisNetconf(SwitchContract):
    pass


def test_its_ports_and_what_a_restart_does_are_the_device_s(
    device: PolatisDevice, server: PolatisNetconfServer, connect: Connect
) -> None:
    capabilities = connect(server).capabilities()
    assert capabilities.ingress == {str(port) for port in range(1, 9)}
    assert capabilities.egress == {str(port) for port in range(9, 17)}
    assert capabilities.persistent
    assert capabilities.power
    assert capabilities.bulk
    device.preserves = device.monitors = False
    capabilities = connect(server).capabilities()
    assert not capabilities.persistent
    assert not capabilities.power


@pytest.mark.parametrize(
    "options",
    [{"versions": ("1.0",)}, {"can_lock": False}, {"can_roll_back": False}],
    ids=["base 1.0", "without locks", "without rollback"],
)
def test_devices_that_offer_less_are_driven_too(
    serve: Serve, connect: Connect, device: PolatisDevice, options: dict[str, Any]
) -> None:
    switch = connect(serve(**options))
    fence = ports_of(switch, *"1234")
    for sockets in ("12", "13"):
        wanted = cable_circuits(switch, *sockets)
        configure(switch, wanted, fence, timeout_s=LIMIT_S)
        assert device.circuits() == set(wanted)


def test_circuits_are_created_never_merged_and_under_a_lock(
    server: PolatisNetconfServer, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1, C2)))
    switch.apply(Difference((C1,), ()))
    edits = [r for r in server.requests if "edit-config" in r]
    assert len(edits) == 2
    assert edits[0].count('operation="create"') == 2
    assert edits[1].count('operation="delete"') == 1
    assert "rollback-on-error" in edits[0]
    names = [etree.fromstring(r.encode())[0].tag.rpartition("}")[2] for r in server.requests]
    assert names[names.index("lock") :][:4] == ["lock", "get", "edit-config", "unlock"]
    assert server.locked_by is None


def test_a_port_in_use_by_another_job_is_never_taken(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    device.connect("admin", 5, 10)
    changes = list(device.changes)
    for circuit in (Circuit("1", "10"), Circuit("5", "9")):
        with pytest.raises(SwitchError, match="in use by circuit 5-10; nothing was changed"):
            switch.apply(Difference((), (Circuit("3", "12"), circuit)))
    assert device.changes == changes


def test_an_input_taken_without_a_lock_stays_theirs_and_the_request_leaves_nothing(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.circuits()
    device.before_request = lambda text: "edit-config" in text and device.connect("bob", 2, 12)
    with pytest.raises(SwitchError, match=r"a port is in use.*Pair 2 exists"):
        switch.apply(Difference((), (C1, C2)))
    assert device.circuits() == {Circuit("2", "12")}


def test_a_lock_of_somebody_else_is_waited_for_and_then_named(
    server: PolatisNetconfServer, connect: Connect, device: PolatisDevice
) -> None:
    server.locked_by = 99
    with pytest.raises(SwitchError, match=r"another session holds the lock.*held by session 99"):
        connect(server, lock_s=0.15).apply(Difference((), (C1,)))
    assert device.changes == []

    def release(text: str) -> None:
        if len([r for r in server.requests if "<nc:lock" in r or ":lock" in r]) > 4:
            server.locked_by = None if server.locked_by == 99 else server.locked_by

    device.before_request = release
    connect(server).apply(Difference((), (C1,)))
    assert device.circuits() == {C1}


def test_the_older_yang_is_understood(
    device: PolatisDevice, server: PolatisNetconfServer, switch: PolatisSwitch
) -> None:
    device.old_yang = True
    fence = ports_of(switch, *"1234")
    wanted = cable_circuits(switch, "1", "2")
    configure(switch, wanted, fence, timeout_s=LIMIT_S)
    assert device.circuits() == set(wanted)
    assert switch.power_dbm("10") == pytest.approx(-4.25)
    device.status[11] = "FAILED"
    with pytest.raises(NotSettled, match=r"port 11 is FAILED.*are restored"):
        configure(switch, cable_circuits(switch, "1", "3"), fence, timeout_s=0.2)
    assert device.circuits() == set(wanted)


@pytest.mark.parametrize("hides", [True, False])
def test_a_user_controls_its_sub_switch_and_nothing_else(
    device: PolatisDevice, server: PolatisNetconfServer, connect: Connect, hides: bool
) -> None:
    device.hides = hides
    for name, sockets in (("alice", (1, 2, 3)), ("bob", (4, 5, 6))):
        ports = frozenset(port for socket in sockets for port in (socket, 8 + socket))
        device.subswitches[name] = Subswitch(frozenset({name}), ports)
    device.connect("bob", 4, 13)
    switch = connect(server, "alice")
    assert switch.capabilities().ports == ("1", "2", "3", "9", "10", "11")
    with pytest.raises(SwitchError, match="port 4 belongs to others; this user controls ports 1"):
        switch.fibres("4")
    fence = ports_of(switch, "1", "2")
    configure(switch, cable_circuits(switch, "1", "2"), fence, timeout_s=LIMIT_S)
    configure(switch, (), fence, timeout_s=LIMIT_S)
    assert device.circuits() == {Circuit("4", "13")}


def test_a_user_who_may_only_read_is_told_so(
    device: PolatisDevice, server: PolatisNetconfServer, connect: Connect
) -> None:
    device.viewers.add("bob")
    with pytest.raises(AuthenticationFailed, match=r"may only read.*user 'bob' may not do this"):
        connect(server, "bob").apply(Difference((), (C1,)))
    assert server.locked_by is None


@pytest.mark.parametrize("status", ["FAILED", "DISABLED"])
def test_a_port_that_is_not_open_is_named_and_the_rest_undone(
    device: PolatisDevice, switch: PolatisSwitch, status: str
) -> None:
    fence = ports_of(switch, *"1234")
    before = cable_circuits(switch, "1", "2")
    configure(switch, before, fence, timeout_s=LIMIT_S)
    device.status[11] = status
    wanted = cable_circuits(switch, "1", "3") + cable_circuits(switch, "2", "4")
    with pytest.raises(NotSettled, match=rf"port 11 is {status}.*are restored") as caught:
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


def test_a_connection_that_broke_long_ago_is_opened_again(
    server: PolatisNetconfServer, switch: PolatisSwitch
) -> None:
    switch.circuits()
    server.drop()
    wanted = cable_circuits(switch, "1", "2")
    configure(switch, wanted, ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
    assert server.device.circuits() == set(wanted)


def test_an_entry_of_a_cluster_file_becomes_the_driver(
    server: PolatisNetconfServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLATIS_PASSWORD", PASSWORD)
    fields: dict[str, Any] = {
        "address": f"127.0.0.1:{server.port}",
        "user": "admin",
        "password": PasswordSource(env="POLATIS_PASSWORD"),
        "options": {"check_host_key": False, "check_light": False, "restart_s": 5},
    }
    switch = open_switch(SwitchEntry("ocs0", "polatis-netconf", **fields))
    assert switch.fibres("3") == ("3", "11")
    switch.close()
    with pytest.raises(DocumentError, match="switch ocs0: user: NETCONF needs one"):
        open_switch(SwitchEntry("ocs0", "polatis-netconf", "ocs"))


def test_the_test_server_keeps_the_rules_of_netconf(server: PolatisNetconfServer) -> None:
    """With ncclient alone: filters, operations and errors as RFC 6241 says."""
    pairs = f'<cross-connects xmlns="{OPSW}">%s</cross-connects>'
    pair = "<pair%s><ingress>1</ingress><egress>9</egress></pair>"
    config = '<nc:config xmlns:nc="urn:ietf:params:xml:ns:netconf:base:1.0">%s</nc:config>'

    with manager.connect_ssh(
        "127.0.0.1",
        port=server.port,
        username="admin",
        password=PASSWORD,
        hostkey_verify=False,
        look_for_keys=False,
        allow_agent=False,
        timeout=10,
    ) as session:

        def edit(operation: str, **options: str) -> None:
            body = config % (pairs % (pair % operation))
            session.edit_config(body, target="running", **options)

        edit("")
        edit("", default_operation="replace")
        for operation, tag in (
            ("create", "data-exists"),
            ("delete", None),
            ("delete", "data-missing"),
        ):
            given = f' nc:operation="{operation}"'
            if tag is None:
                edit(given)
                continue
            with pytest.raises(RPCError) as caught:
                edit(given)
            assert caught.value.tag == tag
        edit(' nc:operation="remove"')
        ports = f'<port-config xmlns="{OPSW}"><port><port-id>%s</port-id>%s</port></port-config>'
        data = session.get(filter=("subtree", ports % (3, "<status/>"))).data_ele
        leaves = [e.text for e in data.iter(f"{{{OPSW}}}*") if not len(e)]
        assert leaves == ["3", "ENABLED"]
        data = session.get(filter=("subtree", ports % (3, ""))).data_ele
        assert len(data[0][0]) == 3  # everything of port 3
        assert len(session.get(filter=("subtree", ports % (99, "<status/>"))).data_ele) == 0
        assert {e.tag for e in session.get().data_ele} >= {f"{{{OPSW}}}port-config"}
        with pytest.raises(RPCError, match="not supported"):
            session.delete_config(target="running")
