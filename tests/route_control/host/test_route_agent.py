"""What an agent makes of a controller's answers, of its silence, and of its end."""

from __future__ import annotations

import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.limits import limit_s

from torch_topoopt.fabric.credentials import Password
from torch_topoopt.plan import Link
from torch_topoopt.route_control.controller.client import (
    Assignments,
    ControllerRefused,
    ControllerUnavailable,
    FlowAssignment,
)
from torch_topoopt.route_control.host import agent as agent_module
from torch_topoopt.route_control.host.agent import Connections, RouteAgent
from torch_topoopt.route_control.host.link_flows import LinkFlow
from torch_topoopt.route_control.host.settings import ControllerSettings
from torch_topoopt.route_control.network_file import NamedHost, NamedSwitch, NetworkFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.route_control.controller.messages import FlowReport

LINK = Link(0, 0, 1, 0)
FLOW = LinkFlow("j/0", LINK, "10.0.0.0", "10.0.0.1", 5_000_000)
NETWORK = NetworkFile(
    1,
    (NamedSwitch("a"), NamedSwitch("b")),
    (NamedHost("h0", "a", ("10.0.0.0",)), NamedHost("h1", "b", ("10.0.0.1",))),
    (),
)
LIMIT_S = 20.0


def answer(epoch: int, *ports: int, rate: float | None = None) -> Assignments:
    path = ("a", "spine", "b") if ports else None
    first = ports[0] if ports else None
    return Assignments(epoch, (FlowAssignment("j/0", path, first, rate, ports),))


