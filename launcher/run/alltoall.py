"""`topoopt run --alltoall` and `--collectives`: whether circuits move during those of a job.

This needs switches between the servers, and hosts that forward for each other (--relay kernel):
emulated servers with --fabric netns --switch-delay S, or the hosts of a --cluster with switches of
one-way circuits. All-to-alls also need one rank on each server.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from torch_topoopt.fabric.cluster.switched import SwitchedFabric
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.fabric.switches.circuit_mover import RoutedCircuitMover
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterSite
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.reconfiguration.choice import Choice
    from torch_topoopt.reconfiguration.requested_calls import MovedCollective, MovedExchange
    from torch_topoopt.runtime.metrics import MetricsWriter

MATRIX_FILE = "alltoall.npy"  # in the folder of the run
# A move may take so many times the measured one, and so much more. The limit before the first move
# is the vendor's, which may be a minute.
_SLOW, _BEYOND_S = 4.0, 5.0
CHOICES = ("auto", "static", "reconfigure")


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--alltoall",
        choices=CHOICES,
        default="auto",
        help="whether circuits move during all-to-alls: where that is predicted to be faster "
        "(auto, default), never (static), or always (reconfigure); with --relay kernel, and with "
        "--switch-delay of emulated servers or optical switches of a --cluster",
    )
    group.add_argument(
        "--collectives",
        choices=CHOICES,
        default="auto",
        help="the same for AllReduce, AllGather, ReduceScatter and Broadcast of every group "
        "(default: auto)",
    )


def check(arguments: argparse.Namespace, cluster: Cluster, file: ClusterFile | None = None) -> None:
    """Raises InputError for options that exclude each other; `file` is that of --cluster."""
    for option in ("alltoall", "collectives"):
        if getattr(arguments, option) != "reconfigure":
            continue
        why = _no_switch(arguments.switch_delay) if file is None else _no_one_way_switch(file)
        why = why or _obstacle(arguments.relay, cluster)
        if why or (option == "alltoall" and (why := _several_ranks(cluster))):
            raise InputError(f"{option}: reconfigure is not possible: {why}")


def _no_switch(switch_delay_s: float | None) -> str:
    """Why no switch could move circuits of emulated servers; "" if there is one."""
    if switch_delay_s is None:
        return "there is no switch between the servers; use --fabric netns --switch-delay SECONDS"
    return ""


def _no_one_way_switch(file: ClusterFile) -> str:
    """The same for the hosts of a cluster file."""
    from torch_topoopt.fabric.switches.open_switch import is_duplex

    if not file.switches:
        return "there is no switch in the cluster file"
    duplex = [entry for entry in file.switches if is_duplex(entry)]
    if duplex:
        return (
            f"circuits of {duplex[0].name} ({duplex[0].kind}) are duplex, and those that move in a "
            "job lead one way"
        )
    return ""


def _obstacle(relay: str, cluster: Cluster) -> str:
    """Why circuits of a switch cannot move during collectives; "" if they can."""
    if relay != "kernel":
        return "the hosts do not forward for each other; use --relay kernel"
    if cluster.servers < 2:
        return "there is one server"
    return ""


def _several_ranks(cluster: Cluster) -> str:
    """Why circuits cannot move during all-to-alls, though they can during others; or ""."""
    if cluster.accelerators_per_server > 1:
        return f"there are {cluster.accelerators_per_server} ranks on a server, not 1"
    return ""


@dataclass
class MoveCounts:
    """Collectives of one kind, by what circuits did during them."""

    moved: int = 0
    stayed: int = 0
    stopped: int = 0

    def add(self, choice: Choice, error: str) -> None:
        if error:
            self.stopped += 1
        elif not choice.moves:
            self.stayed += 1
        else:
            self.moved += 1

    def described(self, name: str) -> str:
        """One line; "" without a collective."""
        if not self.moved + self.stayed + self.stopped:
            return ""
        return (
            f"{name}: {self.moved} over circuits that moved, {self.stayed} over those of the "
            f"plan, {self.stopped} stopped because circuits stayed dark"
        )


class AllToAlls:
    """The all-to-alls of one run, and the other collectives for which circuits could move, for its
    summary and its metrics."""

    JSON_FIELDS: ClassVar = ("counts.moved", "counts.stayed", "counts.stopped", "matrix")
    counts: MoveCounts
    others: MoveCounts  # of the other collectives

    def __init__(self, terminal: Terminal, metrics: MetricsWriter, folder: Path) -> None:
        self._terminal = terminal
        self._metrics = metrics
        self._file = folder / MATRIX_FILE
        self._sum: NDArray[np.int64] | None = None  # of the byte matrices
        self._count = 0  # of the matrices
        self._lock = threading.Lock()
        self._said: set[tuple[str, int, str, int]] = set()  # also powers of two of bytes
        self.counts = MoveCounts()
        self.others = MoveCounts()

    def add(self, ended: MovedExchange | MovedCollective) -> None:
        """Called by the thread that serves the ranks. Every kind of choice is printed once for each
        number of ranks and power of two of bytes."""
        matrix = getattr(ended, "matrix", None)
        collective = getattr(ended, "collective", "all_to_all")
        choice = ended.choice
        with self._lock:
            (self.others if matrix is None else self.counts).add(choice, ended.error)
            if matrix is not None and getattr(ended, "of_all", False):
                self._measure(matrix)
            kind = (collective, ended.members, choice.kind, ended.total_bytes.bit_length())
            said = kind in self._said
            self._said.add(kind)
        self._metrics.write(
            "alltoall",
            collective=collective,
            members=ended.members,
            total_bytes=ended.total_bytes,
            topologies=0 if choice.schedule is None else choice.schedule.reconfigurations,
            why=choice.why,
            moving_predicted_s=choice.moving_predicted_s,
            static_predicted_s=choice.static_predicted_s,
            seconds=ended.seconds,
            moving_s=ended.moving_s,
            error=ended.error,
        )
        if not said:
            name = "all-to-all" if matrix is not None else collective
            size = format_bytes(ended.total_bytes)
            self._terminal.note(f"      {name} of {size} by {ended.members} ranks: {choice.why}")

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

    def described(self) -> list[str]:
        """A line for all-to-alls, and one for the others, if there are any."""
        lines = [self.counts.described("all-to-alls"), self.others.described("other collectives")]
        if lines[0]:
            lines[0] += f"; bytes of each pair: {self._file}"
        return [line for line in lines if line]

    def matrix(self) -> Path | None:
        """The file of write(); None without an all-to-all."""
        return self._file if self._count else None


@dataclass(frozen=True)
class MovingJob:
    """A job whose circuits may move; `exchanges` and `others` are the choices of --alltoall and
    --collectives."""

    plan: Plan
    exchanges: str
    others: str
    all_to_alls: AllToAlls
    terminal: Terminal

    def serve(
        self, mover: RoutedCircuitMover, gbps: float | None, stack: contextlib.ExitStack
    ) -> str:
        """The path of the socket of a circuit service, until `stack` ends. `gbps`: rate of a link.

        Raises FabricError if the first move fails.
        """
        from torch_topoopt.reconfiguration.alltoall_choice import AllToAllChooser, measured_move_s
        from torch_topoopt.reconfiguration.circuit_service import CircuitService
        from torch_topoopt.reconfiguration.collective_choice import CollectiveChooser

        plan = self.plan
        stack.callback(mover.close)
        move_s = measured_move_s(plan, mover)
        mover.limit_s = min(mover.limit_s, _SLOW * move_s + _BEYOND_S)
        # Messages of the plan's model parallelism are faster on the plan's circuits.
        ahead = not len(plan.demand.pairs)
        chooser = collectives = None
        if self.exchanges != "static":
            always = self.exchanges == "reconfigure"
            chooser = AllToAllChooser(plan, move_s, always=always, gbps=gbps, ahead=ahead)
            stack.callback(chooser.close)
        if self.others != "static":
            always = self.others == "reconfigure"
            collectives = CollectiveChooser(plan, move_s, always=always, gbps=gbps, ahead=ahead)
        self.terminal.note(
            f"      collectives may move circuits: a move takes {format_seconds(move_s)}"
        )
        ranks = plan.cluster.servers * plan.cluster.accelerators_per_server
        ended = self.all_to_alls.add
        service = CircuitService(ranks, mover, chooser, ended, collectives, ahead=ahead)
        return stack.enter_context(service).path


@contextlib.contextmanager
def served(
    choices: tuple[str, str],
    fabric: FabricDriver,
    plan: Plan,
    all_to_alls: AllToAlls,
    terminal: Terminal,
    site: ClusterSite | None = None,
) -> Iterator[str]:
    """Inside, ranks may move the circuits of `fabric`; yields the path of the service's socket.

    It is "" if circuits stay. `choices` are those of --alltoall and --collectives; `site` is that
    of a cluster's hosts. Raises FabricError if the first move fails.
    """
    from torch_topoopt.fabric.cluster.switched import SwitchedFabric
    from torch_topoopt.fabric.netns.fabric import NetnsFabric

    switched = isinstance(fabric, SwitchedFabric)
    switched |= isinstance(fabric, NetnsFabric) and fabric.switched
    if set(choices) == {"static"} or not switched:
        yield ""
        return
    assert isinstance(fabric, SwitchedFabric | NetnsFabric)
    why = "" if site is None else _no_one_way_switch(site.choice.file)
    if why := why or _obstacle(fabric.relay, plan.cluster):
        _note_static(terminal, why)
        yield ""
        return
    exchanges, others = choices
    if exchanges != "static" and (why := _several_ranks(plan.cluster)):
        terminal.note(f"      all-to-alls keep the circuits of the plan: {why}")
        exchanges = "static"
    job = MovingJob(plan, exchanges, others, all_to_alls, terminal)
    with contextlib.ExitStack() as stack:
        if isinstance(fabric, NetnsFabric):
            yield job.serve(fabric.circuit_mover(plan), fabric.paced_gbps(plan), stack)
        else:
            assert site is not None
            yield _served_on_hosts(job, fabric, site, stack)


def _served_on_hosts(
    job: MovingJob, fabric: SwitchedFabric, site: ClusterSite, stack: contextlib.ExitStack
) -> str:
    """The path of a socket of this host, until `stack` ends, or "": server 0 has the service."""
    from torch_topoopt.launcher.run.request_forwarding import ForwardedRequests, to_service

    assert fabric.hosts is not None
    hosts, path = fabric.hosts, ""

    def serve() -> str:
        """Why circuits stay."""
        nonlocal path
        try:
            mover = fabric.circuit_mover(job.plan)
        except FabricError as error:
            if "reconfigure" not in (job.exchanges, job.others):
                return str(error)
            raise FabricError(f"reconfigure is not possible: {error}") from None
        path = job.serve(mover, None, stack)
        to_service(hosts, path, stack)
        stack.callback(lambda: site.report_gone(hosts.gone()))
        return ""

    if why := site.share_text("moving circuits", serve):
        _note_static(job.terminal, why)
        return ""
    if site.leads:
        return path
    return stack.enter_context(ForwardedRequests(hosts.connect_requests)).path


def _note_static(terminal: Terminal, why: str) -> None:
    terminal.note(f"      collectives keep the circuits of the plan: {why}")
