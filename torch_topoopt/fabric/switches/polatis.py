"""Polatis (HUBER+SUHNER) optical circuit switches, whatever protocol reaches them.

An N x N switch numbers its inputs 1 to N and its outputs N+1 to 2N; light goes one way, from an
input to an output. Socket 3 of a cluster file is the pair of fibres (input 3, output N+3): a
server's transmitter feeds input 3, and output N+3 feeds its receiver.

`PolatisSwitch` is the driver; it talks to the switch through a `PolatisDevice` (RESTCONF).
It reads before it changes, changes single circuits and never the whole map, and refuses a port
that another circuit uses: a device may take that port from its owner without a word.

Source: the vendor's YANG modules optical-switch (2017-08-04, 2018-03-22) and polatis-switch, as
published with the ONOS controller. No part of this was tested on hardware.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch_topoopt.fabric.clock import Clock, SystemClock
from torch_topoopt.fabric.switches.circuits import Circuit, circuit_order, describe_ports
from torch_topoopt.fabric.switches.switch import (
    Capabilities,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch_topoopt.fabric.switches.circuits import Difference
    from torch_topoopt.fabric.switches.switch import Progress

NO_LIGHT_DBM = -60.0  # the YANG's default threshold for loss of signal
_SETTLE_S = 0.025  # of a change, by the vendor's data sheets
_FIRST_POLL_S, _LONGEST_POLL_S = 0.02, 0.5
_RETRY_S = 0.25
_BLOCKED = ("DISABLED", "FAILED")  # the other states are ENABLED and UNSUPPORTED: always open

Pair = tuple[int, int]  # input, output
_Answer = TypeVar("_Answer")


class PolatisDevice(Protocol):
    """One switch, through one protocol. Methods raise SwitchError (or one of its kinds).

    After SwitchUnreachable the next call connects anew.
    """

    name: str

    def size(self) -> tuple[int, int]:
        """The numbers of its inputs and outputs."""
        ...

    def allowed_ports(self) -> frozenset[int] | None:
        """The ports that this user may see and control; None: all."""
        ...

    def pairs(self) -> dict[int, int]:
        """Input -> output of all circuits that this user may see."""
        ...

    def statuses(self, ports: Sequence[int]) -> dict[int, str]:
        """UNSUPPORTED, ENABLED, DISABLED or FAILED of each port that it knows."""
        ...

    def powers(self, ports: Sequence[int]) -> dict[int, float]:
        """dBm at those of `ports` that have a power monitor."""
        ...

    def disconnect(self, pair: Pair) -> None: ...

    def connect(self, pair: Pair) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Layout:
    """Facts that do not change while a connection lasts."""

    inputs: int
    outputs: int
    allowed: frozenset[int]
    measured: bool


class PolatisSwitch:
    """Drives one switch; keeps the contract of CircuitSwitch.

    A switch that has answered before and goes silent (its network card restarts) is given
    `restart_s` to come back; changes are never repeated blindly. With `check_light`, a circuit
    counts as settled only if the power monitor at its output, where there is one, sees light.
    """

    def __init__(
        self,
        device: PolatisDevice,
        *,
        clock: Clock | None = None,
        restart_s: float = 60.0,
        check_light: bool = True,
    ) -> None:
        self.name = device.name
        self._device = device
        self._clock = SystemClock() if clock is None else clock
        self._restart_s = restart_s
        self._check_light = check_light
        self._layout: _Layout | None = None
        self._answered = False

    def capabilities(self) -> Capabilities:
        layout = self._laid_out()
        ingress, egress = _sides(layout)
        return Capabilities(
            ports=tuple(str(port) for port in sorted(layout.allowed)),
            ingress=ingress,
            egress=egress,
            duplex=False,
            bulk=False,
            settle_s=_SETTLE_S,
        )

    def fibres(self, port: str) -> tuple[str, str]:
        layout = self._laid_out()
        sockets = min(layout.inputs, layout.outputs)
        if not port.isdecimal() or not 1 <= int(port) <= sockets:
            raise SwitchError(
                f"{self.name}: port {port!r} is not one of its sockets, 1 to {sockets}"
            )
        ends = int(port), layout.inputs + int(port)
        for end in ends:
            self._check_allowed(end)
        return str(ends[0]), str(ends[1])

    def circuits(self) -> frozenset[Circuit]:
        self._laid_out()
        pairs = self._ask(self._device.pairs)
        return frozenset(Circuit(str(i), str(o)) for i, o in pairs.items())

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        self._laid_out()
        remove = [self._pair(circuit) for circuit in difference.remove]
        add = [self._pair(circuit) for circuit in difference.add]
        current = self._ask(self._device.pairs)
        remove = [pair for pair in remove if pair in current.items()]
        add = [pair for pair in add if pair not in current.items()]
        kept = {i: o for i, o in current.items() if (i, o) not in remove}
        for pair in add:
            self._check_free(pair, kept)
        self._change(remove, add, progress)

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        wanted = {circuit: self._pair(circuit) for circuit in sorted(circuits, key=circuit_order)}
        self._laid_out()
        deadline = self._clock.now() + timeout_s
        pause_s = _FIRST_POLL_S
        while True:
            last = self._clock.now() >= deadline  # so that the last answer is not an early one
            reasons = self._ask(lambda: self._dark(wanted), deadline)
            if not reasons:
                return
            if progress is not None:
                progress(len(wanted) - len(reasons), len(wanted), "settling")
            if last:
                named = ", ".join(f"{circuit} ({why})" for circuit, why in reasons.items())
                raise NotSettled(
                    f"{self.name}: not carrying light after {timeout_s:g} s: {named}", reasons
                )
            left_s = max(deadline - self._clock.now(), 0.0)
            self._clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def close(self) -> None:
        self._layout = None
        self._device.close()

    def _laid_out(self) -> _Layout:
        if self._layout is None:
            self._layout = self._ask(self._read_layout)
        return self._layout

    def _read_layout(self) -> _Layout:
        inputs, outputs = self._device.size()
        every = frozenset(range(1, inputs + outputs + 1))
        allowed = self._device.allowed_ports()
        allowed = every if allowed is None else allowed & every
        if not allowed:
            raise SwitchError(
                f"{self.name}: this user may not control any of its {len(every)} ports"
            )
        watched = sorted(port for port in allowed if port > inputs)
        measured = bool(watched and self._device.powers(watched))
        return _Layout(inputs, outputs, allowed, measured)

    def _ask(self, question: Callable[[], _Answer], until: float | None = None) -> _Answer:
        """The answer; while the switch is away after having answered once, asks again."""
        limit = self._clock.now() + self._restart_s
        limit = limit if until is None else min(limit, until)
        while True:
            try:
                answer = question()
            except SwitchUnreachable:
                if not self._answered or self._clock.now() >= limit:
                    raise
                self._clock.sleep(_RETRY_S)
            else:
                self._answered = True
                return answer

    def _change(self, remove: list[Pair], add: list[Pair], progress: Progress | None) -> None:
        total, done = len(remove) + len(add), 0
        for change, pairs in ((self._device.disconnect, remove), (self._device.connect, add)):
            for pair in pairs:
                change(pair)
                done += 1
                if progress is not None:
                    progress(done, total, f"{pair[0]}-{pair[1]}")

    def _dark(self, wanted: Mapping[Circuit, Pair]) -> dict[Circuit, str]:
        """The circuits that do not carry light -> the reason."""
        pairs = self._device.pairs()
        reasons = {c: "not configured" for c, (i, o) in wanted.items() if pairs.get(i) != o}
        there = {circuit: pair for circuit, pair in wanted.items() if circuit not in reasons}
        if not there:
            return reasons
        statuses = self._device.statuses(sorted(port for pair in there.values() for port in pair))
        lit: dict[int, float] = {}
        if self._check_light and self._laid_out().measured:
            lit = self._device.powers(sorted(o for _, o in there.values()))
        for circuit, pair in there.items():
            blocked = [port for port in pair if statuses.get(port) in _BLOCKED]
            if blocked:
                reasons[circuit] = f"port {blocked[0]} is {statuses[blocked[0]]}"
            elif lit.get(pair[1], 0.0) <= NO_LIGHT_DBM:
                reasons[circuit] = f"port {pair[1]} sees {lit[pair[1]]:g} dBm"
        return reasons

    def _pair(self, circuit: Circuit) -> Pair:
        layout = self._laid_out()
        ingress, egress = self._number(circuit.ingress), self._number(circuit.egress)
        if not 1 <= ingress <= layout.inputs < egress <= layout.inputs + layout.outputs:
            raise SwitchError(
                f"{self.name}: {circuit} is not a circuit from an input (1 to {layout.inputs}) to "
                f"an output ({layout.inputs + 1} to {layout.inputs + layout.outputs})"
            )
        for port in (ingress, egress):
            self._check_allowed(port)
        return ingress, egress

    def _number(self, port: str) -> int:
        if not port.isdecimal():
            raise SwitchError(f"{self.name}: port {port!r} is not a number")
        return int(port)

    def _check_allowed(self, port: int) -> None:
        allowed = self._laid_out().allowed
        if port not in allowed:
            visible = describe_ports(str(p) for p in allowed)
            raise SwitchError(
                f"{self.name}: port {port} belongs to others; this user controls {visible}"
            )

    def _check_free(self, pair: Pair, kept: Mapping[int, int]) -> None:
        for ingress, egress in kept.items():
            for port in set(pair) & {ingress, egress}:
                raise SwitchError(
                    f"{self.name}: port {port} is in use by circuit {ingress}-{egress}; "
                    "nothing was changed"
                )


def _sides(layout: _Layout) -> tuple[frozenset[str], frozenset[str]]:
    inputs = frozenset(str(port) for port in layout.allowed if port <= layout.inputs)
    return inputs, frozenset(str(port) for port in layout.allowed) - inputs


def size_of_model(name: str, model: str) -> tuple[int, int]:
    """(inputs, outputs) of a model name such as I-OST-24x24-LU1-DMHNS; raises SwitchError."""
    found = re.search(r"(?<!\d)(\d+)x(\d+|CC)(?![\dA-Z])", model, re.IGNORECASE)
    if found is None:
        raise SwitchError(f"{name}: its model name {model!r} does not say how many ports it has")
    if found[2].upper() == "CC":
        raise SwitchError(
            f"{name}: {model!r} connects any port to any other; this driver controls switches "
            "with separate inputs and outputs (NxN)"
        )
    return int(found[1]), int(found[2])
