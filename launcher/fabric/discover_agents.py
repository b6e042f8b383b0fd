"""Connections of `topoopt discover` to the agents of the hosts: over ssh, or direct."""

from __future__ import annotations

import ipaddress
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING

from torch_topoopt.discovery.agent import Channel, meet
from torch_topoopt.fabric.ssh import DEFAULT_SSH, ssh_command
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.fabric.credentials import Password

DEFAULT_PORT = 29501
CONNECT_S = 10.0
_ENDING_S = 1.0  # for an ssh with a broken connection to end, with its reason
LIMIT_S = 120.0  # for a whole survey; a host that does not answer must not block the command


@contextmanager
def listening_agents(addresses: Sequence[str], token: Password) -> Iterator[list[Channel]]:
    """Channels to agents at `addresses` (host or host:port), once both sides know the token."""
    targets = [split_address(address) for address in addresses]
    with ExitStack() as stack:
        connections = stack.enter_context(_connected(addresses, targets))
        channels = []
        for (host, _), connection in zip(targets, connections, strict=True):
            connection.settimeout(LIMIT_S)
            stream = stack.enter_context(connection.makefile("rwb"))
            channel = Channel(stream, stream, host)
            meet(channel, token)
            channels.append(channel)
        yield channels


@contextmanager
def _connected(
    addresses: Sequence[str], targets: Sequence[tuple[str, int]]
) -> Iterator[list[socket.socket]]:
    """Connections to all `targets`; raises FabricError naming all that do not answer."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(targets)) as workers:
            tried = [workers.submit(socket.create_connection, t, CONNECT_S) for t in targets]
        connections, errors = [], []
        for address, (host, port), attempt in zip(addresses, targets, tried, strict=True):
            try:
                connections.append(stack.enter_context(attempt.result()))
            except OSError as error:
                errors.append(
                    f"{address}: no agent answers at {host} TCP port {port} "
                    f"({error.strerror or error})"
                )
        if errors:
            raise FabricError(f"{'; '.join(errors)}; run `topoopt discover --agent` there")
        yield connections


def split_address(text: str) -> tuple[str, int]:
    """ "10.0.0.1:4711" -> its parts, with the default port if there is none; raises InputError.

    An IPv6 address with a port is in brackets: [fd00::1]:4711.
    """
    if _is_ipv6(text):
        return text, DEFAULT_PORT
    bracketed = text.startswith("[")
    host, colon, port = text.partition("]:" if bracketed else ":")
    host = host.removeprefix("[").removesuffix("]")
    known = _is_ipv6(host) if bracketed else bool(host)
    if not known or (colon and not port.isdecimal()) or not 0 < int(port or 1) < 65536:
        raise InputError(
            f"agents: {text!r} is not an address or address:port (IPv6 with a port: [fd00::1]:4711)"
        )
    return host, int(port or DEFAULT_PORT)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@contextmanager
def ssh_agents(hosts: Sequence[str], command: str) -> Iterator[list[Channel]]:
    """Channels to agents that ssh starts, without passwords; they end with this block.

    If one fails, raises FabricError with the reasons of all failed ssh processes.
    """
    try:
        commands = [(host, _ssh(host, command)) for host in hosts]
    except ValueError as error:
        raise InputError(f"ssh: {error}") from None
    with started_agents(commands, LIMIT_S) as channels:
        yield channels


@contextmanager
def started_agents(
    commands: Sequence[tuple[str, list[str]]], limit_s: float
) -> Iterator[list[Channel]]:
    """Channels to the standard streams of commands, each with its host; `ssh_agents` says more.

    They are killed after `limit_s`.
    """
    with ExitStack() as stack:
        started = [
            stack.enter_context(_SshAgent(host, arguments, limit_s)) for host, arguments in commands
        ]
        try:
            yield [agent.channel for agent in started]
        except FabricError as error:
            deadline = time.monotonic() + _ENDING_S
            reasons = [reason for agent in started if (reason := agent.failure(deadline))]
            raise FabricError("; ".join(reasons) or str(error)) from None


def _ssh(host: str, command: str) -> list[str]:
    ssh = [*shlex.split(DEFAULT_SSH), "-T"]
    return ssh_command(ssh, host, f"{command} discover --agent --stdio")


class _SshAgent:
    def __init__(self, host: str, arguments: list[str], limit_s: float) -> None:
        self._host = host
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the agent
        try:
            self._process = subprocess.Popen(
                arguments,
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
        self._limit = threading.Timer(limit_s, self._process.kill)
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

    def failure(self, deadline: float) -> str:
        """Why this ssh has failed by now; "" if it has not."""
        try:
            status = self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return ""
        if status == 0:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"ssh {self._host}: {lines[-1] if lines else 'ended'} (exit status {status})"
