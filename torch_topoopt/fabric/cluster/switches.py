"""The switches of a cluster file, changed together: all of them, or none.

The sockets that the file gives each switch are the fence; nothing else on it is touched.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from torch_topoopt.fabric.switches.circuits import Circuit, Difference, Fence
from torch_topoopt.fabric.switches.configure import (
    Snapshot,
    configure,
    preview,
    restore,
    take_snapshot,
)
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.switch import SwitchError, cable_circuits
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import CableEnds, SwitchEntry
    from torch_topoopt.fabric.switches.switch import CircuitSwitch

    # name of the switch, finished circuits, all circuits, and the current action
    SwitchProgress = Callable[[str, int, int, str], None]
    # name of the switch -> the connected pairs of its sockets
    Cables = Mapping[str, Sequence[tuple[str, str]]]

_LEAST_S = 30.0


class Switches:
    """The switches of a cluster file; a context manager that ends their connections."""

    def __init__(
        self,
        file: ClusterFile,
        *,
        open_switch: Callable[[SwitchEntry], CircuitSwitch] = open_switch,
    ) -> None:
        if not file.switches:
            raise FabricError(f"switches: cluster {file.name} has none")
        self._stack = ExitStack()
        self._switches: dict[str, CircuitSwitch] = {}
        self._ends = {port.switch: end for end, (_, port) in file.ports.items() if port.switch}
        self._sockets = {entry.name: entry.sockets for entry in file.switches}
        with self._stack:
            for entry in file.switches:
                self._switches[entry.name] = open_switch(entry)
                self._stack.callback(self._switches[entry.name].close)
            self._stack = self._stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def plugged(self) -> list[CableEnds]:
        """The cables between ports of the cluster that have circuits in both directions."""
        cables = []
        for name, switch in self._switches.items():
            fibres = {socket: switch.fibres(socket) for socket in self._sockets[name]}
            sends = {transmit: socket for socket, (transmit, _) in fibres.items()}
            receives = {receive: socket for socket, (_, receive) in fibres.items()}
            joined = {
                (sends[c.ingress], receives[c.egress])
                for c in switch.circuits()
                if c.ingress in sends and c.egress in receives
            }
            duplex = switch.capabilities().duplex
            for a, b in sorted(joined):
                ends = self._ends.get(f"{name}:{a}"), self._ends.get(f"{name}:{b}")
                whole = duplex or (a < b and (b, a) in joined)
                if whole and ends[0] is not None and ends[1] is not None:
                    cables.append((ends[0], ends[1]))
        return cables

    def preview(self, cables: Cables) -> dict[str, Difference]:
        """The changes that `configure` would make on each switch; changes nothing."""
        wanted = self._circuits(cables)
        return {
            name: preview(switch, wanted[name], self._fence(name))
            for name, switch in self._switches.items()
        }

    def configure(
        self,
        cables: Cables,
        *,
        timeout_s: float | None = None,
        folder: Path | None = None,
        progress: SwitchProgress | None = None,
    ) -> dict[str, Difference]:
        """Connects exactly `cables` (switch -> pairs of its sockets) on the cluster's sockets.

        Reads all switches before it changes one. If one fails, the changed ones are restored, and
        the SwitchError reports whether that worked. `timeout_s` is per switch (None: the vendor's
        time). `folder` receives a Snapshot of each switch before any change.
        """
        wanted = self._circuits(cables)
        differences = self.preview(cables)
        before = self.snapshots()
        if folder is not None:
            save_snapshots(before, folder)
        changed: list[str] = []
        try:
            for name, switch in self._switches.items():
                configure(
                    switch,
                    wanted[name],
                    self._fence(name),
                    timeout_s=self._limit_s(name, differences[name], timeout_s),
                    progress=_named(name, progress),
                )
                changed.append(name)
        except BaseException as error:
            outcome = self.go_back({name: before[name] for name in changed}, timeout_s)
            if folder is not None and not self._drop_needless(before, folder):
                outcome += f"; all circuits from before are in {folder}"
            if isinstance(error, SwitchError):
                error.args = (f"{error}{outcome}", *error.args[1:])
            elif outcome:
                error.add_note(outcome.removeprefix("; "))
            raise
        return differences

    def _drop_needless(self, before: Mapping[str, Snapshot], folder: Path) -> bool:
        """Removes the snapshots in `folder` if the circuits are those of `before` again."""
        try:
            if self.snapshots() != before:
                return False
            for name in before:
                _path(folder, name).unlink()
            folder.rmdir()
        except (OSError, SwitchError):  # unknown, so keep the way back
            return False
        return True

    def snapshots(self) -> dict[str, Snapshot]:
        """The circuits of this cluster on each switch, as they are; changes nothing."""
        return {
            name: take_snapshot(switch, self._fence(name))
            for name, switch in self._switches.items()
        }

    def preview_restore(self, folder: Path) -> dict[str, Difference]:
        """Exactly what `restore` would change; changes nothing."""
        return {
            name: preview(self._switches[name], snapshot.circuits, self._fence(name))
            for name, snapshot in self._load(folder).items()
        }

    def restore(
        self,
        folder: Path,
        *,
        timeout_s: float | None = None,
        progress: SwitchProgress | None = None,
    ) -> dict[str, Difference]:
        """Goes back to the Snapshots in `folder`, switch after switch.

        One that fails does not keep the others from going back; its SwitchError comes at the end.
        """
        snapshots = self._load(folder)
        differences = {}
        failures: list[SwitchError] = []
        for name, difference in self.preview_restore(folder).items():
            limit_s = self._limit_s(name, difference, timeout_s)
            if progress is not None:
                progress(name, 0, len(snapshots[name].circuits), "going back")
            try:
                differences[name] = restore(
                    self._switches[name], snapshots[name], timeout_s=limit_s
                )
            except SwitchError as error:
                failures.append(error)
        if failures:
            failures[0].args = ("; ".join(map(str, failures)), *failures[0].args[1:])
            raise failures[0]
        return differences

    def go_back(self, before: Mapping[str, Snapshot], timeout_s: float | None) -> str:
        """Restores `before`. Never raises: returns how it went, to be added to what went wrong."""
        if not before:
            return ""
        outcomes = []
        for name, snapshot in before.items():
            try:
                switch = self._switches[name]
                difference = preview(switch, snapshot.circuits, self._fence(name))
                restore(switch, snapshot, timeout_s=self._limit_s(name, difference, timeout_s))
                outcomes.append(f"{name} is restored too")
            except Exception as error:
                outcomes.append(f"going back on {name} failed ({error})")
        return "; " + "; ".join(outcomes)

    def _circuits(self, cables: Cables) -> dict[str, tuple[Circuit, ...]]:
        return {
            name: tuple(c for a, b in cables.get(name, ()) for c in cable_circuits(switch, a, b))
            for name, switch in self._switches.items()
        }

    def _fence(self, name: str) -> Fence:
        switch = self._switches[name]
        return Fence(frozenset(p for s in self._sockets[name] for p in switch.fibres(s)))

    def _limit_s(self, name: str, difference: Difference, timeout_s: float | None) -> float:
        if timeout_s is not None:
            return timeout_s
        capabilities = self._switches[name].capabilities()
        steps = 1 if capabilities.bulk else len(difference.remove) + len(difference.add)
        return max(_LEAST_S, 2 * steps * capabilities.settle_s)

    def _load(self, folder: Path) -> dict[str, Snapshot]:
        """The Snapshots in `folder`, which must fit the switches and their sockets."""
        snapshots = {}
        for name in self._switches:
            path = _path(folder, name)
            try:
                snapshot = Snapshot.load(path)
            except OSError as error:
                raise FabricError(f"{path}: cannot read this snapshot: {error.strerror}") from None
            if snapshot.switch != name:
                raise FabricError(f"{path}: is a snapshot of {snapshot.switch}, not of {name}")
            foreign = set(snapshot.ports) - self._fence(name).ports
            if foreign:
                raise FabricError(
                    f"{path}: port {min(foreign)} is not of a socket that the cluster file gives "
                    f"{name}; nothing was changed"
                )
            snapshots[name] = snapshot
        return snapshots


def _named(name: str, progress: SwitchProgress | None) -> Callable[[int, int, str], None] | None:
    if progress is None:
        return None
    return lambda done, of, what: progress(name, done, of, what)


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def save_snapshots(snapshots: Mapping[str, Snapshot], folder: Path) -> None:
    """Writes a file for each switch. Never over another: that one may be the only way back."""
    for name in snapshots:
        if (path := _path(folder, name)).exists():
            raise FabricError(f"{path} exists; give another folder, nothing was changed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, snapshot in snapshots.items():
            snapshot.save(_path(folder, name))
    except OSError as error:
        raise FabricError(
            f"{folder}: the snapshots cannot be written ({error.strerror}); nothing was changed"
        ) from None
