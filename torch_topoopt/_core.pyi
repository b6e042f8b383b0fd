"""The C++ core: flow-level cost, strategy search, topologies.

`torch_topoopt.sim`, `.search` and `.topology` are its front.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_Servers = Sequence[int]
_Rings = Sequence[tuple[_Servers, float]]
# servers, parameter split (0 none, 1 columns, 2 rows, 3 experts), its degree, attribute degree
_Placement = tuple[_Servers, int, int, int]
_Operator = tuple[
    Sequence[tuple[float, float, int, int]],
    float,
    Sequence[int],
    bool,
    Sequence[tuple[int, float, float, int]],
]

class RoutedNetwork:
    """Links, routes per pair, rings per group. One object must not be used from two threads.

    A pair without a route follows `by_offset`, (strides, weight), or `next_hops[source * n +
    target]`.
    """

    def __init__(
        self,
        servers: int,
        links: Sequence[tuple[int, int]],
        bytes_per_s: float,
        latency_s: float,
        routes: Sequence[tuple[_Servers, float]],
        groups: Sequence[tuple[_Servers, _Rings]],
        by_offset: Sequence[tuple[Sequence[int], float]] = (),
        next_hops: Sequence[int] = (),
    ) -> None: ...
    @staticmethod
    def ideal_switch(servers: int, bytes_per_s: float, latency_s: float) -> RoutedNetwork: ...
    def rings(self, servers: _Servers) -> list[tuple[list[int], float]]: ...

class Job:
    """Costs of every operator: shards (forward and backward seconds, state and saved bytes) per
    degrees (sample, kind, parameter, attribute), AllReduce bytes, the kinds that need whole
    operands, whether positions do, operands (producer, bytes forward, bytes backward); buckets of
    gradients (0: every operator by itself), seconds of a server beside its operators."""

    def __init__(
        self,
        servers: int,
        micro_batches: int,
        degrees: Sequence[tuple[int, int, int, int]],
        local_reduce_s_per_byte: float,
        operators: Sequence[_Operator],
        first_bucket_bytes: float = 0.0,
        bucket_bytes: float = 0.0,
        overhead_s: float = 0.0,
        servers_at_once: float = ...,
    ) -> None: ...

class MaxMinRates:
    """Max-min fair rates of the flows on given paths, each a list of (link, load)."""

    def __init__(
        self, capacity: Sequence[float], paths: Sequence[Sequence[tuple[int, float]]]
    ) -> None: ...
    def change(self, path: int, delta: int) -> None: ...
    def solve(self) -> tuple[list[float], int]:
        """(rate of every path, number of paths visited)"""

class SearchSpace:
    """Placements in groups, by kind of operator, and the kind of every operator."""

    def __init__(
        self,
        spaces: Sequence[Sequence[Sequence[_Placement]]],
        space_of_operator: Sequence[int],
    ) -> None: ...

class StrategySearch:
    """A Markov chain over strategies, priced at flow level; csrc/search says what it does."""

    def __init__(
        self,
        job: Job,
        network: RoutedNetwork,
        space: SearchSpace,
        starts: Sequence[Sequence[_Placement]],
        memory_limit_bytes: int,
        max_transfers: int,
        seed: int,
        beta: float,
    ) -> None: ...
    def step(self, evaluations: int) -> None: ...
    @property
    def evaluations(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def simulations(self) -> int: ...
    @property
    def current_s(self) -> float: ...
    @property
    def best_s(self) -> float: ...
    @property
    def tasks(self) -> int: ...
    def best(self) -> list[tuple[list[int], int, int, int]]: ...

class CoarseChain:
    """A Markov chain over strategies, priced by the coarse simulator."""

    def __init__(
        self,
        job: Job,
        network: RoutedNetwork,
        space: SearchSpace,
        starts: Sequence[Sequence[_Placement]],
        memory_limit_bytes: int,
        max_transfers: int,
        seed: int,
        beta: float,
    ) -> None: ...
    def cool(self, evaluations: int, times: float) -> None:
        """Over the next `evaluations`, beta grows to `times` what it is."""

    def step(self, evaluations: int) -> None: ...
    def simulate_fully(self) -> None:
        """From now on, every proposal from start to end; the chain goes the same way."""

    @property
    def evaluations(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def simulations(self) -> int: ...
    @property
    def current_s(self) -> float: ...
    @property
    def best_s(self) -> float: ...
    @property
    def steps_simulated(self) -> int: ...
    @property
    def steps_asked(self) -> int: ...
    def best(self, count: int) -> list[tuple[float, list[tuple[list[int], int, int, int]]]]:
        """The best first, each with its seconds."""

class StrategyPrices:
    """The coarse simulator: strategies priced from the start, or as changes of the one before."""

    def __init__(self, job: Job, network: RoutedNetwork) -> None: ...
    def run(self, strategy: Sequence[_Placement]) -> float: ...
    def propose(self, strategy: Sequence[_Placement], keep: bool = False) -> float: ...
    @property
    def steps_simulated(self) -> int: ...
    @property
    def steps_asked(self) -> int: ...

def simulate_iteration(
    job: Job, network: RoutedNetwork, strategy: Sequence[_Placement], fold: bool | None = None
) -> tuple[float, float, list[float], int]:
    """(iteration seconds, compute seconds of the busiest server, bytes per link, tasks)

    `fold`: whether symmetric parts are simulated once; None: where that saves time."""

def network_of_paths(
    servers: int,
    bytes_per_s: Sequence[float],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    latency_s: NDArray[np.float64],
    begin: NDArray[np.int64],
    link: NDArray[np.int64],
    load: NDArray[np.float64],
    groups: Sequence[tuple[_Servers, _Rings]],
) -> RoutedNetwork:
    """Any network: pair i loads link[begin[i]:begin[i + 1]] by load[...] bytes for each byte."""

def rings_of_group(
    groups: Sequence[tuple[_Servers, _Rings]],
    servers: _Servers,
    both_ways: bool,
    hops: Sequence[int],
) -> list[tuple[list[int], float]]:
    """The rings that `servers` (ascending) use, with the hops between each two, row by row."""

def acceptance_probability(current_s: float, proposed_s: float, beta: float) -> float: ...
def memory_bytes(job: Job, strategy: Sequence[_Placement]) -> list[int]: ...
def placement_transfers(
    producer: _Placement, consumer: _Placement, whole_parameter: bool, whole_attribute: bool
) -> list[tuple[int, int, int, int, float]]:
    """(shard of the producer, of the consumer, source, target, fraction of the tensor)"""

def placement_sent(
    producer: _Placement, consumer: _Placement, whole_parameter: bool, whole_attribute: bool
) -> int:
    """How many of `placement_transfers` are between different servers."""

def placement_need(
    consumer: _Placement, whole_parameter: bool, whole_attribute: bool
) -> tuple[list[int], int, int, bool, bool, bool]:
    """What shards need of a tensor: equal for consumers that share one transfer of it."""

def parameter_groups(placement: _Placement) -> list[list[int]]: ...
def micro_batches_in_flight(
    strategy: Sequence[_Placement],
    producers: Sequence[Sequence[int]],
    servers: int,
    micro_batches: int,
) -> list[int]:
    """Per operator: how many micro-batches it holds at once."""

_Progress = Callable[[float, int], bool]

class ProgramLink:
    """A directed link of a program; `id` is its number, or that in a file."""

    @property
    def id(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def bits_per_s(self) -> float: ...
    @property
    def latency_ns(self) -> float: ...

class ProgramFlow:
    """A flow of a program; `id` is the number of its task, or that in a file, `links` indices."""

    @property
    def id(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def size_bytes(self) -> float: ...
    @property
    def links(self) -> list[int]: ...

class FlowProgram:
    """Links and tasks: flows with paths, computation, delays; torch_topoopt.sim fronts it.

    What is added is checked, a fault is a ValueError. Tasks are numbered in the order of addition,
    and so are links; a task waits for those that `add_dependency` says."""

    def __init__(self, nodes: int, hosts: int) -> None: ...
    def add_link(self, source: int, target: int, bits_per_s: float, latency_ns: float) -> int: ...
    def add_flow(
        self, source: int, target: int, size_bytes: float, links: Sequence[int]
    ) -> int: ...
    def add_compute(self, host: int, seconds: float, priority: int = 0) -> int: ...
    def add_delay(self, seconds: float) -> int: ...
    def add_dependency(self, before: int, after: int) -> None: ...
    def add_change(self, time_s: float, link: int, bits_per_s: float) -> None: ...
    def set_first_come(self, first_come: bool) -> None:
        """Whether hosts take, of tasks with equal priority, the one that was ready first."""

    def set_hosts_at_once(self, count: float) -> None:
        """While more hosts than that compute, they share it evenly."""

    @staticmethod
    def read(path: str) -> FlowProgram: ...
    @staticmethod
    def parse(text: str) -> FlowProgram: ...
    @property
    def nodes(self) -> int: ...
    @property
    def hosts(self) -> int: ...
    @property
    def flow_count(self) -> int: ...
    @property
    def task_count(self) -> int: ...
    @property
    def flow_tasks(self) -> list[int]: ...
    @property
    def links(self) -> list[ProgramLink]: ...
    def flow(self, task: int) -> ProgramFlow: ...

class WeightedPath:
    """Links (indices) from a source to a target, and the fraction of the bytes on them."""

    def __init__(self, links: Sequence[int], weight: float = 1.0) -> None: ...

class Cargo:
    """What flows carry, of which operators (indices); of an AllReduce the order of its ring."""

    @property
    def kind(self) -> Literal["activations", "gradients", "AllReduce"]: ...
    @property
    def operators(self) -> list[int]: ...
    @property
    def ring(self) -> list[int]: ...

class AddedIterations:
    """The tasks that end an iteration, and per task an index into the cargoes (-1: no flow)."""

    @property
    def ends(self) -> list[int]: ...
    @property
    def cargo_of_task(self) -> list[int]: ...

class IterationTasks:
    """The tasks of one iteration; its flows, from source[i] to target[i], have no paths yet."""

    def __init__(
        self, job: Job, network: RoutedNetwork, strategy: Sequence[_Placement]
    ) -> None: ...
    @property
    def source(self) -> NDArray[np.int32]: ...
    @property
    def target(self) -> NDArray[np.int32]: ...
    @property
    def cargoes(self) -> list[Cargo]: ...
    def add_to(
        self,
        program: FlowProgram,
        paths: Sequence[Sequence[WeightedPath]],
        path_of_flow: NDArray[np.int32],
        iterations: int,
    ) -> AddedIterations: ...

class CircuitMove:
    """Rates by link (0: no circuit any more), and the paths of pairs as in network_of_paths."""

    def __init__(
        self,
        rates: dict[int, float],
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        latency_s: NDArray[np.float64],
        begin: NDArray[np.int64],
        link: NDArray[np.int64],
        load: NDArray[np.float64],
    ) -> None: ...

class CircuitControl:
    """`choose(now_s, {(source, target): bytes})` is called at 0 and then every window."""

    def __init__(
        self,
        window_s: float,
        delay_s: float,
        choose: Callable[[float, dict[tuple[int, int], float]], CircuitMove | None],
    ) -> None: ...

def run_flow_level(
    program: FlowProgram,
    until_s: float,
    keep_going: _Progress | None,
    control: CircuitControl | None = None,
) -> dict[str, Any]: ...
def run_folded(
    program: FlowProgram, fold: bool | None
) -> tuple[float, list[float], list[float], list[float]]:
    """At flow level, with what behaves alike simulated once (None: where that saves time).

    (makespan, finish per task, busy seconds per host, bytes per link)"""

def rerouted(
    servers: int,
    edges: Sequence[tuple[int, int, float]],
    commodities: Sequence[tuple[int, int, float]],
    gap: float,
    sweeps: int,
) -> tuple[list[list[tuple[list[int], float]]], float, float, int]:
    """(paths with bytes of each commodity, maximum utilisation, bound below it, sweeps).

    Edges are (source, target, capacity), commodities (source, target, bytes).
    """

def run_packet_level(
    program: FlowProgram,
    until_s: float,
    keep_going: _Progress | None,
    options: dict[str, Any],
    paths: Sequence[tuple[int, Sequence[Sequence[int]]]],
    reroutes: Sequence[tuple[float, int, Sequence[int]]],
    control: CircuitControl | None = None,
) -> dict[str, Any]: ...
def packet_transports() -> list[str]: ...
def packet_options() -> list[str]: ...
def hop_summary(servers: int, links: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """(sum of the least hops of all ordered pairs, diameter, pairs without a path)"""

def hop_matrix(servers: int, links: Sequence[tuple[int, int]]) -> NDArray[np.int16]:
    """Least hops [source][target]; -1 without a path."""

class RingSearch:
    """Annealing over unions of rings and links; csrc/topology/ring_search.h says what it keeps."""

    def __init__(
        self,
        servers: int,
        symmetry: int,
        duplex: bool,
        rings: Sequence[_Servers],
        links: Sequence[tuple[int, int]],
        weights: Sequence[int],
        seed: int,
    ) -> None: ...
    def anneal(self, work: int, hot: float, cold: float, enough: int = 0) -> None: ...
    def best(self) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """(rings, links) of the best union seen"""
    @property
    def cost(self) -> int: ...
    @property
    def best_cost(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def operations(self) -> int:
        """On words, in all calls so far: what `work` counts"""
