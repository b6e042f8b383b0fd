"""Callbacks around a script's backward(), without a change of the script."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def watch_backward(
    begins: Callable[[torch.Tensor], None] = lambda tensor: None,
    ends: Callable[[], None] = lambda: None,
) -> Callable[[], None]:
    """Calls these around every torch.Tensor.backward() that is not being compiled; returns the
    function that ends it. End the last one of several first."""
    before = torch.Tensor.backward

    @functools.wraps(before)
    def backward(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return before(tensor, *arguments, **options)
        begins(tensor)
        result = before(tensor, *arguments, **options)
        ends()
        return result

    torch.Tensor.backward = backward

    def end() -> None:
        if torch.Tensor.backward is backward:  # else it has been wrapped again
            torch.Tensor.backward = before

    return end
