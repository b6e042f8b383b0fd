"""A Telescent panel for tests: its shell over real SSH, one robot with a queue, and faults.

Speaks what the public CloudShell drivers show (torch_topoopt/fabric/switches/telescent.py). Where
they show nothing, it does what is hardest for a driver: `connect` answers before the robot has
moved, a port whose robot is under way has a status that is neither A nor U, and a removal takes a
move.

Time is a clock of the test's: the robot needs `move_s` of it per move, one move after the other.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import paramiko
from support.fabric.device_server import DeviceServer

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from torch_topoopt.fabric.clock import Clock

PROMPT = "\x1b[32mntm\x1b[0m> "
COLUMNS = 12
USER, PASSWORD = "operator", "correct horse"


@dataclass
class Move:
    """Of the robot: it is done at `ready_at`; None: never, the robot dropped it."""

    ready_at: float | None


@dataclass
class Panel:
    """The device behind the shell: outputs, locks and the robot. Guarded by `lock`."""

    clock: Clock
    rows: int = 8
    move_s: float = 0.01
    outputs: dict[int, int] = field(default_factory=dict)  # output -> input
    moves: dict[int, Move] = field(default_factory=dict)  # output -> what connects it
    leaving: dict[int, float] = field(default_factory=dict)  # output -> when it is taken out
    locked: set[int] = field(default_factory=set)
    commands: list[str] = field(default_factory=list)
    stuck: set[frozenset[int]] = field(default_factory=set)
    fails: dict[str, str] = field(default_factory=dict)  # a line begins with -> what it answers
    deaf: bool = False
    cut_after: int | None = None
    cut_reads: int = 0
    tear: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    _robot_free_at: float = 0.0

    def settle(self) -> None:
        now = self.clock.now()
        for output in [o for o, at in self.leaving.items() if at <= now]:
            del self.leaving[output]
            self.outputs.pop(output, None)
            self.moves.pop(output, None)

    def circuits(self) -> set[tuple[int, int]]:
        """(lower, higher) of every pair that is, or is to be, connected both ways."""
        with self.lock:
            self.settle()
            return {(a, b) for a, b in self.outputs.items() if a <= b and self.outputs.get(b) == a}

    def restart(self) -> None:
        """Power off and on: the robot forgets its queue, what is plugged in stays."""
        with self.lock:
            self.settle()
            for output, move in list(self.moves.items()):
                if move.ready_at is None or move.ready_at > self.clock.now():
                    self.outputs.pop(output)
                    self.moves.pop(output)
            self.leaving.clear()
            self._robot_free_at = 0.0

    def answer(self, line: str) -> str | None:
        """Lines to print; None: the connection breaks instead."""
        with self.lock:
            self.settle()
            self.commands.append(line)
            for beginning, text in self.fails.items():
                if line.startswith(beginning):
                    return text
            if line == "switchstate":
                if self.cut_reads:
                    self.cut_reads -= 1
                    return None
                return self._switchstate()
            if line.startswith("unlock "):
                # a port that was unlocked one way only stays locked, as the drivers' notes say
                self.locked -= {port for side, port in self._ends(line) if side == "both"}
                return ""
            if re.match("(connect|unallocate) ", line):
                if line.startswith("connect") and self.cut_after is not None:
                    self.cut_after -= 1
                    if self.cut_after < 0:
                        self.cut_after = None
                        return None
                return self._change(line)
            return f"ERROR: unknown command {line.split()[0]}" if line else ""

    def _ends(self, line: str) -> list[tuple[str, int]]:
        """`-in 3` -> [("in", 3)]; `3` -> [("both", 3)]."""
        return [(side or "both", int(p)) for side, p in re.findall(r"(?:-(in|out) )?(\d+)", line)]

    def _change(self, line: str) -> str:
        ends = self._ends(line)
        for _, port in ends:
            if port >= self.rows * COLUMNS:
                return f"com.telescent.PortException: no such port {port}"
            if port in self.locked:
                return f"ERROR: port {port} is locked"
        if self.deaf:
            return "OK"
        return self._connect(ends) if line.startswith("connect") else self._unallocate(ends)

    def _connect(self, ends: list[tuple[str, int]]) -> str:
        (_, a), (_, b) = ends
        both = ends[0][0] == "both"
        pairs = {(a, b), (b, a)} if both else {(b, a)}  # (output, input)
        ready_at = None if frozenset((a, b)) in self.stuck else self._next_move()
        for output, ingress in pairs:  # --force: the circuit that had the port loses it
            for other in [o for o, i in self.outputs.items() if i == ingress]:
                self.outputs.pop(other)
            self.outputs[output] = ingress
            self.moves[output] = Move(ready_at)
            self.leaving.pop(output, None)
        self.locked |= {a, b}
        return "OK queued"

    def _unallocate(self, ends: list[tuple[str, int]]) -> str:
        outputs = set()
        for side, port in ends:
            if side in ("both", "out"):
                outputs.add(port)
            if side in ("both", "in"):
                outputs |= {o for o, i in self.outputs.items() if i == port}
        going = [o for o in outputs if o in self.outputs and o not in self.leaving]
        if going:
            at = self._next_move()
            self.leaving.update(dict.fromkeys(going, at))
        return "OK"

    def _next_move(self) -> float:
        self._robot_free_at = max(self._robot_free_at, self.clock.now()) + self.move_s
        return self._robot_free_at

    def _switchstate(self) -> str:
        lines = ["\x1b[1mROW      " + " ".join(f"C{c + 1:<5}" for c in range(COLUMNS)) + "\x1b[0m"]
        for row in range(self.rows):
            cells = " ".join(self._cell(row * COLUMNS + c) for c in range(COLUMNS))
            lines.append(f"R{row}#\x1b[33mN\x1b[0m  {cells}")
        return "\r\n".join(lines[:-1] if self.tear else lines)

    def _cell(self, output: int) -> str:
        if output not in self.outputs:
            return f"\x1b[37mU{output:04d}\x1b[0m"
        ready_at = self.moves[output].ready_at
        moving = output in self.leaving or ready_at is None or ready_at > self.clock.now()
        letters = "\x1b[31mM" if moving else "\x1b[32mAL" if output in self.locked else "\x1b[32mA"
        return f"{letters}{self.outputs[output]:04d}\x1b[0m"


class TelescentServer(DeviceServer):
    """Its host key is in `known_hosts`; `with TelescentServer(panel, folder) as server`."""

    def __init__(self, panel: Panel, folder: Path, client_key: paramiko.PKey | None = None) -> None:
        self.panel = panel
        self.client_key = client_key
        self.host_key = paramiko.ECDSAKey.generate()
        self.logins = 0
        super().__init__()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(
            f"[127.0.0.1]:{self.port} {self.host_key.get_name()} {self.host_key.get_base64()}\n"
        )

    def serve(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.set_log_channel("torch_topoopt.ssh")  # silent: broken connections are the point
        transport.add_server_key(self.host_key)
        wishes = _Wishes(self.client_key)
        try:
            transport.start_server(server=wishes)
            channel = None
            while channel is None and transport.is_active():
                channel = transport.accept(0.05)
            if channel is None or not wishes.shell.wait(20):
                return
            self.logins += 1
            self._shell(channel)
        except (OSError, EOFError, paramiko.SSHException):
            pass
        finally:
            transport.close()

    def _shell(self, channel: paramiko.Channel) -> None:
        channel.sendall(b"\r\n### Network Topology Manager ###\r\n\r\n")
        channel.sendall(PROMPT.encode())
        line = b""
        while character := channel.recv(1):
            if character != b"\r":
                line += character
                continue
            command, line = line.decode(), b""
            channel.sendall(f"{command}\r\n".encode())  # the echo of a terminal
            answer = self.panel.answer(command)
            if answer is None:
                return
            channel.sendall((answer + "\r\n" if answer else "").encode() + PROMPT.encode())


class _Wishes(paramiko.ServerInterface):
    """The accounts that may log in, and that they get a shell."""

    def __init__(self, client_key: paramiko.PKey | None) -> None:
        self.shell = threading.Event()
        self._client_key = client_key

    def get_allowed_auths(self, username: str) -> str:
        return "password" if self._client_key is None else "publickey"

    def check_auth_password(self, username: str, password: str) -> int:
        right = (username, password) == (USER, PASSWORD) and self._client_key is None
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        right = username == USER and key == self._client_key
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_pty_request(self, *wishes: object) -> bool:
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        self.shell.set()
        return True