class Scripted:
    """Clients of a controller that says what a test wants; `calls` is what it was asked."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.started: Assignments = answer(1, 10)
        self.refused = ""
        self.degraded_answer: Assignments = answer(2, 20)
        self.news: queue.Queue[Assignments | Exception | ScriptedClient] = queue.Queue()

    def client(self, url: str, token: str, limit: float) -> ScriptedClient:
        return ScriptedClient(self)


class ScriptedClient:
    def __init__(self, script: Scripted) -> None:
        self._script = script
        self._interrupted = False

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def network(self) -> NetworkFile:
        return NETWORK

    def start(self, job: str, reports: Sequence[FlowReport]) -> Assignments:
        self._script.calls.put(("start", [report.id for report in reports]))
        if self._script.refused:
            why, self._script.refused = self._script.refused, ""
            raise ControllerRefused(why)
        return self._script.started

    def degraded(self, flow: str) -> Assignments:
        self._script.calls.put(("degraded", flow))
        return self._script.degraded_answer

    def end(self, ids: Sequence[str]) -> Assignments:
        self._script.calls.put(("end", list(ids)))
        return Assignments(9, ())

    def wait(self, host: str, after: int) -> Assignments:
        while not self._interrupted:
            news = self._script.news.get()
            if isinstance(news, Exception):
                raise news
            if isinstance(news, Assignments):
                return news
        raise ControllerUnavailable("interrupted")

    def interrupt(self) -> None:
        """Wakes its own `wait`; the next client, which has the same news, goes on waiting."""
        self._interrupted = True
        self._script.news.put(self)


class Job:
    """What an agent does to connections, and what it notes."""

    def __init__(self, script: Scripted, settings: ControllerSettings) -> None:
        self.script = script
        self.noted: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.paths: list[list[str]] = []
        self.limits: queue.Queue[float | None] = queue.Queue()
        self.moves: queue.Queue[Link] = queue.Queue()
        self.agent = RouteAgent(
            settings, "j", 0, [FLOW], lambda what, **values: self.noted.put((what, values))
        )

    def connect(self, port: int) -> None:
        self.agent.ports_of(LINK)
        self.agent.taken(LINK, port, ())
        self.agent.follow(
            Connections(self.moves.put, lambda link, gbps: self.limits.put(gbps), dict)
        )

    def note(self) -> str:
        """The next word but "path"; those go to `paths`."""
        while True:
            what, values = self.noted.get(timeout=limit_s(LIMIT_S))
            if what != "path":
                return what
            assert values["ends"] == [LINK.source, LINK.source_port, LINK.target, LINK.target_port]
            self.paths.append(values["path"])

    def call(self) -> tuple[Any, ...]:
        return self.script.calls.get(timeout=limit_s(LIMIT_S))

    def moved(self, port: int) -> None:
        """Carries out the move that is asked for next."""
        assert self.moves.get(timeout=limit_s(LIMIT_S)) == LINK
        assert self.agent.ports_of(LINK)[0] == port
        self.agent.taken(LINK, port, ())
        self.agent.moved(LINK)
        assert self.note() == "moved"


SETTINGS = ControllerSettings("http://c:1", Password("0123456789abcdef"), limit_s=LIMIT_S)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    script = Scripted()
    monkeypatch.setattr(agent_module, "ControllerClient", script.client)
    found = Job(script, SETTINGS)
    yield found
    found.agent.close()


def test_a_flow_is_reported_followed_and_ended(job: Job) -> None:
    job.agent.start()
    assert job.call() == ("start", ["j/0"])
    assert job.note() == "controlled"
    job.connect(10)
    assert job.moves.empty()
    job.script.news.put(answer(2, 20))
    job.moved(20)
    job.agent.close()
    assert job.paths == [["a", "spine", "b"]]  # noted once, though the port is another one
    assert job.call() == ("end", ["j/0"])


def test_an_answer_that_is_older_than_another_one_is_not_followed(job: Job) -> None:
    job.agent.start()
    job.connect(10)
    job.script.degraded_answer = answer(5, 50)
    job.agent.degraded(LINK, "it is slow")
    assert [job.note(), job.note()] == ["controlled", "degraded"]
    job.moved(50)
    job.script.news.put(answer(4, 40))
    job.script.news.put(answer(6, 60))
    job.moved(60)


def test_a_flow_that_another_job_has_left_behind_is_ended_and_reported_anew(job: Job) -> None:
    job.script.refused = "controller: flows[0].id: 'j/0' is another flow already"
    job.agent.start()
    assert [job.call() for _ in range(3)] == [
        ("start", ["j/0"]),
        ("end", ["j/0"]),
        ("start", ["j/0"]),
    ]
    assert job.note() == "controlled"


def test_rates_are_limited_and_lifted_with_the_controller(job: Job) -> None:
    job.script.started = answer(1, 10, rate=2e9)
    job.agent.start()
    assert job.agent.limit_gbps(LINK) == 2.0
    job.connect(10)
    job.script.news.put(answer(2, 10, rate=1e9))
    assert job.limits.get(timeout=limit_s(LIMIT_S)) == 1.0
    job.script.news.put(answer(3, 10))
    assert job.limits.get(timeout=limit_s(LIMIT_S)) is None
    job.script.news.put(answer(4, 10, rate=1e9))
    assert job.limits.get(timeout=limit_s(LIMIT_S)) == 1.0
    job.script.news.put(ControllerUnavailable("controller: gone"))
    assert job.limits.get(timeout=limit_s(LIMIT_S)) is None
    assert [job.note() for _ in range(3)] == ["controlled", "ecmp", "controller is back"]
    assert job.paths == [["a", "spine", "b"], [], ["a", "spine", "b"]]


def test_alone_a_slow_connection_is_tried_anew_with_ecmp(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.agent.start()
    job.connect(10)
    gone = threading.Event()

    def refuse(client: ScriptedClient, *_: object) -> NetworkFile:
        if gone.is_set():
            raise ControllerUnavailable("controller: gone")
        return NETWORK

    monkeypatch.setattr(ScriptedClient, "network", refuse)
    gone.set()
    job.script.news.put(ControllerUnavailable("controller: gone"))
    assert [job.note() for _ in range(2)] == ["controlled", "ecmp"]
    job.agent.degraded(LINK, "it is slow")
    assert job.note() == "ecmp"
    assert job.moves.get(timeout=limit_s(LIMIT_S)) == LINK
    assert job.agent.ports_of(LINK) == ()
    job.agent.taken(LINK, 45000, ())
    job.agent.moved(LINK)
    assert job.note() == "moved"
    gone.clear()
    assert job.note() == "controller is back"
    job.moved(10)


def test_a_controller_that_has_lost_its_state_gets_the_flows_again(job: Job) -> None:
    job.script.started = answer(7, 10)
    job.agent.start()
    assert job.call() == ("start", ["j/0"])
    job.script.news.put(answer(2, 10))
    assert job.call() == ("start", ["j/0"])


def test_flows_without_a_path_or_port_are_left_to_ecmp_and_said_so_once(job: Job) -> None:
    job.script.started = answer(1)
    job.agent.start()
    assert [job.note(), job.note()] == ["ecmp", "controlled"]
    assert job.agent.ports_of(LINK) == ()
    job.connect(40000)
    job.script.news.put(answer(2))
    job.script.news.put(answer(3, 30))
    job.moved(30)


def test_a_controller_that_says_nothing_costs_a_start_no_more_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = ControllerSettings(url, Password("0123456789abcdef"), limit_s=0.3)
        job = Job(Scripted(), settings)
        job.agent.start()
        assert job.note() == "ecmp"
        assert job.agent.ports_of(LINK) == ()
        job.agent.close()
    assert not any(thread.name == "topoopt-routes" for thread in threading.enumerate())
