"""Traces a model into an OpGraph, on meta tensors and without allocations."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch
from torch.nn.parameter import is_lazy

from torch_topoopt.op_graph import Operand, Operator, OpGraph
from torch_topoopt.profile.model_files import DEFAULT_BATCH_SIZE, LoadedModel, load_model
from torch_topoopt.profile.repeated_layers import repeated_layers
from torch_topoopt.profile.tracing import (
    Arguments,
    CallTrace,
    ProfileError,
    ShapeCache,
    Trace,
    TracedOperator,
    bags_of,
    batch_size_of,
    feature_sections,
    leaf_modules,
    meta_twin,
    positional_and_keyword,
    resized,
    shared_parameters,
    shared_tensors,
    split_dimensions,
)
from torch_topoopt.user_functions import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch_topoopt.profile.tracing import Bags, Region

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "LoadedModel",
    "ProfileError",
    "TracedCalls",
    "explaining",
    "exporting",
    "load_model",
    "profile",
    "trace_calls",
]


class _NeedsValuesError(ProfileError):
    """The model's control flow depends on values of tensors."""


AnyTrace = TypeVar("AnyTrace", bound=Trace)
Traced = TypeVar("Traced")


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
    first dimension of the batch's tensors (by default of the offsets of bags, else of the first
    tensor).

    There is one operator per call of a leaf module (one that calls no other module) and per PyTorch
    function called between leaf modules. Views cost nothing and belong to the operator that made
    the tensor; constants are left out. FLOPs are those of torch.utils.flop_counter; the backward
    pass is run, and each of its operations counts for the operator that created its autograd node.
    `memory_bytes` holds, for a table lookup, the rows that are read. `saved_bytes` counts a tensor
    once, at the first operator that saves it, and no parameters. `parameter_bytes` stand at the
    first operator that uses a parameter; a parameter that is never used stands nowhere. An operator
    is `splittable` if a batch of twice the size doubles one dimension of each of its outputs, and
    nothing it reads or computes grows faster; its `splits` are those that tracing finds
    (`tracing.split_dimensions`), without "rows" of what only a loss can read: it needs the sum.
    With `boundary`, the batch's tensors and the output are operators too, named "input" and
    "output", that compute nothing.

    Raises ProfileError, in one line, if the model cannot be traced: it needs the values of tensors
    and not only their shapes, allocates real tensors, works for one batch size only, returns
    nothing that a loss can be made of, or raises.
    """
    with _without_collections():
        kind = CallTrace if boundary else Trace
        network, batch = on_meta(model), positional_and_keyword(example_batch)
        trace, doubled, size = _traces(network, batch, batch_size, kind)
    if not trace.operators:
        raise ProfileError("the model computes nothing from its batch and parameters")
    twice = {operator.name: operator for operator in doubled.operators}
    shared = shared_parameters(trace.operators)
    tensors = shared_tensors(trace.operators)
    sections = feature_sections(trace.operators)
    operators = tuple(
        _operator(traced, twice.get(traced.name), trace.gradient_bytes, shared, tensors, sections)
        for traced in trace.operators
    )
    operators = _whole_results(operators)
    layers = repeated_layers(operators, trace.spans)
    graph = OpGraph(OpGraph.VERSION, name, size, operators, layers)
    return replace(graph, number_format=_number_format(network)).validate()


def _number_format(network: torch.nn.Module) -> Literal["fp32", "bf16"]:
    """The format of most parameters."""
    sizes: Counter[bool] = Counter()
    for parameter in network.parameters():
        sizes[parameter.is_floating_point() and parameter.element_size() == 2] += parameter.numel()
    return "bf16" if sizes[True] > sizes[False] else "fp32"


class TracedCalls(NamedTuple):
    """The calls that `profile` with a boundary sees, of a batch and of one of twice the size.

    `exporting`: the model's control flow depends on values except under the flags of `exporting`,
    so they were set. It has to run under them, too.
    """

    once: CallTrace
    twice: CallTrace
    size: int
    exporting: bool


def trace_calls(model: torch.nn.Module, example_batch: Any) -> TracedCalls:
    """The calls of the model. Raises ProfileError if it cannot be traced."""
    batch = positional_and_keyword(example_batch)
    once, twice, size = _traces(on_meta(model), batch, None, CallTrace)
    return TracedCalls(once, twice, size, once.exporting)


def trace_modules(model: torch.nn.Module, example_batch: Any, paths: Sequence[str]) -> CallTrace:
    """The calls of the modules at `paths`, and of functions between them. Raises ProfileError."""
    network = on_meta(model)
    batch = positional_and_keyword(example_batch)
    leaves = {network.get_submodule(path) for path in paths}
    with _without_collections():
        return _knowing_no_values(
            lambda: _trace(network, leaves, batch, "", CallTrace, ShapeCache())
        )


def result_on_meta(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """The result of `module`, which is on the meta device, for arguments that are, too."""

    def call() -> Any:
        with explaining("", []), torch.no_grad(), torch.device("meta"):
            return module(*args, **kwargs)

    return _knowing_no_values(call)


def _traces(
    network: Any, batch: Arguments, batch_size: int | None, kind: type[AnyTrace]
) -> tuple[AnyTrace, AnyTrace, int]:
    bags = bags_of(network, batch)
    size = batch_size_of(batch, batch_size, bags)
    return *_knowing_no_values(lambda: _once_and_twice(network, batch, size, kind, bags)), size


def own_batch_size(model: Any, example_batch: Any) -> int:
    """The number of samples of `example_batch`, for `model` as `profile` takes it."""
    network = on_meta(model)
    batch = positional_and_keyword(example_batch)
    return batch_size_of(batch, None, bags_of(network, batch))


def trace_batches(
    model: Any, example_batch: Any, sizes: Sequence[int], kind: type[AnyTrace]
) -> list[AnyTrace]:
    """A trace of the model, as `profile` makes it, for each batch size. Raises ProfileError."""
    network = on_meta(model)
    batch = positional_and_keyword(example_batch)
    bags = bags_of(network, batch)
    own = batch_size_of(batch, None, bags)

    def trace_all() -> list[AnyTrace]:
        shapes = ShapeCache()
        leaves = _leaves(network, batch, shapes)
        return [
            _trace(
                network,
                leaves,
                resized(batch, own, size, bags),
                f"batch of {size}: ",
                kind,
                shapes,
            )
            for size in sizes
        ]

    return _knowing_no_values(trace_all)


def _knowing_no_values(trace: Callable[[], Traced]) -> Traced:
    """`trace()`, if need be under the flags that torch.export sets for a model."""
    try:
        return trace()
    except _NeedsValuesError as error:
        with exporting():
            try:
                return trace()
            except ProfileError:
                raise error from None


def _once_and_twice(
    network: Any, batch: Arguments, size: int, kind: type[AnyTrace], bags: Bags
) -> tuple[AnyTrace, AnyTrace]:
    shapes = ShapeCache()
    leaves = _leaves(network, batch, shapes)
    trace = _trace(network, leaves, batch, "", kind, shapes)
    twice_as_many = resized(batch, size, 2 * size, bags)
    doubled = _trace(network, leaves, twice_as_many, f"batch of {2 * size}: ", kind, shapes)
    return trace, doubled


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pauses the garbage collector, which costs a third of the time of a large model's trace.

    Nearly all objects of a trace live until its end.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def exporting() -> Iterator[None]:
    """Sets the flags by which torch.export marks a model's values as unknown.

    Libraries keep a way without them for that case, such as a mask that is applied unseen.
    """
    flags = ("_is_compiling_flag", "_is_exporting_flag")
    before = {flag: getattr(torch.compiler, flag) for flag in flags}
    try:
        for flag in flags:
            setattr(torch.compiler, flag, True)
        yield
    finally:
        for flag, value in before.items():
            setattr(torch.compiler, flag, value)


def _whole_results(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Without "rows" of operators that none reads: their partial sums would never be added."""
    read = {operand.producer for operator in operators for operand in operator.operands}
    return tuple(
        operator
        if i in read
        else replace(operator, splits=tuple(s for s in operator.splits if s.dimension != "rows"))
        for i, operator in enumerate(operators)
    )


