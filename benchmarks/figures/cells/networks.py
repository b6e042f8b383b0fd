"""Networks of TopologyFinder for DLRM with a table on every server: paths, loads, tax and time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from figures.cells.workloads import cluster_of, graph_of, network_of, tables_on_servers
from figures.load_balance import load_balance
from torch_topoopt.architectures import fat_tree, ideal_switch, topoopt
from torch_topoopt.comparison.cost import capital_cost, equal_cost_gbps
from torch_topoopt.comparison.estimate import predict_architecture, predict_on
from torch_topoopt.plan import AllToAll, Demand, PairTable
from torch_topoopt.search.traffic import demand
from torch_topoopt.topology.routing.hop_counts import hop_matrix
from torch_topoopt.topology.routing.loads import bandwidth_tax

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph

DLRM = "dlrm:paper-5.4"  # one table for each of 128 servers
FP32_BYTES = 4
PAPER_BYTES = 8  # of an activation, Appendix D


def with_lookups_of(graph: OpGraph, activation_bytes: int) -> OpGraph:
    """`graph`, of FP32, with so many bytes for each activation that a table gives."""
    times = activation_bytes // FP32_BYTES
    tables = {i for i, o in enumerate(graph.operators) if o.name.startswith("tables.")}
    operators = []
    for i, operator in enumerate(graph.operators):
        operands = tuple(
            replace(o, size_bytes=times * o.size_bytes, gradient_bytes=times * o.gradient_bytes)
            if o.producer in tables
            else o
            for o in operator.operands
        )
        output = (times if i in tables else 1) * operator.output_bytes
        operators.append(replace(operator, operands=operands, output_bytes=output))
    return replace(graph, operators=tuple(operators))


# parameters: the cluster and the job
def section_5_4(
    servers: int,
    degree: int,
    batch: int,
    gbps: float = 100.0,
    activation_bytes: int = FP32_BYTES,
) -> tuple[Any, ...]:
    """Graph, cluster, strategy and demand of section 5.4."""
    graph = with_lookups_of(graph_of(DLRM, servers, batch), activation_bytes)
    cluster = cluster_of(servers, degree, gbps)
    strategy = tables_on_servers(graph, cluster)
    return graph, cluster, strategy, demand(graph, strategy, servers)


def all_to_all_over_all_reduce(asked: Demand) -> float:
    """Bytes that servers send in all: of the pairs, over those of rings."""
    reduced = sum(2 * (len(g.servers) - 1) * g.size_bytes for g in asked.groups)
    return sum(pair.size_bytes for pair in asked.pairs) / reduced


def paths_and_loads(*, mode: str, servers: int, degree: int, batch: int, seed: int) -> Any:
    """Pairs by their least hops, and the bytes of an all-to-all on every link."""
    _, cluster, _, asked = section_5_4(servers, degree, batch)
    network = network_of(cluster, asked, mode, seed)
    hops = np.asarray(hop_matrix(servers, network.links))
    counts = np.bincount(hops[~np.eye(servers, dtype=bool)])
    # What each server sends to all others, evenly: the all-to-all alone, without AllReduce.
    sent = sum(pair.size_bytes for pair in asked.pairs)
    each = round(sent / (servers * (servers - 1)))
    every = Demand((), PairTable((AllToAll(tuple(range(servers)), each),)))
    balance = load_balance(network, every, servers)
    return {
        "hops": {str(h): int(n) for h, n in enumerate(counts) if n},
        "mean_hops": float(hops.sum() / (servers * (servers - 1))),
        "load_cdf": [[size, part] for size, part in balance.cdf],
        "least_below_most": balance.least_below_most,
        "max_over_mean": balance.max_over_mean,
    }


def tax(*, mode: str, servers: int, degree: int, batch: int, seed: int) -> Any:
    """The bandwidth tax of the job, and that at the paper's ratio of all-to-all to AllReduce."""
    _, cluster, _, asked = section_5_4(servers, degree, batch)
    network = network_of(cluster, asked, mode, seed)
    own = all_to_all_over_all_reduce(asked)
    only_pairs = bandwidth_tax(Demand((), asked.pairs), network)
    only_groups = bandwidth_tax(Demand(asked.groups, ()), network)
    ratio = 0.8 * batch / 2048  # 80 % at a batch of 2048, section 5.4
    wide = PAPER_BYTES / FP32_BYTES * own
    return {
        "tax": bandwidth_tax(asked, network),
        "all_to_all_over_all_reduce": own,
        "tax_at_8_bytes": (only_groups + wide * only_pairs) / (1 + wide),
        "ratio_at_8_bytes": wide,
        "tax_at_the_papers_ratio": (only_groups + ratio * only_pairs) / (1 + ratio),
        "papers_ratio": ratio,
    }


def tax_in_packets(*, mode: str, servers: int, degree: int, batch: int, seed: int) -> Any:
    """The bandwidth tax of an iteration at both levels; a flow of packets has one path (DCTCP)."""
    graph, cluster, strategy, asked = section_5_4(servers, degree, batch)
    topology = topoopt.build(cluster, network=network_of(cluster, asked, mode, seed))
    levels: dict[str, dict[str, Any]] = {"flow": {}, "packet": {"transport": "dctcp"}}
    found = {
        level: predict_architecture(
            topology, graph, cluster, strategy, level=level, seed=seed, **options
        )
        for level, options in levels.items()
    }
    return {
        "tax": {level: estimate.bandwidth_tax for level, estimate in found.items()},
        "iteration_s": {level: estimate.iteration_s for level, estimate in found.items()},
    }


# parameters: the cluster and the job
def batch_sweep(
    *, servers: int, degree: int, gbps: float, batch: int, activation_bytes: int, seed: int
) -> Any:
    """Seconds of an iteration on TopoOpt in every mode, the ideal switch and fat-trees."""
    graph, cluster, strategy, asked = section_5_4(servers, degree, batch, gbps, activation_bytes)
    times, compute_s = {}, 0.0
    built = {
        mode: topoopt.build(cluster, network=network_of(cluster, asked, mode, seed))
        for mode in ("released", "paper", "best")
    }
    cost = capital_cost(built["paper"], cluster)
    assert cost is not None
    rate = min(equal_cost_gbps(cluster, cost.total), degree * gbps)
    built["ideal-switch"] = ideal_switch.build(cluster)
    built["fat-tree, Table 2"] = fat_tree.build(cluster, server_gbps=rate)
    built["fat-tree, d B' = B"] = fat_tree.build(cluster, server_gbps=gbps)
    for name, topology in built.items():
        estimate = predict_on(topology, graph, cluster, strategy)
        times[name] = estimate.iteration_s
        compute_s = estimate.compute_s
    return {
        "iteration_s": times,
        "compute_s": compute_s,
        "table_2_gbps": rate,
        "all_to_all_over_all_reduce": all_to_all_over_all_reduce(asked),
    }
