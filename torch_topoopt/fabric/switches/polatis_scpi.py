"""Polatis switches over SCPI: lines of text on TCP port 5025.

    :OXC:SWIT:SIZE?                     16,16
    :OXC:SWIT:CONN:STAT?                (@1,2),(@19,18)    without circuits (@),(@)
    :OXC:SWIT:CONN:ADD (@1),(@17)       no reply; SUB removes
    :OXC:SWIT:PORT:STAT? (@1,17)        (E,D)              enabled, disabled, failed
    :PMON:POW? (@17,18)                 (-3.20,-61.00)     dBm, where ports have monitors
    :SYST:ERR:ALL?                      0,"No error"

A command has no reply, so each is followed by *OPC? (it has finished) and by the error queue. They
go as lines of their own: after a command that it cannot parse, a device drops the rest of a line.
ADD and SUB name both ends of each circuit; the forms that touch everything (ONLY, DISConnect:ALL,
*RST) are never sent.

The protocol has no users: any host that reaches the port controls the whole switch. Keep it on the
management network. Source: public clients (devicecontrol-polatis, and laboratory scripts that cite
the vendor's manual).
"""

from __future__ import annotations

import re
import socket
from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch_topoopt.fabric.switches.open_switch import host_and_port, read_options
from torch_topoopt.fabric.switches.polatis import PolatisSwitch
from torch_topoopt.fabric.switches.switch import SwitchError, SwitchUnreachable
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from torch_topoopt.fabric.clock import Clock
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.polatis import Pair

TCP_PORT = 5025
_LIST = 128  # ports in one list; public clients keep to 256
_LONGEST_BYTES = 1 << 16
_STATUS = {"E": "ENABLED", "D": "DISABLED", "F": "FAILED"}


def polatis_scpi(
    name: str,
    host: str,
    port: int = TCP_PORT,
    *,
    timeout_s: float = 10.0,
    restart_s: float = 60.0,
    check_light: bool = True,
    clock: Clock | None = None,
) -> PolatisSwitch:
    """The driver of the switch at `host`; connects when it first must."""
    device = ScpiDevice(name, host, port, timeout_s)
    return PolatisSwitch(device, clock=clock, restart_s=restart_s, check_light=check_light)


def from_entry(entry: SwitchEntry) -> PolatisSwitch:
    """The driver of a `polatis-scpi` entry; raises DocumentError."""
    if entry.user is not None or entry.password is not None:
        raise DocumentError(
            f"switch {entry.name}: SCPI knows no users; leave user and password out (or use "
            "polatis-restconf or polatis-netconf)"
        )
    options = read_options(entry, {"timeout_s": float, "restart_s": float, "check_light": bool})
    return polatis_scpi(entry.name, *host_and_port(entry, TCP_PORT), **options)


