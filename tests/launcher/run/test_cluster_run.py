"""`topoopt run --cluster` on hosts that the test made by itself: one command on each, as people do.

Every rank compares what it got with what it computes alone, and writes down its connections.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from plain_hosts import TOKEN, Hosts, make_hosts, start_agents, within
from support.launcher import forked
from support.limits import limit_s
from support.plain_namespaces import Namespaces, ip, run
from support.refusals import named

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from support.launcher import Launcher

LIMIT_S = 100.0

SCRIPT = """
import json, os, pathlib, socket, struct, sys
import torch, torch.distributed as dist

def build_model():
    return torch.nn.Linear(1000, 10)

def example_batch():
    return torch.zeros(8, 1000)

def connections():
    for table in ("tcp", "tcp6"):  # of IPv6, these hosts only have mapped IPv4 addresses
        for line in pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            ends = [end.split(":")[0][-8:] for end in line.split()[1:3]]
            if line.split()[3] == "01":
                yield [socket.inet_ntoa(struct.pack("=I", int(end, 16))) for end in ends]

if __name__ == "__main__":
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    def gradient(of, step):
        return torch.randn(30_011, generator=torch.Generator().manual_seed(1000 * step + of))
    weights = torch.zeros(30_011)
    for step in range(3):
        total = gradient(rank, step)
        dist.all_reduce(total)
        expected = sum(gradient(other, step) for other in range(world))
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
        weights -= 0.1 * total
    dist.barrier()
    pathlib.Path(f"rank{rank}.json").write_text(json.dumps(
        {"sum": weights.sum().item(), "connections": list(connections())}))
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Namespaces() as namespaces:
        yield Hosts(namespaces)


def run_everywhere(
    launcher: Launcher,
    hosts: Hosts,
    cluster: ClusterFile,
    *options: str,
    absent: int = -1,
    on: Sequence[int] = (),
    algorithm: str = "auto",
    script: str = SCRIPT,
    **variables: str,
) -> list[subprocess.CompletedProcess[str]]:
    """One `topoopt run` for each server but `absent`, in a folder of its own.

    Server I is on host `on[I]`, or on host I.
    """
    cluster.save(launcher.folder / "cluster.yaml")
    (launcher.folder / "train.py").write_text(script)
    started = []
    for server, host in enumerate(on or range(len(hosts.names))):
        if server == absent:
            continue
        folder = launcher.folder / f"server{server}"
        folder.mkdir(exist_ok=True)
        there = replace(launcher, folder=folder)
        started.append(
            there.start(
                *("run", "--cluster", "../cluster.yaml", "--run-dir", "run"),
                *(option.format(server) for option in options),
                "../train.py",
                command=("ip", "netns", "exec", hosts.names[host], *forked()),
                TOPOOPT_ALGORITHM=algorithm,
                **variables,
            )
        )
    ended = []
    for process in started:
        out, err = process.communicate(timeout=limit_s(LIMIT_S))
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


def check_trained(
    folder: Path,
    hosts: Hosts,
    ended: list[subprocess.CompletedProcess[str]],
    on: Sequence[int] = (),
) -> None:
    on = on or range(len(ended))
    for done in ended:
        assert done.returncode == 0, done.stdout + done.stderr
    folders = [folder / f"server{server}" for server in range(len(ended))]
    ranks = [json.loads((f / f"rank{rank}.json").read_text()) for rank, f in enumerate(folders)]
    assert len({rank["sum"] for rank in ranks}) == 1
    documents = [
        (Plan.load(f / "run" / "plan.json"), Wiring.load(f / "run" / "wiring.json"))
        for f in folders
    ]
    assert len({(plan.digest(), wiring.to_json()) for plan, wiring in documents}) == 1
    plan, wiring = documents[0]
    address = {end: port.address for end, port in wiring.by_port().items()}
    for server, rank in enumerate(ranks):
        planned = {  # of all servers of this host, which share its table of connections
            (address[link.source, link.source_port], address[link.target, link.target_port])
            for link in plan.network.links
            if on[link.source] == on[server]
        }
        pairs = {tuple(pair) for pair in rank["connections"]}
        managed = {pair for pair in pairs if set(pair) & {*hosts.managements, "127.0.0.1"}}
        assert pairs - managed == planned, "connections along the planned links, and no others"
        assert managed, "the store is reached over the management network"


def discover(launcher: Launcher, hosts: Hosts) -> ClusterFile:
    """The file that `topoopt discover` writes, with an agent on each host."""
    agents = start_agents(launcher, hosts, "a token")
    survey = launcher.start(
        *("discover", "--agents", *hosts.managements, "-o", "found.yaml"),
        command=within(hosts, 0),
        **{TOKEN: "a token"},
    )
    for process in (survey, *agents):
        _, err = process.communicate(timeout=limit_s(LIMIT_S))
        assert process.returncode == 0, err
    return load_cluster(launcher.folder / "found.yaml")


def test_a_ring_of_four_foreign_hosts_is_discovered_and_trains_on_its_cluster_file(
    launcher: Launcher, hosts: Hosts
) -> None:
    make_hosts(4, [(0, 1), (1, 2), (2, 3), (3, 0)], hosts)
    cluster = discover(launcher, hosts)
    # A tree, which may be the fastest for so little, leaves some of the links alone.
    ended = run_everywhere(launcher, hosts, cluster, "--nnodes", "4", algorithm="multi_ring")
    check_trained(launcher.folder, hosts, ended)
    waiting = ["waiting for the plan of h0" in done.stdout for done in ended]
    assert waiting == [False, True, True, True]
    plan = Plan.load(launcher.folder / "server2" / "run" / "plan.json")
    assert plan.mode == "fixed"
    assert [ring.servers for ring in plan.network.groups[0].rings] == [(0, 1, 2, 3), (0, 3, 2, 1)]
    records = (launcher.folder / "server0" / "run" / "metrics.jsonl").read_text().splitlines()
    links = [r for r in map(json.loads, records) if r["event"] == "link"]
    assert len(links) == 8, "server 0 has the counters of all hosts"
    assert all(link["sent_bytes"] > 0 for link in links)


