"""The document of jobs on a leaf-spine network, for `topoopt simulate --routed-jobs`."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.shared_networks.routed.host_fabric import HostFabric
from torch_topoopt.shared_networks.routed.ring_jobs import RingJob, SplitModel, place_copies
from torch_topoopt.shared_networks.routed.run_jobs import SpineFailure  # noqa: TC001 - read with the fields

_MOST = 1_000_000  # of every count
_MOST_HOSTS = 65_536


@dataclass(frozen=True)
class RoutedJob:
    """`copies` copies of a model of `parameters` parameters, each split into tensor x pipeline
    parts of one host each; an iteration computes for `compute_s` before its messages.

    A host sends `tensor_bytes` around its tensor group and `pipeline_bytes` to each neighbouring
    stage, before the AllReduce (`ring_jobs.RingJob`).
    """

    name: str
    parameters: float
    tensor: int
    pipeline: int
    copies: int
    compute_s: float
    arrival_s: float = 0.0
    tensor_bytes: float = 0.0
    pipeline_bytes: float = 0.0


@dataclass(frozen=True)
class RoutedJobs(Document):
    """A fabric (`host_fabric.HostFabric`), its jobs, how their hosts are drawn
    (`ring_jobs.draw_jobs`), and spines that die.

    Paths of the scheme arrive `control_s` after a change. `cross_flows` flows between random hosts
    send all the time, on paths of ECMP.
    """

    KIND: ClassVar[str] = "document of routed jobs"
    VERSION: ClassVar[int] = 1

    version: int
    tors: int
    spines: int
    hosts_per_tor: int
    link_gbps: float
    jobs: tuple[RoutedJob, ...]
    iterations: int = 10
    placed_by: Literal["racks", "hosts"] = "racks"
    failures: tuple[SpineFailure, ...] = ()
    seed: int = 0  # of the hosts of jobs and of cross traffic, and of schemes
    control_s: float = 0.0
    cross_flows: int = 0

    def validate(self) -> Self:
        """Returns self, or raises DocumentError: field, value, and the valid range."""
        for name in ("tors", "spines", "hosts_per_tor", "iterations"):
            _check_count(name, getattr(self, name))
        try:
            fabric = self.fabric()
        except ValueError as error:
            raise DocumentError(str(error)) from None
        if fabric.hosts > _MOST_HOSTS:
            raise DocumentError(f"hosts_per_tor: {fabric.hosts} hosts are more than {_MOST_HOSTS}")
        _check_number("control_s", self.control_s)
        _check_count("cross_flows", self.cross_flows, 0)
        if self.cross_flows and fabric.hosts < 2:
            raise DocumentError("cross_flows: there are no two hosts")
        if not self.jobs:
            raise DocumentError("jobs: there is none")
        for i, job in enumerate(self.jobs):
            for name in ("tensor", "pipeline", "copies"):
                least = 2 if name == "copies" else 1
                _check_count(f"jobs[{i}].{name}", getattr(job, name), least)
            _check_number(f"jobs[{i}].parameters", job.parameters, above=True)
            for name in ("compute_s", "arrival_s", "tensor_bytes", "pipeline_bytes"):
                _check_number(f"jobs[{i}].{name}", getattr(job, name))
        for i, failure in enumerate(self.failures):
            _check_number(f"failures[{i}].at_s", failure.at_s)
            if not 0 <= failure.spine < self.spines:
                raise DocumentError(
                    f"failures[{i}].spine: {failure.spine} is not in 0..{self.spines - 1}"
                )
        if len({failure.spine for failure in self.failures}) == self.spines:
            raise DocumentError(f"failures: no spine of {self.spines} is left")
        needed = sum(job.tensor * job.pipeline * job.copies for job in self.jobs)
        if needed > fabric.hosts:
            raise DocumentError(f"jobs: need {needed} hosts, and there are {fabric.hosts}")
        return self

    def fabric(self) -> HostFabric:
        return HostFabric(self.tors, self.spines, self.hosts_per_tor, self.link_gbps)

    def placed(self) -> list[RingJob]:
        """The jobs, on hosts that `seed` draws."""
        models = [
            SplitModel(job.name, job.parameters, job.tensor, job.pipeline) for job in self.jobs
        ]
        copies = place_copies(
            *(self.fabric(), models, [job.copies for job in self.jobs]),
            *(self.placed_by, random.Random(self.seed)),
        )
        return [
            RingJob(
                *(model, hosts, job.arrival_s, job.compute_s, job.tensor_bytes, job.pipeline_bytes)
            )
            for model, hosts, job in zip(models, copies, self.jobs, strict=True)
        ]

    def cross_traffic(self) -> list[tuple[int, int]]:
        """Hosts (source, target) of the flows that belong to no job."""
        random_ = random.Random(f"cross traffic {self.seed}")
        return [
            (pair[0], pair[1])
            for pair in (
                random_.sample(range(self.fabric().hosts), 2) for _ in range(self.cross_flows)
            )
        ]


def _check_count(name: str, value: int, least: int = 1) -> None:
    if not least <= value <= _MOST:
        raise DocumentError(f"{name}: {value} is not in {least}..{_MOST}")


def _check_number(name: str, value: float, *, above: bool = False) -> None:
    if not (value < math.inf and (value > 0 if above else value >= 0)):
        raise DocumentError(
            f"{name}: {value} is not {'above 0' if above else 'a number from 0 on'}"
        )
