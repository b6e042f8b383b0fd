"""Bandwidths packet by packet, with the parameters of the HammingMesh paper (Table III).

All functions take a Topology as `one_plane` gives it; bandwidths are parts of what an accelerator
can inject, all its links together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from figures.papers.traffic_patterns import (
    random_permutation,
    ring_all_reduce,
    shifted_all_to_all,
    torus_all_reduce,
)
from torch_topoopt.architectures.adaptive import ANY_PATH, adaptive_routing, every_hop_rule
from torch_topoopt.architectures.deadlock import dependency_cycle
from torch_topoopt.sim import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from figures.papers.traffic_patterns import PatternProgram
    from torch_topoopt.architectures.topology import ChannelRule, Topology
    from torch_topoopt.sim import FlowsResult

# Table III: a link, and a buffer of 40 ns at both of its ends.
BUFFERS_S = 2 * 40e-9
CABLE_S = 20e-9 + BUFFERS_S
TRACE_S = 1e-9 + BUFFERS_S
PACKET_BYTES = 8192
BUFFER_BYTES = 32_000_000
# The bandwidth of headers is not part of the paper's model; a packet has one byte of it here.
OPTIONS: dict[str, Any] = {
    "path_choice": "adaptive",
    "mtu_bytes": PACKET_BYTES,
    "header_bytes": 1,
    "lossless": True,
    "pause_above_bytes": BUFFER_BYTES - 8 * PACKET_BYTES,
    "resume_below_bytes": BUFFER_BYTES // 2,
}
SENDS_AT_ONCE = 4  # Table III: send machines
# Steps of a ring that are simulated, those of chunks of up to so many packets and of longer ones;
# the steps between both numbers give the time of all others.
RING_STEPS, FEW_RING_STEPS, FEW_ABOVE_PACKETS = (16, 32), (4, 8), 64
# Shifts of a sampled all-to-all: so many runs of so many shifts that follow each other.
SHIFT_RUNS, SHIFTS_PER_RUN = 8, 8


def one_plane(topology: Topology, planes: int = 4) -> Topology:
    """What the paper simulates: links at 1 / `planes` of their rates (one plane of a HammingMesh,
    four of the sixteen of the others), latencies of Table III, and routing that cannot deadlock."""
    links = tuple(
        replace(
            link,
            gbps=link.gbps / planes,
            latency_s=TRACE_S if link.medium in ("trace", "inside") else CABLE_S,
        )
        for link in topology.links
    )
    plane = replace(topology, links=links)
    return replace(plane, channel_rule=safe_rule(plane))


def safe_rule(topology: Topology) -> ChannelRule:
    """A rule by which packets between servers cannot deadlock: the topology's own, or all shortest
    paths on one channel if these form no cycle (as in a fat tree), or a channel more at every hop.
    """
    if topology.channel_rule is not None:
        return topology.channel_rule
    if not dependency_cycle(topology, adaptive_routing(topology, ANY_PATH)):
        return ANY_PATH
    return every_hop_rule(topology)


def injection_bytes_per_s(topology: Topology) -> float:
    """Of one accelerator: the sum over the links that leave it."""
    return sum(link.gbps for link in topology.links if link.source == 0) * 1e9 / 8


def sampled_shifts(servers: int, sample: int = 0, samples: int = 1) -> list[int]:
    """Runs of shifts that follow each other, spread evenly over 1..servers - 1; all of them where
    there are no more. Of `samples` such sets, which have no shift in common, it is number `sample`.

    Raises ValueError for a sample that there is not, or for more than have no shift in common.
    """
    shifts = SHIFT_RUNS * SHIFTS_PER_RUN
    if not 0 <= sample < samples or samples * shifts > max(shifts, servers - 1):
        raise ValueError(
            f"sample: {sample} is not one of {samples} sets of {shifts} of {servers - 1} shifts"
        )
    if servers - 1 <= shifts:
        return list(range(1, servers))
    stride = (servers - 1) / SHIFT_RUNS
    starts = [
        round(stride * (run + 0.5 + sample / samples)) - SHIFTS_PER_RUN // 2
        for run in range(SHIFT_RUNS)
    ]
    return [1 + (start + i) % (servers - 1) for start in starts for i in range(SHIFTS_PER_RUN)]


def all_to_all_share(
    topology: Topology,
    message_bytes: float,
    *,
    shifts: Sequence[int] | None = None,
    seed: int = 0,
) -> float:
    """The all-to-all of section V-A1 with messages of that size: what an accelerator sends over the
    time until the last message has arrived. `shifts`: a part of it (default: all)."""
    pattern = shifted_all_to_all(topology, message_bytes, shifts=shifts)
    result = _run(pattern, seed, start_order="given", sends_at_once=SENDS_AT_ONCE)
    count = topology.servers - 1 if shifts is None else len(shifts)
    sent_bytes_per_s = count * message_bytes / result.completion_s
    return float(sent_bytes_per_s / injection_bytes_per_s(topology))


def permutation_shares(
    topology: Topology, message_bytes: float, *, seed: int = 0
) -> NDArray[np.float64]:
    """What every accelerator receives from its peer of a random permutation, until it has all."""
    pattern = random_permutation(topology, message_bytes, seed=seed)
    result = _run(pattern, seed)
    shares = np.zeros(topology.servers)
    for flow, finish_s in enumerate(result.finish_s.tolist()):
        shares[pattern.program.flow(flow).target] = message_bytes / finish_s
    return shares / injection_bytes_per_s(topology)


@dataclass(frozen=True)
class RingTime:
    """Of `steps` steps of rings, `simulated` of them packet by packet."""

    seconds: float
    steps: int
    simulated: int


def ring_seconds(topology: Topology, size_bytes: float, *, seed: int = 0) -> RingTime:
    """The AllReduce of `size_bytes` on the topology's rings at once (two Hamiltonian cycles in both
    directions on a HammingMesh and a torus).

    Steps of a ring are alike once the first ones are over: where there are more than `RING_STEPS`,
    two numbers of steps are simulated, and the difference gives the time of those that are not.
    """
    orders = [ring.servers for ring in topology.rings]
    steps = 2 * (topology.servers - 1)
    chunk_packets = size_bytes / len(orders) / topology.servers / PACKET_BYTES
    simulated = RING_STEPS if chunk_packets <= FEW_ABOVE_PACKETS else FEW_RING_STEPS
    if steps <= simulated[-1]:
        result = _run(ring_all_reduce(topology, orders, size_bytes), seed)
        return RingTime(result.completion_s, steps, steps)
    first_s, second_s = (
        _run(ring_all_reduce(topology, orders, size_bytes, steps=count), seed).completion_s
        for count in simulated
    )
    first, second = simulated
    seconds = second_s + (steps - second) * (second_s - first_s) / (second - first)
    return RingTime(seconds, steps, second)


def torus_seconds(
    topology: Topology, rows: int, columns: int, size_bytes: float, *, seed: int = 0
) -> float:
    """The AllReduce of `size_bytes` by the algorithm of two dimensions (section V-A2)."""
    return _run(torus_all_reduce(topology, rows, columns, size_bytes), seed).completion_s


def all_reduce_share(topology: Topology, size_bytes: float, seconds: float) -> float:
    """The bandwidth `size_bytes` / `seconds` as a part of half of the injection bandwidth."""
    return float(size_bytes / seconds / (injection_bytes_per_s(topology) / 2))


def _run(pattern: PatternProgram, seed: int, **options: Any) -> FlowsResult:
    if pattern.keep_ports:
        options |= {"path_choice": "planned", "routing": None}
    return run_program(
        pattern.program,
        level="packet",
        seed=seed,
        **{"routing": pattern.routing, **OPTIONS, **options},
    )
