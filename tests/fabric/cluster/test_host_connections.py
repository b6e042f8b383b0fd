"""Launchers of hosts prove to that of server 0 that they know the job's secret."""

from __future__ import annotations

import queue
import socket
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.cluster.host_connections import (
    HostListener,
    Purpose,
    connect_to_leader,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = limit_s(10.0)
IDENTITY = Identity(bytes(32), "plan")
HERE = "127.0.0.1"
Arrived = queue.SimpleQueue[tuple[int, Purpose, socket.socket]]


@pytest.fixture
def arrived() -> Arrived:
    return queue.SimpleQueue()


@pytest.fixture
def listener(arrived: Arrived) -> Iterator[HostListener]:
    listener = HostListener(IDENTITY, HERE, {1: "h1", 2: "h2"}, lambda *one: arrived.put(one))
    yield listener
    listener.close()


def test_each_host_may_have_several_connections_of_each_purpose(
    listener: HostListener, arrived: Arrived
) -> None:
    wanted = [(2, Purpose.COMMANDS), (1, Purpose.REQUESTS), (1, Purpose.REQUESTS)]
    for server, purpose in wanted:
        with connect_to_leader(IDENTITY, server, purpose, HERE, listener.port) as near:
            *found, far = arrived.get(timeout=LIMIT_S)
            assert found == [server, purpose]
            with far:
                near.sendall(b"!")
                far.settimeout(LIMIT_S)
                assert far.recv(1) == b"!"


@pytest.mark.parametrize(
    ("identity", "server", "tokens"),
    [
        (Identity(bytes(31) + b"!", "plan"), 1, ("another job",)),
        (Identity(bytes(32), "other"), 1, ("other",)),
        (IDENTITY, 3, ("host 3",)),
    ],
)
def test_others_are_refused(
    listener: HostListener,
    arrived: Arrived,
    identity: Identity,
    server: int,
    tokens: tuple[str, ...],
) -> None:
    with refused(FabricError, *tokens):
        connect_to_leader(identity, server, Purpose.COMMANDS, HERE, listener.port)
    assert arrived.empty()
    with connect_to_leader(IDENTITY, 1, Purpose.COMMANDS, HERE, listener.port):
        arrived.get(timeout=LIMIT_S)[2].close()


def test_an_address_of_another_machine_is_named() -> None:
    with refused(FabricError, "198.51.100.7"):
        HostListener(IDENTITY, "198.51.100.7", {}, lambda *_: None)
