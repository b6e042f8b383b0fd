"""Facts of one host: `gather` reads and probes them, and the checks evaluate them.

A Document, so that a host prints it as JSON and the cluster's part merges those of all hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from torch_topoopt.links.addresses import is_ipv6, is_link_local
from torch_topoopt.plan.codec import Document


@dataclass(frozen=True)
class InterfaceFacts:
    """Effective `rp_filter`, `arp_ignore` and `arp_announce`: the larger of `all` and its own.

    `addresses` have prefix lengths: IPv4, then IPv6; link-local ones have their interface. None:
    unknown.
    """

    name: str
    mac: str | None
    mtu: int
    up: bool
    carrier: bool
    addresses: tuple[str, ...]
    gbps: float | None
    rp_filter: int
    forwarding: bool
    arp_ignore: int
    arp_announce: int
    lro: bool | None
    tso: bool | None
    gro: bool | None

    @property
    def ips(self) -> tuple[str, ...]:
        return tuple(address.partition("/")[0] for address in self.addresses)

    @property
    def ipv4(self) -> tuple[str, ...]:
        return tuple(ip for ip in self.ips if not is_ipv6(ip))

    @property
    def unique_ips(self) -> tuple[str, ...]:
        """The addresses that no other host may have, too."""
        return tuple(ip for ip in self.ips if not is_link_local(ip))


@dataclass(frozen=True)
class KernelFacts:
    """Sizes in bytes; `tcp_rmem_max` and `tcp_wmem_max` are the last of their three numbers.

    `core_writable`: net.core can be set here (not so in a network namespace). `governors` are the
    different CPU frequency governors.
    """

    rmem_max: int | None
    wmem_max: int | None
    tcp_rmem_max: int | None
    tcp_wmem_max: int | None
    core_writable: bool
    congestion: str
    governors: tuple[str, ...]


@dataclass(frozen=True)
class GidFacts:
    """An entry of an RDMA port's table. `kind`: "RoCE v2", "IB/RoCE v1"; `gid` as IPv6."""

    index: int
    kind: str
    gid: str
    interface: str | None


@dataclass(frozen=True)
class RdmaPortFacts:
    """A port of an RDMA device. `state`: "ACTIVE" where it works; `layer`: "Ethernet" (RoCE) or
    "InfiniBand"; `mtu` in bytes, of packets' payload (None: the library's program is not here).
    """

    device: str
    port: int
    interface: str | None
    state: str
    layer: str
    gbps: float | None
    mtu: int | None
    gids: tuple[GidFacts, ...]


@dataclass(frozen=True)
class CardFacts:
    """The card of an interface, as far as the kernel says.

    `pcie_gbps`: rate of its PCIe link each way without packet overhead, `pcie_text` in PCIe's
    terms; `pcie_best_gbps`: the best rate of card and slot. Functions of one `slot` share that
    link, and those of one `physical_port` its rate (links/hardware.py).
    `driver`: the name of its kernel module ("": not known).
    `pfc`: priorities with priority flow control; `pause`: whether pause frames are sent and heeded;
    `ecn`: whether RoCE reacts to marks.
    """

    interface: str
    physical_port: str | None
    slot: str | None
    pcie_text: str
    pcie_gbps: float | None
    pcie_best_gbps: float | None
    pfc: tuple[int, ...] | None
    pause: bool | None
    ecn: bool | None
    driver: str = ""


@dataclass(frozen=True)
class RdmaFacts:
    """All RDMA ports and cards. `libraries`: those missing that `verbs` needs; `memlock_bytes`: how
    much memory a process may register (None: no limit).
    """

    ports: tuple[RdmaPortFacts, ...] = ()
    cards: tuple[CardFacts, ...] = ()
    libraries_missing: tuple[str, ...] = ()
    memlock_bytes: int | None = None

    def port_of(self, interface: str) -> RdmaPortFacts | None:
        """The RDMA port of an interface: a working one, if there are several."""
        found = [port for port in self.ports if port.interface == interface]
        return min(found, key=lambda port: port.state != "ACTIVE", default=None)

    def card_of(self, interface: str) -> CardFacts | None:
        return next((card for card in self.cards if card.interface == interface), None)


@dataclass(frozen=True)
class ChainFacts:
    """A base chain of the firewall that drops what no rule accepts.

    `hook` is "forward" or "input"; `accepts` are interfaces (or "*") whose packets a rule accepts.
    `insert` is a shell command that puts a rule in front: {} stands for its match and verdict.
    """

    hook: str
    where: str
    accepts: tuple[str, ...]
    insert: str


@dataclass(frozen=True)
class FirewallFacts:
    """`read`: the programs that could be run; empty: nothing is known. `docker`: installed."""

    read: tuple[str, ...]
    docker: bool
    drops: tuple[ChainFacts, ...]


@dataclass(frozen=True)
class Answer:
    """A host that answers ARP for `address` on one interface; or, with an IPv6 `address` (without
    its zone) and no `mac`, one that answers an echo to all nodes.
    """

    address: str
    mac: str


@dataclass(frozen=True)
class CableProbe:
    """The other end of a port that is up.

    `answers` to ARP for all addresses of the cluster file, or, for an IPv6 port, to an echo to all
    nodes (None: not probed, since that needs root). `sent_bytes` is the largest unfragmented packet
    that was sent, `back_bytes` the largest that was answered (0: none).
    """

    port: str
    interface: str
    answers: tuple[Answer, ...] | None
    sent_bytes: int
    back_bytes: int


@dataclass(frozen=True)
class Reach:
    """A probe of another server's address over ordinary routes; `source` is our address."""

    server: str
    address: str
    source: str | None
    answered: bool


@dataclass(frozen=True)
class HostFacts(Document):
    """`server` is its name in the cluster file ("" without one); `root`: it may be repaired.

    `claimed`: other hosts that claim one of our own addresses.
    """

    KIND: ClassVar[str] = "HostFacts"
    VERSION: ClassVar[int] = 1

    version: int
    server: str
    hostname: str
    root: bool
    interfaces: tuple[InterfaceFacts, ...]
    kernel: KernelFacts
    firewall: FirewallFacts
    cables: tuple[CableProbe, ...] = ()
    claimed: tuple[Answer, ...] = ()
    reached: tuple[Reach, ...] = ()
    rdma: RdmaFacts = RdmaFacts()

    def validate(self) -> Self:
        return self

    def interface(self, name: str | None) -> InterfaceFacts | None:
        return next((i for i in self.interfaces if i.name == name), None)

    def owner(self, ip: str) -> InterfaceFacts | None:
        """The interface that has an address."""
        return next((i for i in self.interfaces if ip in i.ips), None)
