"""Logging in to NETCONF devices, and what goes wrong on the way there."""

from __future__ import annotations

from queue import Queue
from typing import TYPE_CHECKING, Any

import paramiko
import pytest
from ncclient import NCClientError
from ncclient.transport import SessionListener
from support.fabric.polatis_device import PolatisDevice
from support.fabric.polatis_netconf_server import PolatisNetconfServer
from support.limits import slowness

from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.netconf import NetconfSession
from torch_topoopt.fabric.switches.ssh_shell import SshLogin
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Connect = Callable[..., NetconfSession]
    Serve = Callable[..., PolatisNetconfServer]

PASSWORD = "s3cret päss word"


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[PolatisNetconfServer] = []

    def serve(key: paramiko.PKey) -> PolatisNetconfServer:
        device = PolatisDevice(users={"admin": PASSWORD, "alice": PASSWORD, "bob": PASSWORD})
        servers.append(PolatisNetconfServer(device, key))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Serve) -> PolatisNetconfServer:
    return serve(paramiko.ECDSAKey.generate())


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setenv("POLATIS_PASSWORD", PASSWORD)
    opened: list[NetconfSession] = []

    def connect(
        server: PolatisNetconfServer, user: str = "admin", **options: Any
    ) -> NetconfSession:
        known_hosts = tmp_path / f"known_hosts_{server.port}"
        key = server.host_key
        known_hosts.write_text(f"[127.0.0.1]:{server.port} {key.get_name()} {key.get_base64()}\n")
        login = {
            "password": PasswordSource(env="POLATIS_PASSWORD"),
            "known_hosts": str(known_hosts),
            "timeout_s": 10.0,
        }
        login_as = SshLogin("127.0.0.1", server.port, user, **(login | options))
        opened.append(NetconfSession("ocs0", login_as))
        return opened[-1]

    yield connect
    for session in opened:
        session.close()


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    server: PolatisNetconfServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server.device.users["admin"] = "another"
    caplog.set_level("DEBUG")
    with pytest.raises(
        AuthenticationFailed, match=r"login of user 'admin' with .*\$POLATIS"
    ) as caught:
        connect(server).capabilities()
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in caplog.text


def test_a_key_logs_in_without_a_password(
    server: PolatisNetconfServer, connect: Connect, tmp_path: Path
) -> None:
    key = paramiko.ECDSAKey.generate()
    server.authorized_keys["alice"] = key
    path = tmp_path / "id_ecdsa"
    key.write_private_key_file(str(path))
    assert connect(server, "alice", password=None, key_file=str(path)).capabilities()
    with pytest.raises(AuthenticationFailed, match=r"'bob' with the key in .*id_ecdsa"):
        connect(server, "bob", password=None, key_file=str(path)).capabilities()
    with pytest.raises(SwitchError, match=r"nowhere: No such file"):
        connect(server, password=None, key_file=str(tmp_path / "nowhere")).capabilities()


def test_a_host_key_that_is_not_known_is_refused_before_the_password_is_sent(
    server: PolatisNetconfServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = paramiko.ECDSAKey.generate()
    stale = tmp_path / "stale"
    stale.write_text(f"[127.0.0.1]:{server.port} {other.get_name()} {other.get_base64()}\n")
    tried = []
    monkeypatch.setattr(
        "support.fabric.polatis_netconf_server._Login.check_auth_password",
        lambda *given: tried.append(given),
    )
    empty = tmp_path / "empty"
    empty.touch()
    for known_hosts in (stale, empty):
        with pytest.raises(SwitchError, match=f"the host key .*ssh-keyscan -p {server.port}"):
            connect(server, known_hosts=str(known_hosts)).capabilities()
    assert tried == []


def test_a_host_key_is_not_looked_at_where_the_cluster_file_says_so(
    server: PolatisNetconfServer, connect: Connect, tmp_path: Path
) -> None:
    session = connect(server, known_hosts=str(tmp_path / "none"), check_host_key=False)
    assert session.capabilities()


def test_a_known_rsa_key_is_recognised(serve: Serve, connect: Connect) -> None:
    session = connect(serve(paramiko.RSAKey.generate(2048)))
    assert session.capabilities()


def test_a_device_that_does_not_answer_is_given_up(
    server: PolatisNetconfServer, connect: Connect
) -> None:
    server.mute = True
    answer_s = 2.0 * slowness()  # the keys of a login take their time
    session = connect(server, timeout_s=answer_s)
    with pytest.raises(
        SwitchUnreachable, match=rf"no answer to lock from .* within {answer_s:g} s"
    ):
        session.lock()
    assert not session.connected


def test_a_request_while_a_broken_connection_is_being_closed_is_an_error_at_once(
    server: PolatisNetconfServer, connect: Connect
) -> None:
    limit_s = 20.0 * slowness()
    session = connect(server, timeout_s=limit_s)
    session.capabilities()
    errors: Queue[BaseException] = Queue()

    class Asks(SessionListener):  # type: ignore[misc]
        """Makes a request when those under way have been notified of the end."""

        def callback(self, root: Any, raw: str) -> None:
            """Of messages."""

        def errback(self, _: BaseException) -> None:
            if errors.empty():
                try:
                    manager.lock("running")
                except NCClientError as error:
                    errors.put(error)

    manager = session._manager
    session._session.add_listener(Asks())
    server.drop()
    assert "Not connected" in str(errors.get(timeout=2.0 * limit_s))


def test_a_silent_address_is_an_error_that_names_it(
    server: PolatisNetconfServer, connect: Connect
) -> None:
    server.device.reboot_s = 600.0
    server.device.reboot()
    with pytest.raises(SwitchUnreachable, match=f"ocs0: NETCONF at 127.0.0.1:{server.port}"):
        connect(server).capabilities()
