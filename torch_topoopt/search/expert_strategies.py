"""Strategies that an expert would try, as starts of a search and as what it must not lose to.

Tables whole and spread evenly over the servers (Naumov et al., DLRM, 2019, section 4), or each on a
group of servers; tables in parts on servers of their own; layers in parts of their parameters
(Shoeybi et al., Megatron-LM, 2019), in groups that lie along a ring or across it; the few largest
layers in parts (Krizhevsky, "One weird trick", 2014); branches of the model side by side, on
servers of their own (Dean et al., DistBelief, 2012); experts over one ring (Lepikhin et al.,
GShard, 2020); pipelines cut where one tensor is handed over; layers in runs on every second or
fourth server, whose AllReduces go on at the same time (in strategies that TopoOpt's authors
released). Everything else shares samples.

Which of them is good depends on the network, so they are priced on it, by the coarse simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan import Degrees, Placement
from torch_topoopt.search.accelerators import reads_all_parameters
from torch_topoopt.search.branches import branches
from torch_topoopt.search.layer_runs import in_runs
from torch_topoopt.search.lowering import degrees_of
from torch_topoopt.search.pipelines import pipeline, split_pipeline
from torch_topoopt.search.shards import may_split
from torch_topoopt.search.split_starts import split_strategy
from torch_topoopt.search.strategies import (
    Memory,
    everywhere,
    heavy_operators,
    largest_operators,
    most_parts,
    samples_of_servers,
    whole_operators,
)
from torch_topoopt.search.traffic import transfer_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch_topoopt import _core
    from torch_topoopt.plan import ParameterKind
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

    _Named = Iterator[tuple[str, Strategy]]
    _Family = Callable[["_Case"], _Named]

_NEAR = 1.05  # as much slower than the fastest other start, one is worth a look
BEST_EXPERTS = 3  # that a search on a network begins at, beside its other starts
_ARRANGEMENTS = 3  # on other servers, of strategies that are equally fast
_MOST_STRIDES = 64  # that tables are spread with
_MOST_RINGS = 1  # of a network, whose order groups follow
_MOST_LARGEST = 8  # operators that are placed apart because they are large
_FEW_LARGEST = 3  # as VGG has layers at its end that are split
_STAGES = (2, 4, 8, 16)
_PARTS_OF_STAGES = (2, 4, 8, 16)
_RUNS = (2, 4)
_APART_FROM_RUNS = ("heavy operators", "tables")
_PARTS_APART_FROM_RUNS = (2, 4)


@dataclass(frozen=True)
class _Case:
    """What strategies are made of: `orders` are the rings of the network, in front of them the
    order of the servers' numbers; `base` shares the samples of every operator."""

    problem: SearchProblem
    orders: tuple[tuple[int, ...], ...]
    samples: int
    base: Strategy
    divisors: tuple[int, ...]

    @classmethod
    def of(cls, problem: SearchProblem) -> _Case:
        cluster = problem.cluster
        servers = tuple(range(cluster.servers))
        rings = [ring.servers for ring in problem.core_network.rings(servers)[:_MOST_RINGS]]
        samples = samples_of_servers(problem.op_graph, cluster, problem.micro_batches)
        return cls(
            problem,
            tuple(dict.fromkeys((servers, *rings))),
            samples,
            everywhere(problem.op_graph, most_parts(cluster.servers, samples)),
            tuple(k for k in range(2, cluster.servers + 1) if cluster.servers % k == 0),
        )

    def sets_of_operators(self) -> dict[str, frozenset[int]]:
        """Those that an expert would not share by samples, by index: tables and large layers."""
        operators = self.problem.op_graph.operators
        lookups = (i for i, o in enumerate(operators) if o.parameter_bytes)
        found = {
            "heavy operators": heavy_operators(self.problem.op_graph),
            "tables": frozenset(i for i in lookups if not reads_all_parameters(operators[i])),
        }
        largest = largest_operators(self.problem.op_graph)[:_MOST_LARGEST]
        for count in (_FEW_LARGEST, _MOST_LARGEST):
            found[f"the {count} largest"] = frozenset(largest[:count])
        return {
            name: chosen
            for i, (name, chosen) in enumerate(found.items())
            if chosen and chosen not in list(found.values())[:i]
        }


