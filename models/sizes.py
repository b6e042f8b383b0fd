"""The names of a model's sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

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
