"""Records the operations of one forward and backward pass, on meta tensors without allocations.

Three observers of PyTorch work together. Module hooks and a `TorchFunctionMode` delimit an
operator: a leaf module call, or a function called between leaf modules. A `TorchDispatchMode` below
autograd sees every ATen operation with its tensors. Two identities connect them:

- A tensor belongs to the operator that last wrote its *storage*. Views, in-place updates and
  slices therefore need no rules of their own.
- Autograd numbers its nodes in the order of their creation. The nodes that an operator creates
  in the forward pass are a range of numbers, and whatever runs under one of them in the backward
  pass is that operator's backward work.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torch_topoopt.profile.tracing.devices import as_on_cpu
from torch_topoopt.profile.tracing.experts import experts_of
from torch_topoopt.profile.tracing.heads import heads_of
from torch_topoopt.profile.tracing.records import (
    ATTENTION,
    CAUSAL_ATTENTION,
    ProfileError,
    Read,
    Region,
    Span,
    TracedOperator,
    check_tensor,
    flops_of,
    is_part,
    multiplies_stacks,
    mutated_by,
    only_uses_shape,
    region_of,
    storage_of,
    tensors,
)
from torch_topoopt.profile.tracing.shape_cache import ShapeCache
from torch_topoopt.profile.tracing.split_dimensions import has_elementwise_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

aten = torch.ops.aten

# a table lookup reads only the selected rows: operation -> (table, indices)
_LOOKUPS = {
    aten.embedding.default: (0, 1),
    aten._embedding_bag.default: (0, 1),
    aten._embedding_bag_forward_only.default: (0, 1),
}
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_RMS_NORM = torch.nn.functional.rms_norm
_OVERWRITES = {aten.copy_, aten.fill_, aten.zero_, aten.normal_, aten.uniform_, aten.bernoulli_}


class Trace(TorchDispatchMode):  # type: ignore[misc]
    """One recorded iteration of `model`, all of it on the meta device.

    The model takes its tensors for those of a CPU, as when it runs.
    `leaves` are the modules whose calls are operators; traces of one model may share `shapes`.
    After `run()`, `operators` holds what was executed, in order, producers first, and `spans` which
    of them ran inside each call of a module, inner calls first; while an exception leaves `run()`,
    `modules` names the modules that were being called, outermost first.
    """

    def __init__(self, model: Any, leaves: set[Any], shapes: ShapeCache | None = None) -> None:
        super().__init__()
        self._shapes = shapes or ShapeCache()
        self.operators: list[TracedOperator] = []
        self.modules: list[tuple[str, Any]] = []
        self.spans: list[Span] = []
        self.gradient_bytes: dict[int, int] = {}  # by a parameter's id; none: no gradient arrived
        self._model = model
        self._leaves = leaves
        self._backward = False
        self._in_fused = False
        self._kept_numbers = 0  # tensors of numbers that fused kernels keep, counted down
        self._operator: TracedOperator | None = None
        self._leaf: Any = None
        self._names: dict[str, int] = {}
        self._begun: list[int] = []  # operators there were when each of `modules` was entered
        self._producers: dict[int, TracedOperator] = {}
        self._alive: dict[int, Any] = {}  # storages, so that no identity is used twice
        self._batch: set[int] = set()
        self._parameters = {storage_of(p): p for p in model.parameters()}
        self._buffers = {storage_of(b) for b in model.buffers()}
        self._used_parameters: set[int] = set()
        self._saved: set[Region] = set()
        self._owners: dict[int, TracedOperator | None] = {}
        self.recomputes = False
        self.recomputed: set[str] = set()  # paths of modules that are called in the backward pass
        self._claimed = 0
        self._pending: list[range] = []  # nodes made between operators: by autograd.Function
        self._function_node: int | None = None
        self._atoms: set[Any] = set()  # operations that are not composite

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs forward, then backward from the sum of all differentiable outputs.

        Raises ProfileError if no output is differentiable or a tensor is not on the meta device,
        and whatever the model raises.
        """
        self._claimed = torch.autograd._get_sequence_nr()
        for tensor in tensors((args, kwargs)):
            self._keep(tensor)
            self._batch.add(storage_of(tensor))
        self._take_batch(tensors((args, kwargs)))
        with ExitStack() as stack:
            stack.enter_context(torch.device("meta"))
            for path, module in self._model.named_modules():
                stack.callback(self._watch(path, module).remove)
                # before the hooks of others, whose calls are not those of the module
                stack.callback(module.register_forward_hook(self._leave, prepend=True).remove)
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    stack.callback(parameter.register_hook(self._measure(parameter)).remove)
            functional = torch.nn.functional  # leaf modules call it where no mode sees it
            for function in (_ATTENTION, _RMS_NORM):
                stack.callback(setattr, functional, function.__name__, function)
                setattr(functional, function.__name__, partial(self._fused_of_leaf, function))
            saving = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
            with self, _Functions(self), saving:
                output = self._model(*args, **kwargs)
            self._take_output(output)
            outputs = [t for t in tensors(output) if t.requires_grad]
            if not outputs:
                raise ProfileError(
                    "the output is not reducible to a loss: it holds no floating-point tensor that "
                    "depends on a trainable parameter"
                )
            self._mark_reached(outputs)
            gradients = [torch.ones_like(tensor) for tensor in outputs]
            self._claimed = torch.autograd._get_sequence_nr()
            self._backward = True
            with self:
                torch.autograd.backward(outputs, gradients)

    def _take_batch(self, batch: Iterable[Any]) -> None:
        """Records the batch's tensors before the model runs."""

    def _take_output(self, output: Any) -> None:
        """Records the model's output."""

    def _watch(self, path: str, module: Any) -> Any:
        def enter(module: Any, _: Any) -> None:
            if self._backward:  # a checkpointed part is computed again
                self.recomputed.add(path)
                return
            self.modules.append((path, module))
            self._begun.append(len(self.operators))
            if self._operator is None and module in self._leaves:
                self._leaf = module
                self._begin(path or type(module).__name__, type(module).__name__)

        return module.register_forward_pre_hook(enter)

    def _leave(self, module: Any, _: Any, output: Any) -> None:
        if self._backward:
            return
        while True:
            path, left = self.modules.pop()
            begin = self._begun.pop()
            if left is self._leaf:
                self._leaf = None
                self._end(output if left is module else ())
            if left is module:  # others were left by an exception that the model caught
                self.spans.append(Span(path, type(module).__name__, begin, len(self.operators)))
                return

    def _measure(self, parameter: Any) -> Callable[[Any], None]:
        # A hook, and not `parameter.grad`: a copy of a sparse gradient on meta forgets its rows.
        def measure(gradient: Any) -> None:
            if gradient.layout is torch.sparse_coo:
                size_bytes = gradient._indices().nbytes + gradient._values().nbytes
            else:
                size_bytes = gradient.nbytes
            self.gradient_bytes[id(parameter)] = size_bytes

        return measure

    def _mark_reached(self, outputs: list[Any]) -> None:
        """Marks the operators that the backward pass from `outputs` runs through."""
        stack = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
        seen = set(stack)
        while stack:
            node = stack.pop()
            operator = self._owners.get(node._sequence_nr())
            if operator is not None:
                operator.reached = True
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    stack.append(following)
        for operator in self.operators:  # the parts of an autograd.Function
            if operator.function_node is not None:
                owner = self._owners.get(operator.function_node)
                operator.reached |= owner is not None and owner.reached

    # Operators: from _begin to _end.

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a function of PyTorch; between leaf modules it is an operator of its own."""
        if isinstance(function, partial) and function.func == self._fused_of_leaf:
            function = function.args[0]  # rms_norm passes on what its name stands for
        if self._operator is not None or self._backward:
            return function(*args, **kwargs)
        kind = getattr(function, "__name__", type(function).__name__)
        if function in (_ATTENTION, _RMS_NORM):
            return self._as_operator(kind, lambda: self._fused(function, args, kwargs))
        return self._as_operator(kind, lambda: function(*args, **kwargs))

    def _fused_of_leaf(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._operator is None or self._backward or self._in_fused:
            return function(*args, **kwargs)
        return self._fused(function, args, kwargs)

    def _fused(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._attend(args, kwargs) if function is _ATTENTION else self._norm(args, kwargs)

    def _attend(self, args: Any, kwargs: Any) -> Any:
        """Scaled dot product attention, which keeps what fused kernels do.

        On meta tensors PyTorch computes it in steps and keeps the matrix of all weights. A fused
        kernel keeps queries, keys, values, a logarithm for each query and its output; that is laid
        out as the next layer reads it, which keeps it, too, so it is not counted here.
        """
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        operands = [given[name] for name in names[:3]]
        mask = given.get("attn_mask")
        assert self._operator is not None
        causal = given.get("is_causal") or (mask is not None and self._masks_the_future())
        if causal and self._operator.kind == ATTENTION:
            self._operator.kind = CAUSAL_ATTENTION
        in_steps = operands[0].dtype == torch.float64 or (mask is not None and mask.requires_grad)
        if in_steps or not any(tensor.requires_grad for tensor in operands):
            return _ATTENTION(*args, **kwargs)
        output = self._keeping(operands, lambda: _ATTENTION(*args, **kwargs))
        self._keep_numbers(output.numel() // output.shape[-1])
        return output

    def _norm(self, args: Any, kwargs: Any) -> Any:
        """RMS norm, which PyTorch computes in steps on meta tensors.

        A fused kernel keeps its input, and the norm of each row of it.
        """
        x = args[0] if args else kwargs["input"]
        if not x.requires_grad:
            return _RMS_NORM(*args, **kwargs)
        output = self._keeping([x], lambda: _RMS_NORM(*args, **kwargs))
        widths = args[1] if len(args) > 1 else kwargs["normalized_shape"]
        self._keep_numbers(x.numel() // math.prod(widths))
        return output

    def _keeping(self, kept: list[Any], action: Callable[[], Any]) -> Any:
        """`action()`, of which autograd keeps the tensors `kept` and no others."""
        self._in_fused = True
        try:
            output = action()
        finally:
            self._in_fused = False
        for tensor in kept:
            self._pack(tensor)
        return output

    def _keep_numbers(self, count: int) -> None:
        """Counts that many single-precision numbers as kept by the operator."""
        assert self._operator is not None
        self._kept_numbers -= 1  # no storage has a number below 0
        self._operator.saved.add((self._kept_numbers, 0, count * torch.float32.itemsize))

    def _masks_the_future(self) -> bool:
        """Whether the module that calls attention says so, as those of transformers do.

        They give no mask to a kernel that can skip half of the square; a profile, which cannot
        read masks, makes one.
        """
        return bool(self.modules) and getattr(self.modules[-1][1], "is_causal", False) is True

    def _as_operator(self, kind: str, action: Callable[[], Any]) -> Any:
        kind = kind.strip("_")
        path = self.modules[-1][0] if self.modules else ""
        self._begin(f"{path}.{kind}" if path else kind, kind)
        try:
            output = action()
        except BaseException:
            self._operator = None  # the model may catch it and go on
            raise
        self._end(output)
        return output

    def _begin(self, name: str, kind: str) -> None:
        now = torch.autograd._get_sequence_nr()
        if now > self._claimed:
            self._pending.append(range(self._claimed, now))
        if torch.is_grad_enabled():
            self._function_node = None
        elif now > self._claimed:  # autograd.Function makes its node, then runs without gradients
            self._function_node = now - 1
        self._operator = TracedOperator(
            name, kind, module=self._leaf, first_node=now, function_node=self._function_node
        )

    def _end(self, output: Any) -> None:
        operator = self._operator
        assert operator is not None
        self._operator = None
        self._claimed = torch.autograd._get_sequence_nr()
        nodes = range(operator.first_node, self._claimed)
        if not self._matters(operator):
            self._fold(operator, nodes, output)
            return
        for made in (*self._pending, nodes):
            self._owners.update(dict.fromkeys(made, operator))
        self._pending.clear()
        self._describe_output(operator, output)
        operator.heads = heads_of(operator)
        operator.experts = experts_of(operator, elementwise=has_elementwise_kind(operator))
        operator.saved -= self._saved
        self._saved |= operator.saved
        self._used_parameters.update(storage_of(p) for p in operator.parameters)
        count = self._names[operator.name] = self._names.get(operator.name, 0) + 1
        if count > 1:
            operator.name = f"{operator.name}#{count}"
        operator.index = len(self.operators)
        self.operators.append(operator)

    def _fold(self, operator: TracedOperator, nodes: range, output: Any) -> None:
        """Drops an operator that makes only views, or constants: there is nothing to place.

        Its autograd nodes go to the operator that made the viewed tensor.
        """
        for storage in operator.writes:
            self._producers.pop(storage, None)
        makers = [self._producers.get(storage_of(tensor)) for tensor in tensors(output)]
        maker = max((m for m in makers if m), key=lambda m: m.index, default=None)
        self._owners.update(dict.fromkeys(nodes, maker))

    def _matters(self, operator: TracedOperator) -> bool:
        if not operator.works:
            return False
        if operator.forward_flops:
            return True
        return any(
            read.producer is not None or storage in self._batch or storage in self._parameters
            for (storage, _, _), read in operator.reads.items()
        )

    def _describe_output(self, operator: TracedOperator, output: Any) -> None:
        made = [t for t in tensors(output) if self._producers.get(storage_of(t)) is operator]
        if not made:  # an in-place function that returns nothing, such as `x[i] = y`
            made = list(operator.writes.values())
        regions = {region_of(tensor): tuple(tensor.shape) for tensor in made}
        operator.output_bytes = sum(size_bytes for _, _, size_bytes in regions)
        operator.shapes = tuple(regions.values())
        operator.strides = made[0].stride() if made else ()

    # ATen operations.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in self._atoms:
            with self:  # as FlopCounterMode does: a composite operation is counted by its parts
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._atoms.add(func)
        if self._backward:
            result = self._shapes.call(func, args, kwargs)
            self._count_backward(func, flops_of(func, args, kwargs, result))
            return result
        if self._operator is not None:
            return self._record(self._operator, func, args, kwargs)
        return self._as_operator(
            func._overloadpacket.__name__, lambda: self._record_open(func, args, kwargs)
        )

    def _record_open(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        assert self._operator is not None
        return self._record(self._operator, func, args, kwargs)

    def _record(
        self, operator: TracedOperator, func: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        inputs = tensors((args, kwargs))
        for tensor in inputs:
            self._keep(tensor, f"{func._overloadpacket} reads")
        differentiable = [self._is_differentiable(operator, tensor) for tensor in inputs]
        mutated = mutated_by(func, args, kwargs)
        result = self._shapes.call(func, args, kwargs)
        outputs = tensors(result)
        for tensor in outputs:
            self._keep(tensor, f"{func._overloadpacket} makes")
        sources = {storage_of(tensor) for tensor in inputs}
        if not mutated and outputs and all(storage_of(tensor) in sources for tensor in outputs):
            return result  # a view
        operator.works = True
        operator.forward_flops += flops_of(func, args, kwargs, result)
        if multiplies_stacks(func):
            for tensor in inputs:
                if tensor.dim() == 3 and storage_of(tensor) in self._parameters:
                    operator.stacks[storage_of(tensor)] = tuple(tensor.shape)
        if not only_uses_shape(func):
            for tensor, flows in zip(inputs, differentiable, strict=True):
                self._read(operator, func, args, tensor, flows, mutated)
        for tensor in (*mutated, *(t for t in outputs if storage_of(t) not in sources)):
            self._write(operator, tensor)
        return result

    @staticmethod
    def _is_differentiable(operator: TracedOperator, tensor: Any) -> bool:
        inside_function = operator.function_node is not None and tensor.is_floating_point()
        return bool(tensor.requires_grad) or inside_function

    def _read(
        self,
        operator: TracedOperator,
        func: Any,
        args: Any,
        tensor: Any,
        differentiable: bool,
        mutated: list[Any],
    ) -> None:
        storage, offset, size_bytes = region_of(tensor)
        if any(tensor is other for other in mutated):
            if is_part(tensor):  # the result is the whole tensor with a part replaced
                offset, size_bytes = 0, int(tensor.untyped_storage().nbytes())
            elif func._overloadpacket in _OVERWRITES:
                return
        producer = self._producers.get(storage)
        if producer is operator:
            return
        if storage in self._parameters and storage not in self._used_parameters:
            parameter = self._parameters[storage]
            if not any(parameter is other for other in operator.parameters):
                operator.parameters.append(parameter)
        touched_bytes = size_bytes
        if func in _LOOKUPS and tensor is args[_LOOKUPS[func][0]]:
            rows = args[_LOOKUPS[func][1]].numel()
            touched_bytes = rows * tensor.shape[-1] * tensor.element_size()
        region = (storage, offset, size_bytes)
        read = operator.reads.get(region)
        if read is None:
            geometry = tuple(tensor.shape), tensor.stride()
            read = Read(producer, size_bytes, touched_bytes, False, *geometry)
            operator.reads[region] = read
        read.differentiable |= differentiable

    def _write(self, operator: TracedOperator, tensor: Any) -> None:
        storage = storage_of(tensor)
        if storage not in self._parameters and storage not in self._buffers:
            self._producers[storage] = operator
            operator.writes[storage] = tensor

    def _keep(self, tensor: Any, what: str = "the batch holds") -> None:
        """Checks that `tensor` is one this trace can follow, and pins its storage."""
        check_tensor(tensor, what)
        self._alive[storage_of(tensor)] = tensor.untyped_storage()

    def _pack(self, tensor: Any) -> Any:
        """Called by autograd with each tensor that it keeps for the backward pass."""
        if tensor.layout is torch.strided and not self._in_fused:
            storage = storage_of(tensor)
            if storage not in self._parameters and storage not in self._buffers:
                region = region_of(tensor)
                if self._operator is not None:
                    self._operator.saved.add(region)
                elif self.operators and region not in self._saved:  # autograd.Function
                    self.operators[-1].saved.add(region)
                    self._saved.add(region)
        return tensor

    def _count_backward(self, func: Any, flops: int) -> None:
        node = torch._C._current_autograd_node()
        operator = self._owners.get(node._sequence_nr()) if node is not None else None
        now = torch.autograd._get_sequence_nr()
        if now > self._claimed:  # a checkpointed part is computed again
            self.recomputes |= torch.is_grad_enabled()
            self._owners.update(dict.fromkeys(range(self._claimed, now), operator))
            self._claimed = now
        if operator is not None:
            operator.backward_flops += flops
        elif flops:
            raise ProfileError(f"{func} in the backward pass belongs to no operator of the forward")


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Shows each outermost call of a PyTorch function to a trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._trace.call(*as_on_cpu(func, args, kwargs or {}))
