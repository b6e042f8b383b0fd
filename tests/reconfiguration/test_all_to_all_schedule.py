"""Schedules of an all-to-all: both checks accept what is right and refuse what is not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.schedule_matrices import check_barriers, check_matrix_form, matrix_form
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.reconfiguration.all_to_all.bounds import (
    carried_bound_slots,
    uncarried_bound_slots,
)
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.all_to_all.schedule import (
    AllToAllSchedule,
    circulant_links,
)
from torch_topoopt.reconfiguration.all_to_all.schedule_file import (
    AllToAllScheduleFile,
    schedule_file,
)
from torch_topoopt.reconfiguration.all_to_all.single_cycles import shift_schedule
from torch_topoopt.reconfiguration.all_to_all.verification import ScheduleError, verify


def test_theorem_1_at_eight_servers() -> None:
    bounds = [uncarried_bound_slots(8, 1, d) for d in range(1, 8)]
    assert bounds == [28, 16, 12, 10, 9, 8, 7]


@given(st.integers(2, 200), st.integers(1, 199))
def test_the_bound_at_degree_1_is_the_formula_of_theorem_1(n: int, d: int) -> None:
    q, u = divmod(n - 1, d)
    assert uncarried_bound_slots(n, 1, d) == d * q * (q + 1) // 2 + u * (q + 1)


@given(st.integers(2, 100), st.integers(1, 4), st.integers(1, 20))
def test_bounds_fall_with_topologies_and_circuits(n: int, k: int, d: int) -> None:
    for bound in (uncarried_bound_slots, carried_bound_slots):
        here = bound(n, k, d)
        assert here >= bound(n, k, d + 1)
        assert here >= bound(n, k + 1, d)
        assert here >= -(-(n - 1) // k)
    assert carried_bound_slots(n, k, d) <= uncarried_bound_slots(n, k, d)
    assert carried_bound_slots(n, k, 1) == uncarried_bound_slots(n, k, 1)


def test_a_bound_of_nothing_is_an_error() -> None:
    with refused(ValueError, "servers", 1, 2):
        uncarried_bound_slots(1, 1, 1)
    with refused(ValueError, "degree", 0):
        carried_bound_slots(4, 0, 1)
    with refused(ValueError, "reconfigurations", 0):
        uncarried_bound_slots(4, 1, 0)


def test_costs_are_alpha_beta_and_the_delay() -> None:
    costs = CircuitCosts(link_gbps=800, latency_s=500e-9, reconfiguration_s=1e-5)
    assert costs.slot_s(4e6) == pytest.approx(500e-9 + 4e6 * 8 / 800e9)
    assert costs.seconds(28, 2, 4e6) == pytest.approx(2e-5 + 28 * costs.slot_s(4e6))
    with refused(ValueError, "reconfiguration-delay", -1):
        CircuitCosts(800, 0, -1)
    with refused(ValueError, "bandwidth", 0):
        CircuitCosts(0, 0, 0)


def _slow_verdict(schedule: AllToAllSchedule) -> bool:
    """Slot by slot, chunk by chunk, over every server: whether each chunk arrives once."""
    n = schedule.servers
    at = {(s, t): s for s in range(n) for t in range(n) if s != t}
    busy = set()
    ends = np.cumsum([sum(slots) for slots in schedule.rounds])
    moved = set()
    for slot, sender, port, source, target, _ in sorted(map(tuple, schedule.sends.tolist())):
        topology = int(np.searchsorted(ends, slot, side="right"))
        receiver = int(schedule.links[topology, sender, port])
        free = (slot, sender, port) not in busy and (slot, source, target) not in moved
        if not free or at.get((source, target)) != sender or sender in (target, receiver):
            return False
        busy.add((slot, sender, port))
        moved.add((slot, source, target))
        at[source, target] = receiver
    return all(where == target for (_, target), where in at.items())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_verifier_agrees_with_a_slow_replay_of_altered_schedules(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 7))
    shifts = [1, *data.draw(st.sets(st.integers(2, n - 1), max_size=2))]
    schedule = shift_schedule(n, shifts).whole()
    sends = schedule.sends.copy()
    for _ in range(data.draw(st.integers(0, 2))):
        row = data.draw(st.integers(0, len(sends) - 1))
        column = data.draw(st.integers(0, 4))
        most = schedule.slots if column == 0 else 1 if column == 2 else n
        if data.draw(st.booleans()):
            sends[row, column] = data.draw(st.integers(0, most - 1))
        else:
            sends = np.delete(sends, row, axis=0)
    altered = AllToAllSchedule(schedule.links, schedule.rounds, sends, translated=False)
    try:
        verify(altered)
        verdict = True
    except ScheduleError:
        verdict = False
    assert verdict == _slow_verdict(altered)


def _rows(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    return np.array([(*row, 0) for row in rows], dtype=np.int32)


def _figure_8c() -> AllToAllSchedule:
    """The paper's schedule of the circulant {6, 5} of 8 servers, as printed."""
    words = [[(6,), (5,)], [(6, 6), (5, 5)], [(6, 5)], [(6, 6, 5), (5, 5, 5)]]
    rows, slot = [], 0
    for words_of_round in words:
        for word in words_of_round:
            for hop, stride in enumerate(word):
                port = (6, 5).index(stride)
                rows.append((slot + hop, sum(word[:hop]) % 8, port, 0, sum(word) % 8))
        slot += len(words_of_round[0])
    return AllToAllSchedule(
        circulant_links(8, [(6, 5)]), ((1, 2, 2, 3),), _rows(*rows), translated=True
    )


