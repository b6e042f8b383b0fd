"""The document of a shared cluster: its servers, its jobs, and the architectures to compare."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch_topoopt.plan import Cluster  # noqa: TC001 - read with the fields
from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.shared_networks.concurrent_jobs import EcmpChoice  # noqa: TC001 - read with the fields

NetworkName = Literal[
    "topoopt", "ideal-switch", "fat-tree", "oversubscribed-fat-tree", "leaf-spine"
]
PlacementRule = Literal["first-fit", "packed", "random"]
_MOST_JOBS = 10_000
_MOST_SAMPLES = 1000


def _check_count(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise DocumentError(f"{name}: {value} is not in 1..{most}")


def _check_number(name: str, value: float | None, *, above: bool = False) -> None:
    if value is None or (value < math.inf and (value > 0 if above else value >= 0)):
        return
    raise DocumentError(f"{name}: {value} is not {'above 0' if above else 'a number from 0 on'}")


@dataclass(frozen=True)
class ClusterJob:
    """A job of `servers` servers at `arrival_s` with `iterations` (None: it never ends)."""

    model: str
    servers: int
    arrival_s: float = 0.0
    iterations: int | None = None


@dataclass(frozen=True)
class ModelShare:
    """`share` of the jobs, relative to the other shares, train `model`."""

    model: str
    share: float


@dataclass(frozen=True)
class JobMix:
    """`jobs` jobs of `servers` servers each, of models in the given shares, in a random order.

    They arrive all at once, or as a Poisson process. Its rate would keep the fraction `load` of all
    servers busy if each job ran as fast as alone on an ideal switch.
    """

    models: tuple[ModelShare, ...]
    jobs: int
    servers: int
    arrivals: Literal["at-once", "poisson"] = "at-once"
    load: float | None = None
    iterations: int | None = None

    def check(self, cluster: Cluster) -> None:
        """Raises DocumentError."""
        if not self.models:
            raise DocumentError("mix.models: names no model")
        for i, entry in enumerate(self.models):
            _check_number(f"mix.models[{i}].share", entry.share, above=True)
        _check_count("mix.jobs", self.jobs, _MOST_JOBS)
        _check_count("mix.servers", self.servers, cluster.servers)
        _check_number("mix.load", self.load, above=True)
        if self.iterations is not None:
            _check_count("mix.iterations", self.iterations, 2**53)
        if self.arrivals == "poisson":
            for name in ("load", "iterations"):
                if getattr(self, name) is None:
                    raise DocumentError(f"mix.{name}: missing, and poisson arrivals need it")
        elif self.load is not None:
            raise DocumentError(
                f"mix.load: {self.load} is for poisson arrivals; jobs that come at once are `jobs`"
            )


@dataclass(frozen=True)
class SharedNetwork:
    """An architecture; `server_gbps` is the rate of a server's link to its switch (None: for a
    fat-tree the rate at TopoOpt's cost, else degree x link rate)."""

    name: NetworkName
    server_gbps: float | None = None

    @property
    def label(self) -> str:
        """The name, with the rate where one is given."""
        return self.name if self.server_gbps is None else f"{self.name} {self.server_gbps:g} Gb/s"


@dataclass(frozen=True)
class PatchPanels:
    """How TopoOpt wires a job's shard (TopoOpt paper, Appendix C).

    The robots take `patch_panel_s` for a shard. With `look_ahead` every port has a 1x2 switch that
    flips in `flip_s`; behind it the next job's shard is wired while others run. Wiring begins
    `announced_s` before the job's arrival (None: as early as its servers' ports allow).
    """

    look_ahead: bool = True
    patch_panel_s: float = 300.0
    flip_s: float = 0.01
    announced_s: float | None = None

    def check(self) -> None:
        """Raises DocumentError."""
        for name in ("patch_panel_s", "flip_s", "announced_s"):
            _check_number(f"patch_panels.{name}", getattr(self, name))


