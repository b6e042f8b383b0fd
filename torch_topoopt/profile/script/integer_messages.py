"""Integer messages between the ranks of a profiled script: sizes, shapes and pickled objects.

They decide which calls their receivers make, so they are delivered. All other messages are ones.
The process that runs the ranks keeps the messages in a Broker, to which each rank has a
RankChannel.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

_MOST_BYTES = 1 << 20  # of a message: larger ones are data, such as tokens
_FURTHER_S = 1.0  # for iterations beyond the required ones
_COLLECTIVE = -1  # no tag of a script
_ALL_TO_ALL = ("c10d::alltoall_base_", "_c10d_functional::all_to_all_single")


class Rank(NamedTuple):
    """A rank of one of the scripts that run here at once."""

    script: str
    number: int


class _Route(NamedTuple):
    """Messages of one route keep their order."""

    source: Rank
    target: Rank
    group: tuple[int, ...]
    tag: int


class Broker:
    """Keeps the messages of the ranks that run here. It knows which of them wait, and for whom."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        """`ranks` are all that will run, now or later."""
        self.waiting: dict[Rank, _Route] = {}
        self._to_run = set(ranks)
        self._connections: dict[Rank, Any] = {}
        self._messages: dict[_Route, deque[bytes]] = defaultdict(deque)
        self._continues: dict[tuple[str, int], bool] = {}
        self._further_since: dict[str, float] = {}

    def connect(self, rank: Rank) -> RankChannel:
        """The rank's end of its connection."""
        mine, its = Pipe()
        self._connections[rank] = mine
        return RankChannel(its, rank)

    def connection(self, rank: Rank) -> Any:
        """Readable when the rank has sent a request for `serve`."""
        return self._connections[rank]

    def serve(self, rank: Rank) -> bool:
        """Answers one request of a rank, unless it has to wait. False: there are no more."""
        try:
            kind, *values = self._connections[rank].recv()
        except (EOFError, OSError):
            return False
        if kind == "continue":
            self._connections[rank].send(self._may_continue(rank.script, *values))
            return True
        number, group, tag, *content = values
        peer = Rank(rank.script, number)
        if kind == "send":
            route = _Route(rank, peer, group, tag)
            if self.waiting.get(peer) == route:
                self._answer(peer, *content)
            else:
                self._messages[route] += content
            return True
        route = _Route(peer, rank, group, tag)
        self.waiting[rank] = route
        if kept := self._messages[route]:
            self._answer(rank, kept.popleft())
        elif peer not in self._to_run:
            self._answer(rank, None)
        return True

    def ended(self, rank: Rank) -> None:
        """The rank sends no more."""
        self._connections.pop(rank).close()
        self._to_run.discard(rank)
        self.waiting.pop(rank, None)
        for other in [other for other, route in self.waiting.items() if route.source == rank]:
            self._answer(other, None)

    def give_up(self) -> None:
        """Resumes the rank that has waited longest, without its message."""
        self._answer(next(iter(self.waiting)), None)

    def _answer(self, rank: Rank, content: bytes | None) -> None:
        del self.waiting[rank]
        with contextlib.suppress(OSError):  # it was killed while it waited
            self._connections[rank].send(content)

    def _may_continue(self, script: str, iteration: int) -> bool:
        """The same answer for all ranks of a script."""
        since = self._further_since.setdefault(script, time.monotonic())
        in_time = time.monotonic() - since < _FURTHER_S
        return self._continues.setdefault((script, iteration), in_time)


class RankChannel:
    """A rank's connection to the Broker."""

    def __init__(self, connection: Connection[Any, Any], rank: Rank) -> None:
        self._connection = connection
        self._rank = rank

    def continues(self, iteration: int) -> bool:
        """Whether all ranks of the script run the iteration as well."""
        self._connection.send(("continue", iteration))
        return bool(self._connection.recv())

    def deliver(
        self, operator: str, values: dict[str, Any], group: tuple[int, ...], result: Any
    ) -> None:
        """Sends or receives the integer tensors of an operator.

        A tensor that nobody sends is left as it is. Parts of an exchange are then this rank's own.
        """
        if operator == "c10d::send":
            for tensor in filter(_is_message, values["tensors"]):
                self._send(group[int(values["dst"])], group, int(values["tag"]), tensor)
        elif operator == "c10d::recv_":
            for tensor in filter(_is_message, values["tensors"]):
                self._receive(group[int(values["src"])], group, int(values["tag"]), tensor)
        elif operator == "c10d::broadcast_":
            for tensor in filter(_is_message, values["tensors"]):
                self._from_root(group, int(values["root_rank"]), [tensor] * len(group), tensor)
        elif operator == "c10d::scatter_" and _is_message(values["output_tensors"][0]):
            parts = (values["input_tensors"] or [[]])[0]
            self._from_root(group, int(values["root_rank"]), parts, values["output_tensors"][0])
        elif operator == "c10d::gather_" and values["output_tensors"]:
            for tensor in values["output_tensors"][0]:
                tensor.detach().copy_(values["input_tensors"][0])
        elif operator in _ALL_TO_ALL and _is_message(values["input"]):
            sent = _parts(values["input"], values["input_split_sizes"], len(group))
            output = values.get("output", result)
            received = _parts(output, values["output_split_sizes"], len(group))
            self._exchange(sent, received, group)

    def _from_root(
        self, group: tuple[int, ...], root: int, parts: list[torch.Tensor], own: torch.Tensor
    ) -> None:
        if group[root] != self._rank.number:
            self._receive(group[root], group, _COLLECTIVE, own)
            return
        for member, part in zip(group, parts, strict=True):
            if member != self._rank.number:
                self._send(member, group, _COLLECTIVE, part)

    def _exchange(
        self, sent: list[torch.Tensor], received: list[torch.Tensor], group: tuple[int, ...]
    ) -> None:
        for member, part in zip(group, sent, strict=True):
            if member != self._rank.number:
                self._send(member, group, _COLLECTIVE, part)
        for member, part, own in zip(group, received, sent, strict=True):
            if part.shape == own.shape:
                part.copy_(own)
            if member != self._rank.number:
                self._receive(member, group, _COLLECTIVE, part)

    def _send(self, target: int, group: tuple[int, ...], tag: int, tensor: torch.Tensor) -> None:
        content = tensor.detach().reshape(-1).cpu().view(torch.uint8).numpy().tobytes()
        self._connection.send(("send", target, group, tag, content))

    def _receive(self, source: int, group: tuple[int, ...], tag: int, tensor: torch.Tensor) -> None:
        self._connection.send(("receive", source, group, tag))
        content = self._connection.recv()
        if content and len(content) == tensor.numel() * tensor.element_size():
            found = torch.frombuffer(bytearray(content), dtype=tensor.dtype)
            tensor.detach().copy_(found.view(tensor.shape))


def _is_message(tensor: torch.Tensor) -> bool:
    return (
        not isinstance(tensor, FakeTensor)
        and not tensor.is_floating_point()
        and not tensor.is_complex()
        and tensor.numel() * tensor.element_size() <= _MOST_BYTES
    )


def _parts(tensor: torch.Tensor, split_sizes: Any, count: int) -> list[torch.Tensor]:
    """The parts of the first dimension, one for each member."""
    rows = tensor.shape[0]
    return list(torch.split(tensor.detach(), list(split_sizes) or [rows // count] * count))
