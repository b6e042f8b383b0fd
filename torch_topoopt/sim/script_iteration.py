"""One iteration of a script that communicates by its own calls, from the events of its ranks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt import _core
from torch_topoopt.links.sockets import unsent_bytes_at
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.script.step_events import CallWait, Computation
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.iteration import IterationEstimate
from torch_topoopt.sim.network_paths import paths_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.plan import Cluster, Network, Pair
    from torch_topoopt.profile.script import CollectiveCall
    from torch_topoopt.profile.script.document import Operation
    from torch_topoopt.profile.script.step_events import StepEvent
    from torch_topoopt.sim.collective_costs import CollectiveCost, CollectiveCosts, Priced
    from torch_topoopt.sim.flows import FlowsResult
    from torch_topoopt.sim.network_paths import WeightedLinks

_PRICED: Mapping[Operation, Priced] = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "broadcast",  # the same messages backwards
    "Barrier": "all_reduce",
}
_BARRIER_BYTES = 8
_LEAST_BYTES = 1.0  # of a flow
_MOST_ROUNDS = 12  # of simulations: an early byte changes the pauses of later messages
_SETTLED = 1e-3  # relative change of the iteration's time
SEGMENT_BYTES = 64 << 10  # Linux sends so many at a time; half of them are on their way


class Processors(NamedTuple):
    """The processors that all ranks share: `at_once` ranks compute at full speed, more share them.

    A call takes `call_s` of the script's thread. Each byte that a rank sends or receives takes
    `byte_s` of the backend's thread.
    """

    at_once: float = math.inf
    call_s: float = 0.0
    byte_s: float = 0.0


OWN_PROCESSORS = Processors()  # of every rank


class LinkPacing(NamedTuple):
    """The bytes that an emulated link carries before its rate allows them, at most `burst_bytes`.

    The kernel hands over the bytes of a connection in parts of `part_bytes`, each at once, and the
    next one when the rate allows it. So the last part takes no time. After a pause, the second part
    waits half as long, except in collectives: acknowledgements of the other direction, which begins
    at the same time, end the pause. Without parts, messages have their burst after a pause, and
    collectives none.
    """

    burst_bytes: float = 0.0
    part_bytes: float = 0.0

    def early_bytes(self, size_bytes: float, pause_bytes: float, *, is_message: bool) -> float:
        """The early bytes of a flow that begins after a pause, in which the link could have carried
        `pause_bytes`; negative: the link still waits for the flow before."""
        pause_bytes, owed_bytes = max(0.0, pause_bytes), max(0.0, -pause_bytes)
        if not self.part_bytes:
            return min(size_bytes, self.burst_bytes, pause_bytes) if is_message else 0.0
        early_bytes = self.last_part_bytes(size_bytes)
        if is_message and size_bytes > self.part_bytes:
            early_bytes += min(self.part_bytes / 2, pause_bytes)
        return min(self.burst_bytes, early_bytes) - owed_bytes

    def last_part_bytes(self, size_bytes: float) -> float:
        """At most `part_bytes`; 0 without parts."""
        if not self.part_bytes:
            return 0.0
        return size_bytes - (math.ceil(size_bytes / self.part_bytes) - 1) * self.part_bytes


EVEN_PACING = LinkPacing()


def emulated_processors(at_once: float) -> Processors:
    """Those of one machine whose ranks are joined by TCP: examples/llama.py on emulated servers,
    measured against its steps without messages."""
    return Processors(at_once, 0.3e-3, 1.2e-9)


def script_iteration(
    cluster: Cluster,
    network: Network | None,
    costs: CollectiveCosts,
    events: Sequence[Sequence[StepEvent]],
    *,
    processors: Processors = OWN_PROCESSORS,
    payload_share: float = 1.0,
    pacing: LinkPacing = EVEN_PACING,
) -> IterationEstimate:
    """Simulates the ranks, whose typical steps are `events`, on the links of `network`.

    None is a network whose messages take no time but that in `costs`. Links carry `payload_share`
    of their rate. A collective begins when all its ranks have called it, and after earlier ones of
    its group.
    """
    early_bytes: dict[int, float] = {}
    estimates: list[IterationEstimate] = []
    for _ in range(_MOST_ROUNDS if pacing.burst_bytes else 1):
        program = _ScriptProgram(cluster, network, costs, payload_share, len(events), processors)
        program.early_bytes = early_bytes
        for rank, of_rank in enumerate(events):
            program.add_rank(rank, of_rank)
        result = run_program(program.core)
        early_bytes = program.early_bytes_of(result, pacing)
        link_bytes = tuple(round(size) for size in result.link_bytes)
        busiest_s = float(result.device_busy_s[: len(events)].max(initial=0.0))
        estimates.append(IterationEstimate(result.completion_s, busiest_s, link_bytes))
        if len(estimates) > 1 and _settled(estimates[-2], estimates[-1]):
            break
    return replace(estimates[-1], link_bytes=estimates[0].link_bytes)


def _settled(before: IterationEstimate, after: IterationEstimate) -> bool:
    return abs(after.iteration_s - before.iteration_s) <= _SETTLED * before.iteration_s


class _ScriptProgram:
    """Rank r computes on host r of `core`, and its thread of the backend on host `ranks` + r. Links
    join the hosts of the servers' first ranks."""

    def __init__(
        self,
        cluster: Cluster,
        network: Network | None,
        costs: CollectiveCosts,
        payload_share: float,
        ranks: int,
        processors: Processors,
    ) -> None:
        self.core = _core.FlowProgram(2 * ranks, 2 * ranks)
        self.core.set_hosts_at_once(processors.at_once)
        self._ranks, self._processors = ranks, processors
        self._per_server = cluster.accelerators_per_server
        self._network = network
        self._costs = costs
        self._in_kernel_bytes = unsent_bytes_at(cluster.link_gbps) + SEGMENT_BYTES // 2
        self.early_bytes: dict[int, float] = {}  # by flow: bytes that take no time, below 0: more
        self._flows: list[tuple[int, bool]] = []  # their tasks, and whether they are messages
        self._begins: dict[int, int] = {}  # flow of the end of a message -> that of its begin
        self._paths: dict[Pair, list[WeightedLinks]] = {}
        self._linked = {(link.source, link.target) for link in network.links} if network else set()
        self._called: dict[object, int] = defaultdict(int)  # by rank and channel
        self._calls: dict[object, list[tuple[int, int]]] = defaultdict(list)  # first and last task
        for link in network.links if network else ():
            self.core.add_link(
                link.source * self._per_server,
                link.target * self._per_server,
                cluster.gbps_of(link) * 1e9 * payload_share,
                cluster.link_latency_s * 1e9,
            )

    def add_rank(self, rank: int, events: Sequence[StepEvent]) -> None:
        """Adds the tasks of one rank, one after another, and the collectives that it calls first.

        Raises DocumentError for a Recv from any rank.
        """
        last = self.core.add_delay(0.0)
        ends: list[int] = []
        for event in events:
            if isinstance(event, Computation):
                last = self._then(last, self.core.add_compute(rank, event.processor_s))
                last = self._then(last, self.core.add_delay(event.waiting_s))
            elif isinstance(event, CallWait):
                last = self._then(last, self.core.add_delay(0.0))
                self.core.add_dependency(ends[event.call], last)
            else:
                last = self._then(last, self.core.add_compute(rank, self._processors.call_s))
                is_message = event.operation in ("Send", "Recv")
                add = self._add_message if is_message else self._add_collective
                ends.append(add(last, event))

    def _then(self, before: int, task: int) -> int:
        self.core.add_dependency(before, task)
        return task

    def _add_message(self, before: int, call: CollectiveCall) -> int:
        """The end of a message, which begins when it is sent. A Send ends as soon as the rest of
        its bytes fits into the buffers of the kernel."""
        if call.peer is None:
            raise DocumentError(f"rank {call.rank} receives from any rank; the sender is not known")
        if call.operation == "Recv":
            return self._begin(call.rank, ("message", call.peer, call.rank))[1]
        ends = (call.rank, call.peer)
        first, end, _ = self._begin(call.rank, ("message", *ends))
        self.core.add_dependency(before, first)
        in_kernel = min(self._in_kernel_bytes, call.size_bytes)
        written = self._then(first, self.core.add_delay(0.0))
        begin = len(self._flows)
        self._add_messages({ends: float(call.size_bytes - in_kernel)}, first, written)
        middle = len(self._flows)
        self._add_messages({ends: float(in_kernel)}, written, end)
        self._begins.update(
            zip(range(middle, len(self._flows)), range(begin, middle), strict=False)
        )
        return written

    def _add_collective(self, before: int, call: CollectiveCall) -> int:
        """The end of a collective, which begins when all its ranks have called it."""
        first, end, is_new = self._begin(call.rank, ("group", *sorted(call.group)))
        self.core.add_dependency(before, first)
        servers = tuple(sorted({rank // self._per_server for rank in call.group}))
        priced = _PRICED.get(call.operation)
        if priced is None:
            self._add_messages(_own_messages(call), first, end)
        elif is_new and len(servers) > 1:
            barrier = call.operation == "Barrier"
            size_bytes = _BARRIER_BYTES if barrier else call.size_bytes
            cost = self._costs.collective(priced, servers, size_bytes)
            self._add_cost(cost, call.group, first, end)
        return end

    def _begin(self, rank: int, channel: tuple[object, ...]) -> tuple[int, int, bool]:
        """The first and the last task of the rank's next call on `channel`, and whether it is the
        first rank to call. Calls on one channel run one after another."""
        count = self._called[rank, channel]
        self._called[rank, channel] += 1
        calls = self._calls[channel]
        if is_new := count == len(calls):
            first = self.core.add_delay(0.0)
            if calls:
                self.core.add_dependency(calls[-1][1], first)
            calls.append((first, self._then(first, self.core.add_delay(0.0))))
        return *calls[count], is_new

    def _add_messages(self, size_bytes: Mapping[Pair, float], first: int, end: int) -> None:
        """Messages between two ranks, by (source, target)."""
        for ranks, size in size_bytes.items():
            source, target = (rank // self._per_server for rank in ranks)
            if source != target and size:
                cost = self._costs.message(source, target, size)
                self._add_cost(cost, ranks, first, end, is_message=True)

    # parameters: a cost, its ranks, and the tasks around it
    def _add_cost(
        self,
        cost: CollectiveCost,
        ranks: Sequence[int],
        first: int,
        end: int,
        *,
        is_message: bool = False,
    ) -> None:
        """The messages of a call of `ranks`, and the processor time of moving them."""
        moved_bytes: dict[int, float] = defaultdict(float)  # by server
        for pair, size in cost.messages.items():
            for server in pair:
                moved_bytes[server] += size
        shares = Counter(rank // self._per_server for rank in ranks)
        for rank in ranks:
            server = rank // self._per_server
            seconds = self._processors.byte_s * moved_bytes[server] / shares[server]
            moved = self._then(first, self.core.add_compute(self._ranks + rank, seconds))
            self.core.add_dependency(moved, end)
        arrived = self._then(first, self.core.add_delay(0.0))
        for pair, size in cost.messages.items():
            source, target = (server * self._per_server for server in pair)
            for links, weight in self._paths_of(pair):
                left = max(
                    _LEAST_BYTES, size * weight - self.early_bytes.get(len(self._flows), 0.0)
                )
                flow = self.core.add_flow(source, target, left, links)
                self._flows.append((flow, is_message))
                self.core.add_dependency(first, flow)
                self.core.add_dependency(flow, arrived)
        latency = self._then(arrived, self.core.add_delay(cost.latency_s))
        self.core.add_dependency(latency, end)

    def early_bytes_of(self, result: FlowsResult, pacing: LinkPacing) -> dict[int, float]:
        """The early bytes of each flow, none while others are on its links."""
        found: dict[int, float] = {}
        begun: dict[int, tuple[float, float]] = {}  # bytes of a flow, and of the pause before it
        ended_s: dict[int, float] = defaultdict(lambda: -math.inf)  # by link
        free_s: dict[int, float] = defaultdict(lambda: -math.inf)  # when the rate allows more
        order = sorted(range(len(self._flows)), key=lambda i: result.start_s[self._flows[i][0]])
        for number in order:
            task, is_message = self._flows[number]
            flow = self.core.flow(task)
            size_bytes = flow.size_bytes + self.early_bytes.get(number, 0.0)
            bytes_per_s = min(self.core.links[link].bits_per_s for link in flow.links) / 8
            start_s, end_s = result.start_s[task], result.finish_s[task]
            if start_s >= max(ended_s[link] for link in flow.links):
                pause_s = start_s - max(free_s[link] for link in flow.links)
                before_bytes, pause_bytes = begun.get(
                    self._begins.get(number, number), (0.0, pause_s * bytes_per_s)
                )
                size_bytes += before_bytes
                begun[number] = size_bytes, pause_bytes
                found[number] = pacing.early_bytes(size_bytes, pause_bytes, is_message=is_message)
                if before_bytes:
                    found[number] -= found[self._begins[number]]
            last_bytes = min(pacing.burst_bytes, pacing.last_part_bytes(size_bytes))
            for link in flow.links:
                ended_s[link] = max(ended_s[link], end_s)
                free_s[link] = max(free_s[link], end_s + last_bytes / bytes_per_s)
        return found

    def _paths_of(self, pair: Pair) -> list[WeightedLinks]:
        if pair not in self._paths:
            assert self._network is not None
            (self._paths[pair],) = paths_of(self._network, [pair], [pair in self._linked])
        return self._paths[pair]


def _own_messages(call: CollectiveCall) -> dict[Pair, float]:
    """What one rank sends in an AllToAll or Gather, or receives in a Scatter."""
    if call.operation == "AllToAll":
        parts = zip(call.group, call.part_bytes, strict=True)
        return {(call.rank, target): float(size) for target, size in parts}
    assert call.peer is not None
    is_gather = call.operation == "Gather"
    pair = (call.rank, call.peer) if is_gather else (call.peer, call.rank)
    return {pair: float(call.size_bytes)}
