"""Cables of emulated hosts with a delay, for kernels without netem.

All cables end in the namespace of the emulated switch. A process there copies each frame from one
end to the other when the delay has passed.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.layout import socket_interface, socket_name
from torch_topoopt.links import sockets
from torch_topoopt.processes.rank_main import die_with

if TYPE_CHECKING:
    from torch_topoopt.fabric.netns.options import NetnsOptions
    from torch_topoopt.plan import Plan

# <linux/if_packet.h>, <linux/if_ether.h>
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ETH_P_ALL = 0x0003
_SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>
_MOST_BYTES = 1 << 17  # of a frame: the kernel's segmentation is left to the receiver
_BUFFER_BYTES = 16 << 20
_START_S = 10.0


class LongCables(NetnsFabric):
    """A fabric whose cables delay every frame; its options need a `switch_delay_s`."""

    def __init__(self, fabric: str, options: NetnsOptions, *, delay_s: float) -> None:
        super().__init__(fabric, options)
        self._delay_s = delay_s
        self._process: Any = None

    def _set_circuits(self, plan: Plan) -> None:
        degree = plan.cluster.degree
        pairs = [
            (
                socket_interface(socket_name(cable.source, cable.source_port, degree)),
                socket_interface(socket_name(cable.target, cable.target_port, degree)),
            )
            for cable in sockets.connections(plan)
        ]
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        arguments = (self.layout.switch_namespace, pairs, self._delay_s, ready, os.getpid())
        self._process = context.Process(target=_carry, args=arguments, daemon=True)
        self._process.start()
        if not ready.wait(_START_S):
            raise RuntimeError("long cables: the process that carries their frames did not start")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        super().close()


def _carry(
    namespace: str, pairs: list[tuple[str, str]], delay_s: float, ready: Any, parent: int
) -> None:
    die_with(parent)
    os.nice(-20)  # a frame waits for its delay, and not for ranks that compute
    ends = netns_kernel.inside(namespace, lambda: [tuple(map(_opened, pair)) for pair in pairs])
    other = {near: far for pair in ends for near, far in (pair, pair[::-1])}
    on_the_way: deque[tuple[float, socket.socket, bytes]] = deque()  # in the order of their arrival
    ready.set()
    while True:
        left_s = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        for end in select.select(list(other), [], [], left_s)[0]:
            on_the_way.append((time.monotonic() + delay_s, other[end], end.recv(_MOST_BYTES)))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, end, frame = on_the_way.popleft()
            end.send(frame)


def _opened(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # receives from bind() on
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)  # offloaded checksums and segments stay so
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    end.bind((interface, _ETH_P_ALL))
    return end
