"""The agent of one host for `topoopt discover`: answers the survey's requests.

Requests and answers are JSON objects, one per line, over a TCP connection or over the standard
streams of ssh. The agent reads its interfaces from the kernel, announces the names of its ports on
their cables, and sends probes; it changes nothing on its host.

Over TCP both sides first prove that they know the shared token, each with a nonce of the other; the
token is never sent. The rest is neither encrypted nor signed: use a management network.
"""

from __future__ import annotations

import errno
import glob
import hmac
import json
import os
import queue
import secrets
import selectors
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from torch_topoopt.discovery.interfaces import list_interfaces
from torch_topoopt.discovery.neighbours import Neighbours
from torch_topoopt.discovery.ports import list_ports
from torch_topoopt.discovery.probe import Probe, Responder, send_probes
from torch_topoopt.links import netlink
from torch_topoopt.links.addresses import without_zone
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.sockets import listen
from torch_topoopt.links.unauthenticated_peers import Allowance, UnauthenticatedPeers, to_close
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.credentials import Password

PROTOCOL = 5
_LONGEST_BYTES = 1 << 20
_LONGEST_GREETING_BYTES = 4096  # from unauthenticated clients
_GREET_S = 10.0
_MOST_GREETINGS = 64  # concurrent; one more evicts one of them
_CROWD, _CROWD_PER_S, _CROWD_PAUSE_S = 4096, 200, 0.05


class Stream(Protocol):
    """Two binary files, or a socket's one."""

    def readline(self, limit: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int | None: ...
    def flush(self) -> None: ...


class Channel:
    """JSON objects over a stream; raises FabricError naming the other side on failure."""

    def __init__(
        self, reading: Stream, writing: Stream, other: str, *, longest_bytes: int = _LONGEST_BYTES
    ) -> None:
        self._longest_bytes = longest_bytes  # of a message
        self._reading = reading
        self._writing = writing
        self.other = other

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._writing.write(json.dumps(message).encode() + b"\n")
            self._writing.flush()
        except (OSError, ValueError) as error:
            raise FabricError(f"{self.other}: the connection broke: {error}") from None

    def receive(self) -> dict[str, Any] | None:
        """The next message; None if the other side has ended."""
        try:
            line = self._reading.readline(self._longest_bytes)
            message = json.loads(line) if line.endswith(b"\n") else None
        except TimeoutError:
            raise FabricError(f"{self.other}: no answer in time") from None
        except (OSError, ValueError, RecursionError):
            raise FabricError(f"{self.other}: does not speak as an agent of topoopt") from None
        if message is not None and not isinstance(message, dict):
            raise FabricError(f"{self.other}: does not speak as an agent of topoopt")
        return message

    def ask(self, question: str, **arguments: Any) -> dict[str, Any]:
        """The answer of the agent at the other side; raises FabricError if it has none."""
        self.send({"ask": question, **arguments})
        answer = self.receive()
        if answer is None:
            raise FabricError(f"{self.other}: the agent has ended")
        if error := answer.get("error"):
            raise FabricError(f"{self.other}: {error}")
        return answer


def greet(channel: Channel, token: Password) -> None:
    """The agent's part of the proof; raises FabricError for a side that does not know the token."""
    own = secrets.token_hex(16)
    channel.send({"topoopt": PROTOCOL, "nonce": own})
    reply = channel.receive() or {}
    theirs = _nonce(reply)
    if not theirs or not _equal(reply.get("proof"), _proof(token, "survey", own, theirs)):
        channel.send({"error": "the token is another one than this agent's"})
        raise FabricError(f"{channel.other}: does not know the token")
    channel.send({"proof": _proof(token, "agent", theirs, own)})


def meet(channel: Channel, token: Password) -> None:
    """The survey's part of the proof; raises FabricError."""
    hello = channel.receive() or {}
    if hello.get("topoopt") != PROTOCOL:
        raise FabricError(
            f"{channel.other}: no agent of this topoopt (it said {hello or 'nothing'})"
        )
    own, theirs = secrets.token_hex(16), _nonce(hello)
    channel.send({"nonce": own, "proof": _proof(token, "survey", theirs, own)})
    reply = channel.receive() or {}
    if error := reply.get("error"):
        raise FabricError(f"{channel.other}: {error}")
    if not _equal(reply.get("proof"), _proof(token, "agent", own, theirs)):
        raise FabricError(f"{channel.other}: does not know the token")


def _proof(token: Password, side: str, asked: str, own: str) -> str:
    return hmac.new(token.reveal().encode(), f"{side} {asked} {own}".encode(), "sha256").hexdigest()


def _nonce(message: dict[str, Any]) -> str:
    """The nonce in a message; "" if it is invalid, for example not encodable."""
    nonce = message.get("nonce")
    return nonce if isinstance(nonce, str) and nonce.isascii() else ""


def _equal(given: object, right: str) -> bool:
    # compare_digest takes text only if that is ASCII
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, right)


