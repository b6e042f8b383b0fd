"""Which of the networks that join the hosts carry data: those with which collectives take least.

A network is what some interfaces share: a cable, or all that is plugged into a switch or has joined
a wireless network. Cables of about one rate are used together or not at all. Candidates are all
sets of networks that connect all servers. For each the links, rings and routes are made, and
priced: all_reduces of 8 MiB and of 16 bytes, and an all_to_all, which a slow link between two
servers delays although no ring uses it. Pure functions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, permutations
from statistics import median
from typing import TYPE_CHECKING

from torch_topoopt.discovery.kept_rates import MeasuredPort
from torch_topoopt.discovery.network import plan_network
from torch_topoopt.discovery.rates import ALIKE, MEASURABLE_GBPS, alike, two_digits
from torch_topoopt.discovery.reach import components
from torch_topoopt.plan import BYTES_PER_GBPS
from torch_topoopt.plan.units import format_gbps, format_seconds
from torch_topoopt.topology.finder.fixed_network import UNKNOWN_GBPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch_topoopt.discovery.floods import FloodRate
    from torch_topoopt.discovery.interfaces import Interface
    from torch_topoopt.discovery.probe import Probe
    from torch_topoopt.discovery.reach import Server
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan

Port = tuple[int, str]  # server, name of its interface

_SMALL_BYTES, _LARGE_BYTES = 16, 8 << 20
_OPERATIONS = ("all_reduce of 8 MiB", "all_reduce of 16 bytes", "all_to_all of 8 MiB")
# of a message and of a link, as csrc/plan/cost_model.h has them before anything is measured
_ALPHA_S, _HOP_S = 25e-6, 15e-6
_AS_GOOD = 1.05  # cost ratio below which the simpler choice wins
_DEAD_GBPS = 1e-6  # assumed for an interface whose floods fail
_MOST_KINDS = 5  # of networks; the search prices all of their subsets


@dataclass(frozen=True)
class NetworkChoice:
    """The documents of the chosen networks, and the reason as text; "" without alternatives."""

    plan: Plan
    wiring: Wiring
    reason: str = ""


@dataclass(frozen=True)
class _NetworkKind:
    """Networks that are used together: cables of about one rate, or one that is `shared`."""

    ports: frozenset[Port]
    gbps: float
    shared: bool


class _Reach:
    """The servers with the probes that were answered."""

    def __init__(self, servers: Sequence[Server], reached: Iterable[Probe]) -> None:
        self.servers = servers
        self.reached = tuple(reached)
        self._by_address = [{i.address: i for i in server.interfaces} for server in servers]

    def ends(self, probe: Probe) -> tuple[Port, Port]:
        near = self._by_address[probe.source][probe.source_address]
        far = self._by_address[probe.target][probe.target_address]
        return (probe.source, near.name), (probe.target, far.name)

    def interface(self, port: Port) -> Interface:
        return next(i for i in self.servers[port[0]].interfaces if i.name == port[1])

    def rate(self, port: Port) -> float:
        return self.interface(port).gbps or UNKNOWN_GBPS

    def among(self, ports: frozenset[Port]) -> tuple[Probe, ...]:
        return tuple(probe for probe in self.reached if ports.issuperset(self.ends(probe)))

    def connects(self, ports: frozenset[Port]) -> bool:
        """Whether these interfaces alone connect all servers."""
        pairs = [(probe.source, probe.target) for probe in self.among(ports)]
        return len(components(len(self.servers), pairs)) == 1

    @cached_property
    def networks(self) -> list[frozenset[Port]]:
        """The sets of interfaces that reach each other, directly or through others."""
        ports = sorted({port for probe in self.reached for port in self.ends(probe)})
        number = {port: i for i, port in enumerate(ports)}
        pairs = [(number[a], number[b]) for a, b in map(self.ends, self.reached)]
        sets = components(len(ports), pairs)
        return [frozenset(ports[i] for i in members) for members in sets]


# ---- measuring ---------------------------------------------------------------------------------


def floods_to_send(servers: Sequence[Server], reached: Iterable[Probe]) -> list[Probe]:
    """Simultaneous floods that measure the interfaces without a rate from a network card.

    In each network every interface sends to the next one and receives from the one before, as in a
    ring. None where every network is needed: then nothing is chosen.
    """
    reach = _Reach(servers, reached)
    everything = frozenset[Port]().union(*reach.networks)
    if not any(reach.connects(everything - network) for network in reach.networks):
        return []
    return [
        probe
        for network in reach.networks
        if not all(reach.interface(port).is_card for port in network)
        for probe in _around(reach, sorted(network))
    ]


def _around(reach: _Reach, ports: list[Port]) -> Iterator[Probe]:
    """From each port to the next one that it reaches."""
    between = {reach.ends(probe): probe for probe in reach.among(frozenset(ports))}
    between |= {ends[::-1]: _reverse(reach, probe) for ends, probe in between.items()}
    for at, port in enumerate(ports):
        others = (*ports[at + 1 :], *ports[:at])
        yield from [between[port, o] for o in others if (port, o) in between][:1]


def _reverse(reach: _Reach, probe: Probe) -> Probe:
    server, (_, far) = reach.servers[probe.source], reach.ends(probe)
    addresses = [interface.address for interface in server.interfaces]
    return replace(
        probe,
        source=probe.target,
        source_address=probe.target_address,
        target=probe.source,
        target_address=probe.source_address,
        target_tcp_port=server.tcp_ports[addresses.index(probe.source_address)],
        source_interface=far[1],
    )


def measured_ports(
    servers: Sequence[Server], reached: Iterable[Probe], flows: Sequence[FloodRate]
) -> list[MeasuredPort]:
    """The facts of interfaces from their floods.

    A flood is as slow as the slower one of its ends, so an interface of a network of many has the
    rate of its fastest flood, and a cable that of the slower direction. Where other floods have
    been answered and those of an interface have not, it carries next to nothing.
    """
    reach = _Reach(servers, reached)
    of_port: defaultdict[Port, list[FloodRate]] = defaultdict(list)
    for flow in flows:
        for port in reach.ends(flow.probe):
            of_port[port].append(flow)
    rates: dict[Port, float] = {}
    for network in reach.networks:
        judge = min if len(network) == 2 else max
        for port in network & of_port.keys():
            flow = judge(of_port[port], key=lambda flow: flow.gbps)
            limit = math.inf if reach.interface(port).wireless else MEASURABLE_GBPS
            if flow.limited_by_link and flow.gbps < limit:
                rates[port] = max(flow.gbps, _DEAD_GBPS)
    flooded = {port for probe in floods_to_send(servers, reached) for port in reach.ends(probe)}
    rates |= dict.fromkeys(flooded - of_port.keys() if flows else (), _DEAD_GBPS)
    rates = alike(rates)
    latencies = {port: min(f.round_trip_s for f in found) / 2 for port, found in of_port.items()}
    return [
        MeasuredPort(*port, rates.get(port), two_digits(latencies.get(port, 0.0)))
        for port in sorted(rates.keys() | of_port.keys())
    ]


def with_rates(servers: Sequence[Server], measured: Iterable[MeasuredPort]) -> list[Server]:
    """The servers, with the measured rates of their interfaces."""
    rates = {of.port: of.gbps for of in measured if of.gbps is not None}
    return [
        replace(
            server,
            interfaces=tuple(
                replace(i, gbps=rates.get((number, i.name), i.gbps)) for i in server.interfaces
            ),
        )
        for number, server in enumerate(servers)
    ]


# ---- choosing ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    kinds: tuple[_NetworkKind, ...]
    reached: tuple[Probe, ...]
    plan: Plan
    wiring: Wiring
    seconds: tuple[float, ...]  # of each of _OPERATIONS

    def ratio(self, other: Sequence[float]) -> float:
        """The largest of the operations' ratios of its time to the other one."""
        return max(own / one for own, one in zip(self.seconds, other, strict=True))

    def preference(self) -> tuple[int, int, float, int]:
        """Least is best: few shared networks, few connections over them, no slow cables."""
        shared = frozenset[Port]().union(*(kind.ports for kind in self.kinds if kind.shared))
        over_shared = sum((p.server, p.interface) in shared for p in self.wiring.ports)
        slowest = min((kind.gbps for kind in self.kinds), default=0.0)
        return sum(kind.shared for kind in self.kinds), over_shared, -slowest, -len(self.kinds)


