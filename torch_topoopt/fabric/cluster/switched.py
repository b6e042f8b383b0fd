"""The fabric of a cluster whose ports are attached to circuit switches.

It sets the circuits of a Plan, and then verifies each link from the hosts' side like a plugged
cable. With the relay "kernel", hosts forward for each other, and circuits may move during a job.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.forwarding_hosts import ForwardingHosts
from torch_topoopt.fabric.cluster.static_plan import place
from torch_topoopt.fabric.cluster.switched_plan import place_on_switches, spare_ports, with_cables
from torch_topoopt.fabric.cluster.switches import Switches
from torch_topoopt.fabric.switches.circuit_mover import RoutedCircuitMover
from torch_topoopt.fabric.switches.light_watch import PolledLight
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.spare_circuits import SpareCircuits, SwitchPort
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import broadcast, failure_broadcast, receive
from torch_topoopt.links.sockets import connections
from torch_topoopt.links.wiring import PortAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from pathlib import Path

    from torch_topoopt.fabric.cluster.switches import SwitchProgress
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.fabric.switches.light_watch import LightWatch
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan

_TOPIC = "switches"  # the cables that server 0 has set
_LEAST_MOVE_S = 5.0  # for the circuits of one cable
_OTHERS_S = 4 * 3600.0  # a robot may need hours; server 0 shows its progress


class SwitchedFabric:
    """Driver of the fabric "switched", on every host; server 0's configures the switches.

    `verify` returns the driver that verifies plugged cables, for the cluster file with the new
    circuits. `folder`, `timeout_s` and `progress`: see Switches.configure. With `leader`, an
    address at which all hosts reach server 0, the hosts forward for each other.
    """

    name = "switched"

    def __init__(
        self,
        file: ClusterFile,
        server: int,
        meeting: Meeting,
        verify: Callable[[ClusterFile], FabricDriver],
        *,
        open_switch: Callable[[SwitchEntry], CircuitSwitch] = open_switch,
        timeout_s: float | None = None,
        folder: Path | None = None,
        leader: str = "",
    ) -> None:
        self._leader = leader
        self.hosts: ForwardingHosts | None = None  # while they forward for each other
        self._file = file
        self._server = server
        self._meeting = meeting
        self._verify = verify
        self._open = open_switch
        self._timeout_s = timeout_s
        self._folder = folder
        self.progress: SwitchProgress | None = None
        self._verified: FabricDriver | None = None
        self._wired: ClusterFile | None = None  # with the cables of the current circuits

    def connect(self, plan: Plan) -> Wiring:
        """Sets the circuits, verifies every link from the hosts, and returns the Wiring.

        On failure restores the earlier circuits and raises the same FabricError on all hosts.
        """
        if self._verified is not None:
            raise FabricError("switched: this driver has wired a plan already; close() it first")
        if self._server != 0:
            made = receive(self._meeting, _TOPIC, time.monotonic() + _OTHERS_S)
            return self._verify_on(with_cables(self._file, made), plan)
        with ExitStack() as stack:
            with failure_broadcast(self._meeting, _TOPIC):
                switches = stack.enter_context(Switches(self._file, open_switch=self._open))
                placed = place_on_switches(plan, self._file, switches.plugged())
                before = switches.snapshots()
                switches.configure(
                    placed.cables,
                    timeout_s=self._timeout_s,
                    folder=self._folder,
                    progress=self.progress,
                )
            broadcast(self._meeting, _TOPIC, placed.file.cables[len(self._file.cables) :])
            try:
                return self._verify_on(placed.file, plan)
            except BaseException as error:
                outcome = switches.go_back(before, self._timeout_s)
                if isinstance(error, FabricError):
                    error.args = (f"{error}{outcome}", *error.args[1:])
                raise

    @property
    def relay(self) -> str:
        """What relays: the ranks ("user") or the hosts ("kernel")."""
        return "kernel" if self._leader else "user"

    def spare_circuits(self, plan: Plan) -> SpareCircuits | None:
        """Moves lost cables of the wired `plan` to spare ports, on server 0; None if there are
        none, and where circuits may move."""
        spares = [] if self._wired is None else spare_ports(self._file, self._wired)
        if self._server != 0 or self._wired is None or not spares or self.hosts is not None:
            return None
        planned = self._planned_ports(plan, self._wired)
        ends = {
            link: (
                planned[link.source, link.source_port],
                planned[link.target, link.target_port],
            )
            for link in connections(plan)
        }
        cables = {k: (a, b) for k, (a, b) in ends.items() if a is not None and b is not None}
        if not cables:
            return None
        free = [self._switch_port(port, end) for _, port, end in spares]
        used = {end.switch for cable in cables.values() for end in cable}
        switches, settle_s = self._watched(used)
        limit_s = self._timeout_s or max(_LEAST_MOVE_S, 4 * settle_s)
        return SpareCircuits(switches, cables, [s for s in free if s], limit_s=limit_s)

    def circuit_mover(self, plan: Plan) -> RoutedCircuitMover:
        """Moves the circuits of the wired `plan`, on server 0; raises FabricError, saying why, if
        it cannot."""
        if self.hosts is None or self._wired is None:
            raise FabricError("switched: the hosts do not forward for each other")
        ports = []
        for (server, port), end in self._planned_ports(plan, self._wired).items():
            if end is None:
                name = place(plan, self._wired)[server, port]
                raise FabricError(f"{name} is on no switch; circuits of all ports move together")
            ports.append(end)
        unused = plan.cluster.servers * plan.cluster.degree - len(ports)
        if unused:
            raise FabricError(f"the plan leaves {unused} ports without a circuit")
        switches, settle_s = self._watched({end.switch for end in ports})
        limit_s = self._timeout_s or settle_s + _LEAST_MOVE_S
        return RoutedCircuitMover(plan, switches, ports, self.hosts, limit_s=limit_s)

    def _planned_ports(
        self, plan: Plan, wired: ClusterFile
    ) -> dict[tuple[int, int], SwitchPort | None]:
        """The ports of the plan's links; None for one that is on no switch."""
        placed = place(plan, wired)
        return {port: self._switch_port(port[1], end) for port, end in placed.items()}

    def _watched(
        self, names: Set[str]
    ) -> tuple[dict[str, tuple[CircuitSwitch, LightWatch]], float]:
        """The drivers of these switches with their watches, and the longest time of a change."""
        switches: dict[str, tuple[CircuitSwitch, LightWatch]] = {}
        for entry in self._file.switches:
            if entry.name in names:
                device = self._open(entry)
                switches[entry.name] = (device, PolledLight(device))
        return switches, max(device.capabilities().settle_s for device, _ in switches.values())

    def _switch_port(self, port: int, end: str) -> SwitchPort | None:
        """`end` of the cluster file, which is `port` in the wiring; None if it is on no switch."""
        server, entry = self._file.ports[end]
        if entry.switch is None:
            return None
        switch, _, socket = entry.switch.partition(":")
        return SwitchPort(server, port, switch, socket, str(entry.subnet))

    def close(self) -> None:
        """Closes the verifying driver, and undoes the hosts' forwarding. The circuits stay, for the
        next job of the same plan."""
        if self._verified is not None:
            self._verified.close()
            self._verified = self._wired = None
        if self.hosts is not None:
            self.hosts.close()
            self.hosts = None

    def _verify_on(self, file: ClusterFile, plan: Plan) -> Wiring:
        with ExitStack() as stack:
            stack.callback(self.close)
            if self._leader:
                self.hosts = ForwardingHosts(plan, file, self._server, self._meeting, self._leader)
            driver = self._verify(file)
            stack.callback(driver.close)
            wiring = driver.connect(plan)
            stack.pop_all()
        self._verified, self._wired = driver, file
        if self.hosts is not None:
            forwarded = self.hosts.addresses()
            return replace(wiring, fabric=self.name, forwarded=forwarded).validate()
        listens = {port.server: wiring.tcp_port_of(port) for port in wiring.ports}
        spares = tuple(
            PortAddress(
                *(server, port, entry.ip, None),
                tcp_port=listens[server],
                speed_gbps=entry.gbps,
                interface=entry.interface,
            )
            for server, port, end in spare_ports(self._file, file)
            for entry in [self._file.ports[end][1]]
        )
        return replace(wiring, fabric=self.name, spares=spares).validate()
