"""A plain patch panel and a person: prints the moves, waits for each, and records the answers.

Such a panel cannot be queried for its cables. A file holds the circuits that the person confirmed;
the verification of every link from the hosts' side proves them.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    Difference,
    circuit_order,
    duplex_circuit,
)
from torch_topoopt.fabric.switches.open_switch import read_options
from torch_topoopt.fabric.switches.panel_work import (
    AssumedPerson,
    CableMove,
    PersonLeft,
    Sheet,
    TerminalPerson,
)
from torch_topoopt.fabric.switches.switch import Capabilities, NotSettled, SwitchError
from torch_topoopt.plan.codec import Document, DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.panel_work import Person
    from torch_topoopt.fabric.switches.switch import Progress


@dataclass(frozen=True)
class PanelState(Document):
    """The assumed cables of a panel, the lower socket of each first."""

    KIND: ClassVar[str] = "PanelState"
    VERSION: ClassVar[int] = 1

    version: int
    panel: str
    circuits: tuple[Circuit, ...]

    def validate(self) -> Self:
        owners: dict[str, int] = {}
        for i, circuit in enumerate(self.circuits):
            if circuit != duplex_circuit(*circuit.ports) or circuit.ingress == circuit.egress:
                raise DocumentError(
                    f"circuits[{i}]: {circuit} must be two sockets, the lower as ingress"
                )
            for port in circuit.ports:
                if owners.setdefault(port, i) != i:
                    raise DocumentError(
                        f"circuits[{i}]: socket {port!r} is also in circuits[{owners[port]}]"
                    )
        return self


def state_file(name: str) -> Path:
    """The file of panel `name`'s state: $XDG_STATE_HOME/torch_topoopt/panels/NAME.json."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise SwitchError(f"panel name {name!r}: must consist of letters, digits, '.', '_' and '-'")
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "torch_topoopt" / "panels" / f"{name}.json"


