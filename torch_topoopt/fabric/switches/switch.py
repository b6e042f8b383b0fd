"""The contract of circuit switch drivers, independent of the protocol of the device.

Optical circuit switches, robotic patch panels, a person at a patch panel and the in-memory switch
are all devices with ports and circuits. `configure` makes changes safe for all of them (fence,
snapshot, roll back, read back); drivers do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch_topoopt.fabric.switches.circuits import Circuit, Difference, duplex_circuit
from torch_topoopt.links.errors import FabricError


class SwitchError(FabricError):
    """A device did not do as requested; the message has the device's name and answer."""


class SwitchUnreachable(SwitchError):  # noqa: N818 - what it is, rather than "UnreachableError"
    """No connection, or it broke: the device's state is unknown."""


class AuthenticationFailed(SwitchError):  # noqa: N818
    """The device refused the user or the password, which the message never contains."""


class NotSettled(SwitchError):  # noqa: N818
    """The device accepted circuits that did not come up in time."""

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


# finished circuits, all circuits, and the current action
Progress = Callable[[int, int, str], None]


class CircuitSwitch(Protocol):
    """Controls one device. Methods raise SwitchError (or one of its kinds) and nothing else.

    A driver connects on demand, caches no state that the device could contradict, and removes no
    circuits beyond those in the call.
    """

    name: str

    def capabilities(self) -> Capabilities: ...

    def fibres(self, port: str) -> tuple[str, str]:
        """The ports (transmit side, receive side) of the device that the cable of `port` uses.

        `port` is the label of the socket: "3". On a duplex switch both are "3", and a cable between
        two sockets is one circuit; otherwise it is two (transmit to receive, both ways).
        """
        ...

    def circuits(self) -> frozenset[Circuit]:
        """All circuits that are configured, of all users."""
        ...

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        """Requests the change and returns when the device has accepted it.

        Idempotent: removing a missing circuit, or adding an existing one, changes nothing.
        """
        ...

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        """Returns when all of `circuits` are up; raises NotSettled naming those that are not.

        Always reads the device, which may have answered "done" without a change.
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