def test_round_4_of_figure_8c_contends() -> None:
    printed = _figure_8c()
    assert printed.slots == 8
    with refused(ScheduleError, "slot 7", "port 1", "chunk 0"):
        verify(printed)
    assert check_matrix_form(printed.links, matrix_form(printed)) <= 8  # matrices cannot see it


def test_dark_ports_overfull_servers_and_long_rounds_are_found() -> None:
    links = np.array([[[1], [1], [0]]], dtype=np.int32)
    sends = _rows((0, 0, 0, 0, 1))
    with refused(ScheduleError, "chunk 0", 2):
        verify(AllToAllSchedule(links, ((1,),), sends, translated=False))
    dark = _rows((0, 1, 0, 1, 2))
    with refused(ScheduleError, "slot 0", "port 0", "server 1"):
        verify(AllToAllSchedule(links, ((1,),), dark, translated=False))
    crowded = np.array([[[1], [1], [1]]], dtype=np.int32)
    crowded[0, 1] = 0
    with refused(ScheduleError, "topology 0", "server 1", 2):
        verify(AllToAllSchedule(crowded, ((1,),), sends, translated=False))
    ring = shift_schedule(4, [1])
    check_barriers(ring)
    cut = AllToAllSchedule(ring.links, ((1, 1, 4),), ring.sends, translated=True)
    verify(cut)
    with refused(ScheduleError, "chunk 0", 2):
        check_barriers(cut)


def test_the_sum_of_matrices_is_refused_where_it_is_not_the_all_to_all() -> None:
    schedule = shift_schedule(6, [1, 5])
    terms = matrix_form(schedule)
    assert check_matrix_form(schedule.links, terms) == schedule.slots
    with refused(ScheduleError, "all-to-all"):
        check_matrix_form(schedule.links, terms[1:])
    hops, mask = terms[0]
    wrong = ((hops[0] + 1, *hops[1:]), mask)
    with refused(ScheduleError, "walk"):
        check_matrix_form(schedule.links, [wrong, *terms[1:]])


def test_a_schedule_is_read_as_it_was_written() -> None:
    schedule = shift_schedule(6, [1, 5])
    for form in (schedule, schedule.whole()):
        text = schedule_file(form).to_json()
        again = AllToAllScheduleFile.from_json(text)
        assert again.to_json() == text
        assert verify(again.schedule()) == verify(schedule)


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        ('"translated": true', '"translated": false', ("chunk 1", 0)),
        ("[0, 1, 0, 0]", "[0, 1, 0, 1]", ("chunks[0]", 4, 6)),
        ("[0, 1, 0, 0]", "[0, 1, 0]", ("chunks[0]",)),
        ("[0, 1, 0, 0]", "[0, 1, 1, 0]", ("slot 1", "port 0", "server 0")),
        ('"degree": 1', '"degree": 2', ("topologies[0].links", 4, 2)),
        ('"servers": 4', '"servers": 1', ("servers", "degree", "topologies")),
    ],
)
def test_a_wrong_file_is_one_clear_line(old: str, new: str, tokens: tuple[object, ...]) -> None:
    text = schedule_file(shift_schedule(4, [1])).to_json()
    assert old in text
    with refused(DocumentError, *tokens) as error:
        AllToAllScheduleFile.from_json(text.replace(old, new))
    assert not re.search("\n", str(error.value))
