"""`topoopt run --alltoall`: whether circuits move during the all-to-alls of a job.

This needs a switch between the servers, and hosts that forward for each other: emulated servers
with --fabric netns --switch-delay S --relay kernel, and one rank on each.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.reconfiguration.circuit_service import MovedExchange
    from torch_topoopt.runtime.metrics import MetricsWriter

MATRIX_FILE = "alltoall.npy"  # in the folder of the run
CHOICES = ("auto", "static", "reconfigure")


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--alltoall",
        choices=CHOICES,
        default="auto",
        help="whether circuits move during all-to-alls: where that is predicted to be faster "
        "(auto, default), never (static), or always (reconfigure); on emulated servers with "
        "--switch-delay and --relay kernel",
    )


def check(arguments: argparse.Namespace, cluster: Cluster) -> None:
    """Raises InputError for options that exclude each other."""
    if arguments.alltoall != "reconfigure":
        return
    why = _obstacle(arguments.switch_delay, arguments.relay, cluster)
    if why:
        raise InputError(f"alltoall: reconfigure is not possible: {why}")


def _obstacle(switch_delay_s: float | None, relay: str, cluster: Cluster) -> str:
    """Why circuits cannot move during all-to-alls; "" if they can."""
    if switch_delay_s is None:
        return "there is no switch between the servers; use --fabric netns --switch-delay SECONDS"
    if relay != "kernel":
        return "the hosts do not forward for each other; use --relay kernel"
    if cluster.accelerators_per_server > 1:
        return f"there are {cluster.accelerators_per_server} ranks on a server, not 1"
    if cluster.servers < 2:
        return "there is one server"
    return ""


class AllToAlls:
    """The all-to-alls of one run, for its summary and its metrics."""

    JSON_FIELDS: ClassVar = ("moved", "stayed", "stopped", "matrix")
    moved: int = 0
    stayed: int = 0
    stopped: int = 0

    def __init__(self, terminal: Terminal, metrics: MetricsWriter, folder: Path) -> None:
        self._terminal = terminal
        self._metrics = metrics
        self._file = folder / MATRIX_FILE
        self._sum: NDArray[np.int64] | None = None  # of the byte matrices
        self._count = 0  # of the matrices
        self._lock = threading.Lock()
        self._said: set[tuple[str, int]] = set()  # kinds of choices, and powers of two of bytes

    def add(self, exchange: MovedExchange) -> None:
        """Called by the thread that serves the ranks. Every kind of choice is printed once for each
        power of two of bytes."""
        schedule = exchange.choice.schedule
        with self._lock:
            if exchange.error:
                self.stopped += 1
            elif schedule is None:
                self.stayed += 1
            else:
                self.moved += 1
            self._measure(exchange.matrix)
            kind = (exchange.choice.kind, exchange.total_bytes.bit_length())
            said = kind in self._said
            self._said.add(kind)
        self._metrics.write(
            "alltoall",
            total_bytes=exchange.total_bytes,
            topologies=0 if schedule is None else schedule.reconfigurations,
            why=exchange.choice.why,
            moving_predicted_s=exchange.choice.moving_predicted_s,
            static_predicted_s=exchange.choice.static_predicted_s,
            seconds=exchange.seconds,
            moving_s=exchange.moving_s,
            error=exchange.error,
        )
        if not said:
            self._terminal.note(
                f"      all-to-all of {format_bytes(exchange.total_bytes)}: {exchange.choice.why}"
            )

    def _measure(self, matrix: NDArray[np.int64]) -> None:
        if self._sum is None or self._sum.shape != matrix.shape:  # fewer servers after a restart
            self._sum, self._count = matrix, 1
        else:
            self._sum, self._count = self._sum + matrix, self._count + 1

    def write(self) -> None:
        """Writes the mean byte matrix, rounded up, as input of `topoopt alltoall --matrix`; no file
        without an all-to-all."""
        with self._lock:
            if self._sum is not None:
                import numpy as np

                np.save(self._file, -(-self._sum // self._count))

    def described(self) -> str:
        """One line; "" without an all-to-all."""
        if not self.moved + self.stayed + self.stopped:
            return ""
        return (
            f"all-to-alls: {self.moved} over circuits that moved, {self.stayed} over those of the "
            f"plan, {self.stopped} stopped because circuits stayed dark; bytes of each pair: "
            f"{self._file}"
        )

    def matrix(self) -> Path | None:
        """The file of write(); None without an all-to-all."""
        return self._file if self._count else None


@contextlib.contextmanager
def served(
    choice: str, fabric: FabricDriver, plan: Plan, all_to_alls: AllToAlls, terminal: Terminal
) -> Iterator[str]:
    """Inside, ranks may move the circuits of `fabric`; yields the path of the service's socket.

    It is "" if circuits stay. Raises FabricError if the first move fails.
    """
    from torch_topoopt.fabric.netns.fabric import NetnsFabric

    if choice == "static" or not isinstance(fabric, NetnsFabric) or not fabric.switched:
        yield ""
        return
    if why := _obstacle(fabric.switch().delay_s, fabric.relay, plan.cluster):
        terminal.note(f"      all-to-alls keep the circuits of the plan: {why}")
        yield ""
        return
    from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s
    from torch_topoopt.reconfiguration.circuit_service import CircuitService

    mover = fabric.circuit_mover(plan)
    with contextlib.ExitStack() as stack:
        stack.callback(mover.close)
        move_s = measured_move_s(plan, mover)
        chooser = AllToAllChooser(
            plan, move_s, always=choice == "reconfigure", gbps=fabric.paced_gbps(plan)
        )
        stack.callback(chooser.close)
        terminal.note(f"      all-to-alls may move circuits: a move takes {format_seconds(move_s)}")
        service = CircuitService(plan.cluster.servers, mover, chooser, all_to_alls.add)
        yield stack.enter_context(service).path
