# Made by `make stubs` from csrc/bind; tests/bindings/test_stubs.py compares.
"""
Flow-level cost and strategy search; torch_topoopt.sim and .search are its front.
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing

import torch_topoopt.op_graph
import torch_topoopt.plan
import torch_topoopt.search.shards
import torch_topoopt.shared_networks.allocation.boards

class Computation:
    @property
    def host(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def task(self) -> int: ...

class ProgramLink:
    @property
    def bits_per_s(self) -> float: ...
    @property
    def id(self) -> int: ...
    @property
    def latency_ns(self) -> float: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...

class ProgramFlow:
    @property
    def id(self) -> int: ...
    @property
    def links(self) -> list[int]: ...
    @property
    def size_bytes(self) -> float: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...

class FlowProgram:
    """
    Links and tasks: flows with paths, computation, delays. What is added is checked, a fault is a
    ValueError. Tasks are numbered in the order of addition, and so are links; a task waits for
    those that `add_dependency` says.
    """
    @staticmethod
    def parse(text: str) -> FlowProgram: ...
    @staticmethod
    def read(path: str) -> FlowProgram: ...
    def __init__(self, nodes: int, hosts: int) -> None: ...
    def add_change(self, time_s: float, link: int, bits_per_s: float) -> None: ...
    def add_compute(self, host: int, seconds: float, priority: int = 0) -> int: ...
    def add_delay(self, seconds: float) -> int: ...
    def add_dependency(self, before: int, after: int) -> None: ...
    def add_flow(
        self, source: int, target: int, size_bytes: float, links: collections.abc.Sequence[int]
    ) -> int: ...
    def add_link(self, source: int, target: int, bits_per_s: float, latency_ns: float) -> int: ...
    def add_loop(self, first: int, end: int, start_s: float = 0.0) -> None:
        """
        Tasks first..end again and again; `end` waits for all others of them.
        """
    def flow(self, task: int) -> ProgramFlow:
        """
        The flow that is task `task`; its links are indices.
        """
    def set_first_come(self, first_come: bool) -> None: ...
    def set_hosts_at_once(self, count: float) -> None: ...
    def set_rounds(self, rounds: int) -> None:
        """
        How often every loop has to end before the run does.
        """
    @property
    def compute_tasks(self) -> list[Computation]: ...
    @property
    def flow_count(self) -> int: ...
    @property
    def flow_tasks(self) -> list[int]: ...
    @property
    def hosts(self) -> int: ...
    @property
    def links(self) -> list[ProgramLink]: ...
    @property
    def nodes(self) -> int: ...
    @property
    def task_count(self) -> int: ...

class CircuitMove:
    """
    Rates by link (0: no circuit any more), and the paths of pairs as in network_of_paths.
    """
    def __init__(
        self,
        rates: collections.abc.Mapping[int, float],
        source: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        target: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        latency_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        begin: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        link: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        load: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> None: ...

class CircuitControl:
    """
    `choose(now_s, waiting)`, with BytesOfPairs, is called at 0 and then every window; it returns a
    CircuitMove or None.
    """
    def __init__(
        self, window_s: float, delay_s: float, choose: collections.abc.Callable[..., typing.Any]
    ) -> None: ...

class RoutedNetwork:
    """
    Links, routes per pair, rings per group. One object must not be used from two threads. A pair
    without a route follows `by_offset`, or `next_hops[source * servers + target]`.
    """
    @staticmethod
    def ideal_switch(servers: int, bytes_per_s: float, latency_s: float) -> RoutedNetwork:
        """
        A switch that never blocks, with one link to and from each server.
        """
    def __init__(
        self,
        servers: int,
        links: collections.abc.Sequence[torch_topoopt.plan.Link],
        bytes_per_s: float,
        latency_s: float,
        routes: collections.abc.Sequence[torch_topoopt.plan.Route],
        groups: collections.abc.Sequence[torch_topoopt.plan.Group],
        by_offset: collections.abc.Sequence[torch_topoopt.plan.StrideRoute] = (),
        next_hops: collections.abc.Sequence[int] = (),
    ) -> None: ...
    def add_schedules(
        self,
        ends: collections.abc.Sequence[tuple[int, int]],
        cost: torch_topoopt.plan.CostModel,
        algorithm: str = "auto",
        ranks_per_server: int = 1,
    ) -> None:
        """
        On a direct network, groups choose as the backend does, by `cost` (without a rate: that of
        the slowest link) or as TOPOOPT_ALGORITHM says. Over switches, they also choose among their
        rings in both directions and exchanges over routes. Link i joins the nodes `ends[i]`; those
        from the number of servers on are switches.
        """
    def all_reduce_algorithm(
        self, servers: collections.abc.Sequence[int], size_bytes: float
    ) -> str:
        """
        The backend's choice on a direct network with schedules; else empty.
        """
    def all_reduce_link_bytes(
        self, servers: collections.abc.Sequence[int], size_bytes: float
    ) -> list[float]:
        """
        Of one, on its choice; by link.
        """
    def all_reduce_seconds(
        self, servers: collections.abc.Sequence[int], size_bytes: float
    ) -> float:
        """
        Of one alone, on its choice.
        """
    def collective_link_bytes(
        self,
        collective: str,
        members: collections.abc.Sequence[int],
        size_bytes: int,
        root: int = 0,
    ) -> list[float]:
        """
        Bytes by link of a collective on `size_bytes` of all blocks together, as the backend runs it
        on a direct network with schedules. `members` has the server of each; `root` is the number
        of one.
        """
    def grid(self, servers: collections.abc.Sequence[int]) -> list[list[int]]:
        """
        The rows along which it may go instead; empty: there are none.
        """
    def rings(self, servers: collections.abc.Sequence[int]) -> list[torch_topoopt.plan.Ring]:
        """
        Those that an AllReduce among `servers` uses.
        """
    def takes_grid(self, servers: collections.abc.Sequence[int], size_bytes: float) -> bool:
        """
        Whether an AllReduce of so many bytes does so, because that is faster.
        """

class MaxMinRates:
    """
    Max-min fair rates of the flows on given paths, each a list of (link, load).
    """
    def __init__(
        self,
        capacity: collections.abc.Sequence[float],
        paths: collections.abc.Sequence[collections.abc.Sequence[tuple[int, float]]],
    ) -> None: ...
    def change(self, path: int, delta: int) -> None: ...
    def solve(self) -> tuple[list[float], int]:
        """
        (rate of every path, number of links visited)
        """

class Transfer:
    """
    What a shard of a consumer takes from a shard of a producer: a `fraction` of the tensor, from
    server `source` to `target`.
    """
    @property
    def consumer_shard(self) -> int: ...
    @property
    def fraction(self) -> float: ...
    @property
    def producer_shard(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...

class Need:
    """
    What the shards of a consumer need of a tensor.
    """
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...

class Job:
    """
    The costs of every operator, with shards for each of `degrees`; `buckets` of gradients (None:
    every operator by itself); seconds of a server beside its operators.
    """
    def __init__(
        self,
        servers: int,
        micro_batches: int,
        degrees: collections.abc.Sequence[torch_topoopt.plan.Degrees],
        local_reduce_s_per_byte: float,
        operators: collections.abc.Sequence[torch_topoopt.search.shards.ShardedOperator],
        buckets: torch_topoopt.op_graph.GradientBuckets | None = None,
        overhead_s: float = 0.0,
        servers_at_once: float = ...,
    ) -> None: ...

class SimulatedIteration:
    """
    Seconds of an iteration, compute seconds of the busiest server, bytes per link, and the number
    of tasks.
    """
    @property
    def compute_s(self) -> float: ...
    @property
    def iteration_s(self) -> float: ...
    @property
    def link_bytes(self) -> list[float]: ...
    @property
    def tasks(self) -> int: ...

class WeightedPath:
    """
    Links (indices) from a source to a target, and the fraction of the bytes on them.
    """
    def __init__(self, links: collections.abc.Sequence[int], weight: float = 1.0) -> None: ...

class Cargo:
    """
    What flows carry, of which operators (indices); of an AllReduce the order of its ring, or of its
    row or column, and how many steps of it.
    """
    @property
    def is_line(self) -> bool: ...
    @property
    def kind(self) -> typing.Literal["activations", "gradients", "AllReduce"]: ...
    @property
    def operators(self) -> list[int]: ...
    @property
    def ring(self) -> list[int]: ...
    @property
    def steps(self) -> int: ...

class AddedIterations:
    """
    The tasks that end an iteration, and per task an index into the cargoes (-1: no flow).
    """
    @property
    def cargo_of_task(self) -> list[int]: ...
    @property
    def ends(self) -> list[int]: ...

class IterationTasks:
    """
    The tasks of one iteration; its flows, from source[i] to target[i], have no paths yet. Those
    with is_direct[i] = 1 must use the links from one to the other.
    """
    def __init__(
        self,
        job: Job,
        network: RoutedNetwork,
        strategy: collections.abc.Sequence[torch_topoopt.plan.Placement],
        ring_steps: str = "together",
    ) -> None: ...
    def add_to(
        self,
        program: FlowProgram,
        paths: collections.abc.Sequence[collections.abc.Sequence[WeightedPath]],
        path_of_flow: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        iterations: int,
        hosts: collections.abc.Sequence[int] = [],
    ) -> AddedIterations: ...
    def computed(self, priority: int) -> tuple[int, int, bool]:
        """
        (operator or -1, micro-batch, whether backward) of a compute task of that priority.
        """
    @property
    def cargoes(self) -> list[Cargo]: ...
    @property
    def is_direct(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def source(self) -> numpy.typing.NDArray[numpy.int32]: ...
    @property
    def target(self) -> numpy.typing.NDArray[numpy.int32]: ...

class SearchSpace:
    """
    Numbers of placements in groups, by ways of splitting; per operator which of these, and its
    kind.
    """
    def __init__(
        self,
        placements: collections.abc.Sequence[torch_topoopt.plan.Placement],
        spaces: collections.abc.Sequence[collections.abc.Sequence[collections.abc.Sequence[int]]],
        space_of_operator: collections.abc.Sequence[int],
        kind_of_operator: collections.abc.Sequence[int],
    ) -> None: ...

class IterationPrices:
    """
    Prices at flow level of one job on one network, shared by all who simulate there.
    """
    def __init__(self, servers: int) -> None: ...
    def __len__(self) -> int: ...
    def add(
        self,
        strategy: collections.abc.Sequence[torch_topoopt.plan.Placement],
        seconds: float,
        tasks: int,
    ) -> None: ...
    def find(
        self, strategy: collections.abc.Sequence[torch_topoopt.plan.Placement]
    ) -> float | None:
        """
        Its seconds; None where it has not been simulated.
        """

class StrategySearch:
    """
    A Markov chain over strategies, priced at flow level.
    """
    def __init__(
        self,
        job: Job,
        network: RoutedNetwork,
        space: SearchSpace,
        starts: collections.abc.Sequence[collections.abc.Sequence[torch_topoopt.plan.Placement]],
        memory_limit_bytes: int,
        max_transfers: int,
        seed: int,
        beta: float,
        prices: IterationPrices,
        slack: float = ...,
    ) -> None: ...
    def best(self) -> list[torch_topoopt.plan.Placement]: ...
    def step(self, evaluations: int) -> None: ...
    @property
    def accepted(self) -> int: ...
    @property
    def best_s(self) -> float: ...
    @property
    def current_s(self) -> float: ...
    @property
    def evaluations(self) -> int: ...
    @property
    def simulations(self) -> int: ...
    @property
    def tasks(self) -> int: ...

class Descent:
    """
    Downhill from one strategy, priced at flow level.
    """
    def __init__(
        self,
        job: Job,
        network: RoutedNetwork,
        space: SearchSpace,
        start: collections.abc.Sequence[torch_topoopt.plan.Placement],
        memory_limit_bytes: int,
        max_transfers: int,
        prices: IterationPrices,
    ) -> None: ...
    def best(self) -> list[torch_topoopt.plan.Placement]: ...
    def step(self, evaluations: int, slack: float) -> None: ...
    def step_blocks(self, evaluations: int, slack: float) -> None: ...
    @property
    def best_s(self) -> float: ...
    @property
    def blocks_done(self) -> bool: ...
    @property
    def done(self) -> bool: ...
    @property
    def evaluations(self) -> int: ...
    @property
    def simulations(self) -> int: ...
    @property
    def tasks(self) -> int: ...

class CoarseChain:
    """
    A Markov chain over strategies, priced by the coarse simulator.
    """
    def __init__(
        self,
        job: Job,
        network: RoutedNetwork,
        space: SearchSpace,
        starts: collections.abc.Sequence[collections.abc.Sequence[torch_topoopt.plan.Placement]],
        memory_limit_bytes: int,
        max_transfers: int,
        seed: int,
        beta: float,
    ) -> None: ...
    def best(self, count: int) -> list[tuple[float, list[torch_topoopt.plan.Placement]]]:
        """
        The best first, each with its seconds.
        """
    def cool(self, evaluations: int, times: float) -> None:
        """
        Over the next `evaluations`, beta grows to `times` what it is.
        """
    def simulate_fully(self) -> None:
        """
        From now on, every proposal from start to end; the chain goes the same way.
        """
    def step(self, evaluations: int) -> None: ...
    @property
    def accepted(self) -> int: ...
    @property
    def best_s(self) -> float: ...
    @property
    def current_s(self) -> float: ...
    @property
    def evaluations(self) -> int: ...
    @property
    def full_steps(self) -> int: ...
    @property
    def simulations(self) -> int: ...
    @property
    def steps_simulated(self) -> int: ...

class CoarseSimulator:
    """
    The coarse simulator: strategies priced from the start, or as changes of the one before.
    """
    def __init__(self, job: Job, network: RoutedNetwork) -> None: ...
    def propose(
        self, strategy: collections.abc.Sequence[torch_topoopt.plan.Placement], keep: bool = False
    ) -> float: ...
    def run(self, strategy: collections.abc.Sequence[torch_topoopt.plan.Placement]) -> float: ...
    @property
    def full_steps(self) -> int: ...
    @property
    def steps_simulated(self) -> int: ...

class AssignmentChange:
    """
    Flows that end, kinds of flows that start, (flow, kind) that change, and all links that are dead
    from now on, or None.
    """
    def __init__(
        self,
        ended: collections.abc.Sequence[int],
        started: collections.abc.Sequence[int],
        kinds: collections.abc.Sequence[tuple[int, int]],
        dead: collections.abc.Sequence[int] | None,
    ) -> None: ...

class AssignmentResult:
    """
    Numbers of new flows; (flow, path) of flows that moved, -1 where none is left; (flow, rate)
    where another one is published.
    """
    def __len__(self) -> int: ...
    @property
    def moved(self) -> list[tuple[int, int]]: ...
    @property
    def rates(self) -> list[tuple[int, float]]: ...
    @property
    def started(self) -> list[int]: ...

class PathAssignment:
    """
    The flows of a network that come and go, and the path of each.
    """
    def __init__(
        self,
        tors: int,
        spines: int,
        links: collections.abc.Sequence[tuple[int, int]],
        capacity: collections.abc.Sequence[float],
        scheme: str,
        limits_rates: bool,
    ) -> None: ...
    def add_kind(
        self,
        source: int,
        target: int,
        paths: collections.abc.Sequence[collections.abc.Sequence[int]],
    ) -> int:
        """
        The number of a new kind of flows; paths are lists of links.
        """
    def adopt(self, change: AssignmentChange, result: AssignmentResult) -> None:
        """
        A change whose result a copy has found.
        """
    def change(self, change: AssignmentChange, threads: int) -> AssignmentResult: ...
    def copy(self) -> PathAssignment: ...
    def cut_off(self, dead: collections.abc.Sequence[int]) -> list[int]:
        """
        Kinds that have no live path with exactly these links dead.
        """
    def first_path(self, kind: int) -> int: ...
    def restore(
        self,
        kinds: collections.abc.Sequence[int],
        paths: collections.abc.Sequence[int],
        rates: collections.abc.Sequence[float],
        dead: collections.abc.Sequence[int],
    ) -> list[int]:
        """
        Numbers of flows that are as they were.
        """
    def shares(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        Of each flow by its number its max-min fair share.
        """
    @property
    def loads(self) -> list[int]: ...

