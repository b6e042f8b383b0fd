"""`topoopt fabric persist` on hosts that systemd-networkd sets up: dry run, rollback, restart."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from support.commands import shared_server
from support.fabric.networkd_hosts import NetworkdHosts
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.persist import scripts
from torch_topoopt.fabric.persist.manager_files import config_files
from torch_topoopt.fabric.persist.port_settings import kept_ports
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.fabric import persist as persist_verb
from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = 90.0
PAIR = (((0, "p0"), (1, "p0")),)
RING = tuple(((host, "p1"), ((host + 1) % 3, "p0")) for host in range(3))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[NetworkdHosts]:
    """Two hosts whose cable has addresses until the next restart, as lab.yaml says."""
    hosts = NetworkdHosts(tmp_path, PAIR, "100mbit")
    try:
        hosts.start()
        hosts.set_up({(0, "p0"): "10.99.1.1/30", (1, "p0"): "10.99.1.2/30"}, mtu=1400)
        cluster_of(hosts).save(tmp_path / "lab.yaml")
        yield hosts
    finally:
        hosts.stop()


def cluster_of(hosts: NetworkdHosts) -> ClusterFile:
    servers = tuple(
        ServerEntry(
            name,
            management,
            ports=(PortEntry("p0", f"10.99.1.{number + 1}/30", interface="p0", mtu=1400),),
        )
        for number, (name, management) in enumerate(
            zip(hosts.names, hosts.managements, strict=True)
        )
    )
    return ClusterFile(1, "lab", servers, (("box0:p0", "box1:p0"),)).validate()


def scripted(hosts: NetworkdHosts, script: str) -> subprocess.CompletedProcess[str]:
    """Runs one of the verb's scripts on box0."""
    return subprocess.run(
        hosts.command("box0", "sh"),
        input=script,
        text=True,
        capture_output=True,
        timeout=limit_s(LIMIT_S),
        check=False,
    )


def persist(hosts: NetworkdHosts, *words: str) -> int:
    cluster = ("--cluster", str(hosts.folder / "lab.yaml"))
    return main(["fabric", "persist", *cluster, "--ssh-command", str(hosts.folder / "ssh"), *words])


def written(hosts: NetworkdHosts) -> list[str]:
    """What is on the disks of the hosts."""
    folders = [hosts.folder / name for name in hosts.names]
    return sorted(
        path.name for folder in folders for path in folder.glob("etc/**/*") if path.is_file()
    )


def mtu(hosts: NetworkdHosts, name: str, interface: str) -> int:
    return int(json.loads(hosts.on(name, "ip", "-j", "link", "show", interface))[0]["mtu"])


