"""The store of the ranks of one machine: strangers cannot end it."""

from __future__ import annotations

import socket
import struct

import pytest
from support.hostile import BEHAVIOURS, Target, strangers
from support.limits import limit_s

from torch_topoopt.launcher.rendezvous.rendezvous import listening_store

LIMIT_S = limit_s(20.0)
# torch's TCPStore: VALIDATE with its magic number, then SET of a key whose length is to follow
OPENING = struct.pack("<BIBQ", 0, 0x3C85F7CE, 1, 1 << 40)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_the_store_serves_its_ranks(behaviour: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And writes nothing: where nobody reads stderr, it would stop."""
    store = listening_store("127.0.0.1", 0)
    where = ("127.0.0.1", store.port)

    def dial() -> socket.socket:
        return socket.create_connection(where, LIMIT_S)

    with strangers(behaviour, Target(dial, OPENING)):
        store.set("plan", "a plan")
        assert store.get("plan") == b"a plan"
    del store
    assert capfd.readouterr().err == ""
