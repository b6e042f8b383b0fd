"""Gradients of parameters that several chunks of a pipeline have, such as tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt.parallel.gradient_norm import local_of
from torch_topoopt.parallel.sharded.chunks import kept_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.parallel.sharded.chunks import ModelChunk
    from torch_topoopt.parallel.sharded.mesh import LayoutMesh
    from torch_topoopt.parallel.sharded.module_calls import ModelCalls


@dataclass(frozen=True)
class _Shared:
    """A parameter: its name in each chunk that has it, and the ranks with its other copies."""

    names: dict[int, str]
    group: Any

    def copies(self, chunks: Mapping[int, ModelChunk]) -> list[torch.nn.Parameter]:
        """Those of `chunks`, which are of this rank."""
        return [
            chunks[number].module.get_parameter(name)
            for number, name in self.names.items()
            if number in chunks
        ]


class SharedGradients:
    """The copies of a parameter get the sum of their gradients."""

    def __init__(
        self, module: torch.nn.Module, calls: ModelCalls, bounds: Sequence[int], mesh: LayoutMesh
    ) -> None:
        """Call it before `module` is divided; a collective call."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        names: dict[int, dict[int, str]] = {}
        for chunk, first in enumerate(bounds[:-1]):
            for name in kept_parameters(module, calls, range(first, bounds[chunk + 1])):
                names.setdefault(id(parameters[name]), {}).setdefault(chunk, name)
        groups: dict[tuple[int, ...], Any] = {}
        self._shared: list[_Shared] = []
        self._before: list[list[torch.Tensor | None]] = []
        for its in names.values():
            stages = tuple(sorted({chunk % mesh.layout.pipeline for chunk in its}))
            if len(stages) > 1 and stages not in groups:
                groups[stages] = _group_of(stages, mesh)
            if len(its) > 1:
                self._shared.append(_Shared(its, groups.get(stages)))

    def begin(self, chunks: Mapping[int, ModelChunk]) -> None:
        """Call it before the passes of an iteration; `chunks` are those of this rank."""
        self._before = []
        for shared in self._shared:
            copies = shared.copies(chunks)
            self._before.append([parameter.grad for parameter in copies])
            for parameter in copies:
                parameter.grad = None

    def add(self, chunks: Mapping[int, ModelChunk]) -> None:
        """Adds the sum of the passes' gradients to the gradient of each copy."""
        for shared, before in zip(self._shared, self._before, strict=True):
            copies = shared.copies(chunks)
            gradients = [local_of(p.grad) for p in copies if p.grad is not None]
            if not gradients:
                continue
            total = torch.stack(gradients).sum(0)
            if shared.group is not None:
                dist.all_reduce(total, group=shared.group)
            for gradient, earlier in zip(gradients, before, strict=True):
                gradient.copy_(total)
                if earlier is not None:
                    gradient.add_(local_of(earlier))

    def repeated(self, chunks: Mapping[int, ModelChunk]) -> list[torch.nn.Parameter]:
        """The parameters of `chunks` that an earlier chunk has, too."""
        return [
            chunks[number].module.get_parameter(name)
            for shared in self._shared
            for number, name in shared.names.items()
            if number in chunks and number > min(shared.names)
        ]


def _group_of(stages: tuple[int, ...], mesh: LayoutMesh) -> Any:
    """The ranks with this rank's place in `stages`; None if this rank is in another stage."""
    per_stage = mesh.layout.accelerators // mesh.layout.pipeline
    mine = None
    for place in range(per_stage):
        ranks = [stage * per_stage + place for stage in stages]
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine
