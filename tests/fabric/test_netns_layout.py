"""Names and addresses of fabrics of namespaces never meet."""

from __future__ import annotations

import ipaddress

import pytest

from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.netns.netns_layout import (
    BLOCKS,
    LAUNCHER,
    MAX_DEGREE,
    MAX_SERVERS,
    Layout,
    check_name,
    fabric_of,
)


def test_addresses_of_two_blocks_and_all_servers_and_ports_differ() -> None:
    seen: set[str] = set()
    for block in (0, BLOCKS - 1):
        layout = Layout("x", block)
        addresses = [layout.management_address(LAUNCHER)]
        for server in (0, 1, MAX_SERVERS - 1):
            addresses += [layout.management_address(server), layout.server_address(server)]
            for port in (0, 1, MAX_DEGREE - 1):
                addresses.append(layout.port_address(server, port))
                addresses.append(layout.forward_address(server, port))
        for address in addresses:
            ipaddress.IPv4Address(address)
        assert len(set(addresses)) == len(addresses)
        assert not seen & set(addresses)
        seen |= set(addresses)


def test_mac_addresses_are_local_unicast_and_of_one_half() -> None:
    layout = Layout("x", 3)
    macs = [layout.port_mac(9, 1), layout.forward_mac(9, 1), layout.port_mac(1, 9)]
    assert macs == ["02:74:03:09:01:01", "02:74:03:09:01:02", "02:74:03:01:09:01"]


@pytest.mark.parametrize("name", ["lab", "lab-2", "2", "a-1-management"])
def test_a_namespace_tells_its_fabric(name: str) -> None:
    layout = Layout(check_name(name))
    for namespace in (
        layout.namespace(12),
        layout.management_namespace,
        layout.switch_namespace,
    ):
        assert fabric_of(namespace) == name
    assert fabric_of("somebody-else-1") is None
    assert fabric_of("topoopt-lab-other") is None


@pytest.mark.parametrize("name", ["", "Lab", "a/b", "-a", "a-", "a" * 33])
def test_a_bad_name_is_an_error_that_shows_it(name: str) -> None:
    with pytest.raises(FabricError, match=f"name: '{name}'"):
        check_name(name)
