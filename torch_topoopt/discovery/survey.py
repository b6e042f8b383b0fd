"""`topoopt discover`: from announcements and probes between all hosts to a cluster file.

A cable is a pair of ports that receive each other's announcements and no others. If ports have
several PCIe functions, it is two physical ports whose functions receive only each other's; the
functions are links of one cable. A TCP probe confirms a cable's addresses. Any other interface that
is up becomes a remark, never a guess.

The networks through which the survey reaches the hosts are no cables. A cable that carries the
survey, because the hosts have no other network, is kept, with a remark.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from torch_topoopt.discovery.agent import ReachedBy
from torch_topoopt.discovery.interfaces import Interface, select
from torch_topoopt.discovery.neighbours import EVERY_S
from torch_topoopt.discovery.ports import PortFacts
from torch_topoopt.fabric.cluster_file.cluster_file import VERSION, ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.links.addresses import share_subnet, without_zone
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torch_topoopt.discovery.agent import Channel

_UDP_PORTS = range(20000, 30000)
_POLL_S = 0.2
_LEAST_ROUNDS = 0.5  # fraction of the announcements that an idle host would make
_PATIENCE = 10  # waits this many times as long for a host that makes fewer
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

End = tuple[int, str]  # host, interface


@dataclass(frozen=True)
class AgentReport:
    """An agent's description of its host; `management` is how the survey reaches it.

    `addresses` are all of the host's, without zones.
    """

    name: str
    management: str
    accelerators: int
    ports: tuple[PortFacts, ...]
    reached_by: ReachedBy
    addresses: frozenset[str]

    def port(self, interface: str) -> PortFacts:
        return next(port for port in self.ports if port.interface == interface)


@dataclass(frozen=True)
class Survey:
    """The discovered cluster, and a remark for each interface that is up but not in it."""

    cluster: ClusterFile
    remarks: tuple[str, ...]


def survey(channels: Sequence[Channel], name: str, *, interfaces: str, listen_s: float) -> Survey:
    """Queries the agents at `channels`, in the order of the servers; raises FabricError.

    `interfaces` selects interfaces like TOPOOPT_INTERFACES. Ports listen to each other until no new
    announcement has arrived for `listen_s`.
    """
    hosts = _describe_all(channels)
    names = server_names([host.name for host in hosts], [channel.other for channel in channels])
    looked_at = [_interfaces(host, hosts, interfaces) for host in hosts]
    reached_by = {(number, host.reached_by.interface) for number, host in enumerate(hosts)}
    session = {"token": secrets.token_hex(8), "udp_port": secrets.choice(_UDP_PORTS)}
    for channel, server, own in zip(channels, names, looked_at, strict=True):
        channel.ask("announce", server=server, interfaces=own, **session)
    senders = heard_by(channels, names, listen_s)
    physical = {
        (number, port.interface): port.physical_port
        for number, host in enumerate(hosts)
        for port in host.ports
    }
    bundles, senders = shared_cables(senders, physical)
    pairs, remarks = cables_of(names, senders, quiet=reached_by)
    for bundle in bundles:
        links, left = paired(
            bundle,
            lambda a, b: common_subnet(hosts[a[0]].port(a[1]), hosts[b[0]].port(b[1])) is not None,
        )
        pairs += links
        remarks += _of_bundle(names, bundle, left)
    addressed = []
    for a, b in pairs:
        if addresses := common_subnet(hosts[a[0]].port(a[1]), hosts[b[0]].port(b[1])):
            addressed.append((a, b, addresses))
        else:
            remarks.append(_no_common_subnet(names, hosts, a, b))
    silent = _probe(channels, addressed)
    for a, b, addresses in addressed:
        label = f"{names[a[0]]}:{a[1]} - {names[b[0]]}:{b[1]}"
        if (a, b) in silent:
            raise FabricError(
                f"cable {label}: both ends receive each other's announcements, but "
                f"{addresses[0]} does not reach {addresses[1]} by TCP; look at the firewalls and "
                f"routes of both hosts{_shared_subnet(hosts, (a, b))}"
            )
        mtus = [hosts[host].port(interface).mtu for host, interface in (a, b)]
        if mtus[0] != mtus[1]:
            remarks.append(f"cable {label}: the MTUs of its ends differ, {mtus[0]} and {mtus[1]}")
        if carrying := {a, b} & reached_by:
            excluded = ",".join(sorted({interface for _, interface in carrying}))
            remarks.append(
                f"cable {label}: this survey reached the hosts over it, and on it is nobody else; "
                f"if it is a network and no cable, leave it out with --interfaces ^{excluded}"
            )
    cluster = _cluster(name, names, hosts, addressed)
    return Survey(cluster, tuple(remarks))


def _shared_subnet(hosts: Sequence[AgentReport], ends: tuple[End, End]) -> str:
    """A possible cause of failure: functions of one port with addresses in one IPv4 subnet."""
    for host, interface in ends:
        own = hosts[host].port(interface)
        for other in hosts[host].ports:
            function = other is not own and None is not other.physical_port == own.physical_port
            if function and common_subnet(own, other):
                return (
                    f"; {interface} and {other.interface} are in one subnet and answer ARP for "
                    "each other: set net.ipv4.conf.all.arp_ignore=1 and arp_announce=2 on all "
                    "hosts, or give each function a subnet of its own"
                )
    return ""


def server_names(nodes: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """The hosts' own names if distinct, else their ssh names, else h0, h1, ..."""
    hosts = [name.rpartition("@")[2] for name in given]
    for whole in (list(nodes), hosts):
        if not whole or any(map(_is_address, whole)):
            continue
        for names in ([name.partition(".")[0] for name in whole], whole):
            if len(set(names)) == len(names) and all(map(_SERVER_NAME.fullmatch, names)):
                return names
    return [f"h{i}" for i in range(len(nodes))]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def cables_of(
    names: Sequence[str],
    senders: dict[End, frozenset[End]],
    quiet: Collection[End] = (),
) -> tuple[list[tuple[End, End]], list[str]]:
    """The pairs of ports that receive from each other alone, and remarks on the others.

    There is none on the `quiet` ones.
    """

    def labels(ends: Iterable[End]) -> str:
        return ", ".join(f"{names[host]}:{interface}" for host, interface in sorted(ends))

    cables, remarks = [], []
    segments: dict[frozenset[End], list[End]] = {}  # ports on it -> ports that receive from all
    for end in sorted(senders):
        others = senders[end]
        if len(others) != 1:
            segments.setdefault(others and others | {end}, []).append(end)
            continue
        (far_end,) = others
        if senders.get(far_end) == frozenset({end}):
            if end < far_end:
                cables.append((end, far_end))
        elif len(senders.get(far_end, ())) < 2 and end not in quiet:
            remarks.append(
                f"{labels([end])}: receives announcements of {labels([far_end])}, which "
                "receives none of its; is one direction of the cable broken?"
            )
    for segment, ends in segments.items():
        shown = labels(set(ends) - set(quiet))
        if shown and not segment:
            remarks.append(f"no port answers at the other end of {shown}")
        elif shown:
            more = labels(segment - set(ends))
            remarks.append(
                f"{shown}: on a switch or bridge{' that also reaches ' if more else ''}{more}; "
                "not a cable"
            )
    return cables, remarks


