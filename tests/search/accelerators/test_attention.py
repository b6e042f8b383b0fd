"""Fused attention: causal masks, kernels, sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from support.refusals import refused
from support.small_op_graphs import operator
from torch import nn

from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.accelerators import DEVICES, accelerator, operator_seconds
from torch_topoopt.search.accelerators.attention import KERNELS

if TYPE_CHECKING:
    from torch_topoopt.op_graph import Operator
    from torch_topoopt.search.accelerators.attention import KernelName

CAUSAL = "causal_scaled_dot_product_attention"


def attention(sequence: int, *, batch: int = 1, hidden: int = 4096, kind: str = CAUSAL) -> Operator:
    size = 2 * batch * sequence * hidden
    made = operator(
        "attention",
        flops=4 * batch * sequence**2 * hidden,
        output=size,
        memory=4 * size,
    )
    return replace(made, kind=kind)


def test_a_causal_mask_halves_the_work_in_bf16_and_nothing_in_fp32() -> None:
    causal = attention(65536)
    full = replace(causal, kind="scaled_dot_product_attention")
    for of_causal, of_full in zip(
        operator_seconds(accelerator("a100:bf16"), causal, 1),
        operator_seconds(accelerator("a100:bf16"), full, 1),
        strict=True,
    ):
        assert of_causal == pytest.approx(of_full / 2 / 0.91, rel=0.02)
    for name in ("a100", "a100:tf32"):
        device = accelerator(name)
        assert operator_seconds(device, causal, 1) == operator_seconds(device, full, 1)


@pytest.mark.parametrize(
    ("kernel", "kind", "measured_tflops"),
    [
        ("flash2", "scaled_dot_product_attention", {512: 309, 2048: 362, 16384: 370}),
        ("flash2", CAUSAL, {512: 191, 2048: 298, 16384: 335}),
        ("cudnn", "scaled_dot_product_attention", {512: 497, 2048: 617, 16384: 595}),
        ("cudnn", CAUSAL, {512: 315, 2048: 484, 16384: 539}),
    ],
)
def test_kernels_are_as_fast_as_their_papers_say(
    kernel: KernelName, kind: str, measured_tflops: dict[int, float]
) -> None:
    """Forward on an H100, of which products keep less in training than in short runs."""
    slower = DEVICES["h100"].sustained / 0.8
    for sequence, tflops in measured_tflops.items():
        work = attention(sequence, batch=16384 // sequence, hidden=2048, kind=kind)
        flops = work.forward_flops / (2 if kind == CAUSAL else 1)
        seconds, _ = operator_seconds(accelerator("h100:bf16", kernel), work, 1)
        assert flops / seconds / 1e12 == pytest.approx(tflops * slower, rel=0.12)


def test_the_default_kernel_is_pytorchs_and_others_have_names() -> None:
    work = attention(8192)
    default = operator_seconds(accelerator("h100:bf16"), work, 1)
    assert default == operator_seconds(accelerator("h100:bf16", "cudnn"), work, 1)
    assert sum(operator_seconds(accelerator("h100:bf16", "flash2"), work, 1)) > sum(default)
    with refused(ValueError, "attention", "ck", *KERNELS["hopper"]):
        accelerator("h100:bf16", "ck")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_module_with_projections_pays_for_both(dtype: torch.dtype) -> None:
    hidden, tokens = 1024, 8 * 512
    module = nn.MultiheadAttention(hidden, 16, batch_first=True, dtype=dtype)

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    batch = torch.zeros(8, 512, hidden, dtype=dtype)
    (traced,) = profile(Self(), batch, name="x").operators
    products = 2 * tokens * 4 * hidden**2
    assert traced.forward_flops == products + 4 * 8 * 512**2 * hidden
    device = accelerator("a100:bf16")
    alone = attention(512, batch=8, hidden=hidden, kind="scaled_dot_product_attention")
    expected = products / (312e12 * 0.82) + operator_seconds(device, alone, 1)[0]
    assert operator_seconds(device, traced, 1)[0] == pytest.approx(expected, rel=0.05)
