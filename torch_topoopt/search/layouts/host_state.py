"""The memory of hosts, and the copies between it and accelerators: `offload` of a layout.

FSDP2 copies a share of parameters to the accelerator before each gather, one cell ahead of those
that compute. In a group of one, it copies them only when they are needed. It copies the share of a
cell's gradients to the host once they are summed: beside the backward pass for the first
micro-batch. For later ones, the host waits for the copy, and adds it to the sum of earlier ones.

Copies share their link with nothing else. To a Grace they take NVLink-C2C at its rate; a GB200
never computes from its host's memory in place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.accelerators import Accelerator, HostMemory

# Of the rate of the link: about what copies of pinned memory reach in CUDA's bandwidthTest.
_COPIES = 0.8
_STREAMS = 0.8  # of the memory's rate, as STREAM reaches on servers with all channels in use
# Of the memory: the operating system, loaders of data and the ranks' own processes have the rest
# (assumed).
_USABLE = 0.9


def copy_seconds(host: HostMemory, size_bytes: float) -> float:
    """Seconds of a copy between the accelerator and its host, either way."""
    return size_bytes / (host.link_bytes_per_s * _COPIES)


def host_seconds(host: HostMemory, moved_bytes: float) -> float:
    """Seconds of a fused step on the host that moves so many bytes through its memory."""
    return moved_bytes / (host.memory_bytes_per_s * _STREAMS)


def usable_host_bytes(device: Accelerator, cluster: Cluster) -> float:
    """Bytes of its host's memory that one accelerator may use; 0 without such memory."""
    if device.host is None:
        return 0.0
    if not cluster.memory_limited:
        return math.inf
    if cluster.host_memory_gb is None:
        return _USABLE * device.host.memory_bytes
    return _USABLE * cluster.host_memory_gb * 1e9 / cluster.accelerators_per_server
