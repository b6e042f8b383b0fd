"""The Telescent driver over real SSH, against a panel with a robot, a queue and faults."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import paramiko
import pytest
from support.fabric.switch_contract import Bench, SwitchContract
from support.fabric.telescent_server import PASSWORD, USER, Panel, TelescentServer
from support.refusals import refused

from torch_topoopt.fabric.clock import HandClock
from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, CircuitError, Difference, Fence
from torch_topoopt.fabric.switches.configure import configure, preview
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.ssh_shell import SshLogin, SshShell
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
)
from torch_topoopt.fabric.switches.telescent import TelescentPanel, _host_and_port
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MINUTES = 60.0
FENCE = Fence(frozenset("12345678"))


@pytest.fixture
def panel() -> Panel:
    return Panel(HandClock())


@pytest.fixture
def server(panel: Panel, tmp_path: Path) -> Iterator[TelescentServer]:
    with TelescentServer(panel, tmp_path) as server:
        yield server


@pytest.fixture
def login(server: TelescentServer, monkeypatch: pytest.MonkeyPatch) -> SshLogin:
    monkeypatch.setenv("PANEL_PASSWORD", PASSWORD)
    return SshLogin(
        "127.0.0.1",
        server.port,
        USER,
        PasswordSource(env="PANEL_PASSWORD"),
        known_hosts=str(server.known_hosts),
    )


@pytest.fixture
def switch(login: SshLogin, panel: Panel) -> Iterator[TelescentPanel]:
    switch = TelescentPanel(login, poll_s=0.02, removal_s=5.0, clock=panel.clock)
    yield switch
    switch.close()


@pytest.fixture
def bench(switch: TelescentPanel, panel: Panel) -> Bench:
    def circuits() -> frozenset[Circuit]:
        return frozenset(Circuit(str(a), str(b)) for a, b in panel.circuits())

    def brake(circuit: Circuit) -> None:
        panel.stuck.add(frozenset(int(port) for port in circuit.ports))

    return Bench(
        switch,
        circuits,
        brake,
        lambda count: setattr(panel, "cut_after", count),
        lambda: setattr(panel, "deaf", True),
    )


class TestTelescentPanel(SwitchContract):
    pass


def cable(a: int, b: int) -> Circuit:
    return Circuit(str(a), str(b))


def slow(panel: Panel, login: SshLogin) -> TelescentPanel:
    """As in life: three minutes a move, a look every five seconds."""
    panel.move_s = 3 * MINUTES
    return TelescentPanel(login, clock=panel.clock)


def test_moves_take_minutes_one_after_the_other_and_are_reported(
    panel: Panel, login: SshLogin
) -> None:
    switch = slow(panel, login)
    steps: list[tuple[int, int, str]] = []
    wanted = [cable(1, 2), cable(3, 4), cable(5, 95)]
    fence = Fence(frozenset(port for circuit in wanted for port in circuit.ports))
    configure(
        switch,
        wanted,
        fence,
        timeout_s=12 * MINUTES,
        progress=lambda done, of, what: steps.append((done, of, what)),
    )
    assert panel.clock.now() == pytest.approx(9 * MINUTES, abs=10)
    assert steps[:3] == [(1, 3, "1-2 queued"), (2, 3, "3-4 queued"), (3, 3, "5-95 queued")]
    assert [(done, of) for done, of, _ in steps[3:]] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    configure(switch, [cable(1, 3)], fence, timeout_s=12 * MINUTES)
    assert panel.circuits() == {(1, 3)}
    assert panel.clock.now() == pytest.approx(21 * MINUTES, abs=30)  # three out, one in
    switch.close()


def test_only_ports_of_the_change_are_forced(panel: Panel, switch: TelescentPanel) -> None:
    configure(switch, [cable(1, 2)], FENCE, timeout_s=5)
    panel.commands.clear()
    configure(switch, [cable(2, 3)], FENCE, timeout_s=5)
    changes = [line for line in panel.commands if line not in ("", "switchstate")]
    assert changes == [
        "unlock --force 1",
        "unlock --force 2",
        "unallocate --force 1",
        "unallocate --force 2",
        "unlock --force 2",
        "unlock --force 3",
        "connect --force 2 3",
    ]


def test_a_port_that_someone_took_meanwhile_is_never_forced(
    panel: Panel, switch: TelescentPanel
) -> None:
    panel.answer("connect --force 9 3")
    with refused(SwitchError, "port 3", "3-9"):
        switch.apply(Difference((), (cable(2, 3),)))
    assert panel.circuits() == {(3, 9)}
    assert not any("connect" in line for line in panel.commands[1:])


def test_a_one_way_circuit_of_ours_is_replaced_and_of_others_is_refused(
    panel: Panel, switch: TelescentPanel
) -> None:
    panel.answer("connect --force -in 2 -out 1")
    panel.clock.sleep(1)
    assert switch.circuits() == {Circuit("2", "1")}
    assert preview(switch, [cable(1, 2)], FENCE).describe() == ["- 2-1", "+ 1-2"]
    with refused(CircuitError, "port 1", "2-1"):
        preview(switch, [cable(1, 3)], Fence(frozenset("13")))
    configure(switch, [cable(1, 2)], FENCE, timeout_s=5)
    assert panel.circuits() == {(1, 2)}
    assert switch.circuits() == {cable(1, 2)}


def test_a_loop_back_into_the_same_port_is_a_circuit(panel: Panel, switch: TelescentPanel) -> None:
    configure(switch, [cable(4, 4)], FENCE, timeout_s=5)
    assert switch.circuits() == {cable(4, 4)}
    configure(switch, [], FENCE, timeout_s=5)
    assert panel.circuits() == set()


@pytest.mark.parametrize(
    "text", ["ERROR: robot is in maintenance", "java.lang.IllegalStateException: fibre not found"]
)
def test_what_the_panel_says_is_passed_on(panel: Panel, switch: TelescentPanel, text: str) -> None:
    panel.fails["connect"] = f"working\r\n{text}\r\nbye"
    with refused(SwitchError, "connect --force 1 2") as caught:
        configure(switch, [cable(1, 2)], FENCE, timeout_s=5)
    assert text in str(caught.value)
    assert str(caught.value).endswith("its circuits are those from before")


def test_a_wrong_password_is_named_and_never_shown(
    login: SshLogin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANEL_PASSWORD", "wrong secret")
    switch = TelescentPanel(login)
    with refused(AuthenticationFailed, "operator", "login") as error:
        switch.circuits()
    assert "wrong secret" not in str(error.value)


def test_login_with_an_rsa_key_whose_passphrase_is_the_password(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANEL_PASSWORD", "passphrase")
    key = paramiko.RSAKey.generate(2048)
    key.write_private_key_file(str(tmp_path / "id_rsa"), password="passphrase")
    with TelescentServer(panel, tmp_path, client_key=key) as server:
        login = SshLogin(
            "127.0.0.1",
            server.port,
            USER,
            PasswordSource(env="PANEL_PASSWORD"),
            key_file=str(tmp_path / "id_rsa"),
            known_hosts=str(server.known_hosts),
        )
        switch = TelescentPanel(login)
        assert switch.circuits() == frozenset()
        assert len(switch.capabilities().ports) == 96
        switch.close()
        monkeypatch.setenv("PANEL_PASSWORD", "not the passphrase")
        with pytest.raises(SwitchError) as caught:
            TelescentPanel(login).circuits()
        assert "not the passphrase" not in str(caught.value)


def test_the_users_own_keys_are_tried_only_where_no_other_way_is_given(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("PANEL_PASSWORD", PASSWORD)
    (tmp_path / ".ssh").mkdir()
    key = paramiko.RSAKey.generate(2048)
    key.write_private_key_file(str(tmp_path / ".ssh" / "id_rsa"))
    with TelescentServer(panel, tmp_path / ".ssh", client_key=key) as server:
        login = SshLogin("127.0.0.1", server.port, USER)  # and the known_hosts of ssh
        switch = TelescentPanel(login)
        assert switch.circuits() == frozenset()
        switch.close()
        password = PasswordSource(env="PANEL_PASSWORD")
        with pytest.raises(AuthenticationFailed):
            TelescentPanel(dataclasses.replace(login, password=password)).circuits()
        missing = dataclasses.replace(login, key_file=str(tmp_path / "no_key"))
        with refused(SwitchError, "robot", "/no_key"):
            TelescentPanel(missing, name="robot").circuits()


def test_an_unknown_host_key_is_refused_with_the_way_to_add_it(
    server: TelescentServer, login: SshLogin
) -> None:
    server.known_hosts.write_text("")
    with refused(SwitchError, f"ssh-keyscan -p {server.port} 127.0.0.1") as caught:
        TelescentPanel(login).circuits()
    assert server.host_key.fingerprint in str(caught.value)
    assert server.logins == 0


def test_another_host_key_is_refused(
    server: TelescentServer, login: SshLogin, panel: Panel
) -> None:
    other = paramiko.ECDSAKey.generate()
    server.known_hosts.write_text(
        f"[127.0.0.1]:{server.port} {other.get_name()} {other.get_base64()}\n"
    )
    with refused(SwitchError, "host key"):
        TelescentPanel(login).circuits()
    assert panel.commands == []


def test_host_keys_are_left_unchecked_only_on_request(
    server: TelescentServer, login: SshLogin
) -> None:
    server.known_hosts.write_text("")
    switch = TelescentPanel(dataclasses.replace(login, check_host_key=False))
    assert switch.circuits() == frozenset()
    switch.close()


def test_no_device_listens(login: SshLogin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with refused(SwitchUnreachable, f"127.0.0.1:{port}"):
        TelescentPanel(dataclasses.replace(login, port=port)).circuits()


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["http", "nothing"]
)
def test_something_that_is_no_ssh_server(login: SshLogin, says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = dataclasses.replace(login, port=listener.getsockname()[1], timeout_s=0.5)

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(says)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with refused(SwitchUnreachable, "telescent", address.address):
            TelescentPanel(address).circuits()
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("text", [b"[127.0.0.1]:1 ssh-rsa AAAAB\n", b"\xff\xfe\n"])
def test_known_hosts_that_cannot_be_read_are_named(
    server: TelescentServer, login: SshLogin, text: bytes
) -> None:
    server.known_hosts.write_bytes(text)
    with refused(SwitchError, "telescent", "known_hosts"):
        TelescentPanel(login).circuits()
    assert server.panel.commands == []


def test_a_connection_lost_while_the_robot_moves_is_made_again(
    panel: Panel, login: SshLogin, server: TelescentServer
) -> None:
    switch = slow(panel, login)
    switch.apply(Difference((), (cable(1, 2),)))
    panel.cut_reads = 2
    switch.wait_settled([cable(1, 2)], timeout_s=10 * MINUTES)
    assert server.logins == 3
    panel.cut_reads = 10_000
    with refused(SwitchUnreachable, "switchstate", "connection"):
        switch.wait_settled([cable(1, 2)], timeout_s=20)
    switch.close()


def test_a_connection_that_the_panel_ended_meanwhile_is_made_again(
    server: TelescentServer, login: SshLogin
) -> None:
    shell = SshShell("panel", login)
    shell.run("switchstate", 20)
    server.drop()
    give_up = time.monotonic() + 20
    while not shell._channel.closed:
        assert time.monotonic() < give_up
        time.sleep(0.005)
    assert "R7#" in shell.run("switchstate", 20)
    assert server.logins == 2
    shell.close()


def test_a_connection_that_ends_at_any_moment_is_a_switch_error_or_none(
    server: TelescentServer, login: SshLogin
) -> None:
    shell = SshShell("panel", login)
    messages = []
    for _ in range(10):
        hanging_up = threading.Thread(target=server.drop)
        try:  # the first command may yet meet the end of the connection before it
            shell.run("unlock --force 1", 20)
            hanging_up.start()
            for _ in range(3):
                shell.run("switchstate", 20)
        except SwitchUnreachable as error:
            messages.append(str(error))
        if hanging_up.ident is not None:
            hanging_up.join(20)
    assert all(text.startswith("panel: ") for text in messages)
    shell.close()


def test_a_panel_that_restarts_and_forgets_its_queue_is_found(
    panel: Panel, login: SshLogin, server: TelescentServer
) -> None:
    switch = slow(panel, login)
    configure(switch, [cable(1, 2)], FENCE, timeout_s=10 * MINUTES)

    def restart(done: int, of: int, what: str) -> None:
        if what.startswith("the robot moves") and panel.clock.now() < 7 * MINUTES:
            server.drop()
            panel.restart()

    wanted = [cable(1, 2), cable(3, 4)]
    with refused(NotSettled, "3-4", "before") as caught:
        configure(switch, wanted, FENCE, timeout_s=10 * MINUTES, progress=restart)
    assert caught.value.circuits == {cable(3, 4)}
    assert panel.circuits() == {(1, 2)}
    assert server.logins > 1
    switch.close()


def test_a_removal_that_never_ends_is_an_error(panel: Panel, switch: TelescentPanel) -> None:
    configure(switch, [cable(1, 2)], FENCE, timeout_s=5)
    panel.move_s = 1e9
    with refused(NotSettled, "not removed", "1-2"):
        switch.apply(Difference((cable(1, 2),), ()))


def test_a_torn_answer_is_an_error_rather_than_free_ports(
    panel: Panel, switch: TelescentPanel
) -> None:
    for text in (
        "R0#N " + "U0 " * 11,
        "R1#N " + "U0 " * 12,
        "R0#N " + "U0 " * 12 + "\r\nR2#N " + "U0 " * 12,
        "nothing here",
    ):
        panel.fails["switchstate"] = text
        with refused(SwitchError, "switchstate", "row"):
            switch.circuits()


def test_a_row_missing_at_the_end_does_not_pass_for_free_ports(
    panel: Panel, switch: TelescentPanel
) -> None:
    switch.capabilities()
    panel.tear = True
    with refused(SwitchError, "84 ports", 96):
        switch.circuits()


def test_an_answer_that_never_ends_is_an_error_with_its_last_words(
    server: TelescentServer, login: SshLogin, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SshShell("panel", login)
    assert shell.run("unlock --force 3", 20) == ""
    monkeypatch.setattr(server.panel, "answer", lambda line: "R0#\x1b[1mN A1\r\nntm\r\nntm>  >")
    monkeypatch.setattr("support.fabric.telescent_server.PROMPT", "still talking> ")
    with refused(SwitchUnreachable, 1, "still talking>"):
        shell.run("switchstate", 1)
    shell.close()


def test_a_panel_of_a_cluster_file(server: TelescentServer, login: SshLogin, panel: Panel) -> None:
    entry = SwitchEntry(
        "robot",
        "telescent",
        login.address,
        user=USER,
        password=login.password,
        sockets=("1", "2"),
        options={"known_hosts": str(server.known_hosts), "poll_s": 0.01, "removal_s": 5},
    )
    switch = open_switch(entry)
    assert switch.name == "robot"
    assert switch.fibres("95") == ("95", "95")
    panel.commands.clear()
    with refused(SwitchError, "robot", "port 3"):
        switch.apply(Difference((), (cable(1, 3),)))
    assert panel.commands == []
    switch.apply(Difference((), (cable(1, 2),)))
    assert panel.circuits() == {(1, 2)}
    switch.close()


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"address": "ssh://robot"}, ("address", "ssh://robot")),
        ({"address": "robot:99999"}, ("address", "robot:99999")),
        ({"address": "me@robot"}, ("address", "me@robot")),
        ({"address": ""}, ("address", "''")),
        ({"user": None}, ("user", "missing")),
        ({"options": {"check_host_key": "no"}}, ("options.check_host_key", "no")),
    ],
)
def test_an_entry_that_makes_no_sense_is_named(
    fields: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    entry = SwitchEntry("robot", "telescent", "10.0.0.9", user="me")
    with refused(DocumentError, "robot", *tokens):
        open_switch(dataclasses.replace(entry, **fields))


def test_addresses_of_all_kinds() -> None:
    for address, expected in (
        ("10.0.0.9", ("10.0.0.9", 9861)),
        ("robot.lab:22", ("robot.lab", 22)),
        ("[fd00::9]:1234", ("fd00::9", 1234)),
        ("[fd00::9]", ("fd00::9", 9861)),
    ):
        entry = SwitchEntry("robot", "telescent", address, user="me")
        assert _host_and_port(entry) == expected
