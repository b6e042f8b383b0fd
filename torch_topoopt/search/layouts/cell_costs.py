"""What a cell costs one accelerator under a layout: seconds, bytes, and what groups exchange."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.plan import Degrees
from torch_topoopt.search.accelerators import BANDWIDTH, class_of, operator_seconds
from torch_topoopt.search.layouts.cells import (
    cells_of,
    passed_bytes,
    shared_bytes,
    shared_table,
    with_shared_tables,
)
from torch_topoopt.search.layouts.divisible import (
    gathers_operands,
    has_projections,
    why_not_divided,
    why_not_experts,
)
from torch_topoopt.search.shards import is_even, may_split, shard_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.plan import ParameterKind
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.accelerators import Accelerator
    from torch_topoopt.search.layouts.cells import Cell

    Kinds = Sequence[ParameterKind | None]


@dataclass(frozen=True)
class GroupExchange:
    """`count` collectives for one micro-batch; `size_bytes` of whole tensors in all of them."""

    size_bytes: float = 0.0
    count: int = 0

    def __add__(self, other: GroupExchange) -> GroupExchange:
        return GroupExchange(self.size_bytes + other.size_bytes, self.count + other.count)


_NOTHING = GroupExchange()
_DIMENSIONS = 3  # samples, positions, features; fewer in a mixture of experts: tokens, features


@dataclass(frozen=True)
class CellCost:
    """The cost of operators on one accelerator, for one micro-batch.

    Seconds of both passes, and of them in operators that stream through the memory. Bytes of the
    parameters and their gradients, those of experts apart; `copied_bytes` are parameters of an
    earlier operator, which another stage needs once more. `saved_bytes` are kept for the backward
    pass, and `gathered_bytes` more by trainers that do not gather the operands of a tensor group
    again. Selective recomputation keeps the outputs of matrix products and attention, and streams
    again. `operators` is the number of operators that compute.

    A forward pass exchanges activations in the `tensor` group, keys and values in the `context`
    group, and tokens in the `expert` group. Full recomputation exchanges those of `repeated_bytes`
    in the tensor group again: it stops at the last saved tensor. After a backward pass, the tensor
    group sums the gradients, of `summed_bytes`, of parameters that work on a part of the positions
    or heads.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    streamed_forward_s: float = 0.0
    streamed_backward_s: float = 0.0
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    expert_bytes: float = 0.0
    expert_gradient_bytes: float = 0.0
    copied_bytes: float = 0.0
    saved_bytes: float = 0.0
    gathered_bytes: float = 0.0
    selective_bytes: float = 0.0
    summed_bytes: float = 0.0
    repeated_bytes: float = 0.0
    operators: int = 0
    tensor: GroupExchange = _NOTHING
    context: GroupExchange = _NOTHING
    expert: GroupExchange = _NOTHING

    def __add__(self, other: CellCost) -> CellCost:
        mine, others = vars(self).values(), vars(other).values()
        return CellCost(*(one + two for one, two in zip(mine, others, strict=True)))


class PricedCell(NamedTuple):
    """A cell with its cost, and the bytes that pass from it to the next on one accelerator (from
    the last, the model's output).

    The part `again` of it is computed again in the backward pass, if the layout recomputes: of a
    block, all or nothing. Its parameters are gathered again (`reshards`), if the layout reshards.
    """

    cell: Cell
    cost: CellCost
    output_bytes: float
    again: float = 1.0
    reshards: bool = True


