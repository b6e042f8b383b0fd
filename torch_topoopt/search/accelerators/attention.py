"""The rate of fused attention in bf16, by kernel and sequence.

FLOPs are those that a kernel must compute: of a causal mask half of the square, and in the backward
pass 2.5 times the forward ones, because it computes the weights again. The rate grows with the
sequence s as s / (s + half): short ones leave processors idle, and blocks on the diagonal of a
causal mask are computed whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.search.accelerators.devices import Generation

KernelName = Literal["flash2", "flash3", "cudnn", "triton", "ck"]


class AttentionKernel(NamedTuple):
    """The rates of both passes at long sequences without a mask, over that of large products.

    Both slow down alike when power limits the clock.
    """

    forward: float
    backward: float


# FlashAttention-3's paper (Shah et al., 2024, figures 5 and 6, heads of 128, H100) has these
# TFLOP/s forward at 512, 1024, 2048, 16384 positions: FlashAttention-2 309, 350, 362, 370 without
# a mask, 191, 260, 298, 335 with a causal one; cuDNN 497, 574, 617, 595 and 315, 410, 484, 539.
# Heads of 64 have 0.9 of them.
_HALF = 120.0
_HALF_CAUSAL = 350.0
_CAUSAL = 0.91

# Over the short runs of devices.py. The first of each is that of PyTorch's
# scaled_dot_product_attention today (`check_prefer_cudnn_attention`); until 2025 Hopper had
# FlashAttention-2.
# - ampere: FlashAttention-2 (Dao, 2023): 0.5 to 0.73 of the peak of an A100.
# - hopper: the paper above; backward 322, 516 and 561 TFLOP/s.
# - blackwell: FlashAttention-4 (2026): 1613 TFLOP/s forward on a B200, 1.3 times cuDNN. Products
#   in short runs are assumed to reach 0.78 of the peak, the backward pass to lose as on Hopper.
# - cdna3: assumed.
# - triton: FlashAttention of 2022 in Triton, the default of llm-foundry's benchmarks: the slope of
#   their step times over 4k to 32k positions.
KERNELS: dict[Generation, dict[KernelName, AttentionKernel]] = {
    "ampere": {"flash2": AttentionKernel(0.82, 0.7), "triton": AttentionKernel(0.48, 0.38)},
    "hopper": {
        "cudnn": AttentionKernel(0.77, 0.66),
        "flash2": AttentionKernel(0.47, 0.41),
        "flash3": AttentionKernel(0.82, 0.71),
        "triton": AttentionKernel(0.37, 0.295),
    },
    "blackwell": {"cudnn": AttentionKernel(0.71, 0.61)},
    "cdna3": {"ck": AttentionKernel(0.65, 0.46)},
}
BACKWARD_PER_FORWARD = 2.5


def kernel_of(generation: Generation, name: KernelName | None = None) -> AttentionKernel:
    """A kernel by name, or the default one. Raises ValueError if the generation has none of it."""
    kernels = KERNELS[generation]
    name = name or next(iter(kernels))
    if name not in kernels:
        raise ValueError(f"attention: {name!r} is not one of {', '.join(kernels)}")
    return kernels[name]


def at_length(fraction: float, sequence: float, *, causal: bool) -> float:
    """The fraction that a pass reaches at `sequence` positions."""
    if causal:
        return _CAUSAL * fraction * sequence / (sequence + _HALF_CAUSAL)
    return fraction * sequence / (sequence + _HALF)
