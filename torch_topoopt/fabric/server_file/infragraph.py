"""InfraGraph (JSON or YAML), read as descriptions of a server.

Source: github.com/Keysight/infragraph, schema/. A device has components, of which `count` exist,
and edges between slices of them ("xpu[0:8]"). The server is the device with components of the
choice `xpu`. Network cards are components of the choice `nic`, or devices with components `port`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING, Any

import networkx as nx

from torch_topoopt.fabric.server_file.description import DescribedPort, ServerDescription
from torch_topoopt.plan.codec import DocumentError, brief

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS = 8
_ENDPOINT = re.compile(r"([\w-]+)(?:\[(-?\d*)(:?)(-?\d*):?(-?\d*)\])?")
_Node = tuple[str, int]  # component, its number


def read_infragraph(value: dict[str, Any]) -> ServerDescription:
    """The server of an infrastructure; raises DocumentError."""
    value = value.get("infrastructure", value)
    try:
        servers = [device for device in value["devices"] if _of_choice(device, "xpu")]
        if len(servers) != 1:
            names = ", ".join(str(device["name"]) for device in servers) or "none"
            raise DocumentError(f"devices: one needs components xpu; those with them: {names}")
        (server,) = servers
        counts = {str(c["name"]): int(c["count"]) for c in server["components"]}
        edges = list(_edges(server, counts))
        cards = [n for name in _of_choice(server, "xpu") for n in _nodes(name, counts)]
        joined_by, inside = _inside(cards, edges, _rates(server))
        ports = tuple(_ports(value, server, counts, edges))
    except DocumentError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise DocumentError(f"not an InfraGraph: without {error}") from None
    return ServerDescription(len(cards), joined_by, inside, ports)


def _of_choice(device: dict[str, Any], choice: str) -> list[str]:
    """Names of the components of this choice."""
    return [str(c["name"]) for c in device.get("components", ()) if c.get("choice") == choice]


def _nodes(endpoint: str, counts: dict[str, int]) -> list[_Node]:
    """The components of an endpoint, such as "xpu[0:8]" or "nic"; of "cx5[0].port[1]", cx5 0."""
    match = _ENDPOINT.fullmatch(endpoint.partition(".")[0])
    if match is None or match[1] not in counts:
        raise DocumentError(f"component: {brief(endpoint)} is not a component of its device")
    name, start, colon, stop, step = match.groups()
    numbers = range(counts[name])
    if start is None:
        return [(name, number) for number in numbers]
    if not colon:
        return [(name, numbers[int(start)])]
    parts = slice(*(int(text) if text else None for text in (start, stop, step)))
    return [(name, number) for number in numbers[parts]]


def _edges(device: dict[str, Any], counts: dict[str, int]) -> Iterator[tuple[_Node, _Node, str]]:
    """The edges inside of a device, with the names of their links."""
    for edge in device.get("edges", ()):
        a, b = (_nodes(str(edge[end]["component"]), counts) for end in ("ep1", "ep2"))
        if edge.get("scheme") == "ring":
            pairs = list(zip(a, [*a[1:], a[0]], strict=True))
        else:
            pairs = list(product(a, b) if edge.get("scheme") == "many2many" else zip(a, b))  # noqa: B905 - as InfraGraph does
        for pair in dict.fromkeys(tuple(sorted(pair)) for pair in pairs):
            if pair[0] != pair[1]:
                yield pair[0], pair[1], str(edge["link"])


def _rates(owner: dict[str, Any]) -> dict[str, float]:
    """Gb/s of the links that have a bandwidth."""
    found = {}
    for link in owner.get("links", ()):
        bandwidth = link.get("physical", {}).get("bandwidth", {})
        if (gbps := bandwidth.get("gigabits_per_second")) is not None:
            found[str(link["name"])] = float(gbps)
        elif (gbytes := bandwidth.get("gigabytes_per_second")) is not None:
            found[str(link["name"])] = float(gbytes) * _BITS
    return found


def _inside(
    cards: list[_Node], edges: list[tuple[_Node, _Node, str]], rates: dict[str, float]
) -> tuple[str, float | None]:
    """The fastest links that join all accelerators, and the Gb/s of each."""
    graphs: defaultdict[str, nx.MultiGraph[_Node]] = defaultdict(nx.MultiGraph)
    for a, b, link in edges:
        graphs[link].add_edge(a, b)
    found = [
        (min(graph.degree[card] for card in cards) * rates.get(link, 0.0), link)
        for link, graph in graphs.items()
        if all(card in graph for card in cards)
        and set(cards) <= nx.node_connected_component(graph, cards[0])
    ]
    gbps, link = max(found, default=(0.0, ""))
    return link, gbps or None


def _ports(
    value: dict[str, Any],
    server: dict[str, Any],
    counts: dict[str, int],
    edges: list[tuple[_Node, _Node, str]],
) -> Iterator[DescribedPort]:
    """The ports of the cards; speeds are those of links between instances."""
    devices = {str(device["name"]): device for device in value["devices"]}
    of_server = {str(i["name"]) for i in value["instances"] if i["device"] == server["name"]}
    speeds: dict[_Node, float] = {}
    outside, inside = _rates(value), _rates(server)
    for edge in value.get("edges", ()):
        for end in (edge["ep1"], edge["ep2"]):
            if str(end["instance"]).partition("[")[0] in of_server:
                for node in _nodes(str(end["component"]), counts):
                    speeds[node] = max(speeds.get(node, 0.0), outside.get(str(edge["link"]), 0.0))
    cards = dict.fromkeys(_of_choice(server, "nic"), 1)
    for name in _of_choice(server, "device"):
        sockets = [c for c in devices[name]["components"] if c.get("choice") == "port"]
        cards[name] = sum(int(c["count"]) for c in sockets)
    for name, each in cards.items():
        for node in _nodes(name, counts):
            slots = [inside[link] for a, b, link in edges if node in (a, b) and link in inside]
            limit = min(slots) / each if slots else None
            for port in range(each):
                label = f"{name}.{node[1]}" + (f".{port}" if each > 1 else "")
                yield DescribedPort(label, speeds.get(node) or None, limit)
