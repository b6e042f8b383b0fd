"""What NCCL's network plugin gets out of a ring of four hosts, without NCCL: as root, on network
namespaces whose links have a rate.

    sudo python benchmarks/nccl_net.py --harness PROGRAM [--bandwidth-gbps 0.1]

PROGRAM is tests/cpp/nccl_net_harness.cc, compiled: it calls the plugin as NCCL does. Printed
are the goodput of a neighbour, of opposite hosts (which have no cable: others relay), and of the
traffic of a ring AllReduce, each as a share of the links that it may use.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from torch_topoopt.fabric.nccl_wiring import LIBRARY, write_nccl_wiring
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.find_network import find_network

SERVERS = 4
DEGREE = 2
LIMIT_S = 300.0
BYTES_PER_GBPS = 1e9 / 8


def ring_plan(gbps: float) -> Plan:
    """Four hosts in a ring, on which a data-parallel job runs."""
    cluster = Cluster(SERVERS, DEGREE, gbps)
    demand = Demand((GroupDemand(tuple(range(SERVERS)), 1 << 20),), ())
    return Plan.of_network(cluster, find_network(cluster, demand), demand, model="none")


class Hosts:
    """The ranks of one plan, each in the namespace of its host."""

    def __init__(self, harness: str, fabric: NetnsFabric, folder: Path) -> None:
        self._harness = harness
        self._layout = fabric.layout
        self._folder = folder
        self._runs = 0

    def run(self, *scenario: str) -> list[tuple[int, float]]:
        """(bytes, seconds) of every rank that measured; raises RuntimeError if one fails."""
        self._runs += 1
        exchange = self._folder / f"exchange{self._runs}"
        names = {"TOPOOPT_NCCL_WIRING": str(self._folder / "wiring")}
        ranks = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", self._layout.namespace(rank), self._harness),
                    *(str(LIBRARY), "11", str(exchange), str(rank), str(SERVERS), *scenario),
                ],
                env={**os.environ, **names, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(SERVERS)
        ]
        try:
            printed = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"{' '.join(scenario)}: a rank has failed")
        found = re.findall(r"_bytes (\d+) seconds ([\d.]+)", "".join(printed))
        return [(int(count), float(seconds)) for count, seconds in found]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--harness", required=True)
    options.add_argument("--bandwidth-gbps", type=float, default=0.1)
    options.add_argument("--seconds", type=float, default=10.0, help="that each should take")
    arguments = options.parse_args()
    gbps = arguments.bandwidth_gbps
    plan = ring_plan(gbps)
    fabric = NetnsFabric(f"nccl{os.getpid()}", NetnsOptions(gbps=gbps))
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_nccl_wiring(Path(folder) / "wiring", plan, fabric.connect(plan))
            hosts = Hosts(arguments.harness, fabric, Path(folder))
            link_bytes = gbps * BYTES_PER_GBPS * arguments.seconds
            for target, name in ((1, "neighbours"), (2, "opposite hosts")):
                ((count, seconds),) = hosts.run("rate", str(int(link_bytes)), "0", str(target))
                share = count / seconds / BYTES_PER_GBPS / gbps
                print(f"{name}: {share:.3f} of one link")
            traffic = int(link_bytes / 1.5)
            measured = hosts.run("ring", str(traffic))
            share = min(count / seconds for count, seconds in measured) / BYTES_PER_GBPS / gbps
            print(f"a ring AllReduce in one direction: {share:.3f} of one link")
        finally:
            fabric.close()


if __name__ == "__main__":
    main()
