"""Finding the model that a user names: a shipped one, or a callable in a file of theirs."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from torch_topoopt.plan.file_kinds import wrong_kind
from torch_topoopt.profile.tracing import (
    ProfileError,
    bags_of,
    batch_size_of,
    positional_and_keyword,
    resized,
)
from torch_topoopt.user_functions import (
    UserFunctionError,
    function_of,
    importable,
    is_file,
    load_module,
    user_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torch_topoopt.plan.layout import Precision

TYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16}
DEFAULT_BATCH_SIZE = 32  # without a choice of the caller or script


class LoadedModel(NamedTuple):
    """The arguments of `profile`: a callable that builds the module, a batch, and a name.

    The batch of a shipped model is on the meta device.
    """

    build: Callable[[], Any]
    example_batch: Any
    name: str

    def in_precision(self, precision: Precision) -> LoadedModel:
        """The same with parameters and inputs of another type than their own."""
        dtype = TYPES[precision]

        def converted(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        def build() -> torch.nn.Module:
            model: torch.nn.Module = self.build()
            if all(parameter.dtype == dtype for parameter in model.parameters()):
                raise ProfileError(f"precision: {self.name} is in {precision} already; use its own")
            return model.to(dtype)

        batch = tree_map_only(torch.Tensor, converted, self.example_batch)
        return self._replace(build=build, example_batch=batch)


def load_model(
    spec: str,
    *,
    size: str | None = None,
    batch_size: int | None = None,
    sequence: int | None = None,
    task: str | None = None,
) -> LoadedModel:
    """Finds the model that `spec` names.

    - `NAME` or `NAME:SIZE`: a module of torch_topoopt.models and one of its sizes. With `sequence`,
      samples of one that reads tokens have so many.
    - `path/to/file.py:callable`: the callable returns a module, or (module, example batch); in the
      first case the file has an `example_batch(batch_size)`.
    - `path/to/file.py`: a script with `build_model()` and `example_batch()` at module level. It is
      imported, so code under `if __name__ == "__main__"` does not run.
    - `path/to/config.json`: a configuration of transformers. Samples have `sequence` tokens, and
      the model is for `task` (torch_topoopt.models.configurations).

    `batch_size` is the number of samples of the example batch (by default the model's own choice).
    Raises ProfileError, in one line, for an unknown name or size, a missing file or callable, and
    for whatever the file raises.
    """
    if batch_size is not None and batch_size < 1:
        raise ProfileError(f"batch_size: must be at least 1 (got {batch_size})")
    if spec.endswith(".json"):
        return _load_configuration(Path(spec), batch_size, sequence, task)
    shipped = not is_file(spec)
    for option, value in (("sequence", None if shipped else sequence), ("task", task)):
        if value is not None:
            raise ProfileError(
                f"{option}: {value} is for a configuration of transformers (config.json); {spec} "
                f"has its own {option}"
            )
    if shipped:
        return _load_shipped(spec, size, batch_size, sequence)
    path, _, function = (spec, "", "build_model") if spec.endswith(".py") else spec.rpartition(":")
    try:
        loaded = _load_file(Path(path), function, batch_size)
    except UserFunctionError as error:
        raise ProfileError(str(error)) from error
    if size is not None:
        raise ProfileError(f"size: {size!r} is for shipped models; {spec} is a file")
    return loaded


def _load_shipped(
    spec: str, size: str | None, batch_size: int | None, sequence: int | None
) -> LoadedModel:
    # models are a higher layer: look them up by name, never import them
    models: Any = importlib.import_module("torch_topoopt.models").MODELS
    name, _, suffix = spec.partition(":")
    if name not in models:
        if problem := wrong_kind(spec, "Python file"):
            raise ProfileError(f"model: {spec}: {problem}")
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
    named = f"{name}:{chosen}"
    if sequence is not None:
        batch = _with_sequence(named, module.SIZES[chosen], batch, sequence)
        named += f", {sequence} tokens"
    return LoadedModel(lambda: module.build(chosen), batch, named)


def _with_sequence(named: str, size: Any, batch: Any, sequence: int) -> Any:
    """The batch of a shipped model with samples of `sequence` tokens."""
    if not hasattr(size, "sequence"):
        raise ProfileError(f"sequence: {sequence} is for models that read tokens; {named} does not")
    most = size.longest  # None: no limit
    if sequence < 1 or (most is not None and sequence > most):
        raise ProfileError(
            f"sequence: {sequence} is not in the range of {named}: 1 to {most or 'any number'}"
        )

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.new_zeros(tensor.shape[0], sequence, *tensor.shape[2:])

    return tree_map_only(torch.Tensor, resized, batch)


def _load_configuration(
    path: Path, batch_size: int | None, sequence: int | None, task: str | None
) -> LoadedModel:
    configurations: Any = importlib.import_module("torch_topoopt.models.configurations")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = configurations.configured(
            values, sequence=sequence, task=task or configurations.TASKS[0]
        )
    except OSError as error:
        raise ProfileError(f"model: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileError(f"model: {path}: {error}") from None
    with torch.device("meta"):
        batch = found.example_batch(batch_size)
    folder = path.resolve().parent.name  # transformers' name of the file is the same for all models
    return LoadedModel(found.build, batch, folder if path.stem == "config" else path.stem)


def _load_file(path: Path, function: str, batch_size: int | None) -> LoadedModel:
    with importable(path.parent):
        module = load_module("model", path)
        build = function_of("model", module, path, function)
        with user_code("model", f"{path}:{function}()", path), torch.device("meta"):
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
                batch = _with_batch_size(network, batch, batch_size)
        else:
            batch = _batch_from(module, path, network, batch_size)
    name = path.stem if function == "build_model" else f"{path.stem}:{function}"
    return LoadedModel(lambda: network, batch, name)


def _with_batch_size(network: Any, batch: Any, batch_size: int) -> Any:
    arguments = positional_and_keyword(batch)
    bags = bags_of(network, arguments)
    size = batch_size_of(arguments, None, bags)
    args, kwargs = resized(arguments, size, batch_size, bags)
    return kwargs or args


def _batch_from(module: ModuleType, path: Path, network: Any, batch_size: int | None) -> Any:
    """Calls the file's `example_batch`, with a batch size if it takes one."""
    make = getattr(module, "example_batch", None)
    if not callable(make):
        raise ProfileError(
            f"model: {path} has no example_batch(batch_size) at module level, and the model came "
            "without a batch"
        )
    with user_code("model", f"{path}:example_batch()", path):
        parameters = list(inspect.signature(make).parameters.values())
        own = parameters and parameters[0].default is not inspect.Parameter.empty
        if parameters and not (batch_size is None and own):
            return make(DEFAULT_BATCH_SIZE if batch_size is None else batch_size)
        batch = make()
    if batch_size is None:
        return batch
    return _with_batch_size(network, batch, batch_size)
