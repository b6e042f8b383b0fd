"""The state of a split model in the form of the user's own module: gathered and split again.

A checkpoint is independent of ranks and servers, so another plan, or the module itself, can load
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_topoopt.parallel.splits import dimension_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch_topoopt.parallel.program import Program
    from torch_topoopt.plan import Placement


@dataclass(frozen=True)
class Home:
    """The ranks of an entry of a state: each rank of `groups[i]` has part i of equal parts along
    `dimension`."""

    groups: tuple[tuple[int, ...], ...]
    dimension: int = 0


def homes_of(
    module: torch.nn.Module, program: Program, placements: Mapping[str, Placement]
) -> dict[str, Home]:
    """The homes of entries that are not whole on every rank, by name in the state."""
    everyone = tuple(range(dist.get_world_size()))
    homes = {}
    for operator, placement in placements.items():
        ranks, parts, kind = placement.servers, placement.parameter, placement.parameter_kind
        if kind is None and ranks == everyone:
            continue
        groups = tuple(ranks[part::parts] for part in range(parts))
        path = program.modules.get(operator)
        leaf = module if path is None else module.get_submodule(path)
        for name in program.parameters.get(operator, ()):
            if kind is None:
                homes[name] = Home(groups)
            elif name.endswith("bias") and kind == "rows":
                homes[name] = Home(groups[:1])
            else:
                homes[name] = Home(groups, dimension_of(leaf, kind))
        if path is not None:
            homes.update({f"{path}.{name}": Home((ranks,)) for name, _ in leaf.named_buffers()})
    return homes


def whole_shapes(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Shapes and types of the tensors of a state, on the meta device."""
    return {
        name: torch.empty(value.shape, dtype=value.dtype, device="meta")
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def checked_state(
    whole: Mapping[str, torch.Tensor],
    here: Collection[str],
    state: Mapping[str, Any],
    *,
    strict: bool,
) -> Any:
    """The names that are missing in `state` and unexpected, as of Module.load_state_dict.

    `whole` are its tensors, `here` the names on this rank. Raises RuntimeError for a tensor of
    another shape, and with `strict` for such names.
    """
    missing = [name for name in whole if name not in state]
    unexpected = [name for name in state if name not in whole and name not in here]
    problems = []
    if strict:
        problems += [f"{name!r} is missing" for name in missing]
        problems += [f"{name!r} is not of this module" for name in unexpected]
    problems += [
        f"{name!r} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in whole.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if problems:
        more = f", and {len(problems) - 1} more like that" if len(problems) > 1 else ""
        raise RuntimeError(f"topoopt: load_state_dict: {problems[0]}{more}")
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


class ModelState:
    """The entries of a module's state_dict(); make it before any parameter is dropped.

    `homes` are those of entries that are not on every rank; `unread` are parameters that no rank
    keeps, because the model does not use them.
    """

    def __init__(
        self, module: torch.nn.Module, homes: Mapping[str, Home], unread: Iterable[str] = ()
    ) -> None:
        self._module = module
        self._homes = dict(homes)
        values = module.state_dict()
        self._unread = {name: values[name].detach().clone() for name in unread}
        self._whole = whole_shapes(module)

    def gather(self) -> dict[str, Any]:
        """The whole state, on every rank; a collective call."""
        here = self._module.state_dict()
        state: dict[str, Any] = {}
        for name, whole in self._whole.items():
            if name in self._unread:
                state[name] = self._unread[name]
            elif name in self._homes:
                state[name] = self._gathered(name, whole, here.get(name))
            else:
                state[name] = here[name]
        state.update((name, value) for name, value in here.items() if name not in state)
        return state

    def _gathered(self, name: str, whole: torch.Tensor, mine: torch.Tensor | None) -> torch.Tensor:
        home = self._homes[name]
        value = torch.empty(whole.shape, dtype=whole.dtype)
        for group, part in zip(
            home.groups, value.chunk(len(home.groups), home.dimension), strict=True
        ):
            sent = torch.empty(part.shape, dtype=part.dtype)
            if dist.get_rank() == group[0]:
                assert mine is not None
                sent = mine.detach().contiguous()
            dist.broadcast(sent, group[0])
            part.copy_(sent)
        return value

    def load(self, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Loads this rank's part of a whole state, which is the same on every rank.

        As Module.load_state_dict: returns the names that are missing and unexpected. Raises
        RuntimeError for a tensor of another shape, and with `strict` for such names.
        """
        here = self._module.state_dict()
        incompatible = checked_state(self._whole, here, state, strict=strict)
        for name, value in self._unread.items():
            if name in state:
                value.copy_(state[name])
        mine = {name: self._part(name, state[name]) for name in here if name in state}
        self._module.load_state_dict(mine, strict=False)
        return incompatible

    def _part(self, name: str, value: Any) -> Any:
        home = self._homes.get(name)
        if home is None or len(home.groups) == 1:
            return value
        (part,) = (i for i, group in enumerate(home.groups) if dist.get_rank() in group)
        return value.chunk(len(home.groups), home.dimension)[part]


class DataParallel(DistributedDataParallel):  # type: ignore[misc]
    """DistributedDataParallel whose state has the user's own names, as under any other plan.

    Every rank has a copy of its own: `replica`, of `replicas`.
    """

    @property
    def replica(self) -> int:
        """The rank."""
        return int(dist.get_rank(self.process_group))

    @property
    def replicas(self) -> int:
        """The number of ranks."""
        return int(dist.get_world_size(self.process_group))

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_."""
        return torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the user's module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads into the user's module."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)
