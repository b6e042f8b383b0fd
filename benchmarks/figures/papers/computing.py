"""What an iteration of a split transformer computes, from the OpGraph of a small one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Degrees
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.shards import may_split, shard_cost
from torch_topoopt.search.stages import equal_stages

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import ParameterKind
    from torch_topoopt.search.accelerators import Accelerator
    from torch_topoopt.shared_networks.routed.ring_jobs import SplitModel

_SPLITS: tuple[ParameterKind, ...] = ("columns", "rows")
_SUMS_PER_BLOCK = 4  # after attention and MLP, and in the backward pass before them


def iteration_compute_s(
    op_graph: OpGraph, model: SplitModel, *, device: str = "a100:bf16", micro_batches: int
) -> float:
    """Seconds from the begin of an iteration to the end of its last backward pass.

    `op_graph` is of one micro-batch, and has one repeated layer, of which the model has `blocks`.
    Operators are split into `tensor` parts, which add up four tensors of a block's output size in
    every block (Shoeybi et al., 2019, section 3), inside of their server. The blocks are cut into
    `pipeline` stages, the slowest as fast as can be; with m micro-batches in 1F1B an iteration
    takes m + pipeline - 1 turns of it. Raises ValueError for another graph, fewer blocks than
    stages, fewer than one micro-batch, or an unknown accelerator.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches: {micro_batches} is not at least 1")
    if len(op_graph.layers) != 1:
        raise ValueError(f"op_graph: has {len(op_graph.layers)} repeated layers, not 1")
    peers = accelerator(device)
    layer = op_graph.layers[0]
    seconds = [_seconds(peers, operator, model.tensor) for operator in op_graph.operators]
    first, last = layer.starts[0], layer.starts[-1] + layer.length
    output_bytes = op_graph.operators[first + layer.length - 1].output_bytes
    moved_bytes = _SUMS_PER_BLOCK * 2 * (model.tensor - 1) / model.tensor * output_bytes
    block_s = sum(seconds[first : first + layer.length]) + moved_bytes / peers.peer_bytes_per_s
    whole = [sum(seconds[:first]), *[block_s] * model.blocks, sum(seconds[last:])]
    cuts = tuple(range(2, model.blocks + 1))  # embedding and head go with a block
    stages = equal_stages(whole, cuts, 1, model.pipeline)
    if stages is None:
        raise ValueError(f"blocks: {model.blocks} are fewer than {model.pipeline} stages")
    return stages.longest_s * (micro_batches + model.pipeline - 1)


def _seconds(device: Accelerator, operator: Operator, tensor: int) -> float:
    """Both passes of one of `tensor` parts; of the whole operator where it cannot be split."""
    ways = [Degrees(kind=kind, parameter=tensor) for kind in _SPLITS] if tensor > 1 else []
    degrees = next((way for way in ways if may_split(operator, way)), Degrees())
    cost = shard_cost(device, operator, degrees, 1, 1)
    return cost.forward_s + cost.backward_s
