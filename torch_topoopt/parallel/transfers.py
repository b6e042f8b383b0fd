"""Moving samples between the servers of two operators, forward and backward.

The i-th of k servers of a placement holds samples [i/k, (i+1)/k) of the batch of all ranks, in the
order of the ranks. What a tensor needs to get from one placement to another is an `Exchange`; all
ranks make the same ones in the same order, and post what they send before they wait, so no order of
the backward pass can make them wait for each other in a circle.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt.parallel.walk import empty_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.parallel.program import Argument


@dataclass(frozen=True)
class Part:
    """Rows [start, stop) of a local tensor that go to, or come from, another rank."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True)
class Exchange:
    """One rank's part in moving a tensor from the ranks `source` to the ranks `target`.

    Rows are counted in units of 1 / `units` of all samples. `kept` is (from, to, length) of what
    stays here. `has` and `gets` are this rank's rows before and after.
    """

    tag: int
    units: int
    has: int
    gets: int
    sends: tuple[Part, ...]
    receives: tuple[Part, ...]
    kept: tuple[int, int, int] | None

    @classmethod
    def of(cls, source: tuple[int, ...], target: tuple[int, ...], rank: int, tag: int) -> Exchange:
        """Of one rank; `tag` and `tag` + 1 are for its messages, forward and backward."""
        a, b = len(source), len(target)
        units = math.lcm(a, b)
        mine, theirs = units // a, units // b
        sends, receives, kept = [], [], None
        for i, j in itertools.product(range(a), range(b)):
            start = max(i * mine, j * theirs)
            length = min((i + 1) * mine, (j + 1) * theirs) - start
            if length <= 0:
                continue
            out, into = start - i * mine, start - j * theirs
            if source[i] == rank == target[j]:
                kept = (out, into, length)
            elif source[i] == rank:
                sends.append(Part(target[j], out, out + length))
            elif target[j] == rank:
                receives.append(Part(source[i], into, into + length))
        return cls(
            tag,
            units,
            mine if rank in source else 0,
            theirs if rank in target else 0,
            tuple(sends),
            tuple(receives),
            kept,
        )

    def reverse(self) -> Exchange:
        """The way back, of gradients."""
        kept = self.kept and (self.kept[1], self.kept[0], self.kept[2])
        return Exchange(
            self.tag + 1, self.units, self.gets, self.has, self.receives, self.sends, kept
        )


@dataclass
class Arrival:
    """Gradients on their way to an operator's result: whoever needs them waits here."""

    waiting: list[tuple[torch.Tensor, list[Any]]] = field(default_factory=list)

    def take(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """`gradient` plus all that was on its way, which has arrived then."""
        for received, works in self.waiting:
            for work in works:
                work.wait()
            gradient = received if gradient is None else gradient + received
        self.waiting.clear()
        return gradient


class Messages:
    """What this rank has sent and not yet seen off; its memory is kept until then.

    What goes to one rank is cut into pieces of about `piece_bytes` (None: never), so that a server
    between the two passes on one piece while the next one comes.
    """

    def __init__(self, piece_bytes: int | None = None) -> None:
        self._piece_bytes = piece_bytes
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def post(
        self, exchange: Exchange, tensor: torch.Tensor, shape: Argument, samples: int
    ) -> tuple[torch.Tensor, list[Any]]:
        """Sends and receives in the background; returns the result and what to wait for.

        `samples` is the number of all ranks' samples. Raises ValueError if `tensor` is not the
        shape that was recorded.
        """
        assert shape.shape is not None
        unit = samples // exchange.units * shape.shape.rows
        wanted = (exchange.has * unit, *shape.shape.tail)
        if tuple(tensor.shape) != wanted or tensor.dtype != shape.shape.dtype:
            raise ValueError(
                f"a tensor of {shape.origin or 'the batch'} has shape {tuple(tensor.shape)} and "
                f"type {tensor.dtype}, not {wanted} and {shape.shape.dtype} as in the example "
                "batch; every rank must bring as many samples as every other"
            )
        result = tensor.new_empty((exchange.gets * unit, *shape.shape.tail))
        works = [
            dist.irecv(piece, part.rank, tag=exchange.tag)
            for part in exchange.receives
            for piece in self._pieces(result[part.start * unit : part.stop * unit])
        ]
        for part in exchange.sends:
            for piece in self._pieces(tensor[part.start * unit : part.stop * unit].contiguous()):
                self._sent.append((dist.isend(piece, part.rank, tag=exchange.tag), piece))
        if exchange.kept is not None:
            start, into, length = (value * unit for value in exchange.kept)
            result[into : into + length] = tensor[start : start + length]
        return result, works

    def _pieces(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self._piece_bytes is None or rows.nbytes <= self._piece_bytes:
            return (rows,)
        row_bytes = rows.nbytes // rows.shape[0]
        pieces: tuple[torch.Tensor, ...] = rows.split(max(1, self._piece_bytes // row_bytes))
        return pieces

    def drain(self) -> None:
        """Waits until all that was sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


class Move(torch.autograd.Function):  # type: ignore[misc]
    """Returns what an Exchange brought (`arrived`); backward, posts the one of the gradients.

    `anchor` requires a gradient, so that all ranks come by here backward, whatever they hold.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        tensor: torch.Tensor,
        arrived: list[torch.Tensor],
        exchange: Exchange,
        argument: Argument,
        samples: int,
        messages: Messages,
        arrival: Arrival | None,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.exchange, ctx.argument, ctx.samples = exchange, argument, samples
        ctx.messages, ctx.arrival = messages, arrival
        result = arrived.pop()
        ctx.made = (tuple(result.shape), result.dtype, result.device)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if gradient is None:  # nobody here depends on it, but others wait for their part
            shape, dtype, device = ctx.made
            gradient = torch.zeros(shape, dtype=dtype, device=device)
        back = ctx.exchange.reverse()
        received, works = ctx.messages.post(back, gradient, ctx.argument, ctx.samples)
        if ctx.arrival is None:
            for work in works:
                work.wait()
            return None, received, None, None, None, None, None, None
        ctx.arrival.waiting.append((received, works))
        return (None,) * 8


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
    """Stands for an operator that runs on other servers: results without samples.

    It ties the results to the inputs, so that the backward pass comes by here as it does there.
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
