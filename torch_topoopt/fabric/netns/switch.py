"""An emulated optical switch: circuits between veth ends in a namespace, moved while hosts run.

Each host's port is a veth whose far end `socketN` lies in the switch's namespace. A simplex circuit
3A-5B is a rule at the ingress of `socket3` that redirects every frame to `socket5`; frames without
a rule are dropped. As with mirrors, a circuit is first set (a rule without an action) and is up
after the reconfiguration delay. The kernel holds all state, so a later driver finds the circuits
and finishes those in motion.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
from typing import TYPE_CHECKING

from torch_topoopt.fabric.clock import Clock, SystemClock
from torch_topoopt.fabric.netns import filters as netns_filters
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.switches.circuits import Circuit, Difference, circuit_order
from torch_topoopt.fabric.switches.switch import (
    Capabilities,
    NotSettled,
    SwitchError,
    SwitchUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch_topoopt.fabric.switches.switch import Progress

_POLL_S = 0.005
_UP, _RUNNING = 0x1, 0x40  # IFF_UP, IFF_RUNNING
_CHANGES = 0x1 | 0x8  # RTMGRP_LINK, RTMGRP_TC
_SOCKET = re.compile(r"socket(\d+)")

_Sockets = dict[str, tuple[int, bool]]  # socket -> (index of its interface, whether light passes)
_Rules = dict[str, list[netns_filters.Rule]]  # socket -> what is redirected at its ingress


class NetnsSwitch:
    """The switch in `namespace`; each interface there is a socket.

    A mirror moves in `delay_s`. Raises SwitchUnreachable if there is no namespace.
    """

    def __init__(
        self,
        namespace: str,
        *,
        name: str = "netns",
        delay_s: float = 0.025,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.delay_s = delay_s
        self._namespace = namespace
        self._clock = SystemClock() if clock is None else clock
        self._moving = threading.Lock()
        self._filters: netns_filters.FilterSocket | None = None  # while circuits are changed
        self._timers: set[threading.Timer] = set()
        dark = [circuit for circuit, lit in self._read().items() if not lit]
        self._light_later(dark)

    def capabilities(self) -> Capabilities:
        sockets = sorted(self._sockets(), key=int)
        ingress, egress = [f"{s}A" for s in sockets], [f"{s}B" for s in sockets]
        return Capabilities(
            ports=(*ingress, *egress),
            ingress=frozenset(ingress),
            egress=frozenset(egress),
            duplex=False,
            bulk=False,
            settle_s=self.delay_s,
        )

    def fibres(self, port: str) -> tuple[str, str]:
        if port not in self._sockets():
            raise SwitchError(f"{self.name}: port {port!r} is not one of its sockets")
        return f"{port}A", f"{port}B"

    def circuits(self) -> frozenset[Circuit]:
        return frozenset(self._read())

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        steps = (*difference.remove, *difference.add)
        added = []
        try:
            with self._changing() as (sockets, rules):
                used = set(_circuits_of(sockets, rules))
                for done, circuit in enumerate(steps):
                    ingress, _ = self._ends(circuit, sockets)
                    if circuit in difference.remove:
                        self._remove(circuit, ingress, used)
                    elif self._set(circuit, ingress, used):
                        added.append(circuit)
                    if progress is not None:
                        progress(done + 1, len(steps), str(circuit))
        finally:
            self._light_later(added)

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        wanted = set(circuits)
        deadline = self._clock.now() + timeout_s
        for timer in tuple(self._timers):  # reading while mirrors move would only slow them down
            timer.join(timeout_s)
        while True:
            lit = {circuit for circuit, lit in self._read().items() if lit}
            dark = wanted - lit
            if progress is not None:
                progress(len(wanted) - len(dark), len(wanted), "settling")
            if not dark:
                return
            if self._clock.now() >= deadline:
                names = ", ".join(str(c) for c in sorted(dark, key=circuit_order))
                raise NotSettled(f"{self.name}: no light on {names} after {timeout_s:g} s", dark)
            self._clock.sleep(_POLL_S)

    def events(self) -> socket.socket:
        """A kernel socket, readable when ports or circuits have changed; the caller closes it."""

        def open_socket() -> socket.socket:
            kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            kernel.bind((0, _CHANGES))
            return kernel

        with self._reached():
            return netns_kernel.inside(self._namespace, open_socket)

    def dark(self, circuits: Iterable[Circuit]) -> frozenset[Circuit]:
        """The circuits that are down, or whose host's port is down."""
        with self._device() as filters:
            sockets = _sockets(filters, _UP | _RUNNING)
            known = _circuits_of(sockets, _rules(filters, sockets))
        return frozenset(circuit for circuit in circuits if not known.get(circuit, False))

    def close(self) -> None:
        """Waits for moving mirrors, then closes."""
        for timer in tuple(self._timers):
            timer.join()

    @contextlib.contextmanager
    def _device(self) -> Iterator[netns_filters.FilterSocket]:
        """Filters of the switch's namespace; turns their errors into SwitchError."""
        with self._reached(), netns_filters.FilterSocket(self._namespace) as filters:
            yield filters

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turns errors in the switch's namespace into SwitchError."""
        from pyroute2.netlink.exceptions import NetlinkError

        if not netns_kernel.exists(self._namespace):
            raise SwitchUnreachable(f"{self.name}: there is no namespace {self._namespace}")
        try:
            yield
        except (NetlinkError, OSError) as error:
            raise SwitchUnreachable(f"{self.name}: {error}") from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[_Sockets, _Rules]]:
        """Sockets and rules, locked against other changes in this process.

        One connection reads and changes them, because opening one takes longer than a change.
        """
        with self._moving, self._device() as self._filters:
            try:
                sockets = _sockets(self._filters)
                yield sockets, _rules(self._filters, sockets)
            finally:
                self._filters = None

    def _sockets(self) -> _Sockets:
        with self._device() as filters:
            return _sockets(filters)

    def _read(self) -> dict[Circuit, bool]:
        """Circuits -> whether they carry light."""
        with self._device() as filters:
            sockets = _sockets(filters)
            return _circuits_of(sockets, _rules(filters, sockets))

    def _set(self, circuit: Circuit, ingress: int, used: set[Circuit]) -> bool:
        """Sets a circuit that is still down; False if it exists."""
        if circuit in used:
            return False
        for port in circuit.ports:
            if any(port in other.ports for other in used):
                raise SwitchError(f"{self.name}: port {port} is in use")
        self._add_rule(netns_filters.Rule(ingress, None, _number(circuit.egress)))
        used.add(circuit)
        return True

    def _remove(self, circuit: Circuit, ingress: int, used: set[Circuit]) -> None:
        if circuit in used:
            self._delete_rule(ingress)
            used.discard(circuit)

    def _light_later(self, circuits: Iterable[Circuit]) -> None:
        """Starts a timer, because the device settles whether or not a caller waits."""
        circuits = list(circuits)
        if not circuits:
            return

        def arrive() -> None:
            try:
                with contextlib.suppress(SwitchError), self._changing() as (sockets, rules):
                    for circuit in circuits:
                        self._light(circuit, sockets, rules)
            finally:
                self._timers.discard(timer)

        timer = threading.Timer(self.delay_s, arrive)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def _light(self, circuit: Circuit, sockets: _Sockets, rules: _Rules) -> None:
        """Brings a circuit up, unless it was removed, or another process did so."""
        ingress, egress = self._ends(circuit, sockets)
        tag = _number(circuit.egress)
        near = circuit.ingress.removesuffix("A")
        if any(rule.tag == tag and rule.egress is None for rule in rules[near]):
            self._delete_rule(ingress)
            self._add_rule(netns_filters.Rule(ingress, egress, tag))

    def _ends(self, circuit: Circuit, sockets: _Sockets) -> tuple[int, int]:
        """The interfaces of a circuit; raises SwitchError if it is none of this switch."""
        near, far = circuit.ingress.removesuffix("A"), circuit.egress.removesuffix("B")
        of_sockets = near in sockets and far in sockets
        if not of_sockets or circuit != Circuit(f"{near}A", f"{far}B"):
            raise SwitchError(f"{self.name}: {circuit} is not a circuit from ingress to egress")
        return sockets[near][0], sockets[far][0]

    def _add_rule(self, rule: netns_filters.Rule) -> None:
        assert self._filters is not None
        self._filters.add(rule)

    def _delete_rule(self, ingress: int) -> None:
        assert self._filters is not None
        try:
            self._filters.delete(ingress)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def _sockets(filters: netns_filters.FilterSocket, needed: int = _UP) -> _Sockets:
    found = {}
    for name, (index, flags) in filters.interfaces().items():
        match = _SOCKET.fullmatch(name)
        if match:
            found[match[1]] = (index, flags & needed == needed)
    return found


def _rules(filters: netns_filters.FilterSocket, sockets: _Sockets) -> _Rules:
    return {name: filters.rules(index) for name, (index, _) in sockets.items()}


def _circuits_of(sockets: _Sockets, rules: _Rules) -> dict[Circuit, bool]:
    """Circuits -> whether they carry light: the mirror has arrived and both fibres are in."""
    numbers = {index: name for name, (index, _) in sockets.items()}
    found = {}
    for name, (_, up) in sockets.items():
        for rule in rules[name]:
            far = str(rule.tag)
            arrived = rule.egress is not None and numbers.get(rule.egress) == far
            both_in = up and far in sockets and sockets[far][1]
            found[Circuit(f"{name}A", f"{far}B")] = arrived and both_in
    return found


def _number(port: str) -> int:
    """Of the socket that a port (3A, 3B) belongs to."""
    return int(port[:-1])