@dataclass(frozen=True)
class Bundle:
    """The functions of two physical ports at the ends of one cable."""

    near: tuple[End, ...]
    far: tuple[End, ...]


def shared_cables(
    senders: dict[End, frozenset[End]], physical: Mapping[End, str | None]
) -> tuple[list[Bundle], dict[End, frozenset[End]]]:
    """The cables of ports with several functions, and the senders of all other ports.

    Both ends must be known to be one physical port each: every function hears all of the other end
    and, at most, its own port's.
    """
    bundles = []
    left = dict(senders)
    for end in sorted(senders):
        if end not in left:
            continue
        near = _functions(end, senders, physical)
        others = frozenset().union(*(senders[one] for one in near)) - near
        if not others or len(near) == len(others) == 1:
            continue
        far = _functions(min(others), senders, physical)
        if far != others or next(iter(far))[0] == end[0]:
            continue
        if all(senders[one] - near == far for one in near) and all(
            senders.get(one, frozenset()) - far == near for one in far
        ):
            bundles.append(Bundle(tuple(sorted(near)), tuple(sorted(far))))
            for one in near | far:
                left.pop(one, None)
    return bundles, left


def _functions(
    end: End, senders: Mapping[End, object], physical: Mapping[End, str | None]
) -> frozenset[End]:
    """The announcing functions of the physical port of `end`, itself included."""
    port = physical.get(end)
    same = {e for e in senders if port is not None and e[0] == end[0] and physical.get(e) == port}
    return frozenset(same | {end})


