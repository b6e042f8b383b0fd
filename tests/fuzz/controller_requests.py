"""What may arrive at the controller of a switched network, changed at random, and its service.

    python tests/fuzz/controller_requests.py INPUTS [SEED]

An input is a connection: right requests, cut, with other bytes, too large, without the token or
with one that was there before, one after the other, at once or byte by byte, by clients that stop
sending or reading. There are no sockets, and time passes only where everything waits.

Every answer has the right form, nothing but an answer 200 changes the state, what a connection may
send is bounded, and none outlives its limits.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import h11
from route_control.controller.test_route_state import leaf_spine_file

from torch_topoopt.route_control.controller.request_handler import AssignmentOptions
from torch_topoopt.route_control.controller.service import RouteService, ServiceLimits
from torch_topoopt.route_control.controller.store import RouteStore

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN = "only-for-this-test"
LIMITS = ServiceLimits(head=2048, body=5000, read_s=10.0, poll_s=25.0, connections=4)
_STATUSES = {200, 400, 401, 404, 405, 409, 413, 431, 501}
_LONGEST_LINE = 2000
_MOST_SENT = LIMITS.head + LIMITS.body + 2 * 65536  # the service reads so much at once
_FLOWS = [
    {"id": f"f{i}", "source": f"h{i % 4}", "target": f"h{(i + 2) % 4}", "bytes": 10**9}
    for i in range(8)
]
_WORDS = (
    b"\0", b"\r\n", b"\r\n\r\n", b"\xff\xfe", b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"HTTP/1.0", b"HTTP/9.9",
    b"[[[[[[[[[[[[", b"1e999", b"NaN", b"9" * 5000, b"\\ud800", b"%00", b"..", b'"', b"{", b"}",
    b"ffffffffffffffff\r\n", b"GET ", b"HEAD ", b"CONNECT ", b"OPTIONS * ", b"Host: x\r\n",
)  # fmt: skip


class _Clock(selectors.DefaultSelector):
    """Does not wait: time passes instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.now_s += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


class _Client:
    """Both ends of a connection as the service sees them: `pieces` arrive with `pause_s` between
    them, and then the end of the stream, or nothing any more."""

    def __init__(
        self, pieces: Sequence[bytes], *, pause_s: float, ends: bool, reads: bool, endless: bool
    ) -> None:
        self._pieces = list(reversed(pieces))
        self._pause_s = pause_s
        self._ends = ends
        self._reads = reads
        self._endless = endless
        self.sent = 0
        self.received = bytearray()
        self.is_closed = False
        self.is_whole = True  # nothing was cut that was to be received

    async def read(self, most: int) -> bytes:
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        if self._pieces:
            piece = self._pieces.pop()
            if len(piece) > most:
                self._pieces.append(piece[most:])
                piece = piece[:most]
        elif self._endless:
            piece = b"1" * most
        elif self._ends:
            return b""
        else:
            await asyncio.Event().wait()
        self.sent += len(piece)
        return piece

    def at_eof(self) -> bool:
        return self._ends and not self._pieces and not self._endless

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.received += data

    async def drain(self) -> None:
        if not self._reads:
            self.is_whole = False
            await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True


def _request(source: random.Random, number: int) -> bytes:
    """A right one, but for its token and number, maybe."""
    flows = source.sample(_FLOWS, source.randint(1, 3))
    if source.random() < 0.1:  # another flow of the same id
        flows = [{**flows[0], "bytes": source.choice([1, 0, 2**63, 1.5, None])}, *flows[1:]]
    leaf, spine = f"leaf{source.randrange(2)}", f"spine{source.randrange(2)}"
    ports = {"h2": {"4000": ["leaf0", spine, "leaf1"]}}
    bodies: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", "/v1/flows", {"job": "j", "flows": flows}),
        ("POST", "/v1/flows", {"job": "j", "flows": flows}),
        ("POST", "/v1/flows/end", {"ids": [flow["id"] for flow in flows]}),
        ("POST", "/v1/links", {source.choice(["down", "up"]): [[leaf, spine]]}),
        ("POST", "/v1/paths/degraded", {"flow": flows[0]["id"]}),
        ("PUT", "/v1/hosts/h0", {"ports": ports}),
        ("GET", f"/v1/assignments?host=h0&after={source.randrange(9)}", None),
        ("GET", source.choice(["/v1/health", "/v1/network", "/metrics"]), None),
    ]
    method, path, body = source.choice(bodies)
    known = source.random()
    token = TOKEN if known < 0.85 else source.choice(["", "x" * 18, TOKEN[:-1], TOKEN + "x"])
    lines = [f"{method} {path} HTTP/1.1", "Host: c", f"Authorization: Bearer {token}"]
    if known > 0.98:
        del lines[2]
    text = b""
    if body is not None:
        name = number if source.random() < 0.8 else number - source.randrange(30)
        text = json.dumps({"request": str(name), **body}).encode()
        text += b" " * source.choice([0] * 20 + [LIMITS.body])
    if text and source.random() < 0.2:
        lines.append("Transfer-Encoding: chunked")
        at = source.randrange(1, len(text))
        parts = (text[:at], text[at:], b"")
        text = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    elif text:
        lines.append(f"Content-Length: {len(text)}")
    return "\r\n".join((*lines, "", "")).encode() + text


