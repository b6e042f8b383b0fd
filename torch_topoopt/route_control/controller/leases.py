"""Hosts that have been silent for too long. Pure: callers pass the time.

A host that reports flows and dies ends none of them. Its requests and open long polls renew its
lease; the flows of a host without a lease end.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_UNNOTED = 1024  # requests


class Leases:
    """`lease_s` is how long a host may be silent. At the start, all `hosts` with flows get a whole
    lease, since the time of their last request is unknown."""

    def __init__(self, lease_s: float, hosts: Iterable[str], now_s: float) -> None:
        self._lease_s = lease_s
        self._heard = dict.fromkeys(hosts, now_s)
        self._unnoted: list[tuple[Iterable[str], float]] = []  # in the order of their times
        self._waiting: Counter[str] = Counter()  # open long polls

    def heard(self, hosts: Iterable[str], now_s: float) -> None:
        """Requests of these hosts; noted later, since an answer does not need their leases."""
        self._unnoted.append((hosts, now_s))
        if len(self._unnoted) >= _MOST_UNNOTED:
            self._note()

    def _note(self) -> None:
        for hosts, now_s in self._unnoted:
            self._heard.update(dict.fromkeys(hosts, now_s))
        self._unnoted.clear()

    def begin_wait(self, host: str) -> None:
        self._waiting[host] += 1

    def end_wait(self, host: str, now_s: float) -> None:
        self._waiting[host] -= 1
        if not self._waiting[host]:
            del self._waiting[host]
        self.heard([host], now_s)

    def ended(self, hosts: Iterable[str], now_s: float) -> list[str]:
        """The hosts among `hosts` with expired leases."""
        self._note()
        return [
            host
            for host in hosts
            if host not in self._waiting and now_s - self._heard.get(host, 0.0) > self._lease_s
        ]
