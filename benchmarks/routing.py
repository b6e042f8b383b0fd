"""Link loads of every routing policy (the paper's Figure 15) and how long optimal routes take.

    python benchmarks/routing.py balance            # 128 servers, d = 4 and 8
    python benchmarks/routing.py seconds            # optimal routes for n = 16 to 256

`balance` sends an all-to-all over the links of the paper's artifact (mode `released`) and prints,
for each policy, the busiest link's bytes in units of the bytes of one pair, their ratio to the
mean link's, by how much the least loaded link carries less, and the bandwidth tax. `seconds` does
uniform all-to-alls on random unions of Hamiltonian cycles, which have no symmetry to exploit.
Seconds are of processor time.
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np

from figures.load_balance import load_balance
from torch_topoopt.plan import POLICIES, AllToAll, Cluster, Demand, GroupDemand, Network, PairTable
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.finder.port_allocator import PortAllocator
from torch_topoopt.topology.routing.loads import bandwidth_tax
from torch_topoopt.topology.routing.optimal_routes import link_counts, optimal_routes
from torch_topoopt.topology.routing.policies import reroute


def show_balance(servers: int, degree: int, seed: int) -> None:
    everyone = tuple(range(servers))
    groups = (GroupDemand(everyone, 10**9),)
    network = find_network(Cluster(servers, degree, 100.0), Demand(groups, ()), mode="released")
    demand = Demand((), PairTable((AllToAll(everyone, 10**6),)))
    print(f"{servers} servers, d = {degree}, duplex, mode released, all-to-all")
    print(f"{'routing':12}  busiest  max/mean  least below  tax    seconds")
    for policy in POLICIES:
        started = time.process_time()
        routed = reroute(network, demand, servers, policy, seed=seed)
        seconds = time.process_time() - started
        balance = load_balance(routed, demand, servers)
        print(
            f"{policy:12}  {balance.max_bytes / 10**6:7.1f}  {balance.max_over_mean:8.3f}  "
            f"{balance.least_below_most:10.1%}  {bandwidth_tax(demand, routed):.3f}  "
            f"{seconds:7.2f}",
            flush=True,
        )


def random_cycles(servers: int, degree: int, seed: int) -> Network:
    """degree / 2 Hamiltonian cycles in random order, in both directions of their cables."""
    draw = random.Random(seed)
    wiring = PortAllocator(Cluster(servers, degree, 100.0))
    for _ in range(degree // 2):
        wiring.add_stride(draw.sample(range(servers), servers), 1)
    return Network(tuple(wiring.links), (), ())


def show_seconds(servers: int, degree: int, seed: int, most_exact: int) -> None:
    capacity = link_counts(servers, random_cycles(servers, degree, seed).links)
    traffic = np.ones((servers, servers)) - np.eye(servers)
    for method in ("exact", "approximate"):
        if method == "exact" and servers > most_exact:
            continue
        started = time.process_time()
        found = optimal_routes(capacity, traffic, method=method)
        seconds = time.process_time() - started
        routes = sum(map(len, found.routes.values())) / len(found.routes)
        print(
            f"n = {servers:3}, d = {degree}  {method:11}  busiest {found.utilisation:8.2f}  "
            f"gap {found.gap:7.3%}  routes per pair {routes:4.2f}  {seconds:7.2f} s",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", choices=["balance", "seconds"])
    options.add_argument("--servers", type=int, nargs="+", help="default: 128; 16 to 256")
    options.add_argument("--degree", type=int, nargs="+", help="default: 4 and 8; 4")
    options.add_argument("--exact-up-to", type=int, default=128, help="servers (default: 128)")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    if chosen.what == "balance":
        for servers in chosen.servers or [128]:
            for degree in chosen.degree or [4, 8]:
                show_balance(servers, degree, chosen.seed)
    else:
        for servers in chosen.servers or [16, 32, 64, 128, 256]:
            for degree in chosen.degree or [4]:
                show_seconds(servers, degree, chosen.seed, chosen.exact_up_to)


if __name__ == "__main__":
    main()
