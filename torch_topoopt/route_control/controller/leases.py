"""Which hosts were not heard of for too long. Pure: whoever calls says what time it is.

A host that reports flows and dies ends none of them. A request of a host, or a long poll of it that
is open, renews its lease; the flows of a host without one end.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Leases:
    """`lease_s` is how long a host may be silent. A controller that starts gives `hosts`, those
    that have flows, a whole lease: it cannot know when they were heard of last."""

    def __init__(self, lease_s: float, hosts: Iterable[str], now_s: float) -> None:
        self._lease_s = lease_s
        self._heard = dict.fromkeys(hosts, now_s)
        self._waiting: Counter[str] = Counter()  # long polls that are open

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
        """Those of `hosts` whose leases have ended."""
        return [
            host
            for host in hosts
            if host not in self._waiting and now_s - self._heard.get(host, 0.0) > self._lease_s
        ]
