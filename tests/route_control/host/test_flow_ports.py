"""When a connection has to move, and when it stays where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torch_topoopt.plan import Link
from torch_topoopt.route_control.host.flow_ports import FlowPorts

if TYPE_CHECKING:
    from collections.abc import Sequence

LINK = Link(0, 0, 1, 0)
REFUSED: list[tuple[Link, tuple[int, ...]]] = []


@pytest.fixture
def ports() -> FlowPorts:
    REFUSED.clear()

    def refused(link: Link, which: Sequence[int]) -> None:
        REFUSED.append((link, tuple(which)))

    return FlowPorts([LINK], refused)


def connect(ports: FlowPorts, port: int, *refused: int) -> None:
    ports.ports_of(LINK)
    ports.taken(LINK, port, refused)
    ports.end_move(LINK, made=True)


def test_a_connection_at_one_of_the_assigned_ports_stays(ports: FlowPorts) -> None:
    ports.assign(LINK, (10, 11), None)
    assert ports.ports_of(LINK) == (10, 11)
    connect(ports, 11, 10)
    assert not REFUSED
    assert not ports.begin_move(LINK)
    ports.assign(LINK, (11, 12), None)
    assert not ports.begin_move(LINK)
    ports.assign(LINK, (), None)
    assert not ports.begin_move(LINK)  # nothing better is known
    assert ports.begin_move(LINK, anyway=True)


def test_another_assignment_moves_it_once(ports: FlowPorts) -> None:
    ports.assign(LINK, (10,), None)
    assert not ports.begin_move(LINK)  # there is none yet
    connect(ports, 10)
    ports.assign(LINK, (20,), None)
    assert ports.begin_move(LINK)
    assert not ports.begin_move(LINK)
    ports.ports_of(LINK)
    ports.taken(LINK, 20, ())
    assert ports.port(LINK) == 10
    ports.end_move(LINK, made=True)
    assert ports.port(LINK) == 20
    assert not ports.begin_move(LINK)


def test_a_move_that_failed_leaves_it_where_it_was(ports: FlowPorts) -> None:
    connect(ports, 5)
    ports.assign(LINK, (10,), None)
    assert ports.begin_move(LINK)
    ports.ports_of(LINK)
    ports.taken(LINK, 10, ())
    ports.end_move(LINK, made=False)
    assert ports.port(LINK) == 5
    assert not ports.begin_move(LINK)  # before the controller says something else
    ports.assign(LINK, (11,), None)
    assert ports.begin_move(LINK)


def test_ports_that_are_all_in_use_are_said_once_and_not_tried_again(ports: FlowPorts) -> None:
    ports.assign(LINK, (10, 11), None)
    connect(ports, 40000, 10, 11)
    assert REFUSED == [(LINK, (10, 11))]
    assert not ports.begin_move(LINK)
    ports.assign(LINK, (20,), None)
    assert ports.begin_move(LINK)


def test_links_that_are_not_controlled_are_left_to_the_kernel(ports: FlowPorts) -> None:
    other = Link(0, 1, 2, 0)
    assert ports.ports_of(other) == ()
    assert ports.limit_gbps(other) is None
    ports.taken(other, 40000, ())
