"""A circuit switch in memory, with a settle time and faults: for tests and dry runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.fabric.clock import Clock, HandClock
from torch_topoopt.fabric.switches.circuits import Circuit, Difference, circuit_order, port_order
from torch_topoopt.fabric.switches.open_switch import read_options
from torch_topoopt.fabric.switches.switch import (
    Capabilities,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.switch import Progress

_POLL_S = 0.01


class MemorySwitch:
    """A switch of `size` duplex sockets; simplex inside: socket 3 sends at "3A", receives at "3B".

    Faults for tests: `broken` circuits are accepted and never settle; `deaf`, and no request
    arrives; `fails_after` more circuits were changed, `apply` breaks off.
    """

    def __init__(
        self,
        size: int,
        *,
        name: str = "memory",
        duplex: bool = False,
        settle_s: float = 0.025,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.clock = HandClock() if clock is None else clock
        self.broken: set[Circuit] = set()
        self.deaf = False
        self.fails_after: int | None = None
        self._duplex = duplex
        self._settle_s = settle_s
        self._ready_at: dict[Circuit, float] = {}
        sockets = [str(i + 1) for i in range(size)]
        self._ingress = frozenset(sockets if duplex else (f"{s}A" for s in sockets))
        self._egress = frozenset(sockets if duplex else (f"{s}B" for s in sockets))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            ports=tuple(sorted(self._ingress | self._egress, key=port_order)),
            ingress=self._ingress,
            egress=self._egress,
            duplex=self._duplex,
            bulk=True,
            settle_s=self._settle_s,
        )

    def fibres(self, port: str) -> tuple[str, str]:
        ends = (port, port) if self._duplex else (f"{port}A", f"{port}B")
        if ends[0] not in self._ingress:
            raise SwitchError(f"{self.name}: port {port!r} is not one of its sockets")
        return ends

    def circuits(self) -> frozenset[Circuit]:
        self._answer()
        return frozenset(self._ready_at)

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        self._answer()
        steps = len(difference.remove) + len(difference.add)
        for done, circuit in enumerate((*difference.remove, *difference.add)):
            if self.fails_after is not None:
                if self.fails_after == 0:
                    self.fails_after = None
                    raise SwitchUnreachable(f"{self.name}: the connection broke")
                self.fails_after -= 1
            if circuit in difference.remove:
                self._ready_at.pop(circuit, None)
            else:
                self._add(circuit)
            if progress is not None:
                progress(done + 1, steps, str(circuit))

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        circuits = set(circuits)
        deadline = self.clock.now() + timeout_s
        while dark := {c for c in circuits if not self._settled(c)}:
            self._answer()
            if progress is not None:
                progress(len(circuits) - len(dark), len(circuits), "settling")
            if self.clock.now() >= deadline:
                names = ", ".join(str(c) for c in sorted(dark, key=circuit_order))
                raise NotSettled(f"{self.name}: no light on {names} after {timeout_s:g} s", dark)
            self.clock.sleep(_POLL_S)

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.deaf:
            raise SwitchUnreachable(f"{self.name}: no answer")

    def _settled(self, circuit: Circuit) -> bool:
        ready_at = self._ready_at.get(circuit)
        return ready_at is not None and ready_at <= self.clock.now() and circuit not in self.broken

    def _add(self, circuit: Circuit) -> None:
        if circuit in self._ready_at:
            return
        if circuit.ingress not in self._ingress or circuit.egress not in self._egress:
            raise SwitchError(f"{self.name}: {circuit} is not a circuit from ingress to egress")
        used = {port for present in self._ready_at for port in present.ports}
        for port in circuit.ports:
            if port in used:
                raise SwitchError(f"{self.name}: port {port} is in use")
        self._ready_at[circuit] = self.clock.now() + self._settle_s


def from_entry(entry: SwitchEntry) -> MemorySwitch:
    """The twin of a `memory` entry; it starts without circuits and forgets them with the process.

    Options: `size` (sockets; default: as many as the highest of the entry), `duplex`, `settle_s`.
    """
    options = read_options(entry, {"size": int, "duplex": bool, "settle_s": float})
    highest = max((int(s) for s in entry.sockets if s.isdecimal()), default=0)
    return MemorySwitch(options.pop("size", highest), name=entry.name, **options)
