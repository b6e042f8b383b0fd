"""The RESTCONF driver of Polatis switches against a test server on a real socket."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from support.fabric.certificates import write_certificate
from support.fabric.polatis_contract import C1, C2, PASSWORD, PolatisContract, device_with_users
from support.fabric.polatis_restconf_server import MEDIA_TYPE, PolatisRestconfServer
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.polatis_restconf import polatis_restconf
from torch_topoopt.fabric.switches.restconf import RestconfOptions
from torch_topoopt.fabric.switches.switch import SwitchError
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.fabric.polatis_contract import Connect
    from support.fabric.polatis_device import PolatisDevice, PolatisServer

    from torch_topoopt.fabric.switches.polatis import PolatisSwitch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PolatisDevice:
    return device_with_users(monkeypatch)


@pytest.fixture
def server(device: PolatisDevice) -> Iterator[PolatisRestconfServer]:
    with PolatisRestconfServer(device) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as opened:

        def connect(
            server: PolatisRestconfServer,
            user: str = "admin",
            *,
            restart_s: float = 5.0,
            check_light: bool = True,
            **options: Any,
        ) -> PolatisSwitch:
            switch = polatis_restconf(
                "ocs0",
                server.address,
                user=user,
                password=PasswordSource(env="POLATIS_PASSWORD"),
                options=RestconfOptions(patience_s=restart_s, **{"insecure": True} | options),
                check_light=check_light,
            )
            return opened.enter_context(closing(switch))

        yield connect


@pytest.fixture
def switch(server: PolatisRestconfServer, connect: Connect) -> PolatisSwitch:
    return connect(server)


class TestPolatisRestconf(PolatisContract):
    forbidden = ("bob", "PUT", "read")

    def entry(self, server: PolatisServer) -> SwitchEntry:
        assert isinstance(server, PolatisRestconfServer)
        return SwitchEntry(
            "ocs0",
            "polatis-restconf",
            server.address,
            user="admin",
            password=PasswordSource(env="POLATIS_PASSWORD"),
            options={"insecure": True, "check_light": False, "patience_s": 5},
        )

    def test_a_port_in_use_is_never_taken_from_a_device_without_tags_either(
        self, server: PolatisRestconfServer, device: PolatisDevice, switch: PolatisSwitch
    ) -> None:
        server.tags = False
        self.test_a_port_in_use_by_another_job_is_never_taken(device, switch)


def test_an_option_of_another_protocol_is_an_error() -> None:
    with refused(DocumentError, "options.lock_s", "option"):
        open_switch(SwitchEntry("ocs0", "polatis-restconf", "ocs", options={"lock_s": 1}))


def test_only_single_pairs_are_written(
    server: PolatisRestconfServer, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1, C2)))
    switch.apply(Difference((C1,), ()))
    writes = [line for line in server.asked if not line.startswith("GET")]
    pair = "/api/data/optical-switch:cross-connects/pair"
    assert writes == [f"PUT {pair}=1", f"PUT {pair}=2", f"DELETE {pair}=1"]


def test_an_input_that_another_client_takes_between_reading_and_writing_stays_theirs(
    server: PolatisRestconfServer, device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.circuits()
    device.before_request = lambda line: line.startswith("PUT") and device.connect("bob", 1, 12)
    with refused(SwitchError, "port 1", "another client"):
        switch.apply(Difference((), (C1,)))
    assert device.circuits() == {Circuit("1", "12")}


def test_a_circuit_that_another_client_changes_before_it_is_removed_stays_theirs(
    server: PolatisRestconfServer, device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1,)))

    def take_over(line: str) -> None:
        if line.startswith("DELETE"):
            device.connect("bob", 1, 12)

    device.before_request = take_over
    with refused(SwitchError, "port 1", "another client"):
        switch.apply(Difference((C1,), ()))
    assert device.circuits() == {Circuit("1", "12")}
    switch.apply(Difference((C1,), ()))  # it is gone
    assert device.circuits() == {Circuit("1", "12")}


def test_a_circuit_that_another_client_replaced_is_not_removed_in_its_place(
    device: PolatisDevice, switch: PolatisSwitch
) -> None:
    switch.apply(Difference((), (C1,)))
    device.before_request = lambda line: line.endswith("=1") and device.connect("bob", 1, 12)
    switch.apply(Difference((C1,), ()))
    assert device.circuits() == {Circuit("1", "12")}


def test_https_is_verified(
    device: PolatisDevice, server: PolatisRestconfServer, connect: Connect, tmp_path: Path
) -> None:
    certificate = write_certificate(tmp_path / "switch.pem")
    with PolatisRestconfServer(device, certificate) as secure:
        trusting = connect(secure, insecure=False, ca_file=str(certificate))
        assert trusting.circuits() == frozenset()
        with refused(SwitchError, "certificate", "trusted"):
            connect(secure, insecure=False).circuits()
    with refused(SwitchError, "insecure", "true"):
        connect(server, insecure=False)  # plain http


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ((200, "text/html", b"<html>"), ("JSON",)),
        ((200, MEDIA_TYPE, b"[1]"), ("YANG",)),
        ((200, MEDIA_TYPE, b'{"optical-switch:x": {}}'), ("Polatis", "switch")),
        ((404, "text/html", b"nothing here"), (404,)),
        ((500, MEDIA_TYPE, b'{"ietf-restconf:errors": {"error": [{}]}}'), (500,)),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(
    server: PolatisRestconfServer, switch: PolatisSwitch, answer: Any, tokens: tuple[object, ...]
) -> None:
    server.answer_all = answer
    with refused(SwitchError, *tokens):
        switch.circuits()


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
