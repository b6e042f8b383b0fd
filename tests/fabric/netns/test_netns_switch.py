"""The emulated switch keeps the contract of every switch, and moves bytes as it moves circuits."""

from __future__ import annotations

import errno
import itertools
import socket
import time
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import a_name, require_namespaces
from support.fabric.switch_contract import Bench, SwitchContract, ports_of
from support.limits import limit_s, slowness
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.layout import NetnsLayout, socket_interface
from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.switch import SwitchUnreachable, cable_circuits

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = limit_s(20.0)


@pytest.fixture
def layout() -> Iterator[NetnsLayout]:
    """A switch with eight sockets; 1, 2 and 3 are the ports of the hosts 0, 1 and 2."""
    require_namespaces()
    layout = NetnsLayout(a_name())
    try:
        netns_kernel.create(layout.switch_namespace)
        with netns_kernel.open_route(layout.switch_namespace) as route:
            for number in range(1, 9):
                peer: dict[str, object] = {"ifname": f"free{number}"}
                if number <= 3:
                    host = layout.namespace(number - 1)
                    netns_kernel.create(host)
                    peer = {"ifname": "port0", "net_ns_fd": netns_kernel.path_of(host)}
                name = socket_interface(str(number))
                route.link("add", ifname=name, kind="veth", peer=peer)
                (index,) = route.link_lookup(ifname=name)
                route.link("set", index=index, state="up")
                route.tc("add", "clsact", index=index)
        for host_number in range(3):
            with netns_kernel.open_route(layout.namespace(host_number)) as route:
                (index,) = route.link_lookup(ifname="port0")
                address = f"10.9.0.{host_number + 1}"
                route.addr("add", index=index, address=address, prefixlen=24)
                route.link("set", index=index, state="up")
        yield layout
    finally:
        netns_kernel.remove(netns_kernel.of_fabric(layout.name))


@pytest.fixture
def bench(layout: NetnsLayout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    switch = NetnsSwitch(layout.switch_namespace, delay_s=0.01)
    person = NetnsSwitch(layout.switch_namespace)  # reads the kernel's state, as any process could

    def pull_the_fibre(circuit: Circuit) -> None:
        with netns_kernel.open_route(layout.switch_namespace) as route:
            (index,) = route.link_lookup(ifname=socket_interface(circuit.ingress[:-1]))
            route.link("set", index=index, state="down")

    def cut_after(changes: int) -> None:
        left = itertools.count(changes, -1)

        def refuse_one(call):  # type: ignore[no-untyped-def]
            def change(*arguments):  # type: ignore[no-untyped-def]
                if next(left) == 0:
                    raise OSError(errno.ENOBUFS, "no buffer space available")
                return call(*arguments)

            return change

        monkeypatch.setattr(switch, "_add_rule", refuse_one(switch._add_rule))
        monkeypatch.setattr(switch, "_delete_rule", refuse_one(switch._delete_rule))

    def ignore() -> None:
        monkeypatch.setattr(switch, "_add_rule", lambda rule: None)
        monkeypatch.setattr(switch, "_delete_rule", lambda ingress: None)

    yield Bench(switch, person.circuits, pull_the_fibre, cut_after, ignore)
    switch.close()


class TestNetnsSwitch(SwitchContract):
    pass


def datagrams(layout: NetnsLayout, host: int) -> socket.socket:
    """A socket of that host that receives all broadcasts, its own included."""

    def open_socket() -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        opened.bind(("0.0.0.0", 7000))
        opened.setblocking(False)
        return opened

    return netns_kernel.inside(layout.namespace(host), open_socket)


def received(host: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(host.recv(64))
        except BlockingIOError:
            return found


def test_bytes_flow_before_a_move_not_during_it_and_to_the_new_peer_after(
    layout: NetnsLayout,
) -> None:
    # Frames are handed from veth to veth within the call that sends them or soon after it: what is
    # to arrive is waited for, what must not arrive has a later frame behind it as a witness.
    delay_s = slowness()
    switch = NetnsSwitch(layout.switch_namespace, delay_s=delay_s)
    fence = ports_of(switch, "1", "2", "3")
    first, second = cable_circuits(switch, "1", "2"), cable_circuits(switch, "1", "3")
    with datagrams(layout, 0) as a, datagrams(layout, 1) as b, datagrams(layout, 2) as c:

        def say(text: bytes) -> None:
            a.sendto(text, ("10.9.0.255", 7000))

        def wait(host: socket.socket, text: bytes) -> list[bytes]:
            """Everything that has come up to `text`."""
            host.settimeout(LIMIT_S)
            got = [host.recv(64)]
            while got[-1] != text:
                got.append(host.recv(64))
            host.setblocking(False)
            return got

        say(b"no circuit yet")
        assert received(b) == received(c) == []
        configure(switch, first, fence, timeout_s=LIMIT_S)
        say(b"before")
        assert wait(b, b"before") == [b"before"]

        asked = time.monotonic()
        switch.apply(Difference(first, second))
        assert switch.circuits() == set(second)
        for _ in range(20):
            say(b"during")
            received(a)  # its own words
        switch.wait_settled(second, LIMIT_S + delay_s)
        assert time.monotonic() - asked >= delay_s

        say(b"after")
        assert wait(c, b"after") == [b"after"]
        assert received(b) == []
        c.sendto(b"and back", ("10.9.0.255", 7000))
        assert b"and back" in wait(a, b"and back")


def test_a_driver_that_died_during_a_move_has_a_successor_who_finishes_it(
    layout: NetnsLayout,
) -> None:
    died = NetnsSwitch(layout.switch_namespace, delay_s=3600.0)
    wanted = cable_circuits(died, "1", "2")
    died.apply(Difference((), wanted))
    later = NetnsSwitch(layout.switch_namespace, delay_s=0.01)
    assert later.circuits() == set(wanted)
    later.wait_settled(wanted, LIMIT_S)
    for timer in died._timers:
        timer.cancel()


def test_a_switch_that_is_not_there_is_unreachable() -> None:
    require_namespaces()
    with refused(SwitchUnreachable, "topoopt-missing-switch"):
        NetnsSwitch("topoopt-missing-switch")
