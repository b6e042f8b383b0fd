"""What a trainer adds to arithmetic and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SoftwareName = Literal["eager", "nanotron", "compiled"]


@dataclass(frozen=True)
class Software:
    """A way of running the passes.

    The host issues one operator of a forward pass in `host_s`, and one exchange of a tensor group
    in `exchange_s`; between boxes, or beside a pipeline between boxes, it takes `far_rank_s` and
    `pipeline_rank_s` more for each rank of that group. A backward pass issues twice as much.
    Computation is slower by the fraction `contention` while state is exchanged.

    `gathers_early`: parameters that only the optimizer's step shares are gathered beside the next
    forward pass.
    """

    host_s: float
    exchange_s: float
    far_rank_s: float = 0.0
    pipeline_rank_s: float = 0.0
    contention: float = 0.08
    gathers_early: bool = False


# PyTorch without compilation: fitted to rows with a micro-batch of one sequence in
# benchmarks/measured_steps.py, where the host is the limit.
EAGER = Software(host_s=60e-6, exchange_s=172e-6)
# The same with what its rows show for tensor groups of jobs on several boxes.
NANOTRON = Software(60e-6, 172e-6, far_rank_s=34e-6, pipeline_rank_s=194e-6)
# Compiled blocks or CUDA graphs.
COMPILED = Software(host_s=10e-6, exchange_s=20e-6, gathers_early=True)
SOFTWARE: dict[SoftwareName, Software] = {
    "eager": EAGER,
    "nanotron": NANOTRON,
    "compiled": COMPILED,
}