def choose_networks(
    servers: Sequence[Server], reached: Iterable[Probe], measured: Sequence[MeasuredPort] = ()
) -> NetworkChoice:
    """The networks on which no operation takes much longer than on the best one for it.

    Minimises the largest of these ratios. The servers must be connected.
    """
    reach = _Reach(with_rates(servers, measured), reached)
    latencies = {of.port: of.latency_s for of in measured}
    kinds = _kinds(reach)
    if len(kinds) == 1:
        return NetworkChoice(*plan_network(reach.servers, reach.reached))
    candidates = [
        _candidate(reach, chosen, probes, latencies) for chosen, probes in _sets(reach, kinds)
    ]
    least = [min(of_all) for of_all in zip(*(one.seconds for one in candidates), strict=True)]
    bound = _AS_GOOD * min(one.ratio(least) for one in candidates)
    good = [one for one in candidates if one.ratio(least) <= bound]
    chosen = min(good, key=lambda one: (*one.preference(), one.ratio(least)))
    return NetworkChoice(chosen.plan, chosen.wiring, _reason(chosen, candidates, kinds, measured))


def _kinds(reach: _Reach) -> list[_NetworkKind]:
    """Fastest first; of equals the cables."""
    kinds = []
    cables: list[tuple[float, frozenset[Port]]] = []
    for network in reach.networks:
        gbps = min(map(reach.rate, network)) if len(network) == 2 else _typical(reach, network)
        if len(network) == 2:
            cables.append((gbps, network))
        else:
            kinds.append(_NetworkKind(network, gbps, shared=True))
    kind: list[tuple[float, frozenset[Port]]] = []
    for gbps, cable in sorted(cables, key=lambda one: -one[0]):
        if kind and gbps * ALIKE < kind[0][0]:
            kinds.append(_of_cables(kind))
            kind = []
        kind.append((gbps, cable))
    if kind:
        kinds.append(_of_cables(kind))
    return sorted(kinds, key=lambda one: (-one.gbps, one.shared))


