"""The integer program of few servers: bounds that schedules meet or do not."""

from __future__ import annotations

import pytest
from oracles.slot_program import least_slots
from support.limits import limit_s

from torch_topoopt.reconfiguration.all_to_all.sweep import strategies


@pytest.mark.parametrize(("n", "k", "d"), [(3, 1, 1), (4, 1, 1), (4, 1, 2), (5, 1, 2), (5, 2, 1)])
def test_strategies_of_few_servers_are_optimal(n: int, k: int, d: int) -> None:
    found = least_slots(n, k, d, limit_s=limit_s(60))
    assert found.solved
    assert next(strategies(n, k, first=d)).slots == found.proven_slots


def test_what_is_proven_in_no_time_is_the_bound() -> None:
    found = least_slots(6, 1, 2, limit_s=1e-3)
    assert not found.solved
    assert found.proven_slots == 8
