"""OpGraph: what one training iteration computes and communicates, independent of any cluster.

One `Operator` is the unit that a strategy places: a leaf module of the model, or a function called
between modules. It stands for its forward and its backward pass. All figures are for the whole
batch of `batch_size` samples on one accelerator; a strategy that splits the batch over k servers
divides FLOPs and activation bytes by k, and leaves parameter bytes alone. An operator's `splits`
list its other dimensions that may be split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator reads from an earlier one.

    `size_bytes` is its activation size; the backward pass returns `gradient_bytes` to the producer
    (0 where no gradient flows, e.g. integer indices). Operands of one producer with the same
    `tensor` above 0 are one tensor: a server receives it once for all its operators with the same
    split. 0: no other operator reads it.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"tensor"})

    producer: int
    size_bytes: int
    gradient_bytes: int
    tensor: int = 0


SplitDimension = Literal["columns", "rows", "experts", "attribute"]


@dataclass(frozen=True)
class Split:
    """A dimension other than the samples along which an operator may be split.

    - "columns": features of the output. Every shard holds its part of the parameters and computes
      its part of the output.
    - "rows": the dimension of a sum, such as the input features of a linear layer or the rows of an
      embedding table. Every shard holds its part of the parameters and computes a partial sum of
      the whole output; the operators that read the output add the sums.
    - "experts": experts of a mixture. Every shard holds its part of the experts and processes their
      tokens, assumed to be equally many for each expert.
    - "attribute": positions of a sample, in a sequence or an image. Every shard holds all
      parameters and computes its part of the output.

    Each divides the FLOPs. A shard needs the "whole" of each operand, or its own "part" of the
    features ("columns", "rows"), tokens or positions. There are at most `max_degree` parts.
    `sections` are the sizes of ranges of columns that different operators read, such as queries,
    keys and values: a shard holds its part of each. Empty: they read all columns.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"sections"})

    dimension: SplitDimension
    max_degree: int
    operands: Literal["whole", "part"]
    sections: tuple[int, ...] = ()


@dataclass(frozen=True)
class MeasuredCost:
    """Measured times of both passes on an accelerator with 1 / `shards` of the samples."""

    shards: float
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Operator:
    """One placeable unit of the model.

    `splittable`: the first dimension of its output is the batch, so servers can share it.
    `memory_bytes` is the memory traffic of the forward pass (inputs, outputs and parameters), for a
    roofline estimate; `saved_bytes` is kept for the backward pass.
    `parameter_gradient_bytes` is the size of this operator's AllReduce (trainable parameters only;
    0 if an earlier operator has the same parameters). `splits` are the further dimensions that may
    be split, each once. The output has `output_dimensions` dimensions (0: not known, or several
    tensors). `measured` costs replace estimates, in ascending order of `shards`.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"splits", "output_dimensions", "measured"})

    name: str
    kind: str
    forward_flops: int
    backward_flops: int
    parameter_bytes: int
    parameter_gradient_bytes: int
    output_bytes: int
    saved_bytes: int
    memory_bytes: int
    splittable: bool
    operands: tuple[Operand, ...]
    splits: tuple[Split, ...] = ()
    output_dimensions: int = 0
    measured: tuple[MeasuredCost, ...] = ()

    def split(self, dimension: SplitDimension) -> Split | None:
        """The operator's split along `dimension`; None if it cannot be split along it."""
        for split in self.splits:
            if split.dimension == dimension:
                return split
        return None


@dataclass(frozen=True)
class RepeatedLayer:
    """A layer of the model: `length` operators from each of `starts` on.

    Its occurrences differ only in names, measured costs, operands from outside the layer, and in
    splits and saved bytes, which depend on those operands. `kind` is the class of the module, of
    which a model has several layers, equal or not.
    """

    kind: str
    length: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class GradientBuckets:
    """The gradients of one AllReduce, as DistributedDataParallel chooses them.

    Gradients of one group of servers fill buckets in the order of the backward pass. A bucket is
    full when it holds `cap_bytes`, a group's first one `first_bytes`. Its AllReduce starts when all
    its gradients are ready and the previous bucket's has started. Unlike DistributedDataParallel,
    this model never splits an operator's weight and bias over two buckets.
    """

    first_bytes: int
    cap_bytes: int


