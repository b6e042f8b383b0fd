"""Unauthenticated peers at the listeners of a discovery: its agent, and those of probes."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from support.hostile import BEHAVIOURS, Target, strangers
from support.limits import limit_s, slowness

from torch_topoopt.discovery import probe as probes
from torch_topoopt.discovery.agent import Channel, meet, serve_tcp
from torch_topoopt.discovery.probe import Probe, Responder, send_probes
from torch_topoopt.fabric.credentials import Password
from torch_topoopt.links import unauthenticated_peers
from torch_topoopt.links.sockets import listen

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = limit_s(20.0)
JOB = "0123456789abcdef"
OPENING = json.dumps({"nonce": "00" * 16, "proof": "00" * 32}).encode() + b"\n"


def dialler(listener: socket.socket) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(listener.getsockname(), LIMIT_S)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_an_agent_serves_its_survey(
    behaviour: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated_peers, "_LINES_PER_S", 0.0)  # however long this takes
    with listen("127.0.0.1", 0) as listener:
        dial = dialler(listener)
        serving = threading.Thread(target=serve_tcp, args=(listener, Password("right"), LIMIT_S))
        serving.start()
        with (
            strangers(behaviour, Target(dial, OPENING)),
            dial() as connection,
            connection.makefile("rwb") as stream,
        ):
            survey = Channel(stream, stream, "agent")
            meet(survey, Password("right"))
            assert "name" in survey.ask("describe")
        serving.join(LIMIT_S)
        assert not serving.is_alive()
    assert len(caplog.records) <= 6


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_probes_are_answered(
    behaviour: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated_peers, "_LINES_PER_S", 0.0)
    monkeypatch.setattr(probes, "UNAUTHENTICATED_S", 0.3 * slowness())
    monkeypatch.setattr(probes, "_LOOK_S", 0.1)
    with listen("127.0.0.1", 0) as listener:
        right = Probe(0, "127.0.0.1", 3, "127.0.0.1", listener.getsockname()[1])
        opening = probes.hello(probes._QUESTION, JOB[::-1], 0, 3)
        responder = Responder([listener], JOB, 3)
        try:
            with strangers(behaviour, Target(dialler(listener), opening)):
                assert send_probes([right], JOB, timeout_s=LIMIT_S) == [right]
                assert len(responder._received) <= probes._MOST_PROBERS
        finally:
            responder.close()
    assert len(caplog.records) <= 6
