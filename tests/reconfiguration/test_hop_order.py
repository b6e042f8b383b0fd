"""The order of hops in which no relay has to send what has just come, if it has anything else."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.matrices import zipf

from torch_topoopt.reconfiguration.all_to_all.sweep import strategies
from torch_topoopt.reconfiguration.all_to_all.uneven import uneven_strategy
from torch_topoopt.reconfiguration.circuit_messages import hops_of
from torch_topoopt.reconfiguration.hop_order import without_waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.reconfiguration.hop_order import Hop


def replayed(hops: Sequence[Hop]) -> tuple[int, int]:
    """Slots of the busiest circuit, and hops in the slot after the one in which their chunk came;
    every circuit sends its hops in their order, each as soon as it can."""
    free: dict[tuple[int, int], int] = defaultdict(int)
    at: dict[tuple[int, ...], tuple[int, int]] = {}  # chunk -> where it is, and since when
    at_once = 0
    for sender, receiver, *chunk in hops:
        where, since = at.get(tuple(chunk), (sender, -1))
        assert where == sender
        slot = max(free[sender, receiver], since)
        at_once += slot == since
        free[sender, receiver] = slot + 1
        at[tuple(chunk)] = (receiver, slot + 1)
    return max(free.values()), at_once


@pytest.mark.parametrize(("servers", "degree"), [(8, 1), (12, 1), (9, 2), (12, 2)])
def test_no_slot_is_lost_and_next_to_no_chunk_goes_on_as_it_comes(
    servers: int, degree: int
) -> None:
    before = after = 0
    counts = np.ceil(zipf(servers, 0.4, 1000) / 250).astype(np.int32)
    evens = list(strategies(servers, degree))
    unevens = [uneven_strategy(even, counts) for even in evens[:3]]
    for strategy in evens + unevens:
        for hops in hops_of(strategy.schedule):
            ordered = without_waiting(hops)
            assert sorted(ordered) == sorted(hops)
            slots, at_once = replayed(hops)
            ordered_slots, ordered_at_once = replayed(ordered)
            assert ordered_slots <= slots
            before += at_once
            after += ordered_at_once
    assert before > 50
    assert after < 0.1 * before
