"""Circuits of a switch or patch panel, and the changes between two sets of them.

Pure functions and values; nothing here talks to a device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterable


class CircuitError(FabricError):
    """Circuits that conflict, or that belong to other jobs."""


@dataclass(frozen=True)
class Circuit:
    """Light that enters a switch at port `ingress` leaves it at port `egress`.

    Ports have the names that the switch itself gives them. On a duplex switch (a patch panel, say)
    a circuit carries both directions; `duplex_circuit` gives its one spelling.
    """

    JSON_FIELDS: ClassVar = str

    ingress: str
    egress: str

    @property
    def ports(self) -> tuple[str, str]:
        return self.ingress, self.egress

    def __str__(self) -> str:
        return f"{self.ingress}-{self.egress}"


def duplex_circuit(a: str, b: str) -> Circuit:
    """The circuit of a duplex switch between two ports, the lower first."""
    return Circuit(*sorted((a, b), key=port_order))


@dataclass(frozen=True)
class Difference:
    """The changes; removals come first, as an addition may need the ports of one."""

    remove: tuple[Circuit, ...]
    add: tuple[Circuit, ...]

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)

    def describe(self) -> list[str]:
        """One line per circuit, `- 1A-2B` or `+ 1A-3B`."""
        return [f"- {c}" for c in self.remove] + [f"+ {c}" for c in self.add]


def reconcile(current: Iterable[Circuit], wanted: Iterable[Circuit]) -> Difference:
    """The least change from `current` to exactly `wanted`, in the order of the ports.

    Raises CircuitError if two of `wanted` need the same port.
    """
    have, want = set(current), set(wanted)
    owners: dict[str, Circuit] = {}
    for circuit in sorted(want, key=circuit_order):
        for port in set(circuit.ports):
            if port in owners:
                raise CircuitError(
                    f"circuits {owners[port]} and {circuit} both need port {port}; a port is in "
                    "one circuit at most"
                )
            owners[port] = circuit
    return Difference(
        tuple(sorted(have - want, key=circuit_order)),
        tuple(sorted(want - have, key=circuit_order)),
    )


@dataclass(frozen=True)
class Fence:
    """The ports of a switch that belong to one job; all others are never touched."""

    ports: frozenset[str]

    def own(self, circuits: Iterable[Circuit]) -> frozenset[Circuit]:
        """The circuits within the fence; raises CircuitError if one has only one end within."""
        own = set()
        for circuit in sorted(circuits, key=circuit_order):
            inside = [port for port in circuit.ports if port in self.ports]
            if len(inside) == 1:
                raise CircuitError(
                    f"port {inside[0]} is in use by circuit {circuit}, whose other end is not a "
                    "port of this job; nothing was changed"
                )
            if inside:
                own.add(circuit)
        return frozenset(own)

    def check(self, wanted: Iterable[Circuit]) -> None:
        """Raises CircuitError if a wanted circuit needs a port that is not this job's."""
        for circuit in sorted(wanted, key=circuit_order):
            for port in circuit.ports:
                if port not in self.ports:
                    raise CircuitError(
                        f"circuit {circuit} needs port {port}, which is not a port of this job "
                        f"({describe_ports(self.ports)}); nothing was changed"
                    )


def port_order(port: str) -> tuple[tuple[int, str], ...]:
    """Sorts ports as a person does: 2A before 10A. Two names never sort as equals."""
    parts = re.findall(r"[0-9]+|[^0-9]+", port)
    named = [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]
    return (*named, (-2, port))  # distinguishes "01" from "1"


def circuit_order(circuit: Circuit) -> tuple[tuple[tuple[int, str], ...], ...]:
    return port_order(circuit.ingress), port_order(circuit.egress)


def describe_ports(ports: Iterable[str]) -> str:
    """`ports 1A, 1B, 2A`, shortened if there are many; `no ports` if there are none."""
    names = sorted(ports, key=port_order)
    shown = ", ".join(names[:8])
    if not names:
        return "no ports"
    return f"ports {shown}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")
