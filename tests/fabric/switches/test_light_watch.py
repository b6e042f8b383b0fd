"""Circuits that go dark on a device without notifications."""

from __future__ import annotations

import select

import pytest
from support.limits import limit_s

from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.light_watch import PolledLight
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.switch import SwitchUnreachable

FIRST, SECOND = Circuit("1A", "2B"), Circuit("2A", "1B")


@pytest.fixture
def switch() -> MemorySwitch:
    switch = MemorySwitch(4, settle_s=0.0)
    switch.apply(Difference(remove=(), add=(FIRST, SECOND)))
    return switch


def test_circuits_without_light_are_found_and_those_that_were_removed(
    switch: MemorySwitch,
) -> None:
    watch = PolledLight(switch)
    assert watch.dark([FIRST, SECOND]) == frozenset()
    switch.broken.add(FIRST)
    assert watch.dark([FIRST, SECOND]) == {FIRST}
    switch.apply(Difference(remove=(SECOND,), add=()))
    assert watch.dark([FIRST, SECOND]) == {FIRST, SECOND}


def test_a_device_that_does_not_answer_has_no_dark_circuits(
    switch: MemorySwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise SwitchUnreachable("memory: no answer")

    monkeypatch.setattr(switch, "wait_settled", away)
    assert PolledLight(switch).dark([FIRST]) == frozenset()


def test_it_asks_to_be_read_again_and_again(switch: MemorySwitch) -> None:
    with PolledLight(switch, period_s=0.001).events() as events:
        for _ in range(3):
            assert select.select([events], [], [], limit_s(10.0))[0]
            assert events.recv(1 << 16)