def _typical(reach: _Reach, network: frozenset[Port]) -> float:
    return median(map(reach.rate, network))


def _of_cables(kind: list[tuple[float, frozenset[Port]]]) -> _NetworkKind:
    ports = frozenset[Port]().union(*(cable for _, cable in kind))
    return _NetworkKind(ports, kind[-1][0], shared=False)


def _sets(
    reach: _Reach, kinds: list[_NetworkKind]
) -> Iterator[tuple[tuple[_NetworkKind, ...], tuple[Probe, ...]]]:
    """The sets of networks that connect all servers, each with its probes.

    Each in two forms: with all its connections; and with those of a slower network only between
    servers that no faster one joins directly.
    """
    if len(kinds) > _MOST_KINDS:
        sets = [tuple(kinds[i : i + 1]) for i in range(len(kinds))]
        sets += [tuple(kinds[: i + 1]) for i in range(1, len(kinds))]
    else:
        sets = [some for size in range(len(kinds)) for some in combinations(kinds, size + 1)]
    seen = set()
    for some in sets:
        if not reach.connects(frozenset[Port]().union(*(kind.ports for kind in some))):
            continue
        whole: tuple[Probe, ...] = ()
        thin: tuple[Probe, ...] = ()
        for kind in some:
            probes = reach.among(kind.ports)
            joined = {(probe.source, probe.target) for probe in thin}
            thin += tuple(p for p in probes if (p.source, p.target) not in joined)
            whole += probes
        for probes in (thin, whole):
            if probes not in seen:
                seen.add(probes)
                yield some, probes


def _candidate(
    reach: _Reach,
    kinds: tuple[_NetworkKind, ...],
    probes: tuple[Probe, ...],
    latencies: Mapping[Port, float],
) -> _Candidate:
    plan, wiring = plan_network(reach.servers, probes)
    price = _Price(plan, wiring, latencies)
    return _Candidate(kinds, probes, plan, wiring, price.seconds())


