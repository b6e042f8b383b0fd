"""Requests to devices: trust, restarts and errors, against a server of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.fabric.certificates import write_certificate
from support.fabric.sonic_ocs_device import OcsDevice
from support.fabric.sonic_ocs_server import OcsServer
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.restconf import RestconfOptions, RestconfSession
from torch_topoopt.fabric.switches.switch import SwitchError, SwitchUnreachable

if TYPE_CHECKING:
    from pathlib import Path

Connect = Callable[..., RestconfSession]

LIMIT_S = limit_s(20.0)

_PORTS = "/restconf/data/sonic-ocs:sonic-ocs/OCS_PORT"
_BULK_UPDATE = "/restconf/operations/sonic-ocs:bulk-update"
_NOTHING: dict[str, Any] = {"sonic-ocs:input": {}}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "device.pem")


@pytest.fixture
def server(certificate: Path) -> Iterator[OcsServer]:
    with OcsServer(OcsDevice(), certificate) as server:
        yield server


@pytest.fixture
def connect(
    server: OcsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    monkeypatch.setenv("OCS_PASSWORD", OcsServer.password)
    opened: list[RestconfSession] = []

    def connect(address: str = "", **options: Any) -> RestconfSession:
        given = RestconfOptions(**{"ca_file": str(certificate), "patience_s": LIMIT_S} | options)
        source = PasswordSource(env="OCS_PASSWORD")
        opened.append(
            RestconfSession(
                "ocs0", address or server.address, user="admin", password=source, options=given
            )
        )
        return opened[-1]

    yield connect
    for session in opened:
        session.close()


def test_a_slow_answer_is_waited_for_and_a_missing_one_is_not(
    server: OcsServer, connect: Connect
) -> None:
    server.slow_s = 0.2
    assert connect(timeout_s=10.0).get(_PORTS) is not None
    with refused(SwitchUnreachable, 0.05, "within"):
        connect(timeout_s=0.05).get(_PORTS)


def test_no_device_at_the_address(connect: Connect) -> None:
    with refused(SwitchUnreachable, "https://127.0.0.1:1"):
        connect(address="127.0.0.1:1").get(_PORTS)


def test_the_device_s_own_words_are_shown(server: OcsServer, connect: Connect) -> None:
    error = {"error-type": "application", "error-tag": "in-use", "error-message": "DB locked"}
    server.refuse(409, {"ietf-restconf:errors": {"error": [error]}})
    with refused(SwitchError, "POST", "bulk-update", 409, "DB locked"):
        connect().post(_BULK_UPDATE, _NOTHING)


@pytest.mark.parametrize(
    ("status", "body", "tokens"),
    [
        (200, "<html>log in</html>", ("JSON", "<html>log in</html>")),
        (302, "elsewhere", ("bulk-update", 302)),
        (500, "", ("bulk-update", 500)),
    ],
)
def test_an_answer_of_something_else_is_shown(
    server: OcsServer,
    connect: Connect,
    status: int,
    body: str,
    tokens: tuple[object, ...],
) -> None:
    server.refuse(status, body)
    with refused(SwitchError, *tokens):
        connect().post(_BULK_UPDATE, _NOTHING)


class TestTrust:
    def test_an_unknown_certificate_is_refused_before_the_password_is_sent(
        self, server: OcsServer, connect: Connect
    ) -> None:
        with refused(SwitchError, "trusted", "options.ca_file"):
            connect(ca_file=None).get(_PORTS)
        assert server.asked == []

    def test_insecure_is_possible_and_logged(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert connect(ca_file=None, insecure=True).get(_PORTS) is not None
        assert "insecure: true" in caplog.text

    def test_a_ca_file_that_is_not_there(self, connect: Connect) -> None:
        with refused(SwitchError, "ca_file", "/nowhere.pem"):
            connect(ca_file="/nowhere.pem").get(_PORTS)

    def test_plain_http_needs_insecure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with OcsServer(OcsDevice()) as plain:
            with refused(SwitchError, "password"):
                RestconfSession("ocs0", plain.address)
            monkeypatch.setenv("OCS_PASSWORD", OcsServer.password)
            switch = RestconfSession(
                "ocs0",
                plain.address,
                user="admin",
                password=PasswordSource(env="OCS_PASSWORD"),
                options=RestconfOptions(insecure=True),
            )
            assert switch.get(_PORTS) is not None
            switch.close()

    @pytest.mark.parametrize(
        ("address", "token"),
        [
            ("https://admin:secret@ocs", "user"),
            ("ftp://ocs", "host:port"),
            ("ocs:99999", "65535"),
            ("ocs/restconf", "ocs/restconf"),
        ],
    )
    def test_an_address_that_is_none(self, address: str, token: str) -> None:
        with refused(SwitchError, "ocs0", "address", token) as caught:
            RestconfSession("ocs0", address)
        assert "secret" not in str(caught.value)

    def test_a_user_without_a_password(self) -> None:
        with refused(SwitchError, "user", "password"):
            RestconfSession("ocs0", "ocs", user="admin")
