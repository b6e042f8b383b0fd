"""The SONiC-OCS driver against a device that speaks the protocol over real TLS sockets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from support.fabric.certificates import write_certificate
from support.fabric.sonic_ocs_device import OcsDevice
from support.fabric.sonic_ocs_server import MEDIA_TYPE, OcsServer
from support.fabric.switch_contract import LIMIT_S, Bench, SwitchContract, ports_of
from support.limits import slowness
from support.refusals import named, refused

from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import Snapshot, configure, restore
from torch_topoopt.fabric.switches.restconf import RestconfOptions
from torch_topoopt.fabric.switches.sonic_ocs import SonicOcs
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

_DATA = "/restconf/data/sonic-ocs:sonic-ocs/"
_BULK_UPDATE = "/restconf/operations/sonic-ocs:bulk-update"

C12, C21 = Circuit("1A", "2B"), Circuit("2A", "1B")
C34, C43 = Circuit("3A", "4B"), Circuit("4A", "3B")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "switch.pem")


@pytest.fixture
def server(certificate: Path) -> Iterator[OcsServer]:
    with OcsServer(OcsDevice(), certificate) as server:
        yield server


@pytest.fixture
def connect(
    server: OcsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., SonicOcs]]:
    monkeypatch.setenv("OCS_PASSWORD", OcsServer.password)
    opened: list[SonicOcs] = []

    def connect(**options: Any) -> SonicOcs:
        source = PasswordSource(env=options.pop("env", "OCS_PASSWORD"))
        address = options.pop("address", server.address)
        given = RestconfOptions(**{"ca_file": str(certificate), "patience_s": LIMIT_S} | options)
        switch = SonicOcs(
            "ocs0", address, user="admin", password=source, options=given, poll_s=0.01
        )
        opened.append(switch)
        return switch

    yield connect
    for switch in opened:
        switch.close()


@pytest.fixture
def bench(server: OcsServer, connect: Callable[..., SonicOcs]) -> Bench:
    device = server.device

    def cut_after(count: int) -> None:
        device.fails_after = count

    def ignore() -> None:
        device.ignoring = True

    class Healing(SonicOcs):
        """The fault is over once the device has reported it."""

        def apply(self, *arguments: Any) -> None:
            try:
                super().apply(*arguments)
            finally:
                device.fails_after = None

    switch = connect()
    switch.__class__ = Healing
    return Bench(switch, device.circuits, device.broken.add, cut_after, ignore)


class TestSonicOcs(SwitchContract):
    pass


class TestDocumentedConflicts:
    """The summary table of the demo instructions, with requests as any client would send them."""

    @pytest.fixture
    def client(self, server: OcsServer) -> Iterator[httpx.Client]:
        with httpx.Client(
            base_url=server.address,
            auth=(server.user, server.password),
            verify=False,  # the driver's own verification has tests of its own
            headers={"Content-Type": MEDIA_TYPE},
            trust_env=False,
        ) as client:
            yield client

    @pytest.fixture
    def update(self, client: httpx.Client) -> Callable[[list[str], list[str]], dict[str, Any]]:
        def update(delete: list[str], add: list[str]) -> dict[str, Any]:
            rows = [
                {"cross_connect_id": key, "a_side": key.split("-")[0], "b_side": key.split("-")[1]}
                for key in add
            ]
            body = {"sonic-ocs:input": {"delete": delete, "add": rows}}
            output: dict[str, Any] = client.post(_BULK_UPDATE, json=body).json()["sonic-ocs:output"]
            return output

        return update

    def test_the_six_cases(
        self, server: OcsServer, update: Callable[[list[str], list[str]], dict[str, Any]]
    ) -> None:
        server.device.settle_s = 0.0
        status = server.device.status
        assert update([], ["1A-8B", "2A-7B"]) == {"deleted_count": 0, "added_count": 2}
        assert status() == {"1A-8B": "enabled", "2A-7B": "enabled"}
        # one new key on a taken port: the new one is invalid
        assert update([], ["1A-1B"])["added_count"] == 1
        assert status() == {"1A-8B": "enabled", "2A-7B": "enabled", "1A-1B": "invalid"}
        # an existing key, invalid or not, is counted and nothing happens to the hardware
        assert update([], ["1A-1B", "2A-7B"])["added_count"] == 2
        assert status()["1A-1B"] == "invalid"
        # keys that are not there are skipped
        assert update(["1A-1B", "5A-5B"], []) == {"deleted_count": 1, "added_count": 0}
        # two or more new keys on taken ports: they win, the others are invalid from then on
        assert update([], ["1A-1B", "2A-2B"])["added_count"] == 2
        assert status() == {
            "1A-8B": "invalid",
            "2A-7B": "invalid",
            "1A-1B": "enabled",
            "2A-2B": "enabled",
        }
        # deletions run first, so a key that is deleted and added is made anew
        assert update(["1A-1B", "2A-2B", "1A-8B", "2A-7B"], ["1A-8B", "2A-7B"]) == {
            "deleted_count": 4,
            "added_count": 2,
        }
        assert status() == {"1A-8B": "enabled", "2A-7B": "enabled"}

    def test_single_resources(self, server: OcsServer, client: httpx.Client) -> None:
        rows = [{"cross_connect_id": "3A-4B", "a_side": "3A", "b_side": "4B"}]
        table = _DATA + "OCS_CROSS_CONNECT"
        assert client.get(table).status_code == 404
        body = {"sonic-ocs:OCS_CROSS_CONNECT": {"OCS_CROSS_CONNECT_LIST": rows}}
        assert client.patch(table, json=body).status_code == 204
        assert client.get(table).json() == body
        assert client.delete(f"{table}/OCS_CROSS_CONNECT_LIST=3A-4B").status_code == 204
        assert server.device.circuits() == frozenset()
        refused = client.post(_BULK_UPDATE, content=b"{")
        assert refused.status_code == 400
        assert "ietf-restconf:errors" in refused.json()


def test_one_request_says_what_to_delete_and_what_to_add(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    switch = connect()
    configure(switch, [C12, C21], ports_of(switch, "1", "2", "3"), timeout_s=LIMIT_S)
    server.bodies.clear()
    wanted = cable_circuits(switch, "1", "3")
    configure(switch, wanted, ports_of(switch, "1", "2", "3"), timeout_s=LIMIT_S)
    assert server.bodies == [
        {
            "sonic-ocs:input": {
                "delete": ["1A-2B", "2A-1B"],
                "add": [
                    {"cross_connect_id": "1A-3B", "a_side": "1A", "b_side": "3B"},
                    {"cross_connect_id": "3A-1B", "a_side": "3A", "b_side": "1B"},
                ],
            }
        }
    ]


def test_it_never_takes_a_port_from_a_circuit_that_stays(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    """Two additions would push the other job's circuit out."""
    switch = connect()
    server.device.bulk_update([], [("1A-8B", "1A", "8B")])
    with refused(SwitchError, "1A-2B", "1A", "1A-8B"):
        switch.apply(Difference((), (C12, C21)))
    assert server.device.circuits() == {Circuit("1A", "8B")}


