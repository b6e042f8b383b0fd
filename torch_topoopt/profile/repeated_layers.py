"""Finds repetitions of the same layer in a traced model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.op_graph import Operator, OpGraph, RepeatedLayer, layer_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.profile.tracing import Span


def repeated_layers(
    operators: Sequence[Operator], spans: Sequence[Span]
) -> tuple[RepeatedLayer, ...]:
    """Modules of a class of which at least two calls consist of equal operators, in order.

    Other calls of that class are layers that occur once. Calls of one operator are no layers.
    Larger layers win: what repeats inside a layer is not listed again; of modules that hold nothing
    but one another, the innermost is.
    """
    groups: dict[object, list[Span]] = {}
    seen: set[tuple[int, int]] = set()
    for span in spans:  # inner calls come first
        if span.end - span.begin > 1 and (span.begin, span.end) not in seen:
            seen.add((span.begin, span.end))
            form = (span.kind, layer_form(operators, span.begin, span.end))
            groups.setdefault(form, []).append(span)
    by_size = sorted(groups.values(), key=lambda spans: spans[0].begin - spans[0].end)
    taken: set[int] = set()
    layers: list[RepeatedLayer] = []

    def take(group: Sequence[Span], least: int) -> bool:
        free = [span for span in group if taken.isdisjoint(range(span.begin, span.end))]
        if len(free) < least:
            return False
        for span in free:
            taken.update(range(span.begin, span.end))
        starts = tuple(span.begin for span in free)
        layers.append(RepeatedLayer(free[0].kind, free[0].end - free[0].begin, starts))
        return True

    for group in by_size:
        if take(group, 2):
            for other in by_size:
                if other[0].kind == group[0].kind and not _holds_its_kind(other[0], spans):
                    take(other, 1)
    return tuple(sorted(layers, key=lambda layer: layer.starts))


def _holds_its_kind(span: Span, spans: Sequence[Span]) -> bool:
    """Whether a module of the class of `span` runs within it."""
    return any(
        other.kind == span.kind and other.path.startswith(f"{span.path}.") for other in spans
    )


def with_occurrences(op_graph: OpGraph, count: int) -> OpGraph:
    """`op_graph` whose only repeated layer occurs `count` times, one after the other.

    So a deep model is profiled with two of its layers. Raises ValueError unless there is one
    repeated layer, whose occurrences follow each other.
    """
    if len(op_graph.layers) != 1:
        raise ValueError(f"layers: {len(op_graph.layers)} repeat, not one")
    layer = op_graph.layers[0]
    begin, length = layer.starts[0], layer.length
    end = begin + length * len(layer.starts)
    if layer.starts != tuple(range(begin, end, length)):
        raise ValueError(f"layers: those of {layer.kind} do not follow each other")
    operators = list(op_graph.operators[:begin])
    # the second occurrence: what it reads of the one before is the same in all later ones
    second = op_graph.operators[begin + length : begin + 2 * length]
    for i in range(count):
        of = op_graph.operators[begin : begin + length] if i == 0 else second
        shift = 0 if i == 0 else (i - 1) * length
        operators += [_moved(operator, begin, shift, f"#{i}") for operator in of]
    shift = begin + count * length - end
    operators += [_moved(operator, begin, shift, "") for operator in op_graph.operators[end:]]
    starts = tuple(range(begin, begin + count * length, length))
    layers = (replace(layer, starts=starts),) if count > 1 else ()
    return replace(op_graph, operators=tuple(operators), layers=layers).validate()


def _moved(operator: Operator, begin: int, shift: int, suffix: str) -> Operator:
    """`operator`, whose operands from `begin` on are `shift` operators later."""
    operands = tuple(
        replace(operand, producer=operand.producer + shift * (operand.producer >= begin))
        for operand in operator.operands
    )
    return replace(operator, name=operator.name + suffix, operands=operands)