def expert_strategies(problem: SearchProblem, *, runs: bool = True) -> dict[str, Strategy]:
    """Strategies by name, each once: those of the search space of `problem` that fit into memory.

    None makes more than the problem's `max_transfers` transfers between servers, one way. With
    `runs`, layers in runs come after the others.
    """
    limit = problem.max_transfers
    families = (*_EXPERTS, _in_runs) if runs else _EXPERTS
    return {
        name: strategy
        for strategy, name in _fitting(problem, families).items()
        if transfer_count(problem.op_graph, strategy) <= limit
    }


def expert_starts(problem: SearchProblem, most: int = BEST_EXPERTS) -> tuple[Strategy, ...]:
    """Up to `most` strategies of `expert_strategies` that are fastest on the network of `problem`.

    By the coarse simulator, and not more than 5 % slower than the fastest of its starts; of those
    that are equally fast, the first. Runs of layers are left to `layer_runs_below`.
    """
    coarse, timed = _timed(problem, _EXPERTS)
    limit_s = min(map(coarse.run, problem.starts), default=math.inf) * _NEAR
    chosen: dict[float, Strategy] = {}
    for seconds, strategy in timed:
        time_s = float(f"{seconds:.6g}")
        if seconds > limit_s or len(chosen) == most:
            break
        known = time_s in chosen or strategy in problem.starts
        if not known and transfer_count(problem.op_graph, strategy) <= problem.max_transfers:
            chosen[time_s] = strategy
    return tuple(chosen.values())


def experts_below(problem: SearchProblem, limit_s: float, most: int) -> tuple[Strategy, ...]:
    """Up to `most` of `expert_strategies`, in ascending order of time, below `limit_s`.

    By the coarse simulator. Of those that are equally fast three are kept: on an ideal switch these
    are arrangements of one strategy, of which a network that is wired for it may like one only.
    Runs of layers are left to `layer_runs_below`.
    """
    return _below(problem, limit_s, most, _EXPERTS)


def layer_runs_below(
    problem: SearchProblem, limit_s: float = math.inf, most: int = BEST_EXPERTS
) -> tuple[Strategy, ...]:
    """As `experts_below`, of layers in runs; below the fastest start of `problem`, too.

    Apart, since on an ideal switch they may be faster than all others, and slower on any network
    that is wired for a job: there they would take the place of others.
    """
    if not problem.starts:
        return _below(problem, limit_s, most, (_in_runs,))
    fastest_s = min(map(problem.coarse_simulator(problem.starts).run, problem.starts))
    return _below(problem, min(limit_s, fastest_s), most, (_in_runs,))


def _below(
    problem: SearchProblem, limit_s: float, most: int, families: Sequence[_Family]
) -> tuple[Strategy, ...]:
    equal: dict[float, int] = {}
    chosen: list[Strategy] = []
    for seconds, strategy in _timed(problem, families)[1]:
        time_s = float(f"{seconds:.6g}")
        if seconds >= limit_s or len(chosen) == most:
            break
        many = equal.get(time_s, 0) == _ARRANGEMENTS
        if not many and transfer_count(problem.op_graph, strategy) <= problem.max_transfers:
            equal[time_s] = equal.get(time_s, 0) + 1
            chosen.append(strategy)
    return tuple(chosen)


def _timed(
    problem: SearchProblem, families: Sequence[_Family]
) -> tuple[_core.CoarseSimulator, list[tuple[float, Strategy]]]:
    """What fits, the fastest by the coarse simulator first; and that simulator."""
    found = tuple(_fitting(problem, families))
    coarse = problem.coarse_simulator(found)
    timed = sorted((coarse.run(strategy), i) for i, strategy in enumerate(found))
    return coarse, [(seconds, found[i]) for seconds, i in timed]


def _fitting(problem: SearchProblem, families: Sequence[_Family]) -> Mapping[Strategy, str]:
    """All of `families` that fit into memory and can be executed, with their names; made once for
    networks whose rings are in the same order."""
    if problem.cluster.servers == 1:
        return {}
    case = _Case.of(problem)
    key = (
        *(case.orders, tuple(families), problem.micro_batches, problem.dimensions),
        *(problem.executable, problem.optimizer_factor),
    )
    return problem.experts.get(key, lambda: _made(problem, case, families))