class CellCosts:
    """Costs of the cells of `op_graph` on `device`, cached by the degrees that they depend on."""

    def __init__(self, op_graph: OpGraph, device: Accelerator) -> None:
        self.op_graph = with_shared_tables(op_graph)
        self.device = device
        self.cells = cells_of(op_graph)
        self._first_of_kind: dict[int, Cell] = {}
        for cell in self.cells:
            self._first_of_kind.setdefault(cell.kind, cell)
        self.shared_table = shared_table(self.op_graph, self.cells)
        self._passed = passed_bytes(self.op_graph, self.cells)
        self._priced: dict[tuple[int, ...], CellCost | None] = {}
        self._kinds: dict[tuple[int, int, int], list[ParameterKind | None] | None] = {}
        self._kinds_without_context: dict[tuple[int, int], list[ParameterKind | None] | None] = {}
        self._wholes: dict[tuple[int, int, int], _Wholes] = {}

    def priced(self, layout: Layout) -> list[PricedCell] | None:
        """All cells under `layout`, in order; None if one cannot be divided so."""
        of_kind: dict[int, CellCost] = {}
        degrees = layout.tensor, layout.context, layout.expert, layout.micro_batch
        for kind, cell in self._first_of_kind.items():
            key = (kind, *degrees)
            if key not in self._priced:
                self._priced[key] = self._price(cell, layout)
            known = self._priced[key]
            if known is None:
                return None
            of_kind[kind] = known
        samples = layout.micro_batch / self.op_graph.batch_size
        part = samples / layout.context / layout.tensor
        return [
            PricedCell(cell, of_kind[cell.kind], passed * part)
            for cell, passed in zip(self.cells, self._passed, strict=True)
        ]

    def output_bytes(self, layout: Layout, last: PricedCell) -> float:
        """Bytes of the output of `last` on one accelerator, if it is split over a tensor group or
        there is no such group; else 0."""
        return last.output_bytes if layout.tensor == 1 or self.gathers_output(layout) else 0.0

    def gathers_output(self, layout: Layout) -> bool:
        """Whether accelerators of a tensor group have parts of the model's output."""
        kinds = self._kinds_of(layout)
        parts = kinds is not None and kinds[-1] is not None
        return parts or self.op_graph.operators[-1].output_dimensions >= _DIMENSIONS

    def why_not(self, layout: Layout) -> str:
        """The field of `layout`, the module if there is one, and the reason why the model cannot be
        divided so."""
        why = self._why_not_divided(layout)
        if why:
            return why
        blocks = sum(cell.block for cell in self.cells)
        chunks = layout.pipeline * layout.interleave
        cells = f" of {layout.cells} cells" if layout.cells else ""
        return (
            f"pipeline: {layout.pipeline}: the model has {blocks} blocks; it cannot be cut into "
            f"{chunks} chunks{cells}"
        )

    def _price(self, cell: Cell, layout: Layout) -> CellCost | None:
        operators = self.op_graph.operators[cell.begin : cell.end]
        of_all = self._kinds_of(layout)
        if of_all is None:
            return None
        kinds = of_all[cell.begin : cell.end]
        samples = layout.micro_batch / self.op_graph.batch_size
        wholes = self._wholes[_group_sizes(layout)]
        one = _OneCell(self.device, layout, samples, cell.begin, operators, kinds, wholes)
        return reduce(add, map(one.operator_cost, range(len(operators))), CellCost())

    def _kinds_of(self, layout: Layout) -> list[ParameterKind | None] | None:
        """The splits of all parameters; None if they cannot be divided so."""
        degrees = _group_sizes(layout)
        if degrees not in self._kinds:
            operators = self.op_graph.operators
            kinds = None if self._why_not_divided(layout) else self._parameter_kinds(layout)
            self._kinds[degrees] = kinds
            self._wholes[degrees] = (
                _Wholes({}, {})
                if kinds is None or layout.tensor == 1
                else _Wholes.of(operators, kinds)
            )
        return self._kinds[degrees]

    def _why_not_divided(self, layout: Layout) -> str:
        """The field of `layout`, the module, and the reason; empty if its cells can be divided."""
        operators = self.op_graph.operators
        why = why_not_experts(operators, layout.expert)
        kinds = None if why else self._parameter_kinds(layout)
        return why if kinds is None else why_not_divided(operators, kinds, layout)

    def _parameter_kinds(self, layout: Layout) -> list[ParameterKind | None] | None:
        key = layout.tensor, layout.expert
        if key not in self._kinds_without_context:
            self._kinds_without_context[key] = parameter_kinds(self.op_graph.operators, *key)
        return self._kinds_without_context[key]


def _group_sizes(layout: Layout) -> tuple[int, int, int]:
    return layout.tensor, layout.expert, layout.context


