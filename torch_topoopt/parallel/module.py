"""Runs the user's module by a strategy: every operator on its ranks, on their samples.

Every rank runs the module's own forward. A rank executes an operator only if it is one of its
ranks, on its own samples and part of the parameters; otherwise it continues with tensors without
samples. Operands with another placement are moved before the operator runs (`transfers`), once for
all readers with the same need. Module and functions keep their names, so the user's hooks apply.

A rank that waits for its part of the batch at one operator has not reached the next one, whose
ranks wait for it in turn. So where several operators elsewhere read the batch, a first pass
(`_Ahead`) computes nothing and sends all their operands; then the forward starts again.
"""

from __future__ import annotations

import itertools
import zlib
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from torch_topoopt.parallel.checkpoint import ModelState, homes_of
from torch_topoopt.parallel.gradient_norm import clip_gradients
from torch_topoopt.parallel.gradients import GradientSums
from torch_topoopt.parallel.layouts import TensorLayout, made_by
from torch_topoopt.parallel.splits import keep_part
from torch_topoopt.parallel.transfers import (
    Absent,
    Arrival,
    Arrive,
    Begin,
    Exchange,
    Incoming,
    Messages,
    Move,
    WayBack,
)
from torch_topoopt.parallel.walk import Flat, Functions, Walk, catch_leaves, drop, filled
from torch_topoopt.profile.tracing import INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch_topoopt.parallel.program import Argument, Program, Step
    from torch_topoopt.plan import Placement


class ParallelModule(torch.nn.Module):  # type: ignore[misc]
    """The result of `parallelize` for a strategy that is not purely data parallel.

    Call it like the wrapped module, on every rank with equally many samples of its own. Results and
    gradients are those of DistributedDataParallel. Only the parameters of operators on this rank's
    server remain: make the optimizer afterwards.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        program: Program,
        placements: Mapping[str, Placement],
        piece_bytes: int | None = None,
    ) -> None:
        """`placements` are the ranks and the split of every operator of `program`.

        Samples are sent in pieces of `piece_bytes`, the same on all ranks; None: as they are.
        """
        super().__init__()
        self.module = module
        self._program = program
        self._placements = dict(placements)
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self.replica, self.replicas = self._rank, self._ranks  # each rank has samples of its own
        self._holders: dict[int, int] = {}  # ranks that have a parameter, by its identity
        self._messages = Messages(piece_bytes)
        self._sums = GradientSums(self._ranks, self._messages.drain)
        self._anchor = torch.zeros((), requires_grad=True)
        self._run: Walk | None = None
        self._parts = _parts(self._placements, self._rank)
        self._moves, self._results = _bind(program, self._placements, self._rank)
        moves = [m for moves in (*self._moves, self._results) for m in moves.values()]
        self._awaited = {move.argument.origin for move in moves if move.argument.gradient}
        self._ahead = _reads_of_batch(self._moves)
        broadcast_values(module)
        self._state = ModelState(module, homes_of(module, program, self._placements))
        for operator, path in program.modules.items():
            keep_part(module.get_submodule(path), self._placements[operator], self._rank)
        self._share_gradients()
        catch_leaves(module, program, lambda: self._run)
        if not any(True for _ in module.parameters()):  # an optimizer needs at least one
            self.nothing = torch.nn.Parameter(torch.zeros(0))

    def _share_gradients(self) -> None:
        """Drops parameters of other ranks, and makes groups sum the gradients of the rest."""
        held: dict[tuple[int, ...], dict[int, torch.nn.Parameter]] = {}
        everyone = tuple(range(self._ranks))
        placed: set[int] = set()
        for operator, path in reversed(self._program.modules.items()):
            ranks, parts = self._placements[operator].servers, self._placements[operator].parameter
            parameters = {id(p): p for p in self.module.get_submodule(path).parameters()}
            placed.update(parameters)
            for part in range(parts if parameters else 0):
                group = held.setdefault(ranks[part::parts], {})
                if self._rank in ranks[part::parts]:
                    group.update(parameters)
        for parameter in self.module.parameters():
            if id(parameter) not in placed:
                held.setdefault(everyone, {})[id(parameter)] = parameter
        elsewhere = [
            name
            for operator, names in self._program.parameters.items()
            if self._rank not in self._placements[operator].servers
            for name in names
        ]
        for ranks in sorted(held, key=lambda s: (-len(s), s)):
            handle = None
            if 1 < len(ranks) < self._ranks:
                handle = dist.new_group(list(ranks))  # a collective call, in one order
            wanted = [p for p in held[ranks].values() if p.requires_grad]
            self._holders.update((id(parameter), len(ranks)) for parameter in wanted)
            if wanted:
                self._sums.add(ranks, handle, wanted)
        drop(self.module, elsewhere)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """See Pipeline.clip_grad_norm_."""
        return clip_gradients(self.parameters(), max_norm, lambda p: self._holders[id(p)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, on this rank's samples."""
        if self._run is not None:
            raise RuntimeError("topoopt: the module was called from within its own forward")
        self._messages.drain()
        run = _Run(self, self._samples(args, kwargs))
        try:
            if len(self._ahead) > 1:
                self._send_ahead(run, args, kwargs)
            self._run = run
            with Functions(run), self._program.flags():
                output = self.module(*args, **kwargs)
            return run.finish(output)
        finally:
            self._run = None

    def _send_ahead(self, run: _Run, args: Any, kwargs: Any) -> None:
        self._run = ahead = _Ahead(self, run)
        with torch.random.fork_rng(devices=[]), Functions(ahead), self._program.flags():
            try:
                self.module(*args, **kwargs)
            except _AllSent:
                return
        ahead.end()

    def _samples(self, args: Any, kwargs: Any) -> int:
        """The samples of all ranks together."""
        leaves, _ = tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        sizes = {
            int(tensor.shape[0])
            for tensor, grows in zip(given, self._program.batch, strict=False)
            if grows.shape is not None
        }
        if len(given) != len(self._program.batch) or len(sizes) != 1:
            raise ValueError(
                f"the batch holds {len(given)} tensors with {sorted(sizes)} samples, the example "
                f"batch {len(self._program.batch)} with one number of samples"
            )
        return int(sizes.pop()) * int(self._ranks)

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The state of the whole model in the form of the user's module, on every rank.

        A collective call. Raises ValueError for `keep_vars`: gathered tensors have no gradients.
        """
        if keep_vars:
            raise ValueError("keep_vars: the parameters of a split model are on several ranks")
        state = {} if destination is None else destination
        state.update((prefix + name, value) for name, value in self._state.gather().items())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads this rank's part of a state of the whole model: see ModelState.load."""
        return self._state.load(state_dict, strict=strict)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are summed up locally and not yet over the ranks, as with DDP."""
        before, self._sums.enabled = self._sums.enabled, False
        try:
            yield
        finally:
            self._sums.enabled = before


class _Moved:
    """An input of a step, and its Exchange. Inputs with the same `key` are identical.

    Values that an input repeats, as `expand` does, are moved once: `argument` is the input without
    them.
    """

    def __init__(
        self, argument: Argument, source: TensorLayout, target: TensorLayout, rank: int, tag: int
    ) -> None:
        self.argument = argument
        if argument.shape is not None:
            tail = list(argument.shape.tail)
            for dimension in argument.repeated:
                tail[dimension - 1] = 1
            self.argument = replace(argument, shape=replace(argument.shape, tail=tuple(tail)))
        self.exchange = Exchange.of(source, target, rank, tag)
        self.key = (argument.number, argument.origin, target)

    def once(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` without the values that it repeats."""
        for dimension in self.argument.repeated:
            tensor = tensor.narrow(dimension, 0, 1)
        return tensor

    def repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        """The reverse of `once`."""
        if not self.argument.repeated:
            return tensor
        sizes = list(tensor.shape)
        for dimension in self.argument.repeated:
            sizes[dimension] = self.argument.empty[dimension]
        return tensor.expand(sizes)


