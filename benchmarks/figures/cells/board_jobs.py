"""Mixes of jobs on the boards of a HammingMesh (docs/planning/allocation.md)."""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from figures.papers.upper_bound import most_boards
from torch_topoopt.shared_networks.allocation.board_job import (
    DEFAULT_MOST_ASPECT,
    BoardJob,
    ShapeRules,
    aspect,
)
from torch_topoopt.shared_networks.allocation.boards import Boards
from torch_topoopt.shared_networks.allocation.schemes import SCHEMES, Heuristics
from torch_topoopt.shared_networks.allocation.tree_traffic import (
    all_reduce_bytes,
    all_to_all_bytes,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_topoopt.shared_networks.allocation.allocation import Allocation

DEPENDS_ON = ("csrc/allocation", "torch_topoopt/shared_networks/allocation")

MOST_BOARDS = 512  # of a job
EXPONENT = 1.5
POWERS_WEIGHT = 4.0
MOST_UNIFORM = 64
# Sets of heuristics, as figures name them.
VARIANTS: dict[str, tuple[str, Heuristics]] = {
    "greedy": ("greedy", Heuristics()),
    "transpose": ("greedy", Heuristics(ShapeRules(True))),
    "transpose + aspect": ("greedy", Heuristics(ShapeRules(True, DEFAULT_MOST_ASPECT))),
    "transpose + sort": ("greedy", Heuristics(ShapeRules(True), sort=True)),
    "transpose + aspect + sort": (
        "greedy",
        Heuristics(ShapeRules(True, DEFAULT_MOST_ASPECT), sort=True),
    ),
    "transpose + aspect + sort + locality": (
        "greedy",
        Heuristics(ShapeRules(True, DEFAULT_MOST_ASPECT), sort=True, locality=True),
    ),
    "ruin-recreate, transpose": ("ruin-recreate", Heuristics(ShapeRules(True), sort=True)),
    "ruin-recreate, transpose + aspect": (
        "ruin-recreate",
        Heuristics(ShapeRules(True, DEFAULT_MOST_ASPECT), sort=True),
    ),
    "ruin-recreate, transpose + aspect + locality": (
        "ruin-recreate",
        Heuristics(ShapeRules(True, DEFAULT_MOST_ASPECT), sort=True, locality=True),
    ),
}


# As VARIANTS: what no allocation exceeds whose jobs take these shapes.
BOUNDS: dict[str, ShapeRules] = {
    "bound, transpose": ShapeRules(True),
    "bound, transpose + aspect": ShapeRules(True, DEFAULT_MOST_ASPECT),
}


def size_weights(law: str, columns: int, rows: int) -> dict[int, float]:
    """The probability of each job size in boards, of those that are asked for.

    "powers": proportional to n^-1.5 up to 512, four times that for powers of two. "uniform": all
    alike up to 64. Without sizes whose squarest shape has an aspect above 8 or does not fit into
    `columns` x `rows` boards: nobody asks for these.
    """
    sizes = []
    for n in range(1, {"powers": MOST_BOARDS, "uniform": MOST_UNIFORM}[law] + 1):
        job = BoardJob.square("", n)
        shape = (job.rows, job.columns)
        fits = job.columns <= min(columns, rows)
        if fits and aspect(shape) <= DEFAULT_MOST_ASPECT:
            sizes.append(n)
    if law == "uniform":
        return dict.fromkeys(sizes, 1 / len(sizes))
    weights = {n: n**-EXPONENT * (POWERS_WEIGHT if n & (n - 1) == 0 else 1.0) for n in sizes}
    whole = sum(weights.values())
    return {n: weight / whole for n, weight in weights.items()}


def job_mixes(law: str, columns: int, rows: int, seed: int) -> Iterator[list[int]]:
    """Job sizes that fill `columns` x `rows` boards exactly, mix after mix.

    As section IV-B: sizes are drawn until the cluster is full, and those that do not fit begin the
    next mix. Sizes of a mix are in the order of the draws.
    """
    boards = columns * rows
    weights = size_weights(law, columns, rows)
    sizes, sums = list(weights), list(accumulate(weights.values()))
    source = random.Random(f"{law} {columns}x{rows} {seed}")
    kept: list[int] = []
    while True:
        mix: list[int] = []
        waiting, kept, left = kept, [], boards
        while left:
            size = waiting.pop(0) if waiting else sizes[bisect(sums, source.random() * sums[-1])]
            if size > left:
                kept.append(size)
            else:
                mix.append(size)
                left -= size
        kept += waiting
        yield mix


def allocations(
    law: str, columns: int, rows: int, count: int, variant: str, failed: int, seed: int
) -> Iterator[Allocation]:
    """One for each of `count` mixes, each with its own random failed boards."""
    scheme, heuristics = VARIANTS[variant]
    for number, mix in zip(range(count), job_mixes(law, columns, rows, seed), strict=False):
        jobs = [BoardJob.square(f"{i}", size) for i, size in enumerate(mix)]
        boards = Boards(columns, rows).with_random_failures(failed, seed + number)
        yield SCHEMES[scheme](boards, jobs, heuristics, seed=seed + number)


def bounds(
    law: str, columns: int, rows: int, count: int, rules: ShapeRules, seed: int
) -> Iterator[float]:
    """The share of boards that jobs can have at most (upper_bound.py), of each of `count` mixes."""
    boards = Boards(columns, rows)
    for _, mix in zip(range(count), job_mixes(law, columns, rows, seed), strict=False):
        jobs = [BoardJob.square(f"{i}", size) for i, size in enumerate(mix)]
        yield round(most_boards(boards, jobs, rules) / boards.working, 6)


# parameters: the mixes, the boards, and how jobs get them
def utilisations(
    *, law: str, columns: int, rows: int, mixes: int, variant: str, failed: int, seed: int
) -> list[float]:
    """The share of working boards that jobs have, or can have, mix by mix."""
    if variant in BOUNDS:
        return list(bounds(law, columns, rows, mixes, BOUNDS[variant], seed))
    every = allocations(law, columns, rows, mixes, variant, failed, seed)
    return [round(found.validate().utilisation, 6) for found in every]


# parameters: the mixes, the boards, and how jobs get them
def tree_fractions(
    *, law: str, columns: int, rows: int, mixes: int, variant: str, per_leaf: int, seed: int
) -> dict[str, list[float]]:
    """Of the bytes that enter trees those that cross an upper level, and the share of boards that
    jobs have, mix by mix."""
    found: dict[str, list[float]] = {"all-to-all": [], "AllReduce": [], "utilisation": []}
    for allocation in allocations(law, columns, rows, mixes, variant, 0, seed):
        places = list(allocation.validate().placed.values())
        to_all = total(all_to_all_bytes(own, per_leaf) for own in places)
        reduced = total(all_reduce_bytes(own, per_leaf) for own in places)
        found["all-to-all"].append(round(to_all.fraction, 6))
        found["AllReduce"].append(round(reduced.fraction, 6))
        found["utilisation"].append(round(allocation.utilisation, 6))
    return found


def boards_by_size(*, law: str, columns: int, rows: int, mixes: int, seed: int) -> dict[str, Any]:
    """The part of all boards that jobs of each size have: in the distribution, and in mixes."""
    weights = size_weights(law, columns, rows)
    whole = sum(n * p for n, p in weights.items())
    counts = dict.fromkeys(weights, 0)
    for _, mix in zip(range(mixes), job_mixes(law, columns, rows, seed), strict=False):
        for size in mix:
            counts[size] += size
    return {
        "distribution": [[n, n * p / whole] for n, p in weights.items()],
        "mixes": [[n, count / (columns * rows * mixes)] for n, count in counts.items()],
        "jobs_mean_boards": whole,
    }


def figure_5() -> dict[str, Any]:
    """The sub-meshes of the left part of Figure 5, as (column, row) counted from 1."""
    boards = Boards(4, 4, frozenset({(1, 2), (2, 1), (2, 2)}))
    found = {}
    for name, shape in (("blue", (2, 4)), ("yellow", (3, 3))):
        job = BoardJob(name, *shape)
        own = SCHEMES["greedy"](boards, [job]).placed[job]
        found[name] = sorted([column + 1, row + 1] for row, column in own.boards())
    return found
