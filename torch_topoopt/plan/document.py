"""The Plan: the document that algorithms write and everything else reads."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

from torch_topoopt.plan.checks import validate_network
from torch_topoopt.plan.cluster import Cluster  # noqa: TC001 - read with the fields of Plan
from torch_topoopt.plan.codec import Document, DocumentError, brief
from torch_topoopt.plan.demand import Demand, validate_demand
from torch_topoopt.plan.failures import FailurePlan, validate_failures
from torch_topoopt.plan.layout import DEFAULT_TRAINER, Layout, Trainer
from torch_topoopt.plan.network import Network  # noqa: TC001 - read with the fields of Plan
from torch_topoopt.plan.placement import Placement, validate_placement

MODES = ("paper", "best", "fixed", "discovered")
Policy = Literal["shortest", "single", "random", "coin-change", "k-shortest", "optimal"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
_NAME_SINCE_4 = {
    "message_s": "alpha_s",
    "hop_s": "per_hop_latency_s",
    "reduce_s_per_byte": "gamma_s_per_byte",
}

SpaceName = Literal["data-parallel", "samples", "full", "layouts"]


AllReduceAlgorithm = Literal[
    "ring",
    "multi_ring",
    "tree",
    "doubling",
    "torus",
    "swing",
    "breadth_first",
    "packing",
    "flooding",
    "one_shot",
]


@dataclass(frozen=True)
class AllReduceTime:
    """Seconds that an all_reduce of `bytes` among all ranks takes by an algorithm."""

    algorithm: AllReduceAlgorithm
    bytes: int
    seconds: float

    def validate(self, where: str) -> Self:
        """Returns self, or raises DocumentError."""
        if self.bytes < 1:
            raise DocumentError(f"{where}.bytes: {self.bytes} is not at least 1")
        if not 0 < self.seconds < math.inf:
            raise DocumentError(f"{where}.seconds: {self.seconds} is not a finite number above 0")
        return self


@dataclass(frozen=True)
class CostModel:
    """The alpha-beta-gamma model with a latency per hop; collectives choose their algorithm by it.

    A message of b bytes costs `alpha_s` at its ends, and `per_hop_latency_s` plus
    b * `beta_s_per_byte` on every link; reducing it costs b * `gamma_s_per_byte`. If
    `beta_s_per_byte` is None, it follows from the rated links of the cluster.

    The latency per hop is the backend's and includes the relay's software. `link_latency_s` of the
    Cluster is the signal's alone; simulations before the first run use it.

    `all_reduce` has measured times of all ranks together; they override the model when ranks choose
    the algorithm of an all_reduce.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"beta_s_per_byte", "all_reduce"})

    alpha_s: float
    per_hop_latency_s: float
    gamma_s_per_byte: float
    beta_s_per_byte: float | None = None
    all_reduce: tuple[AllReduceTime, ...] = ()

    @classmethod
    def of_latency(cls, per_hop_latency_s: float) -> Self:
        """For simulations alone: a message has no other costs than its links' latency and rates."""
        return cls(0.0, per_hop_latency_s, 0.0, beta_s_per_byte=0.0)

    def validate(self) -> Self:
        """Returns self, or raises DocumentError: field, value, and what would be right."""
        for name in ("alpha_s", "beta_s_per_byte"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise DocumentError(f"cost_model.{name}: {value} is not a finite number above 0")
        for name in ("per_hop_latency_s", "gamma_s_per_byte"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise DocumentError(f"cost_model.{name}: {value} is not a finite number from 0 on")
        for i, time in enumerate(self.all_reduce):
            time.validate(f"cost_model.all_reduce[{i}]")
        return self


@dataclass(frozen=True)
class Round:
    """One round of the alternating optimisation (paper section 4.1), in predicted seconds.

    `strategy_s` is the cost after the strategy search on the old network, `network_s` after
    TopologyFinder rewired for the new strategy; the other two are references for that strategy. All
    are for `micro_batches`: each candidate number of micro-batches has its own rounds.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"micro_batches"})

    strategy_s: float
    network_s: float
    single_ring_s: float
    ideal_switch_s: float
    accepted: bool
    micro_batches: int = 1


@dataclass(frozen=True)
class SearchSample:
    """One point of the search curve: current and best predicted time after `evaluations`."""

    evaluations: int
    current_s: float
    best_s: float


@dataclass(frozen=True)
class Prediction:
    """Flow-level prediction for this Plan; `link_bytes[i]` belongs to `network.links[i]`."""

    iteration_s: float
    compute_s: float
    single_ring_s: float
    ideal_switch_s: float
    link_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Plan(Document):
    """A complete, validated plan.

    `strategy_space` limits the search: "data-parallel" (no choice), "samples" (the servers that
    share each operator's samples), "full" (also splits of parameters and positions), or "layouts":
    `layout` divides all blocks alike, and each placement has the servers of its operator's stage.

    `mode` and `routing` name the method that found the network and its routes: a known name, or a
    function of the user's, FILE.py:NAME. "fixed" networks are cabled already; "discovered" ones
    were measured. Both accept any degree, and a discovered plan has no prediction. Without a
    `cost_model`, a job measures one at its start. `failures` is optional: `failure_plans` computes
    it. An iteration processes its batch in `micro_batches` equal parts, one after the other.
    `trainer` is that of a layout.

    Older versions are read with these defaults and names:

    - before 2: no `failures`, no parallel links, equal rates of ports
    - before 3: one micro-batch; placements split samples only
    - before 4: `message_s` is alpha, `hop_s` the latency per hop, `reduce_s_per_byte` gamma
    - before 5: groups have no `grid`
    - before 6: no `layout`
    - before 7: layouts recompute and reshard all blocks alike
    - before 8: layouts keep all state on accelerators

    A plan without a layout is written as version 5.
    """

    KIND: ClassVar[str] = "Plan"
    VERSION: ClassVar[int] = 8
    WITHOUT_LAYOUT: ClassVar[int] = 5  # its version, which older releases read
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"micro_batches", "routing", "trainer"})

    version: int
    model: str
    batch_size: int
    seed: int
    mode: str
    strategy_space: SpaceName
    cluster: Cluster
    network: Network
    demand: Demand
    prediction: Prediction
    rounds: tuple[Round, ...]
    search: tuple[SearchSample, ...]
    strategy: tuple[Placement, ...]
    cost_model: CostModel | None = None
    failures: FailurePlan | None = None
    micro_batches: int = 1
    routing: str = "shortest"
    layout: Layout | None = None
    trainer: Trainer = DEFAULT_TRAINER

    @classmethod
    def of_network(
        cls,
        cluster: Cluster,
        network: Network,
        demand: Demand,
        *,
        model: str,
        mode: str = "paper",
    ) -> Self:
        """A plan with wiring and routes, without predictions.

        Raises DocumentError if the network does not fit the cluster.
        """
        return cls(
            version=cls.WITHOUT_LAYOUT,
            model=model,
            batch_size=1,
            seed=0,
            mode=mode,
            strategy_space="data-parallel",
            cluster=cluster,
            network=network,
            demand=demand,
            prediction=Prediction(0.0, 0.0, 0.0, 0.0, (0,) * len(network.links)),
            rounds=(),
            search=(),
            strategy=(),
        ).validate()

    @classmethod
    def upgraded(cls, value: dict[str, Any]) -> dict[str, Any]:
        model = value.get("cost_model")
        if value["version"] >= 4 or not isinstance(model, dict):
            return value
        renamed = {_NAME_SINCE_4.get(name, name): number for name, number in model.items()}
        return {**value, "version": cls.WITHOUT_LAYOUT, "cost_model": renamed}

    def validate(self) -> Self:
        for field, names in (("mode", MODES), ("routing", POLICIES)):
            name = getattr(self, field)
            if name not in names and ".py:" not in name:
                known = ", ".join(map(repr, names))
                raise DocumentError(
                    f"{field}: {brief(name)} is not one of {known}, or FILE.py:NAME"
                )
        self.cluster.validate(any_degree=self.mode in ("fixed", "discovered"))
        if self.cost_model is not None:
            self.cost_model.validate()
        validate_network(self.cluster, self.network)
        if self.failures is not None:
            validate_failures(self.cluster, self.network, self.failures)
        validate_demand(self.cluster, self.demand)
        for i, placement in enumerate(self.strategy):
            validate_placement(f"strategy[{i}]", placement, self.cluster.servers)
        if self.micro_batches < 1 or self.batch_size % self.micro_batches:
            raise DocumentError(
                f"micro_batches: {self.micro_batches} does not divide the batch of "
                f"{self.batch_size}"
            )
        self._check_layout()
        if len(self.prediction.link_bytes) != len(self.network.links):
            raise DocumentError(
                f"prediction.link_bytes: {len(self.prediction.link_bytes)} entries for "
                f"{len(self.network.links)} links"
            )
        return self

    def _check_layout(self) -> None:
        if (self.layout is None) != (self.strategy_space != "layouts"):
            there = "missing" if self.layout is None else "not of a plan"
            raise DocumentError(f"layout: {there} with strategy_space {self.strategy_space!r}")
        if self.layout is None:
            return
        self.layout.validate()
        self.trainer.validate()
        accelerators = self.cluster.servers * self.cluster.accelerators_per_server
        if self.layout.accelerators != accelerators:
            raise DocumentError(
                f"layout: is for {self.layout.accelerators} accelerators, and the cluster has "
                f"{accelerators}"
            )
        if self.layout.batch_size != self.batch_size:
            raise DocumentError(
                f"layout: an iteration has {self.layout.batch_size} samples, and batch_size is "
                f"{self.batch_size}"
            )

    @property
    def is_data_parallel(self) -> bool:
        """Whether every operator is on all servers, in their order, and there is no layout."""
        if self.layout is not None:
            return False
        everyone = tuple(range(self.cluster.servers))
        return all(p.servers == everyone and p.sample == len(everyone) for p in self.strategy)

    @property
    def predicts_time(self) -> bool:
        """Whether the plan predicts the time of an iteration, which needs a model."""
        return self.prediction.iteration_s > 0

    @property
    def predicts_bytes(self) -> bool:
        """Whether the plan predicts the bytes of an iteration on each link."""
        return any(self.prediction.link_bytes)

    def digest(self) -> str:
        """A short fingerprint; ranks compare it when they connect, so plans never mix."""
        return digest_of(self.to_json())


def digest_of(text: str) -> str:
    """The digest of the plan whose canonical text this is."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
