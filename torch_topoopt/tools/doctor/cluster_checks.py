"""Checks between hosts: cables, packet sizes, addresses, reachability."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from torch_topoopt.links.addresses import is_routable, without_zone
from torch_topoopt.tools.doctor.findings import Finding, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.tools.doctor.facts import CableProbe, HostFacts

Matrix = dict[str, dict[str, str]]  # from -> to -> "direct", "relay", "part", "none", ...


def check_cluster(site: Site) -> Iterator[Finding]:
    """Does the file have anything to check?"""
    if site.file is None or len(site.file.servers) < 2 or site.file.cables or site.file.switches:
        return
    yield Finding(
        *("error", "no-cables", next(iter(site.facts), site.file.servers[0].name), "cables"),
        what=f"the cluster file {site.file.name} names neither cables nor switches",
        why="nothing joins its servers, so no job can run on them",
        advice="name the cables in it, or let topoopt discover find them",
    )


def check_cabling(site: Site) -> Iterator[Finding]:
    """Does each cable reach the port of the file?"""
    for server, facts in site.facts.items():
        if site.file is not None and any(c.answers is None for c in facts.cables):
            yield Finding(
                *("note", "cabling-unknown", server, server),
                what="what is at the other ends of the cables was not asked",
                why="a wrong cable may look like one that works",
                advice="allow ARP here (in a container: CAP_NET_RAW), on ports that are Ethernet"
                if facts.root
                else "run the doctor as root on this host: ARP needs that",
            )
        for cable in facts.cables:
            far = site.far_end(server, cable.port)
            if cable.answers is None or (far is None and not cable.answers):
                continue
            where = f"{server}:{cable.port}"
            seen = sorted(set(_seen(site, cable)))
            if far is None:
                if not _is_switched(site, where):
                    yield _miscabled(where, server, "nothing", ", ".join(seen))
            elif not cable.answers:
                yield Finding(
                    *("error", "cabling", server, where),
                    what=f"no port answers at the other end; {far} should be there",
                    why="this link carries nothing",
                    advice=f"see that {far} is up and has its address, then follow the cable",
                )
            elif not seen:
                yield _unknown_address(where, server, far, cable)
            elif far not in seen:
                yield _miscabled(where, server, far, ", ".join(seen))


def _miscabled(where: str, server: str, far: str, seen: str) -> Finding:
    return Finding(
        *("error", "cabling", server, where),
        what=f"the cable reaches {seen}; the cluster file says {far}",
        why="traffic for one server goes to another, or nowhere",
        advice=f"plug the cable of {where} as the file says, or correct `cables`",
    )


def _unknown_address(where: str, server: str, far: str, cable: CableProbe) -> Finding:
    addresses = ", ".join(answer.address for answer in cable.answers or ())
    return Finding(
        *("error", "cabling", server, where),
        what=f"{addresses} answers at the other end, an address that the cluster file does not "
        f"have; {far} should be there",
        why="traffic for one server goes to another, or nowhere",
        advice=f"if the address of {far} has changed, run `topoopt discover` again; otherwise plug "
        f"the cable of {where} as the file says",
    )


def _is_switched(site: Site, end: str) -> bool:
    return site.file is not None and site.file.ports[end][1].switch is not None


def _seen(site: Site, cable: CableProbe) -> Iterator[str]:
    """ "server:port" of the answering hosts: by MAC address, else by address, of the file or of a
    host now."""
    assert site.file is not None
    for answer in cable.answers or ():
        owner = site.owner_of_mac(answer.mac) if answer.mac else None
        if owner is not None:
            yield site.name_of_interface(*owner)
            continue
        ports = site.file.ports.items()
        by_mac = [end for end, (_, port) in ports if answer.mac and port.mac == answer.mac]
        by_ip = [end for end, (_, port) in ports if without_zone(port.ip) == answer.address]
        if found := by_mac or by_ip:
            yield from found
        elif now := site.owner_of_address(answer.address):
            yield site.name_of_interface(*now)


def check_mtu(site: Site) -> Iterator[Finding]:
    """Is the MTU that of the file, equal at both ends, and does a packet of that size arrive?

    Devices between the ports may have a smaller MTU than either.
    """
    for server, facts in site.facts.items():
        probes = {cable.port: cable for cable in facts.cables}
        for port, interface in site.ports(server):
            where = f"{server}:{port.name}"
            name = shlex.quote(interface.name)
            if port.mtu is not None and interface.mtu != port.mtu:
                yield Finding(
                    *("error", "mtu", server, where),
                    what=f"the MTU of {interface.name} is {interface.mtu}, not {port.mtu} as the "
                    "cluster file says",
                    why="packets larger than the other end takes are dropped without a word",
                    repair=(f"ip link set dev {name} mtu {port.mtu}",),
                )
                continue
            other = _other_mtu(site, server, port.name)
            if other is not None and other[1] < interface.mtu:
                yield Finding(
                    *("error", "mtu", server, where),
                    what=f"the MTU of {interface.name} is {interface.mtu}, but that of {other[0]} "
                    f"at the other end is {other[1]}",
                    why="packets larger than the other end takes are dropped without a word",
                    repair=(f"ip link set dev {name} mtu {other[1]}",),
                )
                continue
            probe = probes.get(port.name)
            if probe is not None and 0 < probe.back_bytes < probe.sent_bytes:
                yield Finding(
                    *("error", "mtu-path", server, where),
                    what=f"packets of {probe.sent_bytes} bytes do not get across, those of "
                    f"{probe.back_bytes} do",
                    why="connections open, and then stall at the first large packet",
                    advice="raise the MTU of what is at or before the other end, or lower that of "
                    f"both ends: ip link set dev {name} mtu {probe.back_bytes}",
                )


def _other_mtu(site: Site, server: str, port: str) -> tuple[str, int] | None:
    far = site.far_end(server, port)
    if far is None or far.partition(":")[0] not in site.facts:
        return None
    for entry, interface in site.ports(far.partition(":")[0]):
        if entry.name == far.partition(":")[2]:
            # if the file has an MTU, repair the end that differs from it
            return (far, interface.mtu) if entry.mtu in (None, interface.mtu) else None
    return None


def check_addresses(site: Site) -> Iterator[Finding]:
    """Addresses of this host that another host has, too."""
    owners: dict[str, list[tuple[str, str]]] = {}
    for server, facts in site.facts.items():
        for interface in facts.interfaces:
            for ip in interface.unique_ips:
                owners.setdefault(ip, []).append((server, interface.name))
    for ip, found in owners.items():
        rightful = _rightful(site, ip)
        for server, name in found:
            if len(found) > 1 and site.file is not None and server != rightful:
                if rightful is None and _is_private_twice(site, ip):
                    continue
                others = ", ".join(f"{s} ({i})" for s, i in found if (s, i) != (server, name))
                yield Finding(
                    *("error", "duplicate", server, f"{server} ({name})"),
                    what=f"has the address {ip}, which {others} has, too",
                    why="answers go to the host that ARP has learnt last",
                    repair=(f"ip address flush dev {shlex.quote(name)} to {ip}",)
                    if rightful
                    else (),
                    advice="" if rightful else "give one of them another address",
                )
    for server, facts in site.facts.items():
        for answer in facts.claimed:
            owner = site.owner_of_mac(answer.mac)
            if owner is not None and len(owners.get(answer.address, ())) > 1:
                continue  # found above
            who = site.name_of_interface(*owner) if owner else f"a host with MAC {answer.mac}"
            yield Finding(
                *("error", "duplicate", server, f"{server} {answer.address}"),
                what=f"{who} says that it has this address, too",
                why="answers go to the host that ARP has learnt last",
                advice="find that host (its MAC address is in the tables of the switch), and give "
                "it another address",
            )


def _rightful(site: Site, ip: str) -> str | None:
    for end, (_, port) in site.file.ports.items() if site.file else ():
        if port.ip == ip:
            return end.partition(":")[0]
    return None


def _is_private_twice(site: Site, ip: str) -> bool:
    """Whether a repeated address is private, such as Docker's bridge: in no subnet of the file."""
    import ipaddress

    assert site.file is not None
    address = ipaddress.ip_address(ip)
    managed = {server.management for server in site.file.servers}
    return ip not in managed and all(
        address not in (port.subnet or ()) for _, port in site.file.ports.values()
    )


