"""Source ports of links' connections: switches choose a path by a hash of the TCP ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Link


class SourcePorts(Protocol):
    """Chooses source ports for a server's outgoing links. Thread-safe; never blocks."""

    def ports_of(self, link: Link) -> Sequence[int]:
        """TCP ports to try in this order; then the kernel chooses one."""

    def limit_gbps(self, link: Link) -> float | None:
        """A limit on the connection's rate besides that of its port; None: no limit."""

    def taken(self, link: Link, port: int, refused: Sequence[int]) -> None:
        """A connection of `link` starts from `port`; the ports `refused` could not be bound."""


class LinkWatcher(Protocol):
    """Notified of changes of a server's outgoing links. Called from one thread; never blocks."""

    def moved(self, link: Link) -> None:
        """A new connection has replaced one that was in use, or lost."""

    def degraded(self, link: Link, why: str) -> None:
        """The connection of `link` is slow, or is lost and cannot be reopened."""
