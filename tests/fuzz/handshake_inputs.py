"""What may arrive at a listener of ranks, changed at random, and the handshake that receives it.

    python tests/fuzz/handshake_inputs.py INPUTS [SEED]

An end that does not know the secret is a stranger, whatever it says; one that does is either taken,
or an error with a name. Nothing else is raised.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING, Any

from torch_topoopt.links import identity, proof
from torch_topoopt.links.identity import Ends, Identity, Kind
from torch_topoopt.links.proof import Expected

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = bytes(range(32))
OURS = Identity(SECRET, "0123456789abcdef")
LINK = Ends(Kind.LINK, 0, 1, 2, 3)
_CHUNKS = (b"\0" * 8, b"\xff" * 8, b"TOPOOPT3", b"TOPOOPT2", b"\x80\0\0\0", b"\x7f\xff\xff\xff")


class _Wire:
    """Takes what the accepting end sends."""

    def __init__(self) -> None:
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data


def _changed(data: bytes, source: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(source.randrange(4)):
        at = source.randrange(len(result))
        if source.random() < 0.5:
            result[at] ^= 1 << source.randrange(8)
        else:
            chunk = source.choice(_CHUNKS)[: len(result) - at]
            result[at : at + len(chunk)] = chunk
    return bytes(result)


def accept_one(source: random.Random, accepting: Callable[..., Any]) -> str:
    """What became of one connection: "stranger", "taken" or "error"."""
    wire = _Wire()
    greeting = OURS.greeting(LINK)
    if source.random() < 0.9:
        greeting = _changed(greeting, source)
    knows = source.random() < 0.5
    talk = accepting(wire)
    assert next(talk) == len(greeting)
    try:
        wanted = talk.send(greeting)
        nonce = wire.sent[: identity.NONCE_BYTES]
        right = OURS.proof(b"connect", greeting, nonce)
        proof = right if knows else _changed(right, source)
        assert wanted == len(proof)
        talk.send(proof)
    except identity.StrangerError:
        magic, _, _, kind, *_ = identity._GREETING.unpack(greeting)
        assert not knows or magic != identity._MAGIC or kind > max(Kind)
        return "stranger"
    except StopIteration as end:
        outcome = end.value
    assert proof == right, "nobody gets further without the secret"
    assert (outcome.error == "") == (outcome.connection is wire)
    return "error" if outcome.error else "taken"


def dial_one(source: random.Random, connecting: Callable[..., Any]) -> str:
    """The same of the end that connects, whose other end knows the secret or not."""
    wire = _Wire()
    talk = connecting(wire)
    assert next(talk) == 0
    wanted = talk.send(b"")
    nonce = source.randbytes(identity.NONCE_BYTES)
    right = nonce + OURS.proof(b"accept", wire.sent, nonce)
    answer = _changed(right, source)
    try:
        assert wanted == len(answer)
        wanted = talk.send(answer)
        while True:  # the verdict: its length, and a text
            wanted = talk.send(source.randbytes(wanted))
    except StopIteration as end:
        outcome = end.value
    assert answer == right or outcome.connection is None
    return "error" if outcome.error else "taken"


def run(inputs: int, seed: int) -> dict[str, int]:
    """How often each became of `inputs` connections."""
    source = random.Random(seed)
    expected = Expected(None, {LINK: "link"}, lambda connection, ends: None)  # type: ignore[arg-type]
    counts: dict[str, int] = {}
    for i in range(inputs):
        if i % 4:
            what = accept_one(source, lambda wire: proof.accepting(OURS, expected, (), wire))
        else:
            what = dial_one(source, lambda wire: proof.connecting(OURS, LINK, "link", wire))
        counts[what] = counts.get(what, 0) + 1
    return counts


if __name__ == "__main__":
    begin = time.monotonic()
    found = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"handshake: {sum(found.values())} inputs in {time.monotonic() - begin:.0f} s: {found}")
