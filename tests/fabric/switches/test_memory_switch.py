"""The in-memory twin keeps the contract of every switch."""

from __future__ import annotations

import pytest
from support.fabric.switch_contract import Bench, SwitchContract

from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch


@pytest.fixture(params=[False, True], ids=["simplex", "duplex"])
def bench(request: pytest.FixtureRequest) -> Bench:
    switch = MemorySwitch(8, duplex=request.param)

    def ignore() -> None:
        switch.apply = lambda difference, progress=None: None  # type: ignore[method-assign]

    def cut_after(count: int) -> None:
        switch.fails_after = count

    return Bench(switch, switch.circuits, switch.broken.add, cut_after, ignore)


class TestMemorySwitch(SwitchContract):
    pass


def test_circuits_settle_when_the_clock_says_so() -> None:
    switch = MemorySwitch(4, settle_s=120.0)
    circuit = Circuit("1A", "2B")
    switch.apply(Difference((), (circuit,)))
    switch.wait_settled([circuit], timeout_s=200.0)
    assert switch.clock.now() == pytest.approx(120.0, abs=0.02)
