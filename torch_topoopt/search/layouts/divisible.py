"""Why a model cannot be divided over groups of tensors, of positions and of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.search.accelerators import class_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.op_graph import Operator
    from torch_topoopt.plan import ParameterKind
    from torch_topoopt.plan.layout import Layout

_DIMENSIONS = 3  # samples, positions, features
_QUERY_KEY_VALUE = 3


def why_not_divided(
    operators: Sequence[Operator], kinds: Sequence[ParameterKind | None], layout: Layout
) -> str:
    """The field of `layout`, the module, and the reason; empty if `operators` can be divided so.

    `kinds` are the splits of their parameters (cell_costs.parameter_kinds).
    """
    if layout.tensor > 1:
        for at in range(len(operators)):
            why = _why_not_tensor(operators, kinds, at, layout.tensor)
            if why:
                return f"tensor: {layout.tensor}: {_path(operators[at])!r} cannot be divided: {why}"
    if layout.context > 1:
        return _why_not_context(operators, layout.context)
    return ""


def why_not_experts(operators: Sequence[Operator], parts: int) -> str:
    """As why_not_divided, for the experts of a mixture."""
    splits = [(operator, operator.split("experts")) for operator in operators]
    experts = [(_path(operator), split.max_degree) for operator, split in splits if split]
    if parts > 1 and not experts:
        return f"expert: {parts}: the model has no experts"
    for path, count in experts:
        if count % parts:
            return f"expert: {parts}: {path!r} cannot be divided: {count} experts are no multiple"
    return ""


def has_projections(operator: Operator) -> bool:
    """Whether it is attention that has its own projections of all heads, and sums over them."""
    return class_of(operator) == "attention" and operator.split("rows") is not None


def is_product_of_heads(operator: Operator) -> bool:
    """Whether a function multiplies queries by keys, or weights by values, of each head."""
    if class_of(operator) != "dense" or not operator.kind[:1].islower():
        return False
    return operator.output_dimensions > _DIMENSIONS and not operator.parameter_bytes


def gathers_operands(operator: Operator, kind: ParameterKind | None) -> bool:
    """Whether each rank of a tensor group needs whole operands, which have parts of positions."""
    if kind == "columns":
        split = operator.split(kind)
        return split is not None and split.operands == "whole"
    return kind == "rows" and has_projections(operator)


def _path(operator: Operator) -> str:
    return operator.name.split("#")[0]


def _why_not_tensor(
    operators: Sequence[Operator], kinds: Sequence[ParameterKind | None], at: int, parts: int
) -> str:
    operator, kind = operators[at], kinds[at]
    positions = operator.split("attribute")
    if positions is not None and positions.max_degree % parts:
        return f"{positions.max_degree} positions are no multiple of it"
    if positions is not None and kind != "columns" and class_of(operator) == "attention":
        heads = operator.split("columns")
        if heads is None:
            return "its projections do not keep heads apart"
        if heads.max_degree % parts:
            return f"{heads.max_degree} groups of heads are no multiple of it"
        makers = [_path(operators[o.producer]) for o in operator.operands if not kinds[o.producer]]
        return f"it reads heads of {', '.join(map(repr, dict.fromkeys(makers)))}, which is whole"
    split = operator.split(kind) if kind in ("columns", "rows") else None
    if split is None:
        return "parts of its heads are not known" if is_product_of_heads(operator) else ""
    entries = class_of(operator) == "lookup" or not _is_read(operators, at)  # of a vocabulary
    if split.max_degree % parts and not entries:
        by_heads = has_projections(operator) or is_product_of_heads(operator)
        parted = "heads" if by_heads else kind
        return f"{split.max_degree} {parted} are no multiple of it"
    return ""


def _is_read(operators: Sequence[Operator], at: int) -> bool:
    return any(operand.producer == at for o in operators[at + 1 :] for operand in o.operands)


def _why_not_context(operators: Sequence[Operator], parts: int) -> str:
    lengths = dict(_attention_lengths(operators))
    if len(lengths) != 1:
        found = [f"{path!r} has {length}" for length, path in lengths.items()]
        return (
            f"context: {parts}: positions cannot be divided: "
            f"{', '.join(found) or 'there is no attention'}"
        )
    (length,) = lengths
    if length % (2 * parts):
        return (
            f"context: {parts}: {length} positions are no multiple of {2 * parts}, two parts for "
            "each accelerator"
        )
    for operator in operators:
        is_attention = class_of(operator) == "attention"
        if is_attention and len(operator.operands) > _QUERY_KEY_VALUE:
            return f"context: {parts}: {_path(operator)!r} cannot be divided: it has a mask or bias"
        if operator.split("attribute") is not None or class_of(operator) == "lookup":
            continue
        whole = operator.parameter_bytes and operator.output_dimensions >= _DIMENSIONS
        if is_attention or (whole and not operator.split("experts")):
            return (
                f"context: {parts}: {_path(operator)!r} ({operator.kind}) cannot be divided by "
                "positions"
            )
    return ""


def attention_length(operators: Sequence[Operator]) -> int:
    """The positions of attention, which are the same everywhere if they can be divided."""
    return next(length for length, _ in _attention_lengths(operators))


def _attention_lengths(operators: Sequence[Operator]) -> Iterator[tuple[int, str]]:
    """The positions of each attention whose queries can be divided, and its path."""
    for operator in operators:
        split = operator.split("attribute")
        if split is not None and class_of(operator) == "attention":
            yield split.max_degree, _path(operator)