@dataclass(frozen=True)
class MeasuredStep:
    """The measured time of a step of the script that trains the model, without its messages.

    `overhead_s` is the time of an iteration outside its operators: data loading, loss, optimizer,
    Python. `forward_scale` and `backward_scale` multiply the operators' costs. All are for a server
    alone. Emulated servers share the processors of one machine: `servers_at_once` compute at full
    speed, and more share that evenly. None: every server has its own processors.
    """

    overhead_s: float
    forward_scale: float = 1.0
    backward_scale: float = 1.0
    servers_at_once: float | None = None


# DistributedDataParallel's default without `bucket_cap_mb`
DEFAULT_BUCKETS = GradientBuckets(first_bytes=2**20, cap_bytes=25 * 2**20)


@dataclass(frozen=True)
class OpGraph(Document):
    """One training iteration of one model, operators in topological order.

    No operator is in two of the `layers`. `gradient_buckets` describes the
    buckets of the training script; None: an AllReduce for each operator, as in the TopoOpt paper.
    `measured_step` corrects the operators' costs by a measured step; None: no step was measured.
    `number_format` is that of most parameters: "bf16" for all types of 16 bits.

    Version 2 added `splits` and `output_dimensions`; operators of version 1 split samples only.
    Version 3 added the `tensor` of operands; older operands each count as a tensor of their own.
    Version 4 added `gradient_buckets` and `measured_step`.
    Version 5 added `number_format` and the `sections` of splits.
    """

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"layers", "number_format"})

    KIND: ClassVar[str] = "OpGraph"
    VERSION: ClassVar[int] = 5

    version: int
    model: str
    batch_size: int
    operators: tuple[Operator, ...]
    layers: tuple[RepeatedLayer, ...] = ()
    gradient_buckets: GradientBuckets | None = None
    measured_step: MeasuredStep | None = None
    number_format: Literal["fp32", "bf16"] = "fp32"

    def validate(self) -> Self:
        if self.batch_size < 1:
            raise DocumentError(f"batch_size: {self.batch_size} is not at least 1")
        if not self.operators:
            raise DocumentError("operators: an OpGraph needs at least one operator")
        names: set[str] = set()
        shared: dict[tuple[int, int], tuple[str, Operand]] = {}
        for i, operator in enumerate(self.operators):
            where = f"operators[{i}] ({operator.name})"
            if not operator.name or operator.name in names:
                raise DocumentError(f"{where}.name: must be unique and not empty")
            names.add(operator.name)
            for field in _SIZES:
                if getattr(operator, field) < 0:
                    raise DocumentError(f"{where}.{field}: {getattr(operator, field)} is negative")
            for operand in operator.operands:
                if not 0 <= operand.producer < i:
                    raise DocumentError(
                        f"{where}.operands: producer {operand.producer} is not an earlier operator"
                    )
                if operand.size_bytes < 0 or operand.gradient_bytes < 0:
                    raise DocumentError(f"{where}.operands: sizes must not be negative")
                _validate_shared(where, operator.name, operand, shared)
            _validate_splits(where, operator.splits)
            _validate_measured(where, operator.measured)
        self._validate_layers()
        self._validate_script()
        return self

    def _validate_script(self) -> None:
        if self.measured_step is not None:
            for field, value in vars(self.measured_step).items():
                if value is not None and value < 0:
                    raise DocumentError(f"measured_step.{field}: {value} is negative")
            if self.measured_step.servers_at_once == 0:
                raise DocumentError("measured_step.servers_at_once: 0 is not above 0")
        if self.gradient_buckets is None:
            return
        for field in ("first_bytes", "cap_bytes"):
            if (size := getattr(self.gradient_buckets, field)) < 1:
                raise DocumentError(f"gradient_buckets.{field}: {size} is not at least 1")

    def _validate_layers(self) -> None:
        taken: set[int] = set()
        for i, layer in enumerate(self.layers):
            where = f"layers[{i}] ({layer.kind})"
            if layer.length < 1 or not layer.starts:
                raise DocumentError(f"{where}: needs a length of at least 1 and a start")
            first: object = None
            for start in layer.starts:
                inside = range(start, start + layer.length)
                if not 0 <= start <= len(self.operators) - layer.length:
                    raise DocumentError(
                        f"{where}.starts: {start} and {layer.length} operators from there on are "
                        f"not among the {len(self.operators)} operators"
                    )
                if not taken.isdisjoint(inside):
                    raise DocumentError(f"{where}.starts: {start} overlaps another layer")
                taken.update(inside)
                form = layer_form(self.operators, start, start + layer.length)
                first = first or form
                if form != first:
                    raise DocumentError(f"{where}.starts: the layer at {start} is not the first's")

    @property
    def forward_flops(self) -> int:
        return sum(operator.forward_flops for operator in self.operators)

    @property
    def backward_flops(self) -> int:
        return sum(operator.backward_flops for operator in self.operators)

    @property
    def parameter_bytes(self) -> int:
        return sum(operator.parameter_bytes for operator in self.operators)

    @property
    def parameter_gradient_bytes(self) -> int:
        return sum(operator.parameter_gradient_bytes for operator in self.operators)


