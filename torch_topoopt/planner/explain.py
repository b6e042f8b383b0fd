"""Why operators are split as they are: the alternatives of each, and their predicted cost.

Only one operator is changed at a time, on the plan's network with its other placements. Times are
those of the coarse simulator, with the AllReduces that the backend runs. Operators that are alike
(equal except for name and neighbours) and split alike are explained once, by the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.plan import Placement
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.lowering import degrees_of, lower_job, lower_network
from torch_topoopt.search.shards import shard_cost
from torch_topoopt.search.strategies import Memory
from torch_topoopt.search.strategy_space import strategy_space
from torch_topoopt.search.traffic import shared_reads, transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.op_graph import Operator, OpGraph, SplitDimension
    from torch_topoopt.plan import Cluster, Network
    from torch_topoopt.search.strategies import Strategy
    from torch_topoopt.search.strategy_space import SplitChoice

LARGE = 0.02  # share of the compute time, of the bytes or of the parameters
_MOST_OPERATORS = 12
_MOST_ARRANGEMENTS = 8  # sets of servers tried for each way of splitting
_ALTERNATIVES = 3
_Shares = tuple[float, float, float]  # of compute time, bytes and parameters
_MOST_PARTS = 4096  # transfers of an alternative, one way


@dataclass(frozen=True)
class Alternative:
    """Another placement, the iteration's predicted seconds with it, and whether it fits into the
    accelerators' memory."""

    placement: Placement
    iteration_s: float
    fits: bool


@dataclass(frozen=True)
class Explanation:
    """The shares of one operator and those `alike`: of compute time, of bytes (AllReduced and sent)
    and of parameters. Its best alternatives, one per other way of splitting, come cheapest first,
    those that do not fit last. Data parallelism is always among them."""

    placement: Placement
    alike: tuple[str, ...]
    compute_share: float
    bytes_share: float
    parameter_share: float
    iteration_s: float
    alternatives: tuple[Alternative, ...]


def explain(
    op_graph: OpGraph,
    cluster: Cluster,
    network: Network,
    strategy: Strategy,
    *,
    dimensions: tuple[SplitDimension, ...] = (),
    micro_batches: int = 1,
    optimizer_factor: float = 0.0,
) -> tuple[Explanation, ...]:
    """The large operators, and groups that are large together; the largest first."""
    of_operator = _shares(op_graph, cluster, strategy)
    groups = _alike(op_graph, strategy)
    shares = {group[0]: _summed([of_operator[i] for i in group]) for group in groups}
    chosen = sorted(
        (i for i, of_group in shares.items() if max(of_group) >= LARGE),
        key=lambda i: (-max(shares[i]), i),
    )[:_MOST_OPERATORS]
    names = {group[0]: tuple(strategy[i].operator for i in group[1:]) for group in groups}
    space = strategy_space(
        op_graph, cluster.servers, dimensions=dimensions, micro_batches=micro_batches
    )
    degrees = degrees_of([strategy])
    degrees |= {move.degrees for i in chosen for move in space.moves_of(i)}
    job = lower_job(
        op_graph, cluster, degrees, micro_batches=micro_batches, optimizer_factor=optimizer_factor
    )
    coarse = _core.CoarseSimulator(job, lower_network(cluster, network, schedules=True))
    iteration_s = coarse.run(strategy)
    memory = Memory(op_graph, cluster, degrees, micro_batches, optimizer_factor=optimizer_factor)
    changes = _Changes(op_graph, strategy, coarse, memory)
    found = []
    for i in chosen:
        others = [move for move in space.moves_of(i) if move.degrees != strategy[i].degrees]
        alternatives = [best for move in others if (best := changes.best(i, move)) is not None]
        alternatives.sort(key=_order)
        kept = [
            other
            for rank, other in enumerate(alternatives)
            if rank < _ALTERNATIVES or other.placement.sample == cluster.servers
        ]
        found.append(Explanation(strategy[i], names[i], *shares[i], iteration_s, tuple(kept)))
    return tuple(found)


