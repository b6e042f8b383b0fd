"""A plan's network as DOT and GraphML: an edge for each cable (simplex: for each link)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import networkx as nx

from torch_topoopt.plan import cables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Plan


def graph_of(plan: Plan, names: Sequence[str] = ()) -> nx.MultiGraph[int] | nx.MultiDiGraph[int]:
    """Servers with their names, and an edge for each cable with its two ports, rate and the number
    of rings that use it."""
    cluster, network = plan.cluster, plan.network
    graph: nx.MultiGraph[int] | nx.MultiDiGraph[int]
    graph = nx.MultiGraph() if cluster.ports == "duplex" else nx.MultiDiGraph()
    for server in range(cluster.servers):
        graph.add_node(server, label=names[server] if names else f"server {server}")
    hops = [
        {hop, hop[::-1]} for group in network.groups for ring in group.rings for hop in ring.hops
    ]
    for indices in cables(cluster, network):
        link = network.links[indices[0]]
        graph.add_edge(
            link.source,
            link.target,
            source_port=link.source_port,
            target_port=link.target_port,
            gbps=cluster.gbps_of(link),
            rings=sum((link.source, link.target) in hop for hop in hops),
        )
    return graph


def graphml(plan: Plan, names: Sequence[str] = ()) -> str:
    """The text of a GraphML file."""
    text = io.BytesIO()
    nx.write_graphml(graph_of(plan, names), text)
    return text.getvalue().decode() + "\n"


def dot(plan: Plan, names: Sequence[str] = ()) -> str:
    """The text of a DOT file, for neato or circo."""
    graph = graph_of(plan, names)
    directed = graph.is_directed()
    lines = [f"{'digraph' if directed else 'graph'} topoopt {{", "  layout=circo;"]
    for server, data in graph.nodes(data=True):
        lines.append(f"  {server} [label={_quoted(data['label'])}, shape=box];")
    for a, b, data in graph.edges(data=True):
        joint = "->" if directed else "--"
        lines.append(
            f"  {a} {joint} {b} [taillabel={_quoted('p' + str(data['source_port']))}, "
            f"headlabel={_quoted('p' + str(data['target_port']))}, "
            f"label={_quoted(format(data['gbps'], 'g') + ' Gb/s')}];"
        )
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
