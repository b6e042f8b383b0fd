"""A NETCONF session on SSH (RFC 6241, RFC 6242) for switch drivers, by ncclient.

Connects when it first must, and after a broken connection anew. A failure is a SwitchError
that names the device and never holds a password. ncclient is imported when a connection is made.
"""

from __future__ import annotations

import functools
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.fabric.credentials import Password, scrub
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    from torch_topoopt.fabric.switches.ssh_shell import SshLogin

logging.getLogger("ncclient").addHandler(logging.NullHandler())  # errors are raised

_GOODBYE_S = 2.0


class NetconfError(SwitchError):
    """An rpc-error: `tag` is its error-tag (RFC 6241, appendix A), `said` its message."""

    def __init__(self, message: str, tag: str, said: str) -> None:
        super().__init__(message)
        self.tag = tag
        self.said = said


class NetconfSession:
    """One login at the device `name`."""

    NAMESPACE: ClassVar[str] = "urn:ietf:params:xml:ns:netconf:base:1.0"

    def __init__(self, name: str, login: SshLogin) -> None:
        self._name = name
        self._login = login
        self._password: Password | None = None
        self._session: Any = None
        self._manager: Any = None

    @property
    def connected(self) -> bool:
        return self._manager is not None and bool(self._manager.connected)

    def capabilities(self) -> list[str]:
        """The URIs of the device's hello."""
        return list(self._connect().server_capabilities)

    def get(self, wanted: Any) -> Any:
        """The <data> that the subtree filter `wanted` selects, as an lxml element."""
        return self._do("get", lambda manager: manager.get(filter=("subtree", wanted))).data_ele

    def edit(self, config: Any) -> None:
        """Changes running; as a whole or not at all if the device offers that."""
        rollback = ":rollback-on-error" in self._connect().server_capabilities
        self._do(
            "edit-config",
            lambda manager: manager.edit_config(
                config, target="running", error_option="rollback-on-error" if rollback else None
            ),
        )

    def lock(self) -> None:
        self._do("lock", lambda manager: manager.lock("running"))

    def unlock(self) -> None:
        self._do("unlock", lambda manager: manager.unlock("running"))

    def close(self) -> None:
        """Says goodbye and ends the connection; harmless if there is none."""
        if self.connected:
            self._manager.timeout = _GOODBYE_S
            with suppress(Exception):  # it ends either way
                self._manager.close_session()
        self._hang_up()

    def _do(self, what: str, action: Any) -> Any:
        from ncclient.operations import RPCError, TimeoutExpiredError

        manager = self._connect()
        try:
            return action(manager)
        except RPCError as error:
            raise self._refused(what, error) from None
        except TimeoutExpiredError:
            self._hang_up()  # a late answer must not pass for that of another request
            raise SwitchUnreachable(
                f"{self._name}: no answer to {what} from {self._login.address} within "
                f"{self._login.timeout_s:g} s"
            ) from None
        except Exception as error:  # ncclient, paramiko, lxml: whatever it was, it is over
            self._hang_up()
            raise SwitchUnreachable(
                self._clean(f"{self._name}: {self._login.address}: {what}: {_in_words(error)}")
            ) from None

    def _refused(self, what: str, error: Any) -> SwitchError:
        first = error.errlist[0] if error.errlist else error
        tag = (first.tag or "operation-failed").strip()
        said = " ".join((error.message or tag).split())
        text = self._clean(f"{self._name}: {what}: {said} ({tag})")
        if tag == "access-denied":
            return AuthenticationFailed(f"{text}; user {self._login.user!r} may not do this")
        return NetconfError(text, tag, said)

    def _connect(self) -> Any:
        if self.connected:
            return self._manager
        self._hang_up()
        self._check_files()
        login = self._login
        self._password = None if login.password is None else login.password.read()
        try:
            connection = socket.create_connection((login.host, login.port), login.timeout_s)
        except OSError as error:
            raise SwitchUnreachable(
                f"{self._name}: NETCONF at {login.address}: {_in_words(error)}"
            ) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # short messages
        self._log_in(connection)
        return self._manager

    def _log_in(self, connection: socket.socket) -> None:
        from ncclient.manager import Manager, make_device_handler
        from ncclient.transport import AuthenticationError, SSHUnknownHostError

        login = self._login
        secret = None if self._password is None else self._password.reveal()
        own_keys = login.key_file is None and secret is None
        handler = make_device_handler({"name": "default"})
        session = _session(handler, login.known_hosts)
        try:
            session.connect(
                login.host,
                login.port,
                timeout=login.timeout_s,
                sock=connection,
                username=login.user,
                password=secret,  # with a key file, what unlocks it
                key_filename=login.key_file,
                hostkey_verify=login.check_host_key,
                allow_agent=own_keys,
                look_for_keys=own_keys,
            )
        except SSHUnknownHostError:
            raise self._unknown_host(session, connection) from None
        except AuthenticationError:  # its text is the repr of another exception
            _end(session, connection)
            raise AuthenticationFailed(
                f"{self._name}: {login.address} refused the login of user {login.user!r} with "
                + self._proof()
            ) from None
        except Exception as error:
            _end(session, connection)
            raise SwitchUnreachable(
                self._clean(f"{self._name}: NETCONF at {login.address}: {_in_words(error)}")
            ) from None
        self._session = session
        self._manager = Manager(session, handler, timeout=login.timeout_s)

    def _proof(self) -> str:
        if self._login.key_file is not None:
            return f"the key in {self._login.key_file}"
        if self._login.password is not None:
            return f"the password from {self._login.password}"
        return "the keys of ssh"

    def _unknown_host(self, session: Any, connection: socket.socket) -> SwitchError:
        login = self._login
        key = session.transport.get_remote_server_key()
        _end(session, connection)
        return SwitchError(
            f"{self._name}: the host key of {login.address}, {key.get_name()} {key.fingerprint}, "
            f"is not the one in {login.known_hosts or '~/.ssh/known_hosts'}; if it is the "
            f"device's own, `ssh-keyscan -p {login.port} {login.host}` prints the line to add"
        )

    def _check_files(self) -> None:
        login = self._login
        known_hosts = login.known_hosts if login.check_host_key else None
        for name in (login.key_file, known_hosts):
            try:
                if name is not None:
                    Path(name).read_bytes()
            except OSError as error:
                raise SwitchError(f"{self._name}: {name}: {error.strerror}") from None

    def _hang_up(self) -> None:
        session, self._session, self._manager = self._session, None, None
        if session is not None:
            with suppress(Exception):
                session.close()

    def _clean(self, text: str) -> str:
        return text if self._password is None else scrub(text, self._password)


