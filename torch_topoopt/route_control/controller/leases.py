"""Hosts that have been silent for too long. Pure: callers pass the time.

A host that reports flows and dies ends none of them. Its requests and open long polls renew its
lease; the flows of a host without a lease end.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Leases:
    """`lease_s` is how long a host may be silent. At the start, all `hosts` with flows get a whole
    lease, since the time of their last request is unknown."""

    def __init__(self, lease_s: float, hosts: Iterable[str], now_s: float) -> None:
        self._lease_s = lease_s
        self._heard = dict.fromkeys(hosts, now_s)
        self._waiting: Counter[str] = Counter()  # open long polls

    def heard(self, hosts: Iterable[str], now_s: float) -> None:
        self._heard.update(dict.fromkeys(hosts, now_s))

    def begin_wait(self, host: str) -> None:
        self._waiting[host] += 1

    def end_wait(self, host: str, now_s: float) -> None:
        self._waiting[host] -= 1
        if not self._waiting[host]:
            del self._waiting[host]
        self._heard[host] = now_s

    def ended(self, hosts: Iterable[str], now_s: float) -> list[str]:
        """The hosts among `hosts` with expired leases."""
        return [
            host
            for host in hosts
            if host not in self._waiting and now_s - self._heard.get(host, 0.0) > self._lease_s
        ]
