"""The fabric of a cluster whose ports are attached to circuit switches.

It sets the circuits of a Plan, and then verifies each link from the hosts' side like a plugged
cable.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.switched_plan import place_on_switches, with_cables
from torch_topoopt.fabric.cluster.switches import Switches
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import broadcast, failure_broadcast, receive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.fabric.cluster.switches import SwitchProgress
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.fabric.switches.switch import CircuitSwitch
    from torch_topoopt.links.meeting import Meeting
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan

_TOPIC = "switches"  # the cables that server 0 has set
_OTHERS_S = 4 * 3600.0  # a robot may need hours; server 0 shows its progress


class SwitchedFabric:
    """Driver of the fabric "switched", on every host; server 0's configures the switches.

    `verify` returns the driver that verifies plugged cables, for the cluster file with the new
    circuits. `folder`, `timeout_s` and `progress`: see Switches.configure; `progress` may be set
    later.
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
        progress: SwitchProgress | None = None,
    ) -> None:
        self._file = file
        self._server = server
        self._meeting = meeting
        self._verify = verify
        self._open = open_switch
        self._timeout_s = timeout_s
        self._folder = folder
        self.progress = progress
        self._verified: FabricDriver | None = None

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

    def close(self) -> None:
        """Closes the verifying driver. The circuits stay, for the next job of the same plan."""
        if self._verified is not None:
            self._verified.close()
            self._verified = None

    def _verify_on(self, file: ClusterFile, plan: Plan) -> Wiring:
        driver = self._verify(file)
        try:
            wiring = driver.connect(plan)
        except BaseException:
            driver.close()
            raise
        self._verified = driver
        return replace(wiring, fabric=self.name)
