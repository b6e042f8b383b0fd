"""The state of exo (GET /state of its API) as a cluster file, and its lists of hosts.

Source: github.com/exo-explore/exo, src/exo/shared/topology.py and types/state.py. `topology` has
the connections from each node to each other one; those over RDMA name the devices at both ends.
`nodeNetwork` has the interfaces of a node, and `nodeIdentities` its name.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.cluster_file.rdma_cables import ListedHost, cluster_of_devices
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

_REMEDY = "find out how the hosts are connected with `topoopt discover --hostfile FILE`"
_MANAGEMENT_TYPES = ("ethernet", "maybe_ethernet", "wifi", "unknown", "thunderbolt")


def is_exo(value: object) -> bool:
    """Whether a parsed file is a state of exo, or its older list of peers."""
    return isinstance(value, dict) and ("peers" in value or "nodeNetwork" in value)


def addresses_of_exo(value: dict[str, Any]) -> list[str]:
    """The addresses of the hosts; raises DocumentError."""
    try:
        if "peers" in value:
            return [str(peer["address"]) for peer in value["peers"].values()]
        return [_management(value, node) for node in value["topology"]["nodes"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(error) from None


def cluster_of_exo(value: dict[str, Any], name: str) -> ClusterFile:
    """The cluster of the RDMA connections; raises DocumentError."""
    if "peers" in value:
        raise DocumentError(f"peers: a list of exo has no cables; {_REMEDY}")
    try:
        nodes = list(value["topology"]["nodes"])
        connections = value["topology"]["connections"]
        names = _names(value, nodes)
        hosts = []
        for node, label in zip(nodes, names, strict=True):
            devices = tuple(_devices(connections.get(node, {}).get(o, ())) for o in nodes)
            hosts.append(ListedHost(label, _management(value, node), devices))
    except (KeyError, TypeError, AttributeError) as error:
        raise _malformed(error) from None
    if not any(any(host.devices) for host in hosts):
        raise DocumentError(f"topology.connections: none is over RDMA; {_REMEDY}")
    return cluster_of_devices(name, hosts)


def _devices(connections: Any) -> tuple[str, ...]:
    return tuple(sorted(str(c["sourceRdmaIface"]) for c in connections if "sourceRdmaIface" in c))


def _names(value: dict[str, Any], nodes: list[str]) -> list[str]:
    """Names of servers: friendly ones, where they are unique."""
    known = value.get("nodeIdentities", {})
    friendly = [str(known.get(node, {}).get("friendlyName", node)) for node in nodes]
    labels = [re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:63] for text in friendly]
    counts = Counter(labels)
    return [
        label if label and counts[label] == 1 else node
        for label, node in zip(labels, nodes, strict=True)
    ]


def _management(value: dict[str, Any], node: str) -> str:
    """An IPv4 address of the node, on Ethernet if it has one."""
    own = [i for i in value["nodeNetwork"][node]["interfaces"] if "." in i["ipAddress"]]
    own = [i for i in own if not i["ipAddress"].startswith(("127.", "169.254."))]
    if not own:
        raise DocumentError(f"nodeNetwork.{node}: no IPv4 address")
    order = {kind: place for place, kind in enumerate(_MANAGEMENT_TYPES)}
    best = min(own, key=lambda i: order.get(i.get("interfaceType", ""), len(order)))
    return str(best["ipAddress"])


def _malformed(error: Exception) -> DocumentError:
    return DocumentError(f"a state of exo without {error}")
