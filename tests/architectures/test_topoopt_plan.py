"""The network of a Plan as an architecture."""

from __future__ import annotations

import pytest
from support.small_op_graphs import one_all_reduce

from torch_topoopt.architectures.topoopt import topology_of
from torch_topoopt.comparison.estimate import predict_architecture
from torch_topoopt.plan import Cluster, Demand, GroupDemand
from torch_topoopt.search.strategies import data_parallel
from torch_topoopt.sim import predict
from torch_topoopt.topology.find_network import find_network


def test_links_have_the_rates_of_their_ports() -> None:
    rates = ((100.0, 100.0), (100.0, 25.0), (25.0, 100.0), (100.0, 100.0))
    cluster = Cluster(4, 2, 25.0, port_gbps=rates)
    network = find_network(cluster, Demand((GroupDemand((0, 1, 2, 3), 1),), ()))
    topology = topology_of(cluster, network)
    assert {link.gbps for link in topology.links} == {25.0, 100.0}
    for link, planned in zip(topology.links, network.links, strict=True):
        sending = rates[planned.source][planned.source_port]
        assert link.gbps == min(sending, rates[planned.target][planned.target_port])
    op_graph = one_all_reduce(10**9)
    strategy = data_parallel(op_graph, 4)
    planned_s = predict(op_graph, cluster, network, strategy).iteration_s
    as_built = predict_architecture(topology, op_graph, cluster, strategy)
    assert as_built.iteration_s == pytest.approx(planned_s)
