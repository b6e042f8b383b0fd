"""The Demand of a CommunicationTrace, from its last iteration.

Rank i is server i. A GroupDemand counts AllReduced bytes, so the other collectives of a group count
as the AllReduce that puts the same number of bytes on the network: among n ranks a ring AllReduce
of S bytes moves 2 (n - 1) S; AllGather, ReduceScatter (S: the whole tensor), Broadcast and Reduce
move (n - 1) S, half of it. AllToAll, Gather, Scatter, Send and Recv become pairs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan import AllToAll, Demand, GroupDemand, PairDemand, PairTable
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.profile.script.document import CollectiveCall, CommunicationTrace

# Halves of an AllReduce of the same tensor.
_HALVES = {"AllReduce": 2, "AllGather": 1, "ReduceScatter": 1, "Broadcast": 1, "Reduce": 1}

_Group = tuple[int, ...]
_Pairs = dict[tuple[int, int], int]


def demand_of(trace: CommunicationTrace) -> tuple[Demand, tuple[str, ...]]:
    """The mean demand of the repeated iterations, and its assumptions as sentences.

    A group has the largest demand of its profiled members. Other ranks count through the groups,
    roots and peers of profiled ones; in an AllToAll with equal parts they are assumed to send as
    much. Raises DocumentError if no byte leaves a rank in these iterations.
    """
    calls = trace.repeated
    assumptions = list(_assumptions(trace, calls))
    groups, unequal = _groups(calls, trace)
    assumptions += unequal
    table, assumed = _pairs(calls, trace)
    assumptions += assumed
    if not groups and not len(table):
        raise DocumentError(
            f"{trace.script}: no bytes between ranks in iteration {trace.iterations - 1} of "
            f"rank {', '.join(map(str, trace.ranks))}; is the model wrapped for training on "
            f"{trace.world_size} ranks?"
        )
    return Demand(groups, table), tuple(assumptions)


def on_servers(demand: Demand, ranks_per_server: int) -> Demand:
    """The demand among servers of a demand among ranks, `ranks_per_server` of them on each.

    The ranks of a group on one server reduce there first, so its AllReduce is one of their servers;
    groups of the same servers add up. The traffic between two ranks of one server stays there.
    """
    if ranks_per_server == 1:
        return demand
    groups: dict[_Group, int] = defaultdict(int)
    for group in demand.groups:
        servers = tuple(sorted({rank // ranks_per_server for rank in group.servers}))
        if len(servers) > 1:
            groups[servers] += group.size_bytes
    pairs: _Pairs = defaultdict(int)
    for pair in demand.pairs:
        ends = pair.source // ranks_per_server, pair.target // ranks_per_server
        if ends[0] != ends[1]:
            pairs[ends] += pair.size_bytes
    listed = tuple(PairDemand(*ends, size_bytes) for ends, size_bytes in sorted(pairs.items()))
    return Demand(
        tuple(GroupDemand(servers, size_bytes) for servers, size_bytes in sorted(groups.items())),
        PairTable((), listed),
    )


@dataclass(frozen=True)
class RootedDemand:
    """Bytes that one iteration sends in rings from `root` to all of `servers`, or, of a Reduce,
    from all of them to it. A GroupDemand counts them as if no server were special."""

    servers: tuple[int, ...]
    root: int
    size_bytes: int
    is_reduce: bool


def rooted_demands(trace: CommunicationTrace, ranks_per_server: int) -> tuple[RootedDemand, ...]:
    """The Broadcasts and Reduces of an iteration, between servers."""
    sizes: dict[tuple[_Group, int, bool], int] = defaultdict(int)
    for call in trace.repeated:
        if call.operation not in ("Broadcast", "Reduce"):
            continue
        first = next(rank for rank in call.group if rank in trace.ranks)
        servers = tuple(sorted({rank // ranks_per_server for rank in call.group}))
        if call.rank == first and call.peer is not None and len(servers) > 1:
            root = call.peer // ranks_per_server
            sizes[servers, root, call.operation == "Reduce"] += call.size_bytes
    return tuple(
        RootedDemand(servers, root, trace.per_iteration(size_bytes), is_reduce)
        for (servers, root, is_reduce), size_bytes in sorted(sizes.items())
    )


def _assumptions(trace: CommunicationTrace, calls: Sequence[CollectiveCall]) -> Iterable[str]:
    yield "rank i is server i"
    if trace.period > 1:
        yield f"an iteration is the mean of the last {trace.period}"
    if len(trace.ranks) == trace.world_size:
        return
    known = _named(trace.ranks)
    whole = all(
        len(c.group) == trace.world_size and c.operation not in ("Send", "Recv") for c in calls
    )
    if whole:
        yield f"every rank calls what {known} did: every group is the whole world"
    else:
        yield (
            f"nothing of other ranks than {known}: groups and pairs without any of these are "
            "missing from the demand (--ranks all profiles every rank)"
        )


def _groups(
    calls: Sequence[CollectiveCall], trace: CommunicationTrace
) -> tuple[tuple[GroupDemand, ...], list[str]]:
    halves: dict[_Group, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for call in calls:
        if call.operation in _HALVES and len(call.group) > 1:
            group = tuple(sorted(call.group))
            halves[group][call.rank] += _HALVES[call.operation] * call.size_bytes
    present = {call.rank for call in calls}
    groups, unequal = [], []
    for group, by_rank in sorted(halves.items()):
        sizes = {rank: by_rank.get(rank, 0) for rank in group if rank in present}
        most = max(sizes.values())
        if most != min(sizes.values()):
            unequal.append(
                f"the ranks of group {_listed(group)} do not ask for the same bytes; the largest "
                "counts"
            )
        if most:
            groups.append(GroupDemand(group, trace.per_iteration((most + 1) // 2)))
    return tuple(groups), unequal


def _pairs(
    calls: Sequence[CollectiveCall], trace: CommunicationTrace
) -> tuple[PairTable, list[str]]:
    traffic = _PairTraffic({call.rank for call in calls})
    for call in calls:
        traffic.add(call)
    for call in calls:
        traffic.add_unprofiled(call)
    all_to_all = [
        AllToAll(exchange.servers, trace.per_iteration(exchange.size_bytes))
        for exchange in traffic.even_exchanges()
    ]
    listed = tuple(
        PairDemand(pair.source, pair.target, trace.per_iteration(pair.size_bytes))
        for pair in traffic.listed()
    )
    table = PairTable(tuple(e for e in all_to_all if e.size_bytes), listed)
    return table, list(dict.fromkeys(traffic.assumed))


class _PairTraffic:
    """Bytes between pairs of ranks in the calls of the ranks `present`; assumptions about the
    others."""

    def __init__(self, present: set[int]) -> None:
        self.assumed: list[str] = []
        self._present = present
        self._sent: _Pairs = defaultdict(int)
        self._received: _Pairs = defaultdict(int)
        self._exchanged: dict[_Group, _Pairs] = defaultdict(lambda: defaultdict(int))

    def add(self, call: CollectiveCall) -> None:
        rank, peer = call.rank, call.peer
        if call.operation == "AllToAll":
            parts = self._exchanged[tuple(sorted(call.group))]
            for target, size_bytes in zip(call.group, call.part_bytes, strict=True):
                if target != rank:
                    parts[rank, target] += size_bytes
        elif call.operation in ("Send", "Gather") and peer is not None:
            self._sent[rank, peer] += call.size_bytes
        elif call.operation == "Scatter" and peer is not None:
            self._received[peer, rank] += call.size_bytes
        elif call.operation == "Recv" and peer is None:
            self.assumed.append(f"rank {rank} receives from any rank: counted where it is sent")
        elif call.operation == "Recv" and peer is not None and peer not in self._present:
            self._received[peer, rank] += call.size_bytes

    def add_unprofiled(self, call: CollectiveCall) -> None:
        """Gather and Scatter of members that were not profiled: as large as the part of the first
        profiled member."""
        if call.operation not in ("Gather", "Scatter") or call.peer is None:
            return
        if call.rank != next(rank for rank in call.group if rank in self._present):
            return
        for member in self._absent(call.group):
            if call.operation == "Gather":
                self._sent[member, call.peer] += call.size_bytes
            else:
                self._received[call.peer, member] += call.size_bytes

    def even_exchanges(self) -> list[AllToAll]:
        """AllToAlls in which all pairs exchange the same; others are added to what pairs send."""
        even = []
        for group, parts in sorted(self._exchanged.items()):
            if len(set(parts.values())) == 1:
                even.append(AllToAll(group, next(iter(parts.values()))))
                continue
            for pair, size_bytes in parts.items():
                self._sent[pair] += size_bytes
            missing = self._absent(group)
            if parts and missing:
                self.assumed.append(f"nothing of what {_named(missing)} would send in an AllToAll")
        return even

    def listed(self) -> tuple[PairDemand, ...]:
        total: _Pairs = defaultdict(int)
        for pairs in (self._sent, self._received):
            for pair, size_bytes in pairs.items():
                total[pair] += size_bytes
        return tuple(
            PairDemand(source, target, size_bytes)
            for (source, target), size_bytes in sorted(total.items())
            if source != target and size_bytes
        )

    def _absent(self, group: Iterable[int]) -> list[int]:
        return [rank for rank in group if rank not in self._present]


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks)}"


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
