"""The rate of fused attention in bf16, by kernel and sequence.

FLOPs are those that a kernel must compute: of a causal mask half of the square, and in the backward
pass 2.5 times the forward ones, because it computes the weights again. The rate grows with the
sequence s as s / (s + _HALF): short ones leave processors idle, and blocks on the diagonal of a
causal mask are computed whole.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kernel = Literal["flash2", "flash3", "cudnn", "triton", "ck"]


class AttentionKernel(NamedTuple):
    """The fractions of the bf16 peak that long sequences reach in both passes."""

    forward: float
    backward: float


# For a causal mask; half of the rate of a long sequence. FlashAttention-2's and -3's papers have
# 99, 160, 186 TFLOP/s on an A100 (both passes) for 512, 2048, 8192 positions.
_HALF_CAUSAL = 500.0
_HALF_FULL = 120.0  # without a mask: 309, 350, 370 TFLOP/s forward on an H100 for 512, 1024, 16384

# Heads of 128. Sources:
# - ampere, flash2: FlashAttention-2 (Dao, 2023), figures 5 and 6, A100.
# - hopper: FlashAttention-3 (Shah et al., 2024), figures 5 and 6, H100: 370, 322 TFLOP/s with
#   FlashAttention-2, 600, 516 with cuDNN, 648, 561 with FlashAttention-3.
# - blackwell: FlashAttention-4 (2026), B200: 1613 TFLOP/s forward, 1.3 times cuDNN; backward as
#   much less as on Hopper.
# - cdna3: Composable Kernel on an MI300X, by AMD's figures for its flash attention.
# - triton, the kernel of llm-foundry's MPT models: from their measured steps at 16k and 32k.
KERNELS: dict[str, dict[Kernel, AttentionKernel]] = {
    "ampere": {"flash2": AttentionKernel(0.66, 0.58), "triton": AttentionKernel(0.36, 0.29)},
    "hopper": {
        "flash2": AttentionKernel(0.37, 0.325),
        "flash3": AttentionKernel(0.65, 0.565),
        "cudnn": AttentionKernel(0.60, 0.52),
        "triton": AttentionKernel(0.21, 0.17),
    },
    "blackwell": {"cudnn": AttentionKernel(0.55, 0.47)},
    "cdna3": {"ck": AttentionKernel(0.35, 0.25)},
}
BACKWARD_PER_FORWARD = 2.5


def kernel_of(generation: str) -> AttentionKernel:
    """The one that PyTorch's scaled_dot_product_attention uses there: the first."""
    return next(iter(KERNELS[generation].values()))


def rate(fraction: float, sequence: float, *, causal: bool) -> float:
    """The fraction of the peak that a pass reaches at `sequence` positions."""
    return fraction * sequence / (sequence + (_HALF_CAUSAL if causal else _HALF_FULL))
