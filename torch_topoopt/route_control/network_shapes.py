"""Network files of regular Clos networks: leaf-spine, and the fat-tree of three tiers."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from torch_topoopt.architectures import fat_tree
from torch_topoopt.plan import Cluster
from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


def leaf_spine_file(
    leaves: int, spines: int, hosts_per_leaf: int, bits_per_s: float
) -> NetworkFile:
    """Every leaf (leaf0, ...) is joined to every spine (spine0, ...); hosts are h0, h1, ..., leaf
    by leaf. Raises ValueError for a number below 1."""
    for name, count in (("leaves", leaves), ("spines", spines), ("hosts", hosts_per_leaf)):
        if count < 1:
            raise ValueError(f"{name}: {count} is not at least 1")
    switches = _names(leaf=leaves, spine=spines)
    cables = product(range(leaves), range(leaves, leaves + spines))
    return _file(switches, cables, switches[:leaves], hosts_per_leaf, bits_per_s)


def fat_tree_file(radix: int, bits_per_s: float, hosts_per_tor: int | None = None) -> NetworkFile:
    """Three tiers of switches with `radix` ports (`architectures.fat_tree`): tor0, ...,
    aggregation0, ..., core0, ...

    `hosts_per_tor` defaults to radix / 2. Raises ValueError for a radix that is odd or
    below 2, or for more hosts than a ToR has ports for.
    """
    servers, half = max(1, radix**3 // 4), radix // 2
    tree = fat_tree.build(Cluster(servers, 1, 1.0), radix=radix)
    hosts = half if hosts_per_tor is None else hosts_per_tor
    if not 1 <= hosts <= half:
        raise ValueError(f"hosts_per_tor: {hosts} is not in 1..{half}, the ports of a ToR for them")
    tors = radix * half
    cables = sorted(
        (link.source - servers, link.target - servers)
        for link in tree.links
        if servers <= link.source < link.target
    )
    switches = _names(tor=tors, aggregation=tors, core=half * half)
    return _file(switches, cables, switches[:tors], hosts, bits_per_s)


def _names(**tiers: int) -> list[str]:
    """The names of switches by number, the lowest tier first."""
    return [f"{tier}{i}" for tier, count in tiers.items() for i in range(count)]


def _file(
    switches: list[str],
    cables: Iterable[tuple[int, int]],
    tors: list[str],
    hosts_per_tor: int,
    bits_per_s: float,
) -> NetworkFile:
    under = [tor for tor in tors for _ in range(hosts_per_tor)]
    return NetworkFile(
        NetworkFile.VERSION,
        tuple(map(NamedSwitch, switches)),
        tuple(NamedHost(f"h{i}", tor) for i, tor in enumerate(under)),
        tuple(SwitchCable((switches[a], switches[b]), bits_per_s) for a, b in cables),
    ).validate()
