"""FlexFlow's text format of strategies, as --export and --import of its training programs use it.

Source: github.com/flexflow/flexflow-train, branch archive/master/2024-12-16,
src/runtime/strategy.cc (load_strategies_from_file, save_strategies_to_file), and its
src/mapper/mapper.cc for the order of the devices. Words separated by white space: the number of
operators, and for each of them

    name    device type (0 GPU, 1 CPU)
    number of dimensions of its output    parts of each dimension, innermost first, samples last
    number of devices, which is the product of the parts    their ids, innermost dimension first

Operators that are not listed are data parallel, as in FlexFlow. A device is one server, as in the
TopoOpt paper's version of FlexFlow, which treats a server as one large GPU.

The format has the dimensions of an output only: features are "columns" here, positions and image
height are "attribute". It has no split sums ("rows"), no split experts, and no micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.strategies import data_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.search.strategies import Strategy

_GPU = "0"
_LONGEST_NAME = 63  # FlexFlow's MAX_OPNAME, less the end of the string
# The dimensions of an output of each rank, innermost first. Images are (samples,
# channels, height, width), sequences (samples, positions, features), as in PyTorch.
_ROLES: dict[int, tuple[str, ...]] = {
    1: ("sample",),
    2: ("columns", "sample"),
    3: ("columns", "attribute", "sample"),
    4: ("width", "attribute", "columns", "sample"),
}


class FlexFlowError(ValueError):
    """A strategy that is not FlexFlow's, or not expressible in it; one line with the position."""


def parse_flexflow(text: str, op_graph: OpGraph, servers: int) -> Strategy:
    """The strategy of `text` for `op_graph` on `servers` servers.

    Names are those of the OpGraph. The result fits the format, not yet the model: check it with
    `strategy_space.check_strategy`. Raises FlexFlowError, and ValueError for operators that are not
    listed and cannot be data parallel.
    """
    words = _Words(text)
    listed: dict[str, Placement] = {}
    known = {operator.name for operator in op_graph.operators}
    count = words.number("the number of operators", 0)
    for i in range(count):
        words.where = f"operator {i + 1} of {count}"
        name = words.next("a name")
        words.where += f" ({name})"
        if name not in known:
            raise FlexFlowError(f"{words.where}: {op_graph.model} has no operator of that name")
        if name in listed:
            raise FlexFlowError(f"{words.where}: listed twice")
        listed[name] = _placement(words, name)
    words.where = "after the last operator"
    words.end()
    if len(listed) == len(known):
        return tuple(listed[operator.name] for operator in op_graph.operators)
    return tuple(
        listed.get(placement.operator, placement) for placement in data_parallel(op_graph, servers)
    )


def flexflow_text(op_graph: OpGraph, strategy: Strategy) -> str:
    """`strategy` in the format; raises FlexFlowError for an operator outside the format."""
    lines = [str(len(strategy))]
    for operator, placement in zip(op_graph.operators, strategy, strict=True):
        name = placement.operator
        if len(name.split()) != 1 or len(name) > _LONGEST_NAME:
            raise FlexFlowError(
                f"operator {name!r}: a name in this format has no white space and at most "
                f"{_LONGEST_NAME} characters"
            )
        dims, servers = _dimensions(operator, placement)
        lines += [name, _GPU, str(len(dims)), _row(dims), str(len(servers)), _row(servers)]
    return "\n".join(lines) + "\n"


def _row(numbers: Sequence[int]) -> str:
    return "\t".join(map(str, numbers))


def _placement(words: _Words, name: str) -> Placement:
    if (device := words.next("a device type")) != _GPU:
        raise FlexFlowError(f"{words.where}: device type {device!r} is not 0 (GPU)")
    rank = words.number("the number of dimensions", 1)
    if rank not in _ROLES:
        raise FlexFlowError(f"{words.where}: {rank} dimensions are not 1 to {len(_ROLES)}")
    parts = dict(zip(_ROLES[rank], (words.number("parts", 1) for _ in range(rank)), strict=True))
    if parts.get("width", 1) > 1:
        raise FlexFlowError(
            f"{words.where}: {parts['width']} parts of the width; images are split by height"
        )
    columns, attribute = parts.get("columns", 1), parts.get("attribute", 1)
    degrees = Degrees(parts["sample"], "columns" if columns > 1 else None, columns, attribute)
    shards = degrees.sample * columns * attribute
    count = words.number("the number of devices", 0)
    if count != shards:
        raise FlexFlowError(f"{words.where}: {count} devices for {shards} parts")
    servers = [words.number("a device", 0) for _ in range(count)]
    if rank == 3:  # the file has the positions outside the features
        servers = _swapped(servers, degrees.sample, attribute, columns)
    return Placement.of(name, tuple(servers), degrees)


def _dimensions(operator: Operator, placement: Placement) -> tuple[list[int], list[int]]:
    """The parts of each dimension of the output, innermost first, and the servers in that order."""
    if placement.rows > 1 or placement.experts > 1:
        raise FlexFlowError(
            f"operator {placement.operator!r}: the format cannot say {placement.parameter_kind} in "
            f"{placement.parameter} parts; write native JSON (a name that ends in .json)"
        )
    rank = operator.output_dimensions
    if rank not in _ROLES:  # not known, or none that FlexFlow has
        rank = 3 if placement.attribute > 1 else 2
    parts = {
        "sample": placement.sample,
        "columns": placement.columns,
        "attribute": placement.attribute,
    }
    dims = [parts.pop(role, 1) for role in _ROLES[rank]]
    if any(degree > 1 for degree in parts.values()):
        raise FlexFlowError(
            f"operator {placement.operator!r}: an output of {rank} dimensions has no "
            f"{next(role for role, degree in parts.items() if degree > 1)} to split"
        )
    servers = list(placement.servers)
    if rank == 3:
        servers = _swapped(servers, placement.sample, placement.columns, placement.attribute)
    return dims, servers


def _swapped(servers: Sequence[int], outer: int, middle: int, inner: int) -> list[int]:
    """Servers in the order (outer, middle, inner), put in the order (outer, inner, middle)."""
    return [
        servers[(i * middle + j) * inner + k]
        for i in range(outer)
        for k in range(inner)
        for j in range(middle)
    ]


class _Words:
    """The words of a file; `where` names the part being read, for errors."""

    def __init__(self, text: str) -> None:
        self._words = text.split()
        self._next = 0
        self.where = "first line"

    def next(self, what: str) -> str:
        if self._next == len(self._words):
            raise FlexFlowError(f"{self.where}: the file ends where {what} is expected")
        self._next += 1
        return self._words[self._next - 1]

    def number(self, what: str, least: int) -> int:
        word = self.next(what)
        if not word.isascii() or not word.isdigit() or len(word) > 9 or int(word) < least:
            raise FlexFlowError(
                f"{self.where}: {word!r} is not {what}, an integer of at least {least}"
            )
        return int(word)

    def end(self) -> None:
        if self._next < len(self._words):
            raise FlexFlowError(f"{self.where}: {self._words[self._next]!r} is not expected")