def _alike(op_graph: OpGraph, strategy: Strategy) -> list[list[int]]:
    """Groups of operators that are alike and split alike, by their positions."""
    groups: dict[object, list[int]] = {}
    for i, (operator, placement) in enumerate(zip(op_graph.operators, strategy, strict=True)):
        form = (_nameless(operator), placement.degrees, len(placement.servers))
        groups.setdefault(form, []).append(i)
    return list(groups.values())


def _summed(shares: Sequence[_Shares]) -> _Shares:
    compute, moved, parameters = zip(*shares, strict=True)
    return sum(compute), sum(moved), sum(parameters)


def _nameless(operator: Operator) -> Operator:
    operands = tuple(replace(operand, producer=0) for operand in operator.operands)
    return replace(operator, name="", operands=operands, measured=())


class _Changes:
    """Changes of one operator of a strategy that `coarse` has run."""

    def __init__(
        self,
        op_graph: OpGraph,
        strategy: Strategy,
        coarse: _core.CoarseSimulator,
        memory: Memory,
    ) -> None:
        self._op_graph = op_graph
        self._strategy = strategy
        self._coarse = coarse
        self._memory = memory

    def best(self, index: int, move: SplitChoice) -> Alternative | None:
        """The best with that split; None where it would take too many transfers to price."""
        best: Alternative | None = None
        step = max(1, len(move.arrangements) // _MOST_ARRANGEMENTS)
        before = self._strategy
        for servers in move.arrangements[::step]:
            placement = Placement.of(before[index].operator, servers, move.degrees)
            if _parts(self._op_graph, before, index, placement) > _MOST_PARTS:
                return None
            after = (*before[:index], placement, *before[index + 1 :])
            seconds = self._coarse.propose(after)
            fits = self._memory.fits(after)
            made = Alternative(placement, seconds, fits)
            if best is None or _order(made) < _order(best):
                best = made
        return best


def _order(alternative: Alternative) -> tuple[bool, float]:
    return not alternative.fits, alternative.iteration_s


def _parts(op_graph: OpGraph, strategy: Strategy, index: int, placement: Placement) -> int:
    """An upper bound on the operator's transfers on `placement`."""
    mine = len(placement.servers)
    operators = op_graph.operators
    around = [o.producer for o in operators[index].operands]
    around += [i for i, op in enumerate(operators) if any(o.producer == index for o in op.operands)]
    plain = placement.parameter == placement.attribute == 1
    total = 0
    for i in around:
        other = strategy[i]
        theirs = len(other.servers)
        samples_only = plain and other.parameter == other.attribute == 1
        total += mine + theirs if samples_only else mine * theirs
    return total


def _shares(op_graph: OpGraph, cluster: Cluster, strategy: Strategy) -> list[_Shares]:
    """Per operator: shares of the busy time of all servers, of all bytes, and of all parameters.

    Readers that share a transfer count equal parts of it.
    """
    device = accelerator(cluster.accelerator)
    per_server = cluster.accelerators_per_server
    compute, moved = [], []
    for operator, placement in zip(op_graph.operators, strategy, strict=True):
        forward_s, backward_s, *_ = shard_cost(
            device, operator, placement.degrees, per_server, 1, 0.0
        )
        compute.append((forward_s + backward_s) * len(placement.servers))
        groups = len(placement.servers) // placement.parameter
        reduced = operator.parameter_gradient_bytes if groups > 1 else 0
        moved.append(2.0 * reduced)
    for read in shared_reads(op_graph, strategy):
        first = read.readers[0]
        shares = transfers(op_graph.operators[first], strategy[read.producer], strategy[first])
        sent = sum(share for _, _, share in shares) * (read.size_bytes + read.gradient_bytes)
        for reader in read.readers:
            moved[reader] += sent / len(read.readers)
    parameters = [float(operator.parameter_bytes) for operator in op_graph.operators]
    totals = [sum(amounts) or 1.0 for amounts in (compute, moved, parameters)]
    return [
        (c / totals[0], m / totals[1], p / totals[2])
        for c, m, p in zip(compute, moved, parameters, strict=True)
    ]
