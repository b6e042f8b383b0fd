"""Probes over loopback: right answers count, all others do not."""

from __future__ import annotations

import socket

from support.limits import limit_s

from torch_topoopt.discovery.flood_count import FLOOD_S, Flood
from torch_topoopt.discovery.floods import send_floods
from torch_topoopt.discovery.probe import Probe, Responder, send_probes
from torch_topoopt.links.sockets import listen

JOB = "0123456789abcdef"


def test_only_the_right_server_of_the_right_job_counts() -> None:
    listener, unanswered = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
    port, silent_port = listener.getsockname()[1], unanswered.getsockname()[1]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        closed_port = closed.getsockname()[1]
        right = Probe(0, "127.0.0.1", 3, "127.0.0.1", port)
        wrong = [
            Probe(0, "127.0.0.1", 2, "127.0.0.1", port),
            Probe(0, "127.0.0.1", 3, "127.0.0.1", closed_port),
            Probe(0, "192.0.2.77", 3, "127.0.0.1", port),  # not an address of this machine
        ]
        silent = Probe(0, "127.0.0.1", 3, "127.0.0.1", silent_port)
        responder = Responder([listener], JOB, 3)
        try:
            assert send_probes([wrong[0], right, *wrong[1:]], JOB, limit_s(20)) == [right]
            assert send_probes([*wrong, silent], JOB, timeout_s=0.3) == []
            assert send_probes([right], JOB[::-1], timeout_s=0.3) == []
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r")
                stranger.settimeout(limit_s(20))
                assert stranger.recv(100) == b""
            assert send_probes([right], JOB, limit_s(20)) == [right]
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
        assert send_probes(probes, JOB, limit_s(20)) == probes
    finally:
        responder.close()
        for listener in listeners:
            listener.close()


def test_floods_are_counted_and_others_are_not() -> None:
    listeners = [listen("127.0.0.1", 0) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    responder = Responder(listeners, JOB, 1)
    try:
        right = [Probe(0, "127.0.0.1", 1, "127.0.0.1", port) for port in ports]
        wrong_server = Probe(0, "127.0.0.1", 2, "127.0.0.1", ports[0])
        flows = send_floods([wrong_server, *right], JOB)
        assert [flow.probe for flow in flows] == right
        assert all(flow.gbps > 0 and 0 <= flow.round_trip_s < 1 for flow in flows)
        assert send_probes(right, JOB, limit_s(20)) == right, "probes are answered as before"
    finally:
        responder.close()
        for listener in listeners:
            listener.close()


def test_a_flood_counts_as_its_best_part() -> None:
    """100 bytes in each ms, but for a burst at the beginning and a pause of 0.3 s."""
    flood = Flood(0.0)
    flood.add(1_000_000, 0.001)
    for ms in range(2, round(1000 * FLOOD_S)):
        if not 250 <= ms < 550:
            flood.add(100, ms / 1000)
    assert 99_000 < flood.bytes_per_s < 103_000


def test_a_flood_that_brings_nothing_has_no_rate() -> None:
    flood = Flood(0.0)
    flood.add(10, 0.1)
    assert flood.bytes_per_s == 0
