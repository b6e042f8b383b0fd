"""Files for other launchers: NCCL's variables and order of ranks, and MLX's ring hostfile.

Both connect neighbours of one order of the hosts: that of the plan's first fully cabled ring over
all servers. Sources: NCCL's user guide (environment variables), and mlx.launch's hostfile
(docs/src/usage/distributed.rst of github.com/ml-explore/mlx).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.static_plan import place
from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.plan import Plan, Ring


def rank_order(plan: Plan) -> tuple[int, ...]:
    """Servers in the order of a ring whose neighbours all have a cable; raises ExportError if the
    plan has none."""
    return _cabled_ring(plan).servers


def _cabled_ring(plan: Plan) -> Ring:
    adjacent = {(link.source, link.target) for link in plan.network.links}
    for ring in _rings(plan):
        if adjacent.issuperset(ring.hops):
            return ring
    raise ExportError("network.groups: no ring over all servers has a cable for every neighbour")


def _rings(plan: Plan) -> tuple[Ring, ...]:
    everyone = set(range(plan.cluster.servers))
    return next((g.rings for g in plan.network.groups if set(g.servers) == everyone), ())


def nccl_files(plan: Plan, file: ClusterFile | None) -> dict[str, str]:
    """nccl.env, the hosts in the order of their ranks, and NCCL's limitations for the plan."""
    order = rank_order(plan)
    names = [server.name for server in file.servers] if file is not None else None
    hosts = [names[s] if names else f"server{s}" for s in order]
    per_server = plan.cluster.accelerators_per_server
    lines = [
        "# NCCL joins rank i with rank i + 1: start the ranks in the order of hosts.txt.",
        "# Trees join hosts that have no cable.",
        "NCCL_ALGO=Ring",
        "# A ring arrives at one port of a host and leaves by another.",
        "NCCL_CROSS_NIC=1",
        *_interfaces(plan, file),
    ]
    return {
        "nccl.env": "\n".join(lines) + "\n",
        "hosts.txt": "".join(f"{host} slots={per_server}\n" for host in hosts),
        "limits.txt": "\n".join(_limits(plan)) + "\n",
    }


def _interfaces(plan: Plan, file: ClusterFile | None) -> list[str]:
    """The ports of the order's cables, where a cluster file names their interfaces."""
    if file is None:
        return ["# NCCL_SOCKET_IFNAME: name a --cluster file, whose ports have interfaces"]
    ports = place(plan, file)
    used = set(_cabled_ring(plan).hops)
    found: set[str] = set()
    for link in plan.network.links:
        if (link.source, link.target) in used:
            for end in ((link.source, link.source_port), (link.target, link.target_port)):
                interface = file.ports[ports[end]][1].interface
                if interface is None:
                    return [f"# NCCL_SOCKET_IFNAME: port {ports[end]} has no interface in the file"]
                found.add(interface)
    listed = ",".join(sorted(found))
    return [
        "# Data by TCP. NCCL's bootstrap takes the first of them, which must reach all hosts: put",
        "# such an interface in front.",
        f"NCCL_SOCKET_IFNAME=={listed}",
        "# RoCE, from NCCL 2.30.7 on: only the NIC of the peer's subnet, that of the cable.",
        "NCCL_IB_SUBNET_AWARE_ROUTING=1",
        "NCCL_IB_SUBNET_PREFIX_LEN=30",
    ]


def _limits(plan: Plan) -> list[str]:
    rings = _rings(plan)
    orders = {frozenset(frozenset(hop) for hop in ring.hops) for ring in rings}
    cables = {frozenset((k.source, k.target)) for k in plan.network.links}
    used = {frozenset(hop) for hop in _cabled_ring(plan).hops}
    count = plan.cluster.servers
    lines = ["What NCCL cannot do with this plan:", ""]
    if len(orders) > 1:
        lines.append(
            f"- {len(orders)} different rings: between hosts NCCL has one, in the order of the "
            f"ranks. {len(cables - used)} of {len(cables)} pairs of hosts with a cable carry no "
            "AllReduce."
        )
    relayed = count * (count - 1) // 2 - len(cables)
    if relayed:
        lines.append(
            f"- forwarding: {relayed} of {count * (count - 1) // 2} pairs of hosts have no cable. "
            "Sends, all-to-alls and trees between them fail. NCCL connects trees at the start even "
            "where NCCL_ALGO says Ring, so that stock NCCL does not start on these cables; its "
            "network plugin in this project forwards (docs/guides/nccl.md)."
        )
    lines.append("- NCCL_GRAPH_FILE is no way out: it orders the GPUs of one host, not hosts.")
    lines.append("- NCCL's bootstrap needs a network that joins all hosts; a slow one will do.")
    return lines


def mlx_hostfile(plan: Plan, file: ClusterFile | None) -> str:
    """The hostfile of `mlx.launch --backend ring`: hosts in the order of the ring, each with the
    addresses at which it listens for the host before it. Raises ExportError, and FabricError for a
    plan that is not for the cables of the file."""
    if file is None:
        raise ExportError("mlx: needs the hosts' names and addresses; name a --cluster file")
    order = rank_order(plan)
    ports = place(plan, file)
    entries = []
    for before, here in zip((order[-1], *order[:-1]), order, strict=True):
        ips = [
            file.ports[ports[link.target, link.target_port]][1].ip
            for link in plan.network.links
            if (link.source, link.target) == (before, here)
        ]
        entries.append({"ssh": file.servers[here].management, "ips": ips})
    return json.dumps(entries, indent=1) + "\n"
