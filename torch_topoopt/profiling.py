"""A model, or a user's script, becomes an OpGraph: traced on meta tensors, nothing is allocated."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from torch_topoopt.op_graph import Operand, Operator, OpGraph
from torch_topoopt.tracing import (
    CallTrace,
    ProfileError,
    ShapeCache,
    Trace,
    TracedOperator,
    leaf_modules,
    tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = ["DEFAULT_BATCH_SIZE", "LoadedModel", "ProfileError", "load_model", "profile"]

DEFAULT_BATCH_SIZE = 32  # where neither the caller nor the script says

AnyTrace = TypeVar("AnyTrace", bound=Trace)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def profile(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    example_batch: Any,
    *,
    name: str,
    batch_size: int | None = None,
    boundary: bool = False,
) -> OpGraph:
    """The OpGraph of one training iteration: forward, and backward from the sum of all outputs.

    `model` is a module, which is copied to the meta device and left alone, or a callable that is
    called under `torch.device("meta")`, so that a model of any size needs no memory.
    `example_batch` is what the model is called with: a tensor, a tuple or list of positional
    arguments, or a dict of keyword arguments; only shapes and types matter. `batch_size` is the
    first dimension of the batch's tensors (by default that of the first one).

    There is one operator per call of a leaf module (one that calls no other module) and per PyTorch
    function called between leaf modules. Views cost nothing and belong to the operator that made
    the tensor; constants are left out. FLOPs are those of torch.utils.flop_counter; the backward
    pass is run, and each of its operations counts for the operator that created its autograd node.
    `memory_bytes` holds, for a table lookup, the rows that are read. `saved_bytes` counts a tensor
    once, at the first operator that saves it, and no parameters. `parameter_bytes` stand at the
    first operator that uses a parameter; a parameter that is never used stands nowhere. An operator
    is `splittable` if a batch of twice the size doubles one dimension of each of its outputs, and
    nothing it reads or computes grows faster. With `boundary`, the batch's tensors and the output
    are operators too, named "input" and "output", that compute nothing.

    Raises ProfileError, in one line, if the model cannot be traced: it needs the values of tensors
    and not only their shapes, allocates real tensors, works for one batch size only, returns
    nothing that a loss can be made of, or raises.
    """
    trace, doubled, size = _traces(
        model, example_batch, batch_size, CallTrace if boundary else Trace
    )
    if not trace.operators:
        raise ProfileError("the model computes nothing from its batch and parameters")
    twice = {operator.name: operator for operator in doubled.operators}
    operators = tuple(
        _operator(traced, twice.get(traced.name), trace.gradient_bytes)
        for traced in trace.operators
    )
    return OpGraph(OpGraph.VERSION, name, size, operators).validate()


def trace_calls(
    model: torch.nn.Module, example_batch: Any, *, batch_size: int | None = None
) -> tuple[CallTrace, CallTrace, int]:
    """The calls that `profile` with a boundary sees, of the batch and of one of twice the size.

    Also returns the size of the batch. Raises ProfileError.
    """
    return _traces(model, example_batch, batch_size, CallTrace)


def _traces(
    model: Any, example_batch: Any, batch_size: int | None, kind: type[AnyTrace]
) -> tuple[AnyTrace, AnyTrace, int]:
    network = _on_meta(model)
    batch = _arguments(example_batch)
    size = _batch_size(batch, batch_size)
    shapes = ShapeCache()
    leaves = _leaves(network, batch, shapes)
    trace = _trace(network, leaves, batch, "", kind, shapes)
    twice_as_many = _resized(batch, size, 2 * size)
    doubled = _trace(network, leaves, twice_as_many, f"batch of {2 * size}: ", kind, shapes)
    return trace, doubled, size


def _operator(
    traced: TracedOperator, twice: TracedOperator | None, gradient_bytes: dict[int, int]
) -> Operator:
    return Operator(
        name=traced.name,
        kind=traced.kind,
        forward_flops=traced.forward_flops,
        backward_flops=traced.backward_flops,
        parameter_bytes=sum(parameter.nbytes for parameter in traced.parameters),
        parameter_gradient_bytes=sum(gradient_bytes.get(id(p), 0) for p in traced.parameters),
        output_bytes=traced.output_bytes,
        saved_bytes=sum(size_bytes for _, _, size_bytes in traced.saved),
        memory_bytes=traced.output_bytes + sum(r.touched_bytes for r in traced.reads.values()),
        splittable=twice is not None and _is_splittable(traced, twice),
        operands=tuple(
            Operand(read.producer.index, read.size_bytes, traced.gradient_bytes(read))
            for read in traced.reads.values()
            if read.producer is not None
        ),
    )


def _is_splittable(once: TracedOperator, twice: TracedOperator) -> bool:
    """Compares an operator with itself at twice the batch size."""
    if len(once.shapes) != len(twice.shapes) or len(once.sizes()) != len(twice.sizes()):
        return False
    for shape, doubled in zip(once.shapes, twice.shapes, strict=True):
        grown = [(a, b) for a, b in zip(shape, doubled, strict=False) if a != b]
        if len(shape) != len(doubled) or len(grown) != 1 or grown[0][1] != 2 * grown[0][0]:
            return False
    if (twice.forward_flops, twice.backward_flops) != (
        2 * once.forward_flops,
        2 * once.backward_flops,
    ):
        return False
    return all(b in (a, 2 * a) for a, b in zip(once.sizes(), twice.sizes(), strict=True))


def _on_meta(model: Any) -> Any:
    """The model on the meta device, without a copy of any real tensor."""
    if not isinstance(model, torch.nn.Module):
        with _explaining("building the model", []), torch.device("meta"):
            model = model()
        if not isinstance(model, torch.nn.Module):
            raise ProfileError(f"model: expected an nn.Module, got {type(model).__name__}")
    elif any(is_lazy(parameter) for parameter in model.parameters()):
        raise ProfileError(
            "model: it has lazy parameters without a shape; pass a callable that builds it, or "
            "run it once"
        )
    held = [*model.parameters(), *model.buffers()]
    held += [v for m in model.modules() for v in vars(m).values() if isinstance(v, torch.Tensor)]
    if all(tensor.device.type == "meta" for tensor in held):
        return model
    with _explaining("copying the model to the meta device", []):
        return copy.deepcopy(model, {id(tensor): _meta_twin(tensor) for tensor in held})


def _meta_twin(tensor: Any) -> Any:
    twin = tensor.detach().to("meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad)


def _arguments(example_batch: Any) -> Arguments:
    """Positional and keyword arguments of the model's call, on the meta device."""
    batch = tree_map_only(torch.Tensor, _meta_twin, example_batch)
    if isinstance(batch, dict):
        return (), batch
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return tuple(batch), {}
    return (batch,), {}