def test_an_invalid_cross_connect_is_made_anew(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    device = server.device
    device.bulk_update([], [("1A-2B", "1A", "2B")])
    device.bulk_update([], [("1A-5B", "1A", "5B"), ("2A-1B", "2A", "1B")])  # takes 1A away
    device.bulk_update(["1A-5B"], [])
    assert device.status()["1A-2B"] == "invalid"
    switch = connect()
    configure(switch, [C12, C21], ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
    assert device.status() == {"1A-2B": "enabled", "2A-1B": "enabled"}


def test_a_circuit_that_only_the_hardware_has_is_removed(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    switch = connect()
    server.device.settle_s = 0.0
    server.device.leave_in_hardware(Circuit("1A", "3B"))
    assert switch.circuits() == {Circuit("1A", "3B")}
    configure(switch, [C12, C21], ports_of(switch, "1", "2", "3"), timeout_s=LIMIT_S)
    assert set(server.device.status()) == {"1A-2B", "2A-1B"}


def test_other_names_of_cross_connects_are_respected(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    server.device.bulk_update([], [("lab-link", "1A", "2B")])
    switch = connect()
    assert switch.circuits() == {C12}
    switch.apply(Difference((C12,), (C34,)))
    assert set(server.device.config) == {"3A-4B"}


@pytest.mark.parametrize("spelling", ["config_status", "state"])
def test_a_blocked_port_is_named(
    server: OcsServer, connect: Callable[..., SonicOcs], spelling: str
) -> None:
    server.device.port_field = spelling
    server.device.overrides["2B"] = "force_blocked"
    switch = connect()
    with refused(NotSettled, "1A-2B", "2B", "force_blocked"):
        configure(switch, [C12, C21], ports_of(switch, "1", "2"), timeout_s=0.2 * slowness())
    assert server.device.circuits() == frozenset()


def test_ports_that_are_still_tuning_are_waited_for(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    server.device.settle_s = 1.0
    switch = connect()
    switch.apply(Difference((), (C12,)))
    said: list[tuple[int, int, str]] = []
    switch.wait_settled([C12], LIMIT_S, lambda *step: said.append(step))
    rows = {row["simplex_port_id"]: row for row in server.device.port_state_rows()}
    assert rows["1A"]["oper_status"] == rows["2B"]["oper_status"] == "connected"
    assert said[0] == (0, 1, "settling")
    assert said[-1] == (1, 1, "settling")


def test_without_a_port_table_the_status_of_the_cross_connect_decides(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    server.device.port_table = False
    switch = connect()
    configure(switch, [C12, C21], ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
    assert server.device.circuits() == {C12, C21}
    assert len(switch.capabilities().ports) == 16


class TestFaults:
    """The faults of a switch in the fault table of the fabrics."""

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_a_request_whose_connection_broke_is_sent_again(
        self, server: OcsServer, connect: Callable[..., SonicOcs], after: bool
    ) -> None:
        switch = connect()
        server.drop(2, after=after)
        configure(switch, [C12, C21], ports_of(switch, "1", "2"), timeout_s=LIMIT_S)
        assert server.device.circuits() == {C12, C21}
        assert server.asked.count(f"POST {_BULK_UPDATE}") == 3

    def test_a_restart_between_two_requests_is_waited_out(
        self, server: OcsServer, connect: Callable[..., SonicOcs]
    ) -> None:
        switch = connect()
        fence = ports_of(switch, "1", "2", "3", "4")
        configure(switch, [C12, C21], fence, timeout_s=LIMIT_S)
        server.device.save()
        server.reboot(0.3)
        configure(switch, [C12, C21, C34, C43], fence, timeout_s=LIMIT_S)
        assert server.device.circuits() == {C12, C21, C34, C43}

    def test_a_restart_in_the_middle_of_a_request_is_waited_out_and_the_request_repeated(
        self, server: OcsServer, connect: Callable[..., SonicOcs]
    ) -> None:
        switch = connect()
        fence = ports_of(switch, "1", "2", "3", "4")
        configure(switch, [C12, C21], fence, timeout_s=LIMIT_S)
        server.device.save()
        server.reboot_during(0.3)
        configure(switch, [C34, C43], fence, timeout_s=LIMIT_S)
        assert server.device.circuits() == {C34, C43}

    def test_a_restart_after_the_request_loses_what_was_not_saved_and_goes_back(
        self, server: OcsServer, connect: Callable[..., SonicOcs]
    ) -> None:
        switch = connect()
        fence = ports_of(switch, "1", "2", "3", "4")
        configure(switch, [C12, C21], fence, timeout_s=LIMIT_S)
        server.device.save()

        def restart(done: int, of: int, what: str) -> None:
            if what == "accepted":
                server.reboot(0.2)

        with refused(NotSettled, "3A-4B", "not configured"):
            configure(switch, [C34, C43], fence, timeout_s=0.5 * slowness(), progress=restart)
        assert server.device.circuits() == {C12, C21}

    def test_a_device_that_does_not_come_back_is_said_with_where_the_snapshot_is(
        self, server: OcsServer, connect: Callable[..., SonicOcs], tmp_path: Path
    ) -> None:
        switch = connect(patience_s=0.2)
        fence = ports_of(switch, "1", "2", "3", "4")
        configure(switch, [C12, C21], fence, timeout_s=LIMIT_S)
        server.device.save()
        path = tmp_path / "before.json"

        def restart(done: int, of: int, what: str) -> None:
            if what == "accepted":
                server.reboot(3600.0)

        with refused(SwitchUnreachable, "127.0.0.1", "no answer") as caught:
            configure(
                switch,
                [C34, C43],
                fence,
                timeout_s=LIMIT_S,
                snapshot=path,
                progress=restart,
            )
        assert named(str(caught.value), "before", path)
        server.reboot(0.0)
        restore(switch, Snapshot.load(path), timeout_s=LIMIT_S)
        assert server.device.circuits() == {C12, C21}

    def test_when_half_the_circuits_fail_they_are_named_and_all_goes_back(
        self, server: OcsServer, connect: Callable[..., SonicOcs]
    ) -> None:
        switch = connect()
        fence = ports_of(switch, *"12345678")
        before = cable_circuits(switch, "1", "8")
        configure(switch, before, fence, timeout_s=LIMIT_S)
        server.device.broken |= {C12, C34}
        with refused(NotSettled, "restored") as caught:
            configure(switch, [C12, C21, C34, C43], fence, timeout_s=0.3 * slowness())
        assert caught.value.circuits == {C12, C34}
        assert "1A-2B (disabled)" in str(caught.value)
        assert server.device.circuits() == set(before)

    def test_a_wrong_password_is_said_once_and_never_shown(
        self,
        server: OcsServer,
        connect: Callable[..., SonicOcs],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        caplog.set_level(logging.DEBUG)
        monkeypatch.setenv("WRONG", "hunter2-hunter2")
        switch = connect(env="WRONG")
        with refused(AuthenticationFailed, "admin", "$WRONG"):
            switch.circuits()
        assert len(server.asked) == 1  # tried again, it might lock the account
        shown = caplog.text + "".join(capfd.readouterr()) + repr(switch) + str(vars(switch))
        assert "hunter2" not in shown
        assert "hunter2" not in str(server.bodies)

    def test_the_password_stays_out_of_errors_and_logs(
        self,
        server: OcsServer,
        connect: Callable[..., SonicOcs],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        switch = connect()
        fence = ports_of(switch, "1", "2")
        server.refuse(500, f"echo: user=admin password={OcsServer.password}")
        with refused(SwitchError, 500, "user=admin password=***") as caught:
            configure(switch, [C12], fence, timeout_s=LIMIT_S)
        assert OcsServer.password not in str(caught.value) + caplog.text

    def test_a_read_only_user_gets_an_error_that_says_so(
        self, server: OcsServer, connect: Callable[..., SonicOcs]
    ) -> None:
        server.read_only.add("admin")
        switch = connect()
        with refused(AuthenticationFailed, "admin", "POST"):
            configure(switch, [C12], ports_of(switch, "1", "2"), timeout_s=LIMIT_S)

    def test_keys_that_failed_are_named(
        self, server: OcsServer, connect: Callable[..., SonicOcs]
    ) -> None:
        server.device.fails_after = 1
        with refused(SwitchError, "2A-1B", "bulk-update"):
            connect().apply(Difference((), (C12, C21)))


def test_a_device_of_another_kind_is_not_one_without_circuits(
    server: OcsServer, connect: Callable[..., SonicOcs]
) -> None:
    server.device.size = 0
    with refused(SwitchError, "circuit", "switch"):
        connect().circuits()
