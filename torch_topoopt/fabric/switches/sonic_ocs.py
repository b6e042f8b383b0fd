"""Driver of optical circuit switches that run SONiC-OCS, over RESTCONF.

Written from the public `sonic-ocs.yang` (revision 2024-11-21) of the OCS prototype of SONiC, its
demo instructions with their table of port conflicts, and the OCS high level design
(sonic-net/SONiC#2269). Ports are simplex: light enters at `<n>A` and leaves at `<n>B`. Socket n
therefore is `<n>A` (what the server transmits) and `<n>B` (what it receives), and a cable between
two sockets is two cross-connects.

Two facts of that table shape this driver. Adding one cross-connect whose port is taken leaves it
`invalid`, but adding two or more of them takes the ports away from their present circuits: so
nothing is ever added onto a port that is in use. And adding an id that exists changes
nothing on the hardware: so one that is `invalid` is deleted and added in one request.

Every request may arrive twice: deleting an id that is gone is skipped, and adding one that exists
changes nothing. So a request whose connection broke is just sent again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    circuit_order,
    describe_ports,
    port_order,
)
from torch_topoopt.fabric.switches.open_switch import read_options
from torch_topoopt.fabric.switches.restconf import RestconfOptions, RestconfSession
from torch_topoopt.fabric.switches.switch import Capabilities, NotSettled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.fabric.clock import Clock
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.credentials import PasswordSource
    from torch_topoopt.fabric.switches.circuits import Difference
    from torch_topoopt.fabric.switches.switch import Progress

_DATA = "/restconf/data/sonic-ocs:sonic-ocs/"
_BULK_UPDATE = "/restconf/operations/sonic-ocs:bulk-update"
_PORT = re.compile(r"(\d+)([AB])")
_SETTLE_S = 60.0  # no public figure; sonic-mgmt asks 12 times, 5 s apart, before it gives up
_OPTIONS = {
    "ca_file": str,
    "insecure": bool,
    "timeout_s": float,
    "patience_s": float,
    "poll_s": float,
}
_OVERRIDES = frozenset({"force_blocked", "powered_off"})


@dataclass(frozen=True)
class _Entry:
    """One cross-connect of the device. Without `configured` it is only in the state table."""

    key: str
    circuit: Circuit
    configured: bool
    status: str | None

    @property
    def settings(self) -> dict[str, str]:
        a_side, b_side = self.circuit.ports
        return {"cross_connect_id": self.key, "a_side": a_side, "b_side": b_side}


class SonicOcs:
    """One SONiC-OCS device; see RestconfSession for address, user, password and options.

    While it waits, it asks every `poll_s` seconds.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        user: str | None = None,
        password: PasswordSource | None = None,
        options: RestconfOptions | None = None,
        poll_s: float = 0.5,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._session = RestconfSession(
            name, address, user=user, password=password, options=options, clock=clock
        )
        self._poll_s = poll_s
        self._ports: tuple[str, ...] = ()
        self._known: frozenset[str] = frozenset()

    def capabilities(self) -> Capabilities:
        ports = self._all_ports()
        return Capabilities(
            ports=ports,
            ingress=frozenset(port for port in ports if port.endswith("A")),
            egress=frozenset(port for port in ports if port.endswith("B")),
            duplex=False,
            bulk=True,
            settle_s=_SETTLE_S,
        )

    def fibres(self, port: str) -> tuple[str, str]:
        ends = (f"{port}A", f"{port}B")
        self._all_ports()
        for end in ends:
            if end not in self._known:
                raise self._session.failure(
                    f"socket {port!r}: there is no port {end} "
                    f"(it has {describe_ports(self._all_ports())})"
                )
        return ends

    def circuits(self) -> frozenset[Circuit]:
        """All that are configured, `invalid` ones too, and those that only the hardware has."""
        return frozenset(entry.circuit for entry in self._entries())

    def apply(self, difference: Difference, progress: Progress | None = None) -> None:
        entries = self._entries()
        leave = [e for e in entries if e.circuit in difference.remove]
        present = {e.circuit for e in entries if e.configured and e not in leave}
        add = [c for c in difference.add if c not in present]
        self._check_free(add, [e for e in entries if e not in leave])
        if left_over := [e for e in leave if not e.configured]:
            # no id in the configuration, nothing to delete: it must be there first
            self._bulk_update((), [e.settings for e in left_over])
        steps = len(leave) + len(add)
        if progress is not None:
            progress(0, steps, "one request for all")
        if steps:
            self._bulk_update([e.key for e in leave], [_new(c).settings for c in add])
        if progress is not None:
            progress(steps, steps, "accepted")

    def wait_settled(
        self, circuits: Iterable[Circuit], timeout_s: float, progress: Progress | None = None
    ) -> None:
        circuits = frozenset(circuits)
        clock = self._session.clock
        deadline = clock.now() + timeout_s
        renewed = False
        while circuits:
            late = clock.now() >= deadline  # before asking: what settled in time is seen
            entries = {e.circuit: e for e in self._entries()}
            invalid = [e for c, e in entries.items() if c in circuits and e.status == "invalid"]
            if invalid and not renewed:
                renewed = True
                self._renew(invalid)
                continue
            dark = self._dark(circuits, entries)
            if progress is not None:
                progress(len(circuits) - len(dark), len(circuits), "settling")
            if not dark:
                return
            if late:
                raise self._not_settled(dark, timeout_s)
            clock.sleep(self._poll_s)

    def close(self) -> None:
        self._session.close()

    def _all_ports(self) -> tuple[str, ...]:
        """As built, so asked once."""
        if not self._ports:
            # the state table lists all ports that were built, the configuration perhaps fewer
            rows = self._table("OCS_PORT_TABLE") or self._table("OCS_PORT")
            if not rows:
                raise self._session.failure("has no ports; is it an optical circuit switch?")
            for row in rows:
                if not _PORT.fullmatch(row["simplex_port_id"]):
                    raise self._session.failure(
                        f"port {row['simplex_port_id']!r} is neither <n>A nor <n>B"
                    )
            self._ports = tuple(sorted((r["simplex_port_id"] for r in rows), key=port_order))
            self._known = frozenset(self._ports)
        return self._ports

    def _entries(self) -> list[_Entry]:
        self._all_ports()  # a device without the model must not look like one without circuits
        status = {
            row["cross_connect_id"]: row.get("status")
            for row in self._table("OCS_CROSS_CONNECT_TABLE")
        }
        entries = {}
        for row in self._table("OCS_CROSS_CONNECT"):
            key = row["cross_connect_id"]
            sides = row.get("a_side"), row.get("b_side")
            circuit = Circuit(*map(str, sides)) if all(sides) else self._circuit_of(key)
            entries[key] = _Entry(key, circuit, True, status.get(key))
        for key, state in status.items():
            if key not in entries and state == "enabled":
                entries[key] = _Entry(key, self._circuit_of(key), False, state)
        return list(entries.values())

    def _circuit_of(self, key: str) -> Circuit:
        a_side, dash, b_side = key.partition("-")
        if not (dash and _PORT.fullmatch(a_side) and _PORT.fullmatch(b_side)):
            raise self._session.failure(f"cross-connect {key!r} does not say which ports it joins")
        return Circuit(a_side, b_side)

    def _table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table, each with its key; none if the device has nothing in it."""
        document = self._session.get(_DATA + name)
        kind = "OCS_PORT" if name.startswith("OCS_PORT") else "OCS_CROSS_CONNECT"
        key = "simplex_port_id" if kind == "OCS_PORT" else "cross_connect_id"
        try:
            rows = (document or {}).get(f"sonic-ocs:{name}", {}).get(f"{kind}_LIST", [])
            if all(isinstance(row[key], str) for row in rows):
                return list(rows)
        except (AttributeError, KeyError, TypeError):
            pass
        raise self._session.failure(f"{name} is not as sonic-ocs.yang describes it")

    def _check_free(self, add: Iterable[Circuit], stay: Iterable[_Entry]) -> None:
        """A circuit to be added must not need a port of one that stays: see the module."""
        holders = {port: e for e in stay for port in e.circuit.ports}
        for circuit in add:
            for port in circuit.ports:
                if port in holders and holders[port].circuit != circuit:
                    raise self._session.failure(
                        f"{circuit} needs port {port}, which cross-connect {holders[port].key} "
                        "uses; nothing was changed"
                    )

    def _bulk_update(self, delete: Iterable[str], add: Iterable[dict[str, str]]) -> None:
        body = {"sonic-ocs:input": {"delete": list(delete), "add": list(add)}}
        answer = self._session.post(_BULK_UPDATE, body)
        output = answer.get("sonic-ocs:output") if isinstance(answer, dict) else None
        failed = output.get("failed_keys") if isinstance(output, dict) else None
        if failed:
            raise self._session.failure(f"bulk-update failed for {', '.join(map(str, failed))}")

    def _renew(self, invalid: Iterable[_Entry]) -> None:
        """One request each: alone, an added cross-connect never takes a port from another."""
        for entry in invalid:
            self._bulk_update([entry.key], [entry.settings])

    def _dark(
        self, circuits: Iterable[Circuit], entries: dict[Circuit, _Entry]
    ) -> dict[Circuit, str]:
        """The circuits that do not carry light yet, and why."""
        states = {row["simplex_port_id"]: row for row in self._table("OCS_PORT_TABLE")}
        reasons = {}
        for circuit in circuits:
            entry = entries.get(circuit)
            if entry is None:
                reasons[circuit] = "not configured (any more)"
            elif entry.status != "enabled":
                reasons[circuit] = entry.status or "no status"
            elif reason := _port_trouble(circuit, states):
                reasons[circuit] = reason
        return reasons

    def _not_settled(self, dark: dict[Circuit, str], timeout_s: float) -> NotSettled:
        overrides = {
            row["simplex_port_id"]: override
            for row in self._table("OCS_PORT")
            if (override := _override(row)) in _OVERRIDES
        }
        reasons = []
        for circuit in sorted(dark, key=circuit_order):
            reason = dark[circuit]
            for port in circuit.ports:
                if port in overrides:
                    reason += f"; port {port} is configured {overrides[port]}"
            reasons.append(f"{circuit} ({reason})")
        message = f"no light after {timeout_s:g} s on {', '.join(reasons)}"
        return NotSettled(str(self._session.failure(message)), dark)


def from_entry(entry: SwitchEntry) -> SonicOcs:
    """The driver of a `sonic-ocs` entry; raises DocumentError, SwitchError."""
    options = read_options(entry, _OPTIONS)
    poll_s = options.pop("poll_s", 0.5)
    return SonicOcs(
        entry.name,
        entry.address,
        user=entry.user,
        password=entry.password,
        options=RestconfOptions(**options),
        poll_s=poll_s,
    )


def _new(circuit: Circuit) -> _Entry:
    return _Entry(str(circuit), circuit, True, None)


def _override(row: dict[str, Any]) -> str:
    """The field is `config_status` in the model of the management framework, `state` in others."""
    return str(row.get("config_status", row.get("state", "normal"))).replace("-", "_")


def _port_trouble(circuit: Circuit, states: dict[str, dict[str, Any]]) -> str | None:
    """Why the port table says that there is no light; devices may leave its fields out."""
    for port, other in (circuit.ports, circuit.ports[::-1]):
        row = states.get(port, {})
        status = row.get("oper_status")
        if status is not None and status != "connected":
            return f"port {port} is {status}"
        target = row.get("target_simplex_port_id")
        if target and target != other:
            return f"port {port} leads to {target}"
    return None
