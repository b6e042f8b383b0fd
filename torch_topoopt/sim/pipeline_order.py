"""The order in which the stages of a pipeline run their passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch_topoopt.plan.layout import Layout

# "weights": the gradients of parameters, where a schedule computes them by themselves
Direction = Literal["forward", "backward", "weights"]


class StagePass(NamedTuple):
    """A pass of a micro-batch through one chunk of a stage; chunks are counted from 0 in each."""

    direction: Direction
    micro_batch: int
    chunk: int = 0


def pipeline_order(layout: Layout) -> list[list[StagePass]]:
    """The passes of every stage."""
    count = layout.micro_batches
    if layout.schedule == "zero-bubble":
        return _zero_bubble(layout.pipeline, count)
    if layout.schedule == "gpipe":
        ahead = [StagePass("forward", batch) for batch in range(count)]
        back = [StagePass("backward", batch) for batch in range(count)]
        return [ahead + back for _ in range(layout.pipeline)]
    return [_one_forward_one_backward(layout, stage) for stage in range(layout.pipeline)]


def _one_forward_one_backward(layout: Layout, stage: int) -> list[StagePass]:
    """Forward passes until the first backward one may begin, then turn by turn.

    With chunks as Narayanan et al. 2021, section 2.2.
    """
    stages, chunks = layout.pipeline, layout.interleave
    total = layout.micro_batches * chunks
    ahead = [_chunk_pass("forward", i, stages, chunks) for i in range(total)]
    back = [_chunk_pass("backward", i, stages, chunks) for i in range(total)]
    warm = stages - stage - 1
    if chunks > 1:
        warm = 2 * warm + (chunks - 1) * stages
    warm = min(warm, total)
    found = ahead[:warm]
    for one, other in zip(ahead[warm:], back, strict=False):
        found += [one, other]
    return found + back[total - warm :]


def _chunk_pass(direction: Direction, i: int, stages: int, chunks: int) -> StagePass:
    """StagePass i of a stage: `stages` micro-batches go through a chunk before the next one."""
    if chunks == 1:
        return StagePass(direction, i)
    turn, place = divmod(i, stages * chunks)
    chunk = place // stages
    if direction == "backward":
        chunk = chunks - 1 - chunk
    return StagePass(direction, turn * stages + place % stages, chunk)


def _zero_bubble(stages: int, count: int) -> list[list[StagePass]]:
    """ZB-H1 (Qi et al. 2023): gradients of parameters fill what 1F1B waits.

    Each stage takes, in steps of one pass, the first of these that it can: a backward pass, a
    forward one, gradients of parameters. It keeps no more micro-batches than the first stage of
    1F1B does.
    """
    orders: list[list[StagePass]] = [[] for _ in range(stages)]
    done = {name: [0] * stages for name in ("forward", "backward", "weights")}
    while any(done["weights"][stage] < count for stage in range(stages)):
        before = {name: list(counts) for name, counts in done.items()}
        for stage in range(stages):
            ahead, back, own = (before[name][stage] for name in done)
            last = stage == stages - 1
            arrived = ahead if last else before["backward"][stage + 1]
            sent = count if stage == 0 else before["forward"][stage - 1]
            if back < min(arrived, ahead):
                name: Direction = "backward"
            elif ahead < sent and ahead - back < stages - stage and ahead - own < stages:
                name = "forward"
            elif own < back:
                name = "weights"
            else:
                continue
            orders[stage].append(StagePass(name, before[name][stage]))
            done[name][stage] += 1
    return orders
