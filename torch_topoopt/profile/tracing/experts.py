"""Finds operators of a mixture of experts: products with a stack of matrices, one of each expert.

transformers and torchtitan sort tokens by expert and multiply them in one grouped product. Other
models give experts equally many places and multiply in a batched product. Elementwise operators
between two such products are of the experts, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.profile.tracing.records import storage_of

if TYPE_CHECKING:
    from torch_topoopt.profile.tracing.records import TracedOperator


def experts_of(traced: TracedOperator, *, elementwise: bool) -> int | None:
    """The number of experts that `traced` computes apart, each with tokens of its own.

    None if it has none. The producers of its operands have their `experts`.
    """
    if traced.stacks:
        counts = {shape[0] for shape in traced.stacks.values()}
        counts |= {p.shape[0] for p in traced.parameters if storage_of(p) not in traced.stacks}
    elif elementwise and not traced.parameters:
        producers = [r.producer for r in traced.reads.values() if r.producer is not None]
        found = {producer.experts for producer in producers}
        counts = {count for count in found if count is not None} if None not in found else set()
    else:
        return None
    return counts.pop() if len(counts) == 1 else None
