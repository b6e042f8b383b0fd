"""The C++ max-min solver against progressive filling in exact fractions."""

from __future__ import annotations

import random

import pytest
from oracles.exact_max_min import Path, exact_rates

from torch_topoopt import _core


def random_instance(rng: random.Random) -> tuple[list[float], list[Path]]:
    links = rng.randint(1, 12)
    capacity = [float(rng.choice([1, 2, 3, 5, 8])) for _ in range(links)]
    paths: list[Path] = []
    for _ in range(rng.randint(1, 20)):
        chosen = rng.sample(range(links), rng.randint(1, min(4, links)))
        paths.append([(link, rng.choice([0.25, 0.5, 1.0, 1.0, 2.0])) for link in chosen])
    return capacity, paths


@pytest.mark.parametrize("seed", range(60))
def test_rates_equal_the_exact_reference_after_every_change(seed: int) -> None:
    rng = random.Random(seed)
    capacity, paths = random_instance(rng)
    solver = _core.MaxMinRates(capacity, paths)
    counts = [0] * len(paths)
    for _ in range(25):
        for _ in range(rng.randint(1, 3)):
            path = rng.randrange(len(paths))
            delta = -1 if counts[path] and rng.random() < 0.5 else rng.randint(1, 2)
            counts[path] += delta
            solver.change(path, delta)
        rates, _ = solver.solve()
        assert rates == pytest.approx(
            [float(r) for r in exact_rates(capacity, paths, counts)], rel=1e-9
        )


def test_a_change_visits_only_what_shares_links_with_it() -> None:
    # 100 separate links: a new flow on one must not touch the other 99.
    paths: list[Path] = [[(i, 1.0)] for i in range(100)]
    solver = _core.MaxMinRates([1.0] * 100, paths)
    for path in range(100):
        solver.change(path, 1)
    assert solver.solve()[1] == 100
    solver.change(7, 1)
    rates, visited = solver.solve()
    assert visited == 1
    assert rates[7] == 0.5


def test_rates_below_a_change_are_kept() -> None:
    # Flow 0 is limited to 1 by link 0; the share of the wide link 1 above that cannot reach it: of
    # the two links, one gets a new level.
    solver = _core.MaxMinRates([1.0, 100.0], [[(0, 1.0), (1, 1.0)], [(1, 1.0)]])
    solver.change(0, 1)
    solver.change(1, 1)
    assert solver.solve()[0] == [1.0, 99.0]
    solver.change(1, 1)
    rates, visited = solver.solve()
    assert rates == [1.0, 49.5]
    assert visited == 1


def test_a_path_that_crosses_a_link_twice_loads_it_twice() -> None:
    solver = _core.MaxMinRates([10.0], [[(0, 1.0), (0, 1.0)]])
    solver.change(0, 1)
    assert solver.solve()[0] == [5.0]