_Moves = dict[int, _Moved]  # by index of the operand


def _parts(placements: Mapping[str, Placement], rank: int) -> dict[str, int]:
    """The number of parts that the samples of each operator's result are in; 0: none is here."""
    made = {operator: made_by(placement) for operator, placement in placements.items()}
    return {o: layout.samples if rank in layout.ranks else 0 for o, layout in made.items()}


def _bind(
    program: Program, placements: Mapping[str, Placement], rank: int
) -> tuple[list[_Moves], _Moves]:
    """The moves before every step, and those of the results to all ranks."""
    made = {operator: made_by(placement) for operator, placement in placements.items()}
    bound = []
    tags = itertools.count(2, 2)
    for step in program.steps:
        moves: _Moves = {}
        if step.operator:
            needed, _ = program.layouts(placements[step.operator])
            for i, argument in enumerate(step.inputs):
                if argument.origin and made[argument.origin] != needed:
                    moves[i] = _Moved(argument, made[argument.origin], needed, rank, next(tags))
        bound.append(moves)
    results = {
        i: _Moved(result, made[result.origin], made[INPUT], rank, next(tags))
        for i, result in enumerate(program.results)
        if result.origin and made[result.origin] != made[INPUT]
    }
    return bound, results


class _Run(Walk):
    """One forward pass on this rank's part of the samples of each operator."""

    def __init__(self, owner: ParallelModule, samples: int) -> None:
        super().__init__(owner._program.steps, samples // owner._parts[INPUT])
        self._owner = owner
        self.samples = samples
        self._incoming: dict[Any, Incoming] = {}  # by _Moved.key
        self._moved: dict[Any, torch.Tensor] = {}

    def take(
        self, index: int, step: Step, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Moves the operands of the step, runs it if it is placed here, and drops dead results."""
        if not step.operator:
            return self.between(step, function, args, kwargs)
        parts, moves = self._owner._parts[step.operator], self._owner._moves[index]
        flat = Flat(args, kwargs)
        flat.resize(step, self.samples // parts if parts else 0)
        if moves:
            tensors = flat.tensors
            for i, moved in self._move(moves, {i: tensors[i] for i in moves}).items():
                flat.replace(i, moved)
        if parts or not step.outputs:
            args, kwargs = flat.arguments()
            result = function(*args, **kwargs)
        else:
            result = self.absent(step, flat.tensors)
        if step.operator in self._owner._awaited and torch.is_grad_enabled():
            result = tree_map_only(torch.Tensor, self._await, result)
        return result

    def samples_of(self, argument: Argument) -> int:
        """See Walk.samples_of."""
        parts = self._owner._parts[argument.origin]
        return self.samples // parts if parts else 0

    def _await(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        arrival = Arrival()
        awaited: torch.Tensor = Arrive.apply(tensor, arrival)
        awaited._topoopt_arrival = arrival
        return awaited

    def _move(
        self, moves: Mapping[int, _Moved], given: Mapping[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Moves tensors to their readers, all at once."""
        owner, moved = self._owner, self._moved
        given = {i: move.once(given[i]) for i, move in moves.items()}
        for i, move in moves.items():
            self.post(move, given[i])
        for i, move in moves.items():
            if move.key in moved:
                continue
            result = self._incoming.pop(move.key).wait()
            if move.argument.gradient and torch.is_grad_enabled():
                way_back = WayBack(
                    move.exchange,
                    move.argument,
                    self.samples,
                    owner._messages,
                    getattr(given[i], "_topoopt_arrival", None),
                )
                result = Move.apply(owner._anchor, given[i], [result], way_back)
            moved[move.key] = result
        return {i: move.repeated(moved[move.key]) for i, move in moves.items()}

    def post(self, move: _Moved, tensor: torch.Tensor) -> None:
        """Sends this rank's part of a tensor, if not yet done."""
        if move.key not in self._incoming and move.key not in self._moved:
            self._incoming[move.key] = self._owner._messages.post(
                move.exchange, move.once(tensor.detach()), move.argument, self.samples
            )

    def absent(self, step: Step, inputs: Sequence[torch.Tensor]) -> Any:
        """See Walk.absent; gradients pass it as they pass the step elsewhere."""
        if torch.is_grad_enabled() and any(output.gradient for output in step.outputs):
            return filled(step, Absent.apply(self._owner._anchor, step.outputs, *inputs))
        return super().absent(step, inputs)

    def finish(self, output: Any) -> Any:
        """The result of the model, with the samples of this rank."""
        self.end()
        leaves, shape = tree_flatten(output)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        moves = self._owner._results
        for i, moved in self._move(moves, {i: leaves[places[i]] for i in moves}).items():
            leaves[places[i]] = moved
        for i in places:
            if leaves[i].requires_grad:
                leaves[i] = Begin.apply(leaves[i], self._owner._sums.backward_began)
        return tree_unflatten(leaves, shape)


class _AllSent(BaseException):
    """Ends the pass ahead; not an Exception, so that a model's `except Exception` passes it on."""


class _Ahead(Walk):
    """The pass before a forward pass: sends parts of the batch that operators elsewhere read."""

    def __init__(self, owner: ParallelModule, run: _Run) -> None:
        super().__init__(owner._program.steps, run.own)
        self._owner = owner
        self._forward = run
        self._last = max(owner._ahead)

    def take(
        self, index: int, step: Step, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Sends; makes views of the batch and constants, and skips all computation."""
        moves = self._owner._moves[index]
        if moves:
            tensors = Flat(args, kwargs).tensors
            for i, move in moves.items():
                if _of_batch(move.argument):
                    self._forward.post(move, tensors[i])
        if index == self._last:
            raise _AllSent
        if step.operator:
            return self.absent(step, ())
        return self.between(step, function, args, kwargs)

    def samples_of(self, argument: Argument) -> int:
        """See Walk.samples_of: only the batch is there."""
        return self.own if _of_batch(argument) else 0


def _of_batch(argument: Argument) -> bool:
    """Whether it is a tensor of the batch, or a view of one."""
    return argument.origin.split("#")[0] == INPUT


def _reads_of_batch(steps: Sequence[_Moves]) -> list[int]:
    """The steps for which parts of the batch have to move."""
    return [
        i
        for i, moves in enumerate(steps)
        if any(_of_batch(move.argument) for move in moves.values())
    ]


def broadcast_values(module: torch.nn.Module) -> None:
    """Broadcasts the values of rank 0, as DistributedDataParallel does.

    Sends nothing where all ranks have equal values already, made with the same seed.
    """
    values = [*module.parameters(), *module.buffers()]
    if any(value.is_meta for value in values):
        raise ValueError("the model is on the meta device; make it with values, on every rank")
    check = 0
    for value in values:
        check = zlib.crc32(value.detach().cpu().reshape(-1).view(torch.uint8).numpy(), check)
    checks = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(checks, torch.tensor([check]))
    if len({int(other) for other in checks}) > 1:
        for value in values:
            dist.broadcast(value.detach(), 0)
