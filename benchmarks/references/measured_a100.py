"""The costs of single operators on an A100, as TopoOpt's authors measured them with FlexFlow.

Milliseconds of forward and backward pass of one GPU, from their public artifact. Dense layers run
on the FP32 units there (the largest reach 97 % of 19.5 TFLOP/s), convolutions and attention on
tensor cores in TF32 (up to 113 TFLOP/s of 156).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import Operator


@dataclass(frozen=True)
class Measurement:
    """`operator` is the operator on the samples of one GPU, as a profile describes it."""

    name: str
    operator: Operator
    forward_s: float
    backward_s: float


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def _concatenate(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts, dim=1)


class _Inputs(nn.Module):
    """Something to take a gradient of before the operator, as inside a model."""

    def __init__(self, operator: Callable[..., Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.operator = operator

    def forward(self, *inputs: torch.Tensor) -> Any:
        scaled = [x * self.scale if x.is_floating_point() else x for x in inputs]
        return self.operator(*scaled)


def _measured(
    name: str,
    build: Callable[[], Callable[..., Any]],
    shapes: list[tuple[int, ...]],
    forward_ms: float,
    backward_ms: float,
    dtype: torch.dtype = torch.float32,
) -> Measurement:
    with torch.device("meta"):
        batch = tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)
    graph = profile(lambda: _Inputs(build()), batch, name=name)
    return Measurement(name, graph.operators[-1], forward_ms / 1e3, backward_ms / 1e3)


def _dense(inputs: int, outputs: int, samples: int, *milliseconds: float) -> Measurement:
    name = f"dense {inputs} x {outputs}, {samples} samples"
    return _measured(name, lambda: nn.Linear(inputs, outputs), [(samples, inputs)], *milliseconds)


def _bags(rows: int, width: int, samples: int, *milliseconds: float) -> Measurement:
    """A whole table on one GPU, a bag of 100 rows for each sample."""
    return _measured(
        f"table {rows} x {width}, {samples} bags",
        lambda: nn.EmbeddingBag(rows, width, mode="sum"),
        [(samples, 100)],
        *milliseconds,
        dtype=torch.long,
    )


def _convolution(
    inputs: int, outputs: int, pixels: int, samples: int, *milliseconds: float
) -> Measurement:
    """3 x 3 with the artifact's padding of 2; one entry stands for all layers of as many outputs,
    the first of which was measured."""
    return _measured(
        f"convolution {inputs} to {outputs}, {pixels} x {pixels} pixels, {samples} samples",
        lambda: nn.Conv2d(inputs, outputs, 3, padding=2),
        [(samples, inputs, pixels, pixels)],
        *milliseconds,
    )


def _concatenation(
    widths: list[int], samples: int, forward_ms: float, backward_ms: float
) -> Measurement:
    shapes = [(samples, width) for width in widths]
    name = f"concatenation of {len(widths)}, {samples} samples"
    return _measured(name, lambda: _concatenate, shapes, forward_ms, backward_ms)


def measurements() -> list[Measurement]:
    """All of them; batches as they fall on one of 4 GPUs of one of 128 servers."""
    sweep = (0.618, 1.149, 2.114, 4.167, 8.414, 16.357)
    bags = (2.20, 4.36, 8.69, 17.34, 34.38, 68.23)
    tokens = 16 * 64
    return [
        # DLRM, 128 samples.
        _dense(2048, 2048, 128, 0.194, 0.296),
        _dense(10240, 4096, 128, 0.615, 1.211),
        _dense(4096, 4096, 128, 0.270, 0.522),
        _dense(4096, 1, 128, 0.015, 0.040),
        # CANDLE, 256 samples.
        _dense(942, 16384, 256, 0.906, 1.837),
        _dense(16384, 16384, 256, 7.787, 15.01),
        _dense(5270, 16384, 256, 2.582, 5.357),
        _dense(2048, 16384, 256, 1.022, 2.048),
        _dense(81922, 16384, 256, 43.63, 73.24),
        _dense(16384, 1, 256, 0.026, 0.045),
        # BERT, 16 samples of 64 tokens.
        _dense(1024, 1024, tokens, 0.147, 0.279),
        _dense(1024, 1, tokens, 0.011, 0.047),
        # NCF, 128 samples.
        _dense(8192, 4096, 128, 0.537, 0.975),
        _dense(4096, 4096, 128, 0.285, 0.534),
        # VGG, 64 samples.
        _dense(61952, 4096, 64, 2.090, 3.787),
        _dense(4096, 4096, 64, 0.174, 0.300),
        _convolution(3, 64, 224, 64, 1.885, 6.189),
        _convolution(64, 128, 113, 64, 1.518, 4.699),
        _convolution(128, 256, 58, 64, 1.686, 3.217),
        _convolution(256, 512, 31, 64, 1.456, 3.300),
        _measured(
            "attention 1024, 16 heads, 16 samples of 64",
            lambda: _Attention(1024, 16),
            [(16, 64, 1024)],
            0.301,
            0.603,
        ),
        _measured("addition", lambda: torch.add, [(16, 64, 1024), (16, 64, 1024)], 0.007, 0.014),
        _concatenation([2048] + [128] * 64, 128, 0.226, 0.226),
        _concatenation([128] * 64, 128, 0.194, 0.195),
        _concatenation([16384] * 5 + [1, 1], 256, 0.199, 0.241),
        # Whole tables: the samples of all servers, over the 4 GPUs of one.
        _bags(10**7, 128, 16384, 4.309, 8.617),
        _bags(10**6, 64, 16384, 6.287, 12.574),
        _bags(10**6, 128, 16384, 4.363, 8.727),
        # DLRM with 128 tables, 64 to 2048 samples on each GPU. Backward of the dense layer was not
        # published; that of the tables is twice the forward pass.
        *(_bags(10**7, 128, 8192 << i, ms, 2 * ms) for i, ms in enumerate(bags)),
        *(_dense(18432, 4096, 64 << i, ms, float("nan")) for i, ms in enumerate(sweep)),
    ]