class _Wholes(NamedTuple):
    """Modules of a tensor group that work on whole positions: bytes of tensors that are gathered
    for them, and of results that later operators cut into positions, by operator."""

    gathered: dict[int, int]
    cut: dict[int, int]

    @classmethod
    def of(cls, operators: Sequence[Operator], kinds: Sequence[ParameterKind | None]) -> _Wholes:
        """Those of all operators."""
        gathered: dict[int, int] = {}
        cut: dict[int, int] = {}
        wholes: list[set[int] | None] = []  # modules that a whole result is from; None: others
        for i, (operator, kind) in enumerate(zip(operators, kinds, strict=True)):
            read = [wholes[operand.producer] for operand in operator.operands]
            known = set().union(*(one for one in read if one is not None))
            is_module = bool(operator.parameter_bytes) and operator.split("experts") is None
            if operator.output_dimensions < _DIMENSIONS and kind != "columns":
                wholes.append(set())
            elif is_module and kind is None and operator.split("attribute") is None:
                wholes.append({i})
                gathered[i] = sum(
                    {
                        (operand.producer, operand.tensor): operand.size_bytes
                        for operand in operator.operands
                        if wholes[operand.producer] is None
                    }.values()
                )
            elif read and not is_module and None not in read:
                wholes.append(known)
            else:
                wholes.append(None)
                if kind is None:
                    cut.update((at, operators[at].output_bytes) for at in known)
        return cls(gathered, cut)


def parameter_kinds(
    operators: Sequence[Operator], tensor: int, expert: int
) -> list[ParameterKind | None] | None:
    """How the parameters of each operator are split: experts, and pairs of columns and rows.

    An operator that reads columns and can sum over them takes rows (Shoeybi et al., 2019, section
    3), as does attention that has its projections. One that only keeps the split of its operands
    (an activation, attention by heads) follows them. The rest shares positions, and so do columns
    that an operator of the rest would have to gather. None if the experts of an operator cannot be
    shared by `expert` accelerators.
    """
    experts = [o.split("experts") for o in operators]
    if any(split is not None and split.max_degree % expert for split in experts):
        return None
    of_experts: ParameterKind | None = "experts" if expert > 1 else None
    read_whole: set[int] = set()
    while True:
        kinds: list[ParameterKind | None] = []
        for i, operator in enumerate(operators):
            read = [kinds[operand.producer] for operand in operator.operands]
            follows = bool(read) and all(kind == "columns" for kind in read)
            kind = of_experts
            if experts[i] is None:
                kind = _tensor_kind(operator, follows, tensor)
            kinds.append(None if i in read_whole and kind == "columns" else kind)
        more = {
            operand.producer
            for operator, kind in zip(operators, kinds, strict=True)
            for operand in operator.operands
            if kinds[operand.producer] == "columns" and not _takes_columns(operator, kind)
        }
        if not more:
            return kinds
        read_whole |= more


def _takes_columns(operator: Operator, kind: ParameterKind | None) -> bool:
    """Whether a shard of an operator of that kind reads columns of its own part."""
    split = operator.split(kind) if kind in ("columns", "rows") else None
    return split is not None and split.operands == "part"


def _tensor_kind(operator: Operator, follows: bool, tensor: int) -> ParameterKind | None:
    """The split of an operator in a tensor group; `follows`: its operands are columns already."""
    if class_of(operator) == "convolution":  # PyTorch has no style for it
        return None
    splits = {
        split.dimension: split for split in operator.splits if tensor > 1 and is_even(split, tensor)
    }
    columns, rows = splits.get("columns"), splits.get("rows")
    if class_of(operator) == "lookup":  # by vocabulary
        return None if rows is None else "rows"
    if rows is not None and (has_projections(operator) or (rows.operands == "part" and follows)):
        return "rows"
    if columns is None or (columns.operands == "part" and not follows):
        return None
    return "columns"


