"""Probes over loopback: right answers count, all others do not."""

from __future__ import annotations

import socket

from torch_topoopt.discovery.probe import Probe, Responder, send_probes
from torch_topoopt.fabric.links import listen

JOB = "0123456789abcdef"


def test_only_the_right_server_of_the_right_job_counts() -> None:
    listener, unanswered = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    port, silent_port = listener.getsockname()[1], unanswered.getsockname()[1]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        closed_port = closed.getsockname()[1]
        right = Probe(0, "127.0.0.1", 3, "127.0.0.1", port)
        probes = [
            Probe(0, "127.0.0.1", 2, "127.0.0.1", port),
            right,
            Probe(0, "127.0.0.1", 3, "127.0.0.1", closed_port),
            Probe(0, "127.0.0.1", 3, "127.0.0.1", silent_port),
            Probe(0, "192.0.2.77", 3, "127.0.0.1", port),  # not an address of this machine
        ]
        responder = Responder([listener], JOB, 3)
        try:
            assert send_probes(probes, JOB, timeout_s=0.3) == [right]
            assert send_probes([right], JOB[::-1], timeout_s=0.3) == []
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r")
                stranger.settimeout(5)
                assert stranger.recv(100) == b""
            assert send_probes([right], JOB, timeout_s=5.0) == [right]
        finally:
            responder.close()
        assert listener.fileno() >= 0, "the listener stays open for the links"
        listener.close()
        unanswered.close()


def test_many_probes_are_answered_at_once() -> None:
    listeners = [listen("127.0.0.1", 0) for _ in range(4)]
    responder = Responder(listeners, JOB, 1)
    try:
        probes = [
            Probe(source, "127.0.0.1", 1, "127.0.0.1", listener.getsockname()[1])
            for source in range(2, 40)
            for listener in listeners
        ]
        assert send_probes(probes, JOB, timeout_s=20.0) == probes
    finally:
        responder.close()
        for listener in listeners:
            listener.close()
