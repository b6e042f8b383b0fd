"""Ports are chosen until every live path has enough of them."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.route_control.network_shapes import leaf_spine_file
from torch_topoopt.route_control.probing.port_choice import PortChooser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.route_control.probing.probed_flow import ProbedFlow

FILE = leaf_spine_file(3, 3, 2, 1e8)


def hashed(flows: Sequence[ProbedFlow], spines: Sequence[int] = (0, 1, 2)) -> list[tuple[str, ...]]:
    tor_of = {host.name: host.switch for host in FILE.hosts}
    return [
        (
            tor_of[flow.source],
            f"spine{spines[zlib.crc32(repr(flow).encode()) % len(spines)]}",
            tor_of[flow.target],
        )
        for flow in flows
    ]


@pytest.mark.parametrize("per_path", [1, 3])
def test_every_path_has_as_many_ports_as_asked_for(per_path: int) -> None:
    chosen = PortChooser(FILE, hashed, 20000, per_path=per_path).choose("h0", ["h1", "h2", "h5"])
    assert chosen["h1"] == {}  # of the same leaf
    for target, leaf in (("h2", "leaf1"), ("h5", "leaf2")):
        counted = Counter(chosen[target].values())
        assert counted == {("leaf0", f"spine{i}", leaf): per_path for i in range(3)}


def test_what_no_port_leads_over_is_an_error_that_names_the_path() -> None:
    chooser = PortChooser(FILE, lambda flows: hashed(flows, (0, 2)), 20000, ports=range(1, 500))
    with refused(FabricError, "1..499", "h0", "h4", "leaf0", "spine1", "leaf2"):
        chooser.choose("h0", ["h4"])


def test_dead_cables_need_no_ports() -> None:
    dead = [frozenset(("leaf2", "spine1"))]
    chooser = PortChooser(FILE, lambda flows: hashed(flows, (0, 2)), 20000, dead=dead)
    assert {path[1] for path in chooser.choose("h0", ["h4"])["h4"].values()} == {"spine0", "spine2"}
