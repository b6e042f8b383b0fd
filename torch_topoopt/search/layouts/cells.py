"""The cells of a model: its blocks, and the operators before, between and after them.

A pipeline is cut between cells, FSDP gathers the parameters of one cell at a time, and full
recomputation keeps the input of a cell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.op_graph import Split
from torch_topoopt.search.accelerators import class_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import Operator, OpGraph

_MOST_ENTRIES = 2**16  # parts of a vocabulary


class Cell(NamedTuple):
    """Operators begin..end - 1. Cells of one `kind` are equal; `block`: a layer of the model."""

    begin: int
    end: int
    kind: int
    block: bool


def cells_of(op_graph: OpGraph) -> tuple[Cell, ...]:
    """The cells of `op_graph`, in order."""
    spans: list[tuple[int, int, object]] = []  # with what equal blocks have in common
    for layer, its in enumerate(op_graph.layers):
        for begin in its.starts:
            end = begin + its.length
            differ = tuple((o.splits, o.saved_bytes) for o in op_graph.operators[begin:end])
            spans.append((begin, end, (layer, differ)))
    kinds: dict[object, int] = {}
    cells: list[Cell] = []
    at = 0
    for begin, end, key in sorted(spans, key=lambda span: span[0]):
        if begin > at:
            cells.append(Cell(at, begin, kinds.setdefault(at, len(kinds)), block=False))
        cells.append(Cell(begin, end, kinds.setdefault(key, len(kinds)), block=True))
        at = end
    last = len(op_graph.operators)
    if at < last:
        cells.append(Cell(at, last, kinds.setdefault(at, len(kinds)), block=False))
    return tuple(cells)


def shared_bytes(operator: Operator) -> int:
    """Bytes of the parameters that a matrix product has in common with an earlier operator."""
    alone = len(operator.operands) == 1 and not operator.parameter_bytes
    if not alone or class_of(operator) != "dense":
        return 0
    moved = operator.output_bytes + operator.operands[0].size_bytes
    return max(0, operator.memory_bytes - moved)


def _shared_sizes(operators: Sequence[Operator]) -> set[int]:
    """Bytes of the tables that an output layer shares."""
    tables = {o.parameter_bytes for o in operators if class_of(o) == "lookup"}
    return {shared_bytes(operator) for operator in operators} & tables - {0}


def shared_table(op_graph: OpGraph, cells: Sequence[Cell]) -> int:
    """The number of the cell whose table the output layer shares; 0 if there is none."""
    sizes = _shared_sizes(op_graph.operators)
    for number, cell in enumerate(cells):
        for operator in op_graph.operators[cell.begin : cell.end]:
            if class_of(operator) == "lookup" and operator.parameter_bytes in sizes:
                return number
    return 0


def with_shared_tables(op_graph: OpGraph) -> OpGraph:
    """`op_graph` where a table and the output layer that shares it are split by vocabulary.

    Placements split each operator by itself, so the profile splits neither. A layout splits both:
    the table by its rows, the layer by its columns, which are the same entries.
    """
    operators = list(op_graph.operators)
    shared = _shared_sizes(operators)
    for i, operator in enumerate(operators):
        if {split.dimension for split in operator.splits} & {"columns", "rows"}:
            continue
        split = None
        if shared_bytes(operator) in shared:
            split = Split("columns", _MOST_ENTRIES, "whole")
        elif class_of(operator) == "lookup" and operator.parameter_bytes in shared:
            split = Split("rows", _MOST_ENTRIES, "part")
        if split is not None:
            operators[i] = replace(operator, splits=(*operator.splits, split))
    return replace(op_graph, operators=tuple(operators))


def passed_bytes(op_graph: OpGraph, cells: Sequence[Cell]) -> tuple[int, ...]:
    """Bytes that later cells read of each cell and those before it; of the last, its output.

    Every stage of a pipeline has the batch, so it computes what depends on no parameters itself.
    """
    operators = op_graph.operators
    depends: list[bool] = []
    last_reader: dict[tuple[int, ...], tuple[int, int]] = {}  # tensor -> its last reader, and bytes
    for i, operator in enumerate(operators):
        read = [o for o in operator.operands if depends[o.producer]]
        depends.append(bool(read or operator.parameter_bytes or shared_bytes(operator)))
        for k, operand in enumerate(read):
            own = () if operand.tensor else (i, k)
            last_reader[operand.producer, operand.tensor, *own] = i, operand.size_bytes
    found = [0] * len(cells)
    at = {i: number for number, cell in enumerate(cells) for i in range(cell.begin, cell.end)}
    for (producer, *_), (reader, size_bytes) in last_reader.items():
        for number in range(at[producer], at[reader]):
            found[number] += size_bytes
    found[-1] = operators[-1].output_bytes
    return tuple(found)
