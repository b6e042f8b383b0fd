"""One rank's part of a model under a layout, made in place of the whole model."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard

from torch_topoopt.parallel.sharded.blocks import (
    model_cells,
    path_of,
    why_not_some_blocks,
)
from torch_topoopt.parallel.sharded.context import context_parallel
from torch_topoopt.parallel.sharded.experts import expert_parallel, expert_paths
from torch_topoopt.parallel.sharded.recompute import recompute
from torch_topoopt.parallel.sharded.tensor import TensorStyles, tensor_parallel
from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.search.accelerators import class_of
from torch_topoopt.search.layouts.divisible import why_not_experts
from torch_topoopt.search.layouts.stages import first_blocks

if TYPE_CHECKING:
    import torch

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel.sharded.blocks import ModelCell
    from torch_topoopt.parallel.sharded.mesh import LayoutMesh
    from torch_topoopt.parallel.sharded.sections import Sections
    from torch_topoopt.plan.layout import BlockField, Layout


@dataclass(frozen=True)
class Division:
    """What the parts of a module are made by: the OpGraph of the whole model, the groups of the
    layout, the type that blocks compute in (None: that of the parameters), and the cells of each
    chunk of the pipeline (none: there is one chunk)."""

    op_graph: OpGraph
    mesh: LayoutMesh
    precision: torch.dtype | None = None
    counts: tuple[int, ...] = ()

    @property
    def layout(self) -> Layout:
        """The layout of the mesh."""
        return self.mesh.layout

    def sections(self, module: torch.nn.Module) -> dict[str, Sections]:
        """Those of the parameters of `module`, the whole model, that tensor groups divide so."""
        parts = self.layout.tensor
        return TensorStyles(module, self.op_graph, parts).sections() if parts > 1 else {}

    def blocks(self, module: torch.nn.Module, field: BlockField) -> frozenset[str]:
        """The paths of the blocks of `module` that `field` of the layout names. Raises
        StrategyError for more blocks than a stage has, or for some calls of one module."""
        cells = model_cells(module, self.op_graph)
        are_blocks = [cell.block for cell in cells]
        why = why_not_some_blocks(cells) if getattr(self.layout, field) else ""
        try:
            named = first_blocks(are_blocks, self.counts or (len(cells),), self.layout, field)
        except ValueError as error:
            raise StrategyError(f"layout: {error}") from None
        if why:
            raise StrategyError(f"layout: {field}: {why}")
        return frozenset(path for cell in itertools.compress(cells, named) for path in cell.paths)


def distribute(module: torch.nn.Module, division: Division, *, last: bool = True) -> None:
    """Leaves this rank's part of `module` in it: of every tensor, of the experts, of the state.

    `module` is the model, or a stage of it with the same names, maybe the `last`; cells that it
    lacks are left out. Raises StrategyError for a layout that cannot be executed.
    """
    layout = division.layout
    why = why_not_experts(division.op_graph.operators, layout.expert)
    if why:
        raise StrategyError(f"layout: {why}")
    if division.mesh.experts is not None:
        expert_parallel(module, division.mesh.experts["expert"], layout.tensor / layout.expert)
    if layout.tensor > 1:
        tensor_parallel(module, division.op_graph, division.mesh.tensor, last=last)
        # Results are views of what tensor groups make, which no model changes in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    recomputed: frozenset[str] = frozenset()
    if layout.recompute != "none":
        recomputed = division.blocks(module, "recompute_blocks")
    if division.mesh.samples is not None:
        context = division.mesh.samples["context"]
        context_parallel(module, division.op_graph, context, recomputed=recomputed, last=last)
    cells = tuple(
        cell
        for cell in model_cells(module, division.op_graph)
        if any(any(True for _ in module.get_submodule(path).parameters()) for path in cell.paths)
    )
    held = dict.fromkeys(path for cell in cells if cell.block for path in cell.paths)
    for path in (path for path in held if path in recomputed):
        tensor_ranks = division.mesh.tensor.mesh.flatten().tolist()
        recompute(module.get_submodule(path), layout.recompute, tensor_ranks)
    _shard_state(module, cells, division, last=last)


def _shard_state(
    module: torch.nn.Module, cells: tuple[ModelCell, ...], division: Division, *, last: bool
) -> None:
    """Shares the state of each cell in a group of its own, and of the rest in that of the root.

    Without sharding, shares are whole, and only gradients are summed.
    """
    layout, mesh, experts_mesh = division.layout, division.mesh.copies, division.mesh.expert_copies
    policy = MixedPrecisionPolicy()
    if division.precision is not None:
        policy = MixedPrecisionPolicy(division.precision, next(module.parameters()).dtype)
    elif (
        layout.offload == "none"
        and mesh.size() == 1
        and (experts_mesh is None or experts_mesh.size() == 1)
    ):
        return
    shard = partial(
        fully_shard,
        reshard_after_forward=layout.sharding == "parameters" and layout.reshard,
        mp_policy=policy,
        offload_policy=_offload_policy(division),
        shard_placement_fn=partial(_even_dimension, parts=layout.state_shards),
    )
    keep = partial(shard, reshard_after_forward=False)
    uses = Counter(
        id(parameter) for other in module.modules() for parameter in other.parameters(recurse=False)
    )
    uses.update(id(p) for table in _shared_tables(module, division) for p in table.parameters())
    keeping = _keeping(module, cells, division)
    if experts_mesh is not None:
        for path in expert_paths(module):
            experts = module.get_submodule(path)
            kept = path.startswith(tuple(f"{block}." for block in keeping))
            (keep if kept else shard)(
                experts,
                mesh=experts_mesh,
                shard_placement_fn=partial(_even_dimension, parts=layout.expert_shards),
            )
            experts.set_modules_to_backward_prefetch([experts])
    units = []
    for cell in cells:
        modules = [module.get_submodule(path) for path in cell.paths]
        if not cell.block:
            modules = [one for one in modules if all(uses[id(p)] == 1 for p in one.parameters())]
        # FSDP gathers a group for the backward pass at the result of its last module.
        trained = [one for one in modules if any(p.requires_grad for p in one.parameters())]
        units += trained[:1]
        for group in (trained, [one for one in modules if one not in trained]):
            if group:
                (keep if keeping.intersection(cell.paths) else shard)(group, mesh=mesh)
    if division.precision is not None and last:  # the loss has its own type
        policy = replace(policy, output_dtype=policy.reduce_dtype)
    shard(module, mesh=mesh, mp_policy=policy)
    # By default, FSDP gathers ahead what ran before, maybe in another micro-batch. A unit that is
    # its own predecessor gathers nothing ahead.
    for unit, before in zip((*units, module), (units[0] if units else module, *units), strict=True):
        unit.set_modules_to_backward_prefetch([before])


def _offload_policy(division: Division) -> OffloadPolicy:
    """Where shares of the state are."""
    if division.layout.offload == "none":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=division.mesh.state.device_type != "cpu")


def _keeping(
    module: torch.nn.Module, cells: tuple[ModelCell, ...], division: Division
) -> frozenset[str]:
    """The paths of the blocks whose parameters stay for the backward pass, unlike others'."""
    if not division.layout.reshard_blocks:
        return frozenset()
    blocks = {path for cell in cells if cell.block for path in cell.paths}
    return frozenset(blocks - division.blocks(module, "reshard_blocks"))


