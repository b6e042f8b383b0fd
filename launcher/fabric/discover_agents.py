"""Connections of `topoopt discover` to the agents of the hosts: over ssh, or where they listen."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING

from torch_topoopt.discovery.agent import Channel, meet
from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.fabric.credentials import Password

DEFAULT_PORT = 29501
CONNECT_S = 10.0
LIMIT_S = 120.0  # for a whole survey; a host that does not answer must not block the command


@contextmanager
def listening_agents(addresses: Sequence[str], token: Password) -> Iterator[list[Channel]]:
    """Channels to agents at `addresses` (host or host:port), once both sides know the token."""
    with ExitStack() as stack:
        channels = []
        for address in addresses:
            host, port = split_address(address)
            try:
                connection = socket.create_connection((host, port), timeout=CONNECT_S)
            except OSError as error:
                raise FabricError(
                    f"{address}: no agent answers at {host} TCP port {port} "
                    f"({error.strerror or error}); run `topoopt discover --agent` there"
                ) from None
            stack.enter_context(connection)
            connection.settimeout(LIMIT_S)
            stream = stack.enter_context(connection.makefile("rwb"))
            channel = Channel(stream, stream, host)
            meet(channel, token)
            channels.append(channel)
        yield channels


def split_address(text: str) -> tuple[str, int]:
    """ "10.0.0.1:4711" -> its parts, with the default port if there is none; raises InputError."""
    host, colon, port = text.partition(":")
    if not host or (colon and not port.isdecimal()) or not 0 < int(port or DEFAULT_PORT) < 65536:
        raise InputError(f"agents: {text!r} is not an address or address:port")
    return host, int(port or DEFAULT_PORT)


@contextmanager
def ssh_agents(hosts: Sequence[str], command: str) -> Iterator[list[Channel]]:
    """Channels to agents that ssh starts, without passwords, and that end with this block."""
    for host in hosts:
        if host.startswith("-"):
            raise InputError(f"ssh: {host!r} is not a host")
    with ExitStack() as stack:
        started = [stack.enter_context(_SshAgent(host, command)) for host in hosts]
        try:
            yield [agent.channel for agent in started]
        except FabricError as error:
            for agent in started:
                if reason := agent.failure():
                    raise FabricError(reason) from None
            raise error from None


class _SshAgent:
    def __init__(self, host: str, command: str) -> None:
        self._host = host
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the agent
        arguments = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S:.0f}"]
        try:
            self._process = subprocess.Popen(
                [*arguments, "--", host, f"{command} discover --agent --stdio"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            raise InputError(f"ssh: cannot be run: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.channel = Channel(self._process.stdout, self._process.stdin, host)
        self._limit = threading.Timer(LIMIT_S, self._process.kill)
        self._limit.daemon = True
        self._limit.start()

    def __enter__(self) -> _SshAgent:
        return self

    def __exit__(self, *failure: object) -> None:
        self._limit.cancel()
        try:
            self._process.communicate(timeout=5)  # the end of its input ends the agent
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def failure(self) -> str:
        """Why this ssh has failed; "" if it has not."""
        try:
            status = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return ""
        if status == 0:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"ssh {self._host}: {lines[-1] if lines else 'ended'} (exit status {status})"
