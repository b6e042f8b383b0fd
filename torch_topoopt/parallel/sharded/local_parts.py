"""Modules that compute with plain tensors: this rank's part of activations, and whole parameters.

Between modules, activations are DTensors, so that models see the shapes of whole tensors.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_topoopt.parallel.splits import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

    Convert = Callable[[Any], Any]

_PRODUCTS = (
    torch.nn.functional.linear,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
)
_MATRIX = 2  # dimensions


class LocalParts(ParallelStyle):  # type: ignore[misc]
    """Runs a module on this rank's part of its inputs, which `placement` describes.

    The parameters are whole on every rank. Where inputs have parts, the group sums the gradients of
    parameters. Without a placement, inputs are plain tensors that have parts already, and so is the
    result. Plain inputs are whole. They are cut as the result is if `cuts` says "inputs"; or the
    "result" is, of a module that may count the positions of its inputs.
    """

    def __init__(
        self,
        placement: Placement | None,
        *,
        cuts: Literal["nothing", "inputs", "result"] = "nothing",
    ) -> None:
        super().__init__()
        self.placement, self.cuts = placement, cuts

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        replicate_parameters(module, device_mesh)
        placement, cuts = self.placement, self.cuts
        sums = Replicate() if isinstance(placement, Replicate) else Partial()
        forward = module.forward

        def take(given: Any, taken: dict[int, Any]) -> Any:
            tensor = given
            if not isinstance(tensor, DTensor):
                if cuts != "inputs" or tensor.dim() < 2:
                    return tensor
                tensor = DTensor.from_local(tensor, device_mesh, [Replicate()], run_check=False)
            if id(given) not in taken:  # queries may be keys and values, too
                taken[id(given)] = tensor.redistribute(placements=[placement]).to_local()
            return taken[id(given)]

        def make(tensor: Any) -> Any:
            if cuts == "result" and isinstance(placement, Shard):
                parts = tensor.chunk(device_mesh.size(), placement.dim)
                tensor = parts[device_mesh.get_local_rank()]
            return DTensor.from_local(tensor, device_mesh, [placement], run_check=False)

        def local_forward(*args: Any, **kwargs: Any) -> Any:
            if placement is not None:
                once = partial(take, taken={})
                args, kwargs = tree_map_only(torch.Tensor, once, (args, kwargs))
            with local_parameters(module, device_mesh, sums=sums):
                made = forward(*args, **kwargs)
            return made if placement is None else tree_map_only(torch.Tensor, make, made)

        module.forward = local_forward
        return module


class TableRows(ParallelStyle):  # type: ignore[misc]
    """Runs a table with a part of its rows on each rank, for whole indices.

    The sum over all parts is divided as `result` says.
    """

    def __init__(self, result: Placement) -> None:
        super().__init__()
        self.result = result

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        weight: Any = module.weight
        rows = -(-len(weight) // device_mesh.size())
        first = rows * device_mesh.get_local_rank()
        part = distribute_tensor(weight.data, device_mesh, [Shard(0)], src_data_rank=None)
        module._parameters["weight"] = torch.nn.Parameter(part, weight.requires_grad)
        look_up = rows_of(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = plain((args, kwargs))
            with local_parameters(module, device_mesh):
                made = look_up(module, first, *args, **kwargs)
            parts = DTensor.from_local(made, device_mesh, [Partial()], run_check=False)
            return parts.redistribute(placements=[self.result])

        module.forward = forward
        return module


class LocalProducts(TorchFunctionMode):  # type: ignore[misc]
    """Each rank multiplies its own positions by a whole matrix, or all of them by its part of one.

    DTensor would join samples and positions in one dimension, which is an error in PyTorch 2.11.
    Later, it gathers positions twice: in the forward pass and for the gradient of the matrix.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first: Any = args[0] if args else None
        others = args[1:]
        leaves = [leaf for leaf in tree_leaves((others, kwargs)) if isinstance(leaf, torch.Tensor)]
        are_matrices = all(leaf.dim() <= _MATRIX for leaf in leaves)
        if function not in _PRODUCTS or not (are_matrices and _has_part_of_positions(first)):
            return function(*args, **kwargs)
        if any(isinstance(leaf, DTensor) and leaf.placements != (Replicate(),) for leaf in leaves):
            return function(gathered(first), *others, **kwargs)
        own = partial(DTensor.to_local, grad_placements=[Partial()])
        others, kwargs = tree_map_only(DTensor, own, (others, kwargs))
        made = function(first.to_local(), *others, **kwargs)
        return DTensor.from_local(made, first.device_mesh, first.placements, run_check=False)

    @classmethod
    def around(cls, module: torch.nn.Module) -> None:
        """Makes the forward method of `module` run in this mode."""
        forward = module.forward

        @wraps(forward)
        def local_forward(*args: Any, **kwargs: Any) -> Any:
            with cls():
                return forward(*args, **kwargs)

        module.forward = local_forward


