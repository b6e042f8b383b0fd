"""`topoopt discover` on hosts in namespaces: by agents that listen, and by a substitute for ssh."""

from __future__ import annotations

import json
import shutil
import socket
from typing import TYPE_CHECKING

import pytest
from plain_hosts import TOKEN, Hosts, make_hosts, start_agents, within
from support.fabric.cabled_machines import Machines
from support.launcher import COMMAND, forked
from support.limits import limit_s
from support.plain_namespaces import (
    Namespaces,
    ip,
    skip_without_ipv6,
    up,
    wait_for_link_local_addresses,
)
from support.refusals import named, refused

from torch_topoopt.fabric.cluster_file.cluster_file import VERSION, ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.server_file.description import DescribedPort, ServerDescription
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.fabric.discover import described
from torch_topoopt.launcher.fabric.discover_agents import split_address
from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from support.launcher import Launcher

LIMIT_S = 60.0

# Takes what OpenSSH takes: options, `--`, the host, and words that a shell at the host reads.
SSH = """#!/bin/sh
while getopts "To:" option; do
  case $option in
    T) ;;
    o) case $OPTARG in BatchMode=yes|ConnectTimeout=*) ;; *) exit 250 ;; esac ;;
    *) exit 251 ;;
  esac
done
shift $((OPTIND - 1))
host=$1
shift
if ! ip netns list | grep -qw -- "$host"; then
  echo "ssh: Could not resolve hostname $host: Name or service not known" >&2
  exit 255
fi
address=$(ip -n "$host" -o -4 addr show manage | awk '{print $4}' | cut -d/ -f1)
SSH_CONNECTION="192.0.2.77 4242 $address 22" exec ip netns exec "$host" sh -c "$*"
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Namespaces() as namespaces:
        yield Hosts(namespaces)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=limit_s(LIMIT_S))
    return process.returncode, out, err


def plugged(hosts: Hosts) -> set[frozenset[tuple[int, str, str]]]:
    """Every cable as the test plugged it."""
    return {frozenset(cable) for cable in hosts.cables}


def found(path: Path) -> set[frozenset[tuple[int, str, str]]]:
    """Every cable of a cluster file."""
    cluster = load_cluster(path)
    return {
        frozenset(
            (number, str(port.interface), port.address)
            for number, port in (cluster.ports[end] for end in cable)
        )
        for cable in cluster.cables
    }


def test_agents_find_the_ring_with_speeds_and_mtus(launcher: Launcher, hosts: Hosts) -> None:
    make_hosts(4, [(0, 1), (1, 2), (2, 3), (3, 0)], hosts)
    for host, interface, _ in hosts.cables[2]:
        ip(f"-n {hosts.names[host]} link set {interface} mtu 9000")
    agents = start_agents(launcher, hosts, "correct horse")
    survey = launcher.start(
        *("discover", "--agents", *hosts.managements, "-o", "lab.yaml", "--json"),
        command=within(hosts, 0),
        **{TOKEN: "correct horse"},
    )
    code, out, err = finish(survey)
    assert code == 0, err
    for agent in agents:
        assert finish(agent)[0] == 0
    path = launcher.folder / "lab.yaml"
    assert found(path) == plugged(hosts)
    cluster = load_cluster(path)
    assert [server.management for server in cluster.servers] == hosts.managements
    figures = json.loads(out)
    mtus = {tuple(cable["mtu"]) for cable in figures["cables"]}
    assert mtus == {(1500, 1500), (9000, 9000)}
    assert all(gbps == [10.0, 10.0] for gbps in (c["gbps"] for c in figures["cables"]))
    for number, port in cluster.ports.values():
        shown = ip(f"-n {hosts.names[number]} -o link show {port.interface}")
        assert f"link/ether {port.mac}" in shown
    assert figures["notes"] == []


def test_a_port_without_a_cable_is_a_remark_and_left_out(
    launcher: Launcher, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cable without addresses, one with different MTUs, an idle interface; the rest by ssh."""
    skip_without_ipv6()
    make_hosts(3, [(0, 1), (1, 2), (0, 2)], hosts)
    (_, bare, address), (_, big, _) = hosts.cables[0][0], hosts.cables[1][0]
    ip(f"-n {hosts.names[0]} addr del {address} dev {bare}")
    wait_for_link_local_addresses([(hosts.names[0], bare)])
    ip(f"-n {hosts.names[1]} link set {big} mtu 9000")
    ip(f"-n {hosts.names[2]} link add idle type bridge")
    ip(f"-n {hosts.names[2]} link add spare type veth peer name tail")
    up(hosts.names[2], "spare", "10.99.0.1/30")
    ip(f"-n {hosts.names[2]} link set tail up")
    substitute_ssh(launcher.folder, monkeypatch)
    done = launcher.run(
        *("discover", "--ssh", *hosts.names, "-o", "lab.yaml"),
        *("--interfaces", "nic,spare", "--remote-command", " ".join(COMMAND)),
    )
    assert done.returncode == 0, done.stderr
    assert found(launcher.folder / "lab.yaml") == plugged(hosts) - {frozenset(hosts.cables[0])}
    assert load_cluster(launcher.folder / "lab.yaml").servers[1].management == hosts.managements[1]
    a, b, c = hosts.names  # one machine with one name, so they are those that ssh was given
    assert f"note: cable {a}:nic0 (fe80::" in done.stdout
    assert named(done.stdout, "left out", "subnet")
    assert named(done.stdout, "note", f"{b}:nic1", f"{c}:nic1", "MTUs", 9000, 1500)
    assert named(done.stdout, f"{c}:spare", "answers")
    again = launcher.run("discover", "--ssh", *hosts.names, "-o", "lab.yaml")
    assert again.returncode == 2
    assert named(again.stderr, "output", "lab.yaml", "already")


