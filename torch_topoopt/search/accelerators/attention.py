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
    """The rates of both passes at long sequences, over the rate of large matrix products.

    Both slow down alike when power limits the clock.
    """

    forward: float
    backward: float


# FlashAttention-2's paper has 99, 160 and 186 TFLOP/s on an A100, both passes with a causal mask,
# at 512, 2048 and 8192 positions. Without a mask, FlashAttention-3's has 309, 350 and 370 on an
# H100, forward, at 512, 1024 and 16384.
_HALF_CAUSAL = 500.0
_HALF_FULL = 120.0

# Heads of 128; with 64 FlashAttention-2 has 0.9 of the rate. Short runs on both sides, products as
# in devices.py. The first of each is that of PyTorch's scaled_dot_product_attention
# today (`check_prefer_cudnn_attention`); until 2025 Hopper had FlashAttention-2.
# - ampere, flash2: FlashAttention-2 (Dao, 2023), figures 5 and 6: 205 and 180 TFLOP/s, A100.
# - hopper: FlashAttention-3 (Shah et al., 2024), figures 5 and 6, H100 SXM: 370 and 322 TFLOP/s
#   with FlashAttention-2, 600 and 516 with cuDNN, 648 and 561 with FlashAttention-3.
# - blackwell: FlashAttention-4 (2026), B200: 1613 TFLOP/s forward, 1.3 times as fast as cuDNN. The
#   backward pass is assumed to lose as much as on Hopper.
# - cdna3: Composable Kernel; assumed.
# - triton: FlashAttention of 2022 in Triton, the default of llm-foundry's benchmarks: the slope of
#   their step times over 4k to 32k positions.
KERNELS: dict[Generation, dict[KernelName, AttentionKernel]] = {
    "ampere": {"flash2": AttentionKernel(0.76, 0.67), "triton": AttentionKernel(0.44, 0.35)},
    "hopper": {
        "cudnn": AttentionKernel(0.76, 0.65),
        "flash2": AttentionKernel(0.46, 0.41),
        "flash3": AttentionKernel(0.82, 0.71),
        "triton": AttentionKernel(0.34, 0.27),
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
    return fraction * sequence / (sequence + (_HALF_CAUSAL if causal else _HALF_FULL))
