"""What NCCL's network plugin gets out of hosts that are cabled to each other, without NCCL: as
root, on network namespaces whose links have a rate.

    sudo python benchmarks/nccl_net.py --harness PROGRAM [--servers 12 --degree 4]

PROGRAM is tests/cpp/nccl/nccl_net_harness.cc, compiled: it calls the plugin as NCCL does. Printed
are how long it takes until all pairs of ranks are connected; of a pair of neighbours and of the
pair that is furthest apart (other hosts relay), the goodput as a share of what the plan's routes
can carry, and the time of a short message; of the traffic of a ring AllReduce, the share of the
links that it may use, undisturbed and while a cable of the ring is down; and of an AllReduce over
CollNet and of that ring, in alternating rounds, the share of all links.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.layout import port_interface
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.nccl_wiring import LIBRARY, nccl_layout, write_nccl_wiring
from torch_topoopt.links.rank_layout import rank_routes
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIMIT_S = 300.0
BYTES_PER_GBPS = 1e9 / 8
MESH_BYTES = 10_000  # of each message among all pairs
CHUNK_BYTES = 256 << 10  # of CollNet: NCCL's largest operation with one channel
ROUNDS = 3

Pair = tuple[int, int]
Routes = dict[Pair, list[tuple[tuple[int, ...], float]]]  # servers and weight


def data_parallel_plan(servers: int, degree: int, gbps: float) -> Plan:
    """Hosts on which a data-parallel job runs."""
    cluster = Cluster(servers, degree, gbps)
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    return Plan.of_network(cluster, find_network(cluster, demand), demand, model="none")


def routes_of(plan: Plan) -> Routes:
    """Of every pair of servers; of one that has only links of its own, the link."""
    found: Routes = defaultdict(list)
    layout = nccl_layout(plan)
    for rank in range(plan.cluster.servers):
        for route in rank_routes(plan.network, layout, rank):
            servers = tuple(layout.server_of[r] for r in route.servers)
            if route.servers[0] == rank:
                found[servers[0], servers[-1]].append((servers, route.weight))
    for link in plan.network.links:
        pair = (link.source, link.target)
        if pair not in found:
            found[pair] = [(pair, 1.0)]
    return found


def carried_gbps(plan: Plan, routes: Routes, pairs: Iterable[Pair]) -> float:
    """What each of `pairs` gets at most while all of them send, by the busiest link."""
    links = Counter((link.source, link.target) for link in plan.network.links)
    loads: Counter[Pair] = Counter()
    for pair in pairs:
        whole = sum(weight for _, weight in routes[pair])
        for servers, weight in routes[pair]:
            for hop in pairwise(servers):
                loads[hop] += weight / whole
    return plan.cluster.link_gbps / max(load / links[hop] for hop, load in loads.items())


def all_links_gbps(plan: Plan) -> float:
    """The AllReduce bytes that all links together carry."""
    servers = plan.cluster.servers
    return plan.cluster.degree * plan.cluster.link_gbps / (2 * (servers - 1) / servers)


class Hosts:
    """The ranks of one plan, each in the namespace of its host."""

    def __init__(
        self, harness: str, fabric: NetnsFabric, plan: Plan, folder: Path, *, per_server: int
    ) -> None:
        self._harness = harness
        self._layout = fabric.layout
        self._folder = folder
        self._plan = plan
        self.server_of = nccl_layout(plan, per_server).server_of
        self._runs = 0
        self.printed = ""  # by all ranks of the last run

    def run(self, *scenario: str, meanwhile: Callable[[], None] | None = None) -> list[float]:
        """Runs a scenario; what each rank that measures has measured: Gb/s of what it has sent or
        received, seconds of short messages, or until all pairs were connected.

        Raises RuntimeError if a rank fails.
        """
        self._runs += 1
        exchange = self._folder / f"exchange{self._runs}"
        names = {"TOPOOPT_NCCL_WIRING": str(self._folder / "wiring")}
        count = len(self.server_of)
        ranks = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", self._layout.namespace(server), self._harness),
                    *(str(LIBRARY), "12", str(exchange), str(rank), str(count), *scenario),
                ],
                env={**os.environ, **names, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, server in enumerate(self.server_of)
        ]
        try:
            if meanwhile is not None:
                meanwhile()
            printed = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.printed = text = "".join(printed)
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"{' '.join(scenario)}: a rank has failed:\n{text}")
        if times := re.findall(r"round_bytes \d+ seconds ([\d.]+)|connected in ([\d.]+) s", text):
            return [float(round_s or connected_s) for round_s, connected_s in times]
        found = re.findall(r"_bytes (\d+) seconds ([\d.]+)", text)
        return [int(count) / float(seconds) / BYTES_PER_GBPS for count, seconds in found]

    def cut(self, after_s: float, down_s: float) -> None:
        """Waits, takes the interfaces of the cables between the first two of NCCL's servers down,
        waits again, and brings them up."""
        first, second = list(dict.fromkeys(self.server_of))[:2]
        ports = [
            link.source_port
            for link in self._plan.network.links
            if (link.source, link.target) == (first, second)
        ]
        for pause_s, state in ((after_s, "down"), (down_s, "up")):
            time.sleep(pause_s)
            for port in ports:
                inside = ("ip", "-n", self._layout.namespace(first))
                words = ("link", "set", port_interface(port), state)
                subprocess.run([*inside, *words], check=True)


def measure(hosts: Hosts, plan: Plan, seconds: float) -> None:
    """Prints what the hosts get, each figure as soon as there is one."""
    ranks = len(hosts.server_of)
    connected = max(hosts.run("mesh", str(MESH_BYTES)))
    print(f"all {ranks * ranks} pairs of {ranks} ranks connected in {connected:.2f} s", flush=True)
    routes = routes_of(plan)
    if ranks == plan.cluster.servers:
        far = max(
            (rank for rank in range(1, ranks)),
            key=lambda rank: min(
                len(servers) for servers, _ in routes[hosts.server_of[0], hosts.server_of[rank]]
            ),
        )
        for rank, name in ((1, "neighbours"), (far, "the furthest hosts")):
            pair = (hosts.server_of[0], hosts.server_of[rank])
            gbps = carried_gbps(plan, routes, [pair])
            size = int(gbps * BYTES_PER_GBPS * seconds)
            (measured,) = hosts.run("rate", str(size), "0", str(rank))
            (delay,) = hosts.run("delay", "0", str(rank))
            hops = max(len(servers) - 1 for servers, _ in routes[pair])
            print(
                f"{name} (up to {hops} links): {measured / gbps:.3f} of {gbps:g} Gb/s, "
                f"8 bytes in {delay * 1e6:.0f} us",
                flush=True,
            )
    order = list(dict.fromkeys(hosts.server_of))
    around = carried_gbps(plan, routes, pairwise([*order, order[0]]))
    size = str(int(around * BYTES_PER_GBPS * seconds / 2 / (ranks - 1) * ranks))
    measured = min(hosts.run("ring", size))
    print(f"a ring AllReduce: {measured / around:.3f} of {around:g} Gb/s", flush=True)
    down_s = seconds / 5
    measured = min(hosts.run("ring", size, meanwhile=lambda: hosts.cut(down_s, down_s)))
    print(
        f"the same, and the cables between two of its hosts are down for {down_s:g} s: "
        f"{measured / around:.3f} of {around:g} Gb/s",
        flush=True,
    )
    most = all_links_gbps(plan)
    steps = max(8, int(most * BYTES_PER_GBPS * seconds / CHUNK_BYTES))
    for _ in range(ROUNDS):
        collnet = min(hosts.run("all_reduce", str(steps * CHUNK_BYTES), str(CHUNK_BYTES)))
        ring = min(hosts.run("ring", size)) / (2 * (ranks - 1) / ranks)
        print(
            f"an AllReduce: CollNet {collnet / most:.3f}, ring {ring / most:.3f} of all links",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--harness", required=True)
    options.add_argument("--servers", type=int, default=4)
    options.add_argument("--degree", type=int, default=2)
    options.add_argument("--ranks-per-server", type=int, default=1)
    options.add_argument("--encrypt", action="store_true")
    options.add_argument("--bandwidth-gbps", type=float, default=0.1)
    options.add_argument("--seconds", type=float, default=10.0, help="that each should take")
    arguments = options.parse_args()
    per_server, gbps = arguments.ranks_per_server, arguments.bandwidth_gbps
    plan = data_parallel_plan(arguments.servers, arguments.degree, gbps)
    fabric = NetnsFabric(f"nccl{os.getpid()}", NetnsOptions(gbps=gbps))
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_nccl_wiring(
                Path(folder) / "wiring",
                plan,
                fabric.connect(plan),
                ranks_per_server=per_server,
                encrypt=arguments.encrypt,
            )
            hosts = Hosts(arguments.harness, fabric, plan, Path(folder), per_server=per_server)
            measure(hosts, plan, arguments.seconds)
        finally:
            fabric.close()


if __name__ == "__main__":
    main()