class SwitchedPaths:
    """
    Capacities of links, and of every pair its paths as lists of links.
    """
    def __init__(
        self,
        capacity: collections.abc.Sequence[float],
        pairs: collections.abc.Sequence[collections.abc.Sequence[collections.abc.Sequence[int]]],
    ) -> None: ...
    def annealed(
        self,
        pairs: collections.abc.Sequence[int],
        demands: collections.abc.Sequence[float],
        choice: collections.abc.Sequence[int],
        steps: int,
        seed: int,
    ) -> list[int]: ...
    def greedy(
        self,
        pairs: collections.abc.Sequence[int],
        demands: collections.abc.Sequence[float],
        order: collections.abc.Sequence[int],
        threads: int,
    ) -> list[int]:
        """
        A path of each flow, chosen in that order.
        """
    def improved(
        self,
        pairs: collections.abc.Sequence[int],
        demands: collections.abc.Sequence[float],
        choice: collections.abc.Sequence[int],
        bound: float,
        moves: int,
        seed: int,
    ) -> list[int]: ...
    def loads(
        self,
        pairs: collections.abc.Sequence[int],
        demands: collections.abc.Sequence[float],
        choice: collections.abc.Sequence[int],
    ) -> list[float]:
        """
        The demand on every link.
        """

class RingTransfers:
    """
    AllReduce rings on shared links of `capacity` bytes per second: in each of its rounds every hop
    of a ring sends, and the next round begins when all have.
    """
    def __init__(self, capacity: collections.abc.Sequence[float]) -> None: ...
    def advance(self, until_s: float) -> list[int]:
        """
        Goes on until rings end, or `until_s`. The rings that ended then.
        """
    def ended_flows(self, ring: int) -> tuple[int, float, float, float]:
        """
        Of the flows of `ring` that ended: their number, and sums of their seconds, of their rates
        in bytes per second, and of their bytes.
        """
    def reroute(
        self, ring: int, hops: collections.abc.Sequence[collections.abc.Sequence[int]]
    ) -> None:
        """
        The hops of `ring` go on over these paths.
        """
    def start(
        self,
        hops: collections.abc.Sequence[collections.abc.Sequence[int]],
        size_bytes: float,
        rounds: int,
    ) -> int:
        """
        The number of a ring that begins now; `hops` are lists of links.
        """
    @property
    def now_s(self) -> float: ...