def test_files_are_shown_applied_and_undone(
    pair: NetworkdHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert persist(pair, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [host["manager"] for host in shown["hosts"]] == ["networkd", "networkd"]
    assert not shown["applied"]
    assert written(pair) == [], "the dry run writes nothing"
    before = {name: pair.addresses(name, "p0") for name in pair.names}
    assert persist(pair, "--apply") == 0
    assert written(pair) == sorted(2 * ["00-topoopt-p0.network", "90-topoopt-cables.conf"])
    for name in pair.names:
        assert pair.addresses(name, "p0") == before[name]
        assert not (pair.folder / name / "var/lib/topoopt/cables/pending").exists()
        assert pair.on(name, "cat", "/proc/sys/net/ipv4/conf/p0/arp_ignore").strip() == "1"
    assert persist(pair, "--undo", "--apply") == 0
    assert written(pair) == []
    for name in pair.names:
        pair.wait_for(name, "p0", before[name])
        assert mtu(pair, name, "p0") == 1400
        assert pair.on(name, "cat", "/proc/sys/net/ipv4/conf/p0/arp_ignore").strip() == "0"


def test_a_host_that_is_not_confirmed_restores_itself(pair: NetworkdHosts) -> None:
    assert persist(pair, "--apply") == 0
    before = pair.addresses("box0", "p0")
    text = cluster_of(pair).to_yaml().replace("10.99.1", "10.98.7")
    other = kept_ports(ClusterFile.from_yaml(text), "box0")
    files = config_files("networkd", other)
    done = scripted(pair, scripts.apply_script("networkd", other, files, confirm_s=3))
    assert done.returncode == 0, done.stderr
    pair.wait_for("box0", "p0", before)
    unit = pair.folder / "box0/etc/systemd/network/00-topoopt-p0.network"
    assert "10.99.1.1/30" in unit.read_text()
    assert scripted(pair, scripts.confirm_script()).returncode != 0, "it is too late"


def test_if_one_host_fails_all_get_their_settings_back(
    pair: NetworkdHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pair.addresses("box0", "p0")
    # nothing can be written over a folder
    (pair.folder / "box1/etc/systemd/network/00-topoopt-p0.network").mkdir()
    new = ("--addresses", "ipv4", "-o", str(pair.folder / "new.yaml"))
    assert persist(pair, *new, "--apply") == 2
    assert named(capsys.readouterr().err, "box1")
    pair.wait_for("box0", "p0", before)
    assert written(pair) == []
    assert not (pair.folder / "new.yaml").exists()


def test_the_port_that_carries_ssh_is_left_alone(
    pair: NetworkdHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_of(pair)
    text = file.to_yaml().replace(f"management: {pair.managements[0]}", "management: box0")
    (pair.folder / "lab.yaml").write_text(text)
    ssh = (pair.folder / "ssh").read_text()
    by_cable = ssh.replace(
        f"name=box0; address={pair.managements[0]}", "name=box0; address=10.99.1.1"
    )
    (pair.folder / "ssh").write_text(by_cable)
    assert persist(pair, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [len(host["files"]) for host in shown["hosts"]] == [0, 2]
    assert "box0:p0" in shown["hosts"][0]["notes"][0]


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with refused(InputError, "subnet"):
        persist_verb.main(["--cluster", "lab.yaml", "--subnet", "10.0.0.0/24"])
    with refused(InputError, "output"):
        persist_verb.main(["--cluster", "lab.yaml", "--addresses", "ipv4", "--apply"])


SCRIPT = """
import torch, torch.distributed as dist

dist.init_process_group("topoopt")
total = torch.full((100_003,), float(dist.get_rank()))
dist.all_reduce(total)
assert torch.equal(total, torch.full_like(total, 3.0))
dist.barrier()
dist.destroy_process_group()
"""


def everywhere(hosts: NetworkdHosts, names: tuple[str, ...], *words: str) -> list[str]:
    """The outputs of `topoopt` on hosts, started at once; all must succeed."""
    path = f"PATH={hosts.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    started = [
        subprocess.Popen(
            hosts.command(name, "env", path, *shared_server().command("topoopt"), *words),
            cwd=hosts.folder / name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    try:
        ended = [process.communicate(timeout=limit_s(LIMIT_S)) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(names), ended
    return [out for out, _ in ended]


def discover(hosts: NetworkdHosts, output: Path) -> ClusterFile:
    words = ("discover", "--ssh", *hosts.names, "--interfaces", "p", "-o", str(output))
    everywhere(hosts, hosts.names[:1], *words, "--name", "lab")
    return load_cluster(output)


def slower_gbps(hosts: NetworkdHosts) -> float:
    """The measured rate of the cable between box0 and box1."""
    words = ("bench", "link", "box0", "box1", "--cluster", str(hosts.folder / "lab.yaml"))
    (out,) = everywhere(hosts, hosts.names[:1], *words, "--window", "0.1", "--json")
    (cable,) = json.loads(out)["cables"]
    return min(float(direction["gbps"]) for direction in cable["directions"])


@pytest.mark.slow
def test_after_a_restart_the_same_job_runs_on_the_same_cables(tmp_path: Path) -> None:
    hosts = NetworkdHosts(tmp_path, RING, "100mbit")
    given = {
        end: f"10.99.{cable}.{last}/30"
        for cable, ends in enumerate(RING[:2], start=1)  # the last has link-local addresses
        for last, end in enumerate(ends, start=1)
    }
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("ssh", f'exec {tmp_path}/ssh "$@"'),
        ("topoopt", f'exec {" ".join(shared_server().command("topoopt"))} "$@"'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "train.py").write_text(SCRIPT)
    try:
        hosts.start()
        hosts.set_up(given, mtu=1400)
        before = discover(hosts, tmp_path / "lab.yaml")
        assert len(before.cables) == 3
        rate = slower_gbps(hosts)
        assert persist(hosts, "--apply") == 0
        hosts.stop()
        hosts.start()
        hosts.wait_for_carrier()
        for server in before.servers:
            for port in server.ports:
                assert port.interface is not None
                hosts.wait_for_address(server.name, port.interface, port.address)
        after = discover(hosts, tmp_path / "again.yaml")
        assert after.to_yaml() == before.to_yaml()
        assert slower_gbps(hosts) == pytest.approx(rate, rel=0.2)
        words = ("run", "--cluster", str(tmp_path / "lab.yaml"), "--nnodes", "3", "--model", "none")
        script = str(tmp_path / "train.py")
        everywhere(hosts, hosts.names, *words, "--no-measure-steps", script)
    finally:
        hosts.stop()
