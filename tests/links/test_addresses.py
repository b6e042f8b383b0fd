"""Addresses of ports: IPv4, IPv6, and link-local IPv6 with the interface."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
from support.refusals import refused

from torch_topoopt.discovery.interfaces import Interface
from torch_topoopt.discovery.reach import Server, rounds
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry
from torch_topoopt.links.addresses import (
    family_of,
    far_endpoint,
    is_link_local,
    is_routable,
    own_endpoint,
    parse_port_ip,
    zone_of,
)
from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan.codec import DocumentError

FILE = """
version: 1
name: lab
servers:
  - name: h0
    management: 10.0.0.1
    ports:
      - {{name: p0, address: "{near}", interface: {interface}}}
  - name: h1
    management: 10.0.0.2
    ports:
      - {{name: p0, address: "{far}"}}
cables:
  - [h0:p0, h1:p0]
"""


def cluster(near: str, far: str, interface: str = "eth1") -> ClusterFile:
    return ClusterFile.from_yaml(FILE.format(near=near, far=far, interface=interface))


def test_a_cluster_file_with_link_local_addresses_survives_its_yaml() -> None:
    file = cluster("fe80::1%eth1/64", "fe80::1%eth1")
    assert ClusterFile.from_yaml(file.to_yaml()) == file
    ports = [port for _, port in file.ports.values()]
    assert [port.ip for port in ports] == ["fe80::1%eth1", "fe80::1%eth1"]
    assert [port.subnet for port in ports] == [None, None]


@pytest.mark.parametrize(
    ("near", "far", "interface", "tokens"),
    [
        (
            "fe80::1/64",
            "fe80::2%a",
            "eth1",
            ("servers[0].ports[0].address", "fe80::1/64"),
        ),
        ("fd00::1%eth1", "fe80::2%a", "eth1", ("IPv6", "interface")),
        ("fe80::1%eth1/abc", "fe80::2%a", "eth1", ("IPv6", "interface")),
        (
            "fe80::1%eth2/64",
            "fe80::2%a",
            "eth1",
            ("interface", "eth1", "eth2"),
        ),
        (
            "10.0.0.1",
            "fe80::2%a",
            "eth1",
            ("IPv6", "fe80::1"),
        ),
        ("fe80::1%eth1/64", "10.0.0.1/30", "eth1", ("subnet",)),
    ],
)
def test_bad_addresses_are_named(
    near: str, far: str, interface: str, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        cluster(near, far, interface)


def test_a_cluster_file_with_routable_ipv6_addresses_has_them_as_the_kernel_writes_them() -> None:
    file = cluster("FD93:1:0::1/64", "fd93:1::2/64")
    ports = [port for _, port in file.ports.values()]
    assert [port.address for port in ports] == ["fd93:1::1/64", "fd93:1::2/64"]
    assert [port.ip for port in ports] == ["fd93:1::1", "fd93:1::2"]
    assert ClusterFile.from_yaml(file.to_yaml()) == file
    with refused(DocumentError, "fd93:1::1", "already"):
        cluster("fd93:1::1/64", "fd93:1:0::1/64")
    with refused(DocumentError, "subnet"):
        cluster("fd93:1::1/64", "fd93:2::1/64")


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "169.254.1.2", "fd93:1::1", "2001:db8::1", "fe80::1%eth0"]
)
def test_addresses_that_a_port_can_have(address: str) -> None:
    assert str(parse_port_ip(address)) == address
    assert family_of(address) == (socket.AF_INET6 if ":" in address else socket.AF_INET)


@pytest.mark.parametrize(
    "text", ["", "h0", "10.0.0", "::", "ff02::1", "::ffff:10.0.0.1", "fe80::1", "fd00::1%eth0"]
)
def test_texts_that_are_no_address_of_a_port(text: str) -> None:
    with refused(ValueError, text or "''"):
        parse_port_ip(text)


def test_link_local_addresses_are_not_routed() -> None:
    for address in ("fe80::1", "fe80::1%eth0", "fe80::1%eth0/64", "febf::1/64"):
        assert is_link_local(address)
        assert not is_routable(address)
    for address in ("fd00::1", "fd00::1/64", "2001:db8::1", "10.0.0.1", "169.254.1.1"):
        assert not is_link_local(address)
    assert is_routable("fd00::1")
    assert is_routable("10.0.0.1/30")
    assert not is_routable("169.254.7.1")


def test_one_port_of_several_in_a_subnet_is_not_found_by_routes() -> None:
    one_subnet = cluster("10.0.0.1/24", "10.0.0.2/24")
    assert not one_subnet.shares_subnet("h0:p0")
    first = one_subnet.servers[0]
    second = PortEntry("p1", "10.0.0.3/16")
    two = replace(first, ports=(*first.ports, second))
    shared = replace(one_subnet, servers=(two, one_subnet.servers[1]))
    assert shared.shares_subnet("h0:p0")
    assert shared.shares_subnet("h0:p1")
    assert not shared.shares_subnet("h1:p0")


def wiring(*ports: PortAddress) -> Wiring:
    return Wiring(Wiring.VERSION, "static", "d", 20000, ports).validate()


def test_two_servers_may_have_one_link_local_address() -> None:
    made = wiring(PortAddress(0, 0, "fe80::1%a", None), PortAddress(1, 0, "fe80::1%a", None))
    assert Wiring.from_json(made.to_json()) == made
    with refused(DocumentError, "already"):
        wiring(PortAddress(0, 0, "10.0.0.1", None), PortAddress(1, 0, "10.0.0.1", None))
    with refused(DocumentError, "fe80::1%eth0"):
        wiring(PortAddress(0, 0, "fe80::1", None))
    with refused(DocumentError, "interface", "address"):
        wiring(PortAddress(0, 0, "fe80::1%a", None, interface="b"))


def test_a_link_local_address_is_reached_through_the_own_interface() -> None:
    loopback = socket.if_nametoindex("lo")
    assert zone_of("fe80::1%lo/64") == "lo"
    assert zone_of("10.0.0.1/30") is None
    assert family_of("fe80::1%lo") == socket.AF_INET6
    assert own_endpoint("fe80::1%lo", 5) == ("fe80::1", 5, 0, loopback)
    assert far_endpoint("fe80::2%there", 6, "fe80::1%lo") == ("fe80::2", 6, 0, loopback)
    assert own_endpoint("10.0.0.1", 5) == ("10.0.0.1", 5)
    assert far_endpoint("10.0.0.2", 6, "10.0.0.1") == ("10.0.0.2", 6)
    with refused(OSError, "none0", "interface"):
        own_endpoint("fe80::1%none0", 5)
    for text in ("fe80::1", "2001:db8::1%lo", "nonsense"):
        with refused(ValueError, text):
            parse_port_ip(text)


def test_without_a_plan_link_local_addresses_are_tried_with_each_other_only() -> None:
    def server(name: str, *addresses: str) -> Server:
        listed = tuple(
            Interface(a.partition("%")[2] or "m", a, 24, 10.0, False, False) for a in addresses
        )
        return Server(name, name, (0,), listed, tuple(range(1, 1 + len(addresses))))

    (first,) = rounds([server("a", "10.0.0.1", "fe80::1%x"), server("b", "10.0.0.2", "fe80::1%y")])
    assert {(probe.source_address, probe.target_address) for probe in first} == {
        ("10.0.0.1", "10.0.0.2"),
        ("fe80::1%x", "fe80::1%y"),
    }
