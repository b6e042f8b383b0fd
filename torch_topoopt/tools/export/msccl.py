"""MSCCL XML: the AllReduce of a plan's rings, and an all-to-all over its routes.

Source: github.com/microsoft/msccl-tools, msccl/language/ir.py (`ir_to_xml`, the old format, which
runtimes and ASTRA-sim read). A GPU runs thread blocks; each has at most one peer that it sends to
and one that it receives from, on one channel, and does its steps in order. The steps are

    s send, r receive, rcs receive-copy-send, rrs receive-reduce-send, rrc receive-reduce-copy,
    rrcs receive-reduce-copy-send, cpy copy, re reduce, nop

on chunks of the buffers i (input), o (output) and s (scratch). A step may wait for one step of
another thread block of its GPU (depid, deps). `msccl_check` runs what is written here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Plan, Ring

MOST_CHANNELS = 32  # of NCCL
_MOST_PARTS = 64  # into which the shares of rings, and those of routes, are rounded


@dataclass
class MscclStep:
    """One step; `wait` is (thread block, step) of the same GPU."""

    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int = 1
    wait: tuple[int, int] | None = None
    awaited: bool = False


@dataclass
class ThreadBlock:
    """-1: no such peer."""

    send: int
    receive: int
    channel: int
    steps: list[MscclStep] = field(default_factory=list)


@dataclass
class Gpu:
    """Its thread blocks, and how many chunks its buffers have."""

    inputs: int
    outputs: int
    scratch: int = 0
    blocks: list[ThreadBlock] = field(default_factory=list)


@dataclass
class Algorithm:
    """A whole algorithm, one GPU for each rank."""

    name: str
    collective: str
    in_place: bool
    gpus: list[Gpu]

    @property
    def channels(self) -> int:
        return max((b.channel + 1 for gpu in self.gpus for b in gpu.blocks), default=1)

    def xml(self) -> str:
        """The text of the file; raises ExportError for more channels than NCCL has."""
        if self.channels > MOST_CHANNELS:
            raise ExportError(
                f"msccl: {self.channels} channels, and NCCL has {MOST_CHANNELS}: a channel for "
                "each directed ring"
            )
        chunks = max(max(gpu.inputs, gpu.outputs) for gpu in self.gpus)
        root = ET.Element(
            "algo",
            name=self.name,
            proto="Simple",
            nchannels=str(self.channels),
            nchunksperloop=str(chunks),
            ngpus=str(len(self.gpus)),
            coll=self.collective,
            inplace=str(int(self.in_place)),
        )
        for rank, gpu in enumerate(self.gpus):
            of_gpu = ET.SubElement(
                root,
                "gpu",
                id=str(rank),
                i_chunks=str(gpu.inputs),
                o_chunks=str(gpu.outputs),
                s_chunks=str(gpu.scratch),
            )
            for number, block in enumerate(gpu.blocks):
                of_block = ET.SubElement(
                    of_gpu,
                    "tb",
                    id=str(number),
                    send=str(block.send),
                    recv=str(block.receive),
                    chan=str(block.channel),
                )
                for position, step in enumerate(block.steps):
                    ET.SubElement(of_block, "step", _attributes(position, step))
        ET.indent(root)
        return ET.tostring(root, encoding="unicode") + "\n"


def _attributes(position: int, step: MscclStep) -> dict[str, str]:
    block, waited = step.wait or (-1, -1)
    values = {
        "s": position,
        "type": step.kind,
        "srcbuf": step.source[0],
        "srcoff": step.source[1],
        "dstbuf": step.target[0],
        "dstoff": step.target[1],
        "cnt": step.count,
        "depid": block,
        "deps": waited,
        "hasdep": int(step.awaited),
    }
    return {name: str(value) for name, value in values.items()}


def all_reduce(plan: Plan) -> Algorithm:
    """The AllReduce of all servers on the plan's rings: one channel for each directed ring, of as
    many chunks as its share says.

    A ring of n servers is pipelined: n - 1 steps reduce, n - 1 hand the sums on. Neighbours on a
    ring without a cable are joined by their heaviest route, through the scratch of its relays.
    Raises ExportError for what the format cannot say.
    """
    count = _servers(plan)
    rings = _rings(plan)
    parts, total = apportioned([ring.share for ring in rings])
    gpus = [Gpu(total * count, 0) for _ in range(count)]
    first = 0
    for channel, (ring, part) in enumerate(zip(rings, parts, strict=True)):
        if part:
            _add_ring(plan, gpus, ring, channel, first, part)
        first += part * count
    return Algorithm("topoopt_rings", "allreduce", True, gpus)


def all_to_all(plan: Plan) -> Algorithm:
    """The all-to-all of all servers over the plan's routes, in proportion to their weights.

    Every cable has a thread block that sends and one that receives in each direction. Relays store
    a chunk in their scratch and send it on when it is there. Messages go in the order of their
    hops, so that no connection waits for another in a circle. Raises ExportError.
    """
    count = _servers(plan)
    by_pair = plan.network.routes_by_pair()
    parts = {
        pair: apportioned([route.weight for route in by_pair[pair]])
        for pair in ((a, b) for a in range(count) for b in range(count) if a != b)
    }
    each = math.lcm(*(total for _, total in parts.values()))
    if each > _MOST_PARTS:
        raise ExportError(f"msccl: the weights of the routes need {each} chunks for each pair")
    gpus = [Gpu(count * each, count * each) for _ in range(count)]
    hops: list[tuple[int, int, int, tuple[int, ...], int, int]] = []
    for (source, target), (shares, total) in parts.items():
        first = 0
        for route, share in zip(by_pair[source, target], shares, strict=True):
            size = share * each // total
            if size:
                hops += [
                    (hop, source, target, route.servers, first, size)
                    for hop in range(len(route.servers) - 1)
                ]
            first += size
    _add_hops(gpus, sorted(hops), each)
    for rank, gpu in enumerate(gpus):
        own = ThreadBlock(-1, -1, 0)
        own.steps.append(MscclStep("cpy", ("i", rank * each), ("o", rank * each), each))
        gpu.blocks.append(own)
    return Algorithm("topoopt_routes", "alltoall", False, gpus)


def apportioned(shares: Sequence[float]) -> tuple[list[int], int]:
    """Whole parts in proportion to `shares`, and their sum; exactly, where at most 64 will do, else
    64 parts by largest remainders."""
    exact = [Fraction(share).limit_denominator(_MOST_PARTS) for share in shares]
    total = math.lcm(*(share.denominator for share in exact))
    if sum(exact) == 1 and total <= _MOST_PARTS:
        return [int(share * total) for share in exact], total
    scaled = [share / sum(shares) * _MOST_PARTS for share in shares]
    parts = [int(value) for value in scaled]
    remainders = sorted(range(len(parts)), key=lambda i: parts[i] - scaled[i])
    for i in remainders[: _MOST_PARTS - sum(parts)]:
        parts[i] += 1
    return parts, _MOST_PARTS


def _servers(plan: Plan) -> int:
    if plan.cluster.accelerators_per_server > 1:
        raise ExportError(
            f"msccl: {plan.cluster.accelerators_per_server} accelerators of each server; the "
            "algorithm is one between servers, with a rank on each"
        )
    if plan.cluster.servers < 2:
        raise ExportError("msccl: 1 server sends nothing")
    return plan.cluster.servers


def _rings(plan: Plan) -> tuple[Ring, ...]:
    everyone = set(range(plan.cluster.servers))
    for group in plan.network.groups:
        if set(group.servers) == everyone and group.rings:
            return group.rings
    raise ExportError("msccl: the plan has no rings over all servers")


def _add_ring(plan: Plan, gpus: list[Gpu], ring: Ring, channel: int, first: int, size: int) -> None:
    """Its chunks are `first` and those behind, `size` in each of the ring's segments."""
    count = len(ring.servers)
    by_pair = plan.network.routes_by_pair()
    used: set[tuple[int, int]] = set()
    paths = []
    for source, target in ring.hops:
        route = max(by_pair[source, target], key=lambda r: r.weight).servers
        for hop in pairwise(route):
            if hop in used:
                raise ExportError(
                    f"msccl: a ring passes the link from server {hop[0]} to {hop[1]} twice, and a "
                    "channel has one connection between two ranks"
                )
            used.add(hop)
        paths.append(route)
    for place, rank in enumerate(ring.servers):
        block = ThreadBlock(paths[place][1], paths[place - 1][-2], channel)
        for step in range(2 * count - 1):
            at = ("i", first + (place - step) % count * size)
            if step == 0:
                kind = "s"
            elif step < count - 1:
                kind = "rrs"
            elif step == count - 1:
                kind = "rrcs"
            else:
                kind = "r" if step == 2 * count - 2 else "rcs"
            block.steps.append(MscclStep(kind, at, at, size))
        gpus[rank].blocks.append(block)
    for path in paths:
        for before, relay, after in zip(path, path[1:], path[2:], strict=False):
            at = ("s", gpus[relay].scratch)
            gpus[relay].scratch += size
            passing = ThreadBlock(after, before, channel)
            passing.steps += [MscclStep("rcs", at, at, size) for _ in range(2 * (count - 1))]
            gpus[relay].blocks.append(passing)


