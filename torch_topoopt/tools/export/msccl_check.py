"""Runs an algorithm of MSCCL XML on symbols, and checks the result of its collective.

A chunk is the set of (rank, number of input chunk) that it sums, so a rank that is counted twice or
left out is an error. Connections hold few messages, like NCCL's buffers. Thread blocks advance in
several random orders, which must all finish with the same result.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from torch_topoopt.tools.export.errors import ExportError, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
_RECEIVES = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
_KINDS = _SENDS | _RECEIVES | {"cpy", "re", "nop"}
_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "custom")
_SLOTS = 2  # messages under way on a connection: NCCL's Simple protocol has 2 to 4
_ORDERS = 4

Chunk = frozenset[tuple[int, int]]


class ReadStep(NamedTuple):
    kind: str
    source: tuple[str, int]
    target: tuple[str, int]
    chunks: int
    wait: tuple[int, int] | None


@dataclass(frozen=True)
class ReadBlock:
    send: int
    receive: int
    channel: int
    steps: tuple[ReadStep, ...]


@dataclass(frozen=True)
class ReadGpu:
    chunks: Mapping[str, int]  # of the buffers i, o, s
    blocks: tuple[ReadBlock, ...]


@dataclass(frozen=True)
class ReadAlgorithm:
    """A file, as it was read."""

    name: str
    collective: str
    in_place: bool
    channels: int
    gpus: tuple[ReadGpu, ...]

    def gpu_count(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True)
class Checked:
    """The figures of a successful check."""

    algorithm: ReadAlgorithm
    steps: int
    messages: int
    scratch_chunks: int


def check_text(text: str) -> Checked:
    """Reads and runs a file; raises ExportError with the place of an error."""
    algorithm = read_algorithm(text)
    results = [_Execution(algorithm, random.Random(seed)).run() for seed in range(_ORDERS)]
    for other in results[1:]:
        if other != results[0]:
            raise ExportError("algo: the result depends on the order of thread blocks")
    _compare(algorithm, results[0])
    steps = [step for gpu in algorithm.gpus for block in gpu.blocks for step in block.steps]
    return Checked(
        algorithm,
        len(steps),
        sum(step.kind in _SENDS for step in steps),
        sum(gpu.chunks["s"] for gpu in algorithm.gpus),
    )


def read_algorithm(text: str) -> ReadAlgorithm:
    """Parses a file; raises ExportError if it is invalid or inconsistent."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise FormatError(f"not XML: {error}") from None
    if root.tag != "algo":
        raise FormatError(f"{root.tag}: the root is not an algo")
    collective = _text(root, "algo", "coll")
    if collective not in _COLLECTIVES:
        raise ExportError(f"algo.coll: {collective!r} is not one of {', '.join(_COLLECTIVES)}")
    gpus = tuple(_gpu(element, rank) for rank, element in enumerate(_children(root, "gpu", "algo")))
    for name, value in (("ngpus", len(gpus)), ("nchannels", _channels(gpus))):
        if _number(root, "algo", name) != value:
            raise ExportError(f"algo.{name}: {root.get(name)} is not {value}, what the file has")
    algorithm = ReadAlgorithm(
        _text(root, "algo", "name"),
        collective,
        _number(root, "algo", "inplace") == 1,
        _number(root, "algo", "nchannels"),
        gpus,
    )
    _check_connections(algorithm)
    return algorithm


def _channels(gpus: tuple[ReadGpu, ...]) -> int:
    return max((block.channel + 1 for gpu in gpus for block in gpu.blocks), default=0)


def _gpu(element: ET.Element, rank: int) -> ReadGpu:
    where = f"gpu[{rank}]"
    if _number(element, where, "id") != rank:
        raise ExportError(f"{where}.id: {element.get('id')} is not its place")
    chunks = {name: _number(element, where, f"{name}_chunks") for name in "ios"}
    blocks = []
    for number, child in enumerate(_children(element, "tb", where)):
        of_block = f"{where}.tb[{number}]"
        if _number(child, of_block, "id") != number:
            raise ExportError(f"{of_block}.id: {child.get('id')} is not its place")
        steps = tuple(
            _step(step, f"{of_block}.step[{i}]", i)
            for i, step in enumerate(_children(child, "step", of_block))
        )
        send, receive = (_number(child, of_block, name, -1) for name in ("send", "recv"))
        blocks.append(ReadBlock(send, receive, _number(child, of_block, "chan"), steps))
    return ReadGpu(chunks, tuple(blocks))


