"""What the controller knows, and what it decides: a pure state machine, without clock or network.

A new flow takes the least congested path that its host has a source port for. After each change
the scheme assigns all flows afresh (paper, section 3.3); its answer is taken only where its most
congested link has less than with flows left where they are. Only flows that moved are reported.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.plan.codec import DocumentError, brief
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.schemes import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.route_control.controller.messages import FlowReport, PortPaths
    from torch_topoopt.route_control.network_file import NetworkFile

    Path = tuple[int, ...]

_BETTER = 1 - 1e-9  # of the largest congestion: less than this part of it is better


@dataclass(frozen=True)
class AssignedFlow:
    """`path` are numbers of switches, None where none is left. `avoided` paths were reported
    degraded by the flow's host. `changed` is the epoch of its last new path."""

    report: FlowReport
    job: str
    path: Path | None
    changed: int
    avoided: frozenset[Path] = frozenset()


class ConflictError(DocumentError):
    """A flow is there already, and is another one than this report says."""


class RouteState:
    """Every method that changes it either raises DocumentError and changes nothing, or returns the
    ids of flows that have another path now."""

    def __init__(self, file: NetworkFile, scheme: str = "ours") -> None:
        self.file = file
        self.epoch = 0
        self.flows: dict[str, AssignedFlow] = {}
        self.flows_of: dict[str, dict[str, None]] = {}  # source host -> ids, in their order
        self.ports: dict[str, PortPaths] = {}
        self.dead: frozenset[frozenset[str]] = frozenset()
        self._assign = SCHEMES[scheme]
        self._network = file.network()

    def restore(
        self,
        epoch: int,
        flows: Iterable[AssignedFlow],
        ports: dict[str, PortPaths],
        dead: frozenset[frozenset[str]],
    ) -> None:
        """Goes on from what a controller before this one has stored."""
        self.epoch, self.ports, self.dead = epoch, ports, dead
        self.flows, self.flows_of = {}, {}
        for flow in flows:
            self._add(flow)
        self._network = self.file.network(dead)

    def set_ports(self, host: str, ports: PortPaths) -> set[str]:
        """Which source port of `host` takes which path, to each target; replaces what was known.

        A flow whose path has other ports now counts as one that has another path: its connection
        may be elsewhere, for switches hash anew when one of their cables dies or comes back.
        """
        self._tor("host", host)
        for target, table in ports.items():
            self._tor("ports", target)
            for port, path in table.items():
                numbers = self.file.path_numbers(path)
                ends = self.file.tor_of[host], self.file.tor_of[target]
                if numbers is None or (numbers[0], numbers[-1]) != ends:
                    raise DocumentError(
                        f"ports.{target}.{port}: {brief(list(path))} is not a path of joined "
                        f"switches from {host} to {target}"
                    )
        before = {flow: self.source_ports(flow) for flow in self.flows_of.get(host, ())}
        self.ports[host] = ports
        changed = self._settled()
        for flow in before.keys() - changed:
            if self.source_ports(flow) != before[flow]:
                self.flows[flow] = replace(self.flows[flow], changed=self.epoch)
                changed.add(flow)
        return changed

    def start(self, job: str, reports: Sequence[FlowReport]) -> set[str]:
        """New flows; the answer has them, too, where they have a path. A report of a flow that is
        there, word for word, changes nothing; raises ConflictError for one that differs."""
        ids: set[str] = set()
        for i, report in enumerate(reports):
            self._tor(f"flows[{i}].source", report.source)
            self._tor(f"flows[{i}].target", report.target)
            if report.source == report.target:
                raise DocumentError(f"flows[{i}].target: {brief(report.target)} is its source, too")
            if report.id in ids:
                raise DocumentError(f"flows[{i}].id: {brief(report.id)} is given twice")
            ids.add(report.id)
            there = self.flows.get(report.id)
            if there is not None and (there.job, there.report) != (job, report):
                raise ConflictError(f"flows[{i}].id: {brief(report.id)} is another flow already")
        new = [report for report in reports if report.id not in self.flows]
        if not new:
            return set()
        for report in new:
            self._add(AssignedFlow(report, job, None, self.epoch))
        return self._settled()

    def end(self, ids: Sequence[str]) -> set[str]:
        for i, flow in enumerate(ids):
            if flow not in self.flows:
                raise DocumentError(f"ids[{i}]: {brief(flow)} is not a flow")
        for flow in ids:
            self._remove(flow)
        return self._settled()

    def set_links(self, down: Sequence[Sequence[str]], up: Sequence[Sequence[str]]) -> set[str]:
        """Cables that died and that are back, each as its two switches."""
        for name, cables in (("down", down), ("up", up)):
            for i, ends in enumerate(cables):
                if len(ends) != 2 or frozenset(ends) not in self.file.cables:
                    raise DocumentError(f"{name}[{i}]: {brief(list(ends))} are not joined")
        died, back = set(map(frozenset, down)), set(map(frozenset, up))
        if died & back:
            raise DocumentError("up: a link of it is in down, too")
        self.dead = (self.dead | died) - back
        self._network = self.file.network(self.dead)
        return self._settled()

    def degrade(self, flow: str) -> set[str]:
        """The host of `flow` finds its path bad: it gets another one, as long as there is one."""
        if flow not in self.flows:
            raise DocumentError(f"flow: {brief(flow)} is not a flow")
        record = self.flows[flow]
        if record.path is not None:
            avoided = record.avoided | {record.path}
            if not set(self._usable(record)) - avoided:
                avoided = frozenset()  # all were bad once; which one is now is not known
            self.flows[flow] = replace(record, avoided=avoided)
        return self._settled()

    def path_names(self, flow: str) -> list[str] | None:
        path = self.flows[flow].path
        return None if path is None else [self.file.numbered[switch] for switch in path]

    def source_ports(self, flow: str) -> list[int]:
        """The ports that take the flow's path, ascending; none where its host knows none."""
        report, names = self.flows[flow].report, self.path_names(flow)
        table = self.ports.get(report.source, {}).get(report.target, {})
        return sorted(port for port, path in table.items() if list(path) == names)

    def _add(self, flow: AssignedFlow) -> None:
        self.flows[flow.report.id] = flow
        self.flows_of.setdefault(flow.report.source, {})[flow.report.id] = None

    def _remove(self, flow: str) -> None:
        record = self.flows.pop(flow, None)
        if record is None:
            return
        of_host = self.flows_of[record.report.source]
        del of_host[flow]
        if not of_host:
            del self.flows_of[record.report.source]

    def _tor(self, where: str, host: str) -> int:
        if host not in self.file.tor_of:
            raise DocumentError(f"{where}: {brief(host)} is not a host of the network file")
        return self.file.tor_of[host]

    def _ends(self, flow: AssignedFlow) -> tuple[int, int]:
        return self.file.tor_of[flow.report.source], self.file.tor_of[flow.report.target]

    def _usable(self, flow: AssignedFlow) -> list[Path]:
        """Live shortest paths; once the host has probed the target, those with a source port."""
        source, target = self._ends(flow)
        if source == target:
            return [(source,)]
        paths = list(self._network.paths(source, target))
        table = self.ports.get(flow.report.source, {}).get(flow.report.target)
        if table is None:
            return paths
        probed = {self.file.path_numbers(path) for path in table.values()}
        return [path for path in paths if path in probed]

    def _settled(self) -> set[str]:
        """Gives every flow a path again; the ids of those whose path is another one now."""
        usable = {
            flow: [p for p in self._usable(record) if p not in record.avoided]
            for flow, record in self.flows.items()
        }
        kept: dict[str, Path | None] = {
            flow: r.path for flow, r in self.flows.items() if r.path in usable[flow]
        }
        few = self._filled(kept, usable)
        all_new = self._filled(self._fresh(usable), usable)
        best = all_new if self._largest(all_new) < _BETTER * self._largest(few) else few
        changed = {flow for flow, record in self.flows.items() if best[flow] != record.path}
        self.epoch += 1
        for flow in changed:
            self.flows[flow] = replace(self.flows[flow], path=best[flow], changed=self.epoch)
        return changed

    def _fresh(self, usable: dict[str, list[Path]]) -> dict[str, Path | None]:
        """The scheme's paths, of flows that can take them."""
        crossing = [
            flow
            for flow, record in self.flows.items()
            if usable[flow] and len(set(self._ends(record))) == 2
        ]
        flows = [SwitchedFlow(*self._ends(self.flows[flow])) for flow in crossing]
        choice = self._assign(RoutingProblem(self._network, flows))
        found: dict[str, Path | None] = {}
        for flow, ends, path in zip(crossing, flows, choice, strict=True):
            taken = self._network.paths(ends.source, ends.target)[path]
            if taken in usable[flow]:
                found[flow] = taken
        return found

    def _filled(
        self, start: dict[str, Path | None], usable: dict[str, list[Path]]
    ) -> dict[str, Path | None]:
        """`start`, and for each flow without a path there the least congested one."""
        capacity = self._network.capacity
        loads = self._loads(start)
        filled = dict(start)
        for flow in self.flows:
            if flow in filled:
                continue
            best: Path | None = None
            least = float("inf")
            for path in usable[flow]:
                hops = itertools.pairwise(path)
                most = max(((loads[hop] + 1) / capacity[hop] for hop in hops), default=0.0)
                if most < least:
                    best, least = path, most
            filled[flow] = best
            for hop in itertools.pairwise(best or ()):
                loads[hop] += 1
        return filled

    def _loads(self, paths: dict[str, Path | None]) -> dict[tuple[int, int], int]:
        """Flows on each link."""
        loads: dict[tuple[int, int], int] = defaultdict(int)
        for path in paths.values():
            for hop in itertools.pairwise(path or ()):
                loads[hop] += 1
        return loads

    def _largest(self, paths: dict[str, Path | None]) -> float:
        capacity = self._network.capacity
        loads = self._loads(paths)
        return max((load / capacity[link] for link, load in loads.items()), default=0.0)
