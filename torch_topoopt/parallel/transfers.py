"""Moving tensors between the ranks of two operators, forward and backward.

An `Exchange` moves a tensor from one layout to another. Each rank sends the parts that others need,
and sums up parts that it gets several times. Gradients take the same paths back. All ranks make the
same exchanges in the same order and send before they wait. So no order of the backward pass can
lead to a deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt.parallel.layouts import Grid
from torch_topoopt.parallel.walk import empty_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.parallel.layouts import Interval, TensorLayout
    from torch_topoopt.parallel.program import Argument


@dataclass(frozen=True)
class Part:
    """Rows and columns of a local tensor that go to, or come from, another rank."""

    rank: int
    rows: Interval
    columns: Interval


@dataclass(frozen=True)
class Exchange:
    """One rank's part in moving a tensor from one layout to another.

    Rows and columns are counted in the units of `grid`. `has` and `gets` are the numbers of this
    rank's rows and columns before and after; a rank without samples has all columns. `kept` is the
    source and the target of the part that stays here. `adds`: some incoming parts overlap and are
    summed up.
    """

    tag: int
    grid: Grid
    has: tuple[int, int]
    gets: tuple[int, int]
    sends: tuple[Part, ...]
    receives: tuple[Part, ...]
    kept: tuple[Part, Part] | None
    adds: tuple[bool, bool]  # forward, backward

    @classmethod
    def of(cls, source: TensorLayout, target: TensorLayout, rank: int, tag: int) -> Exchange:
        """The exchange of one rank; messages use `tag` forward and `tag` + 1 backward."""
        grid = Grid.of(source, target)
        sends, receives, kept = [], [], None
        for overlap in grid.overlaps(source, target):
            sender, receiver = source.ranks[overlap.source], target.ranks[overlap.target]
            if rank not in (sender, receiver):
                continue
            local = [
                Part(other, _from(overlap.rows, rows), _from(overlap.columns, columns))
                for other, (rows, columns) in (
                    (receiver, grid.region(source, overlap.source)),
                    (sender, grid.region(target, overlap.target)),
                )
            ]
            if sender == receiver:
                kept = (local[0], local[1])
            elif sender == rank:
                sends.append(local[0])
            else:
                receives.append(local[1])
        return cls(
            tag,
            grid,
            _size(grid, source, rank),
            _size(grid, target, rank),
            tuple(sends),
            tuple(receives),
            kept,
            (source.kind == "sum", target.kind == "whole" and target.parts > 1),
        )

    def reverse(self) -> Exchange:
        """The reverse exchange, of gradients."""
        kept = self.kept and (self.kept[1], self.kept[0])
        return Exchange(
            self.tag + 1,
            self.grid,
            self.gets,
            self.has,
            self.receives,
            self.sends,
            kept,
            (self.adds[1], self.adds[0]),
        )


def _from(interval: Interval, region: Interval) -> Interval:
    return interval[0] - region[0], interval[1] - region[0]


def _size(grid: Grid, layout: TensorLayout, rank: int) -> tuple[int, int]:
    if rank not in layout.ranks:
        return 0, grid.columns
    return grid.rows // layout.samples, grid.columns // layout.features


@dataclass
class Incoming:
    """A tensor with parts still in transit, and their receives."""

    result: torch.Tensor
    works: list[Any] = field(default_factory=list)
    parts: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # from, into
    adds: bool = False

    def wait(self) -> torch.Tensor:
        """The tensor, once everything has arrived."""
        for work in self.works:
            work.wait()
        for part, into in self.parts:
            if self.adds:
                into.add_(part)
            else:
                into.copy_(part)
        self.works, self.parts = [], []
        return self.result


@dataclass
class Arrival:
    """Gradients in transit to an operator's result; the backward pass waits here for them."""

    waiting: list[Incoming] = field(default_factory=list)

    def take(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """`gradient` plus all arrivals, after waiting for them."""
        for incoming in self.waiting:
            received = incoming.wait()
            gradient = received if gradient is None else gradient + received
        self.waiting.clear()
        return gradient


class Messages:
    """Messages that this rank is still sending; it keeps their memory until they are sent.

    A message to one rank is cut into pieces of about `piece_bytes` (None: never), so that a relay
    can forward one piece while it receives the next.
    """

    def __init__(self, piece_bytes: int | None = None) -> None:
        self._piece_bytes = piece_bytes
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def post(
        self, exchange: Exchange, tensor: torch.Tensor, shape: Argument, samples: int
    ) -> Incoming:
        """Sends and receives in the background; returns the pending receives.

        `samples` is the number of all ranks' samples. Raises ValueError if `tensor` does not have
        the recorded shape.
        """
        assert shape.shape is not None
        tail = shape.shape.tail
        unit = samples // exchange.grid.rows * shape.shape.rows
        width = tail[-1] // exchange.grid.columns if tail else 1

        def size(rows: int, columns: int) -> tuple[int, ...]:
            return (rows * unit, *tail[:-1], columns * width) if tail else (rows * unit,)

        def region(of: torch.Tensor, part: Part) -> torch.Tensor:
            found = of[part.rows[0] * unit : part.rows[1] * unit]
            if exchange.grid.columns == 1:
                return found
            return found[..., part.columns[0] * width : part.columns[1] * width]

        wanted = size(*exchange.has)
        if tuple(tensor.shape) != wanted or tensor.dtype != shape.shape.dtype:
            raise ValueError(
                f"a tensor of {shape.origin or 'the batch'} has shape {tuple(tensor.shape)} and "
                f"type {tensor.dtype}, not {wanted} and {shape.shape.dtype} as in the example "
                "batch; every rank must bring as many samples as every other"
            )
        adds = exchange.adds[0]
        result = (tensor.new_zeros if adds else tensor.new_empty)(size(*exchange.gets))
        incoming = Incoming(result, adds=adds)
        for part in exchange.receives:
            into = region(result, part)
            arriving = into
            if adds or not into.is_contiguous():
                arriving = torch.empty_like(into, memory_format=torch.contiguous_format)
                incoming.parts.append((arriving, into))
            for piece in self._pieces(arriving):
                incoming.works.append(dist.irecv(piece, part.rank, tag=exchange.tag))
        for part in exchange.sends:
            for piece in self._pieces(region(tensor, part).contiguous()):
                self._sent.append((dist.isend(piece, part.rank, tag=exchange.tag), piece))
        if exchange.kept is not None:
            region(result, exchange.kept[1]).copy_(region(tensor, exchange.kept[0]))
        return incoming

    def _pieces(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self._piece_bytes is None or rows.nbytes <= self._piece_bytes:
            return (rows,)
        row_bytes = rows.nbytes // rows.shape[0]
        pieces: tuple[torch.Tensor, ...] = rows.split(max(1, self._piece_bytes // row_bytes))
        return pieces

    def drain(self) -> None:
        """Waits until everything is sent."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


@dataclass(frozen=True)
class WayBack:
    """The path of a tensor's gradients to the tensor's source, through `exchange`.

    `argument` and `samples` are those of `Messages.post`. With an `arrival`, incoming gradients are
    awaited there, else at once.
    """

    exchange: Exchange
    argument: Argument
    samples: int
    messages: Messages
    arrival: Arrival | None

    def post(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Sends `gradient` back; returns the gradients received in exchange, None if pending."""
        back = self.exchange.reverse()
        incoming = self.messages.post(back, gradient, self.argument, self.samples)
        if self.arrival is None:
            return incoming.wait()
        self.arrival.waiting.append(incoming)
        return None


class Move(torch.autograd.Function):  # type: ignore[misc]
    """Returns the tensors of an Exchange (`arrived`); backward, posts gradients on `way_back`.

    `anchor` requires a gradient, so that the backward pass of every rank runs this node.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        tensor: torch.Tensor,
        arrived: list[torch.Tensor],
        way_back: WayBack,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.way_back = way_back
        result = arrived.pop()
        ctx.made = (tuple(result.shape), result.dtype, result.device)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if gradient is None:  # this rank does not depend on it, but others wait for its part
            shape, dtype, device = ctx.made
            gradient = torch.zeros(shape, dtype=dtype, device=device)
        return None, ctx.way_back.post(gradient), None, None


class Arrive(torch.autograd.Function):  # type: ignore[misc]
    """Nothing forward; backward, waits for the gradients that `Move` has posted for this tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, arrival: Arrival) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.arrival = arrival
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return ctx.arrival.take(gradient), None


class Absent(torch.autograd.Function):  # type: ignore[misc]
    """Represents an operator on other servers: results without samples.

    It ties the results to the inputs, so that the backward pass runs this node as it does there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        results: tuple[Argument, ...],
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.inputs = len(inputs)
        made = tuple(empty_of(result) for result in results)
        rigid = [t for t, result in zip(made, results, strict=True) if not result.gradient]
        ctx.mark_non_differentiable(*rigid)
        return made

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[None, ...]:
        nothing: tuple[None, ...] = (None,) * (2 + ctx.inputs)
        return nothing


class Begin(torch.autograd.Function):  # type: ignore[misc]
    """Nothing forward; backward, calls `began`: the backward pass begins with it on every rank."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, began: Callable[[], None]) -> torch.Tensor:
        ctx.began = began
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.began()
        return gradient, None
