"""The cross-connects of an emulated SONiC-OCS device; sonic_ocs_server is its server.

What happens on port conflicts follows the summary table of the public demo instructions of the OCS
prototype of SONiC. Not from public text: the path `disabled`, `enabled`, `tuning`, `connected` of a
new cross-connect takes `settle_s`, and what one request with both new and existing ids does
(counted here: the new ones).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_topoopt.fabric.switches.circuits import Circuit

if TYPE_CHECKING:
    from collections.abc import Iterable

Config = dict[str, tuple[str, str]]  # cross_connect_id -> (a_side, b_side)


@dataclass
class _Light:
    """The hardware's cross-connect; `valid` is False once its port was taken."""

    circuit: Circuit
    enabled_at: float
    connected_at: float
    valid: bool = True


@dataclass
class OcsDevice:
    """The switch: `config` is its CONFIG_DB, `light` its hardware. Methods hold `lock`."""

    size: int = 8
    settle_s: float = 0.02
    port_field: str = "config_status"  # "state" in other versions of the model
    port_table: bool = True
    config: Config = field(default_factory=dict)
    saved: Config = field(default_factory=dict)
    light: dict[str, _Light] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    broken: set[Circuit] = field(default_factory=set)
    ignoring: bool = False
    fails_after: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def ports(self) -> list[str]:
        return [f"{n}{side}" for n in range(1, self.size + 1) for side in "AB"]

    def circuits(self) -> frozenset[Circuit]:
        """The configured cross-connects, seen from beside the device."""
        with self.lock:
            return frozenset(Circuit(a, b) for a, b in self.config.values())

    def status(self) -> dict[str, str]:
        """cross_connect_id -> enabled, disabled or invalid."""
        with self.lock:
            return {key: self._status(light) for key, light in self.light.items()}

    def save(self) -> None:
        """`config save`: the state after a restart."""
        with self.lock:
            self.saved = dict(self.config)

    def restart(self) -> None:
        with self.lock:
            self.config = {}
            self.light = {}
            self.bulk_update((), [(key, *sides) for key, sides in self.saved.items()])

    def bulk_update(
        self, delete: Iterable[str], add: Iterable[tuple[str, str, str]]
    ) -> tuple[int, int, list[str]]:
        """(deleted, added, failed ids); `add` holds (id, a_side, b_side)."""
        with self.lock:
            if self.ignoring:
                return len(list(delete)), len(list(add)), []
            deleted, added, failed = 0, 0, []
            for key in delete:
                if key not in self.config:
                    continue  # skipped, as documented
                if self._breaks_off():
                    failed.append(key)
                    continue
                del self.config[key]
                self.light.pop(key, None)
                deleted += 1
            created = []
            for key, a_side, b_side in add:
                known = {a_side, b_side} <= set(self.ports)
                if not known or a_side[-1] != "A" or b_side[-1] != "B" or self._breaks_off():
                    failed.append(key)
                    continue
                added += 1
                if key not in self.light:  # an existing id takes the update path: no hardware
                    created.append((key, Circuit(a_side, b_side)))
                self.config[key] = (a_side, b_side)
            self._create(created)
            return deleted, added, failed

    def leave_in_hardware(self, circuit: Circuit) -> None:
        """A stale entry: light, and an entry in the state table, that no configuration asks for."""
        with self.lock:
            self._create([(str(circuit), circuit)])

    def _breaks_off(self) -> bool:
        if self.fails_after is None:
            return False
        self.fails_after -= 1
        return self.fails_after < 0

    def _create(self, created: list[tuple[str, Circuit]]) -> None:
        """Alone, a new cross-connect yields to the one on its port; two or more take it away."""
        now = time.monotonic()
        for key, circuit in created:
            light = _Light(circuit, now + self.settle_s / 2, now + self.settle_s)
            rivals = [
                other
                for other in self.light.values()
                if other.valid and set(other.circuit.ports) & set(circuit.ports)
            ]
            if rivals and len(created) == 1:
                light.valid = False
            else:
                for rival in rivals:
                    rival.valid = False
            self.light[key] = light

    def _status(self, light: _Light) -> str:
        if not light.valid:
            return "invalid"
        blocked = any(self._override(port) != "normal" for port in light.circuit.ports)
        if blocked or light.circuit in self.broken or time.monotonic() < light.enabled_at:
            return "disabled"
        return "enabled"

    def _override(self, port: str) -> str:
        return self.overrides.get(port, "normal")

    def port_rows(self) -> list[dict[str, str]]:
        """OCS_PORT."""
        return [
            {
                "simplex_port_id": port,
                "label": f"label of {port}",
                self.port_field: self._override(port),
            }
            for port in self.ports
        ]

    def port_state_rows(self) -> list[dict[str, str]]:
        """OCS_PORT_TABLE."""
        with self.lock:
            leads = {}
            for light in self.light.values():
                if light.valid:
                    a_side, b_side = light.circuit.ports
                    leads |= {a_side: (b_side, light), b_side: (a_side, light)}
            rows = []
            for port in self.ports:
                row = {"simplex_port_id": port, "connector_type": "Duplex LC", "connector_pin": "0"}
                status = "blocked" if self._override(port) != "powered_off" else "powered_off"
                if port in leads:
                    row["target_simplex_port_id"] = leads[port][0]
                    light = leads[port][1]
                    if self._override(port) == "normal":
                        tuned = time.monotonic() >= light.connected_at
                        dark = light.circuit in self.broken
                        status = "connected" if tuned and not dark else "tuning"
                rows.append(row | {"oper_status": status})
            return rows