def _even_dimension(parameter: torch.nn.Parameter, *, parts: int) -> Shard | None:
    """The dimension of equal parts; None: the first one. FSDP pads unequal parts of the first: a
    table of positions [1, positions, features] would be sent `parts` times."""
    whole = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    even = (at for at, size in enumerate(whole.shape) if size % parts == 0)
    return next(map(Shard, even), None) if whole.dim() and whole.shape[0] % parts else None


def _shared_tables(module: torch.nn.Module, division: Division) -> list[torch.nn.Module]:
    """The tables of `module` that another operator reads, too: a profile splits no such table."""
    modules = dict(module.named_modules())
    return [
        modules[path_of(o)]
        for o in division.op_graph.operators
        if class_of(o) == "lookup" and o.splittable and not o.split("rows")
        if path_of(o) in modules
    ]


def begin_micro_batch(module: torch.nn.Module, layout: Layout, *, last: bool) -> None:
    """Call it before the passes of a micro-batch, which is the `last` of an iteration or not.

    Sharded gradients are scattered after each; other ones, and sums over replicas, wait for the
    last. Parameters that are not sharded between passes are gathered once an iteration.
    """
    if not isinstance(module, FSDPModule):
        return
    module.set_requires_gradient_sync(last or layout.zero_stage >= 2)
    module.set_requires_all_reduce(last)
    module.set_reshard_after_backward(last or layout.zero_stage == 3)


def sum_at_the_end(module: torch.nn.Module) -> None:
    """Gradients of `module` wait for `end_backward`; call it before the first forward pass."""
    if isinstance(module, FSDPModule) and hasattr(module, "set_manual_backward_finalization"):
        module.set_manual_backward_finalization(True)


def end_backward(module: torch.nn.Module) -> None:
    """Sums the gradients of backward passes that did not, and shards parameters again."""
    if not isinstance(module, FSDPModule):
        return
    if hasattr(module, "finalize_backward"):
        module.finalize_backward()
        return
    state = module._get_fsdp_state()  # before torch 2.15, which has a method for it
    for one in state._state_ctx.all_states:
        if one._fsdp_param_group is not None:
            one._fsdp_param_group.post_backward()
    state._root_post_backward_final_callback()
