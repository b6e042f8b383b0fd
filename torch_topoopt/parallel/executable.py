"""The strategies and layouts that can be executed for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.parallel.api import placed
from torch_topoopt.parallel.layouts import on_ranks
from torch_topoopt.parallel.sharded.blocks import model_cells, why_not_some_blocks
from torch_topoopt.parallel.sharded.tensor import TensorStyles
from torch_topoopt.parallel.stages import StrategyError, stages_of

if TYPE_CHECKING:
    import torch

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel.program import Program
    from torch_topoopt.plan import Cluster
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.strategies import Executable, Strategy


def executable(program: Program, cluster: Cluster) -> Executable:
    """Whether an operator can run as placed."""
    per_server = cluster.accelerators_per_server
    ranks = cluster.servers * per_server

    def can_run(placement: Any) -> bool:
        (on_all,) = on_ranks((placement,), per_server)
        return not program.why_not_placed(on_all, ranks)

    return can_run


class ExecutableLayouts:
    """The layouts that can be executed for `module`, on any device; `op_graph` is its own."""

    def __init__(self, module: torch.nn.Module, op_graph: OpGraph) -> None:
        self._module, self._op_graph = module, op_graph
        self._why_not_tensor: dict[int, str] = {1: ""}
        self._why_not_some = why_not_some_blocks(model_cells(module, op_graph))

    def why_not(self, layout: Layout) -> str:
        """The field of `layout`, the module, and the reason; empty if it can be executed."""
        for field in ("recompute_blocks", "reshard_blocks"):
            if getattr(layout, field) and self._why_not_some:
                return f"{field}: {self._why_not_some}"
        parts = layout.tensor
        if parts not in self._why_not_tensor:
            self._why_not_tensor[parts] = self._styles_fail(parts)
        return self._why_not_tensor[parts]

    def _styles_fail(self, parts: int) -> str:
        try:
            for _ in TensorStyles(self._module, self._op_graph, parts).of_modules():
                pass
        except StrategyError as error:
            return str(error).removeprefix("layout: ")
        return ""


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