def reach_matrix(site: Site) -> Matrix:
    """Reachability between hosts, from the probes of each host.

    "direct": over a cable; "relay": all addresses, through other servers; "part": some addresses;
    "ranks": link-local addresses without a cable between, so ranks relay; "management": only over
    the management network; "none"; "?": unknown host.
    """
    if site.file is None:
        return {}
    names = [server.name for server in site.file.servers]
    return {a: {b: _cell(site, a, b) for b in names if b != a} for a in names}


def _cell(site: Site, a: str, b: str) -> str:
    facts = site.facts.get(a)
    asked = [reach for reach in facts.reached if reach.server == b] if facts else []
    if facts is None:
        return "?"
    if any(
        cable.back_bytes > 0
        for cable in facts.cables
        if (site.far_end(a, cable.port) or "").partition(":")[0] == b
    ):
        return "direct"
    if not asked:
        return "ranks" if facts.cables and not _is_routed(site, b) else "?"
    own = _own_addresses(site, facts)
    back = [reach for reach in asked if reach.answered]
    by_fabric = [reach for reach in back if reach.source in own]
    if not back:
        return "none"
    if not by_fabric:
        return "management"
    return "relay" if len(by_fabric) == len(asked) else "part"


def _is_routed(site: Site, server: str) -> bool:
    """Has it an address that others reach without a cable?"""
    assert site.file is not None
    ports = site.file.servers[site.file.server_number(server)].ports
    return any(is_routable(port.ip) for port in ports)


