"""The configuration of ASTRA-sim 2 for Chakra traces: system, network, memory and groups.

Source: github.com/astra-sim/astra-sim, examples/system, examples/network and examples/run_scripts.
Its analytical network knows rings, full meshes and switches; a plan's network as it is goes to
ns-3, whose topology file is a line "nodes switches cables" and one "a b rate delay error" per
cable. Numbers of cables between the same two servers are one cable of their rates' sum. ns-3
aborts on a file without switches (github.com/astra-sim/astra-sim/issues/299), as ours are.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import rate_text
from torch_topoopt.tools.export.chakra import DEFAULT_GROUP, group_names

if TYPE_CHECKING:
    from torch_topoopt.plan import Plan
    from torch_topoopt.profile.chakra_format import ChakraTrace

_GBYTE = 8  # Gb/s of a GB/s
_RUN = """\
# ns-3 (its own config.json names topology.txt):
#   --workload-configuration=workload --system-configuration=system.json
#   --remote-memory-configuration=memory.json --logical-topology-configuration=logical.json
#   --comm-group-configuration=groups.json
"""
_NO_SWITCHES = """\
topology.txt has no switches: ASTRA-sim's ns-3 backend aborts on it ("We assume at least one NIC is
alive"), because its hosts do not forward.
"""
_ANALYTICAL = "network.yml is for ASTRA-sim's analytical backend, which runs it.\n"
_NEITHER = "Its analytical backend does not have this network either: there is no network.yml.\n"


def configuration(plan: Plan) -> dict[str, str]:
    """Name of a file -> its text; `network.yml` only where the analytical network has the plan's.

    Traces are to lie beside them as workload.0.et, workload.1.et, ...
    """
    cluster = plan.cluster
    rates = {
        (a, b): gbps for (a, b), gbps in cluster.pair_gbps(plan.network.links).items() if a < b
    }
    delay = f"{cluster.link_latency_s * 1e3:.9g}ms"
    cables = [f"{a} {b} {rate_text(gbps)} {delay} 0" for (a, b), gbps in sorted(rates.items())]
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "all-reduce-implementation": ["ring"],
        "all-gather-implementation": ["ring"],
        "reduce-scatter-implementation": ["ring"],
        "all-to-all-implementation": ["direct"],
        "collective-optimization": "localBWAware",
        "local-mem-bw": 1600,
        "boost-mode": 0,
        "roofline-enabled": 0,
    }
    groups = {
        name: list(servers)
        for servers, name in group_names(plan).items()
        if len(servers) < cluster.servers
    }
    files = {
        "topology.txt": f"{cluster.servers} 0 {len(cables)}\n\n" + "\n".join(cables) + "\n",
        "logical.json": json.dumps({"logical-dims": [str(cluster.servers)]}, indent=1) + "\n",
        "system.json": json.dumps(system, indent=1) + "\n",
        "memory.json": json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}, indent=1) + "\n",
        "groups.json": json.dumps(groups, indent=1) + "\n",
        "run.txt": _RUN,
    }
    shape = analytical_shape(plan)
    if shape is not None:
        gbps = min(rates.values())
        files["network.yml"] = (
            f"topology: [ {shape} ]\n"
            f"npus_count: [ {cluster.servers} ]\n"
            f"bandwidth: [ {gbps / _GBYTE:.9g} ]  # GB/s\n"
            f"latency: [ {cluster.link_latency_s * 1e9:.9g} ]  # ns\n"
        )
    files["limits.txt"] = _NO_SWITCHES + (_NEITHER if shape is None else _ANALYTICAL)
    return files


def without_default_group(trace: ChakraTrace) -> ChakraTrace:
    """Removes the group of all ranks: newer versions of ASTRA-sim take a group 0 for all ranks
    (Workload.cc, extract_comm_group), and others reject it."""
    nodes = [
        replace(node, attributes={k: v for k, v in node.attributes.items() if k != "pg_name"})
        if node.attributes.get("pg_name") == DEFAULT_GROUP
        else node
        for node in trace.nodes
    ]
    return replace(trace, nodes=tuple(nodes))


def analytical_shape(plan: Plan) -> str | None:
    """ASTRA-sim's analytical name of the plan's topology; None if there is none."""
    count = plan.cluster.servers
    pairs = {tuple(sorted((k.source, k.target))) for k in plan.network.links}
    if len(pairs) == count * (count - 1) // 2:
        return "FullyConnected"
    ring = {tuple(sorted((i, (i + 1) % count))) for i in range(count)}
    return "Ring" if pairs == ring else None