def _has_part_of_positions(tensor: Any) -> bool:
    if not isinstance(tensor, DTensor) or len(tensor.placements) > 1:
        return False
    (placement,) = tensor.placements
    return isinstance(placement, Shard) and 0 < placement.dim < tensor.dim() - 1


def replicate_parameters(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Makes DTensors of the parameters in `module` that are none yet; every rank has them whole."""
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is None or isinstance(parameter, DTensor):
                continue
            whole = distribute_tensor(parameter.data, mesh, [Replicate()], src_data_rank=None)
            owner._parameters[name] = torch.nn.Parameter(
                whole, requires_grad=parameter.requires_grad
            )


@contextmanager
def local_parameters(
    module: torch.nn.Module, mesh: DeviceMesh, *, sums: Placement | None = None, scale: float = 1.0
) -> Iterator[None]:
    """Inside, parameters in `module` that are DTensors of `mesh` are this rank's plain tensors.

    `sums` is the placement of the gradients of whole ones: Partial() if every rank has its own.
    Gradients are multiplied by `scale`.
    """
    swapped = []
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if isinstance(parameter, DTensor) and parameter.device_mesh == mesh:
                swapped.append((owner, name, parameter))
    try:
        for owner, name, parameter in swapped:
            placements = [
                sums if isinstance(placement, Replicate) else placement
                for placement in parameter.placements
            ]
            local = parameter.to_local(grad_placements=placements)
            owner._parameters[name] = local if scale == 1.0 else scaled_gradient(local, scale)
        yield
    finally:
        for owner, name, parameter in swapped:
            owner._parameters[name] = parameter


class _ScaledGradient(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, scale: float) -> torch.Tensor:
        context.scale = scale
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * context.scale, None


def scaled_gradient(tensor: torch.Tensor, scale: float) -> Any:
    """`tensor`, whose gradient is multiplied by `scale`."""
    return _ScaledGradient.apply(tensor, scale)


def gathered(value: Any) -> Any:
    """`value` with whole DTensors for those that have parts."""

    once: dict[int, Any] = {}  # queries may be keys and values, too

    def gather(tensor: Any) -> Any:
        whole = [Replicate()] * tensor.device_mesh.ndim
        # Of a whole tensor, the gradient would be summed here, and again where it was gathered.
        if list(tensor.placements) == whole:
            return tensor
        if id(tensor) not in once:
            once[id(tensor)] = tensor.redistribute(placements=whole)
        return once[id(tensor)]

    return tree_map_only(DTensor, gather, value)


def plain(value: Any) -> Any:
    """`value` with this rank's plain tensors for DTensors."""
    return tree_map_only(DTensor, lambda tensor: tensor.to_local(), value)


def position_placement(dimensions: int) -> Shard:
    """Parts of the positions of a tensor: the dimension before its features."""
    return Shard(max(0, dimensions - 2))
