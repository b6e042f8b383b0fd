"""Names and addresses of an emulated Clos network; pure, without the kernel."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.route_control.network_file import NetworkFile

UPLINK = "port0"  # the interface of a host that leads to its ToR


@dataclass(frozen=True)
class ClosNames:
    """Switches and hosts by their names in `network`; hosts are the servers of `layout`, in order.

    A switch has one address for all of its interfaces; a cable between switches has one name, at
    both ends.
    """

    network: NetworkFile
    layout: NetnsLayout

    @cached_property
    def hosts(self) -> dict[str, int]:
        return {host.name: number for number, host in enumerate(self.network.hosts)}

    @cached_property
    def switches(self) -> dict[str, int]:
        return {switch.name: number for number, switch in enumerate(self.network.switches)}

    @cached_property
    def cables(self) -> dict[frozenset[str], int]:
        return {frozenset(cable.ends): i for i, cable in enumerate(self.network.links)}

    def namespace(self, name: str) -> str:
        """The namespace of a host or a switch; raises FabricError for an unknown name."""
        if name in self.hosts:
            return self.layout.namespace(self.hosts[name])
        if name in self.switches:
            return self.layout.packet_switch_namespace(self.switches[name])
        raise FabricError(f"emulated network: it has no host or switch {name!r}")

    def host_address(self, host: str) -> str:
        return self.layout.server_address(self.hosts[host])

    def switch_address(self, switch: str) -> str:
        return self.layout.packet_switch_address(self.switches[switch])

    def interface(self, switch: str, neighbour: str) -> str:
        """The interface of a switch to another switch or to a host of its own."""
        if neighbour in self.hosts:
            return f"host{self.hosts[neighbour]}"
        return f"cable{self.cables[frozenset((switch, neighbour))]}"

    def mac(self, near: str, far: str) -> str:
        """The index of the interface of `near` to `far`; hosts' cables come last."""
        ends = frozenset((near, far))
        if ends in self.cables:
            cable = self.cables[ends]
            return self.layout.cable_mac(2 * cable + (near != self.network.links[cable].ends[0]))
        host = self.hosts[near] if near in self.hosts else self.hosts[far]
        return self.layout.cable_mac(2 * (len(self.cables) + host) + (near in self.hosts))

    def hash_seed(self, switch: str, seed: int) -> int:
        """The seed of the kernel's multipath hash; not 0, for which the kernel draws one."""
        return zlib.crc32(f"{seed} {switch}".encode()) | 1

    def addressed(self) -> NetworkFile:
        """The network file with the addresses of hosts and switches."""
        network = self.network
        return replace(
            network,
            switches=tuple(
                replace(switch, addresses=(self.switch_address(switch.name),))
                for switch in network.switches
            ),
            hosts=tuple(
                replace(host, addresses=(self.host_address(host.name),)) for host in network.hosts
            ),
        )
