"""Starts that split parameters, and positions where samples do not suffice.

A layer split by columns is followed by one split by rows. Such a pair, with the elementwise
operators between them, moves nothing inside (Shoeybi et al., Megatron-LM, 2019, section 3).
Everything else shares samples and, where there are fewer of them than servers, positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import PARAMETER_KINDS, Degrees, Placement
from torch_topoopt.search.shards import is_even, may_split
from torch_topoopt.search.starts.case import parameter_kinds
from torch_topoopt.search.starts.fitting import fastest_s, fitting, timed
from torch_topoopt.search.strategies import heavy_operators, most_parts
from torch_topoopt.search.traffic import transfer_count

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch_topoopt.op_graph import Operator, OpGraph, SplitDimension
    from torch_topoopt.plan import ParameterKind
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.starts.case import Named, StartCase
    from torch_topoopt.search.strategies import Strategy

_FASTEST = 2  # number of fitting strategies that become starts
_MOST_TIMES = 10  # factor on the transfer limit where nothing below it fits into memory
_NEAR = 1.25  # keep split starts up to 1.25 times the best other start


def split_strategy(
    op_graph: OpGraph,
    servers: Sequence[tuple[int, ...]],
    parts: int,
    chosen: Collection[int],
    samples: int,
    dimensions: Collection[SplitDimension],
    first: ParameterKind = "columns",
) -> Strategy:
    """Operators `chosen`, by index, in `parts` of their parameters where they allow that.

    Operator i gets servers of `servers[i]`, whose number `parts` divides; at most `samples` of them
    share samples. Splits follow `dimensions`, with `first` tried first: rows move more bytes, but
    keep only their part of their input.
    """
    order = sorted(PARAMETER_KINDS, key=lambda kind: kind != first)
    placed: list[Placement] = []
    for i, operator in enumerate(op_graph.operators):
        mine = servers[i]
        sample = most_parts(len(mine) // parts, samples)
        group = mine[: sample * parts]
        before = [placed[o.producer] for o in operator.operands if o.size_bytes]
        follows = _shared_kind(before, group, parts)
        kinds = [kind for kind in order if kind in dimensions and parts > 1]
        kind = _parameter_kind(operator, i in chosen, follows, parts, kinds)
        if kind is not None:
            placed.append(Placement.of(operator.name, group, Degrees(sample, kind, parts)))
        else:
            placed.append(_shared(operator, mine, group, samples, "attribute" in dimensions))
    return tuple(placed)


def _shared_kind(
    before: Sequence[Placement], group: tuple[int, ...], parts: int
) -> ParameterKind | None:
    """How all operands are split into `parts` on `group`, if operators between can follow it."""
    for kind in ("columns", "experts"):
        if before and all(
            p.servers == group and p.parameter_kind == kind and p.parameter == parts > 1
            for p in before
        ):
            return kind  # type: ignore[return-value]
    return None


def _parameter_kind(
    operator: Operator,
    chosen: bool,
    follows: ParameterKind | None,
    parts: int,
    kinds: Sequence[ParameterKind],
) -> ParameterKind | None:
    """The dimension among `kinds`; `follows`: how its operands are split already."""
    if not chosen and follows is None:
        return None
    splits = {
        kind: split for kind in kinds if (split := operator.split(kind)) and is_even(split, parts)
    }
    if follows == "experts" and "experts" in splits:
        return "experts"
    if follows == "columns":
        rows, columns = splits.get("rows"), splits.get("columns")
        if chosen and rows is not None and rows.operands == "part":
            return "rows"
        if columns is not None and columns.operands == "part":
            return "columns"
    return next(iter(splits), None) if chosen else None


def _shared(
    operator: Operator,
    servers: tuple[int, ...],
    group: tuple[int, ...],
    samples: int,
    positions: bool,
) -> Placement:
    """On as many servers as its samples and positions allow."""
    if not operator.splittable:
        return Placement(operator.name, servers if len(servers) <= samples else servers[:1])
    for members in (servers, group):
        sample = most_parts(len(members), samples)
        degrees = Degrees(sample, attribute=len(members) // sample)
        if degrees.attribute == 1 or (positions and may_split(operator, degrees)):
            return Placement.of(operator.name, members, degrees)
    sample = most_parts(len(group), samples)
    return Placement(operator.name, group[:: len(group) // sample])


def layers_in_parts(case: StartCase) -> Named:
    """Megatron's pairs of columns and rows, experts, and the largest layers alone."""
    op_graph, cluster = case.problem.op_graph, case.problem.cluster
    count = len(op_graph.operators)
    chosen = {
        "layers": frozenset(i for i, o in enumerate(op_graph.operators) if o.parameter_bytes),
        **case.sets_of_operators(),
    }
    for parts in case.divisors:
        across = tuple(
            block + i * (cluster.servers // parts)
            for block in range(cluster.servers // parts)
            for i in range(parts)
        )
        orders = dict.fromkeys((case.orders[0], across, *case.orders[1:]))
        for number, order in enumerate(orders):
            for kind in parameter_kinds(case):
                dimensions = [d for d in case.problem.dimensions if kind != "experts" or d == kind]
                for label, indices in chosen.items():
                    made = split_strategy(
                        op_graph, (order,) * count, parts, indices, case.samples, dimensions, kind
                    )
                    yield f"{label} in {parts} {kind}, pairs, order {number}", made


def every_split(case: StartCase) -> Named:
    """All operators with parameters, or those with gradients larger than their inputs and outputs,
    split into every number of parts that divides the servers."""
    op_graph, servers = case.problem.op_graph, case.problem.cluster.servers
    parameters = {i for i, op in enumerate(op_graph.operators) if op.parameter_bytes}
    ways: tuple[tuple[str, Collection[int], ParameterKind], ...] = (
        ("layers", parameters, "columns"),
        ("heavy operators", heavy_operators(op_graph), "columns"),
        ("layers", parameters, "rows"),
    )
    everyone = (tuple(range(servers)),) * len(op_graph.operators)
    for parts in (1, *case.divisors):
        for label, chosen, first in ways:
            made = split_strategy(
                *(op_graph, everyone, parts, chosen), case.samples, case.problem.dimensions, first
            )
            yield f"{label} in {parts} {first}", made


def split_starts(problem: SearchProblem, others: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """Up to two of `every_split` that fit into memory and are not much slower than `others`.

    They are the fastest on an ideal switch. Each has at most the problem's `max_transfers`
    transfers between servers, one way. Without `others`, the one with the fewest transfers is
    allowed up to ten times that limit. Raises ValueError above that.
    """
    fit = [strategy for strategy in fitting(problem, (every_split,)) if strategy not in others]
    few = _with_few_transfers(problem, fit, bool(others))
    limit_s = fastest_s(problem, others) * _NEAR
    return tuple(s for seconds, s in timed(problem, few)[:_FASTEST] if seconds <= limit_s)


def _with_few_transfers(
    problem: SearchProblem, fit: list[Strategy], has_others: bool
) -> list[Strategy]:
    """The strategies of `fit` within the problem's `max_transfers`; else, without others, the one
    with the fewest. Raises ValueError where that has too many transfers to simulate."""
    op_graph, accelerator = problem.op_graph, problem.cluster.accelerator
    counts = [transfer_count(op_graph, strategy) for strategy in fit]
    few = [s for s, count in zip(fit, counts, strict=True) if count <= problem.max_transfers]
    if few or has_others or not fit:
        return few
    fewest, most = min(counts), _MOST_TIMES * problem.max_transfers
    if fewest > most:
        raise ValueError(
            f"transfers: {op_graph.model} fits into the memory of one {accelerator} only "
            f"where servers make {fewest} transfers, and no more than {most} are simulated; use a "
            "larger accelerator, fewer servers or a smaller batch"
        )
    return [fit[counts.index(fewest)]]
