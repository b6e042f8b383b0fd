"""The interfaces of this machine, and the list that chooses among them."""

from __future__ import annotations

import socket

import pytest
from support.refusals import refused

from torch_topoopt.discovery import interfaces
from torch_topoopt.discovery.interfaces import Interface, list_interfaces, select
from torch_topoopt.links import netlink
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.netlink import OwnAddress

NAMES = ("lo", "eth0", "eth1", "ib0", "docker0")
ALL = [Interface(name, f"10.0.0.{i}", 24, None, False, False) for i, name in enumerate(NAMES)]


def test_loopback_is_listed_with_its_address() -> None:
    found = {interface.name: interface for interface in list_interfaces()}
    assert found["lo"].address == "127.0.0.1"
    assert found["lo"].prefix_length == 8
    assert found["lo"].loopback
    assert not found["lo"].wireless
    assert [name for name, interface in found.items() if interface.loopback] == ["lo"]


@pytest.mark.parametrize("of_the_loopback", ["127.0.0.1", "::1"])
def test_bridges_are_listed_only_where_an_interface_has_ipv6_alone(
    of_the_loopback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank lists the interfaces at its start."""
    family = socket.AF_INET6 if ":" in of_the_loopback else socket.AF_INET
    lists: list[str] = []
    own = OwnAddress(socket.if_nametoindex("lo"), "lo", of_the_loopback, 8)

    def parts_of_others() -> set[int]:
        lists.append("parts")
        return set()

    monkeypatch.setattr(netlink, "addresses", lambda of: [own] if of == family else [])
    monkeypatch.setattr(netlink, "parts_of_others", parts_of_others)
    monkeypatch.setattr(interfaces, "physical_port", lambda name: lists.append(name))
    assert [interface.address for interface in list_interfaces()] == [of_the_loopback]
    assert lists == ([] if family == socket.AF_INET else ["parts"])


@pytest.mark.parametrize(
    ("wanted", "names", "unmatched"),
    [
        ("", NAMES, []),
        ("eth", ("eth0", "eth1"), []),
        ("eth1,ib", ("eth1", "ib0"), []),
        ("eth1, ib", ("eth1", "ib0"), []),
        ("^lo,docker", ("eth0", "eth1", "ib0"), []),
        ("^lo,^docker", ("eth0", "eth1", "ib0"), []),
        ("eth0,wlan", ("eth0",), ["wlan"]),
        ("^wlan", NAMES, []),
    ],
)
def test_names_are_prefixes_and_a_caret_turns_the_list_round(
    wanted: str, names: tuple[str, ...], unmatched: list[str]
) -> None:
    chosen, missing = select(ALL, wanted)
    assert tuple(interface.name for interface in chosen) == names
    assert missing == unmatched


@pytest.mark.parametrize("wanted", ["eth0,", ",", "^", "eth0,^lo", "^^lo"])
def test_a_list_that_means_nothing_is_refused(wanted: str) -> None:
    with refused(FabricError, "TOPOOPT_INTERFACES", "eth0,eth1"):
        select(ALL, wanted)
