"""The Demand of a CommunicationTrace, and what the document refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import AllToAll, Demand, GroupDemand, PairDemand, PairTable
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.script import (
    CollectiveCall,
    CommunicationTrace,
    RootedDemand,
    demand_of,
    on_servers,
    rooted_demands,
)

if TYPE_CHECKING:
    from torch_topoopt.profile.script.document import Operation


def _call(
    rank: int,
    operation: Operation,
    size_bytes: int,
    group: tuple[int, ...],
    peer: int | None = None,
    parts: tuple[int, ...] = (),
) -> CollectiveCall:
    return CollectiveCall(rank, 0, "forward", operation, size_bytes, group, peer, parts)


def _trace(
    world_size: int, *calls: CollectiveCall, ranks: tuple[int, ...] = ()
) -> CommunicationTrace:
    chosen = ranks or tuple(range(world_size))
    return CommunicationTrace(1, "train.py", (), world_size, chosen, 1, calls).validate()


def test_gathering_and_scattering_a_tensor_count_as_one_allreduce() -> None:
    everyone = (0, 1)
    trace = _trace(
        2,
        *(_call(rank, "ReduceScatter", 100, everyone) for rank in everyone),
        *(_call(rank, "AllGather", 100, everyone) for rank in everyone),
        *(_call(rank, "AllReduce", 7, everyone) for rank in everyone),
        *(_call(rank, "Broadcast", 8, everyone, 0) for rank in everyone),
    )
    demand, assumptions = demand_of(trace)
    assert demand.groups == (GroupDemand(everyone, 100 + 7 + 4),)
    assert len(demand.pairs) == 0
    assert assumptions == ("rank i is server i",)


def test_a_demand_among_ranks_is_one_among_their_servers() -> None:
    groups = (GroupDemand((0, 1), 5), GroupDemand((0, 2), 7), GroupDemand((1, 3), 11))
    pairs = PairTable((AllToAll((0, 1, 2, 3), 10),), (PairDemand(0, 1, 3), PairDemand(3, 0, 2)))
    demand = Demand(groups, pairs)
    assert on_servers(demand, 1) is demand
    placed = on_servers(demand, 2)  # ranks 0 and 1 on server 0, 2 and 3 on server 1
    assert placed.groups == (GroupDemand((0, 1), 7 + 11),)
    assert list(placed.pairs) == [PairDemand(0, 1, 4 * 10), PairDemand(1, 0, 4 * 10 + 2)]


def test_what_has_a_root_is_known_with_it() -> None:
    everyone = (0, 1, 2, 3)
    calls = [
        call
        for rank in everyone
        for call in (
            _call(rank, "Broadcast", 8, everyone, 2),
            _call(rank, "Broadcast", 4, everyone, 2),
            _call(rank, "Reduce", 6, everyone, 0),
        )
    ]
    local = [_call(rank, "Broadcast", 9, (0, 1), 0) for rank in (0, 1)]
    assert rooted_demands(_trace(4, *calls, *local), 2) == (
        RootedDemand((0, 1), 0, 6, is_reduce=True),
        RootedDemand((0, 1), 1, 12, is_reduce=False),
    )


def test_one_rank_stands_for_all_where_every_group_is_the_world() -> None:
    demand, assumptions = demand_of(
        _trace(
            4,
            _call(2, "AllReduce", 64, (0, 1, 2, 3)),
            _call(2, "AllToAll", 40, (0, 1, 2, 3), None, (10,) * 4),
            ranks=(2,),
        )
    )
    assert demand.groups == (GroupDemand((0, 1, 2, 3), 64),)
    assert demand.pairs == PairTable((AllToAll((0, 1, 2, 3), 10),))
    assert "every group is the whole world" in assumptions[1]


def test_what_was_not_profiled_is_said_to_be_missing() -> None:
    _, assumptions = demand_of(_trace(4, _call(0, "AllReduce", 8, (0, 1)), ranks=(0,)))
    assert "nothing of other ranks than rank 0: groups and pairs" in assumptions[1]


def test_a_message_counts_once_whichever_side_was_profiled() -> None:
    sent = _call(0, "Send", 8, (0, 1), 1)
    received = _call(1, "Recv", 8, (0, 1), 0)
    for calls, ranks in (((sent, received), (0, 1)), ((sent,), (0,)), ((received,), (1,))):
        demand, _ = demand_of(_trace(2, *calls, ranks=ranks))
        assert list(demand.pairs) == [PairDemand(0, 1, 8)]


def test_gather_and_scatter_run_between_the_root_and_the_others() -> None:
    for ranks in ((0, 1, 2), (1,), (0,)):
        calls = [
            *(_call(rank, "Gather", 8, (0, 1, 2), 0) for rank in ranks),
            *(_call(rank, "Scatter", 4, (0, 1, 2), 0) for rank in ranks),
        ]
        demand, _ = demand_of(_trace(3, *calls, ranks=ranks))
        assert list(demand.pairs) == [
            PairDemand(0, 1, 4),
            PairDemand(0, 2, 4),
            PairDemand(1, 0, 8),
            PairDemand(2, 0, 8),
        ]


def test_an_uneven_all_to_all_is_listed() -> None:
    trace = _trace(
        2,
        _call(0, "AllToAll", 6, (0, 1), None, (1, 5)),
        _call(1, "AllToAll", 6, (0, 1), None, (2, 4)),
    )
    demand, _ = demand_of(trace)
    assert list(demand.pairs) == [PairDemand(0, 1, 5), PairDemand(1, 0, 2)]
    demand, assumptions = demand_of(
        _trace(3, _call(0, "AllToAll", 6, (0, 1, 2), None, (1, 2, 3)), ranks=(0,))
    )
    assert list(demand.pairs) == [PairDemand(0, 1, 2), PairDemand(0, 2, 3)]
    assert "nothing of what ranks 1, 2 would send in an AllToAll" in assumptions


def test_members_that_ask_for_different_bytes_are_named() -> None:
    calls = (_call(0, "AllReduce", 8, (0, 1)), _call(1, "AllReduce", 6, (0, 1)))
    demand, assumptions = demand_of(_trace(2, *calls))
    assert demand.groups == (GroupDemand((0, 1), 8),)
    assert "the ranks of group 0, 1 do not ask for the same bytes" in assumptions[1]


def test_a_script_that_sends_nothing_is_refused() -> None:
    with refused(DocumentError, "train.py", 0):
        demand_of(_trace(2, _call(0, "Barrier", 0, (0, 1)), _call(1, "Barrier", 0, (0, 1))))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.integers(1, 10**12))
def test_the_order_of_ranks_in_a_group_does_not_matter(order: list[int], size_bytes: int) -> None:
    calls = [_call(rank, "AllReduce", size_bytes, tuple(order)) for rank in range(4)]
    demand, _ = demand_of(_trace(4, *calls))
    assert demand.groups == (GroupDemand((0, 1, 2, 3), size_bytes),)


@pytest.mark.parametrize(
    ("call", "tokens"),
    [
        (_call(0, "AllReduce", -1, (0, 1)), ("calls[0].size_bytes", -1)),
        (_call(0, "AllReduce", 1, (0, 2)), ("calls[0].group", 2)),
        (_call(0, "AllReduce", 1, (1,)), ("calls[0].group", 0)),
        (_call(0, "Send", 1, (0, 1)), ("calls[0].peer", "missing")),
        (_call(0, "AllToAll", 3, (0, 1), None, (1, 1)), ("calls[0].part_bytes", 2)),
    ],
)
def test_a_malformed_call_is_refused(call: CollectiveCall, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        _trace(2, call)


def test_a_trace_survives_the_round_trip() -> None:
    trace = _trace(2, _call(0, "Send", 8, (0, 1), 1), _call(1, "Recv", 8, (0, 1), 0))
    assert CommunicationTrace.from_json(trace.to_json()) == trace