class _Price:
    """The times of operations of all servers on a discovered network.

    As csrc/plan/cost_model.h has it, but for links that are not alike: interfaces have a rate each,
    and what several connections of one interface carry goes through it together.
    """

    def __init__(self, plan: Plan, wiring: Wiring, latencies: Mapping[Port, float]) -> None:
        self._servers = plan.cluster.servers
        self._routes = plan.network.routes_by_pair()
        self._rings = plan.network.groups[0].rings
        self._links: defaultdict[tuple[int, int], list[tuple[Port, Port]]] = defaultdict(list)
        self._rates: dict[Port, float] = {}
        self._latencies = latencies
        ports = wiring.by_port()
        for link in plan.network.links:
            ends = []
            for end in ((link.source, link.source_port), (link.target, link.target_port)):
                of = ports[end]
                ends.append((of.server, of.interface or ""))
                self._rates[ends[-1]] = of.speed_gbps or UNKNOWN_GBPS
            self._links[link.source, link.target].append((ends[0], ends[1]))

    def seconds(self) -> tuple[float, ...]:
        """Seconds of each of _OPERATIONS; an all_reduce uses the faster of rings and doubling."""
        small, large = (
            min(self._by_rings(size), self._by_doubling(size))
            for size in (_SMALL_BYTES, _LARGE_BYTES)
        )
        return large, small, self._exchange_s(_LARGE_BYTES)

    def _by_rings(self, size_bytes: int) -> float:
        steps = 2 * (self._servers - 1)
        hops = [
            (pair, ring.share * steps / self._servers * size_bytes)
            for ring in self._rings
            for pair in ring.hops
        ]
        return steps * max(self._message_s(pair, 0) for pair, _ in hops) + self._moved_s(hops)

    def _exchange_s(self, size_bytes: int) -> float:
        pairs = permutations(range(self._servers), 2)
        return _ALPHA_S + self._moved_s((pair, size_bytes / self._servers) for pair in pairs)

    def _moved_s(self, sent: Iterable[tuple[tuple[int, int], float]]) -> float:
        """The time of the busiest interface, in either direction, for bytes of pairs."""
        load: defaultdict[tuple[Port, bool], float] = defaultdict(float)
        for pair, size_bytes in sent:
            for route in self._routes[pair]:
                for hop in pairwise(route.servers):
                    links = self._links[hop]
                    for near, far in links:
                        part = size_bytes * route.weight / len(links)
                        load[near, True] += part
                        load[far, False] += part
        return max(of / self._rates[port] for (port, _), of in load.items()) / BYTES_PER_GBPS

    def _by_doubling(self, size_bytes: int) -> float:
        order = self._rings[0].servers
        total = 0.0
        distance = 1
        while distance < len(order):
            pairs = zip(order, (*order[distance:], *order[:distance]), strict=True)
            total += max(self._message_s(pair, size_bytes) for pair in pairs)
            distance *= 2
        return total

    def _message_s(self, pair: tuple[int, int], size_bytes: int) -> float:
        """Seconds of a message on the slowest route."""
        return _ALPHA_S + max(
            sum(self._hop_s(hop, size_bytes) for hop in pairwise(route.servers))
            for route in self._routes[pair]
        )

    def _hop_s(self, hop: tuple[int, int], size_bytes: int) -> float:
        return max(
            max(_HOP_S, *(self._latencies.get(port, 0.0) for port in ends))
            + size_bytes / BYTES_PER_GBPS / min(self._rates[port] for port in ends)
            for ends in self._links[hop]
        )


# ---- saying why --------------------------------------------------------------------------------


def _reason(
    chosen: _Candidate,
    candidates: Sequence[_Candidate],
    kinds: Sequence[_NetworkKind],
    measured: Sequence[MeasuredPort],
) -> str:
    """The unused networks, or the used shared ones, and their effect."""
    used = {(port.server, port.interface) for port in chosen.wiring.ports}
    idle = [kind for kind in kinds if not kind.ports & used]
    if idle:
        named = ", ".join(_named(kind, measured) for kind in idle)
        others = [c for c in candidates if any(kind in c.kinds for kind in idle)]
        if not others:
            return f"not used: {named}"
        return f"not used: {named}, for {_compared('without', chosen, 'with', others)}"
    helpers = [kind for kind in kinds if kind.shared and kind.ports & used]
    others = [c for c in candidates if not any(kind in c.kinds for kind in helpers)]
    if not helpers or not others:
        return ""
    named = ", ".join(_named(kind, measured) for kind in helpers)
    return f"also used: {named}, for {_compared('with', chosen, 'without', others)}"


def _named(kind: _NetworkKind, measured: Sequence[MeasuredPort]) -> str:
    names = ", ".join(sorted({name for _, name in kind.ports}))
    how = "measured " if any(m.port in kind.ports and m.gbps for m in measured) else ""
    return f"{names} ({how}{format_gbps(kind.gbps)})"


def _compared(here: str, chosen: _Candidate, there: str, others: Sequence[_Candidate]) -> str:
    """A comparison with the best alternative, by the first operation that differs."""
    other = min(others, key=lambda one: one.ratio(chosen.seconds))
    compared = [*zip(_OPERATIONS, chosen.seconds, other.seconds, strict=True)]
    apart = [of for of in compared if of[2] > of[1] * _AS_GOOD]
    name, own_s, other_s = (apart or compared)[0]
    return (
        f"an {name} is estimated at {format_seconds(own_s)} {here} and {format_seconds(other_s)} "
        f"{there}"
    )
