"""Links that are encrypted: what they carry, what a tap sees, and ranks that disagree."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.host_ranks import run_on_hosts
from support.backend.ranks import make_plan, require_tls, run_ranks, values
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.runtime import backend, job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVERS = 4
PORTS = {"port0", "port1"}
LIMIT_S = 30.0
_EVERYTHING = socket.htons(3)  # ETH_P_ALL of <linux/if_ether.h>
_SOL_PACKET = 263
_PACKET_STATISTICS = 6  # <linux/if_packet.h>
_SO_RCVBUFFORCE = 33
_KEPT_BYTES = 256 << 20
_MOST_PACKET_BYTES = 1 << 17
_REPEATED = 2000


class Tap:
    """Keeps all that passes the interfaces of this namespace, from now on.

    The namespace is of one test alone, so that nothing of others fills what the kernel keeps.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _EVERYTHING)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _KEPT_BYTES)

    def packets(self) -> Iterator[tuple[str, bytes]]:
        """What has passed, with the interface; all of it was kept."""
        counted = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        _, missed = struct.unpack("II", counted)
        assert missed == 0
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, (interface, *_) = self._socket.recvfrom(
                    _MOST_PACKET_BYTES, socket.MSG_DONTWAIT
                )
                yield interface, packet

    def close(self) -> None:
        self._socket.close()


def lose_and_regain_a_cable() -> None:
    """Returns once this rank uses the new connection of its port 0."""
    session = job.jobs[-1].session
    for state in ("down", "up"):
        subprocess.run(f"ip link set port0 {state}".split(), check=True, timeout=limit_s(10))
        deadline = time.monotonic() + limit_s(LIMIT_S)
        while bool(session.lost_cables()) != (state == "down"):
            assert time.monotonic() < deadline, f"port0 is {state}: {session.lost_cables()}"
            time.sleep(0.01)


def exchange(secret: bytes, world: int) -> None:
    """Carries nothing but the secret, along trees and from each to each."""
    known = torch.frombuffer(bytearray(secret * _REPEATED), dtype=torch.uint8)
    news = known.clone() if dist.get_rank() == 0 else torch.zeros_like(known)
    dist.broadcast(news, 0)
    assert torch.equal(news, known)
    received = torch.empty(world * len(known), dtype=torch.uint8)
    dist.all_to_all_single(received, known.repeat(world))
    assert torch.equal(received, known.repeat(world))


def sent_by_port() -> dict[str, int]:
    links = backend.stats()["links"]
    return {f"port{link['source_port']}": link["sent_bytes"] for link in links}


def tapped_exchange(secret: bytes, world: int) -> Tap:
    """What rank 0 taps of one exchange for which both its cables were used."""
    deadline = time.monotonic() + limit_s(LIMIT_S)
    while True:
        tap, before = Tap(), sent_by_port()
        dist.barrier()
        exchange(secret, world)
        after = sent_by_port()
        unused = [port for port in PORTS if after[port] < before[port] + len(secret) * _REPEATED]
        again = torch.tensor([dist.get_rank() == 0 and unused != []], dtype=torch.uint8)
        dist.all_reduce(again, dist.ReduceOp.MAX)
        if not again:
            return tap
        tap.close()
        assert time.monotonic() < deadline, f"nothing is sent by {unused}"


def tapped(secret: bytes, lost: bool, rank: int, world: int) -> tuple[list[int], set[str]]:
    """Ranks to which hosts forward; the ports where packets show the secret."""
    dist.init_process_group("topoopt")
    exchange(secret, world)
    if rank == 0 and lost:
        lose_and_regain_a_cable()
    tap = tapped_exchange(secret, world)
    shown = {interface for interface, packet in tap.packets() if secret in packet}
    links = backend.stats()["links"]
    dist.destroy_process_group()
    return sorted(link["target"] for link in links if link["source_port"] < 0), shown


@pytest.mark.parametrize(
    ("encrypt", "relay", "lost"),
    [("0", "user", True), ("1", "user", True), ("1", "kernel", False)],
    ids=["plain", "encrypted", "encrypted-and-forwarded"],
)
def test_a_tap_sees_the_tensors_of_plain_links_and_not_those_of_encrypted_ones(
    encrypt: str, relay: Any, lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tls()
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    secret = secrets.token_bytes(20)
    plan, work = make_plan(SERVERS, 2), functools.partial(tapped, secret, lost)
    with contextlib.closing(NetnsFabric(a_name(), NetnsOptions(relay=relay))) as fabric:
        answers = run_on_hosts(fabric, plan, tmp_path, work, TOPOOPT_ENCRYPT=encrypt)
    forwarded, shown = answers[0]
    assert forwarded == ([2] if relay == "kernel" else [])
    assert shown == (PORTS if encrypt == "0" else set())


def differ(rank: int, world: int) -> str:
    os.environ["TOPOOPT_ENCRYPT"] = str(rank % 2)
    with refused(Exception, "rank 1", "torch_topoopt") as caught:
        dist.init_process_group("topoopt")
    return str(caught.value)


def test_ranks_that_disagree_about_encryption_have_one_error(tmp_path: Path) -> None:
    require_tls()
    errors = values(run_ranks(make_plan(2, 1), tmp_path, differ))
    for error in errors:
        assert ", TLS 1.3), rank 0 has" in error
        assert "; run all with --encrypt or TOPOOPT_ENCRYPT=1, or none" in error