def paired(
    bundle: Bundle, share_subnet: Callable[[End, End], bool]
) -> tuple[list[tuple[End, End]], list[End]]:
    """The links of a cable, one per pair of functions, and the functions left over.

    Functions with addresses in one subnet are paired first, then any two.
    """
    far = list(bundle.far)
    near = list(bundle.near)
    links = []
    for matches in (share_subnet, lambda a, b: True):
        for end in list(near):
            other = next((one for one in far if matches(end, one)), None)
            if other is not None:
                links.append((end, other))
                near.remove(end)
                far.remove(other)
    return sorted(links), near + far


def _of_bundle(names: Sequence[str], bundle: Bundle, left: Sequence[End]) -> Iterator[str]:
    near, far = (
        f"{names[ends[0][0]]} ({', '.join(interface for _, interface in ends)})"
        for ends in (bundle.near, bundle.far)
    )
    yield f"{near} - {far}: functions of one port each, links of one cable that share its rate"
    for host, interface in left:
        yield f"{names[host]}:{interface}: left out, the other end of its cable has fewer functions"


def common_subnet(a: PortFacts, b: PortFacts) -> tuple[str, str] | None:
    """The first addresses (without prefix lengths) of two ports that are in one subnet.

    Link-local IPv6 addresses match on one cable, which the ports' announcements have shown.
    """
    for near, far in product(a.addresses, b.addresses):
        if share_subnet(near, far):
            return near.partition("/")[0], far.partition("/")[0]
    return None


def _describe_all(channels: Sequence[Channel]) -> list[AgentReport]:
    """Raises FabricError naming all hosts that do not answer."""
    hosts, errors = [], []
    for channel in channels:
        try:
            hosts.append(_describe(channel))
        except FabricError as error:
            errors.append(str(error))
    if errors:
        raise FabricError("; ".join(errors))
    return hosts


def _describe(channel: Channel) -> AgentReport:
    answer = channel.ask("describe")
    management = answer["management"]
    if not management or _is_loopback(management):
        management = channel.other.rpartition("@")[2]
    return AgentReport(
        answer["name"],
        management,
        answer["accelerators"],
        tuple(PortFacts.from_plain(port) for port in answer["ports"]),
        ReachedBy.from_plain(answer["reached_by"]),
        frozenset(answer["addresses"]),
    )


def _is_loopback(address: str) -> bool:
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def on_a_network(reached_by: ReachedBy, hosts: Sequence[AgentReport]) -> bool:
    """Whether the survey's interface of a host leads to others than `hosts`: to the survey itself,
    a router, or a neighbour. A cable leads to one host only.
    """
    addresses = frozenset[str]().union(*(host.addresses for host in hosts))
    macs = {port.mac for host in hosts for port in host.ports}
    client = without_zone(reached_by.client)
    return (
        not (client in addresses or _is_loopback(client))
        or not addresses.issuperset(reached_by.gateways)
        or not macs.issuperset(reached_by.neighbour_macs)
    )


def _interfaces(host: AgentReport, hosts: Sequence[AgentReport], wanted: str) -> list[str]:
    """The interfaces to survey: all except the survey's own network, unless `wanted` has its full
    name."""
    network = host.reached_by.interface if on_a_network(host.reached_by, hosts) else ""
    usable = [
        port.interface
        for port in host.ports
        if port.interface != network or network in map(str.strip, wanted.split(","))
    ]
    listed = [Interface(name, "0.0.0.0", 0, None, False, False) for name in usable]
    return [interface.name for interface in select(listed, wanted)[0]]


