"""Cables of a fabric of namespaces, broken and repaired with ip, nft, tc and ss."""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import json
import socket
import struct
import subprocess
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns.layout import port_interface
from torch_topoopt.links.sockets import connections

if TYPE_CHECKING:
    import random

    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Link, Plan

_COMMAND_LIMIT_S = 10.0
_MTU = 1500
_tables = itertools.count()
_IP_LEVEL_HOOK = "type filter hook prerouting priority -300"
INPUT_HOOK = "type filter hook input priority 0"
REFUSED = "IN meta l4proto tcp reject with tcp reset"  # of INPUT_HOOK
# <linux/ethtool.h>, <linux/sockios.h>
_ETHTOOL_STXCSUM, _SIOCETHTOOL = 0x17, 0x8946


@dataclass(frozen=True)
class End:
    """A port of a server, as the kernel of its host sees it."""

    namespace: str
    interface: str


@dataclass(frozen=True)
class Cable:
    """`ends[0]` is the one that connects, `ends[1]` accepts."""

    link: Link
    ends: tuple[End, End]

    @property
    def servers(self) -> tuple[int, int]:
        return self.link.source, self.link.target

    def renumbered(self, numbers: dict[int, int]) -> Cable:
        """The same between servers of these numbers."""
        source, target = (numbers[server] for server in self.servers)
        return replace(self, link=replace(self.link, source=source, target=target))


def cables_of(layout: NetnsLayout, plan: Plan) -> list[Cable]:
    """The cables of the plan between the hosts of a fabric of namespaces."""

    def end(server: int, port: int) -> End:
        return End(layout.namespace(server), port_interface(port))

    return [
        Cable(
            link,
            (end(link.source, link.source_port), end(link.target, link.target_port)),
        )
        for link in connections(plan)
    ]


def is_connected(cables: list[Cable], servers: int) -> bool:
    """Whether all servers reach each other over these cables."""
    reached = {0}
    while grown := {
        server
        for cable in cables
        if len(reached & set(cable.servers)) == 1
        for server in set(cable.servers) - reached
    }:
        reached |= grown
    return len(reached) == servers


def some_that_may_fail(
    cables: list[Cable], servers: int, count: int, chance: random.Random
) -> list[Cable]:
    """`count` cables without which the others still connect all servers."""
    while True:
        chosen = chance.sample(cables, count)
        if is_connected([cable for cable in cables if cable not in chosen], servers):
            return chosen