def _step(element: ET.Element, where: str, position: int) -> ReadStep:
    if _number(element, where, "s") != position:
        raise ExportError(f"{where}.s: {element.get('s')} is not its place")
    kind = _text(element, where, "type")
    if kind not in _KINDS:
        raise ExportError(f"{where}.type: {kind!r} is not one of {', '.join(sorted(_KINDS))}")
    ends = []
    for side in ("src", "dst"):
        buffer = _text(element, where, f"{side}buf")
        if buffer not in ("i", "o", "s"):
            raise ExportError(f"{where}.{side}buf: {buffer!r} is not i, o or s")
        ends.append((buffer, _number(element, where, f"{side}off", -1)))
    depid, deps = (_number(element, where, name, -1) for name in ("depid", "deps"))
    if (depid < 0) != (deps < 0):
        raise ExportError(f"{where}: depid {depid} and deps {deps} contradict each other")
    wait = None if depid < 0 else (depid, deps)
    return ReadStep(kind, ends[0], ends[1], _number(element, where, "cnt"), wait)


def _children(element: ET.Element, tag: str, where: str) -> Iterator[ET.Element]:
    for child in element:
        if child.tag != tag:
            raise ExportError(f"{where}: {child.tag} in the place of a {tag}")
        yield child


def _text(element: ET.Element, where: str, name: str) -> str:
    value = element.get(name)
    if not value:
        raise ExportError(f"{where}.{name}: missing")
    return value


def _number(element: ET.Element, where: str, name: str, least: int = 0) -> int:
    text = _text(element, where, name)
    try:
        value = int(text)
    except ValueError:
        raise ExportError(f"{where}.{name}: {text!r} is not a number") from None
    if value < least:
        raise ExportError(f"{where}.{name}: {value} is below {least}")
    return value


def _check_connections(algorithm: ReadAlgorithm) -> None:
    """Steps fit peers, buffers and dependencies; both ends of each connection agree."""
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    for rank, gpu in enumerate(algorithm.gpus):
        for number, block in enumerate(gpu.blocks):
            where = f"gpu[{rank}].tb[{number}]"
            for peer in (block.send, block.receive):
                if peer == rank or peer >= len(algorithm.gpus):
                    raise ExportError(f"{where}: {peer} is no other GPU")
            ends = (
                (sent, (rank, block.send, block.channel), block.send, _SENDS),
                (received, (block.receive, rank, block.channel), block.receive, _RECEIVES),
            )
            for table, key, peer, kinds in ends:
                counts = [step.chunks for step in block.steps if step.kind in kinds]
                if counts and peer < 0:
                    raise ExportError(f"{where}: sends or receives, and has no peer for it")
                if counts and key in table:
                    raise ExportError(
                        f"{where}: another thread block has the connection from {key[0]} to "
                        f"{key[1]} on channel {key[2]}"
                    )
                if counts:
                    table[key] = counts
            for i, step in enumerate(block.steps):
                _check_step(gpu, step, f"{where}.step[{i}]")
    for key in sent.keys() | received.keys():
        if sent.get(key) != received.get(key):
            raise ExportError(
                f"algo: from gpu {key[0]} to {key[1]} on channel {key[2]}, "
                f"{len(sent.get(key, ()))} messages are sent and {len(received.get(key, ()))} "
                "received, or their sizes differ"
            )


def _check_step(gpu: ReadGpu, step: ReadStep, where: str) -> None:
    if step.kind == "nop":
        touched: tuple[tuple[str, int], ...] = ()
    elif step.kind == "s":
        touched = (step.source,)
    else:
        touched = (step.target,) if step.kind in ("r", "rcs") else (step.source, step.target)
    for buffer, offset in touched:
        if offset < 0 or offset + step.chunks > gpu.chunks[buffer]:
            raise ExportError(
                f"{where}: chunks {offset} to {offset + step.chunks - 1} of {buffer}, which has "
                f"{gpu.chunks[buffer]}"
            )
    if step.wait is not None:
        block, waited = step.wait
        if block >= len(gpu.blocks) or waited >= len(gpu.blocks[block].steps):
            raise ExportError(f"{where}: waits for step {waited} of tb {block}, which is not there")


