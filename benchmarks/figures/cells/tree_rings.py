"""AllReduce on a fat-tree under ECMP, over one ring or several permutations (section 7)."""

from __future__ import annotations

import random
from typing import Any

from torch_topoopt.architectures import fat_tree
from torch_topoopt.architectures.path_picker import PathPicker
from torch_topoopt.architectures.routing import Routes
from torch_topoopt.plan import Cluster
from torch_topoopt.sim import Flow, FlowLink, run_flows
from torch_topoopt.topology.finder.select_permutations import select_permutations
from torch_topoopt.topology.finder.totient_perms import totient_perms

_SIZE_BYTES = 1e9
_GBPS = 100.0


# parameters: the tree, the rings on it, and the number of draws
def all_reduce(
    *, servers: int, rings: int, permuted: bool, placed: str, draws: int, seed: int
) -> Any:
    """Times of an AllReduce over the least that the servers' links allow, one for each draw.

    `rings` rings share the bytes: with `permuted` of as many strides, chosen by Algorithm 3, else
    all of stride 1 (one ring whose hops are as many connections). ECMP gives every connection one
    shortest path by lot. Ranks are `placed` "in order" of the servers, or "at random".
    """
    topology = fat_tree.build(Cluster(servers, 1, _GBPS))
    strides = select_permutations(servers, rings, totient_perms(servers, duplex=False))
    routes = Routes(topology)
    links = [
        FlowLink(link.source, link.target, link.gbps * 1e9, link.latency_s * 1e9)
        for link in topology.links
    ]
    each = 2 * (servers - 1) / servers * _SIZE_BYTES / rings
    times = []
    for draw in range(draws):
        rng = random.Random(f"{seed} {draw}")
        places = list(range(servers))
        if placed == "at random":
            rng.shuffle(places)
        picker = PathPicker(routes, rng)
        flows = []
        for stride in strides:
            for rank in range(servers):
                source = places[rank]
                target = places[(rank + (stride if permuted else 1)) % servers]
                flows.append(Flow(source, target, each, tuple(picker.links(source, target))))
        took_s = run_flows(links, flows, nodes=topology.nodes, hosts=servers).completion_s
        times.append(took_s / (each * rings / (_GBPS * 1e9 / 8)))
    return {"times_over_bound": times, "strides": list(strides)}