def _validate_shared(
    where: str, name: str, operand: Operand, shared: dict[tuple[int, int], tuple[str, Operand]]
) -> None:
    if operand.tensor < 0:
        raise DocumentError(f"{where}.operands: tensor {operand.tensor} is negative")
    if operand.tensor == 0:
        return
    of_tensor = (operand.producer, operand.tensor)
    other, first = shared.setdefault(of_tensor, (name, operand))
    gradients = {o.gradient_bytes for o in (first, operand) if o.gradient_bytes}
    if first.size_bytes != operand.size_bytes or len(gradients) > 1:
        raise DocumentError(
            f"{where}.operands: tensor {operand.tensor} of producer {operand.producer} has other "
            f"sizes than at operator {other!r}"
        )
    if operand.gradient_bytes:
        shared[of_tensor] = (name, operand)


def _validate_splits(where: str, splits: tuple[Split, ...]) -> None:
    seen: set[str] = set()
    for j, split in enumerate(splits):
        if split.dimension in seen:
            raise DocumentError(f"{where}.splits[{j}].dimension: {split.dimension} is named twice")
        seen.add(split.dimension)
        if split.max_degree < 2:
            raise DocumentError(
                f"{where}.splits[{j}].max_degree: {split.max_degree} is not at least 2; leave the "
                "split out"
            )
        uneven = [size for size in split.sections if size < 1 or size % split.max_degree]
        if uneven:
            raise DocumentError(
                f"{where}.splits[{j}].sections: {uneven[0]} is not a multiple of {split.max_degree}"
            )


def _validate_measured(where: str, measured: tuple[MeasuredCost, ...]) -> None:
    for j, cost in enumerate(measured):
        if not cost.shards > (measured[j - 1].shards if j else 0):
            raise DocumentError(
                f"{where}.measured[{j}].shards: {cost.shards} must be above 0 and above the one "
                "before"
            )
        if min(cost.forward_s, cost.backward_s) < 0:
            raise DocumentError(f"{where}.measured[{j}]: seconds must not be negative")


def layer_form(operators: Sequence[Operator], begin: int, end: int) -> object:
    """A hashable key of operators begin..end - 1, the same for equal layers (RepeatedLayer)."""
    outside: dict[int, int] = {}  # producers before the layer, by first use
    tensors: dict[tuple[int, int], int] = {}  # of outside producers, by first use
    form = []
    for operator in operators[begin:end]:
        read = tuple(
            replace(operand, producer=operand.producer - begin)
            if operand.producer >= begin
            else replace(
                operand,
                producer=-1 - outside.setdefault(operand.producer, len(outside)),
                tensor=tensors.setdefault((operand.producer, operand.tensor), len(tensors)),
            )
            for operand in operator.operands
        )
        form.append(
            replace(operator, name="", operands=read, splits=(), measured=(), saved_bytes=0)
        )
    return tuple(form)


_SIZES = (
    "forward_flops",
    "backward_flops",
    "parameter_bytes",
    "parameter_gradient_bytes",
    "output_bytes",
    "saved_bytes",
    "memory_bytes",
    "output_dimensions",
)