def _batch_size(batch: Arguments, wanted: int | None) -> int:
    first = [int(t.shape[0]) for t in tensors(batch) if t.dim()]
    if not first:
        raise ProfileError(
            "example_batch: it holds no tensor with a batch dimension; expected a tensor, a tuple "
            "of positional arguments or a dict of keyword arguments"
        )
    size = first[0] if wanted is None else wanted
    if size not in first or size < 1:
        raise ProfileError(
            f"batch_size: no tensor of the example batch has {size} as its first dimension "
            f"(found {', '.join(map(str, dict.fromkeys(first)))})"
        )
    return size


def _resized(batch: Arguments, size: int, new_size: int) -> Any:
    """The batch with every first dimension that is `size` made `new_size`."""

    def resize(tensor: Any) -> Any:
        if not tensor.dim() or tensor.shape[0] != size:
            return tensor
        made = torch.empty((new_size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        return made.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, resize, batch)


def _leaves(network: Any, batch: Arguments, shapes: ShapeCache) -> set[Any]:
    calling: list[tuple[str, Any]] = []
    with _explaining("", calling):
        return leaf_modules(network, *batch, calling, shapes)


def _trace(
    network: Any,
    leaves: set[Any],
    batch: Arguments,
    what: str,
    kind: type[AnyTrace],
    shapes: ShapeCache,
) -> AnyTrace:
    network.zero_grad(set_to_none=True)
    trace = kind(network, leaves, shapes)
    with _explaining(what, trace.modules):
        trace.run(*batch)
    return trace


@contextmanager
def _explaining(what: str, modules: list[tuple[str, Any]]) -> Iterator[None]:
    """Turns what the user's model raises into one line that names the module."""
    try:
        yield
    except Exception as error:  # a model may raise anything
        lead = what if not what or what.endswith(": ") else f"{what}: "
        if modules:
            path, module = modules[-1]
            lead += f"in {type(module).__name__} ({path or 'the model itself'}): "
        cause = _one_line(error)
        if isinstance(error, ProfileError):
            raise ProfileError(f"{lead}{error}") from None
        if "meta" in str(error).lower():
            raise ProfileError(
                f"{lead}needs the values of tensors, but a profile knows shapes only; avoid "
                f".item(), nonzero() and branches on tensors ({cause})"
            ) from error
        raise ProfileError(f"{lead}{cause}") from error


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class LoadedModel(NamedTuple):
    """What `profile` needs: a callable that builds the module, a batch, and a name."""

    build: Callable[[], Any]
    example_batch: Any
    name: str


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
    return LoadedModel(
        lambda: module.build(chosen),
        module.example_batch(batch_size, size=chosen),
        f"{name}:{chosen}",
    )


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
        if isinstance(built, tuple) and len(built) == 2:
            built, batch = built
            if batch_size is not None:
                arguments = _arguments(batch)
                batch = _as_batch(_resized(arguments, _batch_size(arguments, None), batch_size))
        else:
            batch = _batch_from(module, path, batch_size)
    if not isinstance(built, torch.nn.Module):
        raise ProfileError(
            f"model: {path}:{function}() returned {type(built).__name__}, not an nn.Module or "
            "(nn.Module, example batch)"
        )
    name = path.stem if function == "build_model" else f"{path.stem}:{function}"
    return LoadedModel(lambda: built, batch, name)


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
            arguments = _arguments(batch)
            return _as_batch(_resized(arguments, _batch_size(arguments, None), batch_size))
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
        raise ProfileError(f"model: {what} raised {_one_line(error)}") from error
