"""How to plan: the options of `planner.plan`, which says what each of them means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from torch_topoopt.search.strategy_space import DIMENSIONS
from torch_topoopt.search.two_levels import SearchOptions
from torch_topoopt.topology.routing_policies import POLICIES

if TYPE_CHECKING:
    from torch_topoopt.op_graph import SplitDimension
    from torch_topoopt.plan import Network
    from torch_topoopt.search.strategies import Executable
    from torch_topoopt.topology.routing_policies import Policy

DEFAULT_EVALUATIONS = 50_000

Ablation = Literal["both", "search-only", "topology-only"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)


@dataclass(frozen=True)
class PlanningOptions:
    """Checked by `validate`."""

    seed: int = 0
    rounds: int = 4
    evaluations: int = DEFAULT_EVALUATIONS
    strategy_space: Literal["full", "data-parallel"] = "full"
    mode: Literal["paper", "best"] = "paper"
    ablation: Ablation = "both"
    network: Network | None = None
    routing: Policy = "shortest"
    executable: Executable | None = None
    dimensions: tuple[SplitDimension, ...] = DIMENSIONS
    search: SearchOptions = field(default_factory=SearchOptions)

    def validate(self) -> None:
        """Raises ValueError for what is out of range."""
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} is negative")
        if self.rounds < 1:
            raise ValueError(f"rounds: {self.rounds} is not at least 1")
        if self.evaluations < 0:
            raise ValueError(f"evaluations: {self.evaluations} is negative")
        choices = (
            ("strategy_space", self.strategy_space, ("full", "data-parallel")),
            ("mode", self.mode, ("paper", "best")),
            ("ablation", self.ablation, ABLATIONS),
            ("routing", self.routing, POLICIES),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ValueError(
                    f"{name}: {value!r} is not {' or '.join(repr(choice) for choice in allowed)}"
                )