def heard_by(
    channels: Sequence[Channel], names: Sequence[str], listen_s: float
) -> dict[End, frozenset[End]]:
    """Port -> senders of the announcements it receives, once none is new for `listen_s`.

    Waits for a host with few announcements so far; raises FabricError if it never sends enough.
    """
    numbers = {name: number for number, name in enumerate(names)}
    senders: dict[End, frozenset[End]] = {}
    quiet_since, rounds_then = time.monotonic(), [0] * len(channels)
    while True:
        time.sleep(_POLL_S)
        answers = [channel.ask("senders") for channel in channels]
        rounds = [answer["rounds"] for answer in answers]
        now = {
            (host, interface): frozenset(
                (numbers[server], port) for server, port in ends if server in numbers
            )
            for host, answer in enumerate(answers)
            for interface, ends in answer["senders"].items()
        }
        quiet_s = time.monotonic() - quiet_since
        if now != senders:
            senders, quiet_since, rounds_then = now, time.monotonic(), rounds
        elif quiet_s >= listen_s:
            made = [after - before for after, before in zip(rounds, rounds_then, strict=True)]
            if min(made, default=0) >= _LEAST_ROUNDS * listen_s / EVERY_S:
                return senders
            if quiet_s >= _PATIENCE * listen_s:
                raise _too_busy(names, made, quiet_s)


def _too_busy(names: Sequence[str], made: Sequence[int], seconds: float) -> FabricError:
    fewest = min(made)
    return FabricError(
        f"{names[made.index(fewest)]}: announced its ports {fewest} times in {seconds:.1f} s "
        f"instead of {seconds / EVERY_S:.0f} times; it is too busy to find its cables"
    )


def _probe(
    channels: Sequence[Channel], cables: Sequence[tuple[End, End, tuple[str, str]]]
) -> set[tuple[End, End]]:
    """The cables over which the address of the first end does not reach that of the second."""
    job = secrets.token_hex(8)
    tcp_ports: list[dict[str, int]] = []  # of each host: two may have one link-local address
    for host, channel in enumerate(channels):
        own = [addresses[1] for _, b, addresses in cables if b[0] == host]
        tcp_ports.append(channel.ask("listen", job=job, server=host, addresses=own)["tcp_ports"])
    silent = set()
    for host, channel in enumerate(channels):
        probes = {
            (a, b): {
                "source": host,
                "source_address": near,
                "source_interface": a[1],
                "target": b[0],
                "target_address": far,
                "target_tcp_port": tcp_ports[b[0]][far],
            }
            for a, b, (near, far) in cables
            if a[0] == host
        }
        reached = channel.ask("probe", job=job, probes=list(probes.values()))["reached"]
        silent |= {cable for cable, probe in probes.items() if probe not in reached}
    return silent


def _no_common_subnet(names: Sequence[str], hosts: Sequence[AgentReport], a: End, b: End) -> str:
    ends = []
    for host, interface in (a, b):
        addresses = ", ".join(hosts[host].port(interface).addresses) or "no address"
        ends.append(f"{names[host]}:{interface} ({addresses})")
    return (
        f"cable {ends[0]} - {ends[1]}: left out, its ends need addresses of one subnet, such as a "
        "/30 of its own"
    )


def _cluster(
    name: str,
    names: Sequence[str],
    hosts: Sequence[AgentReport],
    cables: Sequence[tuple[End, End, tuple[str, str]]],
) -> ClusterFile:
    address_of = {
        end: address for a, b, ends in cables for end, address in zip((a, b), ends, strict=True)
    }
    machines = Counter(host.management for host in hosts)
    sharing = Counter(  # how many links share the rate of a physical port
        (number, hosts[number].port(interface).physical_port) for number, interface in address_of
    )
    servers = []
    for number, host in enumerate(hosts):
        ports = []
        for facts in host.ports:
            if (address := address_of.get((number, facts.interface))) is None:
                continue
            with_prefix = next(a for a in facts.addresses if a.partition("/")[0] == address)
            shared_by = sharing[number, facts.physical_port] if facts.physical_port else 1
            ports.append(
                PortEntry(
                    facts.interface,
                    with_prefix,
                    facts.gbps and facts.gbps / shared_by,
                    interface=facts.interface,
                    mac=facts.mac,
                    mtu=facts.mtu,
                )
            )
        shared = machines[host.management] > 1
        servers.append(
            ServerEntry(
                names[number],
                host.management,
                host.accelerators,
                host=host.management if shared else None,
                ports=tuple(ports),
            )
        )
    ends = tuple((f"{names[a[0]]}:{a[1]}", f"{names[b[0]]}:{b[1]}") for a, b, _ in cables)
    return ClusterFile(VERSION, name, tuple(servers), ends).validate()