@dataclass(frozen=True)
class ReachedBy:
    """The interface through which the survey at `client` has reached a host ("": not known), the
    `gateways` of its routes, and the MAC addresses of its neighbours."""

    interface: str
    client: str
    gateways: tuple[str, ...] = ()
    neighbour_macs: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Decodes the JSON of `asdict`; raises TypeError for anything else."""
        lists = {name: tuple(plain[name]) for name in ("gateways", "neighbour_macs")}
        return cls(**{**plain, **lists})


class Agent:
    """Answers the requests of one survey; closes its sockets when it is closed."""

    def __init__(self, management: str, client: str) -> None:
        """`management` is the address at which the survey reached this host, and `client` the
        survey's own; "" if not known."""
        self._management = _unmapped(management)
        self._client = _unmapped(client)
        self._stack = ExitStack()
        self._neighbours: Neighbours | None = None

    def serve(self, channel: Channel) -> None:
        """Answers requests until the other side ends."""
        with self._stack:
            while (question := channel.receive()) is not None:
                channel.send(self._answer(question))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "describe": self._describe,
            "announce": self._announce,
            "senders": self._senders,
            "listen": self._listen,
            "probe": self._probe,
        }
        name = str(question.pop("ask", None))
        if name not in answers:
            return {"error": f"{name!r} is no question of this topoopt's agents"}
        try:
            return answers[name](**question)
        except (FabricError, DocumentError, OSError) as error:
            return {"error": str(error)}
        except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
            return {"error": f"{name}: bad arguments: {error}"}

    def _describe(self) -> dict[str, Any]:
        return {
            "name": os.uname().nodename,
            "management": self._management,
            "reached_by": asdict(self._reached_by()),
            "addresses": sorted(
                without_zone(interface.address) for interface in list_interfaces(every_address=True)
            ),
            "accelerators": len(glob.glob("/dev/nvidia[0-9]*")) or 1,
            "ports": [vars(port) for port in list_ports()],
        }

    def _reached_by(self) -> ReachedBy:
        for interface in list_interfaces(every_address=True):
            if not self._management or interface.loopback:
                continue
            if self._management in (interface.address, without_zone(interface.address)):
                name = interface.name
                others = (netlink.gateways(name), netlink.neighbour_macs(name))
                return ReachedBy(name, self._client, *map(tuple, map(sorted, others)))
        return ReachedBy("", self._client)

    def _announce(
        self, token: str, udp_port: int, server: str, interfaces: list[str]
    ) -> dict[str, Any]:
        ports = {interface: interface for interface in interfaces}
        self._neighbours = Neighbours(token, udp_port, server, ports)
        self._stack.enter_context(self._neighbours)
        return {}

    def _senders(self) -> dict[str, Any]:
        if self._neighbours is None:
            raise FabricError("senders: nothing was announced")
        senders = self._neighbours.senders()
        return {
            "senders": {port: sorted(map(list, ends)) for port, ends in senders.items()},
            "rounds": self._neighbours.rounds,
        }

    def _listen(self, job: str, server: int, addresses: list[str]) -> dict[str, Any]:
        """Answers probes at `addresses` from now on, at the TCP ports that it returns."""
        tcp_ports, listeners = {}, []
        interfaces = {interface.address: interface.name for interface in list_interfaces()}
        for address in addresses:
            opened = listen(address, 0, interfaces.get(address))
            listener = self._stack.enter_context(opened)
            listeners.append(listener)
            tcp_ports[address] = listener.getsockname()[1]
        self._stack.callback(Responder(listeners, job, server).close)
        return {"tcp_ports": tcp_ports}

    def _probe(self, job: str, probes: list[dict[str, Any]]) -> dict[str, Any]:
        reached = send_probes([Probe(**probe) for probe in probes], job)
        return {"reached": [vars(probe) for probe in reached]}


