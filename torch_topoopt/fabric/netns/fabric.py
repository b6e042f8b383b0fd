"""The fabric of network namespaces on one Linux machine, as root: a real kernel network.

Every server is a namespace `topoopt-NAME-S`, for `ip netns exec`; every cable is a veth pair with
both ends limited to the bandwidth. A server also has the interface `management`, on a bridge shared
with this machine, which keeps control traffic off the fabric. All other servers reach its own
address over the cables, forwarded by the kernels in between along the plan's routes.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import build as netns_build
from torch_topoopt.fabric.netns import filters as netns_filters
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.fabric.netns.board_switches import board_switches
from torch_topoopt.fabric.netns.circuit_routes import NetnsRoutes
from torch_topoopt.fabric.netns.layout import (
    LAUNCHER,
    MAX_DEGREE,
    MAX_SERVERS,
    NetnsLayout,
    check_name,
    port_interface,
    socket_name,
    spare_socket_name,
)
from torch_topoopt.fabric.netns.options import DEFAULT_OPTIONS
from torch_topoopt.fabric.netns.shaper import LOSSLESS_QUEUE_S, QUEUE_S, paced_share
from torch_topoopt.fabric.netns.switch import NetnsSwitch
from torch_topoopt.fabric.netns.verify import verify_between
from torch_topoopt.fabric.switches.circuit_mover import RoutedCircuitMover
from torch_topoopt.fabric.switches.circuits import Circuit, Fence
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.light_watch import PolledLight
from torch_topoopt.fabric.switches.spare_circuits import SpareCircuits, SwitchPort
from torch_topoopt.links import sockets
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.wiring import PortAddress, ServerAddress, Wiring
from torch_topoopt.processes.scratch import process_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch_topoopt.fabric.netns.options import NetnsOptions
    from torch_topoopt.fabric.netns.state import FabricRecord
    from torch_topoopt.fabric.switches.light_watch import LightWatch
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.plan import Plan

_TCP_PORT = 20000


class NetnsFabric:
    """Driver of the fabric "netns".

    `fabric` is its name among those of this machine. Unless `options` say to keep it, the fabric
    belongs to this process, and `close()` removes it. `progress` receives the steps of `connect`.
    With `boards`, the columns and rows of one board, a torus plan is wired as a HammingMesh: cables
    between boards run through packet switches, one for each row and each column of boards.
    Raises FabricError if this machine cannot do it.
    """

    name = "netns"

    def __init__(
        self,
        fabric: str,
        options: NetnsOptions = DEFAULT_OPTIONS,
        *,
        boards: tuple[int, int] | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        netns_kernel.require()
        check_name(fabric)
        options.validate()
        self._fabric = fabric
        self._options = options
        if boards is not None and options.switch_delay_s is not None:
            raise FabricError("boards: their cables cannot run through an optical switch as well")
        self._boards = boards
        self._progress = progress
        self._reserved: netns_state.Reservation | None = None
        self._layout: NetnsLayout | None = None

    def connect(self, plan: Plan) -> Wiring:
        """Builds the fabric and verifies each link from both ends; raises FabricError.

        On failure nothing of it remains.
        """
        from pyroute2.netlink.exceptions import NetlinkError

        if self._reserved is not None:
            raise FabricError("netns: this driver has wired a plan already; close() it first")
        _check(plan)
        switches = {} if self._boards is None else board_switches(plan, *self._boards)
        self._reserved = netns_state.reserve(self._fabric)
        try:
            record = self._record(plan)
            self._layout = record.layout
            lossless = self._options.lossless or self._moves
            queue_s = LOSSLESS_QUEUE_S if lossless else QUEUE_S
            netns_build.Builder(plan, record, queue_s, switches, self._options.spare_ports).build(
                self._progress
            )
            self._set_circuits(plan)
            wiring = self._wiring(plan)
            self._progress("verifying")
            for link in sockets.connections(plan):
                ends = self.layout.namespace(link.source), self.layout.namespace(link.target)
                verify_between(link, wiring, ends, self._options.timeout_s)
            netns_state.save(self._reserved.path, record, plan, wiring)
            self._reserved.release()
        except NetlinkError as error:
            self.close()
            raise FabricError(f"netns: the kernel refused: {error}") from None
        except BaseException:
            self.close()
            raise
        return wiring

    def close(self) -> None:
        """Kills the processes in the namespaces and removes the fabric, if there is one."""
        if self._reserved is not None:
            netns_state.take_down(self._fabric)
            self._reserved.release()
            self._reserved = self._layout = None

    @property
    def layout(self) -> NetnsLayout:
        """Names and addresses; raises FabricError unless a plan is wired."""
        if self._layout is None:
            raise FabricError("netns: no plan is wired")
        return self._layout

    @property
    def management_address(self) -> str:
        """The address at which the servers reach this machine."""
        return self.layout.management_address(LAUNCHER)

    def switch(self) -> NetnsSwitch:
        """The switch that the cables run through; raises FabricError if they do not."""
        if self._options.switch_delay_s is None:
            raise FabricError("netns: the cables of this fabric do not run through a switch")
        return NetnsSwitch(
            self.layout.switch_namespace, name=self._fabric, delay_s=self._options.switch_delay_s
        )

    @property
    def switched(self) -> bool:
        """Whether the cables run through an emulated switch."""
        return self._options.switch_delay_s is not None

    @property
    def _moves(self) -> bool:
        """Whether circuits may move while a job runs.

        Links are lossless then, because connections start with a burst on every new circuit.
        """
        return self._options.relay == "kernel" and self.switched

    def paced_gbps(self, plan: Plan) -> float | None:
        """The rate limit of sockets on a link; None: no limit.

        Moving circuits are directed, so acknowledgements may pass up to servers - 1 other links.
        """
        options = self._options
        if options.gbps is None or options.lossless:
            return None
        ways_back = max(1, plan.cluster.servers - 1) if self._moves else 1
        return options.gbps * paced_share(options.mtu, ways_back)

    @property
    def relay(self) -> str:
        """What relays: the ranks ("user") or the hosts ("kernel")."""
        return self._options.relay

    def circuit_mover(
        self, plan: Plan, switch: CircuitSwitch | None = None, *, limit_s: float | None = None
    ) -> RoutedCircuitMover:
        """Moves the circuits of the wired `plan`; raises FabricError, saying why, if it cannot.

        `switch`: another device than the emulated one that steers the light between the ports. Its
        first move is `restore()`. A move may take `limit_s`, by default the timeout beyond the
        delay of the switch.
        """
        if self._options.relay != "kernel" or self._options.forwarding != "routes":
            raise FabricError(
                "netns: circuits move under the connections of a job only where hosts forward by "
                "their routes (relay: kernel, forwarding: routes)"
            )
        device, watch = self._device(switch)
        degree = plan.cluster.degree
        ports = [
            SwitchPort(server, port, device.name, socket_name(server, port, degree))
            for server in range(plan.cluster.servers)
            for port in range(degree)
        ]
        limit_s = limit_s or device.capabilities().settle_s + self._options.timeout_s
        routes = NetnsRoutes(plan, self.layout)
        devices = {device.name: (device, watch)}
        return RoutedCircuitMover(plan, devices, ports, routes, limit_s=limit_s)

    def spare_circuits(
        self, plan: Plan, switch: CircuitSwitch | None = None
    ) -> SpareCircuits | None:
        """Moves lost cables of the wired `plan` to spare ports; None if there are none.

        `switch`: as in circuit_mover().
        """
        spares = self._options.spare_ports
        if not spares:
            return None
        degree, servers = plan.cluster.degree, plan.cluster.servers
        device, watch = self._device(switch)

        def planned(server: int, port: int) -> SwitchPort:
            return SwitchPort(server, port, device.name, socket_name(server, port, degree))

        cables = {
            link: (planned(link.source, link.source_port), planned(link.target, link.target_port))
            for link in sockets.connections(plan)
        }
        free = [
            SwitchPort(
                *(server, port, device.name),
                spare_socket_name(server, port, degree, spares, servers),
            )
            for server in range(servers)
            for port in range(degree, degree + spares)
        ]
        limit_s = device.capabilities().settle_s + self._options.timeout_s
        return SpareCircuits({device.name: (device, watch)}, cables, free, limit_s=limit_s)

    def _device(self, other: CircuitSwitch | None) -> tuple[CircuitSwitch, LightWatch]:
        """The emulated switch, or the `other` device that steers the light instead."""
        if other is not None:
            return other, PolledLight(other)
        own = self.switch()
        return own, own

    def _set_circuits(self, plan: Plan) -> None:
        if self._options.switch_delay_s is None:
            return
        self._progress("circuits")
        switch = self.switch()
        degree = plan.cluster.degree
        circuits = [
            Circuit(
                socket_name(link.source, link.source_port, degree) + "A",
                socket_name(link.target, link.target_port, degree) + "B",
            )
            for link in plan.network.links
        ]
        fence = Fence(frozenset(switch.capabilities().ports))
        limit_s = self._options.switch_delay_s + self._options.timeout_s
        with contextlib.closing(switch):
            configure(switch, circuits, fence, timeout_s=limit_s)

    def _record(self, plan: Plan) -> FabricRecord:
        options = self._options
        split = options.forwarding == "split"
        owner = 0 if options.keep else os.getpid()
        return netns_state.FabricRecord(
            version=netns_state.FabricRecord.VERSION,
            name=self._fabric,
            servers=plan.cluster.servers,
            degree=plan.cluster.degree,
            gbps=options.gbps,
            mtu=options.mtu,
            shaper=""
            if options.gbps is None
            else netns_shaper.choose(() if options.shaper is None else (options.shaper,)),
            forwarding=options.forwarding,
            classifier=netns_filters.choose() if split else "",
            switch_delay_s=options.switch_delay_s,
            owner=owner,
            owner_start=process_start(owner) if owner else 0,
            block=netns_build.reserve_block(self._fabric),
        )

    def _wiring(self, plan: Plan) -> Wiring:
        """The Wiring; its rates keep sockets from overflowing the interfaces' queues."""
        options, paced = self._options, self.paced_gbps(plan)
        cables = list(sockets.connections(plan))
        addresses = self.layout.port_addresses(cables)
        spares = self.layout.spare_addresses(
            len(cables), plan.cluster.servers, plan.cluster.degree, options.spare_ports
        )

        def listed(addresses: Mapping[tuple[int, int], str]) -> tuple[PortAddress, ...]:
            return tuple(
                PortAddress(
                    server,
                    port,
                    address,
                    paced,
                    speed_gbps=options.gbps,
                    interface=port_interface(port),
                )
                for (server, port), address in sorted(addresses.items())
            )

        return (
            Wiring(
                version=Wiring.VERSION,
                fabric=self.name,
                plan_digest=plan.digest(),
                tcp_port=_TCP_PORT,
                ports=listed(addresses),
                spares=listed(spares),
                forwarded=tuple(
                    ServerAddress(server, self.layout.server_address(server))
                    for server in range(plan.cluster.servers)
                    if options.relay == "kernel"
                ),
            )
            .validate()
            .check(plan)
        )


def _check(plan: Plan) -> None:
    cluster = plan.cluster
    if cluster.ports != "duplex":
        raise FabricError(
            f"ports: {cluster.ports!r} cannot be a veth pair, which carries both directions; use "
            "'duplex'"
        )
    for name, value, limit in (
        ("servers", cluster.servers, MAX_SERVERS),
        ("degree", cluster.degree, MAX_DEGREE),
    ):
        if value > limit:
            raise FabricError(
                f"{name}: {value} is more than {limit}, the most that the netns fabric has "
                "addresses for"
            )
