"""Polatis switches over NETCONF (RFC 6241, 1.0 and 1.1) on SSH, by ncclient.

    <get> with subtree filters    circuits, status and power of ports
    <lock> on running             no other client changes circuits between our reading and writing
    <edit-config> on running      <pair nc:operation="create"> or "delete"; many circuits at once

`create` fails where an input has a circuit, where `merge` (the default) would take it from its
owner. A device without locks is changed without. Where it offers :rollback-on-error a request that
fails half-way leaves nothing behind.

The device's host key must be known, from known_hosts, unless check_host_key is false. Source: the
vendor's YANG and the NETCONF driver in ONOS, and public ncclient scripts. Revisions before
2017-08-04 say `pairs` for `pair`, and `ports` for what became `port-config` and `opm-power`.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.clock import Clock, SystemClock
from torch_topoopt.fabric.switches.netconf import NetconfError, NetconfSession
from torch_topoopt.fabric.switches.open_switch import host_and_port, read_options
from torch_topoopt.fabric.switches.polatis import PolatisSwitch, size_of_model
from torch_topoopt.fabric.switches.ssh_shell import SshLogin
from torch_topoopt.fabric.switches.switch import (
    AuthenticationFailed,
    SwitchError,
    SwitchUnreachable,
)
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.switches.polatis import Pair

TCP_PORT = 830
_NAMESPACE = "http://www.polatis.com/yang/optical-switch"
_RENAMED = "2017-08-04"  # the revision in which `pairs` became `pair`
_LOCK_S = 10.0
_RETRY_S = 0.1
_OPTIONS: dict[str, type] = {
    "key_file": str,
    "known_hosts": str,
    "check_host_key": bool,
    "timeout_s": float,
    "restart_s": float,
    "check_light": bool,
}


def polatis_netconf(
    name: str,
    login: SshLogin,
    *,
    restart_s: float = 60.0,
    check_light: bool = True,
    lock_s: float = _LOCK_S,
    clock: Clock | None = None,
) -> PolatisSwitch:
    """The driver of the switch that `login` reaches; connects when it first must.

    It waits `lock_s` for others to release their lock.
    """
    clock = SystemClock() if clock is None else clock
    device = NetconfDevice(name, NetconfSession(name, login), login.user, lock_s, clock)
    return PolatisSwitch(device, clock=clock, restart_s=restart_s, check_light=check_light)


def from_entry(entry: SwitchEntry) -> PolatisSwitch:
    """The driver of a `polatis-netconf` entry; raises DocumentError."""
    if entry.user is None:
        raise DocumentError(f"switch {entry.name}: user: NETCONF needs one")
    options = read_options(entry, _OPTIONS)
    own = {key: options.pop(key) for key in ("restart_s", "check_light") if key in options}
    host, port = host_and_port(entry, TCP_PORT)
    login = SshLogin(host, port, entry.user, entry.password, **options)
    return polatis_netconf(entry.name, login, **own)


class NetconfDevice:
    """One switch, as `user` sees it."""

    batch = 1000

    def __init__(
        self, name: str, session: NetconfSession, user: str, lock_s: float, clock: Clock
    ) -> None:
        self.name = name
        self._session = session
        self._user = user
        self._lock_s = lock_s
        self._clock = clock

    def size(self) -> tuple[int, int]:
        found = self._get("product-information", {"model-name": None})
        models = [m.text for m in _children(found, "model-name")]
        if not models or not models[0]:
            raise SwitchError(
                f"{self.name}: no model-name in its product-information; is this a Polatis switch?"
            )
        return size_of_model(self.name, models[0])

    def allowed_ports(self) -> frozenset[int] | None:
        """The device's state without the ports of sub-switches that are not this user's."""
        shown = frozenset(self._port_leaves(None))
        try:
            subswitches = _children(self._get("subswitches", {}), "subswitch")
        except AuthenticationFailed:  # not for this user to see; what is shown is what is allowed
            return shown
        own = [s for s in subswitches if self._user in _texts(s, "username")]
        if not own:
            return shown
        return shown & {int(port) for s in own for port in _texts(s, "port-id")}

    def pairs(self) -> dict[int, int]:
        found = self._get("cross-connects", {})
        pairs = _children(found, "pair") + _children(found, "pairs")
        return {self._number(pair, "ingress"): self._number(pair, "egress") for pair in pairs}

    def statuses(self, ports: Sequence[int]) -> dict[int, str]:
        leaf = "port-status" if self._old_yang() else "status"
        return {
            port: leaves.get(leaf, "UNSUPPORTED").removeprefix("PO_")
            for port, leaves in self._port_leaves(ports).items()
        }

    def powers(self, ports: Sequence[int]) -> dict[int, float]:
        container = "ports" if self._old_yang() else "opm-power"
        found = self._port_leaves(ports, container)
        try:
            return {
                port: float(leaves["power"]) for port, leaves in found.items() if "power" in leaves
            }
        except ValueError:
            raise SwitchError(f"{self.name}: a power in {container} is not a number") from None

    @contextmanager
    def changing(self) -> Iterator[None]:
        locked = self._lock()
        try:
            yield
        finally:
            # the lock ends with the session, so one that broke needs nothing
            if locked and self._session.connected:
                self._unlock()

    def disconnect(self, pairs: Sequence[Pair]) -> None:
        self._edit("delete", pairs)

    def connect(self, pairs: Sequence[Pair]) -> None:
        self._edit("create", pairs)

    def close(self) -> None:
        self._session.close()

    def _lock(self) -> bool:
        """Whether there is a lock now; waits while others have it.

        Never ends (kill-session) the session that has it, not even one of ours that broke: after a
        restart its number may be another client's.
        """
        deadline = self._clock.now() + self._lock_s
        while True:
            try:
                self._session.lock()
            except NetconfError as error:
                if error.tag == "operation-not-supported":
                    return False
                if error.tag != "lock-denied":
                    raise
                if self._clock.now() >= deadline:
                    raise SwitchError(
                        f"{self.name}: another session holds the lock on its configuration, after "
                        f"{self._lock_s:g} s still ({error.said}); nothing was changed"
                    ) from None
                self._clock.sleep(_RETRY_S)
            else:
                return True

    def _unlock(self) -> None:
        try:
            self._session.unlock()
        except SwitchUnreachable:
            pass  # and so unlocked
        except SwitchError:
            self._session.close()

    def _edit(self, operation: str, pairs: Sequence[Pair]) -> None:
        from lxml import etree

        base = self._session.NAMESPACE
        config: Any = etree.Element(f"{{{base}}}config", nsmap={"nc": base})
        container = etree.SubElement(
            config, f"{{{_NAMESPACE}}}cross-connects", nsmap={None: _NAMESPACE}
        )
        for ingress, egress in pairs:
            pair = etree.SubElement(
                container,
                f"{{{_NAMESPACE}}}{'pairs' if self._old_yang() else 'pair'}",
                {f"{{{base}}}operation": operation},
            )
            etree.SubElement(pair, f"{{{_NAMESPACE}}}ingress").text = str(ingress)
            if operation == "create":
                etree.SubElement(pair, f"{{{_NAMESPACE}}}egress").text = str(egress)
        try:
            self._session.edit(config)
        except NetconfError as error:
            if error.tag != "data-exists":
                raise
            raise SwitchError(
                f"{self.name}: a port is in use: another client connected it meanwhile "
                f"({error.said})"
            ) from None

    def _old_yang(self) -> bool:
        for capability in self._session.capabilities():
            if capability.startswith(f"{_NAMESPACE}?"):
                found = re.search(r"[?&]revision=([\d-]+)", capability)
                return found is not None and found[1] < _RENAMED
        return False

    def _port_leaves(
        self, ports: Sequence[int] | None, container: str | None = None
    ) -> dict[int, dict[str, str]]:
        """Port -> name and text of its leaves, for some ports or for all."""
        if container is None:
            container = "ports" if self._old_yang() else "port-config"
        leaves: dict[str, dict[str, Any]] = {
            "ports": {"port-status": None, "opm": {"power": None}},
            "port-config": {"status": None},
            "opm-power": {"power": None},
        }
        numbers = [None] if ports is None else [str(port) for port in ports]
        filters = [("port", {"port-id": number} | leaves[container]) for number in numbers]
        found = self._get(container, filters)
        return {
            self._number(port, "port-id"): {
                leaf.tag.rpartition("}")[2]: (leaf.text or "").strip()
                for leaf in port.iterdescendants("{*}*")
            }
            for port in _children(found, "port")
        }

    def _get(self, container: str, content: Any) -> Any:
        """The container as an XML element, filtered; None where the device has none."""
        from lxml import etree

        wanted = etree.Element(f"{{{_NAMESPACE}}}{container}", nsmap={None: _NAMESPACE})
        _fill(wanted, content)
        return self._session.get(wanted).find(f"{{{_NAMESPACE}}}{container}")

    def _number(self, element: Any, name: str) -> int:
        texts = _texts(element, name)
        if len(texts) != 1 or not texts[0].isdecimal():
            raise SwitchError(
                f"{self.name}: {element.tag.rpartition('}')[2]} without {name}, against its YANG"
            )
        return int(texts[0])


def _fill(parent: Any, content: Any) -> None:
    """Subtree filter of RFC 6241, section 6: None selects, a text matches, a dict contains."""
    from lxml import etree

    for name, value in content.items() if isinstance(content, dict) else content:
        tag = name if name.startswith("{") else f"{{{_NAMESPACE}}}{name}"
        child = etree.SubElement(parent, tag)
        if isinstance(value, str):
            child.text = value
        elif value is not None:
            _fill(child, value)


def _children(element: Any, name: str) -> list[Any]:
    return [] if element is None else element.findall(f"{{{_NAMESPACE}}}{name}")


def _texts(element: Any, name: str) -> list[str]:
    return [(child.text or "").strip() for child in _children(element, name)]
