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
_Step = tuple[
    Literal["compute", "delay", "flow", "all_reduce"], int, int, float, int, list[int], list[int]
]
_Task = tuple[str, int, float, float, int, Sequence[int], Sequence[int]]

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

    `fold`: whether what behaves alike is simulated once; None: where that saves time."""

def simulate_tasks(
    bytes_per_s: Sequence[float],
    devices: int,
    tasks: Sequence[_Task],
    fold: bool | None = None,
    devices_at_once: float = ...,
) -> tuple[float, list[float], list[float], list[float]]:
    """(makespan, finish per task, busy seconds per device, bytes per link)"""

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

def acceptance_probability(current_s: float, proposed_s: float, beta: float) -> float: ...
def memory_bytes(job: Job, strategy: Sequence[_Placement]) -> list[int]: ...
def iteration_steps(job: Job, strategy: Sequence[_Placement]) -> list[_Step]: ...
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
_Change = tuple[float, int, float]

class FlowProgram:
    """Links, and flows with paths, sizes and dependencies, checked; torch_topoopt.sim fronts it.

    Links are (source, target, bits_per_s, latency_ns), flows (source, target, size_bytes, links,
    after), tasks ("flow" | "compute" | "delay", host, target, amount, priority, links, after),
    changes (time_s, link, bits_per_s)."""

    def __init__(
        self,
        nodes: int,
        hosts: int,
        links: Sequence[tuple[int, int, float, float]],
        flows: Sequence[tuple[int, int, float, Sequence[int], Sequence[int]]],
        changes: Sequence[_Change],
    ) -> None: ...
    @staticmethod
    def of_tasks(
        nodes: int,
        hosts: int,
        links: Sequence[tuple[int, int, float, float]],
        tasks: Sequence[tuple[str, int, int, float, int, Sequence[int], Sequence[int]]],
        changes: Sequence[_Change],
        first_come: bool = False,
        hosts_at_once: float = ...,
    ) -> FlowProgram: ...
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
    def links(self) -> list[tuple[int, int, int, float, float]]: ...
    def flow(self, task: int) -> tuple[int, int, int, float, list[int]]: ...

def run_flow_level(
    program: FlowProgram, until_s: float, keep_going: _Progress | None
) -> dict[str, Any]: ...
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
    control: tuple[float, float, Callable[..., object]] | None = None,
) -> dict[str, Any]: ...
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
