"""The rendezvous of a job's rank with the others, and the job's network, for `backend`."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torch_topoopt.discovery.host import shared_memory_allowed
from torch_topoopt.environment import CONNECTIONS_VARIABLE, ENCRYPT_VARIABLE, TRANSPORT_VARIABLE
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.forwarded_links import unlinked_servers
from torch_topoopt.links.identity import (
    wire_version,
    without_connections,
    without_encryption,
    without_transport,
)
from torch_topoopt.links.meeting import FIRST_ANSWER, broadcast, failure_broadcast, receive
from torch_topoopt.links.options import PLAIN, RequestedLinks
from torch_topoopt.links.rank_layout import RankLayout
from torch_topoopt.links.rank_links import JobNetwork
from torch_topoopt.links.secret import given_secret, sign, verified
from torch_topoopt.links.sockets import OpenLink, connections, describe, time_left
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Link
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.given import PLAN_VARIABLE, given_plan
from torch_topoopt.runtime.link_options import provider_chooser
from torch_topoopt.runtime.session_types import LinkSpec, SessionCable
from torch_topoopt.runtime.versions import build_info
from torch_topoopt.topology.failures.remaining import remaining_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.links.rank_links import RankLinks
    from torch_topoopt.plan import Plan

log = logging.getLogger("torch_topoopt")


class StoreMeeting:
    """Ranks meet in torch.distributed's store; `who` describes one in an error.

    With TOPOOPT_SECRET_FILE, all messages are signed with its secret, and others are ignored: the
    store itself has no access control.
    """

    def __init__(
        self, store: Any, rank: int, who: Callable[[int], str] = lambda rank: f"rank {rank}"
    ) -> None:
        self._store = store
        self._rank = rank
        self._who = who
        self._secret = given_secret()
        # A group with a reused name finds the keys of its first life in the store.
        self.life = store.add(f"lives/{rank}", 1)

    def publish(self, topic: str, text: str) -> None:
        key = self._key(topic, self._rank)
        self._store.set(key, sign(self._secret, key, text))

    def collect(self, topic: str, ranks: Iterable[int], deadline: float) -> dict[int, str]:
        ranks = list(ranks)
        keys = [self._key(topic, rank) for rank in ranks]
        if not keys:
            return {}
        try:
            self._store.wait(keys, timedelta(seconds=time_left(deadline)))
        except dist.DistStoreError:
            raise self.late(topic, self.missing(topic, ranks)) from None
        texts = [text.decode("utf-8", "replace") for text in self._store.multi_get(keys)]
        return {
            rank: verified(self._secret, key, text)
            for rank, key, text in zip(ranks, keys, texts, strict=True)
        }

    def missing(self, topic: str, ranks: Sequence[int]) -> list[int]:
        """The `ranks` that have not published; does not wait."""
        keys = [self._key(topic, rank) for rank in ranks]
        if not keys or self._store.check(keys):
            return []
        return [rank for rank, key in zip(ranks, keys, strict=True) if not self._store.check([key])]

    def late(self, topic: str, missing: Sequence[int]) -> FabricError:
        """The error where `missing` have not published in time."""
        names = ", ".join(map(self._who, missing)).replace(", rank ", ", ")
        return FabricError(f"{self._who(self._rank)}: no sign of {names} in time ({topic})")

    def _key(self, topic: str, rank: int) -> str:
        return f"{topic}/{self.life}/{rank}"


@dataclass(frozen=True)
class Place:
    """The identity of a process before the rendezvous: it is `ranks[index]`.

    `ranks` are those of the rendezvous, among the `world_size` ranks of torch.distributed.
    `server` is that of an earlier job of this process, if any. A `separate` job numbers its ranks
    independently of torch.distributed.
    """

    index: int
    ranks: tuple[int, ...]
    world_size: int
    server: int | None = None
    separate: bool = False


def meet_versions(
    meeting: Meeting,
    place: Place,
    deadline: float,
    *,
    requested: RequestedLinks = PLAIN,
) -> str:
    """This rank's version (identity.wire_version), which rank 0 compares with that of all others.

    Runs first, because messages of other versions may not parse. Raises FabricError on rank 0;
    others receive the error as its first answer.
    """
    info = build_info()
    here = wire_version(
        info.sources if info is not None else "",
        encrypted=requested.encrypted,
        transport=requested.transport,
        connections=requested.connections,
    )
    meeting.publish("version", here)
    if place.index == 0:
        with failure_broadcast(meeting, FIRST_ANSWER):
            for rank, there in meeting.collect(
                "version", range(len(place.ranks)), deadline
            ).items():
                if there != here:
                    raise FabricError(
                        f"rank {place.ranks[rank]} has torch_topoopt {there}, "
                        f"rank {place.ranks[0]} has {here}; {_advice(there, here)}"
                    )
    return here


def _advice(there: str, here: str) -> str:
    if without_encryption(there) == without_encryption(here):
        return f"run all with --encrypt or {ENCRYPT_VARIABLE}=1, or none"
    if without_transport(there) == without_transport(here):
        return f"run all with the same --transport or {TRANSPORT_VARIABLE}"
    if without_connections(there) == without_connections(here):
        return f"run all with the same --connections or {CONNECTIONS_VARIABLE}"
    return "install the same on all hosts"


def given_network(meeting: Meeting, place: Place, deadline: float) -> JobNetwork | None:
    """The network planned and wired by `topoopt run`; None without a plan.

    Processes stay on their servers. If some servers have no rank here, the network is the rest of
    the plan's links. Raises DocumentError if the ranks do not fit the plan, FabricError if one does
    not come, and DisconnectedError if too few links are left.
    """
    names = [name for name in (PLAN_VARIABLE, "TOPOOPT_WIRING") if os.environ.get(name)]
    if len(names) == 1:
        raise RuntimeError(
            f"topoopt: {names[0]} is set, but a plan and its wiring go together: set both "
            "TOPOOPT_PLAN and TOPOOPT_WIRING, or none to discover the network"
        )
    given = given_plan()
    if given is None:
        return None
    plan = given.plan
    layout = _meet_on_servers(meeting, place, plan.cluster.servers, deadline)
    wiring = Wiring.load(os.environ["TOPOOPT_WIRING"]).check(plan, given.text_digest)
    left = set(layout.server_of)
    if len(left) < plan.cluster.servers:
        plan, wiring = _without_others(plan, wiring, left)
        log.info("the plan's network, of servers %s only", ", ".join(map(str, sorted(left))))
    return JobNetwork(plan, wiring, layout)


def _meet_on_servers(meeting: Meeting, place: Place, servers: int, deadline: float) -> RankLayout:
    """The servers of the ranks, which rank 0 gathers from all ranks."""
    known = place.server
    if known is None and place.separate:  # counts all started ranks, perhaps more than meet
        world = RankLayout.even(servers, int(os.environ.get("WORLD_SIZE", place.world_size)))
        known = world.server_of[int(os.environ.get("RANK", place.index))]
    elif known is None and len(place.ranks) < place.world_size:
        known = RankLayout.even(servers, place.world_size).server_of[place.ranks[place.index]]
    meeting.publish("server", json.dumps(known))
    if place.index == 0:
        with failure_broadcast(meeting, FIRST_ANSWER):
            texts = meeting.collect("server", range(len(place.ranks)), deadline)
            known_of = [json.loads(text) for _, text in sorted(texts.items())]
            broadcast(meeting, FIRST_ANSWER, known_of)
    return RankLayout(tuple(lay_out(receive(meeting, FIRST_ANSWER, deadline), servers)))


def lay_out(known: Sequence[int | None], servers: int) -> list[int]:
    """Rank -> server, from the ranks that know theirs; raises DocumentError if there is none."""
    placed = [server for server in known if server is not None]
    if len(placed) == len(known):
        return placed
    even = list(RankLayout.even(servers, len(known)).server_of)
    moved = [rank for rank, server in enumerate(known) if server not in (None, even[rank])]
    if moved:
        rank = moved[0]
        raise DocumentError(
            f"rank {known.index(None)} is new to this job, so ranks must be on servers in "
            f"their order, but rank {rank} is on server {known[rank]}, not {even[rank]}"
        )
    return even


def _without_others(plan: Plan, wiring: Wiring, left: set[int]) -> tuple[Plan, Wiring]:
    """Plan and wiring of the servers in `left`, which keep their numbers.

    The ranks relay by themselves, since the kernel of a server without ranks may be gone.
    """
    network = remaining_network(plan.cluster, plan.network, left)
    reduced = dataclasses.replace(plan, network=network, failures=None, strategy=())
    return reduced, dataclasses.replace(wiring, plan_digest=reduced.digest(), forwarded=())


def log_link(opened: OpenLink, wiring: Wiring) -> None:
    connection, link = opened.connection, opened.link
    near, far = connection.getsockname()[:2], connection.getpeername()[:2]
    own = (link.source, link.source_port) if opened.sends else (link.target, link.target_port)
    interface = wiring.by_port()[own].interface
    where = f" on {interface}" if interface else ""
    log.info("%s: %s:%d%s - %s:%d", describe(link), *near, where, *far)


def session_cables(network: JobNetwork, per_link: int) -> list[SessionCable]:
    """All cables of the job: first connections(plan), then forwarded ones.

    The transport treats each of the `per_link` connections of a link as a cable, which may fail
    alone; they are consecutive and share the link's rate.
    """
    plan, leaders = network.plan, network.layout.leaders
    duplex = plan.cluster.ports == "duplex"
    rates = network.wiring.planned_rates(plan)
    known = all(link in rates for link in plan.network.links)
    ends = [
        SessionCable(
            link,
            leaders[link.source],
            leaders[link.target],
            duplex,
            (rates[link] if known else 1.0) / per_link,
        )
        for link in connections(plan)
        for _ in range(per_link)
    ]
    for a, b in _forwarded_pairs(network):  # over the cables of others
        ends.append(SessionCable(Link(a, -1, b, -1), a, b, True, 0.0))
    return ends


def _forwarded_pairs(network: JobNetwork) -> Iterator[tuple[int, int]]:
    leaders = network.layout.leaders
    for entry in network.wiring.forwarded:
        for other in unlinked_servers(network.plan, entry.server):
            if entry.server < other:
                yield leaders[entry.server], leaders[other]


def link_specs(
    extension: Any,
    links: RankLinks,
    network: JobNetwork,
    rank: int,
    requested: RequestedLinks,
) -> list[LinkSpec]:
    """The connections of this rank; a Session then owns their descriptors.

    Connections between servers are encrypted on request; others stay in the kernel of one machine.
    The plan's links use the requested transport; a forwarded one is TCP, since other hosts relay
    it.
    """
    planned, per_link = list(connections(network.plan)), links.ports.per_link
    number = {link.reverse: i for i, link in enumerate(planned)}  # the other end of a duplex cable
    number |= {link: i for i, link in enumerate(planned)}
    specs = []
    provider_of = provider_chooser(extension, requested.transport)
    for opened in links.planned:
        log_link(opened, network.wiring)
        link = opened.link
        provider = provider_of(opened.connection)
        specs.append(
            LinkSpec(
                link=link,
                fd=opened.connection.detach(),
                sends=opened.sends,
                kind="fabric" if provider else "socket",
                peer=network.layout.leaders[link.target if opened.sends else link.source],
                cable=number[link] * per_link + opened.number,
                tls_key=opened.key if requested.encrypted else b"",
                provider=provider,
            )
        )
    local = "shm" if shared_memory_allowed() else "socket"
    for peer, connection in links.local.items():
        between = Link(rank, -1, peer, -1)
        specs.append(LinkSpec(between, connection.detach(), True, local, peer))
    pairs = _forwarded_pairs(network) if links.forwarded else ()
    forwarded = {pair: len(planned) * per_link + i for i, pair in enumerate(pairs)}
    for peer, connection in links.forwarded.items():
        specs.append(
            LinkSpec(
                link=Link(rank, -1, peer, -1),
                fd=connection.detach(),
                sends=True,
                kind="socket",
                peer=peer,
                cable=forwarded[min(rank, peer), max(rank, peer)],
                tls_key=links.forwarded_keys[peer] if requested.encrypted else b"",
            )
        )
    for spec in specs:
        if spec.cable >= 0:  # between servers
            spec.threads, spec.zero_copy = requested.link_threads, requested.zero_copy
    return specs
