"""Exchanges of groups of accelerators as flows between servers, and inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch_topoopt import _core
from torch_topoopt.plan import CostModel
from torch_topoopt.search.layouts.links import LINK_EFFICIENCY
from torch_topoopt.search.layouts.server_groups import server_sets
from torch_topoopt.sim.collective_costs import NetworkCosts
from torch_topoopt.sim.flow_names import FlowName
from torch_topoopt.sim.network_paths import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch_topoopt.plan import Cluster, Network, Pair
    from torch_topoopt.plan.layout import Layout
    from torch_topoopt.search.layouts.links import Boxes, RankGroup
    from torch_topoopt.sim.flow_names import FlowKind
    from torch_topoopt.sim.network_paths import WeightedLinks

    Tasks = dict[int, int]  # by unit
    Between = list[tuple[tuple[int, ...], Mapping[Pair, float]]]
    Collective = Literal["all_gather", "reduce_scatter", "all_reduce"]
    Content = Literal["activations", "gradients", "parameters", "keys and values", "tokens"]

_BITS = 8.0
_NAMES: dict[Collective, FlowKind] = {
    "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"
}  # fmt: skip


class Unit(NamedTuple):
    """The accelerators of one stage on one server, which all do the same."""

    stage: int
    server: int
    ranks: int


class ExchangeOrigin(NamedTuple):
    """The operators of an exchange, and the number of its iteration."""

    operators: tuple[str, ...]
    iteration: int


class Exchanges:
    """A program with the links of `network`, and the flows of groups of `layout` in it.

    Host s is server s. If stages share servers, the later ones have further hosts. Links inside
    servers follow those of the network, one for each unit: all its accelerators send alike.
    """

    def __init__(self, cluster: Cluster, network: Network, boxes: Boxes, layout: Layout) -> None:
        self._cluster, self._network, self._boxes = cluster, network, boxes
        self._per_stage = layout.accelerators // layout.pipeline
        self._box = cluster.accelerators_per_server
        self._ranks = layout.accelerators
        self.units = [unit for stage in range(layout.pipeline) for unit in self._units_of(stage)]
        self.host_of, self.server_of_host = self._hosts()
        hosts = len(self.server_of_host)
        nodes = hosts + len(self.units)
        self.program = _core.FlowProgram(nodes, nodes)
        for link in network.links:
            bits_per_s = cluster.gbps_of(link) * 1e9 * boxes.port_efficiency
            latency_ns = cluster.link_latency_s * 1e9
            self.program.add_link(link.source, link.target, bits_per_s, latency_ns)
        self._inside = [
            self.program.add_link(
                self.host_of[i],
                hosts + i,
                boxes.peer_bytes_per_s * _BITS * LINK_EFFICIENCY,
                0.0,
            )
            for i in range(len(self.units))
        ]
        message = CostModel(boxes.hop_s, cluster.link_latency_s, 0.0)
        self._costs = NetworkCosts(cluster, network, message, "on-links")
        self._linked = {(link.source, link.target) for link in network.links}
        self._paths: dict[Pair, list[WeightedLinks]] = {}
        self._found: dict[Any, Any] = {}
        self._sent: dict[tuple[int, ...], list[int]] = {}  # last flows between stages and servers
        self.names: dict[int, FlowName] = {}

    @property
    def server_of_node(self) -> list[int]:
        """The server of every host, and of the node at the end of each unit's link inside it."""
        return [*self.server_of_host, *(unit.server for unit in self.units)]

    def _units_of(self, stage: int) -> Iterable[Unit]:
        ranks = range(stage * self._per_stage, (stage + 1) * self._per_stage)
        counts: dict[int, int] = {}
        for rank in ranks:
            counts[rank // self._box] = counts.get(rank // self._box, 0) + 1
        return (Unit(stage, server, count) for server, count in counts.items())

    def _hosts(self) -> tuple[list[int], list[int]]:
        servers = list(range(self._cluster.servers))
        taken: set[int] = set()
        hosts = []
        for unit in self.units:
            if unit.server in taken:
                hosts.append(len(servers))
                servers.append(unit.server)
            else:
                hosts.append(unit.server)
            taken.add(unit.server)
        return hosts, servers

    def of_stage(self, stage: int) -> list[int]:
        """The numbers of its units."""
        return [i for i, unit in enumerate(self.units) if unit.stage == stage]

    def join(self, before: Iterable[int], seconds: float = 0.0) -> int:
        """A task that takes `seconds` after others."""
        tasks = list(dict.fromkeys(before))
        if not seconds and len(tasks) == 1:
            return tasks[0]
        return self.then(self.program.add_delay(seconds), tasks)

    def then(self, task: int, before: Iterable[int]) -> int:
        """`task`, after others."""
        for other in dict.fromkeys(before):
            self.program.add_dependency(other, task)
        return task

    # parameters: what is exchanged, by whom, after which tasks, and its name
    def gather(
        self,
        group: RankGroup,
        size_bytes: float,
        begin: Tasks,
        part: ExchangeOrigin,
        *,
        what: Content,
        collective: Collective = "all_gather",
        count: int = 1,
    ) -> Tasks:
        """`count` collectives of `size_bytes` together in every group of that kind of a stage,
        by the backend's schedules between servers; their ends, by unit."""
        ranks = group.ranks
        if ranks == 1 or not size_bytes:
            return begin
        passes = 2 if collective == "all_reduce" else 1
        inside = {}
        if self._boxes.inside(group) > 1:
            inside = dict.fromkeys(begin, passes * size_bytes * (ranks - 1) / ranks)
        between: Between = []
        for servers, groups in self._sets(group, begin):
            ordered = tuple(sorted(servers))
            cost = self._costs.collective(collective, ordered, round(groups * size_bytes))
            between.append((servers, cost.messages))
        latency_s = passes * count * self._boxes.gather_latency_s(group)
        name = FlowName(_NAMES[collective], part.operators, iteration=part.iteration, content=what)
        return self._exchange(begin, inside, between, latency_s, name)

    def all_to_all(
        self, group: RankGroup, size_bytes: float, begin: Tasks, part: ExchangeOrigin, *, count: int
    ) -> Tasks:
        """All-to-alls of `size_bytes` of every rank; their ends, by unit."""
        ranks = group.ranks
        if ranks == 1 or not size_bytes:
            return begin
        in_box = self._boxes.inside(group)
        near = size_bytes * (in_box - 1) / ranks
        between: Between = []
        for servers, groups in self._sets(group, begin):
            each = groups * (ranks / len(servers)) ** 2 * size_bytes / ranks
            pairs = {(a, b): each for a in servers for b in servers if a != b}
            between.append((servers, pairs))
        latency_s = count * self._boxes.all_to_all_latency_s(group)
        name = FlowName("AllToAll", part.operators, iteration=part.iteration, content="tokens")
        return self._exchange(
            begin, dict.fromkeys(begin, near) if near else {}, between, latency_s, name
        )

    def send(self, size_bytes: float, begin: Tasks, part: ExchangeOrigin, *, back: bool) -> Tasks:
        """A message of every rank of a stage to that of the next stage, or `back` to the one
        before, after its earlier ones there; the arrivals, by unit."""
        stage = self.units[next(iter(begin))].stage
        last = self._ranks // self._per_stage - 1
        to = (stage + (-1 if back else 1)) % (last + 1)
        unit_of = {self.units[i].server: i for i in self.of_stage(to)}
        own = {self.units[i].server: i for i in begin}
        counts: dict[tuple[int, int], int] = {}
        for place in range(self._per_stage):
            ends = (
                (stage * self._per_stage + place) // self._box,
                (to * self._per_stage + place) // self._box,
            )
            counts[ends] = counts.get(ends, 0) + 1
        name = FlowName(
            "gradients" if back else "activations", part.operators, iteration=part.iteration
        )
        arrived: dict[int, list[int]] = {}
        for (source, target), ranks in counts.items():
            before = begin[own[source]]
            latency_s = self._boxes.launch_s
            if source == target:
                sent = [self._inside_flow(own[source], size_bytes, name)]
            else:
                sent = self._flows((source, target), ranks * size_bytes, name)
                latency_s += self._boxes.hop_s
            ahead = self._sent.get((stage, to, source, target), [])
            for flow in sent:
                self.then(flow, [before, *ahead])
            self._sent[stage, to, source, target] = sent
            arrived.setdefault(unit_of[target], []).append(self.join(sent, latency_s))
        return {unit: self.join(tasks) for unit, tasks in arrived.items()}

    def _sets(self, group: RankGroup, begin: Tasks) -> list[tuple[tuple[int, ...], int]]:
        """The servers of each group of a stage, and how many groups have these."""
        stage = self.units[next(iter(begin))].stage
        key = stage, group
        if key not in self._found:
            ranks = range(stage * self._per_stage, (stage + 1) * self._per_stage)
            self._found[key] = list(server_sets(group, ranks, self._box).items())
        found: list[tuple[tuple[int, ...], int]] = self._found[key]
        return found

    # parameters: `begin` and the parts of one exchange
    def _exchange(
        self,
        begin: Tasks,
        inside: Mapping[int, float],
        between: Between,
        latency_s: float,
        name: FlowName,
    ) -> Tasks:
        ends: dict[int, list[int]] = {unit: [begin[unit]] for unit in begin}
        unit_of = {self.units[unit].server: unit for unit in begin}
        for unit, size_bytes in inside.items():
            flow = self._inside_flow(unit, size_bytes, name)
            self.program.add_dependency(begin[unit], flow)
            ends[unit].append(flow)
        for servers, messages in between:
            started = self.join(begin[unit_of[server]] for server in servers)
            flows = [started]
            for pair, size_bytes in messages.items():
                for flow in self._flows(pair, size_bytes, name):
                    self.program.add_dependency(started, flow)
                    flows.append(flow)
            done = self.join(flows)
            for server in servers:
                ends[unit_of[server]].append(done)
        return {unit: self.join(tasks, latency_s) for unit, tasks in ends.items()}

    def _inside_flow(self, unit: int, size_bytes: float, name: FlowName) -> int:
        node = len(self.server_of_host) + unit
        flow = self.program.add_flow(self.host_of[unit], node, size_bytes, [self._inside[unit]])
        self.names[flow] = name
        return flow

    def _flows(self, pair: Pair, size_bytes: float, name: FlowName) -> list[int]:
        if pair not in self._paths:
            (self._paths[pair],) = paths_of(self._network, [pair], [pair in self._linked])
        found = []
        for links, weight in self._paths[pair]:
            flow = self.program.add_flow(*pair, size_bytes * weight, links)
            self.names[flow] = name
            found.append(flow)
        return found