def _session(handler: Any, known_hosts: str | None) -> Any:
    """An ncclient session that believes the host keys in one file, and sends at once.

    Underscored names of ncclient are overridden, so its minor version is fixed in setup.py: its
    public `connect` finds a file of host keys only by way of an ssh_config, does not know today's
    names of RSA keys, and waits up to 0.1 s with every message; and a request that is made while a
    broken connection is being closed waits for its whole time limit.
    """
    import paramiko
    from ncclient.transport import SSHSession

    class HostKeys(paramiko.HostKeys):
        def lookup(self, hostname: str) -> Any:
            """As a plain dict, in which an RSA key has the names of today's signatures too.

            ncclient proposes the names in it, and "ssh-rsa" stands for SHA-1, which is gone.
            """
            found = dict(super().lookup(hostname) or {})
            if "ssh-rsa" in found:
                found |= dict.fromkeys(("rsa-sha2-512", "rsa-sha2-256"), found["ssh-rsa"])
            return found

    class Session(SSHSession):  # type: ignore[misc]
        """Sends at once; ncclient's own loop looks for what is to be sent ten times a second."""

        _waker: tuple[socket.socket, socket.socket] | None = None

        def load_known_hosts(self, filename: str | None = None) -> None:
            self._host_keys = HostKeys()
            path = Path(known_hosts or "~/.ssh/known_hosts").expanduser()
            if path.exists():
                self._host_keys.load(str(path))

        def send(self, message: str) -> None:
            super().send(message)
            if self._waker is not None:
                with suppress(OSError):  # ended meanwhile, or woken often enough
                    self._waker[0].send(b"!")

        def _dispatch_error(self, error: BaseException) -> None:
            """Refuses requests before those under way are notified: the next would hear nothing."""
            self._connected = False
            super()._dispatch_error(error)

        def close(self) -> None:
            super().close()
            for end in self._waker or ():
                end.close()

        def _transport_register(self, selector: Any, event: int) -> None:
            super()._transport_register(selector, event)
            self._waker = _, woken = socket.socketpair()
            for end in self._waker:
                end.setblocking(False)
            selector.register(woken, event)
            selector.select = functools.partial(_select, selector.select, woken)

    return Session(handler)


def _select(select: Any, woken: socket.socket, timeout: float) -> list[Any]:
    """The ready sockets, without the one that only ends the waiting."""
    events = select(timeout)
    if any(key.fileobj is woken for key, _ in events):
        with suppress(OSError):
            woken.recv(4096)
    return [(key, mask) for key, mask in events if key.fileobj is not woken]


def _end(session: Any, connection: socket.socket) -> None:
    with suppress(Exception):
        if session.transport is not None:
            session.close()
    connection.close()


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
