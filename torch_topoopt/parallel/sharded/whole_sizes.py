"""Forward methods that count the features of a whole layer, where a rank has a part of them.

nanoGPT splits the queries, keys and values of C features each, views them as heads of
`(B, T, n_head, C // n_head)` and what its attention makes as `(B, T, C)`. C is that of the whole
input, and `n_head` the number of heads of a part.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from torch_topoopt.parallel.stages import StrategyError

if TYPE_CHECKING:
    from collections.abc import Sequence

_VIEWS = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
_SPLITS = (torch.Tensor.split, torch.split)


class LayerNumbers(NamedTuple):
    """The numbers of a module whose layers have parts of their features on `parts` ranks.

    `sizes` are numbers of features of whole layers and sections, `sections` those of each layer
    that has several. `heads` has the numbers of heads in attributes: of the whole, and of a part.
    """

    parts: int
    sizes: frozenset[int]
    sections: frozenset[tuple[int, ...]]
    heads: tuple[frozenset[int], frozenset[int]]

    def of_view(self, shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
        """The shape of a part of the view `wanted`, for a tensor of `shape` that has a part of the
        features; `wanted` itself unless it counts those of the whole."""
        for first in reversed(range(len(wanted))):
            features = wanted[first:]
            size = math.prod(features)
            if min(features) < 1 or size not in self.sizes:
                continue
            for own in range(len(shape)):
                if math.prod(shape[own:]) * self.parts == size and _are_alike(
                    shape[:own], wanted[:first]
                ):
                    return (*wanted[:first], *self._part(features))
        return tuple(wanted)

    def _part(self, features: Sequence[int]) -> tuple[int, ...]:
        """A part of the dimensions that a view makes of features: sections, heads, and the features
        of each head."""
        its = (sections for sections in self.sections if sum(sections) == math.prod(features))
        divided = int(any(len(sections) == features[0] for sections in its))
        whole, own = (features[divided] in counts for counts in self.heads)
        if own and len(features) > 1:
            divided = len(features) - 1
        found = list(features)
        if (own and whole) or found[divided] % self.parts:
            raise StrategyError(
                f"layout: tensor: {self.parts}: a view of {math.prod(features)} features as "
                f"{' x '.join(map(str, features))} has no parts; view them as (-1, features of a "
                "head)"
            )
        found[divided] //= self.parts
        return tuple(found)

    def of_split(self, size: int, wanted: int | Sequence[int]) -> int | tuple[int, ...]:
        """The sizes of the parts of sections of `size` features, as `of_view`."""
        for sections in self.sections:
            if sum(sections) != size * self.parts:
                continue
            if isinstance(wanted, int) and set(sections) == {wanted}:
                return wanted // self.parts
            if not isinstance(wanted, int) and tuple(wanted) == sections:
                return tuple(one // self.parts for one in sections)
        return wanted if isinstance(wanted, int) else tuple(wanted)


def _are_alike(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether dimensions of a view are those of `shape`, or may be if one is -1."""
    size = math.prod(shape)
    if -1 not in wanted:
        return math.prod(wanted) == size
    return size % -math.prod(wanted) == 0


class WholeSizes(TorchFunctionMode):  # type: ignore[misc]
    """Plain tensors, which have a part of the features, are viewed and split as whole ones are."""

    def __init__(self, numbers: LayerNumbers) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else None
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DTensor):
            return function(*args, **kwargs)
        if function in _VIEWS and len(args) > 1 and not isinstance(args[1], torch.dtype):
            wanted = args[1:] if isinstance(args[1], int) else args[1]
            return function(tensor, self._numbers.of_view(tensor.shape, wanted), **kwargs)
        if function in _SPLITS and len(args) > 1:
            dimension = args[2] if len(args) > 2 else kwargs.get("dim", 0)
            if dimension in (-1, tensor.dim() - 1):
                wanted = self._numbers.of_split(tensor.shape[-1], args[1])
                return function(tensor, wanted, dim=dimension)
        return function(*args, **kwargs)

    @classmethod
    def around(cls, module: torch.nn.Module, numbers: LayerNumbers) -> None:
        """Makes the forward method of `module` run in this mode."""
        forward = module.forward

        @wraps(forward)
        def local_forward(*args: Any, **kwargs: Any) -> Any:
            with cls(numbers):
                return forward(*args, **kwargs)

        module.forward = local_forward