def _add_hops(
    gpus: list[Gpu], hops: list[tuple[int, int, int, tuple[int, ...], int, int]], each: int
) -> None:
    blocks: dict[tuple[int, int], tuple[int, int]] = {}  # link -> numbers at sender and receiver
    kept: dict[tuple[int, int, int, int], tuple[int, int, int]] = {}  # at a relay: where, and when
    for hop, source, target, servers, first, size in hops:
        here, there = servers[hop], servers[hop + 1]
        if (here, there) not in blocks:
            gpus[here].blocks.append(ThreadBlock(there, -1, 0))
            gpus[there].blocks.append(ThreadBlock(-1, here, 0))
            blocks[here, there] = len(gpus[here].blocks) - 1, len(gpus[there].blocks) - 1
        sending, receiving = blocks[here, there]
        last = hop == len(servers) - 2
        if last:
            goal = ("o", source * each + first)
        else:
            goal = ("s", gpus[there].scratch)
            gpus[there].scratch += size
        if hop == 0:
            origin, wait = ("i", target * each + first), None
        else:
            offset, block, step = kept[here, source, target, first]
            origin, wait = ("s", offset), (block, step)
            gpus[here].blocks[block].steps[step].awaited = True
        gpus[here].blocks[sending].steps.append(MscclStep("s", origin, goal, size, wait))
        arriving = gpus[there].blocks[receiving].steps
        arriving.append(MscclStep("r", goal, goal, size))
        if not last:
            kept[there, source, target, first] = goal[1], receiving, len(arriving) - 1
