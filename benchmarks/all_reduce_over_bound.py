"""Time of one long AllReduce over all servers, over the least time that the links allow.

    python benchmarks/all_reduce_over_bound.py --servers 64,128 --degree 4

Each architecture has two figures, without latencies: on the papers' rings, or rows and columns,
and on the fastest of those, their both directions and schedules over its links. The bound is the
slowest cut of a direct network, and the slowest server's links of others. `-J FILE` keeps all.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.architectures import ARCHITECTURES
from torch_topoopt.architectures.routing import Routes, lower_topology
from torch_topoopt.plan import BYTES_PER_GBPS, Cluster, Demand, GroupDemand

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology

_BYTES = 1 << 30
_CUT_BYTES = 1 << 20  # the slowest cut does not depend on the size


def bound_s(topology: Topology) -> float:
    """The least seconds of an AllReduce of `_BYTES`, without latencies."""
    count = topology.servers
    if topology.is_direct:
        links = [(link.source, link.target, link.gbps * BYTES_PER_GBPS) for link in topology.links]
        found = _core.GraphGroup(count, links, [], 0.0, 0.0).candidates("all_reduce", _CUT_BYTES)
        return found.bound_seconds * _BYTES / _CUT_BYTES
    rates: Counter[int] = Counter()
    for link in topology.links:
        rates[link.source] += link.gbps * BYTES_PER_GBPS
    return 2 * (count - 1) / count * _BYTES / min(rates[server] for server in range(count))


def over_bound(topology: Topology, *, schedules: bool) -> float:
    """Seconds of the AllReduce over the bound."""
    links = tuple(replace(link, latency_s=0.0) for link in topology.links)
    routes = Routes(replace(topology, links=links))
    everyone = tuple(range(topology.servers))
    pairs = set(permutations(everyone, 2))
    rows = topology.grid.lines(everyone) if topology.grid is not None else ()
    grids = {everyone: rows} if rows else {}
    network = lower_topology(routes, pairs, grids, schedules=schedules).network
    return network.all_reduce_seconds(everyone, _BYTES) / bound_s(topology)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--servers", default="64,128")
    options.add_argument("--degree", type=int, default=4)
    options.add_argument("-J", "--json-file", metavar="FILE", help="keep every number")
    arguments = options.parse_args()
    kept = []
    print(f"{'architecture':28}{'servers':>8}{'rings':>8}{'best':>8}")
    for servers in map(int, arguments.servers.split(",")):
        cluster = Cluster(servers, arguments.degree, 100.0)
        demand = Demand((GroupDemand(tuple(range(servers)), _BYTES),), ())
        for name, build in ARCHITECTURES.items():
            try:
                topology = build(cluster, demand, seed=0)
            except ValueError as error:
                print(f"{name:28}{servers:8}  impossible: {error}")
                continue
            if topology.reconfiguration is not None:
                print(f"{name:28}{servers:8}  circuits move")
                continue
            rings = over_bound(topology, schedules=False)
            best = over_bound(topology, schedules=True)
            print(f"{name:28}{servers:8}{rings:8.3f}{best:8.3f}", flush=True)
            kept.append({"architecture": name, "servers": servers, "rings": rings, "best": best})
    if arguments.json_file:
        Path(arguments.json_file).write_text(json.dumps(kept, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
