"""What a trainer adds to arithmetic and links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.plan.layout import SoftwareName


@dataclass(frozen=True)
class Software:
    """A way of running the passes.

    The host issues one operator of a forward pass in `host_s`, and one exchange of a tensor group
    in `exchange_s`; between boxes, or beside a pipeline between boxes, it takes `far_rank_s` and
    `pipeline_rank_s` more for each rank of that group. A backward pass issues twice as much.

    Computation is slower by the fraction `contention` while state is exchanged. Operators that
    stream through memory take the fraction `streams` of their time, because some are fused. Of an
    exchange in a tensor group, `exposes` is not hidden by the products that it feeds. The loss
    moves `loss_passes` times the bytes of the logits, and has `loss_outputs` times as many at once.

    `keeps_gathered`: without stages, the gathered operands of a tensor group stay until the
    backward pass, which otherwise gathers them again beside its products. A pipeline's stage keeps
    `sent_copies` whole copies of what it sends of each micro-batch under way, and the fraction
    `fragments` more than its activations. `gathers_early`: parameters that only the
    optimizer's step shares are gathered beside the next forward pass. `splits_backward`: there is
    a zero-bubble schedule, whose backward passes take the host SPLIT_BACKWARD times the work.
    `gathers_output`: the loss is computed from whole logits.
    """

    host_s: float
    exchange_s: float
    far_rank_s: float = 0.0
    pipeline_rank_s: float = 0.0
    contention: float = 0.08
    streams: float = 1.0
    exposes: float = 1.0
    # without fusion: logits to 32 bits, log-softmax, and the gradients of both
    loss_passes: float = 14.0
    loss_outputs: float = 7.0  # logits in 16 and 32 bits, their softmax, and the gradients of both
    keeps_gathered: bool = False
    sent_copies: float = 0.0
    fragments: float = 0.1
    gathers_early: bool = False
    splits_backward: bool = False
    gathers_output: bool = False


# torch.distributed.pipelining looks for the gradients of weights in Python: 8.2 instead of 1.8 ms
# for 8 small blocks on a CPU.
SPLIT_BACKWARD = 4.5

# The terms in which strategies are simulated.
WITHOUT_OVERHEADS = Software(0.0, 0.0, contention=0.0, loss_passes=0.0)
# PyTorch without compilation: fitted to rows with a micro-batch of one sequence in
# benchmarks/measured_steps.py, where the host is the limit.
EAGER = Software(host_s=45e-6, exchange_s=172e-6, splits_backward=True, gathers_output=True)
# The same with what its rows show for tensor groups of jobs on several boxes, and for memory.
NANOTRON = Software(
    *(45e-6, 172e-6),
    far_rank_s=34e-6,
    pipeline_rank_s=194e-6,
    streams=2.0,
    keeps_gathered=True,
    sent_copies=3.0,
    fragments=0.25,
)
# Compiled blocks or CUDA graphs.
COMPILED = Software(10e-6, 20e-6, streams=0.75, loss_passes=7.0)
# Megatron: norms, activations and the loss are fused, products overlap with exchanges. The loss
# works in place on logits in 32 bits.
MEGATRON = Software(
    *(10e-6, 20e-6),
    streams=0.5,
    exposes=0.3,
    loss_passes=5.0,
    loss_outputs=4.0,
    gathers_early=True,
)
SOFTWARE: dict[SoftwareName, Software] = {
    "eager": EAGER,
    "nanotron": NANOTRON,
    # torchtitan's rows compute the loss from parts of the logits, and runs of this package do not
    "compiled": replace(COMPILED, gathers_output=True),
    "megatron": MEGATRON,
}
