"""Scripts that are profiled write no checkpoints: theirs would be of steps that nobody trained.

A later run could resume from such a checkpoint, or find that it replaced a good one. So
`torch.save` to a file and the save functions of torch.distributed.checkpoint do nothing; the load
functions need no other ranks.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_SAVER = "torch.distributed.checkpoint.state_dict_saver"
_LOADER = "torch.distributed.checkpoint.state_dict_loader"


def write_none() -> None:
    """From now on, in this process."""
    torch.save = torch.serialization.save = _without_files(torch.save)  # type: ignore[assignment]
    for name, replace in ((_SAVER, _replace_saver), (_LOADER, _replace_loader)):
        if name in sys.modules:
            replace(sys.modules[name])
        else:  # importing it takes a second, which scripts without it would not
            sys.meta_path.insert(0, _AtImport(name, replace))


class _AtImport(importlib.abc.MetaPathFinder):
    """Calls `replace` with the module of that name once it has been imported."""

    def __init__(self, name: str, replace: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._replace = replace

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            self._replace(module)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _without_files(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def save_to_memory(obj: object, f: Any, *arguments: Any, **options: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *arguments, **options)

    return save_to_memory


def _replace_saver(module: ModuleType) -> None:
    from torch.distributed.checkpoint.metadata import Metadata

    def save(*_: Any, **__: Any) -> Metadata:
        return Metadata({})

    def async_save(*_: Any, **__: Any) -> Future[Metadata]:
        future: Future[Metadata] = Future()
        future.set_result(Metadata({}))
        return future

    for name, replacement in (
        ("save", save),
        ("save_state_dict", save),
        ("async_save", async_save),
    ):
        setattr(module, name, functools.wraps(getattr(module, name))(replacement))


def _replace_loader(module: ModuleType) -> None:
    load = module.load

    @functools.wraps(load)
    def load_alone(*arguments: Any, **options: Any) -> None:
        load(*arguments, **{**options, "process_group": None, "no_dist": True})

    setattr(module, "load", load_alone)  # noqa: B010 - mypy lets no function be replaced