def run(command: list[str]) -> str:
    """Runs one of the programs; raises RuntimeError with what it said."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False
    )
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise RuntimeError(f"{' '.join(command)}: {said}")
    return done.stdout


def _ip(namespace: str, *arguments: str) -> str:
    return run(["ip", "-n", namespace, *arguments])


def _inside(namespace: str, *command: str) -> str:
    return run(["nsenter", f"--net={netns_kernel.path_of(namespace)}", *command])


@dataclass(frozen=True)
class Listener:
    namespace: str
    address: str
    port: int


def listeners(namespace: str) -> list[Listener]:
    """The TCP sockets that listen there."""
    lines = _inside(namespace, "ss", "-Htln4").splitlines()
    ends = [line.split()[3].rpartition(":") for line in lines]
    return [Listener(namespace, address, int(port)) for address, _, port in ends if address != "*"]


class Down:
    """An interface that is down; its routes come back with it, as on a host that manages them."""

    def __init__(self, end: End) -> None:
        self._end = end
        shown = _ip(end.namespace, "-o", "route", "show", "table", "all").splitlines()
        own = [line for line in shown if f" dev {end.interface} " in line]
        self._routes = [line for line in own if " proto static " in line]
        _ip(end.namespace, "link", "set", end.interface, "down")

    def repair(self) -> None:
        _ip(self._end.namespace, "link", "set", self._end.interface, "up")
        for route in self._routes:
            words = [word for word in route.split() if word != "linkdown"]
            _ip(self._end.namespace, "route", "replace", *words)


class Rules:
    """Rules of nft for what comes in at some ends, with "IN" for its interface."""

    def __init__(self, ends: list[End], *rules: str, hook: str = _IP_LEVEL_HOOK) -> None:
        self._namespaces: list[str] = []
        self._table = f"inet faults{next(_tables)}"
        interfaces: dict[str, list[str]] = {}
        for end in ends:
            interfaces.setdefault(end.namespace, []).append(end.interface)
        try:
            for namespace, names in interfaces.items():
                chosen = f"iifname {{ {', '.join(names)} }}"
                text = (
                    f"add table {self._table}; add chain {self._table} in {{ {hook}; }}; "
                    + "; ".join(
                        f"add rule {self._table} in {rule.replace('IN', chosen)}" for rule in rules
                    )
                )
                self._namespaces.append(namespace)
                _inside(namespace, "nft", text)
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self.repair()
            raise

    def repair(self) -> None:
        for namespace in self._namespaces:
            _inside(namespace, "nft", f"delete table {self._table}")


def reset_a_connection(namespace: str, management_network: str, chance: random.Random) -> None:
    """The kernel closes a connection between ranks, and resets it at the other end."""
    lines = _inside(namespace, "ss", "-Htn4", "state", "established").splitlines()
    ends = [line.split()[2:4] for line in lines]
    prefix = management_network.rpartition(".")[0] + "."
    own, other = chance.choice([pair for pair in ends if not pair[1].startswith(prefix)])
    _inside(namespace, "ss", "-K", "src", own, "dst", other)


class Duplicated:
    """Every second packet that an end of the cable sends goes out twice.

    The network layer makes the copies: copies of the link layer (netdev, egress) share memory, and
    the kernel cannot read some of what has arrived then (EFAULT), although it has acknowledged it.
    """

    def __init__(self, cable: Cable) -> None:
        self._ends = cable.ends
        self._table = f"ip faults{next(_tables)}"
        for end, far in zip(cable.ends, reversed(cable.ends), strict=True):
            _inside(
                end.namespace,
                "nft",
                f"add table {self._table}; add chain {self._table} out "
                "{ type filter hook postrouting priority 0; }; "
                f'add rule {self._table} out oifname "{end.interface}" numgen inc mod 2 < 1 '
                f'dup to {_address(far)} device "{end.interface}"',
            )

    def repair(self) -> None:
        for end in self._ends:
            _inside(end.namespace, "nft", f"delete table {self._table}")


def _address(end: End) -> str:
    (shown,) = json.loads(_ip(end.namespace, "-j", "-4", "address", "show", "dev", end.interface))
    return str(shown["addr_info"][0]["local"])


class Reordered:
    """Packets that an end sends overtake each other: every second one waits in a slower queue."""

    def __init__(self, cable: Cable, gbps: float) -> None:
        self._cable, self._gbps = cable, gbps
        for end in cable.ends:
            _tc(end, "qdisc", "del", "root")
            _tc(end, "qdisc", "add", "root", "handle", "1:", "htb", "default", "1")
            for number, share in ((1, 0.7), (2, 0.3)):
                rate = f"{round(gbps * share * 1e9)}bit"
                _tc(
                    end,
                    "class",
                    "add",
                    "parent",
                    "1:",
                    "classid",
                    f"1:{number}",
                    "htb",
                    "rate",
                    rate,
                )
            # The lowest bit of IPv4's identification, which Linux counts up.
            odd = ("match", "u16", "1", "1", "at", "4")
            _tc(
                end, "filter", "add", "parent", "1:", "protocol", "ip", "u32", *odd, "flowid", "1:2"
            )

    def repair(self) -> None:
        for end in self._cable.ends:
            _limit(end, self._gbps)


class SmallMtu:
    """Packets of more than `mtu` bytes neither leave nor enter these ports."""

    def __init__(self, ends: list[End], mtu: int) -> None:
        self._ends = ends
        self._set(mtu)

    def repair(self) -> None:
        self._set(_MTU)

    def _set(self, mtu: int) -> None:
        for end in self._ends:
            _ip(end.namespace, "link", "set", end.interface, "mtu", str(mtu))


class Swapped:
    """The far ends of two cables are plugged into each other's ports."""

    def __init__(self, first: Cable, second: Cable, gbps: float) -> None:
        self._ends = first.ends[1], second.ends[1]
        self._gbps = gbps
        self._swap()

    def repair(self) -> None:
        self._swap()

    def _swap(self) -> None:
        """A port keeps its name and addresses, and gets the other one's wire."""
        ports = [_PortSettings(end) for end in self._ends]
        for number, (end, port) in enumerate(zip(self._ends, reversed(self._ends), strict=True)):
            _ip(end.namespace, "link", "set", end.interface, "down")
            _ip(end.namespace, "link", "set", end.interface, "name", f"wire{number}")
            _ip(end.namespace, "link", "set", f"wire{number}", "netns", port.namespace)
        for number, settings in enumerate(reversed(ports)):
            settings.apply(f"wire{number}")
            _limit(settings.end, self._gbps)


