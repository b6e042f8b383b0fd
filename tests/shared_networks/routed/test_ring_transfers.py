"""Rings on shared links, against a simulation that computes all rates anew at every event."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from support.refusals import refused

from torch_topoopt import _core

Ring = tuple[list[list[int]], float, int]  # paths of the hops, bytes of a hop in a round, rounds


def drawn(seed: int) -> tuple[list[float], list[Ring]]:
    random_ = random.Random(seed)
    capacity = [random_.uniform(1.0, 9.0) for _ in range(random_.randint(2, 7))]
    links = range(len(capacity))
    rings = [
        (
            [
                random_.sample(links, random_.randint(1, min(3, len(links))))
                for _ in range(random_.randint(1, 4))
            ],
            random_.uniform(1.0, 20.0),
            random_.randint(1, 4),
        )
        for _ in range(random_.randint(1, 5))
    ]
    return capacity, rings


def slow_ends(capacity: list[float], rings: list[Ring]) -> list[float]:
    """When each ring ends, all begun at 0."""
    left = {(r, h): size for r, (hops, size, _) in enumerate(rings) for h in range(len(hops))}
    rounds = [count for _, _, count in rings]
    ends = [0.0] * len(rings)
    now = 0.0
    while left:
        flows = list(left)
        rates, _ = _core.max_min_rates(capacity, [rings[r][0][h] for r, h in flows])
        step = min(left[flow] / rate for flow, rate in zip(flows, rates, strict=True))
        now += step
        for (r, h), rate in zip(flows, rates, strict=True):
            left[r, h] -= rate * step
            if left[r, h] < 1e-9 * rings[r][1]:
                del left[r, h]
        for r in {r for r, _ in flows} - {r for r, _ in left}:
            rounds[r] -= 1
            if rounds[r]:
                left |= {(r, h): rings[r][1] for h in range(len(rings[r][0]))}
            else:
                ends[r] = now
    return ends


@pytest.mark.parametrize("seed", range(60))
def test_rings_end_as_in_a_simulation_of_every_event(seed: int) -> None:
    capacity, rings = drawn(seed)
    transfers = _core.RingTransfers(capacity)
    for number, ring in enumerate(rings):
        assert transfers.start(*ring) == number
    ends = [0.0] * len(rings)
    left = len(rings)
    while left:
        for number in transfers.advance(math.inf):
            ends[number] = transfers.now_s
            left -= 1
    assert ends == pytest.approx(slow_ends(capacity, rings), rel=1e-6)
    crossed: Counter[int] = Counter()
    for number, (hops, size_bytes, rounds) in enumerate(rings):
        count, seconds, rates, sent_bytes = transfers.ended_flows(number)
        assert count == rounds * len(hops)
        assert sent_bytes == pytest.approx(count * size_bytes, rel=1e-6)
        assert rates >= count * count * size_bytes / seconds * (1 - 1e-6), "means of quotients"
        for hop in hops:
            crossed.update(dict.fromkeys(hop, rounds * size_bytes))
    for link, sent_bytes in crossed.items():
        assert sent_bytes <= capacity[link] * max(ends) * (1 + 1e-6)


def test_what_was_sent_before_a_change_of_paths_counts() -> None:
    transfers = _core.RingTransfers([1.0, 4.0])
    ring = transfers.start([[0]], 10.0, 1)
    assert transfers.advance(2.0) == []
    transfers.reroute(ring, [[1]])
    assert transfers.advance(math.inf) == [ring]
    assert transfers.now_s == pytest.approx(2 + 8 / 4)


def test_time_passes_without_rings() -> None:
    transfers = _core.RingTransfers([1.0])
    assert transfers.advance(3.0) == []
    assert transfers.now_s == 3.0
    assert transfers.advance(math.inf) == []
    assert transfers.now_s == 3.0


def test_hosts_of_a_ring_wait_for_each_other_after_every_round() -> None:
    transfers = _core.RingTransfers([1.0, 2.0])
    transfers.start([[0], [1]], 2.0, 3)
    transfers.start([[1]], 100.0, 1)
    assert transfers.advance(math.inf) == [0]
    assert transfers.now_s == pytest.approx(6.0), "three rounds of the slower hop"
    transfers.advance(math.inf)
    assert transfers.now_s == pytest.approx((100 + 3 * 2) / 2), "the second link was always full"


@pytest.mark.parametrize(
    ("hops", "size_bytes", "rounds", "tokens"),
    [
        ([], 1.0, 1, ("hops", "one")),
        ([[0], []], 1.0, 1, ("hops", "one")),
        ([[0, 2]], 1.0, 1, ("hops", "link 2")),
        ([[0]], 0.0, 1, ("size_bytes", "0.000000", 0)),
        ([[0]], math.inf, 1, ("size_bytes", 0, "inf")),
        ([[0]], 1.0, 0, ("rounds", 0, 1)),
    ],
)
def test_a_ring_that_cannot_run_is_refused(
    hops: list[list[int]], size_bytes: float, rounds: int, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        _core.RingTransfers([1.0, 1.0]).start(hops, size_bytes, rounds)


def test_a_change_fits_the_ring() -> None:
    transfers = _core.RingTransfers([1.0])
    ring = transfers.start([[0], [0]], 1.0, 1)
    with refused(ValueError, "ring", 0, 2, 1):
        transfers.reroute(ring, [[0]])
    with refused(ValueError, "ring", 1):
        transfers.reroute(1, [[0]])
    transfers.advance(math.inf)
    with refused(ValueError, "ring", 0, 2):
        transfers.reroute(ring, [[0], [0]])
    with refused(ValueError, "capacity", "0.000000", 0):
        _core.RingTransfers([1.0, 0.0])
