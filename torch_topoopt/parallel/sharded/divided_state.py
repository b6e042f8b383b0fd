"""The state of a divided model in the form of the user's own module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from torch_topoopt.parallel.checkpoint import checked_state, whole_shapes
from torch_topoopt.parallel.sharded.sections import section_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.parallel.sharded.sections import Sections


class DividedState:
    """The entries of a module's state_dict(); make it before the module is divided.

    Gathered, they are whole tensors, with the user's names, on every rank. `stages` is the group of
    the ranks with the same share of the other stages; None without stages. `sections` are those of
    parameters that are divided by them, by name.
    """

    def __init__(
        self, module: torch.nn.Module, sections: Mapping[str, Sections], stages: Any = None
    ) -> None:
        self._whole = whole_shapes(module)
        self._sections = sections
        self._stages = stages

    def gather(self, parts: Sequence[torch.nn.Module]) -> dict[str, Any]:
        """The whole state of the model that `parts` are this rank's of; a collective call."""
        here = {
            name: _whole(value) if isinstance(value, DTensor) else value
            for part in parts
            for name, value in part.state_dict().items()
        }
        for name, its in self._sections.items():
            parts_of = [section_name(name, i) for i in range(len(its.sizes))]
            if parts_of[0] in here:
                here[name] = torch.cat([here.pop(one) for one in parts_of], its.dimension)
        if self._stages is not None:
            here = self._of_all_stages(here)
        names = [name for name in self._whole if name in here]
        return {name: here[name] for name in dict.fromkeys((*names, *here))}

    def _of_all_stages(self, here: dict[str, Any]) -> dict[str, Any]:
        """Each entry from the first stage that has it."""
        names: list[list[str]] = [[] for _ in range(self._stages.size())]
        dist.all_gather_object(names, list(here), group=self._stages)
        found: dict[str, Any] = {}
        for stage, its in enumerate(names):
            source = dist.get_global_rank(self._stages, stage)
            for name in its:
                if name in found:
                    continue
                if not isinstance(self._whole.get(name), torch.Tensor):
                    value = [here.get(name)]
                    dist.broadcast_object_list(value, source, group=self._stages)
                    found[name] = value[0]
                    continue
                whole = self._whole[name]
                sent = torch.empty_like(whole, device=_device(here))
                if dist.get_rank() == source:
                    sent = here[name].detach().contiguous()
                dist.broadcast(sent, source, group=self._stages)
                found[name] = sent
        return found

    def load(
        self, parts: Sequence[torch.nn.Module], state: Mapping[str, Any], *, strict: bool = True
    ) -> Any:
        """Loads this rank's part of a whole state, which is the same on every rank; as
        Module.load_state_dict."""
        here = [part.state_dict() for part in parts]
        incompatible = checked_state(
            self._whole, {name for entries in here for name in entries}, state, strict=strict
        )
        whole = dict(state)
        for name, its in self._sections.items():
            for i, section in enumerate(its.split(state[name]) if name in state else ()):
                whole[section_name(name, i)] = section
        for part, entries in zip(parts, here, strict=True):
            mine = {
                name: _share(whole[name], value) for name, value in entries.items() if name in whole
            }
            part.load_state_dict(mine, strict=False)
        return incompatible


def _device(here: dict[str, Any]) -> torch.device:
    return next(value.device for value in here.values() if isinstance(value, torch.Tensor))


def _divided_dims(tensor: DTensor) -> list[int]:
    """The dimensions of the mesh in the order in which they divide `tensor`: FSDP divides the parts
    of a tensor group further, which is called strided."""
    return sorted(
        (dim for dim, placement in enumerate(tensor.placements) if hasattr(placement, "dim")),
        key=lambda dim: "Strided" in type(tensor.placements[dim]).__name__,
    )


def _whole(tensor: DTensor) -> torch.Tensor:
    """The whole of `tensor`; a collective call. full_tensor() warns of several gathers."""
    for dim in reversed(_divided_dims(tensor)):
        placements = list(tensor.placements)
        placements[dim] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    whole: torch.Tensor = tensor.to_local()
    return whole


def _share(value: Any, mine: Any) -> Any:
    """The part of the whole tensor `value` that this rank's `mine` stands for."""
    if not isinstance(mine, DTensor) or isinstance(value, DTensor):
        return value
    mesh, local = mine.device_mesh, value
    for dim in _divided_dims(mine):
        along = mine.placements[dim].dim
        chunks = local.chunk(mesh.size(dim), along)
        index = mesh.get_local_rank(dim)
        local = chunks[index] if index < len(chunks) else local.narrow(along, 0, 0)
    return DTensor.from_local(
        local.to(mine.device, mine.dtype),
        mesh,
        mine.placements,
        run_check=False,
        shape=mine.shape,
        stride=mine.stride(),
    )
