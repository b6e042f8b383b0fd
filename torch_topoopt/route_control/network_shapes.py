"""Network files of regular Clos networks: leaf-spine, and the fat-tree of three tiers."""

from __future__ import annotations

import itertools

from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)


def leaf_spine_file(
    leaves: int, spines: int, hosts_per_leaf: int, bits_per_s: float
) -> NetworkFile:
    """Every leaf (leaf0, ...) is joined to every spine (spine0, ...); hosts are h0, h1, ..., leaf
    by leaf. Raises ValueError for a number below 1."""
    for name, count in (("leaves", leaves), ("spines", spines), ("hosts", hosts_per_leaf)):
        if count < 1:
            raise ValueError(f"{name}: {count} is not at least 1")
    lower = [f"leaf{i}" for i in range(leaves)]
    upper = [f"spine{i}" for i in range(spines)]
    return _file(
        [*lower, *upper], lower, hosts_per_leaf, itertools.product(lower, upper), bits_per_s
    )


def fat_tree_file(radix: int, bits_per_s: float, hosts_per_tor: int | None = None) -> NetworkFile:
    """Three tiers of switches with `radix` ports (Al-Fares et al., 2008), in the order of
    `clos_network.fat_tree`: tor0, ..., aggregation0, ..., core0, ...

    `hosts_per_tor` is radix / 2 if it is not given. Raises ValueError for a radix that is odd or
    below 2, or for more hosts than a ToR has ports for.
    """
    if radix < 2 or radix % 2:
        raise ValueError(f"radix: {radix} is not an even number from 2 on")
    half = radix // 2
    hosts = half if hosts_per_tor is None else hosts_per_tor
    if not 1 <= hosts <= half:
        raise ValueError(f"hosts_per_tor: {hosts} is not in 1..{half}, the ports of a ToR for them")
    tors = [f"tor{i}" for i in range(radix * half)]
    middle = [f"aggregation{i}" for i in range(radix * half)]
    cores = [f"core{i}" for i in range(half * half)]
    cables = []
    for pod, i, j in itertools.product(range(radix), range(half), range(half)):
        aggregation = middle[pod * half + i]
        cables += [(tors[pod * half + j], aggregation), (aggregation, cores[i * half + j])]
    return _file([*tors, *middle, *cores], tors, hosts, cables, bits_per_s)


def _file(
    switches: list[str],
    tors: list[str],
    hosts_per_tor: int,
    cables: itertools.product[tuple[str, str]] | list[tuple[str, str]],
    bits_per_s: float,
) -> NetworkFile:
    hosts = [tor for tor in tors for _ in range(hosts_per_tor)]
    return NetworkFile(
        NetworkFile.VERSION,
        tuple(map(NamedSwitch, switches)),
        tuple(NamedHost(f"h{i}", tor) for i, tor in enumerate(hosts)),
        tuple(SwitchCable(ends, bits_per_s) for ends in cables),
    ).validate()
