"""Runs ATen operations on meta tensors, and each one only once for inputs of the same shapes.

PyTorch's shape arithmetic, in Python, takes most of the time of a trace. Repeated layers have equal
shapes, and a meta tensor is only a shape, so the cache answers for the second such layer.
"""

from __future__ import annotations

from typing import Any

import torch

_CONSTANTS = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class ShapeCache:
    """Results of operations; `hits` and `misses` count the calls answered and those that ran."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self._results: dict[Any, Any] = {}
        self._in_place: dict[Any, bool | None] = {}

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """`func(*args, **kwargs)`, for an ATen overload and meta tensors.

        Views, and operations with arguments of other types, always run.
        """
        if func not in self._in_place:
            self._in_place[func] = _returns_its_first(func)
        in_place = self._in_place[func]
        key = None if in_place is None else _key(func, args, kwargs)
        if key is None:
            self.misses += 1
            return func(*args, **kwargs)
        recipe = self._results.get(key)
        if recipe is not None:
            self.hits += 1
            return args[0] if in_place else _made(recipe)
        self.misses += 1
        result = func(*args, **kwargs)
        if in_place:
            if result is args[0] and _key(func, args, kwargs) == key:  # unlike t_() or resize_()
                self._results[key] = ()
        else:
            recipe = _recipe(result, (args, kwargs))
            if recipe is not None:
                self._results[key] = recipe
        return result


def _returns_its_first(func: Any) -> bool | None:
    """Whether `func` works in place (True) or makes its results (False); None for views."""
    schema = func._schema
    aliases = [entry.alias_info for entry in schema.returns if entry.alias_info is not None]
    if not aliases:
        return False
    if len(schema.returns) == 1 and aliases[0].is_write and schema.arguments:
        first = schema.arguments[0].alias_info
        if first is not None and first.is_write and schema.name.endswith("_"):
            return True
    return None


def _key(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The arguments that the shapes of the result depend on; None where that is not known."""
    parts: list[Any] = [func]
    if not all(_add_to_key(parts, value) for value in args):
        return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _add_to_key(parts, value):
            return None
    return tuple(parts)


def _add_to_key(parts: list[Any], value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "meta":
            return False
        if value.layout is not torch.strided:
            return False
        parts.append((value.dtype, tuple(value.shape), value.stride()))
        return True
    if isinstance(value, list | tuple):
        parts.append(len(value))
        return all(_add_to_key(parts, item) for item in value)
    if isinstance(value, _CONSTANTS):
        parts.append((type(value), value))  # 1, 1.0 and True are equal, their results are not
        return True
    return False


def _recipe(result: Any, inputs: Any) -> Any:
    """A recipe of such a result; None where it shares memory or holds something else."""
    made = result if isinstance(result, list | tuple) else (result,)
    taken = {id_of for value in _flat(inputs) if (id_of := _storage(value)) is not None}
    parts: list[Any] = []
    for value in made:
        if isinstance(value, torch.Tensor):
            storage = _storage(value)
            whole = value.device.type == "meta" and value.storage_offset() == 0
            if storage is None or storage in taken or not whole:
                return None
            taken.add(storage)
            parts.append((tuple(value.shape), value.stride(), value.dtype))
        elif isinstance(value, _CONSTANTS):
            parts.append(value)
        else:
            return None
    return type(result) if isinstance(result, list | tuple) else None, parts


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _storage(value: Any) -> int | None:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return int(value.untyped_storage()._cdata)
    return None


def _made(recipe: Any) -> Any:
    container, parts = recipe
    made = [
        torch.empty_strided(part[0], part[1], dtype=part[2], device="meta")
        if isinstance(part, tuple)
        else part
        for part in parts
    ]
    return made[0] if container is None else container(made)
