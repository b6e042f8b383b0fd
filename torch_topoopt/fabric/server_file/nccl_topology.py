"""Topologies of NCCL (NCCL_TOPO_DUMP_FILE) and RCCL, read as descriptions of a server.

Source: github.com/NVIDIA/nccl, src/graph/xml.cc and topo.cc. Below `system` are `cpu` (one for each
NUMA node) and `pci` elements. A `pci` has `link_speed` and `link_width`, and contains others, a
`gpu` with its `nvlink`s, or a `nic` with a `net` (speed in Mb/s) for each port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import networkx as nx

from torch_topoopt.fabric.server_file.description import DescribedPort, ServerDescription
from torch_topoopt.links.hardware import pcie_gbps
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS = 8
_SWITCH_CLASS = "0x068000"  # of an NVSwitch
# compute capability from which on an NVLink has this many GB/s each way (NVIDIA's data sheets)
_NVLINK_GBYTES = ((100, 50.0), (90, 25.0), (86, 14.0625), (70, 25.0), (60, 20.0))
_XGMI_GBYTES = {"gfx942": 64.0}  # CDNA 3 data sheet


def read_nccl_topology(content: bytes) -> ServerDescription:
    """The server of a topology; raises DocumentError."""
    try:
        system = ET.fromstring(content)
    except ET.ParseError as error:
        raise DocumentError(f"not XML: {error}") from None
    hosts = {cpu.get("host_hash") for cpu in system.iter("cpu")}
    if len(hosts) > 1:
        raise DocumentError(f"host_hash: {len(hosts)} hosts; give the topology of one")
    cards = list(_with_function(system, "gpu"))
    if not cards:
        raise DocumentError("gpu: there is none; NCCL writes those of its ranks")
    joined_by, inside = _inside(cards)
    return ServerDescription(len(cards), joined_by, inside, tuple(_ports(system)))


def _with_function(system: ET.Element, name: str) -> Iterator[tuple[ET.Element, ET.Element]]:
    """Every element of this name, after the PCIe function that it is on."""
    for function in system.iter("pci"):
        for element in function.findall(name):
            yield function, element


def _inside(cards: list[tuple[ET.Element, ET.Element]]) -> tuple[str, float | None]:
    """The fabric that joins all accelerators, and the Gb/s of each."""
    graph: nx.Graph[str] = nx.Graph()
    rates = []
    kind = "NVLink"
    for function, gpu in cards:
        own = _text(function, "busid")
        graph.add_node(own)
        rate = 0.0
        for link in (*gpu.findall("nvlink"), *gpu.findall("xgmi")):
            kind = "xGMI" if link.tag == "xgmi" else kind
            switched = link.get("tclass") == _SWITCH_CLASS
            graph.add_edge(own, "switches" if switched else _text(link, "target"))
            rate += _number(link, "count") * _link_gbytes(gpu, link) * _BITS
        rates.append(rate)
    if len(cards) > 1 and nx.is_connected(graph):
        return kind, min(rates)
    return "PCIe", min(_pcie(function) or 0 for function, _ in cards) or None


def _link_gbytes(gpu: ET.Element, link: ET.Element) -> float:
    if link.tag == "xgmi":
        model = gpu.get("gcn", "").partition(":")[0]
        if model not in _XGMI_GBYTES:
            raise DocumentError(f"gpu.gcn: the rate of xGMI is not known for {model or 'none'}")
        return _XGMI_GBYTES[model]
    capability = _number(gpu, "sm")
    for least, gbytes in _NVLINK_GBYTES:
        if capability >= least:
            return gbytes
    raise DocumentError(f"gpu.sm: {capability} has no NVLink")


def _ports(system: ET.Element) -> Iterator[DescribedPort]:
    """The ports that NCCL uses: those with a number."""
    found = [
        (function, net)
        for function, nic in _with_function(system, "nic")
        for net in nic.findall("net")
        if net.get("dev") is not None and net.get("net") != "0"
    ]
    cards = [_card(function) for function, _ in found]
    for function, net in found:
        limit = _pcie(function)
        speed = _number(net, "speed")
        yield DescribedPort(
            _text(net, "name"),
            speed / 1000 if speed > 0 else None,  # NCCL has -1 where it does not know
            None if limit is None else limit / cards.count(_card(function)),
        )


def _card(function: ET.Element) -> str:
    """The PCI address without its function: several functions of a card share its link."""
    return _text(function, "busid").rpartition(".")[0]


def _pcie(function: ET.Element) -> float | None:
    return pcie_gbps(function.get("link_speed", ""), function.get("link_width", ""))


def _text(element: ET.Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise DocumentError(f"{element.tag}.{name}: missing")
    return value


def _number(element: ET.Element, name: str) -> int:
    text = _text(element, name)
    try:
        return int(text)
    except ValueError:
        raise DocumentError(f"{element.tag}.{name}: {text!r} is not an integer") from None