def _unmapped(address: str) -> str:
    """The IPv4 address of ::ffff:10.0.0.1, as sockets of both families show it."""
    return address.removeprefix("::ffff:") if "." in address else address


def serve_tcp(listener: socket.socket, token: Password, timeout_s: float) -> None:
    """Serves the first survey that knows the token, to its end; turns all others away.

    Several may prove it at once, each in _GREET_S at most, so that a silent client blocks no other.
    `timeout_s` bounds the silence of the survey. Raises FabricError if the survey breaks off.
    """
    with _Greeter(token) as greeter, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(greeter.proven, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if greeter.proven in ready:
                break
            if not greeter.has_room():
                time.sleep(_CROWD_PAUSE_S)
                continue
            try:
                greeter.greet(*listener.accept())
            except OSError as error:  # already closed
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(_CROWD_PAUSE_S)
        connection, stream = greeter.take()
        with connection, stream:
            connection.settimeout(timeout_s)
            channel = Channel(stream, stream, connection.getpeername()[0])
            Agent(connection.getsockname()[0], channel.other).serve(channel)


class _Greeter:
    """Lets each client prove that it knows the token, in a thread of its own.

    `proven` becomes readable when a client has.
    """

    def __init__(self, token: Password) -> None:
        self._token = token
        self._unauthenticated = UnauthenticatedPeers()
        self._crowd = Allowance(_CROWD, _CROWD_PER_S)
        self._greeted: dict[socket.socket, str] = {}  # the oldest first, and their addresses
        self._changed = threading.Lock()
        self._found: queue.SimpleQueue[tuple[socket.socket, Any]] = queue.SimpleQueue()
        self.proven, self._notify = socket.socketpair()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.proven.close()
        self._notify.close()

    def take(self) -> tuple[socket.socket, Any]:
        """The first client that has proven the token, and its stream."""
        return self._found.get()

    def has_room(self) -> bool:
        """Whether one more client is accepted; it may evict an unauthenticated one."""
        with self._changed:
            if len(self._greeted) < _MOST_GREETINGS:
                return True
            if not self._crowd.take():
                return False
            crowding = to_close(self._greeted, lambda one: self._greeted[one])
            del self._greeted[crowding]
            _shut(crowding)  # its thread closes it
        return True

    def greet(self, connection: socket.socket, peer: Any) -> None:
        """Starts."""
        with self._changed:
            self._greeted[connection] = peer[0]
        thread = threading.Thread(target=self._greet, args=(connection, peer[0]), daemon=True)
        thread.start()

    def _greet(self, connection: socket.socket, peer: str) -> None:
        # of the whole greeting: a limit of each byte would let one byte a second go on for long
        limit = threading.Timer(_GREET_S, _shut, [connection])
        limit.daemon = True
        stream = connection.makefile("rwb")
        try:
            limit.start()
            connection.settimeout(_GREET_S)
            greet(Channel(stream, stream, peer, longest_bytes=_LONGEST_GREETING_BYTES), self._token)
        except FabricError as error:
            with suppress(OSError):
                stream.close()
            connection.close()  # unauthenticated; `greet` has sent the reason
            self._unauthenticated.closed(peer, str(error).removeprefix(f"{peer}: "))
        else:
            self._found.put((connection, stream))
            with suppress(OSError):  # another was first
                self._notify.send(b"!")
        finally:
            limit.cancel()
            with self._changed:
                self._greeted.pop(connection, None)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
