"""The source ports assigned to the links of a host, and those of its connections."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.plan import Link


@dataclass
class _Placed:
    """The ports of one link. `assigned` is empty if it is left to ECMP; `tried` were assigned when
    the newest connection was made, `dialled` is its port; `port` is that of the one in use."""

    assigned: tuple[int, ...] = ()
    limit_gbps: float | None = None
    tried: tuple[int, ...] = ()
    dialled: int = 0
    port: int = 0
    moving: bool = False


class FlowPorts:
    """A table shared by several threads; unknown links are left to ECMP.

    `refused` is called with a link and ports that could not be bound, where none could.
    """

    def __init__(
        self, links: Sequence[Link], refused: Callable[[Link, Sequence[int]], None]
    ) -> None:
        self._placed = {link: _Placed() for link in links}
        self._refused = refused
        self._lock = threading.Lock()

    def ports_of(self, link: Link) -> tuple[int, ...]:
        """See fabric.source_ports.SourcePorts, as the next two.

        The last connection's port comes last: the peer may not yet know that that connection has
        ended.
        """
        with self._lock:
            placed = self._placed.get(link, _Placed())
            placed.tried = placed.assigned
            return tuple(sorted(placed.assigned, key=lambda port: port == placed.dialled))

    def limit_gbps(self, link: Link) -> float | None:
        with self._lock:
            return self._placed.get(link, _Placed()).limit_gbps

    def taken(self, link: Link, port: int, refused: Sequence[int]) -> None:
        with self._lock:
            placed = self._placed.get(link, _Placed())
            placed.dialled = port
            left = bool(placed.tried) and port not in placed.tried
        if left:
            self._refused(link, refused)

    def assign(self, link: Link, ports: Sequence[int], limit_gbps: float | None) -> None:
        with self._lock:
            self._placed[link].assigned = tuple(ports)
            self._placed[link].limit_gbps = limit_gbps

    def assigned(self, link: Link) -> tuple[int, ...]:
        with self._lock:
            return self._placed[link].assigned

    def port(self, link: Link) -> int:
        """The port of the connection in use; 0 while there is none."""
        with self._lock:
            return self._placed[link].port

    def begin_move(self, link: Link, *, anyway: bool = False) -> bool:
        """Whether the connection in use has to move; if so, marks it as moving.

        If no assigned port could be bound, waits for other ones; `anyway`: also without assigned
        ports.
        """
        with self._lock:
            placed = self._placed[link]
            wanted = placed.assigned
            misplaced = wanted and placed.port not in wanted and placed.tried != wanted
            if not placed.port or placed.moving or not (misplaced or anyway):
                return False
            placed.moving = True
            return True

    def end_move(self, link: Link, *, made: bool) -> None:
        """The newest connection is in use, or has failed."""
        with self._lock:
            placed = self._placed[link]
            placed.moving = False
            if made:
                placed.port = placed.dialled
