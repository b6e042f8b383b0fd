"""Who sends how much to whom: the DLRM of sections 2.1 and 4.3 on 16 servers.

The paper states bytes of the example, not all sizes of its model: 22 GB of parameters, of which
what is not embedding tables makes AllReduce transfers of 4 GB, thus 2 GB; and 32 MB of activations
between a server with a table and each other one (8192 samples a server, 512 doubles a sample).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_topoopt.plan import Cluster, Demand, Group, GroupDemand, PairDemand, Ring
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.routing.loads import hop_bytes, traffic_matrix
from torch_topoopt.topology.routing.pair_bytes import demand_matrix
from torch_topoopt.topology.routing.routes import group_bytes, ring_pair_bytes

SERVERS = 16
TABLES = (0, 3, 8, 13)  # the servers of E0 to E3
MODEL_BYTES = 22_000_000_000
DENSE_BYTES = 2_000_000_000
TRANSFER_BYTES = 8192 * 512 * 8


def _demand(hybrid: bool) -> Demand:
    everyone = tuple(range(SERVERS))
    if not hybrid:
        return Demand((GroupDemand(everyone, MODEL_BYTES),), ())
    ends = {(table, other) for table in TABLES for other in everyone if other != table}
    pairs = sorted(ends | {(b, a) for a, b in ends})
    sizes = {pair: TRANSFER_BYTES * ((pair in ends) + (pair[::-1] in ends)) for pair in pairs}
    return Demand(
        (GroupDemand(everyone, DENSE_BYTES),),
        tuple(PairDemand(a, b, size) for (a, b), size in sizes.items()),
    )


def on_rings(*, strides: list[int], hybrid: bool) -> Any:
    """Bytes [source][target] of AllReduce over rings of these strides together, and of MP."""
    demand = _demand(hybrid)
    rings = tuple(
        Ring(tuple(p * i % SERVERS for i in range(SERVERS)), 1 / len(strides)) for p in strides
    )
    group = Group(tuple(range(SERVERS)), rings)
    reduced = np.zeros((SERVERS, SERVERS))
    for (a, b), size in ring_pair_bytes((group,), group_bytes(demand)).items():
        reduced[a, b] += size
    return {"all_reduce": reduced.tolist(), "mp": demand_matrix(demand, SERVERS).tolist()}


def tree_parents(servers: int) -> list[int | None]:
    """A balanced binary tree whose leaves are the odd servers; the root, 0, has one child.

    Server x with lowest set bit b is below x - b + 2 b, or x - b where there is no such server.
    """
    parents: list[int | None] = [None]
    for server in range(1, servers):
        bit = server & -server
        above = (server ^ bit) | (bit << 1)
        parents.append(above if above < servers else server ^ bit)
    return parents


def relabelled(place: int, step: int, offset: int) -> int:
    """The server at a place of the first tree: inner ones count in steps from 0, leaves from
    `offset`."""
    return (place // 2 * step + place % 2 * offset) % SERVERS


def double_tree(step: int, offset: int) -> list[list[int | None]]:
    """Parents in both trees, by `relabelled`: in the second one, each inner server has changed
    places with the leaf after it."""
    trees = []
    for flip in (0, 1):
        parents: list[int | None] = [None] * SERVERS
        for server, parent in enumerate(tree_parents(SERVERS)):
            if parent is not None:
                own = relabelled(server ^ flip, step, offset)
                parents[own] = relabelled(parent ^ flip, step, offset)
        trees.append(parents)
    return trees


def on_trees(*, step: int, offset: int) -> Any:
    """Bytes as `on_rings`: each tree reduces half of the AllReduce, and broadcasts the sum."""
    demand = _demand(hybrid=True)
    reduced = np.zeros((SERVERS, SERVERS))
    trees = double_tree(step, offset)
    for parents in trees:
        for server, parent in enumerate(parents):
            if parent is not None:
                reduced[server, parent] += DENSE_BYTES / 2
                reduced[parent, server] += DENSE_BYTES / 2
    mp = demand_matrix(demand, SERVERS)
    return {"trees": trees, "all_reduce": reduced.tolist(), "mp": mp.tolist()}


def on_topoopt(*, degree: int, mode: str) -> Any:
    """The same on the network that TopologyFinder wires for it: what servers exchange, and what
    crosses the links, forwarded bytes included."""
    demand = _demand(hybrid=True)
    network = find_network(Cluster(SERVERS, degree, 100.0, "simplex"), demand, mode=mode)
    asked = traffic_matrix(network, demand, SERVERS)
    mp = demand_matrix(demand, SERVERS)
    rings = [list(ring.servers) for ring in network.groups[0].rings]
    return {
        "links": [[link.source, link.target] for link in network.links],
        "rings": rings,
        "all_reduce": (asked - mp).tolist(),
        "mp": mp.tolist(),
        "on_links": hop_bytes(network, asked).tolist(),
    }
