"""Ways to choose a path for every flow.

`greedy` is the paper's (section 3.4.1), with its components in parallel (3.4.3); `ecmp`,
`colouring`, `annealing` and `exact` are the paper's baselines. `local-search` equals the exact
optimum for equal demands without dead links, and is close to it elsewhere.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.route_control.exact import exact_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.route_control.flows import RoutingProblem

    Choice = list[int]

_STEPS_PER_FLOW = 200  # of annealing
_LEAST_MOVES, _MOST_MOVES = 200, 2000  # random moves after which `local-search` ends:
_MOVED_FLOWS = 100_000  # this over the number of flows, within these bounds


def ecmp_paths(problem: RoutingProblem, seed: int = 0) -> Choice:
    """A hash of each flow's ends and number picks its path, as switches hash headers: CRC-32."""
    choice = []
    for i, flow in enumerate(problem.flows):
        count = len(problem.network.paths(flow.source, flow.target))
        header = b"%d %d %d %d" % (seed, flow.source, flow.target, i)
        choice.append(zlib.crc32(header) % count)
    return choice


def greedy_paths(problem: RoutingProblem, seed: int = 0) -> Choice:
    """Flows in their order, each over the least congested path so far; `seed` changes nothing."""
    return _greedy(problem, range(len(problem.flows)))


def annealed_paths(problem: RoutingProblem, seed: int = 0) -> Choice:
    """Simulated annealing (Hedera), from ECMP's choice."""
    steps = _STEPS_PER_FLOW * len(problem.flows)
    start = ecmp_paths(problem, seed)
    return problem.table.annealed(problem.pairs, problem.demands, start, steps, seed)


def coloured_paths(problem: RoutingProblem, seed: int = 0) -> Choice:
    """Edge colouring of the graph of ToRs, a colour for each spine, regardless of demands.

    Raises ValueError for a network that is not leaf-spine, or whose ToRs do not all reach the same
    spines, which are the colours.
    """
    spines = problem.network.common_spines
    if spines is None:
        raise ValueError("scheme: colouring needs a leaf-spine network whose ToRs have all links")
    return _coloured(problem, spines)


def local_search_paths(problem: RoutingProblem, seed: int = 0) -> Choice:
    """Edge colouring where it is exact; else the largest flows first, and chains of changes until
    the bound is reached or no tried change helps."""
    demands = problem.demands
    spines = problem.network.common_spines
    if spines is not None and problem.network.is_uniform and problem.is_alike:
        return _coloured(problem, spines)
    order = sorted(range(len(demands)), key=lambda i: -demands[i])
    start = _greedy(problem, order)
    bound = problem.bound()
    if problem.max_link_load(start) <= bound:
        return start
    moves = min(max(_MOVED_FLOWS // len(demands), _LEAST_MOVES), _MOST_MOVES)
    return problem.table.improved(problem.pairs, demands, start, bound, moves, seed)


SCHEMES: Mapping[str, Callable[..., list[int]]] = {
    "greedy": greedy_paths,
    "ecmp": ecmp_paths,
    "colouring": coloured_paths,
    "annealing": annealed_paths,
    "exact": exact_paths,
    "local-search": local_search_paths,
}


def _greedy(problem: RoutingProblem, order: range | list[int]) -> Choice:
    threads = len(os.sched_getaffinity(0))
    return problem.table.greedy(problem.pairs, problem.demands, list(order), threads)


def _coloured(problem: RoutingProblem, spines: int) -> Choice:
    return _core.coloured_pairs(problem.network.tors, problem.ends, problem.pairs, spines)