def _operator(
    traced: TracedOperator,
    twice: TracedOperator | None,
    gradient_bytes: dict[int, int],
    shared: frozenset[int],
    tensors: dict[tuple[int, Region], int],
    sections: dict[int, tuple[int, ...]],
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
            Operand(
                read.producer.index,
                read.size_bytes,
                traced.gradient_bytes(read),
                tensors.get((read.producer.index, region), 0),
            )
            for region, read in traced.reads.items()
            if read.producer is not None
        ),
        splits=split_dimensions(traced, twice, shared, sections),
        output_dimensions=len(traced.shapes[0]) if len(traced.shapes) == 1 else 0,
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


def on_meta(model: Any) -> Any:
    """The model on the meta device, without a copy of any real tensor."""
    if not isinstance(model, torch.nn.Module):
        with explaining("building the model", []), torch.device("meta"):
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
    with explaining("copying the model to the meta device", []):
        return copy.deepcopy(model, {id(tensor): meta_twin(tensor) for tensor in held})


def _leaves(network: Any, batch: Arguments, shapes: ShapeCache) -> set[Any]:
    calling: list[tuple[str, Any]] = []
    with explaining("", calling):
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
    with explaining(what, trace.modules):
        trace.run(*batch)
    return trace


@contextmanager
def explaining(what: str, modules: list[tuple[str, Any]]) -> Iterator[None]:
    """Turns what the user's model raises into one line that names the module."""
    try:
        yield
    except Exception as error:  # a model may raise anything
        lead = what if not what or what.endswith(": ") else f"{what}: "
        if modules:
            path, module = modules[-1]
            lead += f"in {type(module).__name__} ({path or 'the model itself'}): "
        cause = one_line(error)
        if isinstance(error, ProfileError):
            raise ProfileError(f"{lead}{error}") from None
        if "meta" in str(error).lower():
            raise _NeedsValuesError(
                f"{lead}needs the values of tensors, but a profile knows shapes only; avoid "
                f".item(), nonzero() and branches on tensors ({cause})"
            ) from error
        raise ProfileError(f"{lead}{cause}") from error