class ManualPanel:
    """`sockets` are the names printed beside them, `place` is where a person finds the panel.

    `person`: default the user of the terminal. `state`: default `state_file(name)`.
    A move that the person cannot do ends the change, and configure then asks for the way back. If
    the person has left (the input ended, Ctrl-C), nothing is undone, as it would need a person.
    """

    def __init__(
        self,
        sockets: Iterable[str],
        *,
        name: str = "panel",
        place: str = "",
        person: Person | None = None,
        state: Path | None = None,
    ) -> None:
        self.name = name
        self._place = place
        self._sockets = tuple(sockets)
        self._person = TerminalPerson(sys.stdin, sys.stderr) if person is None else person
        self._path = state_file(name) if state is None else state
        self._left = False

    def capabilities(self) -> Capabilities:
        return Capabilities(
            ports=self._sockets,
            ingress=frozenset(self._sockets),
            egress=frozenset(self._sockets),
            duplex=True,
            bulk=True,
            settle_s=60.0,
        )

    def fibres(self, port: str) -> tuple[str, str]:
        if port not in self._sockets:
            raise SwitchError(f"{self.name}: port {port!r} is not one of its sockets")
        return port, port

    def circuits(self) -> frozenset[Circuit]:
        """The confirmed circuits, of all users of the panel; without a file, none."""
        try:
            state = PanelState.load(self._path)
        except FileNotFoundError:
            return frozenset()
        except DocumentError as error:
            raise SwitchError(f"{self.name}: {error}") from None
        except OSError as error:
            raise SwitchError(f"{self.name}: {self._path}: {error.strerror}") from None
        if state.panel != self.name:
            raise SwitchError(f"{self.name}: {self._path} is the state of panel {state.panel!r}")
        return frozenset(state.circuits)

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        before = self.circuits()
        moves = (
            *(CableMove("remove", circuit) for circuit in difference.remove if circuit in before),
            *(CableMove("add", circuit) for circuit in difference.add if circuit not in before),
        )
        self._check(before, moves)
        if not moves:
            return
        shown = frozenset(c for c in before if set(c.ports) <= set(self._sockets))
        place = f" ({self._place})" if self._place else ""
        sheet = Sheet(f"{self.name}{place}", self._sockets, shown, moves)
        with self._attended(sheet, 1):
            if not self._path.exists():
                self._person.show(f"{self.name}: no {self._path} yet; taken to be empty before")
            self._person.begin(sheet)
        for number, move in enumerate(moves, 1):
            with self._attended(sheet, number):
                done = self._person.done(sheet, number)
            if not done:
                self._refuse(sheet, number)
            self._record(move)
            if progress is not None:
                progress(number, len(moves), str(move))

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        """Returns at once: `apply` has waited for the person, the only source of its state."""
        wanted = frozenset(circuits)
        missing = wanted - self.circuits()
        if progress is not None:
            progress(len(wanted) - len(missing), len(wanted), "confirmed")
        if missing:
            raise NotSettled(f"{self.name}: not confirmed: {_names(missing)}", missing)

    def close(self) -> None:
        pass

    def _check(self, before: frozenset[Circuit], moves: tuple[CableMove, ...]) -> None:
        gone = {move.circuit for move in moves if move.verb == "remove"}
        owners = {port: circuit for circuit in before - gone for port in circuit.ports}
        for circuit in (move.circuit for move in moves if move.verb == "add"):
            if circuit != duplex_circuit(*circuit.ports) or circuit.ingress == circuit.egress:
                raise SwitchError(
                    f"{self.name}: {circuit} is not two sockets, the lower first; nothing was "
                    "changed"
                )
            for port in circuit.ports:
                self.fibres(port)
                if owners.setdefault(port, circuit) != circuit:
                    raise SwitchError(
                        f"{self.name}: port {port} is in use by circuit {owners[port]}; "
                        "nothing was changed"
                    )
        if self._left and moves:
            raise PersonLeft(f"{self.name}: the person has left; {self._belief()}")

    @contextmanager
    def _attended(self, sheet: Sheet, number: int) -> Iterator[None]:
        """Shows the assumed state of the panel if the person leaves."""
        try:
            yield
        except PersonLeft as error:
            self._left = True
            raise PersonLeft(f"{error}; {_moved(number)}; {self._belief()}") from None
        except Exception:
            raise
        except BaseException:  # Ctrl-C and the like
            self._left = True
            self._person.show(
                f"\n{self.name}: stopped at move {number} of {len(sheet.moves)}; {_moved(number)}; "
                f"{self._belief()}"
            )
            raise

    def _refuse(self, sheet: Sheet, number: int) -> None:
        move = sheet.moves[number - 1]
        message = f"{self.name}: move {number} of {len(sheet.moves)} cannot be done: {move}"
        if move.verb == "add":
            raise NotSettled(message, [move.circuit])
        raise SwitchError(message)

    def _belief(self) -> str:
        circuits = self.circuits()
        if not circuits:
            return f"taken to be empty ({self._path})"
        return f"taken to hold the cables {_names(circuits)} ({self._path})"

    def _record(self, move: CableMove) -> None:
        """Saves each move at once, so that a crash loses none; keeps other jobs' moves."""
        try:
            with self._locked():
                circuits = set(self.circuits())
                (circuits.discard if move.verb == "remove" else circuits.add)(move.circuit)
                state = PanelState(
                    PanelState.VERSION, self.name, tuple(sorted(circuits, key=circuit_order))
                )
                state.validate().save(self._path)
        except (OSError, DocumentError) as error:
            raise SwitchError(
                f"{self.name}: {self._path} cannot be written ({error}), so this is not "
                f"remembered: {move}"
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _moved(number: int) -> str:
    """What happened before move `number`, at which a person left."""
    return "no cable was moved" if number == 1 else "the moves before it are not undone"


def from_entry(entry: SwitchEntry) -> ManualPanel:
    """The driver of a `manual` entry, whose address says where a person finds the panel.

    Options: `size` (the panel has sockets 1 to this, for the picture; default: those of the
    entry), `picture` (an SVG file, written anew for every change), `state` (default: `state_file`),
    `unattended` (the moves are shown and taken as done, without a question). Raises DocumentError.
    """
    known = {"size": int, "picture": str, "state": str, "unattended": bool}
    options = read_options(entry, known)
    numbers = [str(i + 1) for i in range(options.get("size", 0))]
    sockets = numbers or list(entry.sockets)
    where = f"switch {entry.name}:"
    if not sockets:
        raise DocumentError(f"{where} give its sockets, or options.size")
    for socket in entry.sockets:
        if socket not in sockets:
            raise DocumentError(
                f"{where} sockets: {socket!r} is not one of 1 to {len(sockets)} (options.size)"
            )
    svg = Path(options["picture"]).expanduser() if "picture" in options else None
    person = (
        AssumedPerson(sys.stderr, svg)
        if options.get("unattended", False)
        else TerminalPerson(sys.stdin, sys.stderr, svg)
    )
    return ManualPanel(
        sockets,
        name=entry.name,
        place=entry.address,
        person=person,
        state=Path(options["state"]).expanduser() if "state" in options else None,
    )


def _names(circuits: Iterable[Circuit]) -> str:
    return ", ".join(str(circuit) for circuit in sorted(circuits, key=circuit_order))