@dataclass(frozen=True)
class JobPlanning:
    """The search for each kind of job: as `topoopt plan` with these options."""

    mode: Literal["paper", "best"] = "paper"
    rounds: int = 2
    evaluations: int = 1000

    def check(self) -> None:
        """Raises DocumentError."""
        _check_count("planning.rounds", self.rounds, 1000)
        if not 0 <= self.evaluations <= 10**9:
            raise DocumentError(f"planning.evaluations: {self.evaluations} is not in 0..{10**9}")


@dataclass(frozen=True)
class SharedCluster(Document):
    """Jobs are listed one by one, or made by a `mix`.

    On trees `placement` chooses servers and `ecmp` the unit of hashing. Iterations are sampled
    `samples` times after `warm_up` others whenever the running jobs have changed. `seed` is for all
    random draws.
    """

    KIND: ClassVar[str] = "SharedCluster"
    VERSION: ClassVar[int] = 1

    version: int
    cluster: Cluster
    architectures: tuple[SharedNetwork, ...]
    jobs: tuple[ClusterJob, ...] = ()
    mix: JobMix | None = None
    placement: PlacementRule = "first-fit"
    ecmp: EcmpChoice = "flow"
    patch_panels: PatchPanels = PatchPanels()
    planning: JobPlanning = JobPlanning()
    warm_up: int = 1
    samples: int = 4
    seed: int = 0

    def validate(self) -> Self:
        try:
            self.cluster.validate(any_degree=True)
        except DocumentError as error:
            raise DocumentError(f"cluster.{error}") from None
        if self.cluster.port_gbps is not None:
            raise DocumentError("cluster.port_gbps: the ports of a shared cluster are all alike")
        self._check_architectures()
        if (self.mix is None) == (not self.jobs):
            raise DocumentError("jobs: give either a list of jobs or a mix")
        if self.mix is not None:
            self.mix.check(self.cluster)
        if len(self.jobs) > _MOST_JOBS:
            raise DocumentError(f"jobs: {len(self.jobs)} are more than {_MOST_JOBS}")
        for i, job in enumerate(self.jobs):
            _check_count(f"jobs[{i}].servers", job.servers, self.cluster.servers)
            _check_number(f"jobs[{i}].arrival_s", job.arrival_s)
            if job.iterations is not None:
                _check_count(f"jobs[{i}].iterations", job.iterations, 2**53)
        self.patch_panels.check()
        self.planning.check()
        _check_count("samples", self.samples, _MOST_SAMPLES)
        if not 0 <= self.warm_up <= _MOST_SAMPLES:
            raise DocumentError(f"warm_up: {self.warm_up} is not in 0..{_MOST_SAMPLES}")
        if not 0 <= self.seed < 2**63:
            raise DocumentError(f"seed: {self.seed} is not in 0..2^63-1")
        self._check_shards()
        return self

    def _check_architectures(self) -> None:
        if not self.architectures:
            raise DocumentError("architectures: names none")
        labels = [network.label for network in self.architectures]
        for i, network in enumerate(self.architectures):
            if labels.index(network.label) != i:
                raise DocumentError(f"architectures[{i}]: {network.label!r} is already there")
            _check_number(f"architectures[{i}].server_gbps", network.server_gbps, above=True)
            if network.name == "topoopt" and network.server_gbps is not None:
                raise DocumentError(
                    f"architectures[{i}].server_gbps: TopoOpt has the cluster's ports: degree and "
                    "link_gbps"
                )

    def _check_shards(self) -> None:
        """Checks that the ports of each job's servers can be wired to a shard."""
        if all(network.name != "topoopt" for network in self.architectures):
            return
        counts = [(f"jobs[{i}].servers", job.servers) for i, job in enumerate(self.jobs)]
        if self.mix is not None:
            counts.append(("mix.servers", self.mix.servers))
        for where, servers in counts:
            try:
                self.shard(servers).validate()
            except DocumentError as error:
                raise DocumentError(f"{where}: TopoOpt's shard of {servers}: {error}") from None

    def shard(self, servers: int) -> Cluster:
        """So many servers of the cluster, alone."""
        return replace(self.cluster, servers=servers)
