"""Protocol devices that steer the light of emulated hosts.

The circuits of a device are also those of a NetnsSwitch without a delay. Light passes as soon as
the device has accepted a circuit, which is before the device reports it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from support.fabric.polatis_device import PolatisDevice
from support.fabric.sonic_ocs_device import OcsDevice
from support.limits import limit_s

from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.fabric.switches.circuits import Circuit, reconcile


@dataclass
class LightPath:
    """The circuits of emulated hosts, in `namespace`."""

    namespace: str
    switch: NetnsSwitch = field(init=False)

    def __post_init__(self) -> None:
        self.switch = NetnsSwitch(self.namespace, delay_s=0.0)

    def show(self, circuits: frozenset[Circuit]) -> None:
        self.switch.apply(reconcile(self.switch.circuits(), circuits))
        self.switch.wait_settled(circuits, limit_s(5.0))


@dataclass
class MirroredOcs(OcsDevice):
    light_path: LightPath | None = None

    def bulk_update(self, delete, add):  # type: ignore[no-untyped-def]
        with self.lock:
            answer = super().bulk_update(delete, add)
            self.show()
            return answer

    def show(self) -> None:
        with self.lock:
            if self.light_path is not None:
                valid = {light.circuit for light in self.light.values() if light.valid}
                self.light_path.show(frozenset(valid - self.broken))


@dataclass
class MirroredPolatis(PolatisDevice):
    light_path: LightPath | None = None

    def _record(self, change: str) -> None:
        super()._record(change)
        self.show()

    def show(self) -> None:
        if self.light_path is None:
            return
        lit = {
            Circuit(f"{ingress}A", f"{egress - self.size}B")
            for ingress, egress in self._ready_at
            if (ingress, egress) not in self.broken
        }
        self.light_path.show(frozenset(lit))
