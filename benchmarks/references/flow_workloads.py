"""Workloads that network simulators are compared on: rings, all-to-all, permutation, incast, DLRM.

Each function returns a `Workload`; tests and benchmarks/simulators.py share them. Links are
directed and have 100 Gb/s and 1 us by default; 1 MB is 10^6 bytes. Hosts come first in
the numbers of nodes, then switches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from torch_topoopt.sim.flows import Flow, FlowLink

if TYPE_CHECKING:
    from collections.abc import Sequence

BITS_PER_S = 100e9
LATENCY_NS = 1000.0
MEGABYTE = 1_000_000


@dataclass
class Workload:
    """Links and flows under construction. `link_between` knows the one link of a pair of nodes."""

    hosts: int
    nodes: int
    links: list[FlowLink] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    link_between: dict[tuple[int, int], int] = field(default_factory=dict)

    def add_link(self, source: int, target: int, bits_per_s: float = BITS_PER_S) -> None:
        """A link of 1 us; two of the same pair are not kept apart by `path`."""
        self.link_between[source, target] = len(self.links)
        self.links.append(FlowLink(source, target, bits_per_s, LATENCY_NS))

    def add_cable(self, a: int, b: int) -> None:
        self.add_link(a, b)
        self.add_link(b, a)

    def path(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """The links between consecutive nodes."""
        return tuple(self.link_between[a, b] for a, b in pairwise(nodes))

    def add_flow(self, nodes: Sequence[int], size_bytes: float, after: Sequence[int] = ()) -> int:
        """A flow along `nodes`; returns its index."""
        self.flows.append(Flow(nodes[0], nodes[-1], size_bytes, self.path(nodes), tuple(after)))
        return len(self.flows) - 1


def add_ring_all_reduce(
    workload: Workload,
    ring: Sequence[int],
    size_bytes: int,
    after: Sequence[Sequence[int]] | None = None,
) -> None:
    """2 (k - 1) steps over a directed ring of k hosts in which every host passes a chunk on.

    Chunk c has S (c + 1) // k - S c // k bytes; the flow of a step starts when the same chunk has
    arrived in the step before, those of the first step when the flows `after[host]` have.
    """
    k = len(ring)
    sizes = [size_bytes * (c + 1) // k - size_bytes * c // k for c in range(k)]
    arrived: dict[int, int] = {}
    for step in range(2 * (k - 1)):
        for i in range(k):
            chunk = (i - step) % k
            host, target = ring[i], ring[(i + 1) % k]
            first = after[host] if after else ()
            waits_for = (arrived[chunk],) if step else first
            arrived[chunk] = workload.add_flow((host, target), sizes[chunk], waits_for)


def ring_all_reduce(hosts: int, size_bytes: int = 100 * MEGABYTE) -> Workload:
    """W1 of the simulator comparison: one directed ring."""
    return circulant_all_reduce(hosts, (1,), size_bytes)


def circulant_all_reduce(
    hosts: int = 128, strides: Sequence[int] = (1, 3, 11, 37), size_bytes: int = 100 * MEGABYTE
) -> Workload:
    """W2: the directed circulant of `strides`, an equal part of the bytes on each of its rings."""
    workload = Workload(hosts, hosts)
    for stride in strides:
        for host in range(hosts):
            workload.add_link(host, (host + stride) % hosts)
    for stride in strides:
        ring = [i * stride % hosts for i in range(hosts)]
        add_ring_all_reduce(workload, ring, size_bytes // len(strides))
    return workload


def leaf_spine(leaves: int, hosts_per_leaf: int, spines: int) -> Workload:
    hosts = leaves * hosts_per_leaf
    workload = Workload(hosts, hosts + leaves + spines)
    for host in range(hosts):
        workload.add_cable(host, hosts + host // hosts_per_leaf)
    for leaf in range(leaves):
        for spine in range(spines):
            workload.add_cable(hosts + leaf, hosts + leaves + spine)
    return workload


def all_to_all(
    *,
    leaves: int = 8,
    hosts_per_leaf: int = 8,
    spines: int = 8,
    size_bytes: int = MEGABYTE,
    distinct_sizes: bool = False,
    seed: int | None = None,
) -> Workload:
    """W3: every pair of hosts of a leaf-spine network.

    The spine is the target modulo the spines (d-mod-k), or drawn for each flow with `seed` (hashed
    ECMP). With `distinct_sizes` no two flows have the same size: 0.5 to 1.5 times `size_bytes`.
    """
    workload = leaf_spine(leaves, hosts_per_leaf, spines)
    hosts = workload.hosts
    draw = random.Random(seed)
    pairs = [(s, t) for s in range(hosts) for t in range(hosts) if s != t]
    for i, (source, target) in enumerate(pairs):
        spine = hosts + leaves + (target if seed is None else draw.randrange(spines)) % spines
        up, down = hosts + source // hosts_per_leaf, hosts + target // hosts_per_leaf
        nodes = [source, up, target] if up == down else [source, up, spine, down, target]
        size = size_bytes
        if distinct_sizes:
            size = size_bytes // 2 + size_bytes * (i * 2654435761 % len(pairs)) // len(pairs)
            size += i % 7919
        workload.add_flow(nodes, size)
    return workload


def fat_tree(k: int) -> Workload:
    """The k-ary fat-tree: k^3 / 4 hosts, 5 k^2 / 4 switches; see `fat_tree_path`."""
    half = k // 2
    hosts, edges = k * half * half, k * half
    workload = Workload(hosts, hosts + 2 * edges + half * half)
    for host in range(hosts):
        workload.add_cable(host, hosts + host // half)
    for pod in range(k):
        for a in range(half):
            aggregation = hosts + edges + pod * half + a
            for e in range(half):
                workload.add_cable(hosts + pod * half + e, aggregation)
            for c in range(half):
                workload.add_cable(aggregation, hosts + 2 * edges + a * half + c)
    return workload


def fat_tree_path(k: int, source: int, target: int, draw: random.Random) -> list[int]:
    """Nodes from host to host of `fat_tree(k)`, over a random switch of the lowest level."""
    half = k // 2
    hosts, edges = k * half * half, k * half
    up, down = source // half, target // half
    if up == down:
        return [source, hosts + up, target]
    a = draw.randrange(half)
    first = hosts + edges + up // half * half + a
    if up // half == down // half:
        return [source, hosts + up, first, hosts + down, target]
    core = hosts + 2 * edges + a * half + draw.randrange(half)
    last = hosts + edges + down // half * half + a
    return [source, hosts + up, first, core, last, hosts + down, target]


def permutation(k: int = 8, size_bytes: int = 16 * MEGABYTE, seed: int = 1) -> Workload:
    """W4: every host of a k-ary fat-tree sends to one other, hashed ECMP."""
    workload = fat_tree(k)
    draw = random.Random(seed)
    targets = list(range(workload.hosts))
    while any(source == target for source, target in enumerate(targets)):
        draw.shuffle(targets)
    for source, target in enumerate(targets):
        workload.add_flow(fat_tree_path(k, source, target, draw), size_bytes)
    return workload


def fat_tree_all_to_all(k: int = 8, size_bytes: int = MEGABYTE, seed: int = 1) -> Workload:
    """Every pair of hosts of a k-ary fat-tree, hashed ECMP."""
    workload = fat_tree(k)
    draw = random.Random(seed)
    for source in range(workload.hosts):
        for target in range(workload.hosts):
            if source != target:
                workload.add_flow(fat_tree_path(k, source, target, draw), size_bytes)
    return workload


def incast(senders: int) -> Workload:
    """All send to host 0 through one switch."""
    workload = Workload(senders + 1, senders + 2)
    for host in range(senders + 1):
        workload.add_cable(host, senders + 1)
    for source in range(1, senders + 1):
        workload.add_flow((source, senders + 1, 0), MEGABYTE)
    return workload


# The DLRM of TopoOpt, section 5.4 and appendix: 128 tables with rows of 128 floats, 128 samples per
# accelerator, 4 accelerators per server; dense layers (inputs, outputs) as the paper's artifact has
# them, of which the first top layer reads one row per table.
DLRM_TABLES, DLRM_ROW_BYTES, DLRM_SAMPLES = 128, 128 * 4, 128 * 4
DLRM_LAYERS = (
    *[(2048, 2048)] * 7,
    (2048 + DLRM_TABLES * 128, 4096),
    *[(4096, 4096)] * 15,
    (4096, 1),
)


def dlrm_iteration(
    hosts: int = 128,
    strides: Sequence[int] = (1, 13),
    *,
    tables: int = DLRM_TABLES,
    samples: int = DLRM_SAMPLES,
    layers: Sequence[tuple[int, int]] = DLRM_LAYERS,
) -> Workload:
    """The traffic of one training iteration of DLRM on direct links, without its computation.

    The network has a cable per host and stride: degree 4 for two strides. Table i is on host
    i * hosts // tables. Forward, every host gets from each table a row per sample (the sum over the
    bag); backward it sends as many bytes of gradients back; both over shortest paths. The dense
    layers are replicated: one AllReduce sums their gradients (weights and biases, in floats) over
    the directed rings of all strides, both ways round. It and the backward transfers of a host
    start when the host has all its rows.
    """
    workload = Workload(hosts, hosts)
    for host in range(hosts):
        for stride in strides:
            workload.add_cable(host, (host + stride) % hosts)
    steps = shortest_steps(hosts, strides)
    pairs = [
        (holder, host)
        for holder in (table * hosts // tables for table in range(tables))
        for host in range(hosts)
        if host != holder
    ]
    received: list[tuple[int, ...]] = [()] * hosts
    for holder, host in pairs:
        nodes = [(holder + step) % hosts for step in steps[(host - holder) % hosts]]
        received[host] += (workload.add_flow(nodes, samples * DLRM_ROW_BYTES),)
    for holder, host in pairs:
        nodes = [(host + step) % hosts for step in steps[(holder - host) % hosts]]
        workload.add_flow(nodes, samples * DLRM_ROW_BYTES, received[host])
    gradient_bytes = 4 * sum((inputs + 1) * outputs for inputs, outputs in layers)
    rings = [sign * stride for stride in strides for sign in (1, -1)]
    for stride in rings:
        ring = [i * stride % hosts for i in range(hosts)]
        add_ring_all_reduce(workload, ring, gradient_bytes // len(rings), received)
    return workload


def shortest_steps(hosts: int, strides: Sequence[int]) -> list[list[int]]:
    """For every distance, the nodes of a shortest path from node 0 in a duplex circulant graph.

    Of several, the one that breadth-first search finds first; the path of -distance is its mirror
    image, so both directions of a stride are loaded alike (but for the distance hosts / 2)."""
    steps: dict[int, list[int]] = {0: [0]}
    reached = [0]
    for node in reached:  # grows
        for stride in strides:
            for next_node in ((node + stride) % hosts, (node - stride) % hosts):
                if next_node not in steps:
                    steps[next_node] = [*steps[node], next_node]
                    reached.append(next_node)
    for distance in range(1, (hosts + 1) // 2):
        steps[hosts - distance] = [-node % hosts for node in steps[distance]]
    return [steps[distance] for distance in range(hosts)]
