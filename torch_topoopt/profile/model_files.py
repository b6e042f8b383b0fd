"""Finding the model that a user names: a shipped one, or a callable in a file of theirs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torch_topoopt.profile.tracing import (
    Arguments,
    ProfileError,
    batch_size_of,
    one_line,
    positional_and_keyword,
    resized,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

DEFAULT_BATCH_SIZE = 32  # where neither the caller nor the script says


class LoadedModel(NamedTuple):
    """What `profile` needs: a callable that builds the module, a batch, and a name.

    The batch of a shipped model is on the meta device.
    """

    build: Callable[[], Any]
    example_batch: Any
    name: str


def is_file(spec: str) -> bool:
    """Whether `spec` names a file of the user's, and no shipped model."""
    return spec.endswith(".py") or ".py:" in spec


def load_model(spec: str, *, size: str | None = None, batch_size: int | None = None) -> LoadedModel:
    """Finds the model that `spec` names.

    - `NAME` or `NAME:SIZE`: a module of torch_topoopt.models and one of its sizes.
    - `path/to/file.py:callable`: the callable returns a module, or (module, example batch); in the
      first case the file has an `example_batch(batch_size)`.
    - `path/to/file.py`: a script with `build_model()` and `example_batch()` at module level. It is
      imported, so what stands under `if __name__ == "__main__"` does not run.

    `batch_size` is the number of samples of the example batch (by default the model's own choice).
    Raises ProfileError, in one line, for an unknown name or size, a missing file or callable, and
    for whatever the file raises.
    """
    if batch_size is not None and batch_size < 1:
        raise ProfileError(f"batch_size: {batch_size} is not at least 1")
    if spec.endswith(".py"):
        loaded = _load_file(Path(spec), "build_model", batch_size)
    elif ".py:" in spec:
        path, _, function = spec.rpartition(":")
        loaded = _load_file(Path(path), function, batch_size)
    else:
        return _load_shipped(spec, size, batch_size)
    if size is not None:
        raise ProfileError(f"size: {size!r} is for shipped models; {spec} is a file")
    return loaded


def _load_shipped(spec: str, size: str | None, batch_size: int | None) -> LoadedModel:
    # Models stand above this layer: they are looked up by name, never imported by it.
    models: Any = importlib.import_module("torch_topoopt.models").MODELS
    name, _, suffix = spec.partition(":")
    if name not in models:
        raise ProfileError(
            f"model: {spec!r} is not one of {', '.join(models)}; a model of your own is "
            "path/to/file.py:callable"
        )
    if suffix and size is not None and suffix != size:
        raise ProfileError(f"size: {spec!r} and {size!r} contradict each other")
    module = models[name]
    chosen = suffix or size or module.DEFAULT_SIZE
    if chosen not in module.SIZES:
        raise ProfileError(
            f"size: {chosen!r} is not a size of {name}; it has {', '.join(module.SIZES)}"
        )
    with torch.device("meta"):
        batch = module.example_batch(batch_size, size=chosen)
    return LoadedModel(lambda: module.build(chosen), batch, f"{name}:{chosen}")


def _load_file(path: Path, function: str, batch_size: int | None) -> LoadedModel:
    if not path.is_file():
        raise ProfileError(f"model: there is no file {path}")
    with _importable(path.parent):
        module = _import_file(path)
        build = getattr(module, function, None)
        if not callable(build):
            raise ProfileError(f"model: {path} has no callable {function!r} at module level")
        with _user_code(f"{path}:{function}()"), torch.device("meta"):
            built = build()
        comes_with_batch = isinstance(built, tuple) and len(built) == 2
        network = built[0] if comes_with_batch else built
        if not isinstance(network, torch.nn.Module):
            raise ProfileError(
                f"model: {path}:{function}() returned {type(network).__name__}, not an nn.Module "
                "or (nn.Module, example batch)"
            )
        if comes_with_batch:
            batch = built[1]
            if batch_size is not None:
                arguments = positional_and_keyword(batch)
                batch = _as_batch(resized(arguments, batch_size_of(arguments, None), batch_size))
        else:
            batch = _batch_from(module, path, batch_size)
    name = path.stem if function == "build_model" else f"{path.stem}:{function}"
    return LoadedModel(lambda: network, batch, name)


def _as_batch(arguments: Arguments) -> Any:
    args, kwargs = arguments
    return kwargs or args


def _batch_from(module: ModuleType, path: Path, batch_size: int | None) -> Any:
    """Calls the file's `example_batch`, with a batch size if it takes one."""
    make = getattr(module, "example_batch", None)
    if not callable(make):
        raise ProfileError(
            f"model: {path} has no example_batch(batch_size) at module level, and the model came "
            "without a batch"
        )
    with _user_code(f"{path}:example_batch()"):
        parameters = list(inspect.signature(make).parameters.values())
        if not parameters:
            batch = make()
            if batch_size is None:
                return batch
            arguments = positional_and_keyword(batch)
            return _as_batch(resized(arguments, batch_size_of(arguments, None), batch_size))
        if batch_size is None and parameters[0].default is not inspect.Parameter.empty:
            return make()
        return make(DEFAULT_BATCH_SIZE if batch_size is None else batch_size)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """While a script is imported, its neighbours can be imported too, as when it is run."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def _import_file(path: Path) -> ModuleType:
    name = f"_topoopt_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ProfileError(f"model: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the script look themselves up there
    with _user_code(f"importing {path} (put what must not run then under __main__)"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _user_code(what: str) -> Iterator[None]:
    """Turns what a user's file raises into one line with the cause."""
    try:
        yield
    except ProfileError:
        raise
    except (Exception, SystemExit) as error:  # a script may raise anything
        raise ProfileError(f"model: {what} raised {one_line(error)}") from error
