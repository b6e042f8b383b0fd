"""Training jobs as rings of hosts: the split of a model, and the placement of its parts.

A copy of a model is split into tensor x pipeline parts, one on each host. The hosts of the same
part, one of each copy, are a ring: they reduce its gradients in every iteration.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.plan.network import hops_around

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.shared_networks.routed.host_fabric import HostFabric

PlacedBy = Literal["racks", "hosts"]
_BYTES = 4  # of a parameter's gradient: full precision (section 5.1)


@dataclass(frozen=True)
class SplitModel:
    """Table 2: the parts of one copy. `blocks` are those of the transformer (0: unknown)."""

    name: str
    parameters: float
    tensor: int
    pipeline: int
    blocks: int = 0

    @property
    def parts(self) -> int:
        return self.tensor * self.pipeline

    @property
    def part_bytes(self) -> float:
        """Gradients of one part, which a ring reduces."""
        return self.parameters * _BYTES / self.parts


MODELS: Mapping[str, SplitModel] = {
    model.name: model
    for model in (
        SplitModel("bloom", 176e9, 4, 12, 70),
        SplitModel("gpt-3", 175e9, 8, 8, 96),
        SplitModel("llama2-70b", 70e9, 8, 16, 80),
    )
}


@dataclass(frozen=True)
class RingJob:
    """`copies[i][j]` is the host of part j of copy i: of stage j // tensor. The job arrives at
    `arrival_s`; in every iteration it computes for `compute_s`, sends its tensor and pipeline
    messages, and then all of its rings reduce.

    Every host sends `tensor_bytes` around the ring of its stage, and `pipeline_bytes` to the same
    part of the next stage and of the previous one.
    """

    model: SplitModel
    copies: tuple[tuple[int, ...], ...]
    arrival_s: float
    compute_s: float
    tensor_bytes: float = 0.0
    pipeline_bytes: float = 0.0

    @property
    def exchanges(self) -> list[tuple[tuple[tuple[int, int], ...], float]]:
        """The messages inside of copies: transfers of (source, target), and the bytes of each."""
        tensor = self.model.tensor
        found = []
        for hosts in self.copies:
            stages = [hosts[at : at + tensor] for at in range(0, len(hosts), tensor)]
            if self.tensor_bytes and tensor > 1:
                found += [(tuple(hops_around(stage)), self.tensor_bytes) for stage in stages]
            if self.pipeline_bytes:
                for pair in itertools.pairwise(stages):
                    both = [((a, b), (b, a)) for a, b in zip(*pair, strict=True)]
                    found += [(ends, self.pipeline_bytes) for ends in both]
        return found

    @property
    def rings(self) -> list[tuple[int, ...]]:
        """The hosts of every part, in the order of the copies."""
        return list(zip(*self.copies, strict=True))

    @property
    def rounds(self) -> int:
        """Rounds of a ring AllReduce: n - 1 that reduce and n - 1 that gather."""
        return 2 * (len(self.copies) - 1)

    @property
    def round_bytes(self) -> float:
        """The bytes that every host sends in a round."""
        return self.model.part_bytes / len(self.copies)


# parameters: the cluster, the jobs, and the rules of drawing
def draw_jobs(
    fabric: HostFabric,
    models: Sequence[SplitModel],
    copies: int,
    compute_s: Mapping[str, float],
    *,
    placed_by: PlacedBy = "racks",
    arrivals_within_s: float = 10.0,
    seed: int = 0,
) -> list[RingJob]:
    """One job for each of `models`, of `copies` copies, on hosts of its own drawn at random.

    `placed_by` "racks": a copy fills the free hosts of one ToR after the other, ToRs at random, as
    the authors' code does; "hosts": every part is on any host. The arrivals are uniform within
    `arrivals_within_s`, and the first one is at 0. `compute_s` are seconds by the model's name.
    Raises ValueError for fewer than two copies, another rule, or jobs that do not fit.
    """
    random_ = random.Random(seed)
    arrivals = [random_.uniform(0.0, arrivals_within_s) for _ in models]
    first = min(arrivals, default=0.0)
    placed = place_copies(fabric, models, [copies] * len(models), placed_by, random_)
    return [
        RingJob(model, taken, arrival_s - first, compute_s[model.name])
        for model, taken, arrival_s in zip(models, placed, arrivals, strict=True)
    ]


def place_copies(
    fabric: HostFabric,
    models: Sequence[SplitModel],
    copies: Sequence[int],
    placed_by: PlacedBy,
    random_: random.Random,
) -> list[tuple[tuple[int, ...], ...]]:
    """For each of `models` the hosts of so many `copies`, by the rules of `draw_jobs`, which
    validates the arguments."""
    for count in copies:
        if count < 2:
            raise ValueError(f"copies: {count} is not at least 2")
    if placed_by not in ("racks", "hosts"):
        raise ValueError(f"placed_by: {placed_by!r} is not one of racks, hosts")
    needed = sum(count * model.parts for model, count in zip(models, copies, strict=True))
    if needed > fabric.hosts:
        raise ValueError(f"jobs: need {needed} hosts, and there are {fabric.hosts}")
    free = [list(range(fabric.hosts_per_tor)) for _ in range(fabric.tors)]
    rule = _by_racks if placed_by == "racks" else _by_hosts
    return [
        tuple(rule(fabric, free, model.parts, random_) for _ in range(count))
        for model, count in zip(models, copies, strict=True)
    ]


def _by_racks(
    fabric: HostFabric, free: list[list[int]], count: int, random_: random.Random
) -> tuple[int, ...]:
    taken: list[int] = []
    while len(taken) < count:
        tor = random_.choice([tor for tor, places in enumerate(free) if places])
        some = free[tor][: count - len(taken)]
        free[tor] = free[tor][len(some) :]
        taken += [tor * fabric.hosts_per_tor + place for place in some]
    return tuple(taken)


def _by_hosts(
    fabric: HostFabric, free: list[list[int]], count: int, random_: random.Random
) -> tuple[int, ...]:
    places = [(tor, place) for tor, of_tor in enumerate(free) for place in of_tor]
    taken = random_.sample(places, count)
    for tor, place in taken:
        free[tor].remove(place)
    return tuple(tor * fabric.hosts_per_tor + place for tor, place in taken)