class Rerouted:
    @property
    def bound(self) -> float:
        """
        No routing has less utilisation.
        """
    @property
    def paths(self) -> list[list[tuple[list[int], float]]]:
        """
        (servers, bytes) of every path, by commodity.
        """
    @property
    def sweeps(self) -> int: ...
    @property
    def utilisation(self) -> float:
        """
        Of the busiest edge.
        """

class AdaptiveRouting:
    """
    Which links a packet may take next, on which virtual channel. One object must not be used from
    two threads.
    """
    def __init__(
        self,
        nodes: int,
        links: collections.abc.Sequence[tuple[int, int]],
        channels: int = 1,
        raises: collections.abc.Sequence[int] = (),
        last: collections.abc.Sequence[int] = (),
        lifts: collections.abc.Sequence[int] = (),
        detours: collections.abc.Sequence[collections.abc.Sequence[int]] = (),
    ) -> None:
        """
        `raises`: links that a packet takes on the next channel; `last`: behind one of these only
        such links, or those of `lifts`, may follow; `detours`: groups of nodes, over one of which a
        packet may be sent first.
        """
    def add_flows(
        self,
        program: FlowProgram,
        source: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        target: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        size_bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> int:
        """
        Adds flow i from source[i] to target[i] over the first path; the number of the first.
        """
    def candidates(self, source: int, target: int, over: int | None = None) -> list[int]:
        """
        Links from `source` that a packet for `target` may take, made there or come `over` a link.
        """
    def dependencies(
        self, hosts: collections.abc.Sequence[int]
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        The channel dependency graph of packets between `hosts`: rows (a, b) where a packet that
        holds channel a may wait for channel b. A channel is link * channels + number.
        """
    def hops(self, target: int) -> list[int]:
        """
        The fewest links from every node to `target`; -1 where there is no path.
        """
    def path(self, source: int, target: int) -> list[int]:
        """
        The first of the paths. Raises ValueError where there is none.
        """
    @property
    def channels(self) -> int: ...

class CollectiveCandidate:
    @property
    def algorithm(self) -> str: ...
    @property
    def busiest_link_bytes(self) -> float:
        """
        relative to the rate of the slowest link
        """
    @property
    def seconds(self) -> float: ...
    @property
    def steps(self) -> int:
        """
        messages that wait for each other
        """

class CollectiveCandidates:
    @property
    def bound_bytes(self) -> float:
        """
        least that the busiest link carries: of the slowest cut
        """
    @property
    def bound_seconds(self) -> float:
        """
        their time, without latencies
        """
    @property
    def chosen(self) -> str: ...
    @property
    def list(self) -> list[CollectiveCandidate]: ...

class GraphGroup:
    """
    A group with one rank on each server of a graph of links: (source, target, bytes/s).
    """
    def __init__(
        self,
        servers: int,
        links: collections.abc.Sequence[
            typing.Annotated[collections.abc.Sequence[float], "FixedSize(3)"]
        ],
        rings: collections.abc.Sequence[torch_topoopt.plan.Ring],
        alpha_s: float,
        hop_s: float,
    ) -> None: ...
    def candidates(self, collective: str, bytes: int) -> CollectiveCandidates: ...
    def plan(self, algorithm: str, backward: bool, origin: int | None) -> tuple[typing.Any, ...]:
        """
        Pieces by receiver: (sender, origin, first, end, step), the units of a shard, steps.
        """
    @property
    def rings(self) -> list[torch_topoopt.plan.Ring]:
        """
        The given rings, or those found.
        """

class BytesOfPairs:
    """
    Bytes by ordered pair of servers.
    """
    def __init__(self, bytes: collections.abc.Mapping[tuple[int, int], float]) -> None: ...
    def __len__(self) -> int: ...
    def items(self) -> list[tuple[tuple[int, int], float]]:
        """
        ((source, target), bytes) in ascending order of pairs
        """

class HopTotals:
    """
    The least hops of all ordered pairs of servers.
    """
    @property
    def diameter(self) -> int: ...
    @property
    def sum(self) -> int: ...
    @property
    def unreachable(self) -> int:
        """
        Pairs without a path.
        """

class ShortestPathLoads:
    """
    What edges carry if nodes send over paths of the fewest hops.
    """
    def __init__(
        self,
        nodes: int,
        source: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        target: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        rate: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> None: ...
    def loads(
        self,
        targets: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        sent: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> tuple[numpy.typing.NDArray[numpy.float64], float, int]:
        """
        (load by edge, length of all that is sent, most hops): node u sends sent[u] weights[i] to
        targets[i], split by rates, or over the least `lengths` where these are not empty
        """
    def of_each_pair(
        self,
        sources: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        targets: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        latency_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.float64],
        numpy.typing.NDArray[numpy.float64],
    ]:
        """
        (begin, edge, load, latency_s): a byte of pair i puts load[u] bytes on edge[u] for u in
        begin[i]..begin[i + 1] and takes at most latency_s[i], over edges of those latencies
        """
    def of_pairs(
        self,
        sources: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        targets: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        bytes: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    ) -> tuple[numpy.typing.NDArray[numpy.float64], list[int]]:
        """
        (load by edge, hops of every pair) of single pairs of nodes, split by rates
        """

class RingSearch:
    """
    Annealing over unions of rings and links.
    """
    def __init__(
        self,
        servers: int,
        symmetry: int,
        duplex: bool,
        rings: collections.abc.Sequence[collections.abc.Sequence[int]],
        links: collections.abc.Sequence[tuple[int, int]],
        weights: collections.abc.Sequence[int],
        seed: int,
    ) -> None: ...
    def anneal(self, work: int, hot: float, cold: float, enough: int = 0) -> None: ...
    def best(self) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """
        (rings, links) of the best union seen
        """
    @property
    def accepted(self) -> int: ...
    @property
    def best_cost(self) -> int: ...
    @property
    def cost(self) -> int: ...
    @property
    def operations(self) -> int:
        """
        On words, in all calls so far: what `work` counts.
        """

class BoardMesh:
    """
    The free boards of a HammingMesh; `failed` has [row, column].
    """
    def __init__(
        self, rows: int, columns: int, failed: collections.abc.Sequence[tuple[int, int]]
    ) -> None: ...
    def allocate(
        self,
        kinds: collections.abc.Sequence[collections.abc.Sequence[tuple[int, int]]],
        jobs: collections.abc.Sequence[int],
        order: collections.abc.Sequence[int],
        fit: str,
        per_leaf: int,
    ) -> list[torch_topoopt.shared_networks.allocation.boards.SubMesh | None]:
        """
        Takes a sub-mesh for each job of `order` that gets one. A job is the number of its kind; a
        kind is the shapes that its jobs take, as (rows, columns), the one to try first at the
        front.
        """
    def find(
        self, rows: int, columns: int, fit: str, per_leaf: int
    ) -> torch_topoopt.shared_networks.allocation.boards.SubMesh | None:
        """
        A free sub-mesh; None where none was found.
        """
    def improve(
        self,
        kinds: collections.abc.Sequence[collections.abc.Sequence[tuple[int, int]]],
        jobs: collections.abc.Sequence[int],
        placed: collections.abc.Sequence[
            torch_topoopt.shared_networks.allocation.boards.SubMesh | None
        ],
        rounds: int,
        seed: int,
    ) -> list[torch_topoopt.shared_networks.allocation.boards.SubMesh | None]:
        """
        Ruin and recreate; what it returns has no fewer boards.
        """
    def is_free(self, wanted: torch_topoopt.shared_networks.allocation.boards.SubMesh) -> bool: ...
    def release(self, found: torch_topoopt.shared_networks.allocation.boards.SubMesh) -> None: ...
    def take(self, found: torch_topoopt.shared_networks.allocation.boards.SubMesh) -> None: ...
    @property
    def free_boards(self) -> int: ...

def acceptance_probability(current_s: float, proposed_s: float, beta: float) -> float: ...
def add_dependencies(
    program: FlowProgram,
    before: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
    after: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
) -> None:
    """
    Task after[i] of the program waits for before[i].
    """

def balanced_colouring(
    vertices: int, edges: collections.abc.Sequence[tuple[int, int]], colours: int
) -> list[int]:
    """
    A colour of each edge (source, target) of a bipartite multigraph.
    """

def balanced_shares(
    servers: int,
    edges: collections.abc.Sequence[tuple[int, int, float]],
    commodities: collections.abc.Sequence[tuple[int, int, float]],
) -> list[list[tuple[list[int], float]]]:
    """
    (servers, share) of the paths of each commodity, as ranks divide the bytes of an all-to-all.
    """

def circuits_for(
    servers: int,
    degree: int,
    unsatisfied: BytesOfPairs,
    present: collections.abc.Sequence[tuple[int, int]],
    halve: bool,
) -> list[tuple[int, int]]:
    """
    Circuits for the pairs with the most bytes, then those of `present` that have ports
    """

def coloured_pairs(
    vertices: int,
    ends: collections.abc.Sequence[tuple[int, int]],
    pairs: collections.abc.Sequence[int],
    colours: int,
) -> list[int]:
    """
    The same of edges that are given as numbers of pairs (source, target).
    """

def connect_parts(
    servers: int, circuits: collections.abc.Sequence[tuple[int, int]], unsatisfied: BytesOfPairs
) -> list[tuple[int, int]]:
    """
    The circuits after two-edge replacement, which joins the parts of the network
    """

def exchange_pairs(servers: collections.abc.Sequence[int]) -> list[tuple[int, int]]:
    """
    The pairs that an AllReduce by exchanges among `servers` needs.
    """

def hop_matrix(
    servers: int, links: collections.abc.Sequence[tuple[int, int]]
) -> numpy.typing.NDArray[numpy.int16]:
    """
    Least hops [source][target] as an int16 array; -1 without a path
    """

def hop_summary(servers: int, links: collections.abc.Sequence[tuple[int, int]]) -> HopTotals: ...
def max_min_rates(
    capacity: collections.abc.Sequence[float],
    paths: collections.abc.Sequence[collections.abc.Sequence[int]],
) -> tuple[list[float], list[int]]:
    """
    Of each flow its max-min fair rate, in the unit of `capacity`, and the link that holds it back.
    `paths` are lists of links, one for each flow.
    """

def memory_bytes(
    job: Job, strategy: collections.abc.Sequence[torch_topoopt.plan.Placement]
) -> list[int]:
    """
    Bytes in the memory of each accelerator of every server.
    """

def micro_batches_in_flight(
    strategy: collections.abc.Sequence[torch_topoopt.plan.Placement],
    producers: collections.abc.Sequence[collections.abc.Sequence[int]],
    servers: int,
    micro_batches: int,
) -> list[int]:
    """
    Per operator: how many micro-batches it holds at once.
    """

def network_of_paths(
    servers: int,
    bytes_per_s: collections.abc.Sequence[float],
    source: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    target: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    latency_s: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    begin: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    link: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    load: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
    groups: collections.abc.Sequence[torch_topoopt.plan.Group],
) -> RoutedNetwork:
    """
    Any network: pair i loads link[begin[i]:begin[i + 1]] by load[...] bytes for each byte
    """

def packed_all_reduce(
    servers: collections.abc.Sequence[int], rates: collections.abc.Mapping[tuple[int, int], float]
) -> list[dict[tuple[int, int], float]]:
    """
    The AllReduce among `servers` (ascending) with the least time of the busiest link: the bytes per
    byte on each link of its ReduceScatter and of its AllGather. `rates` has the rates of links by
    source and target.
    """

def packet_options() -> list[str]: ...
def packet_transports() -> list[str]: ...
def parameter_groups(placement: torch_topoopt.plan.Placement) -> list[list[int]]:
    """
    The servers that hold the same parameters, ascending: one group per part of them.
    """

def placement_need(
    consumer: torch_topoopt.plan.Placement, whole_parameter: bool, whole_attribute: bool
) -> Need:
    """
    What shards need of a tensor: equal for consumers that share one transfer of it.
    """

def placement_sent(
    producer: torch_topoopt.plan.Placement,
    consumer: torch_topoopt.plan.Placement,
    whole_parameter: bool,
    whole_attribute: bool,
) -> int:
    """
    How many of `placement_transfers` are between different servers.
    """

def placement_transfers(
    producer: torch_topoopt.plan.Placement,
    consumer: torch_topoopt.plan.Placement,
    whole_parameter: bool,
    whole_attribute: bool,
) -> list[Transfer]:
    """
    Every pair of shards that share a part of the tensor.
    """

def plain_report(body: bytes, longest_id: int) -> typing.Any:
    """
    A report of flows in the common form: request, job, ids, sources, targets, bytes and periods of
    the flows; None for any other body.
    """

def rerouted(
    servers: int,
    edges: collections.abc.Sequence[tuple[int, int, float]],
    commodities: collections.abc.Sequence[tuple[int, int, float]],
    gap: float,
    sweeps: int,
) -> Rerouted: ...
def rings_of_group(
    groups: collections.abc.Sequence[torch_topoopt.plan.Group],
    servers: collections.abc.Sequence[int],
    both_ways: bool,
    hops: collections.abc.Callable[[], collections.abc.Sequence[int]],
) -> list[torch_topoopt.plan.Ring]:
    """
    The rings that `servers` (ascending) use. `hops` gives the hops between each two, row by row; it
    is called if no planned group holds them.
    """

def run_flow_level(
    program: FlowProgram,
    until_s: float,
    keep_going: typing.Any,
    control: CircuitControl | None = None,
) -> dict[str, typing.Any]: ...
def run_folded(program: FlowProgram, fold: bool | None) -> tuple[typing.Any, ...]:
    """
    At flow level, with what behaves alike simulated once (None: where that saves time): (makespan,
    finish per task, busy seconds per host, bytes per link).
    """

def run_packet_level(
    program: FlowProgram,
    until_s: float,
    keep_going: typing.Any,
    options: dict[str, typing.Any],
    paths: collections.abc.Sequence[
        tuple[int, collections.abc.Sequence[collections.abc.Sequence[int]]]
    ],
    reroutes: collections.abc.Sequence[tuple[float, int, collections.abc.Sequence[int]]],
    control: CircuitControl | None = None,
    routing: AdaptiveRouting | None = None,
) -> dict[str, typing.Any]: ...
def simulate_iteration(
    job: Job,
    network: RoutedNetwork,
    strategy: collections.abc.Sequence[torch_topoopt.plan.Placement],
    fold: bool | None = None,
) -> SimulatedIteration:
    """
    `fold`: whether what behaves alike is simulated once; None: where that saves time.
    """
