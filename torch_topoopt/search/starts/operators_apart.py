"""Starts with tables and large layers on servers of their own: whole, on groups, or in parts.

Tables whole and spread evenly over the servers (Naumov et al., DLRM, 2019, section 4), or each on a
group of servers; tables in parts on servers of their own; the few largest layers in parts
(Krizhevsky, "One weird trick", 2014). Everything else shares samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.plan import Degrees
from torch_topoopt.search.shards import may_split
from torch_topoopt.search.starts.case import MOST_LARGEST, groups_of, parameter_kinds, placed_on
from torch_topoopt.search.strategies import whole_operators

if TYPE_CHECKING:
    from torch_topoopt.search.starts.case import Named, StartCase

_MOST_STRIDES = 64  # of spreading tables


def spread(case: StartCase) -> Named:
    """Operators whole, spread evenly with every stride; by bytes where these differ."""
    servers = case.problem.cluster.servers
    for label, chosen in case.sets_of_operators().items():
        even = max(1, servers // len(chosen))
        most = min(servers // 2, _MOST_STRIDES) if len(chosen) > MOST_LARGEST else 1
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


def on_groups(case: StartCase) -> Named:
    """Operators whose samples fewer servers share: hybrid parallelism."""
    for label, chosen in case.sets_of_operators().items():
        for size in case.divisors:
            if size > case.samples:
                break
            for where, groups in groups_of(case, len(chosen), size):
                yield (
                    f"{label} on groups of {size} servers {where}",
                    placed_on(case, chosen, groups, Degrees(size)),
                )


def in_parts(case: StartCase) -> Named:
    """Operators in parts of their parameters, each on servers of its own."""
    operators = case.problem.op_graph.operators
    for label, chosen in case.sets_of_operators().items():
        for kind in parameter_kinds(case):
            for parts in case.divisors:
                degrees = Degrees(1, kind, parts)
                if not all(may_split(operators[i], degrees) for i in chosen):
                    continue
                for where, groups in groups_of(case, len(chosen), parts):
                    yield (
                        f"{label} in {parts} {kind} {where}",
                        placed_on(case, chosen, groups, degrees),
                    )