def _changed(data: bytes, source: random.Random) -> bytes:
    for _ in range(source.choice([0, 0, 1, 1, 2, 4])):
        at = source.randrange(len(data) + 1)
        how = source.random()
        if how < 0.4:
            data = data[:at] + source.choice(_WORDS) + data[at + source.randrange(6) :]
        elif how < 0.6:
            data = data[:at] + bytes([source.randrange(256)]) + data[at + 1 :]
        elif how < 0.7:
            data = data[:at]
        elif how < 0.8:
            data = data[:at] + b"x" * source.choice([100, 3000, 9000]) + data[at:]
        else:
            data = data[:at] + data[at + source.randrange(40) :]
    return data


def _pieces(data: bytes, source: random.Random) -> list[bytes]:
    step = source.choice([len(data) + 1, len(data) + 1, 700, 50])
    return [data[i : i + step] for i in range(0, len(data), step)]


def _answers(received: bytes) -> list[tuple[int, bytes]]:
    """Status and body of each answer; what is cut at the end is left out."""
    found: list[tuple[int, bytes]] = []
    rest = received
    while rest:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "c")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(rest)
        status, body = 0, b""
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                found.append((status, body))
                break
            elif event is h11.NEED_DATA:
                return found
        rest = parser.trailing_data[0]
    return found


def _snapshot(service: RouteService) -> tuple[Any, ...]:
    state = service.handler.state
    return state.epoch, dict(state.flows), dict(state.ports), state.dead, dict(state.numbers)


def _check(service: RouteService, client: _Client, before: tuple[Any, ...]) -> list[int]:
    statuses = []
    for status, body in _answers(bytes(client.received)):
        assert status in _STATUSES, status
        if status != 200:
            said = json.loads(body)["error"]
            assert len(said.splitlines()) == 1, said
            assert len(said) < _LONGEST_LINE
            assert TOKEN not in said
        statuses.append(status)
    after = _snapshot(service)
    if 200 not in statuses and client.is_whole:
        assert after == before, "a refused request changed the state"
    assert before[0] <= after[0] <= before[0] + statuses.count(200) + (not client.is_whole)
    assert client.is_closed
    assert client.sent <= _MOST_SENT, "an endless request was read"
    return statuses


async def _converse(service: RouteService, source: random.Random, number: int) -> list[int]:
    data = b"".join(
        _changed(_request(source, number + i), source)
        for i in range(source.choice([1, 1, 1, 2, 3]))
    )
    client = _Client(
        _pieces(data, source),
        pause_s=source.choice([0, 0, 0, 0.5, 4]),
        ends=source.random() < 0.7,
        reads=source.random() < 0.95,
        endless=source.random() < 0.1,
    )
    before = _snapshot(service)
    begin_s = asyncio.get_running_loop().time()
    await service._connected(client, client)  # type: ignore[arg-type]
    took_s = asyncio.get_running_loop().time() - begin_s
    count = client.received.count(b"HTTP/1.1 ")
    assert took_s <= (count + 1) * (2 * LIMITS.read_s + LIMITS.poll_s), took_s
    assert not service._open
    return _check(service, client, before)


def run(inputs: int, seed: int) -> dict[int, int]:
    """How often each status was answered in `inputs` connections."""
    source = random.Random(seed)
    statuses: Counter[int] = Counter()
    store = RouteStore(":memory:", leaf_spine_file(2, 2, 2))
    service = RouteService(store, TOKEN, "local-search", LIMITS, AssignmentOptions(precomputed=0))
    with asyncio.Runner(loop_factory=_Loop) as runner:
        for i in range(inputs):
            statuses.update(runner.run(_converse(service, source, 4 * i)))
    state = store.load("local-search")
    assert (state.epoch, state.flows) == (service.handler.state.epoch, service.handler.state.flows)
    store.close()
    return dict(sorted(statuses.items()))


if __name__ == "__main__":
    begin = time.monotonic()
    found = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"controller: {sys.argv[1]} inputs in {time.monotonic() - begin:.0f} s: {found}")
