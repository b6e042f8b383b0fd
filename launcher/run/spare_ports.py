"""A thread of the launcher that moves cables that stay lost to spare ports, while the job trains.

It needs an optical switch with free ports: those of the cluster file, or --spare-ports of emulated
servers. Ranks go on over other cables meanwhile, and open the link again on the new ports.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run.job_watch import repeating
from torch_topoopt.links.cable_keeper import spare_limit_s
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import format_seconds
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Set
    from pathlib import Path

    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.fabric.switches.spare_circuits import SpareCircuits, SpareMove
    from torch_topoopt.plan import Link, Plan
    from torch_topoopt.runtime.metrics import MetricsWriter
    from torch_topoopt.supervision.statuses import Status

_INTERVAL_S = 1.0
_OPEN_S = 6.0  # for ranks to open a moved link and to write their status


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--spare-ports",
        type=int,
        default=0,
        metavar="N",
        help="further ports of every emulated server on the switch of --switch-delay; a cable that "
        "stays lost moves to them while the job runs (default: 0); with --cluster, ports without "
        "a planned cable are spare",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError or FabricError for options that exclude each other."""
    spare_limit_s()
    if not arguments.spare_ports:
        return
    if arguments.fabric != "netns":
        raise InputError(
            f"spare-ports: {arguments.spare_ports}: they are ports of emulated servers; use "
            "--fabric netns --switch-delay SECONDS"
        )
    NetnsOptions(
        relay=arguments.relay,
        switch_delay_s=arguments.switch_delay,
        spare_ports=arguments.spare_ports,
    ).validate()


class LostCables:
    """Finds links that are lost for `limit_s` seconds, and again some time after each attempt."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[Link, float] = {}  # the loss
        self._due_at: dict[Link, float] = {}

    def look(self, lost: Set[Link], now_s: float) -> dict[Link, float]:
        """The links that are back, and how long they were lost."""
        back = {link: now_s - since for link, since in self._since.items() if link not in lost}
        for link in back:
            del self._since[link], self._due_at[link]
        for link in lost:
            self._since.setdefault(link, now_s)
            self._due_at.setdefault(link, now_s + self._limit_s)
        return back

    def due(self, now_s: float) -> dict[Link, float]:
        """The links to move now, and how long they have been lost."""
        due = {link: now_s - self._since[link] for link, at in self._due_at.items() if at <= now_s}
        for link in due:
            self._due_at[link] = now_s + max(self._limit_s, _OPEN_S)
        return due


def lost_links(ranks: Mapping[int, Status], links: Iterable[Link]) -> set[Link]:
    """Those of `links` that both ends have lost, as far as their ranks run here.

    A server that has lost all its links has failed itself: they do not count.
    """
    states: dict[Link, bool] = {}
    for status in ranks.values():
        states.update((rate.link, rate.up) for rate in status.links)
    cut_off = {link.source for link in states} - {link.source for link, up in states.items() if up}
    lost = set()
    for link in links:
        ends = [states[one] for one in (link, link.reverse) if one in states]
        if ends and not any(ends) and not {link.source, link.target} & cut_off:
            lost.add(link)
    return lost


class CableMover:
    """Looks at the cables of a running job, and moves those that stay lost."""

    def __init__(
        self, circuits: SpareCircuits, job: JobFolder, metrics: MetricsWriter, limit_s: float
    ) -> None:
        self._circuits = circuits
        self._job = job
        self._metrics = metrics
        self._cables = LostCables(limit_s)
        self._moved: set[Link] = set()
        self._unmoved: set[Link] = set()  # reported once until they are back
        self._warned: set[str] = set()

    def look(self, now_s: float) -> None:
        """`now_s` is of a monotonic clock."""
        lost = self._lost()
        for link, lost_s in self._cables.look(lost, now_s).items():
            self._circuits.is_back(link)
            self._unmoved.discard(link)
            if link in self._moved:
                self._moved.discard(link)
                self._record(link, f"is back, {format_seconds(lost_s)} after its loss")
        for link, lost_s in self._cables.due(now_s).items():
            try:
                self._note(self._circuits.move(link), lost_s)
            except FabricError as error:
                self._warn(f"{_name(link)} is lost, and was not moved to spare ports: {error}")

    def _lost(self) -> set[Link]:
        lost = set()
        with contextlib.suppress(DocumentError, OSError):  # the ranks are ending
            statuses = read_statuses(self._job)
            alive = {rank: status for rank, status in statuses.items() if status.alive}
            lost = lost_links(alive, self._circuits.links)
        try:
            lost |= self._circuits.dark()
        except FabricError as error:
            self._warn(f"the switch cannot be watched: {error}")
        return lost

    def _note(self, move: SpareMove, lost_s: float) -> None:
        link = move.link
        after = f"lost for {format_seconds(lost_s)}"
        if move.moved:
            self._moved.add(link)
            what = f"moved to {move.after[0]} and {move.after[1]}"
            self._record(link, f"was {after}: {what} in {format_seconds(move.seconds)}", move)
        elif link not in self._unmoved:
            self._unmoved.add(link)
            self._record(link, f"is {after}, and was not moved: {move.why}", move)

    def _record(self, link: Link, what: str, move: SpareMove | None = None) -> None:
        text = f"{_name(link)} {what}"
        ports = [] if move is None else [[end.server, end.port] for end in move.after]
        self._metrics.write("cable", what=text, moved=bool(move and move.moved), ports=ports)
        console.warning(text)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            console.warning(text)


@contextlib.contextmanager
def watching(
    fabric: FabricDriver, plan: Plan, folder: Path, metrics: MetricsWriter
) -> Iterator[None]:
    """Inside, cables of `fabric` that stay lost move to its spare ports, if there are any."""
    from torch_topoopt.fabric.cluster.switched import SwitchedFabric
    from torch_topoopt.fabric.netns.fabric import NetnsFabric

    limit_s = spare_limit_s()
    circuits = None
    if isinstance(fabric, NetnsFabric | SwitchedFabric):
        circuits = fabric.spare_circuits(plan)
    if circuits is None:
        yield
        return
    mover = CableMover(circuits, JobFolder(folder), metrics, limit_s)
    try:
        with repeating(lambda: mover.look(time.monotonic()), _INTERVAL_S, "topoopt spare ports"):
            yield
    finally:
        circuits.close()


def _name(link: Link) -> str:
    return (
        f"the cable of server {link.source} port {link.source_port} and "
        f"server {link.target} port {link.target_port}"
    )
