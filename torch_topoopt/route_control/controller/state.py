"""The controller's knowledge and decisions: a pure state machine, without clock or network.

Flows and their paths are a `_core.PathAssignment`. A new flow takes the least congested path for
which its host has a source port. If some link is more congested than necessary, the scheme assigns
all flows again (paper, section 3.3); the result is adopted only if it lowers the worst congestion.
Only moved flows are reported. A change of the assignment is an `Operation`; a precomputed result of
it is used if there is one (`precomputed`).
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_topoopt import _core
from torch_topoopt.plan.codec import DocumentError, brief
from torch_topoopt.route_control.controller.messages import ReportedFlows
from torch_topoopt.route_control.controller.precomputed import Operation, Precomputed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from torch_topoopt.route_control.controller.messages import FlowReport, PortPaths
    from torch_topoopt.route_control.network_file import NetworkFile

    Path = tuple[int, ...]
    PathSet = tuple[Path, ...]
    Pair = tuple[int, int]
    Hosts = tuple[str, str]
    Cable = frozenset[str]
    Replay = Callable[[_core.PathAssignment], _core.PathAssignment]

_NOTHING: frozenset[tuple[int, ...]] = frozenset()
_LOCAL = -1  # the kind of flows between hosts of one ToR, which cross no link between switches
_MOST_REPORTS = 256  # that are repeated, with known kinds
_MOST_KINDS = 100_000  # beyond those in use; then the assignment is rebuilt


class AssignedFlow(NamedTuple):
    """`path` are numbers of switches, None without a live one. `avoided` paths were reported
    degraded by the flow's host. `changed` is the epoch of its last new path or rate."""

    report: FlowReport
    job: str
    path: Path | None
    changed: int
    avoided: frozenset[Path] = frozenset()
    rate_bits_per_s: float | None = None


class ConflictError(DocumentError):
    """A flow exists already, and differs from this report."""


class _Kind(NamedTuple):
    """Flows between two ToRs over one of `paths`; None: all shortest ones of the whole network."""

    source: int
    target: int
    paths: PathSet | None


class _NewFlows(NamedTuple):
    """Those of one report; of the ones between two ToRs, the ids, numbers and kinds."""

    flows: ReportedFlows
    crossing: Sequence[str]
    numbers: Sequence[int]
    kinds: Sequence[int]