class _PortSettings:
    """What `ip` knows of a port, to be given to another interface."""

    def __init__(self, end: End) -> None:
        self.end = end
        (shown,) = json.loads(_ip(end.namespace, "-j", "address", "show", "dev", end.interface))
        self._mac = shown["address"]
        self._addresses = [
            f"{address['local']}/{address['prefixlen']}"
            for address in shown["addr_info"]
            if address["scope"] == "global"
        ]
        routes = _ip(end.namespace, "route", "show", "dev", end.interface).splitlines()
        self._routes = [route for route in routes if "proto kernel" not in route]

    def apply(self, interface: str) -> None:
        space, name = self.end.namespace, self.end.interface
        _ip(space, "link", "set", interface, "name", name)
        _ip(space, "link", "set", name, "address", self._mac, "mtu", str(_MTU))
        for address in self._addresses:
            _ip(space, "address", "add", address, "dev", name)
        _ip(space, "link", "set", name, "up")
        for route in self._routes:
            words = [word for word in route.split() if word != "linkdown"]
            _ip(space, "route", "replace", *words, "dev", name)


def _tc(end: End, kind: str, verb: str, *rest: str) -> None:
    _inside(end.namespace, "tc", kind, verb, "dev", end.interface, *rest)


def _limit(end: End, gbps: float) -> None:
    """The rate of what a port sends, by whatever limited it before."""
    with contextlib.suppress(RuntimeError):  # a new wire has none
        _tc(end, "qdisc", "del", "root")
    with netns_kernel.open_route(end.namespace) as route:
        index = route.link_lookup(ifname=end.interface)[0]
        netns_shaper.limit(route, index, gbps, _MTU, netns_shaper.choose())


class CheckedSums:
    """The kernel computes the checksums of what it sends; veth otherwise trusts itself."""

    def __init__(self, ends: list[End]) -> None:
        self._ends = ends
        self._set(0)

    def repair(self) -> None:
        self._set(1)

    def _set(self, offload: int) -> None:
        for end in self._ends:
            netns_kernel.inside(end.namespace, partial(_set_offload, end, offload))


def _set_offload(end: End, value: int) -> None:
    request = array.array("I", [_ETHTOOL_STXCSUM, value])
    name = end.interface.encode().ljust(16, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        fcntl.ioctl(kernel, _SIOCETHTOOL, struct.pack("16sP16x", name, request.buffer_info()[0]))


class Slow:
    """Both directions of a cable at another rate."""

    def __init__(self, cable: Cable, gbps: float, usual_gbps: float) -> None:
        self._cable, self._usual_gbps = cable, usual_gbps
        self._limit(gbps)

    def repair(self) -> None:
        self._limit(self._usual_gbps)

    def _limit(self, gbps: float) -> None:
        for end in self._cable.ends:
            _limit(end, gbps)
