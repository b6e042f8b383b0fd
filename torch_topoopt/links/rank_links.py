"""Opens every connection of one rank: to the ranks of its server, and as leader over its ports.

If hosts forward, a leader also connects to the leaders of servers without a link.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.forwarded_links import ForwardedPort, unlinked_servers
from torch_topoopt.links.handshake import Handshakes
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.local_links import LocalPort
from torch_topoopt.links.secret import fresh_secret, given_secret
from torch_topoopt.links.sockets import ServerPorts

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.links.rank_layout import RankLayout
    from torch_topoopt.links.rank_port import RankPort
    from torch_topoopt.links.sockets import OpenLink
    from torch_topoopt.links.source_ports import SourcePorts
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan


@dataclass(frozen=True)
class Timeouts:
    """`meet_s` waits for ranks that may start much later, `connect_s` for the quick steps after."""

    meet_s: float
    connect_s: float


@dataclass(frozen=True)
class JobNetwork:
    """The network of a job, from files or discovered.

    `listeners` (address and TCP port -> socket) are this rank's open listeners.
    """

    plan: Plan
    wiring: Wiring
    layout: RankLayout
    listeners: Mapping[tuple[str, int], socket.socket] = field(default_factory=dict)


@dataclass(frozen=True)
class RankLinks:
    """The connections of one rank: planned links (of leaders only), and rank -> connection.

    `forwarded`: connections to leaders of other servers that the hosts between forward, with keys
    that only the two ends know. `identity` is the facts that the ranks have proven to each other.
    """

    identity: Identity
    ports: ServerPorts

    planned: list[OpenLink]
    local: dict[int, socket.socket]
    forwarded: dict[int, socket.socket]
    forwarded_keys: dict[int, bytes] = field(default_factory=dict, repr=False)


def open_rank_links(
    network: JobNetwork,
    rank: int,
    meeting: Meeting,
    timeouts: Timeouts,
    version: str,
    source_ports: SourcePorts | None = None,
    per_link: int = 1,
) -> RankLinks:
    """Opens and verifies all connections of `rank`; raises FabricError, and leaves none open then.

    Closes the listeners of the network at the end. `version` is a wire_version(). Of two ranks
    without a planned link, the higher one connects. Planned links have `per_link` connections, from
    `source_ports` if it has some.
    """
    plan, wiring, layout = network.plan, network.wiring, network.layout
    server = layout.server_of[rank]
    leads = layout.is_leader(rank)
    secret = job_secret(meeting, rank, _in(timeouts.meet_s))
    identity = Identity(secret, wiring.plan_digest, version)
    with ExitStack() as stack:
        ports = stack.enter_context(
            ServerPorts(plan, wiring, server, network.listeners, source_ports, per_link)
        )
        # port of connections to other ranks -> those ranks
        kinds: list[tuple[RankPort, tuple[int, ...]]] = [
            (stack.enter_context(LocalPort(rank)), layout.peers(rank))
        ]
        if leads and wiring.forwarded:
            far = tuple(layout.leaders[other] for other in unlinked_servers(plan, server))
            kinds.append((stack.enter_context(_forwarded(rank, server, wiring)), far))
        if leads:
            ports.listen()
        meeting.publish("listening", " ".join(port.name for port, _ in kinds))
        met = {layout.leaders[link.target] for link in ports.outgoing} if leads else set()
        met |= {other for _, others in kinds for other in others if other < rank}
        names = meeting.collect("listening", sorted(met), _in(timeouts.meet_s))
        deadline = _in(timeouts.connect_s)
        handshakes = stack.enter_context(Handshakes(identity))
        if leads:
            ports.expect(handshakes)
            ports.connect(handshakes)
        for kind, (port, others) in enumerate(kinds):
            lower = [other for other in others if other < rank]
            port.expect([other for other in others if other > rank], handshakes)
            port.connect(
                {other: names[other].split(" ")[kind] for other in lower}, handshakes, deadline
            )
        handshakes.run(deadline)
        proven, keys = handshakes.take(), handshakes.keys()
        local, *forwarded = (port.taken(proven) for port, _ in kinds)
        forwarded_keys = [port.taken(keys) for port, _ in kinds[1:]]
        ports.keep()
        planned = ports.taken(proven, keys)
        return RankLinks(identity, ports, planned, local, dict(*forwarded), dict(*forwarded_keys))


def job_secret(meeting: Meeting, rank: int, deadline: float) -> bytes:
    """The secret of a job's ranks: from TOPOOPT_SECRET_FILE, or a new one of rank 0.

    Rank 0 publishes a new one to everyone that reaches the meeting. Raises FabricError for an
    unusable file.
    """
    given = given_secret()
    if given is not None:
        return given
    if rank == 0:
        meeting.publish("secret", fresh_secret().hex())
    return bytes.fromhex(meeting.collect("secret", [0], deadline)[0])


def _forwarded(rank: int, server: int, wiring: Wiring) -> ForwardedPort:
    address = wiring.forwarded[server].address
    rates = [port.gbps for port in wiring.ports if port.server == server and port.gbps is not None]
    try:
        return ForwardedPort(rank, address, max(rates, default=None))
    except OSError as error:
        raise FabricError(
            f"server {server} cannot listen at its forwarded address {address}: {error.strerror}"
        ) from None


def _in(seconds: float) -> float:
    return time.monotonic() + seconds
