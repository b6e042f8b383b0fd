"""Safe changes, on the in-memory twin: every possible fault, and what is left afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    CircuitError,
    Difference,
    Fence,
    duplex_circuit,
)
from torch_topoopt.fabric.switches.configure import Snapshot, configure, preview, restore
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.switch import NotSettled, SwitchError, SwitchUnreachable
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEFORE = frozenset({duplex_circuit("1", "2"), duplex_circuit("3", "4")})
WANTED = frozenset({duplex_circuit("1", "3"), duplex_circuit("2", "4"), duplex_circuit("5", "6")})
THEIRS = duplex_circuit("7", "8")
FENCE = Fence(frozenset("123456"))
STEPS = 5  # two removals, three additions
LIMIT_S = 1.0


@pytest.fixture
def switch() -> MemorySwitch:
    switch = MemorySwitch(8, duplex=True)
    configure(switch, BEFORE, FENCE, timeout_s=LIMIT_S)
    switch.apply(Difference((), (THEIRS,)))
    return switch


@pytest.mark.parametrize("step", range(STEPS))
def test_a_change_that_breaks_off_at_any_step_is_undone(switch: MemorySwitch, step: int) -> None:
    switch.fails_after = step
    with refused(SwitchUnreachable, "broke", "restored" if step else "those from before"):
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S)
    assert switch.circuits() == {*BEFORE, THEIRS}
    configure(switch, WANTED, FENCE, timeout_s=LIMIT_S)
    assert switch.circuits() == {*WANTED, THEIRS}


@pytest.mark.parametrize("step", range(STEPS))
def test_where_going_back_fails_too_the_error_names_the_snapshot(
    switch: MemorySwitch, step: int, tmp_path: Path
) -> None:
    path = tmp_path / "before.json"

    def go_deaf(done: int, of: int, what: str) -> None:
        if done == step + 1:
            switch.fails_after = 0
            switch.deaf = True
            raise SwitchError("memory: it said no")

    with pytest.raises(SwitchError) as caught:
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S, snapshot=path, progress=go_deaf)
    assert str(caught.value) == (
        "memory: it said no; going back failed too (memory: no answer); "
        f"the circuits from before are in {path}"
    )
    switch.deaf, switch.fails_after = False, None
    restore(switch, Snapshot.load(path), timeout_s=LIMIT_S)
    assert switch.circuits() == {*BEFORE, THEIRS}


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_ctrl_c_at_any_step_restores_and_goes_on_up(switch: MemorySwitch, step: int) -> None:
    """The last step is while the circuits settle."""
    calls = 0

    def interrupt(done: int, of: int, what: str) -> None:
        nonlocal calls
        calls += 1
        if calls == step + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S, progress=interrupt)
    assert switch.circuits() == {*BEFORE, THEIRS}
    assert caught.value.__notes__ == ["memory: the circuits from before are restored"]


def test_a_deaf_device_is_an_error_before_anything_is_written(
    switch: MemorySwitch, tmp_path: Path
) -> None:
    switch.deaf = True
    with refused(SwitchUnreachable, "no answer"):
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S, snapshot=tmp_path / "before.json")
    assert list(tmp_path.iterdir()) == []


def test_circuits_that_never_settle_are_named_and_undone(switch: MemorySwitch) -> None:
    bad = duplex_circuit("5", "6")
    switch.broken.add(bad)
    with refused(NotSettled, "5-6", 1, "restored"):
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S)
    assert switch.circuits() == {*BEFORE, THEIRS}


def test_where_what_was_there_before_stays_dark_going_back_says_so(switch: MemorySwitch) -> None:
    switch.broken |= {duplex_circuit("5", "6"), *BEFORE}
    with refused(NotSettled, "going back", "1-2", "3-4"):
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S)


def _ignores(switch: MemorySwitch, ignored: Callable[[Difference], Difference]) -> None:
    apply = switch.apply
    switch.apply = lambda d, progress=None: apply(ignored(d), progress)  # type: ignore[method-assign]


def test_a_removal_that_the_device_only_claims_is_found(switch: MemorySwitch) -> None:
    _ignores(switch, lambda d: Difference((), d.add))
    with refused(SwitchError, "differ", "1-2", "3-4"):
        configure(switch, (), FENCE, timeout_s=LIMIT_S)
    assert switch.circuits() == {*BEFORE, THEIRS}


def test_going_back_is_read_back_too(switch: MemorySwitch) -> None:
    configure(switch, (), FENCE, timeout_s=LIMIT_S)
    _ignores(switch, lambda d: Difference((), d.add))
    switch.fails_after = 2
    with refused(SwitchUnreachable, "differ", "1-3", "2-4"):
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S)


def test_without_a_difference_the_device_is_only_asked(switch: MemorySwitch) -> None:
    switch.fails_after = 0
    assert not configure(switch, BEFORE, FENCE, timeout_s=LIMIT_S)
    assert not preview(switch, BEFORE, FENCE)


@pytest.mark.parametrize(
    "wanted",
    [
        [duplex_circuit("1", "2"), duplex_circuit("2", "3")],
        [duplex_circuit("1", "7")],
        [Circuit("1", "nowhere")],
    ],
    ids=["port twice", "port of another job", "no such port"],
)
def test_what_cannot_be_wanted_is_refused_and_nothing_changes(
    switch: MemorySwitch, wanted: list[Circuit], tmp_path: Path
) -> None:
    switch.fails_after = 0
    with pytest.raises(CircuitError):
        configure(switch, wanted, FENCE, timeout_s=LIMIT_S, snapshot=tmp_path / "before.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CircuitError):
        preview(switch, wanted, FENCE)
    assert switch.circuits() == {*BEFORE, THEIRS}


def test_a_snapshot_that_cannot_be_written_stops_the_change(
    switch: MemorySwitch, tmp_path: Path
) -> None:
    path = tmp_path / "no such folder" / "before.json"
    with refused(SwitchError, "before.json", "nothing was changed"):
        configure(switch, WANTED, FENCE, timeout_s=LIMIT_S, snapshot=path)
    assert switch.circuits() == {*BEFORE, THEIRS}


def test_a_snapshot_is_a_document_of_this_job_alone(switch: MemorySwitch, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    configure(switch, WANTED, FENCE, timeout_s=LIMIT_S, snapshot=path)
    snapshot = Snapshot.load(path)
    assert snapshot == Snapshot(
        version=1,
        switch="memory",
        ports=tuple("123456"),
        circuits=(Circuit("1", "2"), Circuit("3", "4")),
    )
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_snapshot_of_another_switch_is_refused(switch: MemorySwitch) -> None:
    other = Snapshot(1, "lab-2", tuple("12"), ())
    with refused(SwitchError, "memory", "lab-2"):
        restore(switch, other, timeout_s=LIMIT_S)
    assert switch.circuits() == {*BEFORE, THEIRS}


def test_a_snapshot_with_a_circuit_outside_of_its_ports_is_refused() -> None:
    text = Snapshot(1, "memory", ("1", "2"), (Circuit("1", "9"),)).to_json()
    with refused(DocumentError, "circuits[0]", 9):
        Snapshot.from_json(text)
