"""Polatis switches over RESTCONF (RFC 8040, JSON, Basic authentication).

    GET     /api/data/optical-switch:cross-connects           every pair (input, output)
    PUT     /api/data/optical-switch:cross-connects/pair=1    one more, If-None-Match: *
    DELETE  /api/data/optical-switch:cross-connects/pair=1    one less, If-Match: its tag

Circuits change one by one. A PUT of the whole map in one request would remove what other jobs
connected since it was read; even under If-Match it would race with devices that ignore that header.
A PUT of one pair can at worst take one input, and If-None-Match keeps it from that too. POST is not
used: one laboratory reports that what it creates vanishes after seconds. Nothing is sent twice: a
request without an answer is for `configure` to read back and undo.

Devices answer on plain http (port 80 or 8008) as delivered, so the address says so and
options.insecure agrees to it. Source: the vendor's YANG in ONOS, public clients and the
vendor's web pages. Revisions before 2017-08-04 say `pairs` for `pair`, and `ports` for what became
`port-config` and `opm-power`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.switches.open_switch import read_options
from torch_topoopt.fabric.switches.polatis import PolatisSwitch, size_of_model
from torch_topoopt.fabric.switches.restconf import (
    PreconditionFailed,
    RestconfOptions,
    RestconfSession,
)
from torch_topoopt.fabric.switches.switch import AuthenticationFailed, SwitchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.credentials import PasswordSource
    from torch_topoopt.fabric.switches.polatis import Pair

_DATA = "/api/data/optical-switch:"
_OPTIONS: dict[str, type] = {
    "ca_file": str,
    "insecure": bool,
    "timeout_s": float,
    "patience_s": float,
    "check_light": bool,
}


def polatis_restconf(
    name: str,
    address: str,
    *,
    user: str | None = None,
    password: PasswordSource | None = None,
    options: RestconfOptions | None = None,
    check_light: bool = True,
) -> PolatisSwitch:
    """The driver of the switch at `address`; see RestconfSession for the address and options."""
    options = RestconfOptions() if options is None else options
    session = RestconfSession(
        name,
        address,
        user=user,
        password=password,
        options=replace(options, patience_s=0.0),  # PolatisSwitch asks again, and only questions
    )
    return PolatisSwitch(
        RestconfDevice(session, user),
        restart_s=options.patience_s,
        check_light=check_light,
    )


def from_entry(entry: SwitchEntry) -> PolatisSwitch:
    """The driver of a `polatis-restconf` entry; raises DocumentError, SwitchError."""
    options = read_options(entry, _OPTIONS)
    check_light = options.pop("check_light", True)
    return polatis_restconf(
        entry.name,
        entry.address,
        user=entry.user,
        password=entry.password,
        options=RestconfOptions(**options),
        check_light=check_light,
    )


class RestconfDevice:
    """One switch, as `user` sees it."""

    def __init__(self, session: RestconfSession, user: str | None) -> None:
        self.name = session.name
        self._session = session
        self._user = user
        self._old_yang = False

    def size(self) -> tuple[int, int]:
        information = self._container("product-information")
        model = information.get("model-name")
        if not isinstance(model, str):
            raise self._session.failure(
                f"{_DATA}product-information has no model-name; is this a Polatis switch?"
            )
        return size_of_model(self.name, model)

    def allowed_ports(self) -> frozenset[int] | None:
        """The device's state without the ports of sub-switches that are not this user's."""
        self._old_yang = not self._container("port-config").get("port")
        shown = frozenset(self._ports_by_number())
        try:
            subswitches = self._entries("subswitches", "subswitch")
        except AuthenticationFailed:  # not for this user to see; what is shown is what is allowed
            return shown
        own = [s for s in subswitches if self._user in s.get("username", ())]
        if not own:
            return shown
        return shown & {int(port) for s in own for port in s.get("port-id", ())}

    def pairs(self) -> dict[int, int]:
        container = self._container("cross-connects")
        for spelling in ("pair", "pairs"):
            if container.get(spelling):
                self._old_yang = spelling == "pairs"
        return dict(self._pair(entry) for entry in container.get(self._list_name) or ())

    def statuses(self, ports: Sequence[int]) -> dict[int, str]:
        known = self._ports_by_number()
        return {port: _status(known[port]) for port in ports if port in known}

    def powers(self, ports: Sequence[int]) -> dict[int, float]:
        if self._old_yang:
            entries = [e | e.get("opm", {}) for e in self._ports_by_number().values()]
        else:
            entries = self._entries("opm-power", "port")
        try:
            measured = {int(e["port-id"]): float(e["power"]) for e in entries if "power" in e}
        except (KeyError, TypeError, ValueError):
            raise self._strange("opm-power", entries) from None
        return {port: measured[port] for port in ports if port in measured}

    def disconnect(self, pair: Pair) -> None:
        ingress = pair[0]
        path = self._path(ingress)
        found, tag = self._session.get_tagged(path)
        if found is None or pair not in self._read_list(found):
            return  # another client removed or replaced it since it was read
        try:
            self._session.delete(path, {"If-Match": tag} if tag is not None else None)
        except PreconditionFailed:
            raise SwitchError(
                f"{self.name}: another client changed the circuit of port {ingress} meanwhile; "
                "it was left as it is"
            ) from None

    def connect(self, pair: Pair) -> None:
        ingress, egress = pair
        body = {f"optical-switch:{self._list_name}": [{"ingress": ingress, "egress": egress}]}
        try:
            self._session.put(self._path(ingress), body, {"If-None-Match": "*"})
        except PreconditionFailed:
            raise SwitchError(
                f"{self.name}: port {ingress} is in use: another client connected it meanwhile"
            ) from None

    def close(self) -> None:
        self._session.close()

    @property
    def _list_name(self) -> str:
        return "pairs" if self._old_yang else "pair"

    def _path(self, ingress: int) -> str:
        return f"{_DATA}cross-connects/{self._list_name}={ingress}"

    def _ports_by_number(self) -> dict[int, dict[str, Any]]:
        container = "ports" if self._old_yang else "port-config"
        entries = self._entries(container, "port")
        try:
            return {int(entry["port-id"]): entry for entry in entries}
        except (KeyError, TypeError, ValueError):
            raise self._strange(container, entries) from None

    def _entries(self, container: str, name: str) -> list[dict[str, Any]]:
        entries = self._container(container).get(name) or []
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise self._strange(container, entries)
        return entries

    def _container(self, name: str) -> dict[str, Any]:
        """Empty where the device has no such data."""
        found = self._session.get(f"{_DATA}{name}")
        if found is None:
            return {}
        if not isinstance(found, dict) or len(found) != 1:
            raise self._strange(name, found)
        content = next(iter(found.values()))
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise self._strange(name, found)
        return {key.rpartition(":")[2]: value for key, value in content.items()}

    def _read_list(self, found: Any) -> list[Pair]:
        """The pairs of {"optical-switch:pair": [{...}]}; some devices leave the list out."""
        content = next(iter(found.values()), None) if isinstance(found, dict) else None
        entries = content if isinstance(content, list) else [content]
        return [self._pair(entry) for entry in entries]

    def _pair(self, entry: Any) -> Pair:
        try:
            return int(entry["ingress"]), int(entry["egress"])
        except (KeyError, TypeError, ValueError):
            raise self._strange("cross-connects", entry) from None

    def _strange(self, what: str, found: object) -> SwitchError:
        return self._session.failure(f"{_DATA}{what} is not as its YANG says: {str(found)[:200]}")


def _status(entry: dict[str, Any]) -> str:
    """Of a port in either YANG: ENABLED, PO_ENABLED."""
    status = entry.get("status", entry.get("port-status", "UNSUPPORTED"))
    return str(status).removeprefix("PO_")