def test_an_irregular_graph_trains_with_relays_and_two_servers_on_one_machine(
    launcher: Launcher, hosts: Hosts
) -> None:
    """Host 0 is servers a and b, with two cables and one to c: a and b meet through c."""
    make_hosts(2, [(0, 1), (0, 1), (0, 1)], hosts)
    ends = [[PortEntry(f"p{i}", cable[end][2]) for i, cable in enumerate(hosts.cables)]
            for end in (0, 1)]  # fmt: skip
    shared = hosts.managements[0]
    servers = (
        ServerEntry("a", shared, host="box", ports=tuple(ends[0][:2])),
        ServerEntry("b", shared, host="box", ports=tuple(ends[0][2:])),
        ServerEntry("c", hosts.managements[1], ports=tuple(ends[1])),
    )
    cables = (("a:p0", "c:p0"), ("a:p1", "c:p1"), ("b:p2", "c:p2"))
    cluster = ClusterFile(1, "irregular", servers, cables).validate()
    on = (0, 0, 1)
    ended = run_everywhere(launcher, hosts, cluster, "--model=none", "--node-rank={}", on=on)
    check_trained(launcher.folder, hosts, ended, on)
    plan = Plan.load(launcher.folder / "server2" / "run" / "plan.json")
    assert [route.servers for route in plan.network.routes] == [(0, 2, 1), (1, 2, 0)]
    assert (launcher.folder / "server0" / "run" / "report.html").is_file()
    assert "the report is on a (node rank 0, " in ended[1].stdout


def test_a_cable_in_the_wrong_port_is_named_with_what_is_at_its_other_end(
    launcher: Launcher, hosts: Hosts
) -> None:
    make_hosts(3, [(0, 1), (1, 2), (0, 2)], hosts)
    # Both plugs of host 0 are swapped: its address for host 1 is where the cable to host 2 is.
    (_, to_one, one), (_, to_two, two) = hosts.cables[0][0], hosts.cables[2][0]
    namespace = hosts.names[0]
    for interface, old, new in ((to_one, one, two), (to_two, two, one)):
        ip(f"-n {namespace} addr del {old} dev {interface}")
        ip(f"-n {namespace} addr add {new} dev {interface}")
    ended = run_everywhere(launcher, hosts, hosts.cluster(), "--model", "none")
    assert len({error_of(done) for done in ended}) == 1, "all hosts end with the same words"
    for done in ended:
        assert done.returncode == 2
        message = error_of(done)
        assert "2 of the planned cables do not work:" in message
        assert named(
            message,
            "h0:p0",
            "h1:p0",
            "server 0",
            "port 0",
            "server 1",
            hosts.cables[0][1][2].split("/")[0],
            "h2:p1",
            "h0:p1",
        )
        assert "cable h0:p1 - h2:p1" in message
        assert "h1:p1" not in message


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert "topoopt: error: " in done.stderr, done.stdout + done.stderr
    return done.stderr[done.stderr.index("topoopt: error: ") :]


def test_an_unplugged_cable_and_a_missing_host_are_named(launcher: Launcher, hosts: Hosts) -> None:
    make_hosts(2, [(0, 1)], hosts)
    (done,) = run_everywhere(
        launcher, hosts, hosts.cluster(), "--model=none", "--meet-timeout=1", absent=1
    )
    assert done.returncode == 2
    assert f"no sign of h1 (node rank 1, {hosts.managements[1]}) in time" in error_of(done)
    assert "run `topoopt run --cluster ../cluster.yaml ...` there too" in error_of(done)
    interface, address = hosts.cables[0][1][1:]
    ip(f"-n {hosts.names[1]} link set {interface} down")
    ended = run_everywhere(launcher, hosts, hosts.cluster(), "--model=none")
    for done in ended:
        assert done.returncode == 2
        assert f"no address {address.split('/')[0]} on an interface that is up" in error_of(done)


def test_the_rates_of_cables_are_measured_before_anything_is_planned(
    launcher: Launcher, hosts: Hosts
) -> None:
    make_hosts(3, [(0, 1), (1, 2), (0, 2)], hosts)
    for cable in hosts.cables:
        for host, interface, _ in cable:
            limit = "root tbf rate 20mbit burst 16kb latency 20ms"
            run(*f"tc -n {hosts.names[host]} qdisc add dev {interface} {limit}".split())
    # Rates that another run has kept for the same file would be taken over.
    cache = str(launcher.folder / "cache")
    ended = run_everywhere(launcher, hosts, hosts.cluster(gbps=10.0), XDG_CACHE_HOME=cache)
    check_trained(launcher.folder, hosts, ended)
    plan = Plan.load(launcher.folder / "server0" / "run" / "plan.json")
    wiring = Wiring.load(launcher.folder / "server0" / "run" / "wiring.json")
    assert plan.cluster.port_gbps is None, "all are alike"
    assert 0.01 < plan.cluster.link_gbps < 0.03
    assert {port.speed_gbps for port in wiring.ports} == {plan.cluster.link_gbps}
    for done in ended:
        assert named(done.stdout, "3 cables", "10 Gb/s")
