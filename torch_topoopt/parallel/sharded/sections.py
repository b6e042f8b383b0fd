"""Layers whose features have sections, such as queries, keys and values: each is divided by itself.

The parameters of a section are those of a module `sections.0`, `sections.1`, ... of the layer, so
that the shares of every rank have their places in a whole tensor of the section.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle

from torch_topoopt.parallel.sharded.local_parts import gathered, local_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

_CHILD = "sections"


class Sections(NamedTuple):
    """The sizes of the sections of a parameter along a dimension."""

    dimension: int
    sizes: tuple[int, ...]

    def split(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The sections of a whole tensor."""
        parts: tuple[torch.Tensor, ...] = torch.split(tensor, self.sizes, self.dimension)
        return parts


def section_name(name: str, number: int) -> str:
    """The name of a section of the parameter `name` of a model."""
    path, _, own = name.rpartition(".")
    return ".".join(filter(None, (path, _CHILD, str(number), own)))


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the linear layer of transformers, whose weight is [inputs, outputs]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def features_of(layer: Any) -> tuple[int, int]:
    """Those of the inputs and of the result of a whole linear layer."""
    if is_conv1d(layer):
        inputs, outputs = layer.weight.shape
        return inputs, outputs
    return layer.in_features, layer.out_features


def sections_of_columns(layer: nn.Module, sizes: Sequence[int]) -> dict[str, Sections]:
    """Those of the parameters of a linear layer, by name, whose columns have `sizes`."""
    of_weight = int(is_conv1d(layer))
    dimensions = {"weight": of_weight, "bias": 0}
    return {
        name: Sections(dimensions[name], tuple(sizes))
        for name, parameter in layer._parameters.items()
        if parameter is not None
    }


def divide(
    layer: nn.Module, mesh: DeviceMesh, dimension: int, name: str, sections: Sections | None
) -> None:
    """Leaves this rank's part of a parameter of `layer`, along `dimension`, or of its sections."""
    parameter: Any = layer._parameters[name]

    def part(whole: torch.Tensor) -> nn.Parameter:
        placed = distribute_tensor(whole.contiguous(), mesh, [Shard(dimension)], src_data_rank=None)
        return nn.Parameter(placed, requires_grad=parameter.requires_grad)

    if sections is None:
        layer._parameters[name] = part(parameter.data)
        return
    if _CHILD not in layer._modules:
        layer._modules[_CHILD] = nn.ModuleList(nn.Module() for _ in sections.sizes)
    for child, whole in zip(layer._modules[_CHILD], sections.split(parameter.data), strict=True):
        child.register_parameter(name, part(whole))
    layer._parameters[name] = None


@contextmanager
def local_layer(
    layer: nn.Module, mesh: DeviceMesh, sections: Mapping[str, Sections]
) -> Iterator[None]:
    """Inside, the parameters of `layer` are plain tensors: this rank's part of all sections."""
    with local_parameters(layer, mesh, sums=Replicate()):
        try:
            for name, its in sections.items():
                parts = [child._parameters[name] for child in layer._modules[_CHILD].children()]
                layer._parameters[name] = torch.cat(parts, its.dimension)
            yield
        finally:
            for name in sections:
                layer._parameters[name] = None


def whole_input(tensor: Any, mesh: DeviceMesh) -> torch.Tensor:
    """All of `tensor`, as a plain tensor, of whose gradient each rank has a part of the sum."""
    if not isinstance(tensor, DTensor):
        tensor = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
    whole: torch.Tensor = gathered(tensor).to_local(grad_placements=[Partial()])
    return whole


def added_once(bias: torch.Tensor | None, mesh: DeviceMesh) -> torch.Tensor | None:
    """The bias that this rank adds to its part of a sum: `bias` on rank 0, zeros on the others.

    All ranks get its gradient."""
    if bias is None or mesh.get_local_rank() == 0:
        return bias
    return bias - bias.detach()


def summed(part: torch.Tensor, mesh: DeviceMesh, result: Placement) -> DTensor:
    """The sum of the parts of all ranks, divided as `result` says."""
    parts = DTensor.from_local(part, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[result])


class LayerColumns(ParallelStyle):  # type: ignore[misc]
    """A linear layer with a part of its columns on each rank, of each of its sections, for whole
    inputs. The result is a plain tensor."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        sections = sections_of_columns(module, self.sizes) if len(self.sizes) > 1 else {}
        dimensions = {"weight": int(is_conv1d(module)), "bias": 0}
        for name in [name for name, one in module._parameters.items() if one is not None]:
            divide(module, device_mesh, dimensions[name], name, sections.get(name))
        if is_conv1d(module):
            module.nf //= device_mesh.size()
        forward = module.forward

        def local_forward(tensor: Any) -> Any:
            whole = whole_input(tensor, device_mesh)
            with local_layer(module, device_mesh, sections):
                return forward(whole)

        module.forward = local_forward
        return module


class Conv1DRows(ParallelStyle):  # type: ignore[misc]
    """A Conv1D of transformers with a part of its rows on each rank, for plain tensors that have
    that part of the features. The sum is divided as `result` says."""

    def __init__(self, result: Placement) -> None:
        super().__init__()
        self.result = result

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        divide(module, device_mesh, 0, "weight", None)
        bias = distribute_tensor(module.bias.data, device_mesh, [Replicate()], src_data_rank=None)
        module._parameters["bias"] = nn.Parameter(bias, module.bias.requires_grad)
        forward = module.forward

        def local_forward(tensor: torch.Tensor) -> Any:
            with local_layer(module, device_mesh, {}):
                module._parameters["bias"] = added_once(module._parameters["bias"], device_mesh)
                return summed(forward(tensor), device_mesh, self.result)

        module.forward = local_forward
        return module
