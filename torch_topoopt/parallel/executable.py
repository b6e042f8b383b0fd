"""The strategies that can be executed for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.parallel.api import placed
from torch_topoopt.parallel.layouts import on_ranks
from torch_topoopt.parallel.stages import stages_of

if TYPE_CHECKING:
    from torch_topoopt.parallel.program import Program
    from torch_topoopt.plan import Cluster
    from torch_topoopt.search.strategies import Executable, Strategy


def executable(program: Program, cluster: Cluster) -> Executable:
    """Whether an operator can run as placed."""
    per_server = cluster.accelerators_per_server
    ranks = cluster.servers * per_server

    def can_run(placement: Any) -> bool:
        (on_all,) = on_ranks((placement,), per_server)
        return not program.why_not_placed(on_all, ranks)

    return can_run


def check_executable(
    strategy: Strategy, micro_batches: int, program: Program, cluster: Cluster
) -> None:
    """Raises StrategyError for a strategy that cannot be executed: several micro-batches need a
    pipeline."""
    per_server = cluster.accelerators_per_server
    if micro_batches > 1:
        stages_of(program, strategy)
    else:
        placed(program, on_ranks(strategy, per_server), cluster.servers * per_server)
