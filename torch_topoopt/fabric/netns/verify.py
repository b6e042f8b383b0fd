"""Verifies a link between two namespaces of this machine, from both ends."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.links import sockets, verify_link
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Link


def verify_between(
    link: Link, wiring: Wiring, namespaces: tuple[str, str], timeout_s: float
) -> None:
    """Opens `link` from the first of `namespaces` to the second, and closes it again.

    Raises FabricError naming the link.
    """
    source, target = namespaces
    ports = wiring.by_port()
    near, far = ports[link.source, link.source_port], ports[link.target, link.target_port]
    try:
        listener = netns_kernel.inside(
            target, lambda: sockets.listen(far.address, wiring.tcp_port, far.interface)
        )
    except OSError as error:
        raise FabricError(f"{sockets.describe(link)}: {error.strerror or error}") from None
    with contextlib.closing(listener):
        verify_link.both_ways(
            link,
            wiring,
            listener,
            lambda: netns_kernel.inside(
                source, lambda: sockets.connect(near, far, wiring.tcp_port, timeout_s)
            ),
            timeout_s,
        )
