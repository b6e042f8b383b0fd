"""Ports are handed out once each, in order."""

from __future__ import annotations

from support.refusals import refused

from torch_topoopt.plan import Cluster, Link
from torch_topoopt.topology.finder.port_allocator import PortAllocator, ports_per_ring


def test_a_duplex_ring_takes_a_port_towards_each_neighbour() -> None:
    wiring = PortAllocator(Cluster(4, 2, 1.0))
    wiring.add_stride(range(4), 1)
    assert wiring.links[:2] == [Link(0, 0, 1, 1), Link(1, 1, 0, 0)]
    assert wiring.free_ports(range(4)) == 0
    assert {(link.source, link.source_port) for link in wiring.links} == {
        (server, port) for server in range(4) for port in range(2)
    }


def test_a_simplex_ring_takes_one_transmitter_and_one_receiver() -> None:
    wiring = PortAllocator(Cluster(5, 2, 1.0, "simplex"))
    wiring.add_stride(range(5), 2)
    assert wiring.links == [Link(s, 0, (s + 2) % 5, 0) for s in range(5)]
    wiring.connect(0, 1)
    assert (wiring.free_transmitters(0), wiring.free_receivers(0)) == (0, 1)
    assert (wiring.free_transmitters(1), wiring.free_receivers(1)) == (1, 0)


def test_a_pair_of_servers_needs_one_port_each() -> None:
    wiring = PortAllocator(Cluster(6, 2, 1.0))
    wiring.add_stride((1, 4), 1)
    assert wiring.links == [Link(1, 0, 4, 0), Link(4, 0, 1, 0)]
    assert [ports_per_ring(Cluster(6, 2, 1.0), size) for size in (2, 3, 6)] == [1, 2, 2]
    assert ports_per_ring(Cluster(6, 2, 1.0, "simplex"), 6) == 1


def test_running_out_of_ports_is_an_error() -> None:
    wiring = PortAllocator(Cluster(4, 2, 1.0))
    wiring.add_stride(range(4), 1)
    with refused(ValueError, "server 0", 2):
        wiring.connect(0, 2)
    with refused(ValueError, "[0, 1, 2]"):
        wiring.add_stride((0, 1, 2), 1)
