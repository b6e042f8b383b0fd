"""Clusters whose ports are attached to switches, and their switches in memory, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.switches import Switches
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry, SwitchEntry
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.fabric.switches.circuits import Circuit


def switched_file(servers: int, ports: Sequence[int]) -> ClusterFile:
    """Every server has as many ports on switch s as `ports[s]` says, port after port."""
    entries = []
    sockets: list[list[str]] = [[] for _ in ports]
    for server in range(servers):
        own = []
        for switch, count in enumerate(ports):
            for _ in range(count):
                sockets[switch].append(str(len(sockets[switch]) + 1))
                own.append(
                    PortEntry(
                        f"p{len(own)}",
                        f"10.{switch + 1}.{len(own)}.{server + 1}/16",
                        switch=f"ocs{switch}:{sockets[switch][-1]}",
                    )
                )
        entries.append(ServerEntry(f"h{server}", f"10.0.0.{server + 1}", ports=tuple(own)))
    switches = tuple(
        SwitchEntry(f"ocs{s}", "memory", "", sockets=tuple(own)) for s, own in enumerate(sockets)
    )
    return ClusterFile(1, "lab", tuple(entries), (), switches).validate()


class Memories:
    """The memory switches of a cluster, which stay when their driver is closed."""

    def __init__(self, file: ClusterFile) -> None:
        self.file = file
        self.by_name = {entry.name: MemorySwitch(8, name=entry.name) for entry in file.switches}

    def open(self, entry: SwitchEntry) -> MemorySwitch:
        return self.by_name[entry.name]

    def switches(self) -> Switches:
        return Switches(self.file, open_switch=self.open)

    def circuits(self) -> dict[str, frozenset[Circuit]]:
        return {name: switch.circuits() for name, switch in self.by_name.items()}
