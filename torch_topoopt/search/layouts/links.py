"""The time of a group's exchanges, inside boxes and between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# Large exchanges reach these parts of the rates of NVLink and of NICs: assumed, as are the times
# below. The rows of benchmarks/measured_steps.py agree with them.
LINK_EFFICIENCY = 0.78
PORT_EFFICIENCY = 0.85
STEP_S = 4e-6  # of a ring, inside a box
HOP_S = 8e-6  # of a ring, between boxes
LAUNCH_S = 15e-6


class RankGroup(NamedTuple):
    """`ranks` accelerators of a group, at a distance of `stride` in the order of ranks."""

    ranks: int
    stride: int


@dataclass(frozen=True)
class Boxes:
    """Boxes of `accelerators` each, joined inside at `peer_bytes_per_s` for each accelerator and
    direction, and by a switch to other boxes at `box_bytes_per_s` for each box and direction.

    A step of a ring takes `step_s` inside a box and `hop_s` between two. Beginning an exchange
    takes `launch_s`. Exchanges between boxes reach the part `port_efficiency` of the rates. A
    gather enters a box with the blocks of the other boxes, which its accelerators share: schedules
    run between the boxes. With `flat_rings`, as NCCL's, one ring of all accelerators brings all
    blocks but one.
    """

    accelerators: int
    peer_bytes_per_s: float
    box_bytes_per_s: float
    step_s: float = STEP_S
    hop_s: float = HOP_S
    launch_s: float = LAUNCH_S
    port_efficiency: float = PORT_EFFICIENCY
    flat_rings: bool = False

    def gather_rate(self, group: RankGroup) -> float:
        """Bytes per second into each box while all groups of this kind gather at once."""
        return self.box_bytes_per_s

    def all_to_all_rate(self, group: RankGroup) -> float:
        """Bytes per second out of each box while all groups of this kind exchange at once."""
        return self.box_bytes_per_s

    def send_rate(self, stride: int) -> float:
        """Bytes per second out of each box while all accelerators send `stride` ranks further."""
        return self.box_bytes_per_s

    def inside(self, group: RankGroup) -> int:
        """The ranks of the group in one box."""
        return max(1, min(group.ranks, self.accelerators // group.stride))

    def crosses(self, group: RankGroup) -> bool:
        """Whether the group has members in several boxes."""
        return self.inside(group) < group.ranks

    def boxes(self, group: RankGroup) -> int:
        """The boxes of the group."""
        return math.ceil(group.ranks / self.inside(group))

    def gather_s(self, size_bytes: float, group: RankGroup, count: int = 1) -> float:
        """AllGather (or ReduceScatter) of `count` tensors of `size_bytes` together, by every group
        of that kind at once."""
        ranks = group.ranks
        if ranks == 1 or not size_bytes:
            return 0.0
        inside = self.inside(group)
        seconds = 0.0
        if inside > 1:
            received = size_bytes * (ranks - 1) / ranks
            seconds = received / (self.peer_bytes_per_s * LINK_EFFICIENCY)
        if inside < ranks:
            blocks = ranks if self.flat_rings else self.boxes(group)
            groups = self.accelerators / inside  # that leave a box at once
            rate = self.gather_rate(group) * self.port_efficiency
            seconds = max(seconds, size_bytes * (blocks - 1) / blocks * groups / rate)
        return seconds + count * self.gather_latency_s(group)

    def gather_latency_s(self, group: RankGroup) -> float:
        """Seconds of a gather besides those of its bytes."""
        if self.flat_rings and self.crosses(group):
            hops_s = group.ranks / self.inside(group) * self.hop_s
            return self.launch_s + (group.ranks - 1) * self.step_s + hops_s
        steps_s = (self.inside(group) - 1) * self.step_s
        return self.launch_s + steps_s + (self.boxes(group) - 1) * self.hop_s

    def all_to_all_s(self, size_bytes: float, group: RankGroup, count: int = 1) -> float:
        """All-to-all of `size_bytes` of every rank."""
        ranks = group.ranks
        if ranks == 1 or not size_bytes:
            return 0.0
        inside = self.inside(group)
        near = size_bytes * (inside - 1) / ranks
        far = size_bytes * (ranks - inside) / ranks
        seconds = near / (self.peer_bytes_per_s * LINK_EFFICIENCY)
        if far:
            rate = self.all_to_all_rate(group) * self.port_efficiency
            seconds = max(seconds, far * self.accelerators / rate)
        return seconds + count * self.all_to_all_latency_s(group)

    def all_to_all_latency_s(self, group: RankGroup) -> float:
        """Seconds of an all-to-all besides those of its bytes."""
        return self.launch_s + math.log2(group.ranks) * self.hop_s

    def send_s(self, size_bytes: float, stride: int, hops: int) -> float:
        """A message of every accelerator to that `stride` ranks further: the mean of `hops` from
        the first ranks on, some of which stay in a box."""
        box = self.accelerators
        crossing = sum(i * stride // box != (i + 1) * stride // box for i in range(hops))
        inside_s = size_bytes / (self.peer_bytes_per_s * LINK_EFFICIENCY)
        if not crossing:
            return inside_s + self.launch_s
        rate = self.send_rate(stride) * self.port_efficiency / min(stride, box)
        part = crossing / hops
        return (1 - part) * inside_s + part * (size_bytes / rate + self.hop_s) + self.launch_s
