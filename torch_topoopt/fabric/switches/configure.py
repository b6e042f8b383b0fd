"""Changes the circuits of a switch safely: fenced, snapshotted, read back, undone on failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    Difference,
    Fence,
    circuit_order,
    port_order,
    reconcile,
)
from torch_topoopt.fabric.switches.switch import SwitchError
from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch_topoopt.fabric.switches.switch import CircuitSwitch, Progress


@dataclass(frozen=True)
class Snapshot(Document):
    """The circuits of one job on one switch before a change; `restore` goes back to them."""

    KIND: ClassVar[str] = "Snapshot"
    VERSION: ClassVar[int] = 1

    version: int
    switch: str
    ports: tuple[str, ...]
    circuits: tuple[Circuit, ...]

    def validate(self) -> Self:
        if not self.switch:
            raise DocumentError("switch: must name the switch")
        for i, circuit in enumerate(self.circuits):
            for port in circuit.ports:
                if port not in self.ports:
                    raise DocumentError(f"circuits[{i}]: {port!r} is not in ports")
        return self


def preview(switch: CircuitSwitch, wanted: Iterable[Circuit], fence: Fence) -> Difference:
    """The changes that `configure` would make; reads the switch, changes nothing."""
    wanted = frozenset(wanted)
    fence.check(wanted)
    return reconcile(fence.own(switch.circuits()), wanted)


def configure(
    switch: CircuitSwitch,
    wanted: Iterable[Circuit],
    fence: Fence,
    *,
    timeout_s: float,
    snapshot: Path | None = None,
    progress: Progress | None = None,
) -> Difference:
    """Makes the circuits within `fence` exactly `wanted`; returns when all of them are up.

    Writes the current circuits to `snapshot` before any change. On failure it restores them, and
    the SwitchError reports whether that worked. Idempotent: without a difference it only reads the
    switch. Raises CircuitError if the fence forbids the change.
    """
    wanted = frozenset(wanted)
    fence.check(wanted)
    before = fence.own(switch.circuits())
    difference = reconcile(before, wanted)
    if snapshot is not None:
        _save(_snapshot(switch, before, fence), snapshot)
    try:
        if difference:
            switch.apply(difference, progress)
        switch.wait_settled(wanted, timeout_s, progress)
        _read_back(switch, wanted, fence)
    except BaseException as error:
        outcome = _roll_back(switch, before, fence, timeout_s, snapshot)
        if isinstance(error, SwitchError):
            error.args = (f"{error}; {outcome}", *error.args[1:])
        else:
            error.add_note(f"{switch.name}: {outcome}")
        raise
    return difference


def take_snapshot(switch: CircuitSwitch, fence: Fence) -> Snapshot:
    """The current circuits within `fence`; reads the switch, changes nothing."""
    return _snapshot(switch, fence.own(switch.circuits()), fence)


def restore(switch: CircuitSwitch, snapshot: Snapshot, *, timeout_s: float) -> Difference:
    """Restores the circuits of `snapshot`; leaves other jobs' circuits alone."""
    if snapshot.switch != switch.name:
        raise SwitchError(f"{switch.name}: this is a snapshot of {snapshot.switch}")
    fence = Fence(frozenset(snapshot.ports))
    return configure(switch, snapshot.circuits, fence, timeout_s=timeout_s)


def _snapshot(switch: CircuitSwitch, circuits: Iterable[Circuit], fence: Fence) -> Snapshot:
    return Snapshot(
        version=Snapshot.VERSION,
        switch=switch.name,
        ports=tuple(sorted(fence.ports, key=port_order)),
        circuits=tuple(sorted(circuits, key=circuit_order)),
    ).validate()


def _save(document: Snapshot, path: Path) -> None:
    try:
        document.save(path)
    except OSError as error:
        raise SwitchError(
            f"{document.switch}: the snapshot {path} cannot be written ({error.strerror}); "
            "nothing was changed"
        ) from None


def _read_back(switch: CircuitSwitch, wanted: frozenset[Circuit], fence: Fence) -> None:
    left = reconcile(fence.own(switch.circuits()), wanted)
    if left:
        raise SwitchError(
            f"{switch.name}: it accepted the change, but its circuits still differ: "
            + ", ".join(left.describe())
        )


def _roll_back(
    switch: CircuitSwitch,
    before: frozenset[Circuit],
    fence: Fence,
    timeout_s: float,
    snapshot: Path | None,
) -> str:
    """Restores `before`; never raises, returns a description of the outcome."""
    try:
        difference = reconcile(fence.own(switch.circuits()), before)
        if difference:
            switch.apply(difference)
        switch.wait_settled(before, timeout_s)
        _read_back(switch, before, fence)
    except Exception as error:
        kept = f"; the circuits from before are in {snapshot}" if snapshot is not None else ""
        return f"going back failed too ({error}){kept}"
    if not difference:
        return "its circuits are those from before"
    return "the circuits from before are restored"
