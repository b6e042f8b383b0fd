"""Cutting a graph into stages, against all ways of doing it."""

from __future__ import annotations

import itertools
import random

import pytest
from support.small_op_graphs import chain, graph, operator

from torch_topoopt.search.stages import any_stages, cut_points, equal_stages


def test_a_graph_is_cut_where_one_tensor_crosses() -> None:
    assert cut_points(chain(4)) == (1, 2, 3)
    residual = graph(
        operator("in"),
        operator("branch", (0, 8, 8)),
        operator("add", (0, 8, 8), (1, 8, 8)),
        operator("out", (2, 8, 8)),
    )
    assert cut_points(residual) == (1, 3), "a skip connection and its branch are two tensors"
    two_inputs = graph(operator("a"), operator("b"), operator("c", (0, 8, 8), (1, 8, 8)))
    assert cut_points(two_inputs) == (1,)


def longest(
    seconds: dict[int, list[float]], cuts: tuple[int, ...], widths: tuple[int, ...]
) -> float:
    bounds = itertools.pairwise((0, *cuts, len(seconds[1])))
    return max(
        sum(seconds[width][begin:end]) for width, (begin, end) in zip(widths, bounds, strict=True)
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_other_stages_have_a_faster_slowest_one(seed: int) -> None:
    rng = random.Random(seed)
    operators, servers, stages = rng.randint(3, 7), rng.choice([4, 6, 8]), rng.randint(2, 4)
    alone = [rng.random() for _ in range(operators)]
    seconds = {
        width: [time_s / width ** rng.choice([0.5, 1.0]) for time_s in alone]
        for width in (1, 2, 3, 4)
        if servers % width == 0
    }
    cuts = tuple(sorted(rng.sample(range(1, operators), rng.randint(1, operators - 1))))
    best = min(
        (
            longest(seconds, chosen, widths)
            for chosen in itertools.combinations(cuts, stages - 1)
            for widths in itertools.product(seconds, repeat=stages)
            if sum(widths) == servers
        ),
        default=None,
    )
    found = any_stages(seconds, cuts, servers, stages)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert sum(found.widths) == servers
        assert set(found.cuts) <= set(cuts)
        assert found.longest_s == pytest.approx(longest(seconds, found.cuts, found.widths))
        assert found.longest_s == pytest.approx(best, rel=1e-6)


def test_equal_stages_say_how_long_the_longest_takes() -> None:
    found = equal_stages([1.0, 2.0, 3.0, 1.0], (1, 2, 3), 2, 2)
    assert found is not None
    assert (found.cuts, found.widths, found.seconds) == ((2,), (2, 2), (3.0, 4.0))
    assert found.longest_s == 4.0
    assert equal_stages([1.0, 2.0], (1,), 2, 3) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_other_equal_stages_have_a_faster_slowest_one(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.random() for _ in range(3)] if seed % 2 else [0.0, 1.0, 2.0]
    seconds = [rng.choice(kinds) for _ in range(rng.randint(2, 9))]
    cuts = tuple(i for i in range(1, len(seconds)) if rng.random() < 0.8)
    for stages in range(1, len(seconds) + 1):
        every = itertools.combinations(cuts, stages - 1)
        lengths = [longest({1: seconds}, chosen, (1,) * stages) for chosen in every]
        found = equal_stages(seconds, cuts, 1, stages)
        assert (found is None) == (not lengths)
        if found is not None:
            assert longest({1: seconds}, found.cuts, found.widths) == pytest.approx(min(lengths))
