"""Finds, without a plan, the ranks that share a machine and the machines that reach each other.

Every rank announces its host, and rank 0 groups the ranks by machine. The leaders of the machines
then listen at their interfaces, and probe each other's addresses in rounds from rank 0, until all
are connected. If rates are unknown and some networks could be left out, they send each other
floods. Rank 0 chooses the networks and makes the Plan and the Wiring for all ranks. An error on a
rank becomes an error on all.

Measured rates are cached for later jobs on the same hosts and interfaces, unless
TOPOOPT_COST_MODEL=measure: another choice of networks would round sums in another order.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from torch_topoopt.discovery import kept_rates
from torch_topoopt.discovery.choice import describe_choice
from torch_topoopt.discovery.floods import FloodRate, send_floods
from torch_topoopt.discovery.host import Announcement, usable_interfaces
from torch_topoopt.discovery.interfaces import INTERFACES_VARIABLE, Interface
from torch_topoopt.discovery.network import plan_network
from torch_topoopt.discovery.network_choice import (
    NetworkChoice,
    choose_networks,
    floods_to_send,
    measured_ports,
)
from torch_topoopt.discovery.probe import Probe, Responder, send_probes
from torch_topoopt.discovery.reach import (
    Server,
    components,
    rounds,
    still_worth_sending,
    unreachable,
)
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import FIRST_ANSWER, broadcast, broadcast_error, receive
from torch_topoopt.links.rank_layout import RankLayout
from torch_topoopt.links.rank_links import JobNetwork
from torch_topoopt.links.sockets import listen, time_left
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Plan, digest_of
from torch_topoopt.plan.codec import DocumentError, decode

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator, Iterator, Sequence

    from torch_topoopt.discovery.kept_rates import MeasuredPort
    from torch_topoopt.links.meeting import Meeting

log = logging.getLogger("torch_topoopt")

# what the leaders do in a turn
_PROBES, _FLOODS, _END = "probes", "floods", "end"


def discover(meeting: Meeting, rank: int, world_size: int, deadline: float) -> JobNetwork:
    """Finds the network of this job together with all its ranks; raises FabricError."""
    host = Announcement.here(rank)
    meeting.publish("host", json.dumps(vars(host)))
    lead = _lead(meeting, world_size, deadline) if rank == 0 else iter(())
    next(lead, None)
    laid_out = receive(meeting, FIRST_ANSWER, deadline)
    layout = RankLayout(tuple(laid_out["server_of"]))
    with ExitStack() as on_failure:
        listeners: dict[tuple[str, int], socket.socket] = {}
        if layout.is_leader(rank) and len(layout.leaders) > 1:
            member = _Member(meeting, layout.server_of[rank], laid_out["job"], deadline)
            on_failure.enter_context(member)
            member.listen(host.name, one_machine=laid_out["one_machine"])
            if not laid_out["one_machine"]:
                member.try_addresses(lead)
            listeners = member.listeners
        next(lead, None)
        found = laid_out if "plan" in laid_out else receive(meeting, "found", deadline)
        plan = Plan.from_json(found["plan"])
        wiring = Wiring.from_json(found["wiring"]).check(plan, digest_of(found["plan"]))
        on_failure.pop_all()
    return JobNetwork(plan, wiring, layout, listeners)


@dataclass(frozen=True)
class _Ports:
    """A leader's interfaces, with the TCP port that listens at each; `error`: why it has none."""

    interfaces: tuple[Interface, ...]
    tcp_ports: tuple[int, ...]
    error: str


class _Member:
    """The leader of one server, while addresses are tried."""

    def __init__(self, meeting: Meeting, server: int, job: str, deadline: float) -> None:
        self._meeting = meeting
        self._server = server
        self._job = job
        self._deadline = deadline
        self.listeners: dict[tuple[str, int], socket.socket] = {}

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *failure: object) -> None:
        for listener in self.listeners.values():
            listener.close()

    def listen(self, host: str, *, one_machine: bool) -> None:
        """Opens a port at each usable interface, and publishes them to rank 0."""
        error, interfaces = "", list[Interface]()
        try:
            interfaces = usable_interfaces(host, one_machine=one_machine)
            for interface in interfaces:
                self._listen_at(interface)
        except (FabricError, OSError) as failure:
            error = str(failure)
        ports = _Ports(tuple(interfaces), tuple(port for _, port in self.listeners), error)
        self._meeting.publish("ports", json.dumps(asdict(ports)))

    def _listen_at(self, interface: Interface) -> None:
        address, name = interface.address, interface.name
        try:
            listener = listen(address, 0, name)
        except OSError as failure:
            raise FabricError(f"cannot listen at {address} ({name}): {failure.strerror}") from None
        self.listeners[address, listener.getsockname()[1]] = listener

    def try_addresses(self, lead: Iterator[None]) -> None:
        """Answers probes, and sends those that rank 0 requests, until its last request."""
        responder = Responder(list(self.listeners.values()), self._job, self._server)
        try:
            for turn in count():
                next(lead, None)
                kind, orders = receive(self._meeting, f"probes/{turn}", self._deadline)
                if kind == _END:
                    return
                own = [Probe(**order) for order in orders if order["source"] == self._server]
                send = send_floods if kind == _FLOODS else send_probes
                found = [asdict(one) for one in send(own, self._job)]
                self._meeting.publish(f"reached/{turn}", json.dumps(found))
        finally:
            responder.close()