@dataclass(frozen=True)
class _OneCell:
    """The operators of a cell under a layout; a micro-batch is `samples` batches of the profile."""

    device: Accelerator
    layout: Layout
    samples: float
    begin: int
    operators: Sequence[Operator]
    kinds: Kinds
    wholes: _Wholes

    def local_bytes(self, size_bytes: float) -> float:
        """Of a tensor of the profile, the part of one context rank and micro-batch."""
        return size_bytes * self.samples / self.layout.context

    def _scattered_bytes(self, operator: Operator) -> float:
        """Of the output of rows, as local_bytes. That of a table of positions has no samples.

        Nothing is gathered in the backward pass for what has no gradient: such output counts half.
        """
        size = self.local_bytes(operator.output_bytes)
        whole = size if operator.splittable else size / self.samples
        read = any(operand.gradient_bytes for operand in operator.operands)
        return whole if operator.parameter_gradient_bytes or read else whole / 2

    def operator_cost(self, at: int) -> CellCost:
        operator, kind, layout = self.operators[at], self.kinds[at], self.layout
        shard = shard_operator(operator, self._degrees(operator, kind))
        times = self.samples
        if self._has_experts(operator):  # a group brings the tokens of all its accelerators
            times *= layout.expert / layout.tensor / layout.context
        forward_s, backward_s = operator_seconds(self.device, shard, 1 / times)
        saved = shard.saved_bytes * times
        if self._passes_context(operator):  # of queries, each rank keeps its own
            part = 1 - 1 / layout.context
            saved -= part * self._of_tensor_group(operator.operands[0].size_bytes, kind)
        whole = saved if gathers_operands(operator, kind) else 0.0
        if kind == "rows" and whole:  # of attention: heads are not read
            whole = min(saved, times * sum(operand.size_bytes for operand in operator.operands))
            saved = whole + (saved - whole) / layout.tensor
        gathered = whole * (1 - 1 / layout.tensor)
        matrix = class_of(operator) in ("dense", "attention", "convolution")
        is_expert = kind == "experts"
        exchange, tokens = self._tensor_exchange(at), self._expert_exchange(at)
        sorted_s = self._sorted_s(tokens)
        state = shard.parameter_bytes, shard.parameter_gradient_bytes
        streamed = (0.0, 0.0) if matrix else (forward_s, backward_s)
        return CellCost(
            forward_s + sorted_s,
            backward_s + sorted_s,
            streamed[0] + sorted_s,
            streamed[1] + sorted_s,
            *state,
            *(state if is_expert else (0, 0)),
            shared_bytes(operator) / (layout.tensor if kind else 1),
            saved - gathered,
            gathered,
            shard.output_bytes * times if matrix else 0.0,
            shard.parameter_gradient_bytes if self._works_on_part(operator, kind) else 0.0,
            self._repeated_bytes(at, exchange),
            int(forward_s > 0),
            exchange,
            self._context_exchange(operator, kind),
            tokens,
        )

    def _sorted_s(self, tokens: GroupExchange) -> float:
        """Seconds of sorting exchanged tokens: they are sent by rank, and computed by expert."""
        return 2 * tokens.size_bytes / (self.device.memory_bytes_per_s * BANDWIDTH)

    def _repeated_bytes(self, at: int, exchange: GroupExchange) -> float:
        """Bytes that full recomputation exchanges again; it stops at the last saved tensor."""
        whole = self.begin + at
        if whole in self.wholes.gathered:
            return self.local_bytes(self.wholes.gathered[whole])
        last = self.kinds[at] == "rows" and not any(o.saved_bytes for o in self.operators[at + 1 :])
        return exchange.size_bytes - (self._scattered_bytes(self.operators[at]) if last else 0.0)

    def _degrees(self, operator: Operator, kind: ParameterKind | None) -> Degrees:
        """Parts of the parameters, and of the positions: the tensor group shares those of an
        operator that it does not split otherwise."""
        layout = self.layout
        if kind == "experts":
            return Degrees(1, kind, layout.expert)
        if kind is not None:
            return Degrees(1, kind, layout.tensor, self._positions(operator, layout.context))
        both = self._positions(operator, layout.context * layout.tensor)
        return Degrees(attribute=max(both, self._positions(operator, layout.context)))

    def _works_on_part(self, operator: Operator, kind: ParameterKind | None) -> bool:
        """Whether each accelerator of a tensor group has whole parameters, and a part of the
        positions or heads."""
        if self.layout.tensor == 1 or kind in ("rows", "experts"):
            return False
        if kind == "columns":
            return not gathers_operands(operator, kind)
        tokens = operator.output_dimensions < _DIMENSIONS and any(
            map(self._has_experts, self.operators)
        )
        return tokens or self._has_experts(operator) or operator.split("attribute") is not None

    @staticmethod
    def _has_experts(operator: Operator) -> bool:
        return operator.split("experts") is not None

    @staticmethod
    def _positions(operator: Operator, parts: int) -> int:
        return parts if may_split(operator, Degrees(attribute=parts)) else 1

    def _kind_of(self, producer: int) -> ParameterKind | None:
        """The split of an operator, None before this cell."""
        return self.kinds[producer - self.begin] if producer >= self.begin else None

    def _tensor_exchange(self, at: int) -> GroupExchange:
        """What is gathered for columns (each tensor once) and scattered after rows.

        For a module that is whole, its operands are gathered in the forward pass, and the gradient
        of a result that is cut into positions in the backward pass.
        """
        operator, kind = self.operators[at], self.kinds[at]
        sizes = [of.get(self.begin + at, 0) for of in (self.wholes.gathered, self.wholes.cut)]
        if any(sizes):
            moved = GroupExchange(self.local_bytes(sum(sizes)) / 2, sum(map(bool, sizes)))
            return moved + self._position_exchange(operator)
        if self.layout.tensor == 1 or kind == "experts":
            return _NOTHING
        if kind is None:
            return self._position_exchange(operator)
        scattered = _NOTHING
        if kind == "rows":
            scattered = GroupExchange(self._scattered_bytes(operator), 1)
        if not gathers_operands(operator, kind):
            return scattered
        before = {
            (operand.producer, operand.tensor)
            for other, its in zip(self.operators[:at], self.kinds[:at], strict=True)
            if gathers_operands(other, its)
            for operand in other.operands
        }
        new = [
            operand.size_bytes / (1 if operand.gradient_bytes else 2)
            for operand in operator.operands
            if self._kind_of(operand.producer) != "columns"
            and (operand.producer, operand.tensor) not in before
        ]
        return scattered + GroupExchange(self.local_bytes(sum(new)), len(new))

    def _position_exchange(self, operator: Operator) -> GroupExchange:
        """The exchange of a function whose operands have divided positions.

        The parts of a mean are summed in the forward pass, and the gradients of a table of
        positions in the backward pass."""
        if operator.kind in ("mean", "sum") and operator.output_dimensions == _DIMENSIONS - 1:
            return GroupExchange(self.local_bytes(operator.output_bytes), 1)
        table = operator.parameter_gradient_bytes * self.layout.micro_batch / self.samples
        if table == operator.output_bytes > 0 and operator.output_dimensions == _DIMENSIONS:
            return GroupExchange(operator.parameter_gradient_bytes / 2, 1)
        return _NOTHING

    def _context_exchange(self, operator: Operator, kind: ParameterKind | None) -> GroupExchange:
        """The keys and values of the whole context: all operands of attention but its queries."""
        if not self._passes_context(operator):
            return _NOTHING
        passed = sum(operand.size_bytes for operand in operator.operands[1:])
        return GroupExchange(self._of_tensor_group(passed, kind), 1)

    def _passes_context(self, operator: Operator) -> bool:
        split = operator.split("attribute")
        return self.layout.context > 1 and split is not None and split.operands == "whole"

    def _of_tensor_group(self, size_bytes: float, kind: ParameterKind | None) -> float:
        """Of a tensor of the profile, the part of one accelerator for all positions."""
        return size_bytes * self.samples / (self.layout.tensor if kind == "columns" else 1)

    def _expert_exchange(self, at: int) -> GroupExchange:
        """Tokens to experts, and what comes back from them."""
        if self.layout.expert == 1:
            return _NOTHING
        operator = self.operators[at]
        here, parts = self.kinds[at] == "experts", self.layout.tensor
        crossing = [
            operand.size_bytes
            for operand in operator.operands
            if (self._kind_of(operand.producer) == "experts") != here
            and (operand.gradient_bytes or not here)
        ]
        return GroupExchange(self.local_bytes(sum(crossing)) / parts, len(crossing))
