"""The contract of circuit switch drivers, independent of the protocol of the device.

Optical circuit switches, robotic patch panels, a person at a patch panel and their in-memory twin
are all one thing here: a device with ports and circuits. How a change is made safely (fence,
snapshot, roll back, read back) is the same for all and lies in `configure`, not in the drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch_topoopt.fabric.switches.circuits import Circuit, Difference, duplex_circuit
from torch_topoopt.links.errors import FabricError


class SwitchError(FabricError):
    """A device that did not do as asked; the message names the device and what it said."""


class SwitchUnreachable(SwitchError):  # noqa: N818 - what it is, rather than "UnreachableError"
    """No connection, or it broke: the device's state is unknown."""


class AuthenticationFailed(SwitchError):  # noqa: N818
    """The device refused the user or the password, which the message never contains."""


class NotSettled(SwitchError):  # noqa: N818
    """Circuits that the device accepted and that do not carry light in time."""

    def __init__(self, message: str, circuits: Iterable[Circuit]) -> None:
        super().__init__(message)
        self.circuits = frozenset(circuits)


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a device. `settle_s` is the vendor's time for a change.

    `ports` are the names of all its ports; on a simplex switch `ingress` and `egress` say which
    end of a circuit each may be, on a duplex one both hold all ports. `bulk`: one request changes
    many circuits.
    """

    ports: tuple[str, ...]
    ingress: frozenset[str]
    egress: frozenset[str]
    duplex: bool
    bulk: bool
    settle_s: float


# done circuits, of how many, and what is happening
Progress = Callable[[int, int, str], None]


class CircuitSwitch(Protocol):
    """Controls one device. Methods raise SwitchError (or one of its kinds) and nothing else.

    A driver connects when it first must, keeps no state of its own that the device could
    contradict, and never asks a device to remove circuits beyond those in the call.
    """

    name: str

    def capabilities(self) -> Capabilities: ...

    def fibres(self, port: str) -> tuple[str, str]:
        """The ports (transmit side, receive side) of the device that the cable of `port` uses.

        `port` is what is printed beside the socket: "3". On a duplex switch both are "3"; a
        cable between two sockets then is one circuit, otherwise two (transmit to receive, both
        ways).
        """
        ...

    def circuits(self) -> frozenset[Circuit]:
        """All circuits that are configured, of all users."""
        ...

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        """Asks the device for the change and returns once it has accepted it.

        Idempotent: removing a circuit that is gone, or adding one that is there, changes nothing.
        """
        ...

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        """Returns when all of `circuits` carry light; raises NotSettled naming those that do not.

        Always asks the device: one that answers "done" and did nothing is found here.
        """
        ...

    def close(self) -> None:
        """Ends the connection; harmless if there is none."""
        ...


def cable_circuits(switch: CircuitSwitch, a: str, b: str) -> tuple[Circuit, ...]:
    """The circuits that make a duplex cable between the sockets `a` and `b` of a switch."""
    if switch.capabilities().duplex:
        return (duplex_circuit(switch.fibres(a)[0], switch.fibres(b)[0]),)
    a_transmit, a_receive = switch.fibres(a)
    b_transmit, b_receive = switch.fibres(b)
    return Circuit(a_transmit, b_receive), Circuit(b_transmit, a_receive)
