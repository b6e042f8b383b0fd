"""The configuration of ASTRA-sim 2 for Chakra traces: system, network, memory and groups.

Source: github.com/astra-sim/astra-sim, examples/system, examples/network and examples/run_scripts.
Its analytical network knows rings, full meshes and switches; a plan's network as it is goes to
ns-3 (github.com/astra-sim/astra-network-ns3, scratch/common.h). Hosts do not forward there, so
every server is a host (0, 1, ...) at a switch of its own, and the cables join the switches. The
topology is a line "nodes switches links", one with the numbers of the switches, and "a b rate delay
error" for each link. Several cables between the same two servers are one of their rates' sum.
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
    from torch_topoopt.tools.export.custom_collectives import CustomCollectives

_GBYTE = 8  # Gb/s of a GB/s
_OWN_DELAY = "0.000001ms"  # of the link between a server and its switch: a nanosecond
# ECN thresholds for each Gb/s of a link, in kilobytes, as in ASTRA-sim's examples
_ECN_LEAST, _ECN_MOST, _ECN_PART = 4, 16, 0.2
_RUN = """\
# In this folder, ASTRA-sim's ns-3 program:
#   --workload-configuration=workload --system-configuration=system.json
#   --network-configuration=config.txt --remote-memory-configuration=memory.json
#   --logical-topology-configuration=logical.json --comm-group-configuration=groups.json
"""
_RUN_RINGS = """\
# AllReduces on the rings of the plan instead of ASTRA-sim's own:
#   --system-configuration=system-rings.json
"""
_ROUTES = """\
ns-3 sends on shortest paths, not on the plan's routes. Servers forward as switches do, without the
time of a relay.
"""
_ANALYTICAL = "network.yml is for ASTRA-sim's analytical backend, which runs it.\n"
_NEITHER = "Its analytical backend does not have this network: there is no network.yml.\n"
_NO_RINGS = "AllReduce is ASTRA-sim's own ring in the order of ranks: {}.\n"


def configuration(plan: Plan, rings: CustomCollectives) -> dict[str, str]:
    """Name of a file -> its text; `network.yml` only where the analytical network has the plan's,
    `system-rings.json` only with custom collectives.

    Traces are to lie beside them as workload.0.et, workload.1.et, ...
    """
    cluster = plan.cluster
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
    shape = analytical_shape(plan)
    limits = _ROUTES + (_NEITHER if shape is None else _ANALYTICAL)
    files = {
        **_ns3_files(plan),
        "logical.json": _json({"logical-dims": [str(cluster.servers)]}),
        "system.json": _json(system),
        "memory.json": _json({"memory-type": "NO_MEMORY_EXPANSION"}),
        "groups.json": _json(groups),
        "run.txt": _RUN + (_RUN_RINGS if rings.nodes else ""),
        "limits.txt": limits + (_NO_RINGS.format(rings.missing) if rings.missing else ""),
    }
    if rings.nodes:
        files["rings.yml"] = "".join(f"{node}: {name}\n" for node, name in rings.nodes.items())
        files["system-rings.json"] = _json(
            {**system, "per-node-custom-implementation": "rings.yml"}
        )
    if shape is not None:
        gbps = min(cluster.pair_gbps(plan.network.links).values())
        files["network.yml"] = (
            f"topology: [ {shape} ]\n"
            f"npus_count: [ {cluster.servers} ]\n"
            f"bandwidth: [ {gbps / _GBYTE:.9g} ]  # GB/s\n"
            f"latency: [ {cluster.link_latency_s * 1e9:.9g} ]  # ns\n"
        )
    return files


def _ns3_files(plan: Plan) -> dict[str, str]:
    """The topology, and the configuration of ns-3, which needs thresholds for each rate."""
    cluster = plan.cluster
    count = cluster.servers
    cables = {
        (a, b): gbps for (a, b), gbps in cluster.pair_gbps(plan.network.links).items() if a < b
    }
    own = [sum(gbps for pair, gbps in cables.items() if i in pair) for i in range(count)]
    delay = f"{cluster.link_latency_s * 1e3:.9g}ms"
    links = [f"{i} {count + i} {rate_text(own[i])} {_OWN_DELAY} 0" for i in range(count) if own[i]]
    links += [
        f"{count + a} {count + b} {rate_text(gbps)} {delay} 0"
        for (a, b), gbps in sorted(cables.items())
    ]
    switches = " ".join(map(str, range(count, 2 * count)))
    rates = sorted({*cables.values(), *(rate for rate in own if rate)})
    config = (
        "TOPOLOGY_FILE topology.txt\nFLOW_FILE flow.txt\nTRACE_FILE trace.txt\n"
        "TRACE_OUTPUT_FILE trace.tr\nFCT_OUTPUT_FILE fct.txt\nPFC_OUTPUT_FILE pfc.txt\n"
        "QLEN_MON_FILE qlen.txt\nSIMULATOR_STOP_TIME 40000000000000\nPACKET_PAYLOAD_SIZE 1000\n"
        "L2_CHUNK_SIZE 4000\nL2_ACK_INTERVAL 1\nCC_MODE 12\nRATE_AI 50Mb/s\nRATE_HAI 100Mb/s\n"
        "RP_TIMER 900\nEWMA_GAIN 0.00390625\nBUFFER_SIZE 32\n"
        f"KMIN_MAP {_thresholds(rates, _ECN_LEAST)}\nKMAX_MAP {_thresholds(rates, _ECN_MOST)}\n"
        f"PMAX_MAP {len(rates)} {' '.join(f'{round(r * 1e9)} {_ECN_PART}' for r in rates)}\n"
    )
    return {
        "topology.txt": f"{2 * count} {count} {len(links)}\n{switches}\n" + "\n".join(links) + "\n",
        "config.txt": config,
        "flow.txt": "0\n",
        "trace.txt": "0\n",
    }


def _thresholds(rates: list[float], of_each: int) -> str:
    """ns-3's map of rates in bit/s: how many, then each with its value."""
    values = (f"{round(rate * 1e9)} {max(1, round(of_each * rate))}" for rate in rates)
    return f"{len(rates)} {' '.join(values)}"


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


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
