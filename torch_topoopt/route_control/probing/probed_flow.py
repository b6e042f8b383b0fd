"""The fields of a connection that a switch hashes."""

from __future__ import annotations

from dataclasses import dataclass

TCP, UDP = 6, 17  # IANA's numbers of protocols


@dataclass(frozen=True)
class ProbedFlow:
    """Packets from a port of `source` to a port of `target`, hosts by name."""

    source: str
    target: str
    source_port: int
    target_port: int
    protocol: int = TCP
