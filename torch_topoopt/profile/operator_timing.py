"""Measures the operators of a model one by one on this machine's device, into a CostTable.

A trace on meta tensors has the arguments of every operator; then each runs alone, forward and
backward, with real tensors of those shapes. So a model may exceed the memory if each operator fits,
and equal operators, such as those of repeated layers, run once.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from torch_topoopt.profile.cost_table import CostPoint, CostTable, OperatorCost
from torch_topoopt.profile.profiling import trace_batches
from torch_topoopt.profile.tracing import ProfileError, Trace, TracedOperator, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAST_RUNS = 3
LEAST_S = 0.05  # of all runs of one operator, unless LEAST_RUNS take longer
_STARTS = 10
_MOST_OTHER_BYTES = 2**28


class Timing(NamedTuple):
    """A CostTable, and the reasons for missing operators."""

    table: CostTable
    left_out: dict[str, str]


def measure_operators(
    model: Any,
    example_batch: Any,
    samples: Sequence[int],
    *,
    device: str,
    memory_bytes: int,
    limit_s: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[float, str], None] = lambda part, name: None,
) -> Timing:
    """Measures every operator of `model` for each batch size of `samples`, in ascending order.

    `model` and `example_batch` are as for `profiling.profile`. An operator is left out if it would
    take more than `memory_bytes`, if it is one that a trace cannot call again (of a custom autograd
    function), if it raises, or if `limit_s` have passed. Raises ProfileError if that leaves none.
    """
    sizes = sorted(set(samples))
    traces = trace_batches(model, example_batch, sizes, ReplayTrace)
    by_name = [{op.name: op for op in trace.operators} for trace in traces]
    everything = sum(replay.size_bytes() for replay in traces[-1].replays.values()) // 4
    bench = Bench(device, clock, min(everything, memory_bytes // 4))
    end = clock() + limit_s
    costs: list[OperatorCost] = []
    left_out: dict[str, str] = {}
    known: dict[Any, tuple[CostPoint, ...]] = {}
    names = list(by_name[-1])
    for i, name in enumerate(names):
        on_progress(i / len(names), name)
        replays = [traces[k].replays.get(name) for k in range(len(sizes)) if name in by_name[k]]
        calls = [replay for replay in replays if replay is not None]
        if len(calls) < len(sizes):
            left_out[name] = "it cannot be called alone"
            continue
        form = tuple(call.form() for call in calls)
        if form not in known:
            needed = max(call.size_bytes() for call in calls)
            if needed > memory_bytes:
                left_out[name] = f"it needs {needed} bytes of memory, of {memory_bytes}"
                continue
            if clock() >= end:
                left_out[name] = f"{limit_s:g} s have passed"
                continue
            try:
                times = [call.run(bench) for call in calls]
            except Exception as error:  # a model may call anything
                left_out[name] = f"it raised {type(error).__name__}: {error}".splitlines()[0]
                continue
            known[form] = tuple(
                CostPoint(size, *seconds) for size, seconds in zip(sizes, times, strict=True)
            )
        costs.append(OperatorCost(name, known[form]))
    if not costs:
        reason = next(iter(left_out.values()), "it has none")
        raise ProfileError(f"model: none of its operators could be measured: {reason}")
    table = CostTable(CostTable.VERSION, device_name(device), tuple(costs)).validate()
    return Timing(table, left_out)


def device_name(device: str) -> str:
    """A description of the measuring machine."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    from torch_topoopt.profile.cpu_roofline import processor_name

    return f"{processor_name()}, {torch.get_num_threads()} threads"


