"""AllReduce and others on circuits that move: right, and never slower than circuits that stay."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.collectives.phases import (
    COLLECTIVES,
    StridePart,
    digits_of,
    doubling_phases,
    phases_of,
)
from torch_topoopt.reconfiguration.collectives.planner import (
    CollectiveOption,
    break_even_s,
    options,
)
from torch_topoopt.reconfiguration.collectives.replay import TimelineError, replay
from torch_topoopt.reconfiguration.collectives.timeline_file import (
    CollectiveTimelineFile,
    timeline_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.collectives.port_timeline import PortTimeline

ALPHA_S, GBPS = 5e-7, 800.0


def _costs(delay_s: float) -> CircuitCosts:
    return CircuitCosts(GBPS, ALPHA_S, delay_s)


def _by_kind(
    collective: str, n: int, degree: int, delay_s: float, size: float
) -> dict[str, CollectiveOption]:
    found = options(collective, n, degree, _costs(delay_s), size)
    return {option.kind: option for option in found}


def _rings_s(collective: str, n: int, degree: int, delay_s: float, size: float) -> float:
    """Rings side by side, each with its share; of a broadcast whole, or scattered and gathered."""
    step_s = ALPHA_S + size * 8e-9 / GBPS / n / degree
    steps = (n - 1) * (1 if collective in ("all_gather", "reduce_scatter") else 2)
    return delay_s + steps * step_s


def _executed(timeline: PortTimeline, data: NDArray[np.int64]) -> NDArray[np.int64]:
    """What servers hold at the end, by numbers: `data[server, piece, block]` at the beginning."""
    held = data.copy()
    n = timeline.servers
    stride_of = {}
    for send in timeline.sends:
        moves = [m for m in timeline.moves if m.port == send.port and m.end_s <= send.begin_s]
        stride_of[id(send)] = max(moves, key=lambda move: move.end_s).stride
    taken: dict[int, list[tuple[int, int, int]]] = {}
    events = [(send.begin_s, 1, send) for send in timeline.sends]
    events += [(send.end_s, 0, send) for send in timeline.sends]
    for _, begins, send in sorted(events, key=lambda event: event[:2]):
        if begins:
            taken[id(send)] = [
                (server, block % held.shape[2], int(held[server, send.piece, block % n]))
                for server in (range(n) if send.part.senders is None else send.part.senders)
                for block in ([server + o for o in send.part.offsets] or [0])
                if block < n or timeline.collective != "broadcast"
            ]
            continue
        for server, block, value in taken.pop(id(send)):
            receiver = (server + stride_of[id(send)]) % n
            if send.reduces:
                held[receiver, send.piece, block] += value
            else:
                held[receiver, send.piece, block] = value
    return held


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(COLLECTIVES),
    st.integers(2, 20),
    st.integers(1, 3),
    st.sampled_from([0.0, 1e-7, 1e-6, 1e-5, 1e-3]),
    st.sampled_from([1e3, 1e6, 1e9]),
)
def test_nothing_is_slower_than_staying_and_all_do_what_they_say(
    collective: str, n: int, degree: int, delay_s: float, size: float
) -> None:
    found = options(collective, n, degree, _costs(delay_s), size)
    assert found[0].seconds == min(option.seconds for option in found)
    assert found[0].seconds <= _rings_s(collective, n, degree, delay_s, size) * (1 + 1e-9)
    assert any(option.stays for option in found)
    random = np.random.default_rng(n)
    for option in found:
        made = option.timeline
        data = random.integers(1, 2**40, (n, made.pieces, made.blocks))
        goal = np.broadcast_to(data.sum(axis=0), data.shape)
        server = np.arange(n)
        if collective == "all_gather":
            goal = np.broadcast_to(data[server, :, server].T[None], data.shape)
        elif collective == "broadcast":
            goal = np.broadcast_to(data[0], data.shape)
            data = data * (server == 0)[:, None, None]
        held = _executed(made, data)
        if collective == "reduce_scatter":
            held, goal = held[server, :, server], goal[server, :, server]
        assert np.array_equal(held, goal)


@pytest.mark.parametrize("n", [16, 60])
@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_on_a_grid_of_delays_and_sizes_none_is_slower_than_rings(
    collective: str, degree: int, n: int
) -> None:
    for delay_s in (1e-8, 1e-6, 1e-4):
        for size in (1e4, 1e8):
            best = options(collective, n, degree, _costs(delay_s), size)[0]
            assert best.seconds <= _rings_s(collective, n, degree, delay_s, size) * (1 + 1e-9)


def test_steps_with_one_circuit_are_recursive_doubling() -> None:
    """A delay, a latency and a doubled share for each of log2 n topologies (PCCL)."""
    size, delay_s = 1e6, 1e-8
    steps = _by_kind("all_gather", 16, 1, delay_s, size)["steps"]
    sent_s = size * 15 / 16 * 8e-9 / GBPS
    assert steps.factors == (2, 2, 2, 2)
    assert steps.seconds == pytest.approx(4 * (delay_s + ALPHA_S) + sent_s)
    both = _by_kind("all_reduce", 16, 1, delay_s, size)["steps"]
    assert both.seconds == pytest.approx(7 * delay_s + 8 * ALPHA_S + 2 * sent_s)


def test_whole_messages_pay_where_they_are_short() -> None:
    short = _by_kind("all_reduce", 8, 1, 1e-6, 1e3)
    assert short["whole"].seconds == pytest.approx(3 * (1e-6 + ALPHA_S + 1e3 * 8e-9 / GBPS))
    assert short["whole"].seconds < min(short["steps"].seconds, short["rings"].seconds)
    assert "whole" not in _by_kind("all_reduce", 7, 1, 1e-6, 1e3)  # 7 is no product of twos


def test_a_grid_shares_its_strides_so_that_ports_carry_alike() -> None:
    size = 64e6
    grid = _by_kind("all_reduce", 64, 2, 1e-5, size)["grid"]
    assert grid.timeline.reconfigurations == 1
    sent_s = 2 * size * 63 / 64 / 2 * 8e-9 / GBPS
    assert grid.seconds == pytest.approx(1e-5 + 28 * ALPHA_S + sent_s, rel=1e-6)


def test_in_turns_circuits_move_while_others_carry() -> None:
    found = _by_kind("all_reduce", 64, 2, 1e-6, 64e3)
    turns = found.pop("turns")
    assert turns.seconds < min(option.seconds for option in found.values())
    hidden = [
        move
        for move in turns.timeline.moves
        for send in turns.timeline.sends
        if send.port != move.port and move.begin_s < send.begin_s < move.end_s
    ]
    assert hidden


@pytest.mark.parametrize(("n", "degree", "size"), [(64, 1, 1e6), (64, 2, 64e3), (48, 2, 1e6)])
def test_moving_pays_up_to_the_delay_that_is_named(n: int, degree: int, size: float) -> None:
    for collective in ("all_reduce", "all_gather"):
        pays_s = break_even_s(collective, n, degree, _costs(0), size)
        assert 1e-7 < pays_s < 1e-3
        assert not options(collective, n, degree, _costs(0.98 * pays_s), size)[0].stays
        assert options(collective, n, degree, _costs(1.2 * pays_s), size)[0].stays
    assert math.isclose(break_even_s("all_reduce", 3, 2, _costs(0), 1e9), 0)


def _timeline(collective: str = "all_reduce") -> PortTimeline:
    return _by_kind(collective, 12, 2, 1e-6, 1e5)["steps"].timeline


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_timeline_without_one_of_its_sends_is_refused(collective: str) -> None:
    made = _timeline(collective)
    replay(made, _costs(1e-6))
    for i in range(len(made.sends)):
        with pytest.raises(TimelineError):
            replay(replace(made, sends=made.sends[:i] + made.sends[i + 1 :]), _costs(1e-6))


def test_rules_that_are_broken_are_named() -> None:
    made = _timeline()
    costs = _costs(1e-6)
    first, last = made.sends[0], made.sends[-1]

    def refuse(token: str, changed: PortTimeline) -> None:
        with refused(TimelineError, token):
            replay(changed, costs)

    def with_last(**changes: object) -> PortTimeline:
        return replace(made, sends=(*made.sends[:-1], replace(last, **changes)))  # type: ignore[arg-type]

    refuse("dark", replace(made, moves=made.moves[1:]))
    refuse("2", with_last(port=2))
    refuse("blocks", with_last(begin_s=last.begin_s + 1e-7))
    late = replace(first, begin_s=last.end_s, end_s=last.end_s + 1e-3)
    with pytest.raises(TimelineError, match=r"twice|whole"):
        replay(replace(made, sends=(*made.sends, late)), costs)
    refuse("at once", replace(made, sends=(*made.sends, first)))
    twice = replace(last.part, offsets=last.part.offsets[:1] * 2)
    refuse("twice", with_last(part=twice))
    short = tuple(replace(move, begin_s=move.end_s - 1e-7) for move in made.moves)
    refuse("delay", replace(made, moves=short))
    refuse("stride of 12", replace(made, moves=(replace(made.moves[0], stride=12),)))
    refuse("nothing", replace(made, sends=()))
    refuse("piece", with_last(piece=99))


def test_a_file_is_replayed_when_it_is_read() -> None:
    for collective in COLLECTIVES:
        document = timeline_file(_timeline(collective), _costs(1e-6))
        assert CollectiveTimelineFile.from_json(document.to_json()) == document
    with pytest.raises(DocumentError, match=r"all of it|does not have"):
        replace(document, sends=document.sends[:-1]).validate()
    with refused(DocumentError, "servers", 1, 2, 512):
        replace(document, servers=1).validate()
    with refused(DocumentError, "senders", 12):
        replace(document, sends=(replace(document.sends[0], senders=(12,)),)).validate()


def test_what_cannot_be_planned_is_an_error() -> None:
    for changes, tokens in (
        (("all_to_none", 8, 1, 1e6), ("collective", "all_to_none")),
        (("all_reduce", 513, 1, 1e6), ("servers", 513, 2, 512)),
        (("all_reduce", 8, 9, 1e6), ("degree", 9, 1, 8)),
        (("all_reduce", 8, 1, 0.0), ("bytes", 0)),
    ):
        collective, n, degree, size = changes
        with refused(ValueError, *tokens):
            options(collective, n, degree, _costs(0), size)
    with refused(ValueError, 4, 5):
        digits_of(5, (2, 2))
    with refused(ValueError, 4, 5):
        doubling_phases(5, (2, 2))
    with refused(ValueError, "collective", "gossip"):
        phases_of("gossip", 4, [(1, 4)], fan=False)
    assert StridePart(1, ()).count == 1
