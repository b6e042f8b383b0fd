"""Task graphs that were published with the TopoOpt paper, packet by packet, beside its simulator.

    git clone https://github.com/hipersys-team/TopoOpt
    cd TopoOpt/simulation/scripts/fig16/fattree/tgs
    python .../published_graphs.py 100vgg_16.fbuf 100dlrm_16.fbuf
    python .../published_graphs.py --orders 9 100candle_16.fbuf
    python .../published_graphs.py --network circulant --strides 1,13 400dlrm_128.fbuf

A file holds one training iteration: what each device computes, transfers between servers, and ring
AllReduces. They run as the paper's simulator (FlexNetPacket) runs them: links of --gbps and 1 us,
to a switch (`star`) or a cable to the server at every stride, both ways (`circulant`); a device
takes its tasks in the order in which they became ready; a ring step starts when all members have
ended the one before; a tensor of less than a packet per member takes one step. The bytes of an
AllReduce are shared evenly over the rings of all strides, and a pair has one path, one of the
shortest at random. Its DCTCP: a first window of 100 packets and one more for the answer to the
connection request, which waits among the data; packets of 8936 bytes in all; answers at once; marks
for what leaves a queue of more than 50 packets, but not the queue between a host and a switch; and
a window that is cut after every round, marked or not, as long as a mark is remembered.

Where that simulator's result is recorded, it stands below: simulated time and CPU seconds of its
authors' version on 2 cores of a Xeon with AVX-512; that of DLRM on a circulant for the paths that
--seed 0 gives here. Not the same: the order of flows that start in one instant (--seed; by number
there), and AllReduces of some of the servers on a circulant, which it runs on the wrong servers and
ours over shortest paths.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from references.flow_workloads import shortest_steps
from torch_topoopt import _core
from torch_topoopt.sim import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

LATENCY_NS = 1000.0
PAYLOAD, HEADER = 8935, 1
MTU = 9000  # decides only which tensors are small
OPTIONS: dict[str, Any] = {
    "transport": "dctcp",
    "acks": "instant",
    "control_first": False,
    "mtu_bytes": PAYLOAD,
    "header_bytes": HEADER,
    "full_last_packet": True,
    "dctcp_initial_window_packets": 101,
    "dctcp_mark_on_departure": True,
    "dctcp_cut_every_window": True,
}
# (file, network, Gb/s): (simulated ms, CPU seconds or None, packet-hops or None)
RECORDED = {
    ("100vgg_16", "star", 100): (210.403519839, 1.61, 7.80e6),
    ("400vgg_16", "star", 400): (100.481432902, 2.0, None),
    ("100dlrm_16", "star", 100): (61.166911877, 0.5, None),
    ("400dlrm_16", "star", 400): (20.779274438, None, None),
    ("100transformer_16", "star", 100): (63.968900175, None, None),
    ("400transformer_16", "star", 400): (61.434284154, None, None),
    ("100candle_16", "star", 100): (514.428495891, 3.5, None),
    ("400candle_16", "star", 400): (191.089429879, 5.4, None),
    ("100vgg_16", "circulant", 100): (100.480326542, 0.77, 3.93e6),
    ("100transformer_16", "circulant", 100): (62.815, 0.34, 0.90e6),
    ("400dlrm_16", "circulant", 100): (23.748422052, 0.47, 1.36e6),
    ("400dlrm_128", "circulant", 100): (93.238901974, 60.9, 44.1e6),
}


class Table:
    """A table of a FlatBuffers file: little-endian, found through its vtable."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - struct.unpack_from("<i", data, at)[0]
        self._size = struct.unpack_from("<H", data, self._vtable)[0]

    @classmethod
    def root(cls, data: bytes) -> Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _place(self, index: int) -> int:
        """The place of field `index` of the schema; 0: it has its default."""
        slot = 4 + 2 * index
        if slot >= self._size:
            return 0
        offset = struct.unpack_from("<H", self._data, self._vtable + slot)[0]
        return self._at + offset if offset else 0

    def value(self, index: int, form: str) -> float:
        place = self._place(index)
        return struct.unpack_from("<" + form, self._data, place)[0] if place else 0

    def _vector(self, index: int) -> tuple[int, int]:
        place = self._place(index)
        if not place:
            return 0, 0
        start = place + struct.unpack_from("<I", self._data, place)[0]
        return start + 4, struct.unpack_from("<I", self._data, start)[0]

    def values(self, index: int, form: str) -> tuple[int, ...]:
        start, count = self._vector(index)
        return struct.unpack_from(f"<{count}{form}", self._data, start)

    def tables(self, index: int) -> list[Table]:
        start, count = self._vector(index)
        places = range(start, start + 4 * count, 4)
        return [Table(self._data, p + struct.unpack_from("<I", self._data, p)[0]) for p in places]