class Bench:
    """The place where operators are measured: a device, a clock, the rest of a training step.

    `start_s` is what starting autograd takes, which a step does once and not for every operator.
    """

    def __init__(self, device: str, clock: Callable[[], float], other_bytes: int = 0) -> None:
        """`other_bytes` is what the rest of the step has in memory."""
        self.device, self.clock = device, clock
        self._other = torch.zeros(min(other_bytes, _MOST_OTHER_BYTES) // 4, device=device)
        self.start_s = min(self._start() for _ in range(_STARTS))

    def do_other_work(self) -> None:
        """Goes through other memory, as the rest of a step does between two uses of a tensor.

        So what an operator reads is in a cache only if it is there in a step.
        """
        if len(self._other):
            self._other.add_(1.0)

    def _start(self) -> float:
        source = torch.ones(1, device=self.device, requires_grad=True)
        result = source.view_as(source)
        self.do_other_work()
        gradient = torch.ones_like(result)
        _wait(self.device)
        begin = self.clock()
        torch.autograd.grad(result, source, gradient)
        _wait(self.device)
        return self.clock() - begin


@dataclass
class Replay:
    """A call of a leaf module or of a function, with its arguments on the meta device."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kind: str
    flops: int

    def _held(self) -> list[Any]:
        held = list(tensors((self.args, self.kwargs)))
        if isinstance(self.function, torch.nn.Module):
            held += [*self.function.parameters(), *self.function.buffers()]
        return held

    def form(self) -> Any:
        """The key of equal calls; their other arguments show in kind and FLOPs."""
        shapes = [(tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in self._held()]
        said = [repr(value) for value in (*self.args, *self.kwargs.items()) if _is_plain(value)]
        what = repr(self.function) if isinstance(self.function, torch.nn.Module) else self.kind
        return what, self.flops, tuple(shapes), tuple(said)

    def size_bytes(self) -> int:
        """Roughly what a run needs: inputs and parameters, their gradients, and the results."""
        return 4 * sum(int(tensor.untyped_storage().nbytes()) for tensor in self._held())

    def run(self, bench: Bench) -> tuple[float, float]:
        """Seconds of the forward and the backward pass: the fastest run of each after a first one.

        The fastest counts, because other load can only add time.
        """
        device, clock = bench.device, bench.clock
        made: dict[int, Any] = {}
        rows = getattr(self.function, "num_embeddings", 1)

        def real(tensor: Any) -> Any:
            if id(tensor) not in made:
                made[id(tensor)] = _real(tensor, device, rows)
            return made[id(tensor)]

        function = self.function
        if isinstance(function, torch.nn.Module):
            held = {id(t): real(t) for t in (*function.parameters(), *function.buffers())}
            function = copy.deepcopy(function, held)
        args, kwargs = tree_map_only(torch.Tensor, real, (self.args, self.kwargs))
        sources = [tensor for tensor in made.values() if tensor.requires_grad]
        times: list[tuple[float, float]] = []
        begin = clock()
        while len(times) <= LEAST_RUNS or clock() - begin < LEAST_S:
            times.append(_one_run(function, args, kwargs, sources, bench))
        forward_s, backward_s = zip(*times[1:], strict=True)
        return min(forward_s), max(0.0, min(backward_s) - bench.start_s)


def _one_run(
    function: Any, args: Any, kwargs: Any, sources: list[Any], bench: Bench
) -> tuple[float, float]:
    device, clock = bench.device, bench.clock
    bench.do_other_work()

    # Copies, because an operator in place may not write into what gradients are taken of.
    def copied(tensor: Any) -> Any:
        return tensor.clone() if tensor.requires_grad else tensor

    args, kwargs = tree_map_only(torch.Tensor, copied, (args, kwargs))
    _wait(device)
    start = clock()
    output = function(*args, **kwargs)
    _wait(device)
    middle = clock()
    results = [tensor for tensor in tensors(output) if tensor.requires_grad]
    if not sources or not results:
        return middle - start, 0.0
    bench.do_other_work()
    gradients = [torch.ones_like(tensor) for tensor in results]
    _wait(device)
    again = clock()
    torch.autograd.grad(results, sources, gradients, allow_unused=True)
    _wait(device)
    return middle - start, clock() - again


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _real(tensor: Any, device: str, rows: int) -> Any:
    """A tensor like one on the meta device; indices are distributed over the rows of the table."""
    strides = tensor.stride()
    # Elements of an expanded dimension are one in memory, which is written once.
    shape = [1 if stride == 0 else n for n, stride in zip(tensor.shape, strides, strict=True)]
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=device)
    if tensor.is_floating_point():
        made.normal_(std=0.02)
    elif tensor.dtype in (torch.int64, torch.int32):
        made.random_(0, max(rows, 1))
    else:
        made.fill_(1)
    made = made.expand(tensor.shape)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _is_plain(value: Any) -> bool:
    return not any(True for _ in tensors(value))


class ReplayTrace(Trace):
    """A Trace that keeps, in `replays` by operator name, how each operator was called."""

    def __init__(self, model: Any, leaves: set[Any], *rest: Any) -> None:
        super().__init__(model, leaves, *rest)
        self.replays: dict[str, Replay] = {}
        self._leaf_call: Any = None  # (what, args, kwargs)
        self._function_call: Any = None
        self._given: Any = None  # of the operator that is being traced

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See Trace.run."""
        hooks = [
            leaf.register_forward_pre_hook(self._see_leaf, with_kwargs=True)
            for leaf in self._leaves
        ]
        try:
            super().run(args, kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    def _see_leaf(self, leaf: Any, args: Any, kwargs: Any) -> None:
        if self._operator is None and not self._backward:
            self._leaf_call = (leaf, args, kwargs)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._operator is None and not self._backward:
            self._function_call = (function, args, kwargs)
        return super().call(function, args, kwargs)

    def _begin(self, name: str, kind: str) -> None:
        # record this call first, because PyTorch's inner calls are recorded, too
        given = self._function_call if self._leaf is None else self._leaf_call
        super()._begin(name, kind)
        self._given, self._function_call = given, None

    def _end(self, output: Any) -> None:
        given, before = self._given, len(self.operators)
        super()._end(output)
        if given is not None and len(self.operators) > before:
            operator: TracedOperator = self.operators[-1]
            function, args, kwargs = given
            self.replays[operator.name] = Replay(
                function, args, kwargs, operator.kind, operator.forward_flops
            )
