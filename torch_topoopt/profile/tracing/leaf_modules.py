"""The modules of a model that are operators: those that call no other module."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_topoopt.profile.tracing.devices import OnCpu
from torch_topoopt.profile.tracing.records import check_tensor, tensors
from torch_topoopt.profile.tracing.shape_cache import ShapeCache


class _OnlyMeta(TorchDispatchMode):  # type: ignore[misc]
    """Refuses tensors that a trace cannot follow, before PyTorch stumbles over them."""

    def __init__(self, shapes: ShapeCache) -> None:
        super().__init__()
        self._shapes = shapes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tensors((args, kwargs)):
            check_tensor(tensor, f"{func._overloadpacket} reads")
        return self._shapes.call(func, args, kwargs or {})


def leaf_modules(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    calling: list[tuple[str, Any]],
    shapes: ShapeCache | None = None,
) -> set[Any]:
    """Runs `model` once on the meta device and returns the modules that call no other module.

    The root is one of them only if it is PyTorch's own: a model that is written with functions
    alone is still more than one operator. Raises ProfileError for a tensor that is not on the meta
    device, and whatever the model raises; `calling` then holds path and module of the calls that
    the exception came through, outermost first.
    """
    called: set[Any] = set()
    callers: set[Any] = set()

    def watch(path: str, module: Any, stack: ExitStack) -> None:
        def enter(*_: Any) -> None:
            callers.update(outer for _, outer in calling)
            calling.append((path, module))
            called.add(module)

        def leave(*_: Any) -> None:
            while calling.pop()[1] is not module:
                pass  # left by an exception that the model caught

        stack.callback(module.register_forward_pre_hook(enter).remove)
        stack.callback(module.register_forward_hook(leave).remove)

    with ExitStack() as stack:
        for path, module in model.named_modules():
            watch(path, module, stack)
        with torch.device("meta"), OnCpu(), _OnlyMeta(shapes or ShapeCache()):
            model(*args, **kwargs)
    if not type(model).__module__.startswith("torch.nn."):
        callers.add(model)
    return called - callers