def substitute_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = folder / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")


def test_all_hosts_that_ssh_does_not_reach_are_named_with_what_ssh_said(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ip") is None:
        pytest.skip("the substitute for ssh needs the program ip (Debian: iproute2)")
    substitute_ssh(launcher.folder, monkeypatch)
    hostfile = launcher.folder / "hosts.json"
    lost = ["nowhere-to-be-found", "nor-here"]
    hostfile.write_text(json.dumps([{"ssh": name, "ips": []} for name in lost]))
    done = launcher.run("discover", "--hostfile", "hosts.json", "--dry-run")
    assert done.returncode == 2
    said = [
        f"ssh {name}: ssh: Could not resolve hostname {name}: Name or service not known "
        "(exit status 255)"
        for name in lost
    ]
    assert done.stderr == f"topoopt: error: {'; '.join(said)}\n"
    assert done.stdout == ""


def test_all_agents_that_do_not_listen_are_named(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    addresses = [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
    assert main(["discover", "--agents", *addresses, "--dry-run"]) == 2
    said = capsys.readouterr().err
    for address in addresses:
        assert named(said, address, "no agent")


NO_HOST = "-oProxyCommand=touch hacked"


def test_a_name_that_ssh_would_take_for_an_option_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.json").write_text(json.dumps([{"ssh": NO_HOST, "ips": []}]))
    assert main(["discover", "--hostfile", "hosts.json", "--dry-run"]) == 2
    assert named(capsys.readouterr().err, "ssh", repr(NO_HOST))
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("both_families", [False, True])
def test_an_ipv6_management_network_of_two_hosts_is_no_cable(
    both_families: bool, launcher: Launcher, hosts: Hosts
) -> None:
    """Two ports hear each other alone on it, as on a cable; but ssh comes from a third machine."""
    managements = ["fd00:77::1", "fd00:77::2"]
    machines = Machines.make(hosts.namespaces, launcher.folder, ("a", "b"), managements)
    bridge = hosts.namespaces.bridge()
    for number, (name, address) in enumerate(zip(hosts.names, managements, strict=True)):
        hosts.namespaces.plug(bridge, name, "manage", f"{address}/64")
        if both_families:
            ip(f"-n {name} addr add {hosts.namespaces.network}.0.{number + 1}/24 dev manage")
    machines.cable((0, ("p0",)), (1, ("p0",)), "400mbit")
    machines.wait()
    cluster, notes = discovered(machines, launcher)
    assert cluster.cables == (("a:p0", "b:p0"),)
    assert [server.management for server in cluster.servers] == managements
    assert notes == []
    cluster, notes = discovered(machines, launcher, "--interfaces", "manage,p0")
    assert len(cluster.cables) == 2
    assert named(notes[0], "--interfaces ^manage")


def discovered(
    machines: Machines, launcher: Launcher, *options: str
) -> tuple[ClusterFile, list[str]]:
    """The cluster and the notes of a survey over ssh."""
    command = machines.command(0, "env", f"PATH={machines.folder}:/usr/sbin:/usr/bin:/sbin:/bin")
    words = ("discover", "--ssh", *machines.hosts, "-o", "lab.yaml", "--force", "--json")
    remote = ("--remote-command", " ".join(forked()))
    done = launcher.start(*words, *remote, *options, command=(*command, *forked()))
    code, out, err = finish(done)
    assert code == 0, err
    return load_cluster(launcher.folder / "lab.yaml"), json.loads(out)["notes"]


def test_an_agent_is_reached_by_ipv6(launcher: Launcher) -> None:
    agent = launcher.start(
        *("discover", "--agent", "--bind", "::1", "--port", "0"),
        command=forked(),
        **{TOKEN: "secret"},
    )
    assert agent.stdout is not None
    address = agent.stdout.readline().split()[-1]
    assert address.startswith("[::1]:")
    command = ("discover", "--agents", address, "-o", "lab.yaml", "--listen-seconds", "0.3")
    done = launcher.run(*command, **{TOKEN: "secret"})
    assert (done.returncode, finish(agent)[0]) == (1, 0), "it was served, and has no cable"


def test_an_agent_turns_strangers_away_and_serves_who_knows_the_token(
    launcher: Launcher, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("right\n")
    secret.chmod(0o600)
    agent = launcher.start(
        *("discover", "--agent", "--bind", "127.0.0.1", "--port", "0", "--token-file", secret),
        command=forked(),
    )
    assert agent.stdout is not None
    address = agent.stdout.readline().split()[-1]
    host, port = split_address(address)
    with socket.create_connection((host, port), timeout=limit_s(LIMIT_S)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"right" not in stranger.recv(1000)
    command = ("discover", "--agents", address, "-o", "lab.yaml", "--listen-seconds", "0.3")
    wrong = launcher.run(*command, **{TOKEN: "wrong"})
    assert wrong.returncode == 2
    assert named(wrong.stderr, "127.0.0.1", "token")
    assert agent.poll() is None
    right = launcher.run(*command, "--token-file", secret)
    # it was served; one host alone has no cable, which is no success
    assert right.returncode == 1
    assert named(right.stderr, "topoopt: error", "no cable", "1 server")
    assert named(right.stderr, "both ends")
    assert not (launcher.folder / "lab.yaml").exists()
    assert finish(agent)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ([], ("hosts", "--ssh", "--agents", "--hostfile")),
        (["--agents", "10.0.0.1"], ("token", "NO_SUCH_TOKEN")),
        (["--agents", "10.0.0.1:x"], ("agents", "10.0.0.1:x")),
        (["--ssh", "a", "--listen-seconds", "0"], ("listen-seconds", 0)),
        (["--hostfile", "none.json"], ("none.json",)),
        (["--agent", "--bind", "203.0.113.9"], ("bind", "203.0.113.9", "port 29501")),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str],
    tokens: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    token = []
    if arguments[:1] in (["--agents"], ["--agent"]):
        token = ["--token-env", "NO_SUCH_TOKEN" if arguments[1:] == ["10.0.0.1"] else "TOKEN"]
    monkeypatch.setenv("TOKEN", "secret")
    assert main(["discover", *arguments, *token]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("topoopt: error: ")
    assert named(captured.err, *tokens)
    assert list(tmp_path.iterdir()) == []


def test_a_description_of_the_servers_adds_accelerators_and_pcie_limits() -> None:
    ports = [PortEntry(f"p{i}", f"10.0.0.{i + 1}/30", 200.0, f"nic{i}") for i in range(2)]
    servers = tuple(ServerEntry(f"h{i}", f"10.1.0.{i}", ports=(ports[i],)) for i in range(2))
    cluster = ClusterFile(VERSION, "lab", servers, (("h0:p0", "h1:p1"),))
    description = ServerDescription(8, "NVLink", 3600.0, (DescribedPort("nic0", 200.0, 126.0),))
    made = described(cluster, description)
    assert {(s.accelerators, s.inside_gbps) for s in made.servers} == {(8, 3600.0)}
    assert [server.ports[0].gbps for server in made.servers] == [126.0, 200.0]


def test_a_bad_description_is_refused_before_any_host_is_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.xml").write_text("<graphs/>")
    given = ("--ssh", "none.invalid", "--dry-run", "--server-file", f"{tmp_path}/bad.xml")
    assert main(["discover", *given]) == 2
    assert named(capsys.readouterr().err, "bad.xml", "NCCL_GRAPH_FILE")


def test_addresses_of_agents() -> None:
    assert split_address("10.0.0.1") == ("10.0.0.1", 29501)
    assert split_address("box7.lab:4711") == ("box7.lab", 4711)
    assert split_address("fd00::1") == ("fd00::1", 29501)
    assert split_address("[fd00::1]:4711") == ("fd00::1", 4711)
    assert split_address("[fd00::1]") == ("fd00::1", 29501)
    for text in (":4711", "box7:", "box7:0", "box7:99999", "[box7]:1", "[fd00::1]:", "fd00::1:x"):
        with refused(InputError, "address"):
            split_address(text)
