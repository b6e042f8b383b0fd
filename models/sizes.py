"""The names of a model's sizes, and the batch of one that reads tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

Size = TypeVar("Size")


def choose(sizes: Mapping[str, Size], size: str) -> Size:
    """`sizes[size]`; raises ValueError listing the sizes for another name."""
    if size not in sizes:
        raise ValueError(f"size: {size!r} is not one of {', '.join(sizes)}")
    return sizes[size]


def with_alias(sizes: Mapping[str, Size]) -> dict[str, Size]:
    """`sizes` with "paper" as another name, listed first, for "paper-5.3"."""
    return {"paper": sizes["paper-5.3"], **sizes}


class TokenSize(Protocol):
    """The size of a model that reads `batch_size` samples of `sequence` tokens."""

    @property
    def sequence(self) -> int: ...
    @property
    def batch_size(self) -> int: ...


def tokens_of(size: TokenSize, batch_size: int | None = None) -> torch.Tensor:
    """Tokens, all zero, [batch_size, sequence]; only shapes matter to a profile."""
    return torch.zeros(batch_size or size.batch_size, size.sequence, dtype=torch.long)