COMPUTE, TRANSFER, ALL_REDUCE = "compute", "transfer", "all-reduce"
_TRANSFER_TYPE, _ALL_REDUCE_TYPE = 5, 6
_NETWORK_DEVICES = (13, 14)


@dataclass
class GraphTask:
    """`device` computes for `seconds`; a transfer goes from `source` to `target`; an AllReduce of
    `members` starts `seconds` after what it waits for. `after` are indices."""

    kind: str
    device: int = 0
    seconds: float = 0.0
    source: int = 0
    target: int = 0
    size_bytes: int = 0
    members: tuple[int, ...] = ()
    after: list[int] = field(default_factory=list)


@dataclass
class Graph:
    servers: int
    devices: int
    tasks: list[GraphTask]


def read_graph(data: bytes) -> Graph:
    """One published file; raises ValueError for what is none."""
    try:
        root = Table.root(data)
        servers, switches = int(root.value(1, "I")), int(root.value(2, "I"))
        devices = root.tables(9)
        kind_of = {int(d.value(1, "Q")): int(d.value(0, "h")) for d in devices}
        pair_of = {int(d.value(1, "Q")): int(d.value(3, "Q")) for d in devices}
        tables = root.tables(8)
    except struct.error as error:
        raise ValueError(f"not a published task graph: {error}") from None
    if servers < 1 or not tables:
        raise ValueError("not a published task graph: it has no servers or no tasks")
    number = {device: i for i, device in enumerate(kind_of)}
    index = {int(table.value(1, "Q")): i for i, table in enumerate(tables)}
    tasks = []
    for table in tables:
        kind, device = int(table.value(0, "h")), int(table.value(2, "Q"))
        seconds, size = table.value(3, "f") * 1e-3, int(table.value(4, "Q"))
        if kind == _ALL_REDUCE_TYPE:
            members = table.values(5, "Q")
            tasks.append(GraphTask(ALL_REDUCE, seconds=seconds, size_bytes=size, members=members))
        elif kind == _TRANSFER_TYPE and kind_of[device] in _NETWORK_DEVICES:
            source, target = divmod(pair_of[device], servers + switches)
            tasks.append(GraphTask(TRANSFER, source=source, target=target, size_bytes=size))
        else:
            tasks.append(GraphTask(COMPUTE, device=number[device], seconds=seconds))
    for i, table in enumerate(tables):
        if tasks[i].kind != ALL_REDUCE:
            for after in table.values(5, "Q"):
                tasks[index[after]].after.append(i)
    return Graph(servers, len(number), tasks)


class Network:
    """Links of one kind of network, and paths over them."""

    def __init__(self, graph: Graph, strides: tuple[int, ...], gbps: float, seed: int) -> None:
        self.servers, self.strides = graph.servers, strides
        self.hosts = max(graph.servers, graph.devices)  # devices that compute are hosts too
        self.nodes = self.hosts + (not strides)
        n, switch = graph.servers, self.hosts
        if strides:
            ends = [(a, (a + s) % n) for s in strides for a in range(n)]
            ends += [(b, a) for a, b in ends]
        else:
            ends = [(a, switch) for a in range(n)] + [(switch, a) for a in range(n)]
        self.links = [(a, b, gbps * 1e9, LATENCY_NS) for a, b in ends]
        self._link = {pair: i for i, pair in enumerate(ends)}
        self._steps = shortest_steps(n, strides) if strides else []
        rng = random.Random(seed)
        self._paths = {
            (source, target): self._draw(source, target, rng)
            for source in range(n)
            for target in range(n)
            if source != target
        }

    def path(self, source: int, target: int) -> list[int]:
        return self._paths[source, target]

    def _draw(self, source: int, target: int, rng: random.Random) -> list[int]:
        if not self.strides:
            return [self._link[source, self.hosts], self._link[self.hosts, target]]
        steps = self._steps[(target - source) % self.servers]
        moves = [b - a for a, b in pairwise(steps)]
        rng.shuffle(moves)  # a circulant has the steps in any order
        nodes = [source]
        for move in moves:
            nodes.append((nodes[-1] + move) % self.servers)
        return [self._link[a, b] for a, b in pairwise(nodes)]

    def rings(self, members: tuple[int, ...]) -> list[list[int]]:
        """Orders of the members: of all servers one per directed stride, else as they stand."""
        if not self.strides or len(members) < self.servers:
            return [list(members)]
        n = self.servers
        jumps = [sign * stride for stride in self.strides for sign in (1, -1)]
        return [[i * jump % n for i in range(n)] for jump in jumps]