class RouteState:
    """Every mutating method either raises DocumentError and changes nothing, or returns the ids of
    flows with new paths, in the order of flows, new ones first.

    With `limits_rates` flows have max-min fair rates, published when they differ by more than 5 %
    from the last published one (paper, section 8).
    """

    def __init__(
        self, file: NetworkFile, scheme: str = "local-search", *, limits_rates: bool = False
    ) -> None:
        self.file = file
        self.epoch = 0
        self.flows: dict[str, AssignedFlow] = {}
        self._flows_of: dict[str, dict[str, None]] = defaultdict(dict)
        self.ports: dict[str, PortPaths] = {}
        self.dead: frozenset[Cable] = frozenset()
        self._numbers: dict[str, int] = {}
        self._unnoted: list[_NewFlows] = []
        self.precomputed = Precomputed()
        self.replays: list[Replay] | None = None  # pending operations of a copy
        self._how = scheme, limits_rates
        self.limits_rates = limits_rates
        self._network = file.network()
        self._ports_of: dict[Hosts, dict[Path, tuple[int, ...]]] = {}
        self._detours: dict[Pair, PathSet] = {}  # of pairs without a live shortest path
        self._avoiding: set[str] = set()  # flows between ToRs that avoid paths
        self._cables_of: dict[int, set[Cable]] = {tor: set() for tor in range(self._network.tors)}
        for cable in file.cables:
            for name in cable:
                self._cables_of.get(file.numbers[name], set()).add(cable)
        self._kind_cache: dict[Hosts, int] = {}
        self._kinds_of_reports: dict[int, tuple[ReportedFlows, Sequence[int]]] = {}  # by id()
        self._ends_of: tuple[Sequence[Cable], np.ndarray] | None = None  # links of cables
        self._threads = len(os.sched_getaffinity(0))
        self._begin()

    @property
    def flows_of(self) -> dict[str, dict[str, None]]:
        """Source host -> ids, in their order."""
        self._note_new()
        return self._flows_of

    @property
    def numbers(self) -> dict[str, int]:
        """In the assignment, of flows between two ToRs."""
        self._note_new()
        return self._numbers

    def _note_new(self) -> None:
        """Notes hosts and numbers of new flows, which the answer to their report does not need."""
        for flows, crossing, numbers, kinds in self._unnoted:
            for name, source in zip(flows.names, flows.sources, strict=True):
                self._flows_of[source][name] = None
            self._number(crossing, numbers, kinds)
        self._unnoted.clear()

    def _begin(self) -> None:
        """An assignment without flows and kinds."""
        self._assignment = self._empty()
        self._ids: list[str] = []  # by the number of a flow; those of ended flows are stale
        self._kinds: dict[_Kind, int] = {}
        self._kind_at: list[_Kind] = []
        self._kind_of: list[int] = []
        self._paths: list[Path] = []  # by their numbers
        self._forget_kinds()
        self._numbers.clear()

    def _empty(self) -> _core.PathAssignment:
        network, (scheme, limits_rates) = self._network, self._how
        capacity = [network.capacity[link] for link in network.links]
        links = list(network.links)
        return _core.PathAssignment(
            network.tors, network.spines, links, capacity, scheme, limits_rates
        )

    def restore(
        self,
        epoch: int,
        flows: Iterable[AssignedFlow],
        ports: dict[str, PortPaths],
        dead: frozenset[Cable],
    ) -> None:
        """Restores the stored state of an earlier controller."""
        self.epoch, self.dead = epoch, dead
        self.ports, self._ports_of = ports, {}
        for host, of_host in ports.items():
            self._index_ports(host, of_host)
        self.flows, self._flows_of, self._unnoted = {}, defaultdict(dict), []
        for flow in flows:
            self._add(flow)
        self._make_anew()

    def _make_anew(self) -> None:
        """The same assignment with new numbers; an unobservable change."""
        self._note_new()
        self._begin()
        self.precomputed.forget()
        if self.replays is not None:
            self.replays.append(lambda _: self._empty())
        numbers = self._dead_links(self.dead)
        crossing = [name for name, flow in self.flows.items() if self._crosses(flow.report)]
        self._avoiding = {name for name in crossing if self.flows[name].avoided}
        for pair in sorted({self._ends(self.flows[name].report) for name in crossing}):
            self._number_of(_Kind(*pair, None))
        self._detours = self._found_detours(numbers, self.dead)
        kinds = [self._kind(self.flows[name]) for name in crossing]
        paths = []
        for name, kind in zip(crossing, kinds, strict=True):
            paths.append(self._path_number(kind, self.flows[name].path))
        published = [self.flows[name].rate_bits_per_s for name in crossing]
        rates = [-1.0 if rate is None else rate for rate in published]

        def restored(assignment: _core.PathAssignment) -> _core.PathAssignment:
            assignment.restore(kinds, paths, rates, numbers)
            return assignment

        found = self._assignment.restore(kinds, paths, rates, numbers)
        if self.replays is not None:
            self.replays.append(restored)
        self._numbers.update(zip(crossing, found, strict=True))
        assert found == list(range(len(crossing)))
        self._ids, self._kind_of = crossing, list(kinds)

    def set_ports(self, host: str, ports: PortPaths) -> list[str]:
        """Sets the path of each source port of `host`, per target; replaces the earlier ones.

        A flow whose path now has other ports counts as moved: its connection may be elsewhere,
        since switches rehash when one of their cables dies or returns.
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
        of_host = self.flows_of.get(host, ())
        before = {flow: self.source_ports(flow) for flow in of_host}
        for target in self.ports.get(host, ()):
            self._ports_of.pop((host, target), None)
        self.ports[host] = ports
        self._index_ports(host, ports)
        self._forget_kinds()
        changed = dict.fromkeys(self._settled(Operation(kinds=self._other_kinds(of_host))))
        for flow in of_host:
            if flow not in changed and self.source_ports(flow) != before[flow]:
                self.flows[flow] = self.flows[flow]._replace(changed=self.epoch)
                changed[flow] = None
        return list(changed)

    def start(self, job: str, reports: Sequence[FlowReport]) -> list[str]:
        """New flows; the answer includes them, too, if they have a path. Repeating the report of a
        flow word for word changes nothing; raises ConflictError for one that differs."""
        reports = reports if isinstance(reports, ReportedFlows) else ReportedFlows(reports)
        kinds = self._kinds_of_new(reports)
        new = reports if kinds is not None else ReportedFlows(self._new(job, reports))
        if not new:
            return []
        operation = self.starting(new) if kinds is None else _starting(kinds)
        result = self._decided(operation)
        moved = result.moved  # the new ones are the first
        count = len(operation.started)
        numbers, ats = zip(*moved[:count], strict=True) if count else ((), ())
        names = new.names
        crossing: Sequence[str] = names
        paths: list[Path | None]
        if -1 in ats:
            paths = [self._paths[at] if at >= 0 else None for at in ats]
        else:
            paths = [*map(self._paths.__getitem__, ats)]
        if count < len(new):  # some are under one ToR
            crossing = [report.id for report in new if self._crosses(report)]
            over = iter(paths)
            paths = [next(over) if self._crosses(r) else (self._ends(r)[0],) for r in new]
        same = (itertools.repeat(value) for value in (self.epoch, _NOTHING, None))
        rows = zip(new, itertools.repeat(job), paths, *same, strict=False)
        self.flows.update(zip(names, map(_as_assigned, rows), strict=True))
        self._unnoted.append(_NewFlows(new, crossing, numbers, operation.started))
        others = self._noted(moved[count:], result)
        return list(dict.fromkeys([*names, *others])) if others else list(names)

    def _number(self, names: Sequence[str], numbers: Sequence[int], kinds: Sequence[int]) -> None:
        """Notes the numbers of new flows in the assignment."""
        self._numbers.update(zip(names, numbers, strict=True))
        ids, kind_of = self._ids, self._kind_of
        more = max(numbers, default=-1) + 1 - len(ids)
        ids += [""] * more
        kind_of += [-1] * more
        for name, number, kind in zip(names, numbers, kinds, strict=True):
            ids[number] = name
            kind_of[number] = kind

    def _kinds_of_new(self, reports: ReportedFlows) -> Sequence[int] | None:
        """The kinds of reports that are new, distinct, and between hosts with known kinds, in the
        common case that all are; else None."""
        if not self.flows.keys().isdisjoint(reports.names):
            return None
        known, kinds = self._kinds_of_reports.get(id(reports), (None, ()))
        if known is reports:
            return kinds
        if len(set(reports.names)) < len(reports):
            return None
        pairs = [(report.source, report.target) for report in reports]
        try:
            kinds = [*map(self._kind_cache.__getitem__, pairs)]
        except KeyError:
            return None
        if len(self._kinds_of_reports) >= _MOST_REPORTS:
            self._kinds_of_reports.clear()
        self._kinds_of_reports[id(reports)] = reports, kinds
        return kinds

    def _new(self, job: str, reports: Sequence[FlowReport]) -> Sequence[FlowReport]:
        """The reports of `reports` without a flow yet."""
        ids: set[str] = set()
        new: list[FlowReport] = []
        for i, report in enumerate(reports):
            name, source, target = report.id, report.source, report.target
            self._tor(f"flows[{i}].source", source)
            self._tor(f"flows[{i}].target", target)
            if source == target:
                raise DocumentError(f"flows[{i}].target: {brief(target)} is its source, too")
            if name in ids:
                raise DocumentError(f"flows[{i}].id: {brief(name)} is given twice")
            ids.add(name)
            there = self.flows.get(name)
            if there is None:
                new.append(report)
            elif (there.job, there.report) != (job, report):
                raise ConflictError(f"flows[{i}].id: {brief(name)} is another flow already")
        return new

    def end(self, ids: Sequence[str]) -> list[str]:
        ended = dict.fromkeys(ids)
        if not self.flows.keys() >= ended.keys():
            i = next(i for i, flow in enumerate(ids) if flow not in self.flows)
            raise DocumentError(f"ids[{i}]: {brief(ids[i])} is not a flow")
        operation = self.ending(ended)
        flows_of, numbers = self.flows_of, self.numbers
        for flow, record in zip(ended, map(self.flows.pop, ended), strict=True):
            source = record.report.source
            of_host = flows_of[source]
            del of_host[flow]
            if not of_host:
                del flows_of[source]
        for flow in ended:
            numbers.pop(flow, None)
        self._avoiding.difference_update(ended)
        return self._settled(operation)

    def set_links(self, down: Sequence[Sequence[str]], up: Sequence[Sequence[str]]) -> list[str]:
        """Cables that died and cables that are back, each as its two switches."""
        for name, cables in (("down", down), ("up", up)):
            for i, ends in enumerate(cables):
                if len(ends) != 2 or frozenset(ends) not in self.file.cables:
                    raise DocumentError(f"{name}[{i}]: {brief(list(ends))} are not joined")
        died, back = set(map(frozenset, down)), set(map(frozenset, up))
        if died & back:
            raise DocumentError("up: a link of it is in down, too")
        dead = (self.dead | died) - back
        operation, detours = self._linked(dead)
        if detours != self._detours:  # of dead cables, kinds of hosts depend on these alone
            self._forget_kinds()
        self.dead, self._detours = dead, detours
        return self._settled(operation)

    def degrade(self, flow: str) -> list[str]:
        """The host of `flow` reports its path as bad: it gets another one, if there is one."""
        if flow not in self.flows:
            raise DocumentError(f"flow: {brief(flow)} is not a flow")
        record = self.flows[flow]
        if record.path is None:
            return self._settled(Operation())
        avoided = record.avoided | {record.path}
        usable = set(self._allowed(record.report, frozenset(), self.dead, self._detours))
        if not any(self._lives(path, self.dead) for path in usable - avoided):
            avoided = frozenset()  # all were bad once; which one is now is unknown
        self.flows[flow] = record._replace(avoided=avoided)
        if flow in self.numbers:
            (self._avoiding.add if avoided else self._avoiding.discard)(flow)
        return self._settled(Operation(kinds=self._other_kinds([flow])))

    # Previews, which change nothing.

    def starting(self, reports: Sequence[FlowReport]) -> Operation:
        if self.dead:
            pairs = {self._ends(report) for report in reports if self._crosses(report)}
            if new := [pair for pair in pairs if _Kind(*pair, None) not in self._kinds]:
                for pair in sorted(new):
                    self._number_of(_Kind(*pair, None))
                self._detours = self._found_detours(self._dead_links(self.dead), self.dead)
                self._forget_kinds()
        return _starting([self._host_kind(report.source, report.target) for report in reports])

    def ending(self, ids: Iterable[str]) -> Operation:
        numbers = map(self.numbers.get, dict.fromkeys(ids))
        return Operation(ended=tuple(number for number in numbers if number is not None))

    def dying(self, cables: Collection[Cable]) -> Operation:
        return self._linked(self.dead | set(cables))[0]

    def cable_loads(self, cables: Sequence[Cable]) -> np.ndarray:
        """The number of flows on each cable, in both directions."""
        if self._ends_of is None or self._ends_of[0] is not cables:
            links, numbers = self._network.link_numbers, self.file.numbers
            pairs = [[numbers[name] for name in cable] for cable in cables]
            both = [(links[a, b], links[b, a]) for a, b in pairs]
            self._ends_of = cables, np.array(both, int).reshape(-1, 2)
        on_links = np.asarray(self._assignment.loads, int)[self._ends_of[1]]
        found: np.ndarray = on_links.sum(axis=1)
        return found

    def copied(self) -> _core.PathAssignment:
        """A copy of the assignment. From now on `replays` has the operations on it."""
        self.replays = []
        return self._assignment.copy()

    def source_ports(self, flow: str) -> list[int]:
        """The ports for the flow's path, ascending; none if its host knows none."""
        record = self.flows[flow]
        return list(self.ports_on(record.report, record.path))

    def ports_on(self, report: FlowReport, path: Path | None) -> tuple[int, ...]:
        """The source ports of the flow's host that lead over `path`, ascending."""
        table = self._ports_of.get((report.source, report.target))
        return () if table is None or path is None else table.get(path, ())

    def _add(self, flow: AssignedFlow) -> None:
        self.flows[flow.report.id] = flow
        self._flows_of[flow.report.source][flow.report.id] = None

    def _tor(self, where: str, host: str) -> int:
        if host not in self.file.tor_of:
            raise DocumentError(f"{where}: {brief(host)} is not a host of the network file")
        return self.file.tor_of[host]

    def _ends(self, report: FlowReport) -> Pair:
        return self.file.tor_of[report.source], self.file.tor_of[report.target]

    def _crosses(self, report: FlowReport) -> bool:
        return self.file.tor_of[report.source] != self.file.tor_of[report.target]

    def _index_ports(self, host: str, ports: PortPaths) -> None:
        for target, table in ports.items():
            by_path: dict[Path, list[int]] = {}
            for port in sorted(table):
                path = self.file.path_numbers(table[port])
                if path is not None:
                    by_path.setdefault(path, []).append(port)
            ports_on = {path: tuple(ports) for path, ports in by_path.items()}
            self._ports_of[host, target] = ports_on

    def _lives(self, path: Path, dead: frozenset[Cable]) -> bool:
        names = self.file.numbered
        hops = itertools.pairwise(path)
        return not dead or not any(frozenset((names[a], names[b])) in dead for a, b in hops)

    def _dead_links(self, dead: frozenset[Cable]) -> list[int]:
        numbers, links = self.file.numbers, self._network.link_numbers
        ends = [[numbers[name] for name in cable] for cable in dead]
        return sorted(links[hop] for a, b in ends for hop in ((a, b), (b, a)))

    def _isolated(self, dead: frozenset[Cable]) -> set[int]:
        """ToRs without live cables."""
        return {tor for tor, cables in self._cables_of.items() if cables <= dead}

    def _found_detours(self, links: list[int], dead: frozenset[Cable]) -> dict[Pair, PathSet]:
        """The shortest live paths of pairs whose usual ones are dead."""
        if not dead:
            return {}
        cut = [self._kind_at[number] for number in self._assignment.cut_off(links)]
        isolated = self._isolated(dead)
        pairs = [k[:2] for k in cut if k.paths is None and not isolated.intersection(k[:2])]
        left = self.file.network(dead) if pairs else self._network
        return {pair: paths for pair in pairs if (paths := left.paths(*pair))}

    def _linked(self, dead: frozenset[Cable]) -> tuple[Operation, dict[Pair, PathSet]]:
        links = self._dead_links(dead)
        detours = self._found_detours(links, dead)
        differ = {
            pair
            for pair in self._detours.keys() | detours.keys()
            if self._detours.get(pair) != detours.get(pair)
        }
        names = set(self._avoiding)
        if differ:
            names.update(n for n in self.numbers if self._ends(self.flows[n].report) in differ)
        kinds, numbers = [], self.numbers
        for name in sorted(names):
            number = numbers[name]
            kind = self._restricted(self.flows[name], dead, detours)
            if kind != self._kind_of[number]:
                kinds.append((number, kind))
        return Operation(kinds=tuple(kinds), dead=tuple(links)), detours

    def _allowed(
        self,
        report: FlowReport,
        avoided: frozenset[Path],
        dead: frozenset[Cable],
        detours: Mapping[Pair, PathSet],
    ) -> PathSet:
        """Shortest paths; once the host has probed the target, those with a source port; without
        the avoided ones, unless all are."""
        pair = self._ends(report)
        paths = detours.get(pair)
        if paths is None:
            paths = self._network.paths(*pair)
        probed = self._ports_of.get((report.source, report.target))
        if probed is not None:
            paths = tuple(path for path in paths if path in probed)
        rest = tuple(path for path in paths if path not in avoided)
        return rest if any(self._lives(path, dead) for path in rest) else paths

    def _kind(self, flow: AssignedFlow) -> int:
        if flow.avoided:
            return self._restricted(flow, self.dead, self._detours)
        return self._host_kind(flow.report.source, flow.report.target)

    def _restricted(
        self, flow: AssignedFlow, dead: frozenset[Cable], detours: Mapping[Pair, PathSet]
    ) -> int:
        pair = self._ends(flow.report)
        paths = self._allowed(flow.report, flow.avoided, dead, detours)
        every = self._network.paths(*pair)
        return self._number_of(_Kind(*pair, None if paths == every else paths))

    def _host_kind(self, source: str, target: str) -> int:
        """The kind of flows between two hosts that avoid nothing; `_LOCAL` under one ToR."""
        known = self._kind_cache.get((source, target))
        if known is None:
            if len(self._kind_cache) >= _MOST_KINDS:
                self._forget_kinds()
            pair = self.file.tor_of[source], self.file.tor_of[target]
            if pair[0] == pair[1]:
                known = _LOCAL
            elif pair in self._detours or (source, target) in self._ports_of:
                report = _AnyReport(source, target)
                flow = AssignedFlow(report, "", None, 0)  # type: ignore[arg-type]
                known = self._restricted(flow, self.dead, self._detours)
            else:
                known = self._number_of(_Kind(*pair, None))
            self._kind_cache[source, target] = known
        return known

    def _forget_kinds(self) -> None:
        """Flows of the same hosts may be of another kind from now on."""
        self._kind_cache.clear()
        self._kinds_of_reports.clear()

    def _number_of(self, kind: _Kind) -> int:
        """The number of a kind; a new one is added after that of all paths of its pair."""
        if kind in self._kinds:
            return self._kinds[kind]
        if kind.paths is not None:
            self._number_of(kind._replace(paths=None))
        paths = self._network.paths(*kind[:2]) if kind.paths is None else kind.paths
        links = self._network.link_numbers
        hops = [[links[hop] for hop in itertools.pairwise(path)] for path in paths]

        def added(assignment: _core.PathAssignment) -> _core.PathAssignment:
            assignment.add_kind(kind.source, kind.target, hops)
            return assignment

        number = self._assignment.add_kind(kind.source, kind.target, hops)
        if self.replays is not None:
            self.replays.append(added)
        self._kinds[kind] = number
        self._kind_at.append(kind)
        self._paths += paths
        return number

    def _path_number(self, kind: int, path: Path | None) -> int:
        first = self._assignment.first_path(kind)
        last = self._assignment.first_path(kind + 1)
        among = self._paths[first:last]
        return first + among.index(path) if path in among else -1

    def _other_kinds(self, flows: Iterable[str]) -> tuple[tuple[int, int], ...]:
        """The `flows` with new sets of paths."""
        found, numbers = [], self.numbers
        for name in flows:
            if name in numbers:
                number, kind = numbers[name], self._kind(self.flows[name])
                if kind != self._kind_of[number]:
                    found.append((number, kind))
        return tuple(found)

    def _settled(self, operation: Operation) -> list[str]:
        """Applies it; returns the ids of flows with a new path or rate."""
        result = self._decided(operation)
        for number, kind in operation.kinds:
            self._kind_of[number] = kind
        return self._noted(result.moved, result)

    def _decided(self, operation: Operation) -> _core.AssignmentResult:
        """The result of the operation, which it applies to the assignment."""
        change = _core.AssignmentChange(*operation)
        result = self.precomputed.take(operation)
        if result is None:
            result = self._assignment.change(change, self._threads)
        else:
            self._assignment.adopt(change, result)
        if self.replays is not None:
            found = result

            def adopted(assignment: _core.PathAssignment) -> _core.PathAssignment:
                assignment.adopt(change, found)
                return assignment

            self.replays.append(adopted)
        self.epoch += 1
        return result

    def _noted(self, moved: Sequence[tuple[int, int]], result: _core.AssignmentResult) -> list[str]:
        """Copies the paths and rates of a result to the flows."""
        if moved or result.rates:
            self._note_new()
        epoch, flows, ids, paths = self.epoch, self.flows, self._ids, self._paths
        changed: dict[str, None] = {}
        for number, at in moved:
            name = ids[number]
            old = flows[name]
            path = paths[at] if at >= 0 else None
            if path != old.path:
                flows[name] = old._replace(path=path, changed=epoch)
                changed[name] = None
        for number, rate in result.rates:
            name = ids[number]
            published = rate if rate >= 0 else None
            flows[name] = flows[name]._replace(rate_bits_per_s=published, changed=epoch)
            changed[name] = None
        if len(self._kinds) > _MOST_KINDS:
            self._make_anew()
        return list(changed)


def _starting(kinds: Sequence[int]) -> Operation:
    """Flows of these kinds start."""
    if _LOCAL in kinds:
        kinds = [kind for kind in kinds if kind != _LOCAL]
    return Operation(started=tuple(kinds))


_as_assigned = partial(tuple.__new__, AssignedFlow)  # AssignedFlow._make without a call in Python


class _AnyReport(NamedTuple):
    source: str
    target: str