def _lead(meeting: Meeting, world_size: int, deadline: float) -> Iterator[None]:
    """Rank 0's part. It yields when rank 0 has to act like every other leader.

    A failure is published at the others' next wait.
    """
    # the others wait until `deadline` for messages of rank 0, such as a missing rank
    deadline -= 0.1 * time_left(deadline)
    try:
        hosts = _gather_hosts(meeting, world_size, deadline)
    except FabricError as failure:
        broadcast_error(meeting, FIRST_ANSWER, str(failure))
        return
    server_of = group_ranks(hosts)
    one_machine = len({host.machine for host in hosts}) == 1
    job = secrets.token_hex(8)
    layout = RankLayout(tuple(server_of))
    message: dict[str, Any] = {"server_of": server_of, "one_machine": one_machine, "job": job}
    if len(layout.leaders) == 1:
        alone = Server(hosts[0].name, hosts[0].machine, layout.ranks_of[0], (), ())
        documents = _documents([alone], NetworkChoice(*plan_network([alone], [])))
        broadcast(meeting, FIRST_ANSWER, message | documents)
        return
    broadcast(meeting, FIRST_ANSWER, message)
    yield
    turns = _Turns(meeting, layout, deadline)
    try:
        servers = _gather_ports(meeting, layout, hosts, deadline)
        if one_machine:  # its ranks reach each other; where not, opening the links says so
            reached = [probe for probes in rounds(servers) for probe in probes]
        else:
            reached = yield from _reached(turns, servers)
        if one_machine or any(host.named for host in hosts):
            choice = NetworkChoice(*plan_network(servers, reached))
        else:
            measured = yield from _measured(turns, servers, reached)
            choice = choose_networks(servers, reached, measured)
        broadcast(meeting, "found", _documents(servers, choice))
    except (FabricError, DocumentError) as failure:
        broadcast_error(meeting, "found", f"discovery: {failure}")
    turns.end()


class _Turns:
    """Rank 0's orders to the leaders, one after the other, and their answers."""

    def __init__(self, meeting: Meeting, layout: RankLayout, deadline: float) -> None:
        self._meeting = meeting
        self._leaders = layout.leaders
        self._deadline = deadline
        self._turn = -1

    def order(self, kind: str, probes: list[Probe]) -> None:
        self._turn += 1
        orders = [kind, [asdict(probe) for probe in probes]]
        broadcast(self._meeting, f"probes/{self._turn}", orders)

    def answers(self) -> list[Any]:
        """The answers of all leaders to the last order."""
        texts = self._meeting.collect(f"reached/{self._turn}", self._leaders, self._deadline)
        return [answer for leader in self._leaders for answer in json.loads(texts[leader])]

    def end(self) -> None:
        self.order(_END, [])


def _reached(turns: _Turns, servers: list[Server]) -> Generator[None, None, list[Probe]]:
    """The answered probes; raises FabricError if they do not connect all servers."""
    reached: list[Probe] = []
    for probes in rounds(servers):
        if orders := still_worth_sending(probes, servers, reached):
            turns.order(_PROBES, orders)
            yield
            reached += [Probe(**answer) for answer in turns.answers()]
    parts = components(len(servers), [(p.source, p.target) for p in reached])
    if len(parts) > 1:
        raise FabricError(unreachable(servers, parts))
    return reached


def _measured(
    turns: _Turns, servers: list[Server], reached: list[Probe]
) -> Generator[None, None, Sequence[MeasuredPort]]:
    """The rates that the choice depends on and no network card reports."""
    floods = floods_to_send(servers, reached)
    if not floods:
        return ()
    path = kept_rates.path_of(servers, reached)
    if (kept := kept_rates.read(path)) is not None:
        return kept
    turns.order(_FLOODS, floods)
    yield
    flows = [FloodRate.from_plain(answer) for answer in turns.answers()]
    measured = measured_ports(servers, reached, flows)
    kept_rates.keep(path, measured)
    return measured


_printed = False  # the line of the first discovery of this process


def _documents(servers: list[Server], choice: NetworkChoice) -> dict[str, Any]:
    """The documents for all ranks; describes them in one line.

    Only the first discovery of a process prints it; later ones log it.
    """
    global _printed
    line = describe_choice(servers, choice)
    if not _printed:
        print(f"topoopt: {line}", file=sys.stderr, flush=True)
    else:
        log.info("%s", line)
    _printed = True
    return {"plan": choice.plan.to_json(), "wiring": choice.wiring.to_json()}


def _gather_hosts(meeting: Meeting, world_size: int, deadline: float) -> list[Announcement]:
    texts = meeting.collect("host", range(world_size), deadline)
    hosts = [decode(Announcement, json.loads(texts[rank])) for rank in range(world_size)]
    for rank, host in enumerate(hosts):
        if host.error:
            raise FabricError(f"discovery: rank {rank}: {host.error}")
    nowhere = set.intersection(*(set(host.unmatched) for host in hosts))
    if nowhere:
        known = ", ".join(sorted({name for host in hosts for name in host.selected}))
        raise FabricError(
            f"discovery: {INTERFACES_VARIABLE}: no host has an interface {min(nowhere)!r} that is "
            f"up and has an address (found: {known})"
        )
    return hosts


def group_ranks(hosts: list[Announcement]) -> list[int]:
    """Rank -> server: ranks of one identity are one server, in the order of their lowest ranks."""
    servers: dict[str, int] = {}
    return [servers.setdefault(host.identity, len(servers)) for host in hosts]


def _gather_ports(
    meeting: Meeting,
    layout: RankLayout,
    hosts: list[Announcement],
    deadline: float,
) -> list[Server]:
    texts = meeting.collect("ports", layout.leaders, deadline)
    servers = []
    for server, leader in enumerate(layout.leaders):
        ports = decode(_Ports, json.loads(texts[leader]))
        host = hosts[leader]
        if ports.error:
            raise FabricError(f"rank {leader} (host {host.name}) {ports.error}")
        ranks = layout.ranks_of[server]
        servers.append(Server(host.name, host.machine, ranks, ports.interfaces, ports.tcp_ports))
    return servers