class _Execution:
    """One execution, in an order that `chance` draws."""

    def __init__(self, algorithm: ReadAlgorithm, chance: random.Random) -> None:
        self._algorithm = algorithm
        self._chance = chance
        self._done = [[0] * len(gpu.blocks) for gpu in algorithm.gpus]
        self._wires: dict[tuple[int, int, int], deque[list[Chunk | None]]] = {}
        self._buffers: list[dict[str, list[Chunk | None]]] = []
        for rank, gpu in enumerate(algorithm.gpus):
            inputs: list[Chunk | None] = [frozenset({(rank, i)}) for i in range(gpu.chunks["i"])]
            self._buffers.append(
                {"i": inputs, "o": [None] * gpu.chunks["o"], "s": [None] * gpu.chunks["s"]}
            )

    def run(self) -> list[list[Chunk | None]]:
        """The output of every rank: its buffer o, or i where that is the output too."""
        pending = [
            (rank, number)
            for rank, gpu in enumerate(self._algorithm.gpus)
            for number, block in enumerate(gpu.blocks)
            if block.steps
        ]
        while pending:
            self._chance.shuffle(pending)
            moved = [place for place in pending if self._advance(*place)]
            if not moved:
                rank, number = min(pending)
                step = self._done[rank][number]
                raise ExportError(
                    f"gpu[{rank}].tb[{number}].step[{step}]: waits for ever, as do "
                    f"{len(pending) - 1} other thread blocks"
                )
            pending = [(rank, n) for rank, n in pending if self._next(rank, n) is not None]
        buffer = "i" if self._algorithm.in_place else "o"
        return [buffers[buffer] for buffers in self._buffers]

    def _next(self, rank: int, number: int) -> ReadStep | None:
        steps = self._algorithm.gpus[rank].blocks[number].steps
        done = self._done[rank][number]
        return steps[done] if done < len(steps) else None

    def _advance(self, rank: int, number: int) -> bool:
        """Does the next step of a thread block, if it can."""
        step = self._next(rank, number)
        assert step is not None
        block = self._algorithm.gpus[rank].blocks[number]
        out = self._wires.setdefault((rank, block.send, block.channel), deque())
        into = self._wires.setdefault((block.receive, rank, block.channel), deque())
        if step.wait is not None and self._done[rank][step.wait[0]] <= step.wait[1]:
            return False
        if step.kind in _SENDS and len(out) >= _SLOTS:
            return False
        if step.kind in _RECEIVES and not into:
            return False
        where = f"gpu[{rank}].tb[{number}].step[{self._done[rank][number]}]"
        result = self._result(rank, step, into, where)
        if step.kind in _SENDS:
            out.append(result)
        if step.kind not in ("s", "rrs", "nop"):
            buffer, offset = step.target
            self._buffers[rank][buffer][offset : offset + step.chunks] = result
        self._done[rank][number] += 1
        return True

    def _result(
        self, rank: int, step: ReadStep, into: deque[list[Chunk | None]], where: str
    ) -> list[Chunk | None]:
        """The chunks that a step makes, to keep or to send."""
        if step.kind == "nop":
            return []
        buffer, offset = step.source
        own = self._buffers[rank][buffer][offset : offset + step.chunks]
        if step.kind in ("s", "cpy"):
            return _all_there(own, where)
        if step.kind == "re":
            buffer, offset = step.target
            other = self._buffers[rank][buffer][offset : offset + step.chunks]
            return _sum(own, other, where)
        arrived = into.popleft()
        if step.kind in ("r", "rcs"):
            return arrived
        return _sum(own, arrived, where)


def _all_there(chunks: list[Chunk | None], where: str) -> list[Chunk | None]:
    if None in chunks:
        raise ExportError(f"{where}: a chunk that nothing was written to")
    return chunks


def _sum(own: list[Chunk | None], other: list[Chunk | None], where: str) -> list[Chunk | None]:
    found: list[Chunk | None] = []
    for a, b in zip(own, other, strict=True):
        if a is None or b is None:
            raise ExportError(f"{where}: a chunk that nothing was written to")
        if a & b:
            rank, chunk = min(a & b)
            raise ExportError(f"{where}: chunk {chunk} of rank {rank} is added twice")
        found.append(a | b)
    return found


def _compare(algorithm: ReadAlgorithm, outputs: list[list[Chunk | None]]) -> None:
    """Raises ExportError for the first chunk that differs from the collective's result."""
    count = len(algorithm.gpus)
    for rank, output in enumerate(outputs):
        for place, chunk in enumerate(output):
            expected = _expected(algorithm.collective, count, rank, place, len(output))
            if expected is not None and chunk != expected:
                missing = expected - (chunk or frozenset())
                what = f"lacks that of rank {min(missing)[0]}" if missing else "has too much"
                raise ExportError(
                    f"gpu[{rank}]: chunk {place} of the output of this {algorithm.collective} "
                    f"{what}"
                )


def _expected(collective: str, count: int, rank: int, place: int, length: int) -> Chunk | None:
    """None: anything will do."""
    each = length // count
    match collective:
        case "allreduce":
            return frozenset((r, place) for r in range(count))
        case "allgather":
            return frozenset({(place // each, place % each)})
        case "alltoall":
            return frozenset({(place // each, rank * each + place % each)})
        case "reducescatter":
            return frozenset((r, rank * length + place) for r in range(count))
        case "broadcast":
            return frozenset({(0, place)})
    return None
