"""Tests the links of a plan from one host, and combines the outcomes of all hosts.

A test uses a TCP connection with the handshake of training, then full-size packets from both ends.
It never uses a gateway: otherwise the management network could hide an unplugged cable.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_topoopt.links import sockets
from torch_topoopt.links.addresses import (
    family_of,
    far_endpoint,
    own_endpoint,
    stay_on_cable,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes, NoAnswerError
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.proof import Expected
from torch_topoopt.plan import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.fabric.cluster.static_plan import PortNames
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.links.wiring import PortAddress, Wiring
    from torch_topoopt.plan import Plan

# Port of this server -> the ports (server, port) whose announcements arrive over its cable
Senders = dict[str, frozenset[tuple[str, str]]]

_LOAD_BYTES = 64 << 10  # several packets of any size that a link may have

Failures = dict[Link, str]  # link -> why it does not work


def ends_of(link: Link) -> tuple[tuple[int, int], tuple[int, int]]:
    """(server, port) of both ends."""
    return (link.source, link.source_port), (link.target, link.target_port)


def check_links(
    plan: Plan,
    wiring: Wiring,
    server: int,
    listeners: Mapping[tuple[int, int], socket.socket],
    secret: bytes,
    timeout_s: float,
) -> Failures:
    """Tests the links of `server`, all at once, and returns those that fail within `timeout_s`.

    `listeners` ((server, port) -> socket) must be open on all hosts, with the same `secret`.
    """
    deadline = time.monotonic() + timeout_s
    identity = Identity(secret, wiring.plan_digest)
    ports = wiring.by_port()
    attempts: dict[Link, Callable[[], str]] = {}
    for link in sockets.connections(plan):
        near, far = (ports[end] for end in ends_of(link))
        job = (link, identity, deadline)
        if link.source == server:
            attempts[link] = partial(_call, *job, near, far, wiring.tcp_port_of(far))
        elif link.target == server:
            attempts[link] = partial(_answer, *job, listeners[link.target, link.target_port])
    if not attempts:
        return {}
    with ThreadPoolExecutor(len(attempts)) as pool:
        tried = {link: pool.submit(attempt) for link, attempt in attempts.items()}
        return {link: why for link, future in tried.items() if (why := future.result())}


def _call(
    link: Link,
    identity: Identity,
    deadline: float,
    near: PortAddress,
    far: PortAddress,
    tcp_port: int,
) -> str:
    """The reason why this end does not reach the other; "" if it does."""
    with Handshakes(identity) as handshakes:
        try:
            connection = _connect(near, far, tcp_port, deadline)
            handshakes.dial(sockets.ends_of(link), far.address, connection)
            handshakes.run(deadline)
            connection.settimeout(sockets.time_left(deadline))
            _send_load(connection)
            _receive_load(connection)
        except (TimeoutError, NoAnswerError):
            return f"{far.address} does not answer"
        except ConnectionRefusedError:
            return f"{far.address} refuses connections to TCP port {tcp_port}"
        except OSError as error:
            return f"{far.address}: {error.strerror or error}"
        except FabricError as error:
            return f"{far.address}: {str(error).partition(': ')[2]}"
    return ""


def _connect(near: PortAddress, far: PortAddress, tcp_port: int, deadline: float) -> socket.socket:
    connection = socket.socket(family_of(near.address), socket.SOCK_STREAM)
    try:
        connection.settimeout(sockets.time_left(deadline))
        if connection.family == socket.AF_INET6:  # which knows no SO_DONTROUTE
            connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        stay_on_cable(connection, near.address, near.interface)
        connection.bind(own_endpoint(near.address, 0))
        connection.connect(far_endpoint(far.address, tcp_port, near.address))
    except BaseException:
        connection.close()
        raise
    return connection


def _answer(link: Link, identity: Identity, deadline: float, listener: socket.socket) -> str:
    """The reason why the right server has not connected to this end; "" if it has."""
    ends = sockets.ends_of(link)
    with Handshakes(identity) as handshakes:
        try:
            handshakes.expect(Expected(listener, {ends: "link"}, lambda connection, _: None))
            handshakes.run(deadline)
            connection = handshakes.proven(ends)
            connection.settimeout(sockets.time_left(deadline))
            _receive_load(connection)
            _send_load(connection)
        except NoAnswerError:
            closed = handshakes.unauthenticated
            return "no server has connected" + (
                f", {closed} unauthenticated peers have" if closed else ""
            )
        except (OSError, FabricError) as error:
            return f"a server has connected, but: {str(error).rpartition(': ')[2]}"
    return ""


def _send_load(connection: socket.socket) -> None:
    connection.sendall(bytes(_LOAD_BYTES))


def _receive_load(connection: socket.socket) -> None:
    """Raises FabricError if small packets arrive and big ones do not."""
    left = _LOAD_BYTES
    try:
        while left and (part := connection.recv(left)):
            left -= len(part)
    except TimeoutError:
        raise FabricError(
            f"load: answers, but {left} of {_LOAD_BYTES} bytes do not arrive; is the MTU of both "
            "ends, and of all between them, the same?"
        ) from None
    if left:
        raise FabricError("load: the other end has given up")


def outcome_of(failures: Failures, senders: Senders) -> dict[str, Any]:
    """The outcome of one host, as JSON can carry it, for `verdict`."""
    return {
        "failures": [
            [link.source, link.source_port, link.target, link.target_port, why]
            for link, why in failures.items()
        ],
        "senders": {port: sorted(map(list, ends)) for port, ends in senders.items()},
    }


def verdict(
    file: ClusterFile, plan: Plan, placed: PortNames, outcomes: Sequence[dict[str, Any]]
) -> str:
    """The problems of the cables, from each server's `outcome_of`; "" if there is none.

    The reason of the connecting end is preferred; the announcements that an end receives identify
    the port at the other end of its cable.
    """
    reasons: dict[Link, dict[int, str]] = {}
    senders: dict[str, set[str]] = {}
    for server, outcome in enumerate(outcomes):
        for *ends, why in outcome["failures"]:
            reasons.setdefault(Link(*ends), {})[server] = why
        for port, others in outcome["senders"].items():
            senders[f"{file.servers[server].name}:{port}"] = {":".join(end) for end in others}
    problems = []
    for link in sockets.connections(plan):
        if link not in reasons:
            continue
        source, target = (placed[end] for end in ends_of(link))
        why = reasons[link].get(link.source) or reasons[link][link.target]
        found = _at_the_other_ends(source, target, senders)
        problems.append(f"cable {source} - {target} ({sockets.describe(link)}): {why}; {found}")
    if len(problems) > 1:
        problems.insert(0, f"{len(problems)} of the planned cables do not work:")
    return "\n  ".join(problems)


def _at_the_other_ends(source: str, target: str, senders: Mapping[str, set[str]]) -> str:
    if target in senders.get(source, ()) and source in senders.get(target, ()):
        return (
            "it is plugged in as the file says, so look at the addresses, their prefix lengths and "
            "the firewalls of both hosts"
        )
    parts = []
    for near, far in ((source, target), (target, source)):
        others = sorted(senders.get(near, set()) - {far})
        if far in senders.get(near, ()):
            parts.append(f"{near} receives announcements of {far}")
        elif others:
            parts.append(f"the cable at {near} goes to {', '.join(others)}")
        else:
            parts.append(f"no port answers at the other end of {near}")
    return "; ".join(parts)
