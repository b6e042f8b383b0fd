"""The space of strategies: how each operator may be split, and onto which servers.

An operator is split along its samples, its parameters or its positions, if its OpGraph allows it.
The number of servers divides n; they are consecutive or at equal distance. One server holds the
whole operator. FlexFlow, as used by the TopoOpt paper, splits samples only: `dimensions=()`.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import PARAMETER_KINDS, Degrees, Placement, validate_placement
from torch_topoopt.search.shards import is_even, may_split

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch_topoopt.op_graph import Operator, OpGraph, SplitDimension
    from torch_topoopt.search.strategies import Executable, Strategy

ServerSet = tuple[int, ...]
DIMENSIONS: tuple[SplitDimension, ...] = (*PARAMETER_KINDS, "attribute")  # in addition to samples


@dataclass(frozen=True)
class SplitChoice:
    """One way of splitting an operator, and the servers that may share it, in shard order."""

    degrees: Degrees
    arrangements: tuple[ServerSet, ...]


@dataclass(frozen=True)
class StrategySpace:
    """`moves[s]` are the placements of operators of kind s; `kind[i]` is operator i's kind."""

    moves: tuple[tuple[SplitChoice, ...], ...]
    kind: tuple[int, ...]

    def moves_of(self, operator: int) -> tuple[SplitChoice, ...]:
        return self.moves[self.kind[operator]]

    def groups(self) -> tuple[list[Placement], list[list[list[int]]]]:
        """All placements, and per kind their numbers in groups; a search draws a group first.

        There is one group per number of servers that share samples, and one per other dimension and
        number of servers. So the many parameter splits do not crowd out the few sample splits.
        """
        placements: list[Placement] = []
        numbers: dict[int, range] = {}  # by the identity of a choice, which kinds share
        for choice in itertools.chain.from_iterable(self.moves):
            if id(choice) not in numbers:
                begin = len(placements)
                placements += (
                    Placement.of("", servers, choice.degrees) for servers in choice.arrangements
                )
                numbers[id(choice)] = range(begin, len(placements))
        return placements, [_grouped(moves, numbers) for moves in self.moves]


def _grouped(moves: Iterable[SplitChoice], numbers: Mapping[int, range]) -> list[list[int]]:
    groups: dict[tuple[str | None, bool, int], list[int]] = {}
    for move in moves:
        degrees = move.degrees
        count = len(move.arrangements[0])
        group = groups.setdefault((degrees.kind, degrees.attribute > 1, count), [])
        group += numbers[id(move)]
    return list(groups.values())


def shard_counts(servers: int, batch_size: int) -> tuple[int, ...]:
    """The numbers of servers that may share a batch: divisors of `servers`, one sample each."""
    return tuple(k for k in range(1, min(servers, batch_size) + 1) if servers % k == 0)


@functools.lru_cache(maxsize=32)  # all degrees of as many shards share them
def server_sets(servers: int, count: int) -> tuple[ServerSet, ...]:
    """All sets of `count` consecutive or equally spaced servers, from every start, without repeats.

    `count` must divide `servers`. Consecutive sets wrap around from the last server to the first.
    """
    if count < 1 or servers % count:
        raise ValueError(f"count: {count} does not divide {servers} servers")
    stride = servers // count
    sets = {tuple(sorted((s + i) % servers for i in range(count))) for s in range(servers)}
    sets |= {tuple(range(s, servers, stride)) for s in range(stride)}
    return tuple(sorted(sets))


def arrangements(servers: int, degrees: Degrees) -> tuple[ServerSet, ...]:
    """All placements of `degrees` in the space: their servers, in shard order.

    Every set of `server_sets`, ascending. Where samples and something else are split, there is a
    second order: shards that share samples are adjacent instead of those that share parameters.
    """
    inner = degrees.parameter * degrees.attribute
    found = []
    for members in server_sets(servers, degrees.sample * inner):
        found.append(members)
        if degrees.sample > 1 and inner > 1:
            found.append(
                tuple(
                    members[k * degrees.sample + i]
                    for i in range(degrees.sample)
                    for k in range(inner)
                )
            )
    return tuple(found)


