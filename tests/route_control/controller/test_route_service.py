"""The controller over HTTP: the client's calls, refusals, hostile requests, and a kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from route_control.controller.test_route_state import leaf_spine_file, report
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.route_control.controller.client import (
    ControllerClient,
    ControllerRefused,
    ControllerUnavailable,
)
from torch_topoopt.route_control.controller.request_handler import (
    AssignmentOptions,
    RequestHandler,
)
from torch_topoopt.route_control.controller.service import RouteService, ServiceLimits
from torch_topoopt.route_control.controller.store import RouteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "only-for-this-test"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
LIMITS = ServiceLimits(body=20_000, poll_s=0.2)
FLOW = {"id": "f", "source": "h0", "target": "h2", "bytes": 10}


@contextlib.contextmanager
def serving(path: Path, limits: ServiceLimits = LIMITS) -> Iterator[int]:
    """A service in a thread; its port."""
    ports: list[int] = []
    ready, stop = threading.Event(), []

    async def main() -> None:
        store = RouteStore(path, leaf_spine_file(2, 2, 2))
        service = RouteService(store, TOKEN, "local-search", limits)
        server = await service.serve("127.0.0.1", 0)
        ended = asyncio.Event()
        stop.append((asyncio.get_running_loop(), ended))
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await ended.wait()
        server.close()
        await service.close()
        store.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield ports[0]
    finally:
        for loop, ended in stop:
            loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with serving(tmp_path / "state") as port:
        yield port


def client_of(port: int, token: str = TOKEN) -> ControllerClient:
    return ControllerClient(f"http://127.0.0.1:{port}", token, limit_s=20)


def asked(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, body, AUTHORISED if headers is None else headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_more_connections_than_the_limit_are_closed(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "state", ServiceLimits(connections=2)) as port,
        contextlib.ExitStack() as stack,
    ):
        held = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(2)]
        for connection in held:
            stack.callback(connection.close)
            connection.request("GET", "/v1/health", headers=AUTHORISED)
            assert connection.getresponse().read()
        with pytest.raises(ConnectionError):
            asked(port, "GET", "/v1/health")


def test_a_fault_is_an_answer_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "state") as port:
        for error, status in ((sqlite3.OperationalError("full"), 503), (KeyError("x"), 500)):

            def fail(*_: object, error: Exception = error) -> None:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(RouteStore, "save", fail)
                got, text = asked(port, "POST", "/v1/flows", flows_body())
                assert (got, len(json.loads(text)["error"].splitlines())) == (status, 1)
            assert json.loads(asked(port, "GET", "/v1/health")[1]) == {"epoch": 0, "flows": 0}
        assert asked(port, "POST", "/v1/flows", flows_body())[0] == 200


def test_rates_are_told_where_they_are_limited(tmp_path: Path) -> None:
    with contextlib.closing(RouteStore(tmp_path / "s", leaf_spine_file(2, 2, 2))) as store:
        how = AssignmentOptions(limits_rates=True)
        handler = RequestHandler(store, "local-search", lambda hosts: None, how, 0)
        flows = [{**FLOW, "id": str(i), "source": f"h{i % 2}"} for i in range(3)]
        answer = json.loads(handler.change("POST", "/v1/flows", flows_body(flows=flows), 0))
        assert sorted(f["rate_bits_per_s"] for f in answer["flows"]) == [5e7, 5e7, 1e8]
        assert store.load("local-search", limits_rates=True).flows == handler.state.flows
        handler.change("POST", "/v1/flows/end", b'{"request": "s", "ids": ["0", "1"]}', 0)
        assert handler.state.flows["2"].rate_bits_per_s == 1e8


def flows_body(**changes: Any) -> bytes:
    return json.dumps({"request": "r", "job": "j", "flows": [FLOW], **changes}).encode()


def test_a_client_gets_paths_and_hears_of_their_changes(port: int) -> None:
    with client_of(port) as client:
        ports = {
            "h2": {4000 + i: ["leaf0", f"spine{i}", "leaf1"] for i in range(2)},
        }
        client.set_ports("h0", ports)
        started = client.start("j", [report("f", "h0", "h2")])
        path = started.flows[0].path
        assert path is not None
        assert started.flows[0].source_port == 4000 + int(path[1].removeprefix("spine"))
        assert client.wait("h0", started.epoch).flows == ()
        client.set_links(down=[(path[0], path[1])])
        (moved,) = client.wait("h0", started.epoch).flows
        assert moved.path not in (None, path)
        assert client.end(["f"]).flows == ()
        assert client.network() == leaf_spine_file(2, 2, 2)


def test_a_long_poll_is_answered_by_a_change(port: int) -> None:
    with client_of(port) as client:
        started = client.start("j", [report("f", "h0", "h2")])
        heard: list[Any] = []
        with client_of(port) as other:

            def listen() -> None:
                while not heard:
                    heard.extend(other.wait("h0", started.epoch).flows)

            thread = threading.Thread(target=listen)
            thread.start()
            changed = client.degraded("f").flows[0]
            thread.join(20)
            assert heard == [changed]


def test_a_long_poll_ends_with_its_client(tmp_path: Path) -> None:
    limits = ServiceLimits(poll_s=1000, notice_s=0.05)
    with serving(tmp_path / "state", limits) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/v1/assignments?host=h0&after=0", headers=AUTHORISED)

        def count() -> int:
            text = asked(port, "GET", "/metrics")[1].decode()
            return int(text.partition("\ntopoopt_controller_connections ")[2].split()[0])

        end = time.monotonic() + limit_s(20)
        while count() < 2:
            assert time.monotonic() < end
        connection.close()
        while count() > 1:
            assert time.monotonic() < end


def test_a_long_poll_may_last_longer_than_a_request_may_be_sent(tmp_path: Path) -> None:
    limits = ServiceLimits(read_s=1, poll_s=1.5)
    with serving(tmp_path / "state", limits) as port, client_of(port) as client:
        assert client.wait("h0", 0).flows == ()


def test_a_replayed_request_is_refused(port: int) -> None:
    assert asked(port, "POST", "/v1/flows", flows_body())[0] == 200
    again = flows_body(flows=[{**FLOW, "id": "g"}])
    assert asked(port, "POST", "/v1/flows", again)[0] == 409
    assert json.loads(asked(port, "GET", "/v1/health")[1])["flows"] == 1


def test_a_rank_may_report_anew(port: int) -> None:
    with client_of(port) as client:
        first = client.start("j", [report("f", "h0", "h2")])
        assert client.start("j", [report("f", "h0", "h2")]) == first
        with refused(ControllerRefused, "f", "another flow"):
            client.start("j", [report("f", "h0", "h3")])
    another = flows_body(request="s", flows=[{**FLOW, "bytes": 11}])
    assert asked(port, "POST", "/v1/flows", another)[0] == 409


def test_flows_of_a_silent_host_end_and_leases_start_anew_with_the_controller(
    tmp_path: Path,
) -> None:
    with contextlib.closing(RouteStore(tmp_path / "s", leaf_spine_file(2, 2, 2))) as store:
        handler = RequestHandler(store, "local-search", set().update, AssignmentOptions(), 0)
        handler.change("POST", "/v1/flows", flows_body(), 0)
        handler.end_silent(60)
        assert handler.state.flows
    with contextlib.closing(RouteStore(tmp_path / "s", leaf_spine_file(2, 2, 2))) as store:
        published: set[str] = set()
        handler = RequestHandler(store, "local-search", published.update, AssignmentOptions(), 100)
        other = {"id": "g", "source": "h1", "target": "h3", "bytes": 10}
        handler.change("POST", "/v1/flows", flows_body(request="s", flows=[other]), 130)
        handler.end_silent(160)
        assert set(handler.state.flows) == {"f", "g"}
        handler.end_silent(161)
        assert set(handler.state.flows) == {"g"}
        handler.change("POST", "/v1/paths/degraded", b'{"request": "t", "flow": "g"}', 180)
        handler.end_silent(240)
        assert (set(handler.state.flows), handler.counts.lease_ends) == ({"g"}, 1)
        assert published == {"h1"}
    with contextlib.closing(RouteStore(tmp_path / "s", leaf_spine_file(2, 2, 2))) as store:
        assert set(store.load("local-search").flows) == {"g"}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}, {"Authorization": TOKEN}])
@pytest.mark.parametrize(
    "path", ["/v1/health", "/v1/network", "/metrics", "/v1/assignments?host=h0&after=0"]
)
def test_nothing_is_told_without_the_token(port: int, path: str, headers: dict[str, str]) -> None:
    status, text = asked(port, "GET", path, headers=headers)
    assert status == 401
    assert TOKEN.encode() not in text


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/flows", b"{", 400, "body: not valid JSON"),
        ("POST", "/v1/flows", b"\xff", 400, "body: not valid JSON"),
        ("POST", "/v1/flows", b"[" * 19_000, 400, "nested too deeply"),
        ("POST", "/v1/flows", b"[]", 400, "body: expected an object"),
        ("POST", "/v1/flows", b'{"a": 1, "a": 1}', 400, "a: given twice"),
        ("POST", "/v1/flows", flows_body(more=1), 400, "more: unknown field"),
        ("POST", "/v1/flows", flows_body(request=1), 400, "request: expected str"),
        ("POST", "/v1/flows", flows_body(job="\ud800"), 400, "printable characters"),
        ("POST", "/v1/flows", flows_body(flows=[{**FLOW, "bytes": 0}]), 400, "flows[0].bytes: 0"),
        ("POST", "/v1/flows", flows_body(flows=[{**FLOW, "bytes": 2**63}]), 400, "bytes"),
        ("POST", "/v1/flows", flows_body(job="j" * 20_000), 413, "more than 20000 bytes"),
        ("POST", "/v1/flows/end", b'{"request": "r", "ids": ["x"]}', 400, "ids[0]: 'x'"),
        ("POST", "/v1/links", b'{"request": "r", "down": [["h0"]]}', 400, "down[0]"),
        ("PUT", "/v1/hosts/x", b'{"request": "r", "ports": {}}', 400, "host: 'x'"),
        ("PUT", "/v1/hosts/h0", b'{"request": "r", "ports": {"h2": {"0": []}}}', 400, "65535"),
        ("GET", "/v1/assignments?host=h0&after=-1", b"", 400, "after: '-1'"),
        ("GET", "/v1/flows", b"", 404, "no such address"),
        ("GET", "//[", b"", 400, "address"),
        ("GET", "/v1/assignments?a=1&a=1&a=1&a=1&a=1", b"", 400, "more than 4 fields"),
        ("DELETE", "/v1/flows", b"", 405, "only POST"),
    ],
)
def test_bad_requests(
    port: int, method: str, path: str, body: bytes, status: int, words: str
) -> None:
    got, text = asked(port, method, path, body)
    assert (got, words in json.loads(text)["error"]) == (status, True), text
    assert json.loads(asked(port, "GET", "/v1/health")[1]) == {"epoch": 0, "flows": 0}


def hostile(random_: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """A request that must not change anything: cut, with bytes changed, or without the token."""
    paths = ["/v1/flows", "/v1/flows/end", "/v1/links", "/v1/paths/degraded", "/v1/hosts/h0"]
    path = random_.choice([*paths, "/", "/v1/assignments?host=%00&after=9", "//[", "/v1/hosts/%ff"])
    body = bytearray(flows_body(flows=[{**FLOW, "id": "f0"}]))
    for _ in range(random_.randint(1, 4)):
        body[random_.randrange(len(body))] = random_.randrange(256)
    body = body[: random_.randrange(1, len(body))]  # without its last brace it is no JSON
    token = AUTHORISED if random_.random() < 0.8 else {"Authorization": "Bearer " + "x" * 99}
    return random_.choice(["POST", "PUT", "DELETE", "PATCH"]), path, bytes(body), token


def test_hostile_requests_change_nothing(port: int) -> None:
    random_ = random.Random(17)
    with client_of(port) as client:
        before = client.start("j", [report("f", "h0", "h2")]), asked(port, "GET", "/v1/health")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for _ in range(3000):
            connection.request(*hostile(random_))
            answer = connection.getresponse()
            answer.read()
            assert 400 <= answer.status < 500
        connection.close()
        assert asked(port, "GET", "/v1/health") == before[1]
        assert client.wait("h0", 0) == before[0]


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as port, client_of(port) as client:
        client.set_ports("h0", {"h2": {4000: ["leaf0", "spine1", "leaf1"]}})
        client.start("j", [report(n, "h0", "h2") for n in "ab"])
        client.start("j", [report("c", "h1", "h3")])
        client.set_links(down=[("leaf1", "spine0")])
        client.end(["b"])
        before = [client.wait(host, 0) for host in ("h0", "h1")]
        # As kill -9 leaves it: what is on the disk while the service still runs.
        for suffix in ("", "-wal"):
            (tmp_path / f"copy{suffix}").write_bytes((tmp_path / f"state{suffix}").read_bytes())
    with serving(tmp_path / "copy") as port, client_of(port) as client:
        assert [client.wait(host, 0) for host in ("h0", "h1")] == before
        assert client.start("j", [report("d", "h1", "h3")]).epoch == before[0].epoch + 1


def test_the_client_says_when_the_controller_is_gone_or_refuses(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "state") as port,
        client_of(port, "another-token-of-16") as client,
        pytest.raises(ControllerRefused),
    ):
        client.end([])
    with client_of(port) as client, pytest.raises(ControllerUnavailable):
        client.end([])


def test_metrics_are_prometheus_text(port: int) -> None:
    asked(port, "POST", "/v1/flows", flows_body())
    lines = asked(port, "GET", "/metrics")[1].decode().splitlines()
    assert "topoopt_controller_flows 1" in lines
    assert 'topoopt_controller_answers_total{status="200"} 1' in lines
    assert "topoopt_controller_precomputed_misses_total 1" in lines
    label = 'assignment="computed"'
    assert f"topoopt_controller_answer_seconds_count{{{label}}} 1" in lines
    counts = [int(x.rpartition(" ")[2]) for x in lines if f"bucket{{{label}" in x]
    assert counts == sorted(counts)
    assert counts[-1] == 1
