"""Circuits move under connections that stay open, and come back to the plan's."""

from __future__ import annotations

import contextlib
import itertools
import socket
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import a_name, make_plan, own_state, require_namespaces
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.layout import port_interface, socket_interface, socket_name
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch_topoopt.fabric.netns.filters import Rule
    from torch_topoopt.fabric.switches.circuit_mover import RoutedCircuitMover

SERVERS, DEGREE = 5, 2
SIZE_BYTES = 200_000
SHIFTS = ((1, 2), (2, 3), (4, 2))
LIMIT_S = limit_s(20.0)
Pair = tuple[int, int]
Targets = dict[int, list[int]]


class Wired:
    """A fabric, and an open connection from each server's address to each higher one's."""

    def __init__(self, fabric: NetnsFabric, stack: contextlib.ExitStack) -> None:
        self.layout = fabric.layout
        self.ends: dict[Pair, socket.socket] = {}  # (at, to)
        for low, high in itertools.combinations(range(SERVERS), 2):
            there = (self.layout.server_address(high), 7000)
            here = (self.layout.server_address(low), 0)
            listener = netns_kernel.inside(
                self.layout.namespace(high), lambda there=there: socket.create_server(there)
            )
            with listener:
                listener.settimeout(LIMIT_S)
                self.ends[low, high] = stack.enter_context(
                    netns_kernel.inside(
                        self.layout.namespace(low),
                        lambda there=there, here=here: socket.create_connection(
                            there, LIMIT_S, source_address=here
                        ),
                    )
                )
                accepted, _ = listener.accept()
                accepted.settimeout(LIMIT_S)
                self.ends[high, low] = stack.enter_context(accepted)

    def send(self, source: int, target: int) -> None:
        """SIZE_BYTES, all of which arrive."""
        data = bytes(SIZE_BYTES)
        sent, left = 0, SIZE_BYTES
        near, far = self.ends[source, target], self.ends[target, source]
        while left:
            if sent < SIZE_BYTES:
                sent += near.send(data[sent : sent + 16384])
            left -= len(far.recv(65536))

    def sent_bytes(self, server: int, port: int) -> int:
        with netns_kernel.open_route(self.layout.namespace(server)) as route:
            (index,) = route.link_lookup(ifname=port_interface(port))
            (link,) = route.get_links(index)
            return int(link.get_attr("IFLA_STATS64")["tx_bytes"])


@pytest.fixture
def wired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Wired, RoutedCircuitMover]]:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(SERVERS, DEGREE)
    options = NetnsOptions(relay="kernel", switch_delay_s=0.005, timeout_s=limit_s(0.3))
    fabric = NetnsFabric(a_name(), options)
    with contextlib.ExitStack() as stack:
        stack.callback(fabric.close)
        fabric.connect(plan)
        mover = fabric.circuit_mover(plan)
        stack.callback(mover.close)
        yield Wired(fabric, stack), mover


def targets(shifts: tuple[int, ...], servers: Sequence[int] = range(SERVERS)) -> Targets:
    """Shifts within a group of servers."""
    n = len(servers)
    return {
        server: [servers[(place + shift) % n] for shift in shifts]
        for place, server in enumerate(servers)
    }


def check_direct(wired: Wired, shifts: tuple[int, ...]) -> None:
    """What server 1 sends to the far ends of its circuits leaves over the right port alone."""
    for port, shift in enumerate(shifts):
        before = [wired.sent_bytes(1, p) for p in range(DEGREE)]
        wired.send(1, (1 + shift) % SERVERS)
        sent = [wired.sent_bytes(1, p) - before[p] for p in range(DEGREE)]
        assert SIZE_BYTES < sent[port] < 1.2 * SIZE_BYTES
        assert sent[1 - port] < 0.1 * SIZE_BYTES


def test_connections_that_stay_open_follow_the_circuits(
    wired: tuple[Wired, RoutedCircuitMover],
) -> None:
    servers, mover = wired
    numbers = [mover.prepare(targets(shifts)) for shifts in SHIFTS]
    assert numbers == [0, 1, 2]
    for number in (0, 1, 2, 0):
        mover.move([number])
        check_direct(servers, SHIFTS[number])
    mover.restore()
    for source, target in itertools.permutations(range(SERVERS), 2):
        servers.send(source, target)


def test_every_pair_is_reached_over_relays_meanwhile(
    wired: tuple[Wired, RoutedCircuitMover],
) -> None:
    servers, mover = wired
    mover.move([mover.prepare(targets((1, 2)))])
    for source, target in itertools.permutations(range(SERVERS), 2):
        servers.send(source, target)


