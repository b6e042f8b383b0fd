"""Network files of regular Clos networks: leaf-spine, and the fat-tree of three tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.route_control.clos_network import fat_tree, leaf_spine
from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)

if TYPE_CHECKING:
    from torch_topoopt.route_control.clos_network import ClosNetwork


def leaf_spine_file(
    leaves: int, spines: int, hosts_per_leaf: int, bits_per_s: float
) -> NetworkFile:
    """Every leaf (leaf0, ...) is joined to every spine (spine0, ...); hosts are h0, h1, ..., leaf
    by leaf. Raises ValueError for a number below 1."""
    if hosts_per_leaf < 1:
        raise ValueError(f"hosts: {hosts_per_leaf} is not at least 1")
    network = leaf_spine(leaves, spines, capacity=bits_per_s)
    return _file(network, _names(leaf=leaves, spine=spines), hosts_per_leaf)


def fat_tree_file(radix: int, bits_per_s: float, hosts_per_tor: int | None = None) -> NetworkFile:
    """Three tiers of switches with `radix` ports (Al-Fares et al., 2008), in the order of
    `clos_network.fat_tree`: tor0, ..., aggregation0, ..., core0, ...

    `hosts_per_tor` is radix / 2 if it is not given. Raises ValueError for a radix that is odd or
    below 2, or for more hosts than a ToR has ports for.
    """
    network = fat_tree(radix, capacity=bits_per_s)
    half = radix // 2
    hosts = half if hosts_per_tor is None else hosts_per_tor
    if not 1 <= hosts <= half:
        raise ValueError(f"hosts_per_tor: {hosts} is not in 1..{half}, the ports of a ToR for them")
    tiers = _names(tor=network.tors, aggregation=network.tors, core=half * half)
    return _file(network, tiers, hosts)


def _names(**tiers: int) -> list[str]:
    """Of the switches by their numbers, the lowest tier first."""
    return [f"{tier}{i}" for tier, count in tiers.items() for i in range(count)]


def _file(network: ClosNetwork, switches: list[str], hosts_per_tor: int) -> NetworkFile:
    tors = [tor for tor in switches[: network.tors] for _ in range(hosts_per_tor)]
    return NetworkFile(
        NetworkFile.VERSION,
        tuple(map(NamedSwitch, switches)),
        tuple(NamedHost(f"h{i}", tor) for i, tor in enumerate(tors)),
        tuple(
            SwitchCable((switches[a], switches[b]), network.capacity[a, b])
            for a, b in network.links
            if a < b
        ),
    ).validate()
