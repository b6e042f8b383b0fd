"""Meta tensors that a model takes for tensors of a CPU, so that it goes the way it goes there."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_CPU, _META = torch.device("cpu"), torch.device("meta")
_DEVICE = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_IS_CPU = torch.Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
_ANSWERS = {_DEVICE: _CPU, _IS_CPU: True, _IS_META: False}


def as_on_cpu(function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """A call of a PyTorch function as it is done on the meta device, with the answers of a CPU."""
    if function in _ANSWERS:
        return _Answer(function, _ANSWERS[function]), args, kwargs
    if function is torch.Tensor.cpu:
        return _Answer(function, args[0]), args, kwargs
    if kwargs.get("device") == "cpu":
        kwargs = {**kwargs, "device": _META}
    elif function is torch.Tensor.to and isinstance(args[-1], str) and args[-1] == "cpu":
        args = (*args[:-1], _META)
    if any(type(value) is torch.device for value in tree_leaves((args, kwargs))):
        args, kwargs = tree_map_only(torch.device, _on_meta, (args, kwargs))
    return function, args, kwargs


def _on_meta(device: torch.device) -> torch.device:
    return _META if device.type == "cpu" else device


class _Answer:
    """A function of another's name that returns `value`."""

    def __init__(self, function: Any, value: Any) -> None:
        self.__name__ = function.__name__
        self._value = value

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self._value


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Calls every function `as_on_cpu`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        function, args, kwargs = as_on_cpu(func, args, kwargs or {})
        return function(*args, **kwargs)