def _made(problem: SearchProblem, case: _Case, families: Sequence[_Family]) -> dict[Strategy, str]:
    made: dict[Strategy, str] = {}
    for family in families:
        for name, strategy in family(case):
            if problem.executable is None or all(map(problem.executable, strategy)):
                made.setdefault(strategy, name)
    memory = Memory(
        problem.op_graph,
        problem.cluster,
        degrees_of(made),
        problem.micro_batches,
        optimizer_factor=problem.optimizer_factor,
    )
    return {strategy: name for strategy, name in made.items() if _in_order(memory, strategy)}


def _in_order(memory: Memory, strategy: Strategy) -> bool:
    """Whether it fits into memory, and with micro-batches its stages follow each other."""
    try:
        return memory.fits(strategy)
    except ValueError:
        return False


def _spread(case: _Case) -> _Named:
    """Operators whole, evenly over the servers, with every stride; by bytes where they differ."""
    servers = case.problem.cluster.servers
    for label, chosen in case.sets_of_operators().items():
        even = max(1, servers // len(chosen))
        most = min(servers // 2, _MOST_STRIDES) if len(chosen) > _MOST_LARGEST else 1
        strides = dict.fromkeys((even, *range(1, most + 1)))
        ways = [(0, 0, stride) for stride in strides]
        ways += [(0, offset, even) for offset in range(1, min(even, most))]
        ways += [(ring, 0, s) for ring in range(1, len(case.orders)) for s in {1, even}]
        for ring, offset, stride in ways:
            order = case.orders[ring]
            slots = dict.fromkeys(order[(offset + stride * j) % servers] for j in range(servers))
            homes = (tuple(slots),) * len(case.base)
            name = f"{label} whole, from server {order[offset]} with stride {stride}"
            yield (
                name + (f" along ring {ring}" if ring else ""),
                whole_operators(
                    case.problem.op_graph, case.problem.cluster, chosen, case.base, homes
                ),
            )


def _on_groups(case: _Case) -> _Named:
    """Operators that share samples by fewer servers: hybrid parallelism."""
    for label, chosen in case.sets_of_operators().items():
        for size in case.divisors:
            if size > case.samples:
                break
            for where, groups in _groups(case, len(chosen), size):
                yield (
                    f"{label} on groups of {size} servers {where}",
                    _placed(case, chosen, groups, Degrees(size)),
                )


def _branches_apart(case: _Case) -> _Named:
    """Each branch with parameters on a group of its own, as large as they allow: the gradients of
    each are summed by its servers only, at the same time."""
    operators = case.problem.op_graph.operators
    found = [
        branch
        for branch in branches(case.problem.op_graph)
        if any(operators[i].parameter_bytes for i in branch)
    ]
    size = case.problem.cluster.servers // max(1, len(found))
    if len(found) < 2 or size < 2:  # whole tables are spread by `_spread`
        return
    size = min(size, case.samples)
    for where, groups in _groups(case, len(found), size):
        group_of = {i: groups[k] for k, branch in enumerate(found) for i in branch}
        yield (
            f"{len(found)} branches on groups of {size} servers {where}",
            tuple(
                Placement.of(placement.operator, group_of[i], Degrees(size))
                if i in group_of and operators[i].splittable
                else placement
                for i, placement in enumerate(case.base)
            ),
        )


def _in_parts(case: _Case) -> _Named:
    """Operators in parts of their parameters, each on servers of its own."""
    operators = case.problem.op_graph.operators
    for label, chosen in case.sets_of_operators().items():
        for kind in _parameter_kinds(case):
            for parts in case.divisors:
                degrees = Degrees(1, kind, parts)
                if not all(may_split(operators[i], degrees) for i in chosen):
                    continue
                for where, groups in _groups(case, len(chosen), parts):
                    yield (
                        f"{label} in {parts} {kind} {where}",
                        _placed(case, chosen, groups, degrees),
                    )


def _layers_in_parts(case: _Case) -> _Named:
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
            for kind in _parameter_kinds(case):
                dimensions = [d for d in case.problem.dimensions if kind != "experts" or d == kind]
                for label, indices in chosen.items():
                    made = split_strategy(
                        op_graph, (order,) * count, parts, indices, case.samples, dimensions, kind
                    )
                    yield f"{label} in {parts} {kind}, pairs, order {number}", made


def _pipelines(case: _Case) -> _Named:
    """Cut at the narrowest tensors, with equal computing time; with micro-batches also with all
    layers in parts of their parameters (Narayanan et al., 2021: three dimensions)."""
    problem = case.problem
    for stages in _STAGES:
        if problem.cluster.servers % stages == 0:
            arguments = problem.op_graph, problem.cluster, stages
            made = pipeline(*arguments, problem.micro_batches)
            if made is not None:
                yield f"{stages} stages", made
            for parts in _PARTS_OF_STAGES if made and problem.micro_batches > 1 else ():
                count, dimensions = problem.micro_batches, problem.dimensions
                split = split_pipeline(*arguments, parts, count, dimensions)
                if split is not None:
                    yield f"{stages} stages, layers in {parts} parts", split


def _in_runs(case: _Case) -> _Named:
    """Layers in runs on every second or fourth server; tables whole, by bytes or one on each
    server, or in parts at equal distances."""
    servers = case.problem.cluster.servers
    for name, base in (("layers", case.base), *_apart_from_runs(case)):
        for count in _RUNS:
            if servers % count == 0:
                placed = in_runs(case.problem.op_graph, base, servers, count, case.samples)
                yield f"{name} in {count} runs", placed


def _apart_from_runs(case: _Case) -> _Named:
    """`base` with tables, or all operators whose AllReduce is large, on servers of their own."""
    op_graph, cluster = case.problem.op_graph, case.problem.cluster
    for label, chosen in case.sets_of_operators().items():
        if label not in _APART_FROM_RUNS:
            continue
        stride = max(1, cluster.servers // len(chosen))
        slots = tuple(range(0, cluster.servers, stride))
        for way, homes in (("by bytes", None), (f"with stride {stride}", slots)):
            each = None if homes is None else (homes,) * len(case.base)
            placed = whole_operators(op_graph, cluster, chosen, case.base, each)
            yield f"{label} whole {way}, layers", placed
        for kind in _parameter_kinds(case):
            for parts in _PARTS_APART_FROM_RUNS:
                degrees = Degrees(1, kind, parts)
                possible = all(may_split(op_graph.operators[i], degrees) for i in chosen)
                if possible and cluster.servers % parts == 0:
                    *_, (where, groups) = _groups(case, len(chosen), parts)
                    placed = _placed(case, chosen, groups, degrees)
                    yield f"{label} in {parts} {kind} {where}, layers", placed


def _parameter_kinds(case: _Case) -> list[ParameterKind]:
    """The splits of parameters that are searched and that an operator has."""
    has = {s.dimension for o in case.problem.op_graph.operators for s in o.splits}
    return [d for d in case.problem.dimensions if d != "attribute" and d in has]


def _groups(case: _Case, count: int, size: int) -> Iterator[tuple[str, Sequence[tuple[int, ...]]]]:
    """`count` groups of `size` servers each, side by side along a ring, or at equal distances."""
    servers = case.problem.cluster.servers
    for ring, order in enumerate(case.orders):
        blocks = [
            tuple(sorted(order[(i * size + j) % servers] for j in range(size)))
            for i in range(count)
        ]
        yield f"along ring {ring}" if ring else "side by side", blocks
    stride = servers // size
    step = max(1, stride // count)
    yield (
        "at equal distances",
        [
            tuple(sorted((i * step + j * stride) % servers for j in range(size)))
            for i in range(count)
        ],
    )


def _placed(
    case: _Case, chosen: Collection[int], groups: Sequence[tuple[int, ...]], degrees: Degrees
) -> Strategy:
    """`base` with each of `chosen` on its group."""
    group_of = dict(zip(sorted(chosen), groups, strict=True))
    return tuple(
        Placement.of(placement.operator, group_of[i], degrees) if i in group_of else placement
        for i, placement in enumerate(case.base)
    )


# In the order in which names are given; runs of layers come after all of these.
_EXPERTS: tuple[_Family, ...] = (
    _spread,
    _on_groups,
    _branches_apart,
    _in_parts,
    _layers_in_parts,
    _pipelines,
)
