"""The agent that listens: strangers are turned away, and block no other client."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s

from torch_topoopt.discovery import agent as agents
from torch_topoopt.discovery.agent import Channel, meet, serve_tcp
from torch_topoopt.fabric.credentials import Password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = limit_s(30.0)


@pytest.fixture
def agent() -> Iterator[Callable[[], socket.socket]]:
    """Connects to an agent that listens; at the end it has served a survey that knows the token."""
    ended = threading.Event()

    def serve() -> None:
        serve_tcp(listener, Password("right"), LIMIT_S)
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()

        def connect() -> socket.socket:
            return socket.create_connection(listener.getsockname(), timeout=LIMIT_S)

        yield connect
        with connect() as connection, connection.makefile("rwb") as stream:
            survey = Channel(stream, stream, "agent")
            meet(survey, Password("right"))
            assert "name" in survey.ask("describe")
        assert ended.wait(LIMIT_S)


@pytest.mark.parametrize(
    "answer",
    [
        {"nonce": "n", "proof": "\u00e9" * 64},
        {"nonce": "\ud800", "proof": "0" * 64},
        {"nonce": ["n"], "proof": None},
        [],
        "[" * 3000,
        b"\xff\xfe",
        "9" * 4000 + "}",
    ],
)
def test_no_proof_ends_the_agent(agent: Callable[[], socket.socket], answer: object) -> None:
    line = answer if isinstance(answer, bytes) else (
        answer if isinstance(answer, str) else json.dumps(answer)
    ).encode()  # fmt: skip
    with agent() as stranger, stranger.makefile("rwb") as stream:
        assert "nonce" in json.loads(stream.readline())
        stream.write(line + b"\n")
        stream.flush()
        assert b"nonce" not in stream.read(), "it is turned away, perhaps with a reason"


def test_strangers_that_say_nothing_do_not_keep_the_survey_out(
    agent: Callable[[], socket.socket],
) -> None:
    for _ in range(3):
        agent()  # stays open, and says nothing


def test_a_stranger_has_only_so_long_and_so_much_and_so_many_connections(
    agent: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "_GREET_S", 0.2)
    with agent() as silent, silent.makefile("rb") as stream:
        stream.readline()
        assert stream.readline() == b"", "the end, after the limit"
    monkeypatch.setattr(agents, "_GREET_S", LIMIT_S)
    with agent() as endless, endless.makefile("rb") as stream:
        stream.readline()
        endless.sendall(b"x" * 4096)
        assert b"error" in stream.readline(), "the error comes without the end of its line"
