"""What networks cost (section 5.2, Appendix G), and how the price table may be read."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

from torch_topoopt.architectures import (
    fat_tree,
    jellyfish,
    ocs_reconfig,
    topoopt,
)
from torch_topoopt.comparison.cost import (
    FIBRE_M,
    TABLE_2,
    capital_cost,
    parts_of,
    price_at,
)
from torch_topoopt.plan import Cluster
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

_MEASURED_AT = 16  # servers: networks of the servers' own ports cost the same for each of them
_FIBRE = TABLE_2.fibre_per_m * FIBRE_M
_PORTS_PER_NIC = (1, 2)
_SELECTORS = (0, 1, 2)  # 1x2 switches per port on a patch panel
_IDEAL_NICS = {
    "one of at most 200G": lambda d, b: price_at(TABLE_2.nic, min(d * b, 200)),
    "as many of 200G": lambda d, b: price_at(TABLE_2.nic, d * b),
    "d of B": lambda d, b: d * price_at(TABLE_2.nic, b),
    "d / 2 of B": lambda d, b: d / 2 * price_at(TABLE_2.nic, b),
}
# Ports, transceivers and fibres of a link of d x B: its lanes, and their rate.
_IDEAL_LANES = {
    "d lanes of B": lambda d, b: (d, b),
    "lanes of 100G": lambda d, b: (max(1.0, d * b / 100), min(d * b, 100)),
}


def of_networks(*, servers: int, degree: int, gbps: float) -> Any:
    """Dollars of every network of Figure 10 for so many servers, as `comparison.cost` prices."""
    cluster = Cluster(servers, degree, gbps)
    few = Cluster(_MEASURED_AT, degree, gbps)
    network = find_network(few, default_demand(_MEASURED_AT))
    times = servers / _MEASURED_AT
    panels = _dollars(topoopt.build(few, network=network), few) * times
    return {
        "TopoOpt, patch panels": panels,
        "TopoOpt, OCS": _dollars(topoopt.build(few, network=network, optics="ocs"), few) * times,
        "Expander": _dollars(jellyfish.build(few), few) * times,
        "Ideal Switch": _dollars(fat_tree.build(cluster), cluster),
        "Oversub. Fat-tree": _dollars(fat_tree.build_oversubscribed(cluster), cluster),
    }


def _dollars(topology: Any, cluster: Cluster) -> float:
    cost = capital_cost(topology, cluster)
    assert cost is not None
    return cost.total


def readings(*, points: list[list[float]]) -> Any:
    """Every reading of Table 2, with its two mean ratios over `points` of (degree, Gb/s).

    The table leaves open how many ports share a NIC, how many 1x2 switches a circuit needs, and of
    what a link of d x B to a server consists. Each is priced per server of a full-bisection
    fat-tree of three levels: 1 NIC, 6 transceivers, 5 switch ports and 3 fibres a server.
    """
    found = []
    for ports, selectors, nics, lanes in itertools.product(
        _PORTS_PER_NIC, _SELECTORS, _IDEAL_NICS, _IDEAL_LANES
    ):
        panels = [_topoopt(d, b, ports, selectors) for d, b in points]
        switches = [_topoopt(d, b, ports, None) for d, b in points]
        ideals = [_ideal(d, b, nics, lanes) for d, b in points]
        found.append(
            {
                "reading": f"{ports} ports a NIC, {selectors} 1x2; ideal: NICs {nics}, {lanes}",
                "ocs_over_panels": mean(s / p for s, p in zip(switches, panels, strict=True)),
                "ideal_over_topoopt": mean(i / p for i, p in zip(ideals, panels, strict=True)),
            }
        )
    return found


def _topoopt(d: float, b: float, ports_per_nic: int, selectors: int | None) -> float:
    """Dollars a server; `selectors` None: optical circuit switches."""
    optics = d * TABLE_2.ocs_port
    if selectors is not None:
        optics = d * (2 * TABLE_2.panel_port + selectors * TABLE_2.selector)
    ports = d * (price_at(TABLE_2.transceiver, b) + _FIBRE)
    return d / ports_per_nic * price_at(TABLE_2.nic, b) + ports + optics


def _ideal(d: float, b: float, nics: str, lanes: str) -> float:
    count, rate = _IDEAL_LANES[lanes](d, b)
    port, transceiver = price_at(TABLE_2.switch_port, rate), price_at(TABLE_2.transceiver, rate)
    return _IDEAL_NICS[nics](d, b) + count * (5 * port + 6 * transceiver + 3 * _FIBRE)


def at_4394(*, degree: int, gbps: float) -> Any:
    """Of 4394 servers (a fat-tree of k = 26): dollars with patch panels at full and half price, and
    the parts that take power."""
    servers = 4394
    half = replace(TABLE_2, panel_port=TABLE_2.panel_port / 2)
    cluster, few = Cluster(servers, degree, gbps), Cluster(_MEASURED_AT, degree, gbps)
    network = find_network(few, default_demand(_MEASURED_AT))
    own = topoopt.build(few, network=network)
    tree = fat_tree.build(cluster)
    times = servers / _MEASURED_AT
    found: dict[str, Any] = {}
    for name, topology, of, count in (
        ("TopoOpt", own, few, times),
        ("Ideal Switch", tree, cluster, 1.0),
    ):
        dollars = {
            label: capital_cost(topology, of, prices)
            for label, prices in (("full", TABLE_2), ("half", half))
        }
        parts = parts_of(topology)
        found[name] = {
            **{f"dollars_{label}": cost.total * count for label, cost in dollars.items() if cost},
            "switch_ports": sum(parts.switch_ports.values()) * count / servers,
            "transceivers": sum(parts.transceivers.values()) * count / servers,
        }
    return found


def of_parts(*, rates: list[float]) -> Any:
    """The prices that the product computes with, at every rate of Table 2."""
    prices = asdict(TABLE_2)
    by_rate = {
        part: [price_at(tuple(map(tuple, prices[part])), rate) for rate in rates]
        for part in ("transceiver", "nic", "switch_port")
    }
    fixed = {part: prices[part] for part in ("panel_port", "ocs_port", "selector")}
    policy = ocs_reconfig.build(Cluster(8, 2, 100.0)).reconfiguration
    assert policy is not None
    return {"by_rate": by_rate, "fixed": fixed, "ocs_delay_s": policy.delay_s}
