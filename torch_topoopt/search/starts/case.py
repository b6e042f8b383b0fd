"""The input shared by all families of starts: the model, orders of servers, and their groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan import Placement
from torch_topoopt.search.accelerators import reads_all_parameters
from torch_topoopt.search.strategies import (
    everywhere,
    heavy_operators,
    largest_operators,
    most_parts,
    samples_of_servers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch_topoopt.plan import Degrees, ParameterKind
    from torch_topoopt.search.problem import SearchProblem
    from torch_topoopt.search.strategies import Strategy

    Named = Iterator[tuple[str, Strategy]]
    Family = Callable[["StartCase"], Named]

MOST_LARGEST = 8  # large operators that are placed apart
_FEW_LARGEST = 3  # as many large layers as VGG has at its end
_MOST_RINGS = 1  # of the network, as orders for groups


@dataclass(frozen=True)
class StartCase:
    """The input of a family: `orders` are the order of server numbers, then the rings of the
    network; `base` shares the samples of every operator."""

    problem: SearchProblem
    orders: tuple[tuple[int, ...], ...]
    samples: int
    base: Strategy
    divisors: tuple[int, ...]

    @classmethod
    def of(cls, problem: SearchProblem) -> StartCase:
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
        """Indices of operators that an expert would not share by samples: tables, large layers."""
        operators = self.problem.op_graph.operators
        lookups = (i for i, o in enumerate(operators) if o.parameter_bytes)
        found = {
            "heavy operators": heavy_operators(self.problem.op_graph),
            "tables": frozenset(i for i in lookups if not reads_all_parameters(operators[i])),
        }
        largest = largest_operators(self.problem.op_graph)[:MOST_LARGEST]
        for count in (_FEW_LARGEST, MOST_LARGEST):
            found[f"the {count} largest"] = frozenset(largest[:count])
        return {
            name: chosen
            for i, (name, chosen) in enumerate(found.items())
            if chosen and chosen not in list(found.values())[:i]
        }


def parameter_kinds(case: StartCase) -> list[ParameterKind]:
    """The parameter splits that the search allows and an operator has."""
    has = {s.dimension for o in case.problem.op_graph.operators for s in o.splits}
    return [d for d in case.problem.dimensions if d != "attribute" and d in has]


def groups_of(
    case: StartCase, count: int, size: int
) -> Iterator[tuple[str, Sequence[tuple[int, ...]]]]:
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


def placed_on(
    case: StartCase, chosen: Collection[int], groups: Sequence[tuple[int, ...]], degrees: Degrees
) -> Strategy:
    """`base` with each of `chosen` on its group."""
    group_of = dict(zip(sorted(chosen), groups, strict=True))
    return tuple(
        Placement.of(placement.operator, group_of[i], degrees) if i in group_of else placement
        for i, placement in enumerate(case.base)
    )
