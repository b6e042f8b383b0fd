"""The interfaces of this machine, and the list that chooses among them."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.discovery.interfaces import Interface, list_interfaces, select
from torch_topoopt.links.errors import FabricError

NAMES = ("lo", "eth0", "eth1", "ib0", "docker0")
ALL = [Interface(name, f"10.0.0.{i}", 24, None, False, False) for i, name in enumerate(NAMES)]


def test_loopback_is_listed_with_its_address() -> None:
    found = {interface.name: interface for interface in list_interfaces()}
    assert found["lo"].address == "127.0.0.1"
    assert found["lo"].prefix_length == 8
    assert found["lo"].loopback
    assert not found["lo"].wireless
    assert [name for name, interface in found.items() if interface.loopback] == ["lo"]


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
