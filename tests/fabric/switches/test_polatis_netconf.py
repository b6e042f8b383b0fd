"""The NETCONF driver of Polatis switches against a test server on a real SSH connection."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import paramiko
import pytest
from lxml import etree
from ncclient import manager
from ncclient.operations import RPCError
from support.fabric.polatis_contract import C1, C2, PASSWORD, PolatisYangContract, device_with_users
from support.fabric.polatis_netconf_server import OPSW, PolatisNetconfServer
from support.fabric.switch_contract import LIMIT_S, ports_of

from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.polatis_netconf import polatis_netconf
from torch_topoopt.fabric.switches.ssh_shell import SshLogin
from torch_topoopt.fabric.switches.switch import SwitchError, cable_circuits
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.fabric.polatis_contract import Connect
    from support.fabric.polatis_device import PolatisDevice, PolatisServer

    from torch_topoopt.fabric.switches.polatis import PolatisSwitch

    Serve = Callable[..., PolatisNetconfServer]


@pytest.fixture(scope="module")
def host_key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PolatisDevice:
    return device_with_users(monkeypatch)


@pytest.fixture
def serve(device: PolatisDevice, host_key: paramiko.PKey) -> Iterator[Serve]:
    with ExitStack() as opened:

        def serve(**options: Any) -> PolatisNetconfServer:
            return opened.enter_context(PolatisNetconfServer(device, host_key, **options))

        yield serve


@pytest.fixture
def server(serve: Serve) -> PolatisNetconfServer:
    return serve()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    with ExitStack() as opened:

        def connect(
            server: PolatisNetconfServer,
            user: str = "admin",
            *,
            timeout_s: float = 10.0,
            **options: Any,
        ) -> PolatisSwitch:
            known_hosts = tmp_path / f"known_hosts_{server.port}"
            name, text = server.host_key.get_name(), server.host_key.get_base64()
            known_hosts.write_text(f"[127.0.0.1]:{server.port} {name} {text}\n")
            login = SshLogin(
                "127.0.0.1",
                server.port,
                user,
                PasswordSource(env="POLATIS_PASSWORD"),
                known_hosts=str(known_hosts),
                timeout_s=timeout_s,
            )
            switch = polatis_netconf("ocs0", login, **{"restart_s": 5.0} | options)
            return opened.enter_context(closing(switch))

        yield connect


@pytest.fixture
def switch(server: PolatisNetconfServer, connect: Connect) -> PolatisSwitch:
    return connect(server)


class TestPolatisNetconf(PolatisYangContract):
    bulk = True
    answer_s = 2.0  # the keys of a login take their time
    forbidden = r"may only read.*user 'bob' may not do this"

    def entry(self, server: PolatisServer) -> SwitchEntry:
        return SwitchEntry(
            "ocs0",
            "polatis-netconf",
            f"127.0.0.1:{server.port}",
            user="admin",
            password=PasswordSource(env="POLATIS_PASSWORD"),
            options={"check_host_key": False, "check_light": False, "restart_s": 5},
        )

    def test_a_read_only_user_gets_an_error_that_says_so(
        self, device: PolatisDevice, server: PolatisServer, connect: Connect
    ) -> None:
        super().test_a_read_only_user_gets_an_error_that_says_so(device, server, connect)
        assert isinstance(server, PolatisNetconfServer)
        assert server.locked_by is None


def test_an_entry_without_a_user_is_an_error() -> None:
    with pytest.raises(DocumentError, match="switch ocs0: user: NETCONF needs one"):
        open_switch(SwitchEntry("ocs0", "polatis-netconf", "ocs"))


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


def test_an_input_taken_without_a_lock_stays_theirs_and_the_request_leaves_nothing(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.circuits()
    device.before_request = lambda text: "edit-config" in text and device.connect("bob", 2, 12)
    with pytest.raises(SwitchError, match=r"a port is in use.*Pair 2 exists"):
        switch.apply(Difference((), (C1, C2)))
    assert device.circuits() == {Circuit("2", "12")}


def test_a_lock_of_another_client_is_waited_for_and_then_named(
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
