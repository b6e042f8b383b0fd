"""Notices circuits that go dark while a job uses them, on any switch.

A switch that notifies has its own watch (fabric/netns/switch.py). Others are read now and then.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Protocol

from torch_topoopt.fabric.switches.switch import NotSettled, SwitchUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.fabric.switches.circuits import Circuit
    from torch_topoopt.fabric.switches.switch import CircuitSwitch

_PERIOD_S = 1.0


class LightWatch(Protocol):
    """Watches the circuits of one switch."""

    def events(self) -> socket.socket:
        """Readable when circuits may have failed; the caller reads and closes it."""
        ...

    def dark(self, circuits: Iterable[Circuit]) -> frozenset[Circuit]:
        """Those of `circuits` that are down."""
        ...


class PolledLight:
    """The watch of a switch without notifications: it is read every `period_s`.

    A device that does not answer may still carry light, so none of its circuits count as dark.
    """

    def __init__(self, switch: CircuitSwitch, period_s: float = _PERIOD_S) -> None:
        self._switch = switch
        self._period_s = period_s

    def events(self) -> socket.socket:
        reader, writer = socket.socketpair()

        def poke() -> None:
            over = threading.Event()
            with writer:
                while not over.wait(self._period_s):
                    try:
                        writer.send(b".", socket.MSG_DONTWAIT)
                    except BlockingIOError:
                        continue  # unread ones are enough
                    except OSError:
                        return  # the reader was closed

        threading.Thread(target=poke, name="light", daemon=True).start()
        return reader

    def dark(self, circuits: Iterable[Circuit]) -> frozenset[Circuit]:
        try:
            self._switch.wait_settled(circuits, 0.0)
        except NotSettled as error:
            return error.circuits
        except SwitchUnreachable:
            return frozenset()
        return frozenset()
