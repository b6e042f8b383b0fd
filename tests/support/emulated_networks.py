"""Emulated Clos networks for tests, which skip where there are no namespaces."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from support.fabric.netns_fixtures import a_name, require_namespaces
from support.limits import limit_s
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.route_control.emulation.clos import EmulatedClos

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.route_control.network_file import NetworkFile
    from torch_topoopt.route_control.probing.probed_flow import ProbedFlow

GBPS = 0.1
SENT_BYTES = 60_000


@contextlib.contextmanager
def emulated(network: NetworkFile, state: Path) -> Iterator[EmulatedClos]:
    """The network, whose record is under `state`."""
    require_namespaces()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        with EmulatedClos(a_name(), network, GBPS) as clos:
            yield clos


def cables_taken(clos: EmulatedClos, flow: ProbedFlow) -> set[str]:
    """The cables between switches that carry what a real connection of `flow` sends."""
    names = clos.names
    here = names.host_address(flow.source), flow.source_port
    there = names.host_address(flow.target), flow.target_port
    listener = netns_kernel.inside(
        names.namespace(flow.target), lambda: socket.create_server(there, backlog=1)
    )

    def connect() -> socket.socket:
        return socket.create_connection(there, timeout=limit_s(20.0), source_address=here)

    with listener, netns_kernel.inside(names.namespace(flow.source), connect) as sender:
        listener.settimeout(limit_s(20.0))
        receiver, _ = listener.accept()
        with receiver:
            receiver.settimeout(limit_s(20.0))
            before = _sent_bytes(clos)
            sender.sendall(bytes(SENT_BYTES))
            got = 0
            while got < SENT_BYTES:
                got += len(receiver.recv(1 << 16))
            after = _sent_bytes(clos)
    return {
        name
        for end, name in after
        if after[end, name] - before[end, name] >= SENT_BYTES and name.startswith("cable")
    }


def _sent_bytes(clos: EmulatedClos) -> dict[tuple[str, str], int]:
    """(switch, interface) -> bytes."""
    found = {}
    for switch in clos.names.switches:
        with netns_kernel.open_route(clos.names.namespace(switch)) as route:
            for link in route.get_links():
                sent = link.get_attr("IFLA_STATS64")["tx_bytes"]
                found[switch, link.get_attr("IFLA_IFNAME")] = sent
    return found
