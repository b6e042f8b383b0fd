"""Limits the rate of an interface with a queueing discipline: tbf, or htb where there is no tbf.

Both count whole frames (the payload of a TCP segment and its headers, Ethernet's included), as a
link does. The queue before the limit holds what the link carries in 20 ms, as a switch's would,
unless another time is asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns.kernel import scratch_interface
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import BYTES_PER_GBPS
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    from collections.abc import Sequence

FRAME_HEADER_BYTES = 14  # Ethernet's
TCP_HEADERS_BYTES = 52  # IPv4, TCP and the time stamps that Linux sends

_ROOT, _CLASS, _LEAF = 0x10000, 0x10001, 0x20000
QUEUE_S = 0.02
LOSSLESS_QUEUE_S = 4.0  # more than TCP's windows fill at the rates of emulated links
_MIN_BURST_BYTES = 16 << 10  # a little more than TCP's pacing releases at a time
_TIMER_HZ = 250
_MAX_GBPS = 32.0  # the rate is 32 bits of bytes per second


def goodput_share(mtu: int) -> float:
    """The fraction of a link's rate available to one TCP connection's payload."""
    return (mtu - TCP_HEADERS_BYTES) / (mtu + FRAME_HEADER_BYTES)


def paced_share(mtu: int, ways_back: int = 1) -> float:
    """The share of a port's rate for sockets that leaves room for ACKs of equal incoming traffic.

    Each link carries the ACKs of `ways_back` links: 1 if ACKs use the way of the data.

    Pacing is needed because tbf and htb drop excess packets, unlike a NIC, and TCP detects a
    dropped last packet late. Linux acknowledges every second segment.
    """
    acknowledgement_bytes = ways_back * (TCP_HEADERS_BYTES + FRAME_HEADER_BYTES) / 2
    return (mtu - TCP_HEADERS_BYTES) / (mtu + FRAME_HEADER_BYTES + acknowledgement_bytes)


def burst_payload_bytes(gbps: float, mtu: int) -> float:
    """The payload that a limited interface sends at once after a pause."""
    return goodput_share(mtu) * _burst_bytes(gbps * BYTES_PER_GBPS, mtu)


def check_rate(gbps: float) -> None:
    """Raises FabricError for a rate that a queueing discipline cannot hold."""
    if gbps > _MAX_GBPS:
        raise FabricError(
            f"bandwidth: {format_gbps(gbps)} is more than {format_gbps(_MAX_GBPS)}, the most "
            "that the netns fabric can limit a link to"
        )


def _burst_bytes(bytes_per_s: float, mtu: int) -> int:
    return max(_MIN_BURST_BYTES, 2 * (mtu + FRAME_HEADER_BYTES), round(bytes_per_s / _TIMER_HZ))


def _queue_bytes(bytes_per_s: float, mtu: int, queue_s: float) -> int:
    return max(2 * _burst_bytes(bytes_per_s, mtu), round(bytes_per_s * queue_s))


def _tbf(route: Any, index: int, bytes_per_s: float, mtu: int, queue_s: float) -> None:
    route.tc(
        "add",
        "tbf",
        index=index,
        handle=_ROOT,
        rate=round(bytes_per_s),
        burst=_burst_bytes(bytes_per_s, mtu),
        limit=_queue_bytes(bytes_per_s, mtu, queue_s),
    )


def _htb(route: Any, index: int, bytes_per_s: float, mtu: int, queue_s: float) -> None:
    route.tc("add", "htb", index=index, handle=_ROOT, default=1)
    burst = _burst_bytes(bytes_per_s, mtu)
    route.tc(
        "add-class",
        "htb",
        index=index,
        handle=_CLASS,
        parent=_ROOT,
        rate=round(bytes_per_s),
        burst=burst,
        cburst=burst,
        mtu=mtu + FRAME_HEADER_BYTES,
    )
    packets = max(8, _queue_bytes(bytes_per_s, mtu, queue_s) // (mtu + FRAME_HEADER_BYTES))
    route.tc("add", "pfifo", index=index, handle=_LEAF, parent=_CLASS, limit=packets)


SHAPERS = {"tbf": _tbf, "htb": _htb}


def choose(choice: Sequence[str] = ()) -> str:
    """The first of `choice` (default: all) that this kernel has; tries them.

    Raises FabricError, naming all attempts, if there is none.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    tried = []
    with scratch_interface() as (route, _, index):
        for shaper in choice or SHAPERS:
            if shaper not in SHAPERS:
                raise FabricError(f"shaper: {shaper!r} is not one of {', '.join(SHAPERS)}")
            try:
                SHAPERS[shaper](route, index, 1e6, 1500, QUEUE_S)
            except NetlinkError as error:
                tried.append(f"{shaper}: {os.strerror(error.code)}")
            else:
                return shaper
    raise FabricError(
        f"netns: this kernel cannot limit the rate of a link ({'; '.join(tried)}); load the module "
        "sch_tbf or sch_htb, or leave the bandwidth out"
    )


def limit(
    route: Any, index: int, gbps: float, mtu: int, shaper: str, *, queue_s: float = QUEUE_S
) -> None:
    """Limits the sending rate of interface `index` to `gbps`, including frame headers.

    Its queue holds the bytes of `queue_s`; more are dropped.
    """
    SHAPERS[shaper](route, index, gbps * BYTES_PER_GBPS, mtu, queue_s)
