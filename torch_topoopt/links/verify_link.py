"""Verifies a link from the hosts' side: both ends open it and prove that it is the right one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch_topoopt.links import sockets
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.handshake import Handshakes, NoAnswerError
from torch_topoopt.links.identity import Identity
from torch_topoopt.links.proof import Expected
from torch_topoopt.links.secret import fresh_secret

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Link


def both_ways(
    link: Link,
    wiring: Wiring,
    listener: socket.socket,
    connect: Callable[[], socket.socket],
    timeout_s: float,
) -> None:
    """Connects the ends of `link`, both of this process, lets each prove itself, and closes again.

    `listener` is the target's, `connect` opens the source's end. Raises FabricError naming the
    link.
    """
    far = wiring.by_port()[link.target, link.target_port]
    ends, name = sockets.ends_of(link), sockets.describe(link)
    with Handshakes(Identity(fresh_secret(), wiring.plan_digest)) as handshakes:
        handshakes.expect(
            Expected(listener, {ends: name}, lambda connection, _: sockets.prepare(connection, far))
        )
        try:
            handshakes.dial(ends, name, connect())
            handshakes.run(time.monotonic() + timeout_s)
        except (TimeoutError, NoAnswerError):
            raise FabricError(f"{name}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise FabricError(f"{name}: {error.strerror or error}") from None