class ScpiDevice:
    """One switch over one TCP connection."""

    batch = _LIST

    def __init__(self, name: str, host: str, port: int, timeout_s: float) -> None:
        self.name = name
        self._where = (host, port)
        self._timeout_s = timeout_s
        self._connection: socket.socket | None = None
        self._received = b""
        self._monitored: frozenset[int] | None = None

    def size(self) -> tuple[int, int]:
        question = ":OXC:SWIT:SIZE?"
        answer = self._query(question)
        found = re.fullmatch(r"(\d+)\s*,\s*(\d+)", answer)
        if found is None or not int(found[1]) or not int(found[2]):
            raise self._strange(question, answer, "two numbers of ports, such as 16,16")
        return int(found[1]), int(found[2])

    def allowed_ports(self) -> frozenset[int] | None:
        return None

    def pairs(self) -> dict[int, int]:
        question = ":OXC:SWIT:CONN:STAT?"
        answer = self._query(question)
        found = re.fullmatch(r"\(@([\d,\s]*)\)\s*,\s*\(@([\d,\s]*)\)", answer)
        sides = [] if found is None else [re.findall(r"\d+", side) for side in found.groups()]
        if not sides or len(sides[0]) != len(sides[1]):
            raise self._strange(question, answer, "two lists of ports, such as (@1),(@17)")
        return {int(i): int(o) for i, o in zip(*sides, strict=True)}

    def statuses(self, ports: Sequence[int]) -> dict[int, str]:
        statuses: dict[int, str] = {}
        for part in _parts(ports):
            question = f":OXC:SWIT:PORT:STAT? {_list(part)}"
            answer = self._query(question)
            letters = re.findall(r"[A-Za-z]+", answer)
            if len(letters) != len(part) or not answer.startswith("("):
                raise self._strange(question, answer, "one letter per port, such as (E,D,F)")
            statuses |= {
                port: _STATUS.get(letter.upper()[0], "UNSUPPORTED")
                for port, letter in zip(part, letters, strict=True)
            }
        return statuses

    def powers(self, ports: Sequence[int]) -> dict[int, float]:
        if self._monitored is None:
            self._monitored = self._find_monitors()
        powers: dict[int, float] = {}
        for part in _parts([port for port in ports if port in self._monitored]):
            measured = self._read_powers(part)
            if measured is None:
                raise SwitchError(f"{self.name}: it does not measure ports that it measured before")
            powers |= measured
        return powers

    def changing(self) -> AbstractContextManager[object]:
        return nullcontext()  # SCPI has no lock

    def disconnect(self, pairs: Sequence[Pair]) -> None:
        self._command(f":OXC:SWIT:CONN:SUB {_two_lists(pairs)}")

    def connect(self, pairs: Sequence[Pair]) -> None:
        self._command(f":OXC:SWIT:CONN:ADD {_two_lists(pairs)}")

    def close(self) -> None:
        self._monitored = None
        self._hang_up()

    def _find_monitors(self) -> frozenset[int]:
        """Most switches measure at no port or at all outputs, some at all inputs too."""
        inputs, outputs = self.size()
        found: set[int] = set()
        for side in (range(inputs + 1, inputs + outputs + 1), range(1, inputs + 1)):
            if self._read_powers([side[0]]) is None:
                continue
            for part in _parts(side):
                found |= set(self._read_powers(part) or ())
        return frozenset(found)

    def _read_powers(self, ports: Sequence[int]) -> dict[int, float] | None:
        """None if the device does not measure one of them."""
        self._drain_errors()
        question = f":PMON:POW? {_list(ports)}"
        answer = self._query_optional(question)
        if answer is None:
            return None
        try:
            values = [float(value) for value in answer.strip("() ").split(",")]
        except ValueError:
            values = []
        if len(values) != len(ports):
            raise self._strange(question, answer, "one power per port, such as (-3.2,-61)")
        return dict(zip(ports, values, strict=True))

    def _command(self, line: str) -> None:
        """Sends a change and waits until it has finished; raises SwitchError with its errors."""
        self._drain_errors()  # errors that earlier commands left behind
        self._send(line)
        finished = self._query("*OPC?")
        if finished != "1":
            raise self._strange("*OPC?", finished, "1")
        errors = self._drain_errors()
        if errors:
            raise SwitchError(f"{self.name}: it refused {line}: " + "; ".join(errors))

    def _query_optional(self, question: str) -> str | None:
        """The answer; None if the device does not know the question and so gives none.

        *OPC? distinguishes the two without waiting for a reply that never comes.
        """
        answer = self._query(f"{question}\r\n*OPC?")
        if answer == "1":  # that of *OPC? already; what went wrong is in the error queue
            self._drain_errors()
            return None
        if (finished := self._receive()) != "1":
            raise self._strange("*OPC?", finished, "1")
        return answer

    def _drain_errors(self) -> list[str]:
        """Empties the device's error queue; what was in it."""
        question = ":SYST:ERR:ALL?"
        answer = self._query(question)
        found = re.findall(r'([+-]?\d+)\s*,\s*"((?:[^"]|"")*)"', answer)
        if not found:
            raise self._strange(question, answer, '0,"No error"')
        return [f"{code} {text}" for code, text in found if int(code) != 0]

    def _query(self, line: str) -> str:
        self._send(line)
        return self._receive()

    def _send(self, line: str) -> None:
        connection = self._connected()
        try:
            connection.sendall(f"{line}\r\n".encode("ascii"))
        except OSError as error:
            raise self._broken(error) from None

    def _receive(self) -> str:
        try:
            return self._receive_line()
        except BaseException:  # also Ctrl-C: a late reply must not pass for that of the next one
            self._hang_up()
            raise

    def _receive_line(self) -> str:
        connection = self._connected()
        while b"\n" not in self._received:
            try:
                data = connection.recv(4096)
            except OSError as error:
                raise self._broken(error) from None
            if not data:
                raise self._broken("it closed the connection")
            self._received += data
            if len(self._received) > _LONGEST_BYTES:
                raise self._broken(f"a reply of more than {_LONGEST_BYTES} bytes")
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("ascii", "replace").strip()

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._received = b""
            try:
                self._connection = socket.create_connection(self._where, self._timeout_s)
            except OSError as error:
                raise self._broken(error) from None
        return self._connection

    def _broken(self, error: OSError | str) -> SwitchUnreachable:
        self._hang_up()
        if isinstance(error, TimeoutError):
            cause = f"no answer within {self._timeout_s:g} s"
        else:
            cause = error if isinstance(error, str) else error.strerror or str(error)
        host, port = self._where
        return SwitchUnreachable(f"{self.name}: SCPI at {host}:{port}: {cause}")

    def _strange(self, question: str, answer: str, right: str) -> SwitchError:
        self._hang_up()
        return SwitchError(f"{self.name}: {question} was answered {answer[:200]!r}, not {right}")

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _parts(ports: Sequence[int]) -> list[Sequence[int]]:
    return [ports[start : start + _LIST] for start in range(0, len(ports), _LIST)]


def _list(ports: Sequence[int]) -> str:
    return f"(@{','.join(str(port) for port in ports)})"


def _two_lists(pairs: Sequence[Pair]) -> str:
    return f"{_list([i for i, _ in pairs])},{_list([o for _, o in pairs])}"
