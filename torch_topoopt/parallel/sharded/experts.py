"""Expert parallelism: each rank of a group has some of the experts, and tokens travel to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_STACK = 3  # dimensions of the matrices of all experts


def expert_paths(module: nn.Module) -> list[str]:
    """The modules that hold the matrices of all experts, stacked."""
    return [path for path, inner in module.named_modules() if _experts_in(inner)]


def _experts_in(module: nn.Module) -> int:
    """The number of experts whose parameters `module` itself holds; 0 if it holds none."""
    if type(module).__module__.startswith("torch."):
        return 0
    shapes = [parameter.shape for parameter in module.parameters(recurse=False)]
    counts = {shape[0] for shape in shapes if len(shape)}
    stacked = any(len(shape) == _STACK for shape in shapes)
    return counts.pop() if stacked and len(counts) == 1 else 0
