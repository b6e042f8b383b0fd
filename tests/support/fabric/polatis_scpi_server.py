"""A Polatis switch on SCPI over TCP, for tests: lines of commands, an error queue, IEEE 488.2.

Keywords in any case, short or long, chained by `;` (a keyword without a leading colon continues at
the level of the one before, as SCPI-99 says in 6.2.4), ended by CRLF or LF. Queries of one line are
answered in one line. After a command that it cannot parse it drops the rest of the line.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from support.fabric.polatis_device import ConnectionCut, DeviceError, PolatisServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from support.fabric.polatis_device import PolatisDevice


class ScpiError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


_CODES = {"in-use": (-221, "Settings conflict"), "invalid-value": (-222, "Data out of range")}


class PolatisScpiServer(PolatisServer):
    """Listens at `address`. `lines` are those that arrived."""

    def __init__(self, device: PolatisDevice, line_end: bytes = b"\r\n") -> None:
        self.lines: list[str] = []
        self.errors: list[tuple[int, str]] = []
        self._line_end = line_end
        super().__init__(device)
        self.address = ("127.0.0.1", self.port)

    def serve(self, connection: socket.socket) -> None:
        _Session(self, connection, self._line_end).serve()


class _Session:
    """One connection. All share one error queue, which is the harder case for clients."""

    def __init__(
        self, server: PolatisScpiServer, connection: socket.socket, line_end: bytes
    ) -> None:
        self._server = server
        self._device = server.device
        self._connection = connection
        self._line_end = line_end
        self._errors = server.errors

    def serve(self) -> None:
        with contextlib.suppress(ConnectionCut):
            for raw in self._connection.makefile("rb"):
                if self._device.is_away():
                    return
                line = raw.decode("ascii").strip()
                self._server.lines.append(line)
                self._device.before_request(line)
                if self._server.mute:
                    continue
                answers = self._run(line)
                if answers:
                    self._connection.sendall(";".join(answers).encode() + self._line_end)

    def _run(self, line: str) -> list[str]:
        answers: list[str] = []
        level: list[str] = []
        for unit in line.split(";"):
            if not unit.strip():
                continue
            header, _, argument = unit.strip().partition(" ")
            if header.startswith("*"):
                path = [header]
            else:
                path = header.lstrip(":").split(":")
                path = path if header.startswith(":") else [*level, *path]
                level = path[:-1]
            try:
                answer = self._unit(path, argument.strip())
            except ScpiError as error:
                self._errors.append((error.code, str(error)))
                if error.code > -200:  # a command error: the parser gives the line up
                    break
            else:
                if answer is not None:
                    answers.append(answer)
        return answers

    def _unit(self, path: list[str], argument: str) -> str | None:
        for pattern, method in _COMMANDS:
            if _matches(pattern, path):
                return method(self, argument)
        raise ScpiError(-113, "Undefined header")

    def _identify(self, argument: str) -> str:
        return f"Polatis,{self._device.model},002414,6.5.2.18"

    def _complete(self, argument: str) -> str:
        return "1"

    def _clear(self, argument: str) -> None:
        self._errors.clear()

    def _all_errors(self, argument: str) -> str:
        errors = list(self._errors) or [(0, "No error")]
        self._errors.clear()
        return ",".join(f'{code},"{text}"' for code, text in errors)

    def _size(self, argument: str) -> str:
        return f"{self._device.size},{self._device.outputs}"

    def _state(self, argument: str) -> str:
        pairs = self._device.pairs(None)
        ins, outs = (",".join(str(port) for port in side) for side in (pairs, pairs.values()))
        return f"(@{ins}),(@{outs})"

    def _connected_port(self, argument: str) -> str:
        port = int(argument)
        for i, o in self._device.pairs(None).items():
            if port in (i, o):
                return f'"{o if port == i else i}"'
        return '""'

    def _add(self, argument: str) -> None:
        for i, o in zip(*_two_lists(argument), strict=True):
            self._refusing(lambda i=i, o=o: self._device.connect(None, i, o))  # type: ignore[misc]

    def _sub(self, argument: str) -> None:
        ins, outs = _two_lists(argument, may_differ=True)
        for index, i in enumerate(ins):
            if outs and self._device.pairs(None).get(i) != outs[index]:
                raise ScpiError(-221, "Settings conflict")
            self._refusing(lambda i=i: self._device.disconnect(None, i))  # type: ignore[misc]

    def _disconnect_all(self, argument: str) -> None:
        for i in self._device.pairs(None):
            self._device.disconnect(None, i)

    def _only(self, argument: str) -> None:
        self._disconnect_all("")
        self._add(argument)

    def _port_state(self, argument: str) -> str:
        ports = _ports(argument) if argument else self._device.ports(None)
        return "(" + ",".join(self._device.port_status(p)[0] for p in ports) + ")"

    def _power(self, argument: str) -> str:
        powers = self._device.powers(None)
        ports = _ports(argument)
        if any(port not in powers for port in ports):
            raise ScpiError(-241, "Hardware missing")
        return "(" + ",".join(f"{powers[port]:.2f}" for port in ports) + ")"

    def _refusing(self, action: Callable[[], object]) -> None:
        try:
            action()
        except DeviceError as error:
            raise ScpiError(*_CODES[error.tag]) from None


_COMMANDS: list[tuple[str, Callable[[_Session, str], str | None]]] = [
    ("*IDN?", _Session._identify),
    ("*OPC?", _Session._complete),
    ("*CLS", _Session._clear),
    ("*RST", _Session._disconnect_all),
    ("SYSTem:ERRor:ALL?", _Session._all_errors),
    ("OXC:SWITch:SIZE?", _Session._size),
    ("OXC:SWITch:CONNect:STATe?", _Session._state),
    ("OXC:SWITch:CONNect:PORT?", _Session._connected_port),
    ("OXC:SWITch:CONNect:ADD", _Session._add),
    ("OXC:SWITch:CONNect:SUB", _Session._sub),
    ("OXC:SWITch:CONNect:ONLY", _Session._only),
    ("OXC:SWITch:DISConnect:ALL", _Session._disconnect_all),
    ("OXC:SWITch:PORT:STATe?", _Session._port_state),
    ("PMON:POWer?", _Session._power),
]


def _matches(pattern: str, path: list[str]) -> bool:
    words = pattern.split(":")
    return len(words) == len(path) and all(
        given.upper() in (word.upper(), re.sub("[a-z]", "", word))
        for word, given in zip(words, path, strict=True)
    )


def _ports(argument: str) -> list[int]:
    found = re.fullmatch(r"\(@([\d,\s]*)\)", argument)
    if found is None:
        raise ScpiError(-104, "Data type error")
    return [int(port) for port in found[1].split(",") if port.strip()]


def _two_lists(argument: str, *, may_differ: bool = False) -> tuple[list[int], list[int]]:
    ins, _, outs = argument.partition("),")
    lists = _ports(ins + ")"), _ports(outs.strip())
    if len(lists[0]) != len(lists[1]) and not (may_differ and not lists[1]):
        raise ScpiError(-220, "Parameter error")
    return lists
