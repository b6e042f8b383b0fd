"""Checks of single hosts. Each is a pure function: Site -> findings."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from torch_topoopt.fabric.hosts.host_script import buffer_bytes
from torch_topoopt.links.addresses import is_link_local
from torch_topoopt.plan.units import rate_text
from torch_topoopt.tools.doctor.findings import Finding, Site, set_sysctl
from torch_topoopt.tools.doctor.firewall import accept_rule
from torch_topoopt.tools.doctor.link_rates import port_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.tools.doctor.facts import InterfaceFacts

_MUCH_FASTER = 2.0  # times the rate of the file
_SECOND = "topofwd"  # beginning of the names of second interfaces, see fabric/hosts/host_setup.py
_SET_UP_WHY = "without it, the port carries nothing"
_SHARED_WHY = "its subnet is that of other ports, too: packets enter where no route leads back"
_RELAY_WHY = "packets that come by a relay enter at another port than answers leave from"


def check_interfaces(site: Site) -> Iterator[Finding]:
    """Are the ports of the file here, up, plugged in, with their addresses and MAC addresses?"""
    for server, facts in site.facts.items():
        present = {port.name: interface for port, interface in site.ports(server)}
        for port in site.file.servers[site.file.server_number(server)].ports if site.file else ():
            where = f"{server}:{port.name}"
            interface = present.get(port.name)
            if interface is None:
                here = ", ".join(i.name for i in facts.interfaces) or "none"
                yield Finding(
                    *("error", "interface", server, where),
                    what=f"there is no interface {port.interface or port.ip} (there are: {here})",
                    why=_SET_UP_WHY,
                    advice="correct `interface` in the cluster file, or load the card's driver",
                )
                continue
            name = shlex.quote(interface.name)
            if port.mac is not None and interface.mac != port.mac:
                yield Finding(
                    *("error", "mac", server, where),
                    what=f"{interface.name} has the MAC address {interface.mac}, not {port.mac}",
                    why="others send to the address of the file",
                    advice="correct `mac` in the cluster file: another card is in the host",
                )
            if not interface.up:
                yield Finding(
                    *("error", "link", server, where),
                    what=f"{interface.name} is down",
                    why=_SET_UP_WHY,
                    repair=(f"ip link set dev {name} up",),
                )
            elif not interface.carrier:
                yield Finding(
                    *("error", "carrier", server, where),
                    what=f"{interface.name} has no carrier",
                    why=_SET_UP_WHY,
                    advice="plug the cable in at both ends; the other port must be up, too",
                )
            if is_link_local(port.ip):
                if port.ip not in interface.ips:
                    yield _changed_address(server, where, port.ip, interface)
            elif port.address not in interface.addresses:
                elsewhere = facts.owner(port.ip)
                where_else = f"; {elsewhere.name} has it" if elsewhere else ""
                yield Finding(
                    *("error", "address", server, where),
                    what=f"{interface.name} does not have the address {port.address}{where_else}",
                    why="others look for the port at that address",
                    repair=(
                        *(_remove(port.ip, elsewhere) if elsewhere else ()),
                        f"ip address add {port.address} dev {name}",
                    ),
                )


def _changed_address(server: str, where: str, ip: str, interface: InterfaceFacts) -> Finding:
    """Finds changed link-local addresses: the kernel derives them from card and settings."""
    now = [own for own in interface.ips if is_link_local(own)]
    return Finding(
        *("error", "address", server, where),
        what=f"{interface.name} does not have the address {ip}; it has "
        f"{', '.join(now) or 'no link-local IPv6 address'}",
        why="others look for the port at that address",
        advice="run `topoopt discover` again: it writes the addresses that ports have now"
        if now
        else f"let the kernel use IPv6 on {interface.name} (sysctl "
        f"net.ipv6.conf.{interface.name}.disable_ipv6), then run `topoopt discover` again",
    )


def check_speed(site: Site) -> Iterator[Finding]:
    """Is every NIC as fast as the file says?"""
    for server in site.facts:
        for port, interface in site.ports(server):
            rate = port_limit(site, server, interface)
            if port.gbps and rate and rate.gbps > port.gbps * _MUCH_FASTER:
                yield Finding(
                    *("warning", "speed", server, f"{server}:{port.name}"),
                    what=f"{interface.name} runs at {rate_text(rate.gbps)}, but the cluster file "
                    f"says {rate_text(port.gbps)}",
                    why="plans use a link by the rate of the file, and predictions count on it",
                    advice="correct `bandwidth`, unless something holds the port to that rate",
                )
            if port.gbps and interface.gbps and interface.gbps < port.gbps * 0.999:
                yield Finding(
                    *("error", "speed", server, f"{server}:{port.name}"),
                    what=f"{interface.name} runs at {rate_text(interface.gbps)}, but the cluster "
                    f"file says {rate_text(port.gbps)}",
                    why="plans and predictions count on that; every ring waits for its slowest "
                    "link",
                    advice="look at cable, module and autonegotiation, or correct `bandwidth`",
                )


def check_rp_filter(site: Site) -> Iterator[Finding]:
    """A strict reverse-path filter drops packets if answers leave from another port: relayed ones,
    and those at all but one port of a shared subnet."""
    for server, facts in site.facts.items():
        for port, interface in site.ports(server):
            shared = site.file is not None and site.file.shares_subnet(f"{server}:{port.name}")
            if interface.rp_filter == 1 and interface.ipv4 and (shared or site.has_relays):
                yield Finding(
                    *("error", "rp_filter", server, f"{server}:{port.name}"),
                    what=f"the reverse-path filter of {interface.name} is strict (1)",
                    why=(_SHARED_WHY if shared else _RELAY_WHY) + ", and the filter drops them",
                    # loose; the kernel takes the larger of `all` and this one
                    repair=(set_sysctl(f"ipv4/conf/{interface.name}/rp_filter", 2),),
                )
        for interface in facts.interfaces:
            if interface.name.startswith(_SECOND) and interface.rp_filter:
                yield Finding(
                    *("error", "rp_filter", server, f"{server} ({interface.name})"),
                    what=f"the reverse-path filter of {interface.name} is {interface.rp_filter}",
                    why=_RELAY_WHY + "; this interface has no address, so the filter drops all",
                    repair=tuple(
                        set_sysctl(f"ipv4/conf/{where}/rp_filter", 0)
                        for where in ("all", interface.name)
                    ),
                )


def check_forwarding(site: Site) -> Iterator[Finding]:
    """Do relays forward, and does nothing stop that?"""
    for server in site.facts:
        if not site.is_relay(server):
            continue
        for interface in site.fabric_interfaces(server):
            if not interface.ipv4:
                continue  # nothing is forwarded there: ranks relay
            if not interface.forwarding:
                yield Finding(
                    *(
                        "error",
                        "forwarding",
                        server,
                        site.name_of_interface(server, interface.name),
                    ),
                    what=f"forwarding is off on {interface.name}",
                    why="servers without a cable between them are reached through this one",
                    repair=(set_sysctl(f"ipv4/conf/{interface.name}/forwarding", 1),),
                )
            if interface.lro:
                yield Finding(
                    *("warning", "lro", server, site.name_of_interface(server, interface.name)),
                    what=f"large receive offload is on at {interface.name}",
                    why="it merges packets that must be passed on as they came",
                    repair=(f"ethtool -K {shlex.quote(interface.name)} lro off",),
                )


def check_firewall(site: Site) -> Iterator[Finding]:
    """Does a firewall drop forwarded packets (Docker's does), or those for this host?"""
    for server, facts in site.facts.items():
        if not facts.firewall.read:
            yield Finding(
                *("note", "firewall-unknown", server, server),
                what="the firewall could not be read",
                why="a policy that drops what is forwarded would cut off servers",
                advice="install nft or iptables on this host"
                if facts.root
                else "run the doctor as root on this host, with nft or iptables installed",
            )
        names = [interface.name for interface in site.fabric_interfaces(server)]
        by_tc = any(i.name.startswith(_SECOND) for i in facts.interfaces)
        for chain in facts.firewall.drops:
            if site.file is None or (chain.hook == "forward" and not site.is_relay(server)):
                continue
            if chain.hook == "forward":
                names = [i.name for i in site.fabric_interfaces(server) if i.ipv4]
            shut = [n for n in names if n not in chain.accepts and "*" not in chain.accepts]
            if not shut:
                continue
            whose = " (Docker sets that)" if facts.firewall.docker else ""
            forwarded = chain.hook == "forward"
            yield Finding(
                "note" if forwarded and by_tc else "error",
                f"firewall-{chain.hook}",
                server,
                f"{server} {chain.where}",
                what=f"drops by default{whose}, and accepts nothing from {', '.join(shut)}",
                why="rules of tc pass it on before the firewall; only what they do not take is lost"
                if forwarded and by_tc
                else "servers without a cable between them are reached through this one"
                if forwarded
                else "other servers connect to the ports of this one",
                repair=tuple(accept_rule(chain, name) for name in shut),
            )


def check_arp(site: Site) -> Iterator[Finding]:
    """Two ports in one subnet answer for each other by default."""
    for server in site.facts:
        ports = list(site.ports(server))
        for port, interface in ports:
            subnet = port.subnet
            if subnet is None:
                continue
            beside = [p.name for p, _ in ports if p is not port and p.subnet == subnet]
            if beside and interface.arp_ignore == 0:
                yield Finding(
                    *("warning", "arp_ignore", server, f"{server}:{port.name}"),
                    what=f"{interface.name} answers ARP also for {', '.join(beside)}",
                    why="they share a subnet, so traffic for one port may enter at another",
                    repair=(
                        set_sysctl(f"ipv4/conf/{interface.name}/arp_ignore", 1),
                        set_sysctl(f"ipv4/conf/{interface.name}/arp_announce", 2),
                    ),
                )


def check_buffers(site: Site) -> Iterator[Finding]:
    """Can a socket buffer hold the bytes in flight on a link?"""
    for server, facts in site.facts.items():
        rates = [port.gbps for port, _ in site.ports(server) if port.gbps]
        if site.file is None:
            rates = [i.gbps for i in site.fabric_interfaces(server) if i.gbps]
        if not rates:
            continue
        needed = buffer_bytes(max(rates))
        kernel = facts.kernel
        for name, now in (
            ("core/rmem_max", kernel.rmem_max),
            ("core/wmem_max", kernel.wmem_max),
            ("ipv4/tcp_rmem", kernel.tcp_rmem_max),
            ("ipv4/tcp_wmem", kernel.tcp_wmem_max),
        ):
            if now is None or now >= needed:
                continue
            core = name.startswith("core/")
            locked = core and not kernel.core_writable
            first = f"/proc/sys/net/{name}"
            value = needed if core else f"$(cut -f 1,2 {first}) {needed}"
            yield Finding(
                *("warning", "buffers", server, f"{server} {name.replace('/', '.')}"),
                what=f"allows {now} bytes, less than the {needed} that a link of "
                f"{rate_text(max(rates))} needs",
                why="a connection with less in flight than twice bandwidth times 1 ms does not "
                "fill the link over relays",
                repair=() if locked else (set_sysctl(name, value),),
                advice="set it on the machine: it cannot be set in a network namespace"
                if locked
                else "",
            )


def check_congestion(site: Site) -> Iterator[Finding]:
    """BBR keeps too little in flight on short cables (see links/sockets.py)."""
    for server, facts in site.facts.items():
        if facts.kernel.congestion.startswith("bbr"):
            yield Finding(
                *("note", "congestion", server, server),
                what=f"the system's congestion control is {facts.kernel.congestion}",
                why="on a cable it keeps next to nothing in flight; links of torch_topoopt take "
                "cubic or reno by themselves, but gloo, ssh and storage do not",
                repair=(set_sysctl("ipv4/tcp_congestion_control", "cubic"),),
            )


def check_governor(site: Site) -> Iterator[Finding]:
    """A CPU that clocks down adds to the latency of every message."""
    for server, facts in site.facts.items():
        slow = [g for g in facts.kernel.governors if g != "performance"]
        if slow:
            yield Finding(
                *("note", "governor", server, server),
                what=f"the CPU frequency governor is {', '.join(slow)}",
                why="cores that clock down between messages answer late",
                repair=(
                    "for file in /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor; do "
                    'echo performance >"$file"; done',
                ),
            )


def check_offloads(site: Site) -> Iterator[Finding]:
    """Without segmentation offloads a core cannot fill a fast link."""
    for server in site.facts:
        planned = {interface.name: port.gbps for port, interface in site.ports(server)}
        for interface in site.fabric_interfaces(server):
            gbps = planned.get(interface.name) or interface.gbps
            off = [n for n, on in (("tso", interface.tso), ("gro", interface.gro)) if on is False]
            if off and gbps is not None and gbps >= 10:
                name = shlex.quote(interface.name)
                yield Finding(
                    *("note", "offloads", server, site.name_of_interface(server, interface.name)),
                    what=f"off at {interface.name}: {', '.join(off)}",
                    why="one core cannot cut or join packets as fast as this link",
                    repair=tuple(f"ethtool -K {name} {what} on" for what in off),
                )


def _remove(ip: str, interface: InterfaceFacts) -> Iterator[str]:
    for address in interface.addresses:
        if address.partition("/")[0] == ip:
            yield f"ip address del {address} dev {shlex.quote(interface.name)}"
