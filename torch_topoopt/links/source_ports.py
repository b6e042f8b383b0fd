"""Where the connections of links leave from: switches choose a path by a hash of its TCP ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Link


class SourcePorts(Protocol):
    """Chooses for the links that a server connects. Called from several threads; never waits."""

    def ports_of(self, link: Link) -> Sequence[int]:
        """TCP ports to try, in this order, before one that the kernel chooses; () for only that."""

    def limit_gbps(self, link: Link) -> float | None:
        """The most that the connection may send, beside the rate of its port; None: no limit."""

    def taken(self, link: Link, port: int, refused: Sequence[int]) -> None:
        """A connection of `link` is being made from `port`. `refused` could not be bound."""


class LinkWatcher(Protocol):
    """Notified of links that a server connected. Called from one thread; never waits."""

    def moved(self, link: Link) -> None:
        """A new connection has taken the place of one that was in use, or lost."""

    def degraded(self, link: Link, why: str) -> None:
        """The connection of `link` is slow, or is lost and cannot be made anew."""
