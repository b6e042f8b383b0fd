"""Emulated hosts: network namespaces joined by veth cables, as root.

Host i is a namespace with one interface `cableN` for each of its cables, each cable a subnet of its
own, and `manage`, by which all hosts reach the store at the management bridge and each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.plain_namespaces import Namespaces, ip, run

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Hosts:
    names: list[str]
    store_address: str


class HostsFactory(Namespaces):
    """Makes hosts, and removes them at the end of the test."""

    def make(self, count: int, cables: Sequence[tuple[int, int]]) -> Hosts:
        store_address = f"{self.network}.0.254"
        ip(f"addr add {store_address}/24 dev {self.add_managed(count)}")
        self.add_cables(cables, "cable")
        return Hosts(self.names, store_address)

    def limit(self, rate_of: dict[str, int]) -> None:
        """Limits what interfaces send, in Mb/s by the beginnings of their names."""
        for namespace in self.names:
            for line in ip(f"-n {namespace} -o link show type veth").splitlines():
                name = line.split()[1].partition("@")[0]
                for beginning, mbps in rate_of.items():
                    if name.startswith(beginning):
                        limit = f"tbf rate {mbps}mbit burst 16kb latency 20ms"
                        run(*f"tc -n {namespace} qdisc add dev {name} root {limit}".split())
