"""Receiving ports and paths of topologies that circuits are moved to."""

from __future__ import annotations

import itertools
import random

import pytest
from support.refusals import refused

from torch_topoopt.fabric.switches.moved_links import first_links, moved_links
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Link


def shifts(servers: int, *by: int) -> list[list[int]]:
    return [[(server + shift) % servers for shift in by] for server in range(servers)]


@pytest.mark.parametrize("by", [(1,), (3,), (1, 4), (2, 3, 6)])
def test_every_port_sends_and_receives_once(by: tuple[int, ...]) -> None:
    targets = shifts(7, *by)
    links = moved_links(targets)
    assert {(link.source, link.source_port): link.target for link in links} == {
        (server, port): target
        for server, ports in enumerate(targets)
        for port, target in enumerate(ports)
    }
    assert len({(link.target, link.target_port) for link in links}) == 7 * len(by)


def test_circuits_that_lead_to_the_right_server_stay() -> None:
    before = moved_links(shifts(6, 1, 2))
    crossed = [
        Link(link.source, link.source_port, link.target, 1 - link.target_port) for link in before
    ]
    after = moved_links(shifts(6, 1, 3), crossed)
    assert {link for link in after if link.source_port == 0} == {
        link for link in crossed if link.source_port == 0
    }
    assert len({(link.target, link.target_port) for link in after}) == 12


def test_a_dark_port_has_no_link() -> None:
    assert moved_links([[1, 0], [0, 1]]) == (Link(0, 0, 1, 0), Link(1, 0, 0, 0))


@pytest.mark.parametrize(("servers", "by"), [(6, (1, 2, 5)), (7, (1, 1, 3)), (9, (2, 4, 5))])
def test_both_ends_of_a_circuit_are_on_one_switch(servers: int, by: tuple[int, ...]) -> None:
    rng = random.Random(servers)
    targets, switches = shifts(servers, *by), {}
    for server in range(servers):
        rng.shuffle(targets[server])
        names = ["a", "b", "b"]
        rng.shuffle(names)
        switches |= {(server, port): name for port, name in enumerate(names)}
    before = moved_links(shifts(servers, *reversed(by)), (), switches)
    links = moved_links(targets, before, switches)
    assert sorted((link.source, link.target) for link in links) == sorted(
        (server, target) for server, ports in enumerate(targets) for target in ports
    )
    for ends in (
        {(link.source, link.source_port) for link in links},
        {(link.target, link.target_port) for link in links},
    ):
        assert len(ends) == 3 * servers
    for link in links:
        here, there = (link.source, link.source_port), (link.target, link.target_port)
        assert switches[here] == switches[there]


def test_servers_on_other_switches_are_refused() -> None:
    switches = {(0, 0): "a", (0, 1): "b", (1, 0): "a", (1, 1): "a"}
    with refused(FabricError, "server 1", "a, a", "a, b"):
        moved_links([[1, 1], [0, 0]], (), switches)


@pytest.mark.parametrize(
    ("targets", "tokens"),
    [
        ([[1], [0], [1]], ("links[2][0]", 1, "server 1")),
        ([[1], [2]], ("links[1][0]", "server 2")),
    ],
)
def test_impossible_topologies_name_the_place(
    targets: list[list[int]], tokens: tuple[object, ...]
) -> None:
    with refused(FabricError, *tokens):
        moved_links(targets)


def test_following_first_links_takes_a_shortest_path() -> None:
    servers, by = 9, (2, 3)
    links = moved_links(shifts(servers, *by))
    firsts = first_links(servers, links)
    fewest = {
        sum(steps) % servers: len(steps)
        for count in range(6, 0, -1)
        for steps in itertools.product(by, repeat=count)
    }
    for source, target in itertools.permutations(range(servers), 2):
        here, hops = source, 0
        while here != target:
            link = firsts[here][target]
            assert link in links
            assert link.source == here
            here, hops = link.target, hops + 1
        assert hops == fewest[(target - source) % servers]


def test_several_cycles_reach_their_own_servers_only() -> None:
    firsts = first_links(6, moved_links(shifts(6, 2)))
    assert [sorted(first) for first in firsts] == [
        [2, 4],
        [3, 5],
        [0, 4],
        [1, 5],
        [0, 2],
        [1, 3],
    ]


def test_a_circuit_without_a_way_back_is_refused() -> None:
    with refused(FabricError, "server 1", "server 2"):
        first_links(3, moved_links([[1, 1], [0, 2], [2, 2]]))
