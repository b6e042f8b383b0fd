"""Verifies a link from the hosts' side: it opens, and both ends say that it is the planned one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torch_topoopt.fabric import links
from torch_topoopt.fabric.driver import FabricError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.plan import Link


def both_ways(
    link: Link,
    wiring: Wiring,
    listener: socket.socket,
    connect: Callable[[], socket.socket],
    timeout_s: float,
) -> None:
    """Connects the ends of `link`, sends a hello from each, checks both, and closes again.

    `listener` is the target's, `connect` opens the source's end. Raises FabricError naming the
    link.
    """
    ports = wiring.by_port()
    near, far = ports[link.source, link.source_port], ports[link.target, link.target_port]
    listener.settimeout(timeout_s)
    with contextlib.ExitStack() as sockets:
        try:
            outgoing = sockets.enter_context(connect())
            incoming, peer = listener.accept()
            sockets.enter_context(incoming)
            incoming.settimeout(timeout_s)
            links.prepare(incoming, far)
            if peer[0] != near.address:
                raise FabricError(
                    f"{links.describe(link)}: expected {near.address} to connect, got {peer[0]}"
                )
            links.send_hello(outgoing, wiring.plan_digest, link)
            links.check_hello(incoming, wiring.plan_digest, link)
            links.send_hello(incoming, wiring.plan_digest, link)
            links.check_hello(outgoing, wiring.plan_digest, link)
        except TimeoutError:
            raise FabricError(f"{links.describe(link)}: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise FabricError(f"{links.describe(link)}: {error.strerror or error}") from None
