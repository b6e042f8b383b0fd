"""A Polatis switch on NETCONF over SSH, for tests: RFC 6241 and 6242, base 1.0 and 1.1.

Hello exchange, both framings, get, get-config, edit-config, lock, unlock, close-session, subtree
filters (RFC 6241, section 6) and rpc-error. The SSH server is paramiko's.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import paramiko
from lxml import etree
from support.fabric.polatis_device import ConnectionCut, DeviceError, PolatisServer, data_tree
from support.fabric.subtree_filter import OPSW, elements, filtered

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from support.fabric.polatis_device import PolatisDevice

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
_CAPABILITY = "urn:ietf:params:netconf:capability:"
_LOG = "tests.netconf"
logging.getLogger(_LOG).addHandler(logging.NullHandler())

_NC = f"{{{BASE}}}"


class PolatisNetconfServer(PolatisServer):
    """`requests` are the RPCs, as XML."""

    def __init__(
        self,
        device: PolatisDevice,
        host_key: paramiko.PKey,
        *,
        versions: tuple[str, ...] = ("1.0", "1.1"),
        can_lock: bool = True,
        can_roll_back: bool = True,
    ) -> None:
        self.host_key = host_key
        self.versions = versions
        self.can_lock = can_lock
        self.can_roll_back = can_roll_back
        self.authorized_keys: dict[str, paramiko.PKey] = {}
        self.requests: list[str] = []
        self.locked_by: int | None = None
        self._numbers = itertools.count(1)
        super().__init__(device)

    def serve(self, connection: socket.socket) -> None:
        _Session(self, connection, next(self._numbers)).serve()

    def capabilities(self) -> list[str]:
        revision = "2017-02-09" if self.device.old_yang else "2018-03-22"
        found = [f"urn:ietf:params:netconf:base:{version}" for version in self.versions]
        found.append(f"{_CAPABILITY}writable-running:1.0")
        if self.can_roll_back:
            found.append(f"{_CAPABILITY}rollback-on-error:1.0")
        return [*found, f"{OPSW}?module=optical-switch&revision={revision}"]


class _Login(paramiko.ServerInterface):
    def __init__(self, server: PolatisNetconfServer) -> None:
        self._server = server
        self.user = ""
        self.subsystem = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "password,publickey"

    def check_auth_password(self, username: str, password: str) -> int:
        self.user = username
        if self._server.device.users.get(username) == password:
            return paramiko.AUTH_SUCCESSFUL
        return paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.user = username
        if self._server.authorized_keys.get(username) == key:
            return paramiko.AUTH_SUCCESSFUL
        return paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        if name != "netconf":
            return False
        self.subsystem.set()
        return True


class _Session:
    def __init__(self, server: PolatisNetconfServer, connection: socket.socket, number: int):
        self._server = server
        self._device = server.device
        self._number = number
        self._connection = connection
        self._channel: Any = None
        self._received = b""
        self._chunked = False
        self._user = ""

    def serve(self) -> None:
        transport = paramiko.Transport(self._connection)
        transport.set_log_channel(_LOG)
        transport.add_server_key(self._server.host_key)
        login = _Login(self._server)
        try:
            transport.start_server(server=login)
            while self._channel is None and transport.is_active():
                self._channel = transport.accept(0.1)
            if self._channel is None or not login.subsystem.wait(10):
                return
            self._user = login.user
            self._talk()
        except (ConnectionCut, EOFError, OSError, paramiko.SSHException):
            pass
        finally:
            if self._server.locked_by == self._number:
                self._server.locked_by = None
            transport.close()

    def _talk(self) -> None:
        hello = etree.Element(f"{_NC}hello", nsmap={None: BASE})
        capabilities = etree.SubElement(hello, f"{_NC}capabilities")
        for uri in self._server.capabilities():
            etree.SubElement(capabilities, f"{_NC}capability").text = uri
        etree.SubElement(hello, f"{_NC}session-id").text = str(self._number)
        self._send(hello)
        theirs = [c.text for c in self._read().iter(f"{_NC}capability")]
        latest = "urn:ietf:params:netconf:base:1.1"
        self._chunked = latest in theirs and "1.1" in self._server.versions
        ending = False
        while not ending:
            rpc = self._read()
            if self._device.is_away():
                raise ConnectionCut
            text = etree.tostring(rpc).decode()
            self._server.requests.append(text)
            self._device.before_request(text)
            if self._server.mute:
                continue
            ending = rpc[0].tag == f"{_NC}close-session"
            reply = etree.Element(f"{_NC}rpc-reply", dict(rpc.attrib), nsmap={None: BASE})
            try:
                answer = self._operate(rpc[0])
                reply.append(etree.Element(f"{_NC}ok") if answer is None else answer)
            except DeviceError as error:
                reply.append(_rpc_error(error))
            self._send(reply)

    def _operate(self, operation: Any) -> Any:
        name = operation.tag.removeprefix(_NC)
        if name in ("get", "get-config"):
            data = etree.Element(f"{_NC}data", nsmap={None: BASE})
            wanted = operation.find(f"{_NC}filter")
            whole = elements(data_tree(self._device, self._user))
            data.extend(whole if wanted is None else filtered(whole, list(wanted)))
            return data
        if name == "edit-config":
            return self._edit(operation)
        if name in ("lock", "unlock") and self._server.can_lock:
            return self._lock(name == "lock")
        if name == "close-session":
            return None
        raise DeviceError("operation-not-supported", f"{name} is not supported")

    def _lock(self, take: bool) -> None:
        owner = self._server.locked_by
        if take and owner is not None:
            raise DeviceError("lock-denied", f"Lock is held by session {owner}")
        if not take and owner != self._number:
            raise DeviceError("operation-failed", "You do not hold the lock")
        self._server.locked_by = self._number if take else None

    def _edit(self, operation: Any) -> None:
        if self._server.locked_by not in (None, self._number):
            raise DeviceError("in-use", f"Session {self._server.locked_by} holds the lock")
        default = operation.findtext(f"{_NC}default-operation", "merge")
        option = operation.findtext(f"{_NC}error-option", "stop-on-error")
        if option == "rollback-on-error" and not self._server.can_roll_back:
            raise DeviceError("operation-not-supported", "rollback-on-error is not offered")
        with self._device.lock:
            before = self._device.saved()
            try:
                for pair, wanted in self._edits(operation.find(f"{_NC}config"), default):
                    self._edit_pair(pair, wanted)
            except DeviceError:
                if option == "rollback-on-error":
                    self._device.put_back(before)
                raise

    def _edits(self, config: Any, default: str) -> Iterator[tuple[Any, str]]:
        entry = f"{{{OPSW}}}{'pairs' if self._device.old_yang else 'pair'}"
        for container in config:
            if container.tag != f"{{{OPSW}}}cross-connects":
                raise DeviceError("access-denied", f"{container.tag} cannot be written")
            inherited = container.get(f"{_NC}operation", default)
            for pair in container:
                if pair.tag != entry:
                    raise DeviceError("unknown-element", f"Unknown element {pair.tag}")
                yield pair, pair.get(f"{_NC}operation", inherited)

    def _edit_pair(self, pair: Any, operation: str) -> None:
        ingress = int(pair.findtext(f"{{{OPSW}}}ingress"))
        present = self._device.pairs(self._user).get(ingress)
        if operation in ("delete", "remove"):
            if not self._device.disconnect(self._user, ingress) and operation == "delete":
                raise DeviceError("data-missing", f"No pair {ingress}")
            return
        text = pair.findtext(f"{{{OPSW}}}egress")
        if text is None:
            raise DeviceError("missing-element", "egress is mandatory")
        if operation == "create" and present is not None:
            raise DeviceError("data-exists", f"Pair {ingress} exists")
        if present not in (None, int(text)):
            self._device.disconnect(self._user, ingress)
        self._device.connect(self._user, ingress, int(text))

    def _send(self, message: Any) -> None:
        body = etree.tostring(message, xml_declaration=True, encoding="UTF-8")
        if self._chunked:
            parts = body[: len(body) // 2], body[len(body) // 2 :]
            framed = b"".join(b"\n#%d\n%s" % (len(part), part) for part in parts) + b"\n##\n"
        else:
            framed = body + b"]]>]]>"
        self._channel.sendall(framed)

    def _read(self) -> Any:
        if not self._chunked:
            return etree.fromstring(self._until(b"]]>]]>"))
        body = b""
        while True:
            self._until(b"\n#")
            size = self._until(b"\n")
            if size == b"#":
                return etree.fromstring(body)
            if not re.fullmatch(rb"[1-9]\d{0,9}", size):
                raise ConnectionCut  # RFC 6242, 4.2: framing is lost, the session ends
            body += self._take(int(size))

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            self._receive()
        found, _, self._received = self._received.partition(mark)
        return found

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        found, self._received = self._received[:count], self._received[count:]
        return found

    def _receive(self) -> None:
        data = self._channel.recv(65536)
        if not data:
            raise ConnectionCut
        self._received += data


def _rpc_error(error: DeviceError) -> Any:
    element = etree.Element(f"{_NC}rpc-error", nsmap={None: BASE})
    for name, text in (
        ("error-type", "application"),
        ("error-tag", error.tag),
        ("error-severity", "error"),
        ("error-message", str(error)),
    ):
        etree.SubElement(element, f"{_NC}{name}").text = text
    return element