def strategy_space(
    op_graph: OpGraph,
    servers: int,
    executable: Executable | None = None,
    *,
    dimensions: Collection[SplitDimension] = (),
    micro_batches: int = 1,
) -> StrategySpace:
    """The placements of every operator of `op_graph` on `servers` servers that are `executable`.

    Operators are split by samples, at least one per part and micro-batch, and along `dimensions`,
    but not by parameters and positions at once. An operator that is not splittable by samples runs
    whole on one server or, as in data parallelism, on every server for the local samples. Raises
    ValueError for an operator without a placement.
    """
    counts = shard_counts(servers, op_graph.batch_size // micro_batches)
    made: dict[Degrees, SplitChoice] = {}
    filtered: dict[SplitChoice, SplitChoice] = {}
    # Equal choices are one object, so that kinds are compared by identity.
    kinds: dict[tuple[int, ...], tuple[SplitChoice, ...]] = {}
    of_operator = []
    for operator in op_graph.operators:
        moves = []
        for degrees in _degrees(operator, servers, counts, dimensions):
            if degrees not in made:
                made[degrees] = SplitChoice(degrees, arrangements(servers, degrees))
            move = made[degrees]
            if executable is not None:
                name = operator.name
                kept = (s for s in move.arrangements if executable(Placement.of(name, s, degrees)))
                fewer = SplitChoice(degrees, tuple(kept))
                move = filtered.setdefault(fewer, fewer)
            if move.arrangements:
                moves.append(move)
        if not moves:
            raise ValueError(f"executable: operator {operator.name!r} may run on no servers")
        key = tuple(map(id, moves))
        kinds.setdefault(key, tuple(moves))
        of_operator.append(key)
    numbers = {key: number for number, key in enumerate(kinds)}
    return StrategySpace(tuple(kinds.values()), tuple(numbers[key] for key in of_operator))


def every_strategy(
    op_graph: OpGraph, servers: int, dimensions: Collection[SplitDimension] = ()
) -> list[Strategy]:
    """All strategies of a strategy_space, for jobs small enough for exhaustive search."""
    space = strategy_space(op_graph, servers, dimensions=dimensions)
    choices = [
        [
            Placement.of(operator.name, members, move.degrees)
            for move in space.moves_of(i)
            for members in move.arrangements
        ]
        for i, operator in enumerate(op_graph.operators)
    ]
    return list(itertools.product(*choices))


def _degrees(
    operator: Operator, servers: int, counts: tuple[int, ...], dimensions: Collection[str]
) -> list[Degrees]:
    """Samples first, then each of `dimensions`, alone and together with samples."""
    if not operator.splittable:
        counts = tuple(k for k in sorted({1, counts[-1]}) if k in (1, servers))
    found = [Degrees(k) for k in counts]
    for sample, parts in itertools.product(counts, range(2, servers + 1)):
        if servers % (sample * parts):
            continue
        for dimension in dimensions:
            degrees = (
                Degrees(sample, attribute=parts)
                if dimension == "attribute"
                else Degrees(sample, dimension, parts)  # type: ignore[arg-type]
            )
            if may_split(operator, degrees):
                found.append(degrees)
    return found


def check_strategy(
    op_graph: OpGraph,
    servers: int,
    strategy: Strategy,
    *,
    micro_batches: int = 1,
    checked: Strategy = (),
) -> Strategy:
    """Returns `strategy`, or raises ValueError with one line for the first broken rule.

    Each operator of `op_graph`, in order, is on distinct servers, split as it allows, with at least
    one sample per part of a micro-batch. Micro-batches are equal, and the stages of a pipeline
    follow each other. Placements that are those of `checked` need no check of their own.
    """
    names = [operator.name for operator in op_graph.operators]
    if [placement.operator for placement in strategy] != names:
        raise ValueError(
            f"strategy: must place the {len(names)} operators of {op_graph.model} in their order"
        )
    if micro_batches < 1 or op_graph.batch_size % micro_batches:
        raise ValueError(
            f"micro_batches: {micro_batches} does not divide the batch of {op_graph.batch_size}"
        )
    samples = op_graph.batch_size // micro_batches
    before = checked or (None,) * len(strategy)
    for operator, placement, same in zip(op_graph.operators, strategy, before, strict=True):
        if placement is same:
            continue
        where = f"strategy ({placement.operator})"
        validate_placement(where, placement, servers)
        if placement.sample > samples:
            raise ValueError(
                f"{where}.servers: {samples} samples cannot be shared by {placement.sample} servers"
                + (f" ({micro_batches} micro-batches)" if micro_batches > 1 else "")
            )
        _check_splits(where, operator, placement)
    if micro_batches > 1:
        producers = [[o.producer for o in operator.operands] for operator in op_graph.operators]
        _core.micro_batches_in_flight(strategy, producers, servers, micro_batches)
    return strategy


def _check_splits(where: str, operator: Operator, placement: Placement) -> None:
    for dimension in DIMENSIONS:
        degree = getattr(placement, dimension)
        split = operator.split(dimension)
        if degree == 1 or (split is not None and is_even(split, degree)):
            continue
        allowed = ", ".join(f"{s.dimension} in at most {s.max_degree}" for s in operator.splits)
        reason = (
            f"{degree} parts of {split.max_degree} would differ by too much"
            if split is not None and degree <= split.max_degree
            else f"{degree}, but this {operator.kind} may be split by {allowed or 'samples only'}"
        )
        raise ValueError(f"{where}.{dimension}: {reason}")
