"""Names and addresses of fabrics of namespaces never meet."""

from __future__ import annotations

import ipaddress

import pytest
from support.refusals import refused

from torch_topoopt.fabric.netns.layout import (
    BLOCKS,
    CABLE_PREFIX,
    LAUNCHER,
    MAX_DEGREE,
    MAX_SERVERS,
    NetnsLayout,
    check_name,
    fabric_of,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Link


def test_addresses_of_two_blocks_and_all_servers_and_ports_differ() -> None:
    seen: set[str] = set()
    for block in (0, BLOCKS - 1):
        layout = NetnsLayout("x", block)
        addresses = [layout.management_address(LAUNCHER)]
        for server in (0, 1, MAX_SERVERS - 1):
            addresses += [layout.management_address(server), layout.server_address(server)]
            for port in (0, 1, MAX_DEGREE - 1):
                addresses.append(layout.forward_address(server, port))
        for cable in (0, 1, 63, 64, MAX_SERVERS * MAX_DEGREE // 2 - 1):
            addresses += [layout.cable_address(cable, 0), layout.cable_address(cable, 1)]
        for address in addresses:
            ipaddress.IPv4Address(address)
        assert len(set(addresses)) == len(addresses)
        assert not seen & set(addresses)
        seen |= set(addresses)


def test_the_ends_of_a_cable_are_in_one_subnet_of_their_own() -> None:
    cables = [Link(0, 0, 1, 1), Link(1, 0, 2, 1), Link(2, 0, 0, 1)]
    addresses = NetnsLayout("x", 2).port_addresses(cables)
    subnets = [
        {
            ipaddress.ip_interface(f"{addresses[end]}/{CABLE_PREFIX}").network
            for end in ((c.source, c.source_port), (c.target, c.target_port))
        }
        for c in cables
    ]
    assert all(len(subnet) == 1 for subnet in subnets)
    assert len(set().union(*subnets)) == 3
    for address in addresses.values():
        (subnet,) = (n for s in subnets for n in s if ipaddress.ip_address(address) in n)
        assert ipaddress.ip_address(address) in list(subnet.hosts())


def test_mac_addresses_are_local_unicast_and_of_one_half() -> None:
    layout = NetnsLayout("x", 3)
    macs = [layout.port_mac(9, 1), layout.forward_mac(9, 1), layout.port_mac(1, 9)]
    assert macs == ["02:74:03:09:01:01", "02:74:03:09:01:02", "02:74:03:01:09:01"]


@pytest.mark.parametrize("name", ["lab", "lab-2", "2", "a-1-management"])
def test_the_name_of_a_namespace_gives_its_fabric(name: str) -> None:
    layout = NetnsLayout(check_name(name))
    for namespace in (
        layout.namespace(12),
        layout.management_namespace,
        layout.switch_namespace,
    ):
        assert fabric_of(namespace) == name
    assert fabric_of("another-program-1") is None
    assert fabric_of("topoopt-lab-other") is None


@pytest.mark.parametrize("name", ["", "Lab", "a/b", "-a", "a-", "a" * 33])
def test_a_bad_name_is_an_error_that_shows_it(name: str) -> None:
    with refused(FabricError, "name", f"'{name}'"):
        check_name(name)
