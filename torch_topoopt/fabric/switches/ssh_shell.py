"""The interactive shell of a device over SSH: log in, send a line, read up to the prompt.

Prompts differ, so the shell learns the prompt after the login: an empty line makes the device print
it a second time. An answer ends where that text is a whole line, so nothing inside an answer passes
for the prompt.

paramiko is imported with the first connection.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.credentials import Password, scrub
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    import paramiko

    from torch_topoopt.fabric.credentials import PasswordSource

_LOG = "torch_topoopt.ssh"
logging.getLogger(_LOG).addHandler(logging.NullHandler())  # errors are raised, not printed

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # ECMA-48 control sequences
_PROMPT = re.compile(r"\S.{0,60}[>#$%] ?$|^[>#$%] ?$")
_WIDTH = 500  # columns; wide enough that no line is broken


@dataclass(frozen=True)
class SshLogin:
    """The address of a device and its login.

    With `key_file` the password (if any) unlocks the key; without both, the keys of ~/.ssh and of
    an ssh agent are tried. The device's own key must be in `known_hosts` (default: those of ssh),
    unless `check_host_key` is False. `timeout_s`: for the connection and each step of the login.
    """

    host: str
    port: int
    user: str
    password: PasswordSource | None = None
    key_file: str | None = None
    known_hosts: str | None = None
    check_host_key: bool = True
    timeout_s: float = 20.0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class SshShell:
    """One login at a device `name`. Methods raise SwitchError or one of its kinds."""

    def __init__(self, name: str, login: SshLogin) -> None:
        self._name = name
        self._login = login
        self._client: paramiko.SSHClient | None = None
        self._channel: Any = None
        self._prompt = ""

    def run(self, line: str, timeout_s: float) -> str:
        """The device's answer to `line`, without echo, colours and prompt.

        Logs in if there is no connection, or the device has closed it since the last answer. After
        a loss during an answer it does not retry: the device may have run the line.
        """
        if self._channel is not None and (self._channel.closed or self._channel.eof_received):
            self.close()
        if self._channel is None:
            self._open()
        try:
            while self._channel.recv_ready():
                self._channel.recv(65536)  # unsolicited output since the last answer
            self._send(line)
            lines = self._read(timeout_s, lambda lines: lines[-1] == self._prompt, line)[:-1]
        except BaseException:  # also Ctrl-C: the rest of the answer must not pass for the next one
            self.close()
            raise
        return "\n".join(lines[1:] if lines and lines[0].endswith(line) else lines)

    def close(self) -> None:
        """Ends the connection; harmless if there is none."""
        client, self._client, self._channel = self._client, None, None
        if client is not None:
            client.close()

    def _open(self) -> None:
        password = None if self._login.password is None else self._login.password.read()
        try:
            self._log_in(password)
            self._send("")
            lines = self._read(self._login.timeout_s, _shows_prompt_twice, "the login")
            self._prompt = lines[-1]
        except BaseException:
            self.close()
            raise

    def _log_in(self, password: Password | None) -> None:
        import paramiko

        where = f"{self._name}: {self._login.address}"
        self._client = paramiko.SSHClient()
        self._client.set_log_channel(_LOG)
        self._check_files(self._client)
        try:
            self._client.connect(
                **self._arguments(password.reveal() if password is not None else None)
            )
            transport: Any = self._client.get_transport()
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # short lines
            self._channel = self._client.invoke_shell("vt100", width=_WIDTH)
        except paramiko.BadHostKeyException:
            raise SwitchError(
                f"{where} shows another host key than the known one; if the device was replaced, "
                f"remove the old key from {self._known_hosts()}"
            ) from None
        except paramiko.AuthenticationException as error:
            raise AuthenticationFailed(
                f"{where} refused the login of user {self._login.user!r}: "
                + _safely(error, password)
            ) from None
        except SwitchError:
            raise
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            raise SwitchUnreachable(f"{where}: {_safely(error, password)}") from None

    def _arguments(self, secret: str | None) -> dict[str, Any]:
        login, timeout_s = self._login, self._login.timeout_s
        own_keys = login.key_file is None and secret is None
        return {
            "hostname": login.host,
            "port": login.port,
            "username": login.user,
            "password": None if login.key_file is not None else secret,
            "passphrase": secret if login.key_file is not None else None,
            "key_filename": login.key_file,
            "allow_agent": own_keys,
            "look_for_keys": own_keys,
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
        }

    def _check_files(self, client: paramiko.SSHClient) -> None:
        login = self._login
        policy: Any = _HostKeyPolicy(self._name, login, self._known_hosts())
        client.set_missing_host_key_policy(policy)
        try:
            if login.key_file is not None:
                Path(login.key_file).read_bytes()
            if not login.check_host_key:
                return
            if login.known_hosts is not None:
                client.load_host_keys(login.known_hosts)
            else:
                client.load_system_host_keys()
        except OSError as error:
            raise SwitchError(f"{self._name}: {error.filename}: {error.strerror}") from None
        except Exception as error:  # paramiko's InvalidHostKey is an Exception and no more
            raise SwitchError(
                f"{self._name}: {self._known_hosts()} cannot be read as known hosts: {error}"
            ) from None

    def _known_hosts(self) -> str:
        return self._login.known_hosts or "~/.ssh/known_hosts"

    def _send(self, line: str) -> None:
        try:
            self._channel.settimeout(self._login.timeout_s)
            self._channel.sendall(line.encode() + b"\r")
        except (OSError, EOFError) as error:
            raise SwitchUnreachable(
                f"{self._name}: the connection broke: {error or 'it is closed'}"
            ) from None

    def _read(self, timeout_s: float, complete: Any, what: str) -> list[str]:
        """Lines up to the first state of the answer that is `complete`."""
        deadline = time.monotonic() + timeout_s
        text = b""
        while True:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self._channel.recv(65536)
            except TimeoutError:
                raise SwitchUnreachable(
                    f"{self._name}: no complete answer to `{what}` after {timeout_s:g} s; "
                    f"it ends in {_lines(text)[-1][-60:]!r}"
                ) from None
            except (OSError, EOFError) as error:
                raise SwitchUnreachable(f"{self._name}: the connection broke: {error}") from None
            if not chunk:
                raise SwitchUnreachable(
                    f"{self._name}: the connection broke during `{what}`; the state of the device "
                    "is unknown until it is asked again"
                )
            text += chunk
            lines = _lines(text)
            if complete(lines):
                return lines


class _HostKeyPolicy:
    """Refuses a device with an unknown key, unless keys are not to be checked."""

    def __init__(self, name: str, login: SshLogin, known_hosts: str) -> None:
        self._name, self._login, self._known_hosts = name, login, known_hosts

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        if self._login.check_host_key:
            raise SwitchError(
                f"{self._name}: {self._login.address} is not in {self._known_hosts}; it shows the "
                f"key {key.get_name()} {key.fingerprint}; if it is the device's own, "
                f"`ssh-keyscan -p {self._login.port} {self._login.host}` prints the line to add"
            )


def _lines(text: bytes) -> list[str]:
    plain = _COLOURS.sub("", text.decode("utf-8", "replace")).replace("\r\n", "\n")
    return plain.replace("\r", "\n").split("\n")


def _shows_prompt_twice(lines: list[str]) -> bool:
    spoken = [line for line in lines if line.strip()]
    return (
        len(spoken) > 1
        and lines[-1] == spoken[-1] == spoken[-2]
        and _PROMPT.search(spoken[-1]) is not None
    )


def _safely(error: BaseException, password: Password | None) -> str:
    text = str(error) or type(error).__name__
    return text if password is None else scrub(text, password)
