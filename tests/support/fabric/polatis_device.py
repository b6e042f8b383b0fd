"""A Polatis switch as its test server sees it: state, physics and faults.

After the vendor's public YANG (optical-switch, polatis-switch): N inputs 1..N, N outputs N+1..2N,
cross-connects keyed by input, port status, optical power, users in groups, sub-switches, start-up
mode. What it takes to make it misbehave is at the top of `PolatisDevice`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.fabric.device_server import DeviceServer

from torch_topoopt.fabric.switches.circuits import Circuit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LASER_DBM = -3.0
LOSS_DB = 1.25
DARK_DBM = -66.0


class DeviceError(Exception):
    """A request that the switch refuses, with the error-tag of RFC 6241 and RFC 8040."""

    def __init__(self, tag: str, message: str) -> None:
        super().__init__(message)
        self.tag = tag


class ConnectionCut(Exception):  # noqa: N818
    """The device goes away in the middle of a request: no answer, the connection ends."""


@dataclass
class Subswitch:
    users: frozenset[str]
    ports: frozenset[int]


@dataclass
class PolatisDevice:
    """Faults: `broken` pairs are accepted and stay dark; `status` of ports (FAILED, DISABLED);
    `ignores`: says yes and does nothing; `cut_after` more changed circuits the connection breaks,
    `reboot_after` more it restarts for `reboot_s`; `steals`: a port in use goes to the last client
    that asks; `before_request`: an event elsewhere just before a request (or a line) is handled.
    """

    size: int = 8
    outputs: int | None = None
    model: str | None = None
    settle_s: float = 0.02
    preserves: bool = True
    old_yang: bool = False  # before 2017-08-04: `pairs`, and `ports` for status and power
    users: dict[str, str] = field(default_factory=lambda: {"admin": "root"})
    viewers: set[str] = field(default_factory=set)
    subswitches: dict[str, Subswitch] = field(default_factory=dict)
    hides: bool = True  # the ports of other sub-switches
    monitors: bool = True
    lasers: set[int] | None = None  # inputs that receive light; None: all
    broken: set[tuple[int, int]] = field(default_factory=set)
    status: dict[int, str] = field(default_factory=dict)
    ignores: bool = False
    cut_after: int | None = None
    reboot_after: int | None = None
    reboot_s: float = 0.3
    steals: bool = True
    before_request: Callable[[str], object] = lambda request: None
    changes: list[str] = field(default_factory=list)  # "+1-9", "-1-9", as they happened

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.revision = 0
        self._ready_at: dict[tuple[int, int], float] = {}
        self._back_at = 0.0
        self.boots = 0
        if self.outputs is None:
            self.outputs = self.size
        if self.model is None:
            self.model = f"N-VST-{self.size}x{self.outputs}-LU1-DMHNV"

    # the view of a person beside the device

    def circuits(self) -> frozenset[Circuit]:
        with self.lock:
            return frozenset(Circuit(str(i), str(o)) for i, o in self._ready_at)

    def brake(self, circuit: Circuit) -> None:
        self.broken.add((int(circuit.ingress), int(circuit.egress)))

    def reboot(self) -> None:
        """Its network card restarts; without MODE_PRESERVE its circuits are gone."""
        with self.lock:
            self._back_at = time.monotonic() + self.reboot_s
            self.boots += 1
            if not self.preserves:
                self._ready_at.clear()

    def is_away(self) -> bool:
        return time.monotonic() < self._back_at

    # the interface for its protocols

    def ports(self, user: str | None) -> list[int]:
        assert self.outputs is not None
        every = range(1, self.size + self.outputs + 1)
        return [port for port in every if not self.hides or self.may_use(user, port)]

    def may_use(self, user: str | None, port: int) -> bool:
        if user is None or not self.subswitches or user == "admin":
            return True
        return any(user in s.users and port in s.ports for s in self.subswitches.values())

    def port_status(self, port: int) -> str:
        return self.status.get(port, "ENABLED")

    def powers(self, user: str | None) -> dict[int, float]:
        """Of the outputs: the monitors of this model are there."""
        if not self.monitors:
            return {}
        with self.lock:
            lit = {
                o: LASER_DBM - LOSS_DB
                for (i, o), ready_at in self._ready_at.items()
                if self._shines(i, o, ready_at)
            }
        return {p: lit.get(p, DARK_DBM) for p in self.ports(user) if p > self.size}

    def pairs(self, user: str | None) -> dict[int, int]:
        shown = set(self.ports(user))
        with self.lock:
            return {i: o for i, o in sorted(self._ready_at) if i in shown or o in shown}

    def made_at(self, ingress: int) -> float | None:
        """When the pair of this input was made; no two have the same time."""
        with self.lock:
            return next((at for pair, at in self._ready_at.items() if pair[0] == ingress), None)

    def connect(self, user: str | None, ingress: int, egress: int) -> None:
        """Raises DeviceError where it may or can not be; an existing pair stays as it is."""
        with self.lock:
            self._check(user, ingress, egress)
            taken = [p for p in self._ready_at if ingress in p or egress in p]
            if (ingress, egress) in taken:
                return
            if taken and not self.steals:
                port = ingress if ingress in taken[0] else egress
                raise DeviceError("in-use", f"Port {port} is already connected")
            self._count()
            if self.ignores:
                return
            for old in taken:
                self._drop(old)
            self._ready_at[ingress, egress] = time.monotonic() + self.settle_s
            self._record(f"+{ingress}-{egress}")

    def disconnect(self, user: str | None, ingress: int) -> bool:
        """Whether there was one."""
        with self.lock:
            there = [pair for pair in self._ready_at if pair[0] == ingress]
            if not there:
                return False
            self._check(user, *there[0])
            self._count()
            if not self.ignores:
                self._drop(there[0])
            return True

    def _check(self, user: str | None, ingress: int, egress: int) -> None:
        assert self.outputs is not None
        if user in self.viewers:
            raise DeviceError("access-denied", f"User {user} may only read")
        if not 1 <= ingress <= self.size or not self.size < egress <= self.size + self.outputs:
            raise DeviceError("invalid-value", f"Invalid port pair {ingress},{egress}")
        for port in (ingress, egress):
            if not self.may_use(user, port):
                raise DeviceError("access-denied", f"Port {port} is not in your sub-switch")

    def _drop(self, pair: tuple[int, int]) -> None:
        del self._ready_at[pair]
        self._record(f"-{pair[0]}-{pair[1]}")

    def _record(self, change: str) -> None:
        self.revision += 1
        self.changes.append(change)

    def _count(self) -> None:
        """Breaks off before a change, if it is time to."""
        if self.reboot_after is not None:
            self.reboot_after -= 1
            if self.reboot_after < 0:
                self.reboot_after = None
                self.reboot()
                raise ConnectionCut
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                self.cut_after = None
                raise ConnectionCut

    def _shines(self, ingress: int, egress: int, ready_at: float) -> bool:
        return (
            time.monotonic() >= ready_at
            and (ingress, egress) not in self.broken
            and (self.lasers is None or ingress in self.lasers)
            and all(self.port_status(p) in ("ENABLED", "UNSUPPORTED") for p in (ingress, egress))
        )


class PolatisServer(DeviceServer):
    """A server of a PolatisDevice on one of its protocols. `mute`: reads on, answers nothing."""

    def __init__(
        self, device: PolatisDevice, certificate: Path | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.device = device
        self.mute = False
        super().__init__(certificate, host)

    def is_away(self) -> bool:
        return self.device.is_away()


def data_tree(device: PolatisDevice, user: str) -> dict[str, Any]:
    """The view of `user`, by the names of the YANG."""
    ports = device.ports(user)
    powers = {port: f"{dbm:.2f}" for port, dbm in device.powers(user).items()}
    pairs = [{"ingress": i, "egress": o} for i, o in device.pairs(user).items()]
    tree: dict[str, Any] = {
        "product-information": {
            "manufacturer": "Polatis",
            "serial-number": "002414",
            "model-name": device.model,
            "software-version": "6.7.1.6",
        },
        "subswitches": {
            "subswitch": [
                {"sname": name, "username": sorted(s.users), "port-id": sorted(s.ports)}
                for name, s in device.subswitches.items()
            ]
        },
    }
    if device.old_yang:
        return tree | {
            "ports": {
                "port": [
                    {"port-id": port, "port-status": f"PO_{device.port_status(port)}"}
                    | ({"opm": {"power": powers[port]}} if port in powers else {})
                    for port in ports
                ]
            },
            "cross-connects": {"pairs": pairs} if pairs else {},
        }
    return tree | {
        "port-config": {
            "port": [
                {"port-id": port, "status": device.port_status(port), "label": ""} for port in ports
            ]
        },
        "opm-power": {"port": [{"port-id": p, "power": dbm} for p, dbm in powers.items()]},
        "cross-connects": {"pair": pairs} if pairs else {},
    }
