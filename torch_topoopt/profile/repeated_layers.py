"""Finds repetitions of the same layer in a traced model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.op_graph import Operator, RepeatedLayer, layer_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.profile.tracing import Span


def repeated_layers(
    operators: Sequence[Operator], spans: Sequence[Span]
) -> tuple[RepeatedLayer, ...]:
    """Modules of one class whose calls consist of equal operators, by their first occurrence.

    Calls of one operator are no layers. Larger layers win: what repeats inside a repeated layer is
    not listed again; of modules that hold nothing but one another, the innermost is.
    """
    groups: dict[object, list[Span]] = {}
    seen: set[tuple[int, int]] = set()
    for span in spans:  # inner calls come first
        if span.end - span.begin > 1 and (span.begin, span.end) not in seen:
            seen.add((span.begin, span.end))
            form = (span.kind, layer_form(operators, span.begin, span.end))
            groups.setdefault(form, []).append(span)
    taken: set[int] = set()
    layers = []
    for group in sorted(groups.values(), key=lambda spans: spans[0].begin - spans[0].end):
        free = [span for span in group if taken.isdisjoint(range(span.begin, span.end))]
        if len(free) < 2:
            continue
        for span in free:
            taken.update(range(span.begin, span.end))
        starts = tuple(span.begin for span in free)
        layers.append(RepeatedLayer(free[0].kind, free[0].end - free[0].begin, starts))
    return tuple(sorted(layers, key=lambda layer: layer.starts))
