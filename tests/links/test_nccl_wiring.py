"""The text that the plugin for NCCL reads: the plan's cables and a route for every pair."""

from __future__ import annotations

import dataclasses
import itertools
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from support.plans import renumbered
from support.refusals import refused

from torch_topoopt.links.nccl_wiring import (
    nccl_layout,
    nccl_wiring,
    ring_order,
    write_nccl_wiring,
)
from torch_topoopt.links.rank_layout import rings_of
from torch_topoopt.links.sockets import unsent_bytes
from torch_topoopt.links.wiring import PortAddress, ServerAddress, Wiring
from torch_topoopt.plan import Plan
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

RingPlan = Callable[..., Plan]


def _wiring(plan: Plan) -> Wiring:
    servers = plan.cluster.servers
    ports = tuple(
        PortAddress(server, port, f"10.0.{server}.{port + 1}", 2.5)
        for server in range(servers)
        for port in range(2)
    )
    return Wiring(Wiring.VERSION, "static", plan.digest(), 4000, ports)


def _lines(text: str, kind: str) -> list[list[str]]:
    return [line.split()[1:] for line in text.splitlines() if line.split()[0] == kind]


def test_every_cable_is_one_line_and_every_pair_has_a_route(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    text = nccl_wiring(plan, _wiring(plan))
    cables = _lines(text, "cable")
    assert len(cables) == len(plan.network.links) // 2
    assert all(cable[4:6] == ["duplex", "2.5"] for cable in cables)
    unsent = str(unsent_bytes(_wiring(plan).ports[0]))  # as our own connections
    assert all(cable[8:] == ["4000", "2.5", "2.5", unsent, unsent, "-"] for cable in cables)
    routes = [list(map(int, words[1:])) for words in _lines(text, "route")]
    linked = {(link.source, link.target) for link in plan.network.links}
    reached = linked | {(route[0], route[-1]) for route in routes}
    assert reached == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert all(hop in linked for route in routes for hop in itertools.pairwise(route))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_collectives_have_the_planned_rings_over_servers(
    ring_plan: RingPlan, order: tuple[int, ...]
) -> None:
    plan = renumbered(ring_plan(4), order)
    rings = _lines(nccl_wiring(plan, _wiring(plan)), "ring")
    planned = rings_of(plan, [0, 1, 2, 3], _wiring(plan).link_rates(plan))
    assert [(float(ring[0]), tuple(map(int, ring[1:]))) for ring in rings] == [
        (ring.share, ring.servers) for ring in planned
    ]
    assert sum(float(ring[0]) for ring in rings) == pytest.approx(1.0)


def test_two_jobs_do_not_know_each_other(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    first, second = (nccl_wiring(plan, _wiring(plan)) for _ in range(2))
    tokens = [*_lines(first, "job")[0], *_lines(second, "job")[0]]
    assert len(set(tokens)) == 4


def test_only_the_owner_can_read_it(ring_plan: RingPlan, tmp_path: Path) -> None:
    path = tmp_path / "wiring"
    path.write_text("of an earlier job")
    path.chmod(0o644)
    write_nccl_wiring(path, ring_plan(4), _wiring(ring_plan(4)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("topoopt-nccl-wiring 4\n")


def test_hosts_that_forward_are_refused(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    forwarded = tuple(ServerAddress(server, f"10.1.0.{server + 1}") for server in range(4))
    wiring = dataclasses.replace(_wiring(plan), forwarded=forwarded)
    with refused(DocumentError, "forwarded", "empty"):
        nccl_wiring(plan, wiring)


def test_ranks_of_one_server_reach_others_through_the_one_with_its_cables(
    ring_plan: RingPlan,
) -> None:
    plan = ring_plan(4)
    text = nccl_wiring(plan, _wiring(plan), ranks_per_server=2)
    assert _lines(text, "ranks") == [["0", "0", "1", "1", "2", "2", "3", "3"]]
    routes = [list(map(int, words[1:])) for words in _lines(text, "route")]
    reached = {(route[0], route[-1]) for route in routes}
    leaders = {0, 2, 4, 6}
    others = {(a, b) for a in range(8) for b in range(8) if a // 2 != b // 2}
    assert others - reached <= {(a, b) for a in leaders for b in leaders}  # over their own cables
    assert all(set(route[1:-1]) <= leaders for route in routes)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_ranks_follow_a_ring_of_cables(ring_plan: RingPlan, order: tuple[int, ...]) -> None:
    plan = renumbered(ring_plan(4), order)
    linked = {(link.source, link.target) for link in plan.network.links}
    found = ring_order(plan)
    assert found[0] == 0
    assert sorted(found) == [0, 1, 2, 3]
    assert set(itertools.pairwise((*found, 0))) <= linked
    assert nccl_layout(plan, 2).server_of == tuple(s for s in found for _ in range(2))


def test_encrypted_cables_have_keys_of_their_own(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    keys = [cable[-1] for cable in _lines(nccl_wiring(plan, _wiring(plan), encrypt=True), "cable")]
    assert len(set(keys)) == len(plan.network.links) // 2
    assert all(len(key) == 64 for key in keys)
