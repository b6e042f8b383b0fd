"""The expected carrier, maximum rate and bottleneck of each link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.tools.doctor.rdma_checks import roce_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.tools.doctor.facts import CardFacts, HostFacts, InterfaceFacts
    from torch_topoopt.tools.doctor.findings import Site


@dataclass(frozen=True)
class ExpectedLink:
    """One link. `carrier`: the choice of `--transport auto`. `gbps`: its maximum rate each way with
    all other links of its hosts busy, ignoring the processor (None: not known).
    """

    link: str
    carrier: Literal["tcp", "verbs"]
    gbps: float | None
    limit: str


@dataclass(frozen=True)
class Limit:
    gbps: float
    what: str


def link_rates(site: Site) -> list[ExpectedLink]:
    """The expected links of the file's cables with a known end; without a file, of this host's
    interfaces with an RDMA device or a known card."""
    return list(_of_interfaces(site) if site.file is None else _of_cables(site))


def _of_cables(site: Site) -> Iterator[ExpectedLink]:
    assert site.file is not None
    for cable in site.file.cables:
        ends = cable_ends(site, cable)
        if ends:
            direct = len(ends) == 2 and all(_by_verbs(site.facts[server], i) for server, i in ends)
            least = min(cable_limits(site, cable), key=lambda limit: limit.gbps, default=None)
            yield _rate(" - ".join(cable), direct, least)


def cable_ends(site: Site, cable: tuple[str, str]) -> list[tuple[str, InterfaceFacts]]:
    """The known servers and interfaces of a cable."""
    ends = []
    for end in cable:
        server, _, name = end.partition(":")
        if _asked(site, end):
            ends += [(server, i) for p, i in site.ports(server) if p.name == name]
    return ends


def cable_limits(site: Site, cable: tuple[str, str], *, alone: bool = False) -> list[Limit]:
    """The rates that bound a cable each way; `alone`: while others that share a port or a card are
    idle."""
    assert site.file is not None
    ends = cable_ends(site, cable)
    limits = [limit for end in ends for limit in _limits(site, *end, alone=alone)]
    rates = [(end, site.file.ports[end][1].gbps) for end in cable]
    return limits + [
        Limit(gbps, f"the cluster file's bandwidth of {end}") for end, gbps in rates if gbps
    ]


def _asked(site: Site, end: str) -> bool:
    return end.partition(":")[0] in site.facts


def _of_interfaces(site: Site) -> Iterator[ExpectedLink]:
    for server, facts in site.facts.items():
        for interface in site.fabric_interfaces(server):
            if facts.rdma.port_of(interface.name) or facts.rdma.card_of(interface.name):
                limits = list(_limits(site, server, interface))
                least = min(limits, key=lambda limit: limit.gbps, default=None)
                by_verbs = _by_verbs(facts, interface)
                yield _rate(f"{server} ({interface.name})", by_verbs, least)


def _rate(link: str, by_verbs: bool, least: Limit | None) -> ExpectedLink:
    return ExpectedLink(
        link,
        "verbs" if by_verbs else "tcp",
        least.gbps if least else None,
        least.what if least else "the rate is not known",
    )


def _by_verbs(facts: HostFacts, interface: InterfaceFacts) -> bool:
    port = facts.rdma.port_of(interface.name)
    if port is None or port.state != "ACTIVE" or facts.rdma.libraries_missing:
        return False
    return port.layer != "Ethernet" or roce_index(port, interface) is not None


def _limits(
    site: Site, server: str, interface: InterfaceFacts, *, alone: bool = False
) -> Iterator[Limit]:
    """The rates that bound a link at this end; links share resources evenly, unless `alone`."""
    if port := port_limit(site, server, interface, alone=alone):
        yield port
    card = site.facts[server].rdma.card_of(interface.name)
    if card is not None and card.pcie_gbps is not None:
        count = 1 if alone else _sharing(_cards(site, server), "slot", card.slot)
        yield Limit(
            card.pcie_gbps / count,
            f"PCIe {card.pcie_text} of {server} {interface.name}{_shared(card.pcie_gbps, count)}",
        )


def port_limit(
    site: Site, server: str, interface: InterfaceFacts, *, alone: bool = False
) -> Limit | None:
    """The rate of a port, or its part of one that several functions share; None: not known."""
    facts = site.facts[server]
    card, rdma = facts.rdma.card_of(interface.name), facts.rdma.port_of(interface.name)
    rate = interface.gbps or (rdma.gbps if rdma else None)
    if rate is None:
        return None
    port = None if alone or card is None else card.physical_port
    count = _sharing(_cards(site, server), "physical_port", port)
    return Limit(rate / count, f"the port of {server} {interface.name}{_shared(rate, count)}")


def _cards(site: Site, server: str) -> list[CardFacts]:
    used = [i for i in site.fabric_interfaces(server) if i.carrier]
    cards = [site.facts[server].rdma.card_of(interface.name) for interface in used]
    return [card for card in cards if card is not None]


def _sharing(cards: list[CardFacts], what: str, value: str | None) -> int:
    """The number of links that share one resource, this link included even if it is down."""
    return max(1, sum(getattr(card, what) == value for card in cards)) if value else 1


def _shared(gbps: float, count: int) -> str:
    return "" if count == 1 else f", {gbps:.0f} Gb/s shared by {count} links"
