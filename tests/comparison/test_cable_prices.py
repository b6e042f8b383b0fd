"""Costs by HammingMesh's prices, and that boards cost nothing by TopoOpt's."""

from __future__ import annotations

import pytest

from torch_topoopt.architectures import ARCHITECTURES, hammingmesh, sip_ml, topoopt, torus
from torch_topoopt.comparison.cable_prices import cable_cost
from torch_topoopt.comparison.cost import TABLE_2, parts_of
from torch_topoopt.comparison.same_time import scaled
from torch_topoopt.plan import Cluster

PORT = 14280 / 64


def cluster_of(servers: int, degree: int = 4) -> Cluster:
    return Cluster(servers, degree, 100.0)


def test_a_hammingmesh_costs_its_cables_and_the_ports_of_its_switches() -> None:
    """Rows by copper, columns by optics; on an Hx2Mesh half of the ports are on a board."""
    servers = 64
    for build, edges in ((hammingmesh.build_hx1, 4), (hammingmesh.build_hx2, 2)):
        cables = servers * edges
        expected = cables / 2 * (272 + 603) + cables * PORT
        assert cable_cost(build(cluster_of(servers)), cluster_of(servers)) == pytest.approx(
            expected
        )


def test_a_small_cluster_costs_what_table_ii_says() -> None:
    """5.4 and 2.7 million dollars; switches are full, so ports are whole switches."""
    cluster = Cluster(1024, 16, 400.0)
    for build, mdollar in ((hammingmesh.build_hx2, 5.4), (hammingmesh.build_hx4, 2.7)):
        cost = cable_cost(build(cluster), cluster)
        assert cost is not None
        assert cost / 1e6 == pytest.approx(mdollar, rel=0.02)


def test_a_circuit_through_a_panel_costs_an_optical_cable_and_topoopts_ports() -> None:
    cluster = cluster_of(16)
    circuits = 16 * 4 / 2
    panel = circuits * (603 + 2 * (2 * TABLE_2.panel_port + TABLE_2.selector))
    assert cable_cost(topoopt.build(cluster), cluster) == pytest.approx(panel)
    ocs = circuits * (603 + 2 * TABLE_2.ocs_port)
    assert cable_cost(topoopt.build(cluster, optics="ocs"), cluster) == pytest.approx(ocs)


def test_more_than_a_port_carries_takes_whole_planes() -> None:
    cluster = cluster_of(16)
    once = cable_cost(hammingmesh.build_hx2(cluster), cluster)
    assert once is not None
    for factor, planes in ((0.5, 1), (1.0, 1), (1.01, 2), (2.0, 2), (2.5, 3)):
        mesh = scaled(hammingmesh.build_hx2(cluster), factor)
        assert cable_cost(mesh, cluster) == pytest.approx(planes * once)


def test_every_architecture_has_a_price_but_those_whose_parts_have_none() -> None:
    cluster = cluster_of(16)
    for name, build in ARCHITECTURES.items():
        try:
            topology = build(cluster, seed=0)
        except ValueError:
            continue
        cost = cable_cost(topology, cluster)
        assert (cost is None) == (name == "sip-ml" or not topology.duplex)
        assert cost is None or cost > 0
    assert cable_cost(sip_ml.build(cluster), cluster) is None


def test_traces_of_boards_are_no_parts_of_topoopts_list() -> None:
    cluster = cluster_of(64)
    parts = parts_of(hammingmesh.build_hx2(cluster))
    cables = 64 * 2  # half of the ports lead to a board's edge
    assert sum(parts.switch_ports.values()) == cables
    assert sum(parts.transceivers.values()) == 2 * cables
    assert sum(parts.nics.values()) == 64
    whole = parts_of(torus.build(cluster))
    assert sum(whole.transceivers.values()) == 64 * 4
