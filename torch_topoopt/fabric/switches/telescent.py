"""Telescent's robotic patch panel (G4/NTM) through its SSH shell; its robot moves fibre by fibre.

From public CloudShell drivers (ericrqs/cloudshell-L1-Telescent and its fork of QualiSystems),
untested on hardware. They show: an SSH shell on port 9861; `switchstate` prints one row per twelve
outputs, `R<row>#<letter>` and twelve times `<status><input>`, in colours; output = row * 12 +
column, counted from 0; a status that begins with A is allocated to that input, one with U is not;
`unlock --force`, `connect --force A B`, `unallocate --force`; errors contain "Exception" or
"ERROR". Gaps in them, and how this driver avoids them:

* whether `connect` answers at once or after the move: both are fine, the state is polled;
* what other letters mean: taken as a move under way, the port in use, the circuit not settled;
* what `--force` overrides: it is sent only for ports that the change names and that no other
  circuit holds, which is read from the device immediately before.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from typing import TYPE_CHECKING

from torch_topoopt.fabric.clock import Clock, SystemClock
from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    CircuitError,
    Difference,
    Fence,
    circuit_order,
    duplex_circuit,
)
from torch_topoopt.fabric.switches.open_switch import read_options
from torch_topoopt.fabric.switches.ssh_shell import SshLogin, SshShell
from torch_topoopt.fabric.switches.switch import (
    Capabilities,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
)
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.switch import Progress

SSH_PORT = 9861
_COLUMNS = 12
_ROW = re.compile(r"R(\d+)#[A-Za-z]((?:\s+[A-Za-z]+\d+)*)")
_OUTPUT = re.compile(r"([A-Za-z]+)(\d+)")
_ANSWER_S = 60.0  # to a question
_MOVE_S = 900.0  # to a command, should the shell hold the prompt back until the robot is done


class TelescentPanel:
    """Ports are "0", "1", …, as in the manual: row * 12 + column; duplex circuits.

    A circuit that is connected one way only (a move that broke off, or another user's) is reported
    with the higher port first: no user can want such a circuit, so it is removed where it
    is ours, and refused where it is not. `fence`: if given, no command names any other port.
    `poll_s`: between two looks at the state. `removal_s`: how long the robot may take over the
    removals of one change.
    """

    def __init__(
        self,
        login: SshLogin,
        *,
        name: str = "telescent",
        fence: Fence | None = None,
        poll_s: float = 5.0,
        removal_s: float = 3600.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._fence = fence
        self._shell = SshShell(name, login)
        self._poll_s = poll_s
        self._removal_s = removal_s
        self._clock = SystemClock() if clock is None else clock
        self._ports: tuple[str, ...] = ()  # a panel does not grow while it is connected

    def capabilities(self) -> Capabilities:
        ports = self._all_ports()
        return Capabilities(
            ports=ports,
            ingress=frozenset(ports),
            egress=frozenset(ports),
            duplex=True,
            bulk=False,
            settle_s=180.0,
        )

    def fibres(self, port: str) -> tuple[str, str]:
        if port not in self._all_ports():
            raise SwitchError(
                f"{self.name}: port {port!r} is not one of its ports 0 to {len(self._ports) - 1}"
            )
        return port, port

    def circuits(self) -> frozenset[Circuit]:
        return frozenset(self._state().circuits())

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        """Orders the moves; returns once all removals are done and all additions are queued."""
        if self._fence is not None:
            try:
                self._fence.check((*difference.remove, *difference.add))
            except CircuitError as error:
                raise SwitchError(f"{self.name}: {error}") from None
        steps = Progressing(progress, len(difference.remove) + len(difference.add))
        state = self._state()
        present = [c for c in difference.remove if c in state.circuits()]
        for circuit in present:
            for line in state.removal(circuit):
                self._order(line)
        steps.done(len(difference.remove) - len(present), "already removed")
        self._wait_removed(present, steps)
        for circuit in difference.add:
            if self._free_for(circuit):
                for port in circuit.ports:
                    self._order(f"unlock --force {port}")
                self._order(f"connect --force {circuit.ingress} {circuit.egress}")
            steps.done(1, f"{circuit} queued")

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        """Asks until all are allocated both ways; should the panel restart, it is asked again."""
        wanted = frozenset(circuits)

        def waiting(state: _State) -> frozenset[Circuit]:
            return frozenset(c for c in wanted if not state.settled(c))

        steps = Progressing(progress, len(wanted))
        self._poll(
            waiting,
            timeout_s,
            lambda left: steps.at(len(wanted) - len(left), f"the robot moves, {len(left)} to go"),
            "not connected",
        )

    def close(self) -> None:
        self._shell.close()

    def _all_ports(self) -> tuple[str, ...]:
        if not self._ports:
            self._state()
        return self._ports

    def _state(self) -> _State:
        state = _State.parse(self.name, self._shell.run("switchstate", _ANSWER_S))
        ports = tuple(str(port) for port in range(len(state.outputs)))
        if self._ports and ports != self._ports:
            raise SwitchError(
                f"{self.name}: `switchstate` shows {len(ports)} ports, {len(self._ports)} before"
            )
        self._ports = ports
        return state

    def _order(self, line: str) -> None:
        answer = self._shell.run(line, _MOVE_S)
        wrong = [part.strip() for part in answer.splitlines() if re.search("Exception|ERROR", part)]
        if wrong:
            raise SwitchError(f"{self.name}: `{line}`: {wrong[0][:200]}")

    def _free_for(self, circuit: Circuit) -> bool:
        """False if it is there already; raises SwitchError if another circuit has its ports."""
        if circuit != duplex_circuit(*circuit.ports):
            raise SwitchError(
                f"{self.name}: {circuit} is connected one way only and cannot be made so again"
            )
        for port in circuit.ports:
            self.fibres(port)
        present = self._state().circuits()
        for other in sorted(present - {circuit}, key=circuit_order):
            for port in circuit.ports:
                if port in other.ports:
                    raise SwitchError(f"{self.name}: port {port} is in use by circuit {other}")
        return circuit not in present

    def _wait_removed(self, circuits: list[Circuit], steps: Progressing) -> None:
        gone = steps.count

        def waiting(state: _State) -> frozenset[Circuit]:
            held = {frozenset(c.ports) for c in state.circuits()}  # one way left is not removed
            return frozenset(c for c in circuits if frozenset(c.ports) in held)

        if circuits:
            self._poll(
                waiting,
                self._removal_s,
                lambda left: steps.at(gone + len(circuits) - len(left), "removing"),
                "not removed",
            )

    def _poll(
        self,
        waiting: Callable[[_State], frozenset[Circuit]],
        timeout_s: float,
        report: Callable[[frozenset[Circuit]], None],
        what: str,
    ) -> None:
        """Polls until all moves are done; reconnects after a loss until time is up."""
        deadline = self._clock.now() + timeout_s
        while True:
            lost: SwitchUnreachable | None = None
            left: frozenset[Circuit] = frozenset()
            try:
                left = waiting(self._state())
                report(left)
                if not left:
                    return
            except SwitchUnreachable as error:
                lost = error
            if self._clock.now() >= deadline:
                if lost is not None:
                    raise lost
                names = ", ".join(str(c) for c in sorted(left, key=circuit_order))
                raise NotSettled(f"{self.name}: {what} after {timeout_s:g} s: {names}", left)
            self._clock.sleep(self._poll_s)


def from_entry(entry: SwitchEntry) -> TelescentPanel:
    """The driver of a `telescent` entry; its sockets, if given, are the driver's fence too.

    Options: `key_file`, `known_hosts`, `check_host_key`, `timeout_s` (see SshLogin), `poll_s` and
    `removal_s` (see TelescentPanel). Raises DocumentError.
    """
    known = {"key_file": str, "known_hosts": str, "check_host_key": bool, "timeout_s": float}
    options = read_options(entry, {**known, "poll_s": float, "removal_s": float})
    if entry.user is None:
        raise DocumentError(f"switch {entry.name}: user: missing; it is who logs in by ssh")
    for name in ("key_file", "known_hosts"):
        if name in options:
            options[name] = os.path.expanduser(options[name])
    host, port = _host_and_port(entry)
    login = SshLogin(
        host, port, entry.user, entry.password, **{k: v for k, v in options.items() if k in known}
    )
    return TelescentPanel(
        login,
        name=entry.name,
        fence=Fence(frozenset(entry.sockets)) if entry.sockets else None,
        **{k: v for k, v in options.items() if k not in known},
    )


def _host_and_port(entry: SwitchEntry) -> tuple[str, int]:
    """Of `host`, `host:port`, `[v6]` and `[v6]:port`."""
    try:
        parts = urllib.parse.urlsplit(f"//{entry.address}")
        if parts.hostname and parts.netloc == entry.address and "@" not in entry.address:
            return parts.hostname, SSH_PORT if parts.port is None else parts.port
    except ValueError:
        pass
    raise DocumentError(
        f"switch {entry.name}: address: {entry.address!r} is not HOST or HOST:PORT; the port of "
        f"the ssh shell is {SSH_PORT} unless given"
    )


class Progressing:
    """Calls a Progress, if there is one, after each change of its arguments."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self.count = 0
        self._said: tuple[int, str] | None = None

    def done(self, steps: int, what: str) -> None:
        if steps:
            self.at(self.count + steps, what)

    def at(self, count: int, what: str) -> None:
        self.count = count
        if self._progress is not None and self._said != (count, what):
            self._said = (count, what)
            self._progress(count, self._total, what)


class _State:
    """One answer to `switchstate`: per output the status and the input that it belongs to."""

    def __init__(self, outputs: Mapping[int, tuple[str, int]]) -> None:
        self.outputs = outputs

    @classmethod
    def parse(cls, name: str, answer: str) -> _State:
        """Raises SwitchError where a row is missing or torn, which would make ports look free."""
        outputs: dict[int, tuple[str, int]] = {}
        for line in answer.splitlines():
            if (row := _ROW.search(line)) is None:
                continue
            found = _OUTPUT.findall(row[2])
            first = int(row[1]) * _COLUMNS
            if len(found) < _COLUMNS or first != len(outputs):
                raise SwitchError(
                    f"{name}: `switchstate`: expected row R{len(outputs) // _COLUMNS} with "
                    f"{_COLUMNS} addresses, got {line.strip()[:100]!r}"
                )
            for column, (status, address) in enumerate(found[:_COLUMNS]):
                outputs[first + column] = (status, int(address))
        if not outputs:
            raise SwitchError(f"{name}: `switchstate`: no row in the answer {answer[:100]!r}")
        return cls(outputs)

    def circuits(self) -> set[Circuit]:
        """Each once; those connected one way only with the higher port first."""
        found = set()
        used = self._used()
        for egress, ingress in used.items():
            circuit = duplex_circuit(str(ingress), str(egress))
            both = used.get(ingress) == egress
            found.add(circuit if both else Circuit(circuit.egress, circuit.ingress))
        return found

    def settled(self, circuit: Circuit) -> bool:
        a, b = (int(port) for port in circuit.ports)
        return all(
            self.outputs.get(egress, ("", -1))[0].startswith("A")
            and self.outputs[egress][1] == ingress
            for egress, ingress in ((a, b), (b, a))
        )

    def removal(self, circuit: Circuit) -> Iterator[str]:
        """Commands that remove it. Unlocked both ways even if it is one-way: see the drivers."""
        for port in circuit.ports:
            yield f"unlock --force {port}"
        if circuit == duplex_circuit(*circuit.ports):
            for port in dict.fromkeys(circuit.ports):
                yield f"unallocate --force {port}"
            return
        a, b = (int(port) for port in circuit.ports)
        egress, ingress = (a, b) if self._used().get(a) == b else (b, a)
        yield f"unallocate --force -in {ingress}"
        yield f"unallocate --force -out {egress}"

    def _used(self) -> dict[int, int]:
        """Output -> the input that it is, or is about to be, connected to."""
        return {
            egress: ingress
            for egress, (status, ingress) in self.outputs.items()
            if not status.startswith("U")
        }