def _own_addresses(site: Site, facts: HostFacts) -> set[str]:
    return {ip for i in site.fabric_interfaces(facts.server) for ip in i.ips}


def check_reach(site: Site) -> Iterator[Finding]:
    """Servers that do not reach each other."""
    for server, facts in site.facts.items():
        others = [s.name for s in site.file.servers if s.name != server] if site.file else []
        routed = any(_is_routed(site, other) for other in others)
        unasked = not facts.reached if routed else not facts.cables
        if site.file is not None and site.file.cables and unasked:
            yield Finding(
                *("note", "reach-unknown", server, server),
                what="whom it reaches was not asked",
                why="without that, it is unknown whether packets of full size get across",
                advice="run the doctor without --no-probes"
                if facts.root
                else "run the doctor as root on this host, without --no-probes",
            )
    for a, row in reach_matrix(site).items():
        for b, cell in row.items():
            if cell not in ("none", "part", "management"):
                continue
            assert site.file is not None
            cabled = any(
                {end.partition(":")[0] for end in cable} == {a, b} for cable in site.file.cables
            )
            what = {
                "none": f"does not reach {b}",
                "part": f"reaches some addresses of {b} only: not "
                + ", ".join(
                    r.address for r in site.facts[a].reached if r.server == b and not r.answered
                ),
                "management": f"reaches {b} through another network than the fabric",
            }[cell]
            yield Finding(
                "error" if cabled else "warning",
                "reach",
                a,
                f"{a} -> {b}",
                what=what,
                why="they have a cable"
                if cabled
                else "torch_topoopt relays by itself, but NCCL, MPI and gloo need all pairs",
                advice="repair what else is found, then set the hosts up: "
                "topoopt fabric script PLAN --cluster FILE --host NAME",
            )
