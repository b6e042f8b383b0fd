"""Ways of giving addresses to cabled hosts, each with all that has to work on it: `discover`,
`doctor`, `run`, and a job without a plan, as root."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from support.commands import shared_server
from support.fabric.address_plans import PLANS, Cluster
from support.limits import limit_s
from support.plain_namespaces import Namespaces, wait_for_carrier, wait_for_link_local_addresses

from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.links.addresses import is_ipv6

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_S = limit_s(90.0)  # of one verb on all hosts
PORT = "29511"

SCRIPT = """
import json, os, pathlib
import torch, torch.distributed as dist

dist.init_process_group("topoopt")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(3):
    total = torch.full((100_003,), float(rank + step))
    dist.all_reduce(total)
    assert torch.equal(total, torch.full_like(total, sum(range(world)) + world * step))
from torch_topoopt.runtime import backend
ports = backend.jobs[-1].wiring.ports
pathlib.Path(f"{os.environ['KIND']}{rank}.json").write_text(
    json.dumps([[port.server, port.interface, port.address] for port in ports])
)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    with Namespaces("tc", "unshare") as made:
        yield made


def start(cluster: Cluster, host: int, program: str, *words: str, **variables: str) -> None:
    """A program of the command server on a host, in its home."""
    machines = cluster.machines
    path = f"PATH={machines.folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    given = (f"{name}={value}" for name, value in variables.items())
    command = (*shared_server().command(program), *words)
    cluster.started.append(
        subprocess.Popen(
            machines.command(host, "env", path, *given, *command),
            cwd=machines.folder / machines.hosts[host] / "home",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


def finish(cluster: Cluster) -> list[str]:
    """What the programs that were started have printed; all must have succeeded."""
    ended = []
    for process in cluster.started:
        out, err = process.communicate(timeout=LIMIT_S)
        ended.append((process.returncode, out, err))
    cluster.started.clear()
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    return [out for _, out, _ in ended]


def prepare(cluster: Cluster) -> None:
    """ssh and topoopt are in the search path of all hosts, and scripts in their homes."""
    folder = cluster.machines.folder
    (folder / "bin").mkdir()
    for name, text in (
        ("ssh", f'exec {folder}/ssh "$@"'),
        ("topoopt", f'exec {" ".join(shared_server().command("topoopt"))} "$@"'),
    ):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    for host in cluster.machines.hosts:
        (folder / host / "home" / "train.py").write_text(SCRIPT)


def check_ports(cluster: Cluster, kind: str) -> None:
    """Every rank has the cables that were plugged in, and no other links."""
    machines = cluster.machines
    plugged = {end for cable in cluster.cables for end in cable}
    for host, name in enumerate(machines.hosts):
        text = (machines.folder / name / "home" / f"{kind}{host}.json").read_text()
        ports = json.loads(text)
        assert {(server, interface) for server, interface, _ in ports} == plugged
        assert len(ports) == len(plugged)
        assert {is_ipv6(address) for _, _, address in ports} == {cluster.ipv6}


def check_discover(cluster: Cluster, path: Path) -> None:
    hosts = cluster.machines.hosts
    start(cluster, 0, "topoopt", "discover", "--ssh", *hosts, "-o", str(path), "--json")
    (out,) = finish(cluster)
    found = load_cluster(path)
    assert [server.name for server in found.servers] == list(hosts)
    assert [server.management for server in found.servers] == cluster.machines.managements
    assert {frozenset(cable) for cable in found.cables} == {
        frozenset(f"{hosts[host]}:{interface}" for host, interface in ends)
        for ends in cluster.cables
    }
    notes = json.loads(out)["notes"]
    assert len(notes) == cluster.notes, notes


def check_doctor(cluster: Cluster, path: Path) -> None:
    hosts = cluster.machines.hosts
    start(cluster, 0, "topoopt", "doctor", "--cluster", str(path), "--json")
    (out,) = finish(cluster)
    report = json.loads(out)
    assert report["hosts"] == list(hosts)
    assert [f for f in report["findings"] if f["level"] == "error"] == []
    assert report["reach"] == {a: {b: "direct" for b in hosts if b != a} for a in hosts}


def check_run(cluster: Cluster, path: Path) -> None:
    nodes = str(len(cluster.machines.hosts))
    words = ("run", "--cluster", str(path), "--nnodes", nodes, "--model", "none")
    for host in range(len(cluster.machines.hosts)):
        start(cluster, host, "topoopt", *words, "--no-measure-steps", "train.py", KIND="run")
    finish(cluster)
    check_ports(cluster, "run")


def check_without_plan(cluster: Cluster) -> None:
    machines = cluster.machines
    for rank in range(len(machines.hosts)):
        start(
            *(cluster, rank, "python", "train.py"),
            KIND="plain",
            RANK=str(rank),
            LOCAL_RANK="0",
            WORLD_SIZE=str(len(machines.hosts)),
            MASTER_ADDR=machines.managements[0],
            MASTER_PORT=PORT,
            TOPOOPT_INTERFACES="^manage",
        )
    finish(cluster)
    check_ports(cluster, "plain")


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_every_verb_works_on_every_plan_of_addresses(
    plan: str, namespaces: Namespaces, tmp_path: Path
) -> None:
    cluster = PLANS[plan](namespaces, tmp_path)
    prepare(cluster)
    ends = [
        (namespaces.names[host], interface) for cable in cluster.cables for host, interface in cable
    ]
    wait_for_carrier(ends)
    if cluster.ipv6:
        wait_for_link_local_addresses(ends)
    path = tmp_path / "lab.yaml"
    try:
        check_discover(cluster, path)
        check_doctor(cluster, path)
        check_run(cluster, path)
        check_without_plan(cluster)
    finally:
        for process in cluster.started:
            process.kill()
            process.communicate(timeout=LIMIT_S)