def make_program(graph: Graph, network: Network) -> _core.FlowProgram:
    """All tasks; an AllReduce becomes its steps, each behind a barrier."""
    program = _core.FlowProgram(network.nodes, network.hosts)
    program.set_first_come(True)
    for link in network.links:
        program.add_link(*link)
    last: list[int] = []  # per task of the graph, its own task
    waiting: list[tuple[int, GraphTask]] = []
    for task in graph.tasks:
        if task.kind == COMPUTE:
            last.append(program.add_compute(task.device, task.seconds))
        elif task.kind == TRANSFER and task.source != task.target:
            size = max(task.size_bytes, PAYLOAD)
            way = network.path(task.source, task.target)
            last.append(program.add_flow(task.source, task.target, size, way))
        else:
            last.append(program.add_delay(task.seconds))
            if task.kind == ALL_REDUCE and len(task.members) > 1:
                waiting.append((last[-1], task))
    for task, number in zip(graph.tasks, last, strict=True):
        for before in task.after:
            program.add_dependency(last[before], number)
    for ready, task in waiting:
        rings = network.rings(task.members)
        k = len(task.members)
        steps, size = 2 * (k - 1), task.size_bytes / k / len(rings)
        if task.size_bytes < MTU * k:  # less than a packet each: one step for all
            steps, size = 1, size * 2 * (k - 1) / k
        for ring in rings:
            before = ready
            for _ in range(steps):
                hops = [
                    program.add_flow(a, b, max(size, PAYLOAD), network.path(a, b))
                    for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)
                ]
                ended = program.add_delay(0.0)
                for hop in hops:
                    program.add_dependency(before, hop)
                    program.add_dependency(hop, ended)
                before = ended
    return program


def show(
    path: str, graph: Graph, network: Network, name: str, gbps: float, seeds: Sequence[int]
) -> None:
    program = make_program(graph, network)
    options = {**OPTIONS, "dctcp_mark_in_hosts": name == "circulant"}
    results = [run_program(program, level="packet", seed=seed, **options) for seed in seeds]
    result = sorted(results, key=lambda result: result.completion_s)[len(results) // 2]
    stem = Path(path).name.partition(".")[0]
    print(
        f"{stem:<20}{name:<11}{'ours':<15}{result.flows:>8}{result.completion_s * 1e3:>13.4f}"
        f"{result.cpu_seconds:>8.2f}{result.packet_hops:>11}"
        f"{result.packet_hops / result.cpu_seconds:>10.2e}{result.peak_memory_mb:>7.0f}",
        flush=True,
    )
    if (recorded := RECORDED.get((stem, name, int(gbps)))) is None:
        return
    milliseconds, cpu_s, hops = recorded
    speed = "-" if hops is None or cpu_s is None else f"{hops / cpu_s:.2e}"
    ratio = result.completion_s * 1e3 / milliseconds
    print(
        f"{'':<20}{'':<11}{'FlexNetPacket':<15}{'':>8}{milliseconds:>13.4f}"
        f"{'-' if cpu_s is None else cpu_s:>8}{'-' if hops is None else int(hops):>11}{speed:>10}"
        f"{'-':>7}   time ours / theirs {ratio:.4f}"
    )


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("files", nargs="+", metavar="FILE", help="published .fbuf files")
    options.add_argument("--network", choices=("star", "circulant"), default="star")
    options.add_argument("--strides", default="1,5", help="of the circulant (default: 1,5)")
    options.add_argument("--gbps", type=float, default=100.0, help="of a link (default: 100)")
    options.add_argument("--seed", type=int, default=0, help="of paths and orders (default: 0)")
    options.add_argument(
        "--orders", type=int, default=1, help="runs, of which the median counts (default: 1)"
    )
    arguments = options.parse_args()
    if arguments.orders < 1:
        options.error(f"--orders: {arguments.orders} is not at least 1")
    seeds = range(arguments.seed, arguments.seed + arguments.orders)
    strides = tuple(map(int, arguments.strides.split(",")))
    graphs = {}
    for path in arguments.files:
        try:
            graphs[path] = read_graph(Path(path).read_bytes())
        except OSError as error:
            options.error(f"{path}: {error.strerror}; the first lines of --help say where it is")
        except ValueError as error:
            options.error(f"{path}: {error}")
    print(
        f"{'graph':<20}{'network':<11}{'simulator':<15}{'flows':>8}{'iteration ms':>13}{'CPU s':>8}"
        f"{'pkt-hops':>11}{'hops/s':>10}{'MB':>7}"
    )
    for path, graph in graphs.items():
        chosen = strides if arguments.network == "circulant" else ()
        network = Network(graph, chosen, arguments.gbps, arguments.seed)
        show(path, graph, network, arguments.network, arguments.gbps, seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
