"""Machines with cables and no addresses: what real ones are when the cables have just been plugged.

`topoopt discover`, `doctor` and `run` on three hosts whose ports have two functions each (as a DGX
Spark's), and on a ring of four with ordinary ports, over TCP and over libfabric.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.device_tree import SPARK_PORTS
from support.fabric.cabled_machines import Machines
from support.launcher import COMMAND, forked
from support.limits import limit_s
from support.plain_namespaces import Namespaces

from torch_topoopt import _backend
from torch_topoopt.fabric.addresses import is_link_local, zone_of
from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.launcher import Launcher

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

LIMIT_S = limit_s(120.0)
SIZE = 300_000
SCRIPT = f"""
import torch, torch.distributed as dist

def build_model():
    return torch.nn.Linear(1000, 300)

def example_batch():
    return torch.zeros(8, 1000)

if __name__ == "__main__":
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(3):
        tensor = torch.full(({SIZE},), float(rank + step))
        dist.all_reduce(tensor)
        assert tensor.eq(sum(range(world)) + world * step).all()
    dist.destroy_process_group()
"""


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    with Namespaces("tc", "unshare") as made:
        yield made


def topoopt(
    machines: Machines, launcher: Launcher, host: int, *words: str, **variables: str
) -> subprocess.Popen[str]:
    """A command on one host, where the program `ssh` reaches the others."""
    here = machines.command(host, "env", f"PATH={machines.folder}:/usr/bin:/bin:/usr/sbin:/sbin")
    return launcher.start(*words, command=(*here, *forked(variables)), **variables)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def discovered(machines: Machines, launcher: Launcher) -> tuple[ClusterFile, dict[str, object]]:
    options = ("-o", "lab.yaml", "--json", "--listen-seconds", "1")
    remote = ("--remote-command", " ".join(COMMAND))
    done = finish(
        topoopt(machines, launcher, 0, "discover", "--ssh", *machines.hosts, *options, *remote)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return load_cluster(launcher.folder / "lab.yaml"), json.loads(done.stdout)


def check_job(machines: Machines, launcher: Launcher, *options: str) -> list[dict[str, object]]:
    """A job on all hosts; returns what was counted of its links."""
    (launcher.folder / "train.py").write_text(SCRIPT)
    started = [
        topoopt(
            *(machines, launcher, host, "run", "--cluster", "lab.yaml", "--run-dir", f"run{host}"),
            *("--nnodes", str(len(machines.hosts)), "--node-rank", str(host), *options, "train.py"),
            TOPOOPT_LOG="info",
        )
        for host in range(len(machines.hosts))
    ]
    ended = [finish(process) for process in started]
    for done in ended:
        assert done.returncode == 0, done.stdout + done.stderr
    lines = (launcher.folder / "run0/metrics.jsonl").read_text().splitlines()
    links = [event for event in map(json.loads, lines) if event["event"] == "link"]
    provider = "libfabric" in ended[0].stderr + ended[0].stdout
    assert provider is ("--transport" in options)
    return links


def check_doctor(machines: Machines, launcher: Launcher) -> dict[str, object]:
    words = ("doctor", "--cluster", "lab.yaml", "--ssh-command", str(machines.folder / "ssh"))
    done = finish(
        topoopt(machines, launcher, 0, *words, "--json", "--remote-command", " ".join(COMMAND))
    )
    report: dict[str, object] = json.loads(done.stdout)
    findings = report["findings"]
    assert isinstance(findings, list)
    assert done.returncode == 0, findings
    assert not [f for f in findings if f["level"] == "error"], findings
    return report


def test_three_machines_whose_ports_have_two_functions(
    launcher: Launcher, namespaces: Namespaces
) -> None:
    """A triangle: each cable is two links of half its rate, and a job uses all of them."""
    machines = Machines.make(namespaces, launcher.folder, ("spark0", "spark1", "spark2"))
    first, second = SPARK_PORTS
    for a, b in ((0, 1), (1, 2), (2, 0)):
        machines.cable((a, first), (b, second), "200mbit")
    machines.wait()
    machines.write_spark_trees()
    cluster, figures = discovered(machines, launcher)
    assert [server.name for server in cluster.servers] == list(machines.hosts)
    ends = {frozenset(end.partition(":")[0] for end in cable) for cable in cluster.cables}
    assert (len(cluster.cables), len(ends)) == (6, 3)
    for server in cluster.servers:
        assert {port.interface for port in server.ports} == {*first, *second}
        for port in server.ports:
            assert port.gbps == pytest.approx(5.0), "veth says 10, which two functions share"
            assert zone_of(port.address) == port.interface
    notes = figures["notes"]
    assert isinstance(notes, list)
    assert len([note for note in notes if "functions of one physical port" in note]) == 6
    assert not [note for note in notes if "switch" in note]

    report = check_doctor(machines, launcher)
    links = report["links"]
    assert isinstance(links, list)
    assert len(links) == 6
    for link in links:
        assert link["gbps"] == pytest.approx(5.0)
        assert "shared by 2 links" in link["limit"]

    counted = check_job(machines, launcher)
    plan = Plan.load(launcher.folder / "run0/plan.json")
    assert len(plan.network.links) == 12
    assert len(counted) == 12
    sent = [int(str(link["sent_bytes"])) for link in counted]
    assert min(sent) > 0.5 * max(sent), "all links carry about as much"


def test_a_ring_of_four_without_addresses(launcher: Launcher, namespaces: Namespaces) -> None:
    """Hosts opposite each other have no cable; over TCP, and over libfabric's provider for it."""
    machines = Machines.make(namespaces, launcher.folder, ("box0", "box1", "box2", "box3"))
    for a in range(4):
        machines.cable((a, ("right",)), ((a + 1) % 4, ("left",)), "200mbit")
    machines.wait()
    cluster, figures = discovered(machines, launcher)
    assert figures["notes"] == []
    assert len(cluster.cables) == 4
    for server in cluster.servers:
        assert all(is_link_local(port.address) for port in server.ports)
    reach = check_doctor(machines, launcher)["reach"]
    assert reach == {
        a: {
            b: "direct" if abs(i - j) in (1, 3) else "ranks"
            for j, b in enumerate(machines.hosts)
            if i != j
        }
        for i, a in enumerate(machines.hosts)
    }
    assert len(check_job(machines, launcher)) == 8
    for host in range(4):
        shutil.rmtree(launcher.folder / f"run{host}")
    if missing := _backend.fabric_missing():
        pytest.skip(missing)
    counted = check_job(machines, launcher, "--transport", "fabric:tcp")
    assert all(int(str(link["sent_bytes"])) > 3 * SIZE for link in counted)
    assert not list(Path("/dev/shm").glob(f"*{launcher.mark}*"))