def test_messages_reach_the_servers_that_are_named(
    wired: tuple[Wired, RoutedCircuitMover],
) -> None:
    """Servers 1 and 3 have a topology of their own, in a ring plan of strides 1 and 2."""
    servers, mover = wired
    number = mover.prepare(targets((1,), (1, 3)))
    everybody = frozenset(range(SERVERS))
    assert mover.reached([]) == dict.fromkeys(range(SERVERS), everybody)
    mover.move([number])
    reached = mover.reached([number])
    assert reached[1] == reached[3] == {1, 3}
    for source, others in reached.items():
        assert source in others
        for target in others - {source}:
            assert source in reached[target]
            servers.send(source, target)


def test_a_circuit_that_stays_dark_brings_the_circuits_of_the_plan_back(
    wired: tuple[Wired, RoutedCircuitMover], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, mover = wired
    number = mover.prepare(targets((1, 2)))
    ((switch, _),) = mover._switches.values()
    assert isinstance(switch, NetnsSwitch)
    add_rule = switch._add_rule
    with netns_kernel.open_route(servers.layout.switch_namespace) as route:
        (stuck,) = route.link_lookup(ifname=socket_interface(socket_name(0, 1, DEGREE)))
    broken = {2}  # the far end of a mirror that never arrives there

    def stick(rule: Rule) -> None:
        far = (rule.tag - 1) // DEGREE
        if rule.ingress != stuck or rule.egress is None or far not in broken:
            add_rule(rule)

    monkeypatch.setattr(switch, "_add_rule", stick)
    before = switch.circuits()
    with refused(FabricError, "2A"):
        mover.move([number])
    assert switch.circuits() == before
    for source, target in itertools.permutations(range(SERVERS), 2):
        servers.send(source, target)
    broken.clear()
    mover.move([number])
    check_direct(servers, (1, 2))


def test_topologies_that_do_not_fit_are_refused(wired: tuple[Wired, RoutedCircuitMover]) -> None:
    _, mover = wired
    with refused(FabricError, 2, "targets", 5):
        mover.prepare(targets((1, 2, 3)))
    with refused(FabricError, 3):
        mover.prepare({0: [3], 1: [0]})
    both = [mover.prepare(targets((1,), servers)) for servers in ((0, 1), (1, 2))]
    with refused(FabricError, 1, "two"):
        mover.move(both)


def test_groups_of_different_servers_move_one_after_the_other(
    wired: tuple[Wired, RoutedCircuitMover],
) -> None:
    servers, mover = wired
    first, second = (mover.prepare(targets((1,), group)) for group in ((1, 3), (0, 2, 4)))
    plan = {(link.source, link.target) for link in mover._plan.network.links}
    for numbers, groups in [
        ([first], [(1, 3)]),
        ([first, second], [(1, 3), (0, 2, 4)]),
        ([second], [(0, 2, 4)]),
        ([], []),
    ]:
        mover.move(numbers)
        moved = {server for group in groups for server in group}
        pairs = {pair for group in groups for pair in itertools.permutations(group, 2)}
        pairs |= {pair for pair in plan if moved.isdisjoint(pair)}
        for source, target in sorted(pairs):
            servers.send(source, target)
    for source, target in itertools.permutations(range(SERVERS), 2):
        servers.send(source, target)


def test_a_fabric_that_cannot_move_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(3, 2)
    fabric = NetnsFabric(a_name(), NetnsOptions(switch_delay_s=0.005))
    try:
        fabric.connect(plan)
        with refused(FabricError, "forward"):
            fabric.circuit_mover(plan)
    finally:
        fabric.close()


def test_sockets_leave_room_for_what_other_circuits_acknowledge() -> None:
    require_namespaces()
    plan = make_plan(8, 2)
    options = NetnsOptions(gbps=0.03, mtu=9000, relay="kernel", switch_delay_s=0.01)
    moved = NetnsFabric(a_name(), options).paced_gbps(plan)
    # Of two segments, 8948 bytes each, one acknowledgement of 66 bytes passes 7 other circuits.
    assert moved == pytest.approx(0.03 * 2 * 8948 / (2 * 9014 + 7 * 66))
    still = NetnsFabric(a_name(), NetnsOptions(gbps=0.03, mtu=9000)).paced_gbps(plan)
    assert still == pytest.approx(0.03 * 2 * 8948 / (2 * 9014 + 66))
    assert NetnsFabric(a_name(), NetnsOptions(relay="kernel")).paced_gbps(plan) is None
