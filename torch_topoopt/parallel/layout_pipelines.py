"""Training of a model whose layout has a pipeline."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from torch_topoopt.parallel.gradient_norm import clip_gradients, holders_of
from torch_topoopt.parallel.micro_batches import Pipeline, check_samples, micro_batches_of
from torch_topoopt.parallel.module import broadcast_values
from torch_topoopt.parallel.sharded.blocks import model_cells
from torch_topoopt.parallel.sharded.chunks import JoinedChunks, ModelChunk, Sent, shared_copy
from torch_topoopt.parallel.sharded.distribute import Division, distribute
from torch_topoopt.parallel.sharded.divided_state import DividedState
from torch_topoopt.parallel.sharded.mesh import LayoutMesh
from torch_topoopt.parallel.sharded.module_calls import ModelCalls
from torch_topoopt.parallel.sharded.recompute import drop_caches
from torch_topoopt.parallel.sharded.schedules import (
    ChunkRunner,
    ChunkStage,
    check_schedule,
    loss_dtype,
    schedule_of,
)
from torch_topoopt.parallel.sharded.shared_gradients import SharedGradients
from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.parallel.walk import call_arguments
from torch_topoopt.profile.profiling import profile
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.cell_costs import CellCosts
from torch_topoopt.search.layouts.stages import chunk_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.parallel.micro_batches import Loss
    from torch_topoopt.plan.layout import Layout

    Forms = tuple[Sent, ...]

_ACCELERATOR = "a100"  # its times cut the stages of a layout that is not from a plan


class LayoutPipeline(Pipeline):
    """This rank's chunks of a model, each divided as the layout says, under a schedule of PyTorch.

    All ranks of a copy are called with its samples. `module` is the user's own, without what other
    ranks have.
    """

    def __init__(
        self, module: torch.nn.Module, example_batch: Any, loss: Loss, division: Division
    ) -> None:
        """Divides `module`, in place; a collective call."""
        layout, mesh = division.layout, division.mesh
        cells = model_cells(module, division.op_graph)
        calls = ModelCalls.of(module, example_batch, [c.paths[0] for c in cells if c.block])
        bounds = calls.bounds(cells, division.counts)
        broadcast_values(module)
        self._layout, self._count = layout, len(bounds) - 1
        self._group = mesh.state["pipeline"].get_group()
        self._device = next(module.parameters()).device
        self._state = DividedState(module, division.sections(module), self._group)
        self._shared = SharedGradients(module, calls, bounds, mesh)
        numbers = range(mesh.stage, self._count, layout.pipeline)
        modules = [module, *(shared_copy(module) for _ in numbers[1:])]
        self._chunks = {
            number: ModelChunk(
                one, calls, bounds[number], bounds[number + 1], mesh.tensor, division.precision
            )
            for number, one in zip(numbers, modules, strict=True)
        }
        for chunk in self._chunks.values():
            distribute(chunk.module, division, last=chunk.is_last)
            chunk.follow()
        self._runners = {number: ChunkRunner(c, loss) for number, c in self._chunks.items()}
        self._schedules: dict[object, Any] = {}
        self._forms: dict[object, list[Forms]] = {}  # between chunks, by shapes of a batch
        super().__init__(
            torch.nn.ModuleList(chunk.module for chunk in self._chunks.values()),
            module if len(modules) == 1 else JoinedChunks(modules),
            loss,
            layout.micro_batches,
            mesh.replica,
            layout.data,
        )
        self.stage, self.stages = mesh.stage, layout.pipeline

    @classmethod
    def of(
        cls,
        module: torch.nn.Module,
        example_batch: Any,
        loss: Loss,
        layout: Layout,
        precision: torch.dtype | None,
    ) -> LayoutPipeline:
        """Divides `module`, which is called with batches like `example_batch`."""
        check_schedule(layout)
        drop_caches(module, layout.recompute)
        op_graph = profile(module, example_batch, name=type(module).__name__)
        mesh = LayoutMesh.of(layout, next(module.parameters()).device.type)
        counts = cells_of_chunks(op_graph, layout)
        return cls(module, example_batch, loss, Division(op_graph, mesh, precision, counts))

    def state_dict(self) -> dict[str, Any]:
        """See Pipeline.state_dict."""
        return self._state.gather(list(self._wrapped))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """See Pipeline.load_state_dict."""
        return self._state.load(list(self._wrapped), state_dict, strict=strict)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """See Pipeline.clip_grad_norm_."""
        holders = holders_of(self._layout)
        repeated = self._shared.repeated(self._chunks)
        return clip_gradients(self.parameters(), max_norm, holders, repeated)

    def step(self, batch: Any, target: torch.Tensor) -> torch.Tensor | None:
        """See Pipeline.step."""
        args, kwargs = call_arguments(batch)
        check_samples(target, self.micro_batches)
        parts = list(micro_batches_of(args, kwargs, target, self.micro_batches))
        schedule = self._schedule(parts[0][:2])
        for runner in self._runners.values():
            runner.begin(parts)
        self._shared.begin(self._chunks)
        numbers = torch.arange(self.micro_batches, device=self._device)
        losses: list[torch.Tensor] = []
        first = (numbers,) if 0 in self._chunks else ()
        if self._count - 1 in self._chunks:
            schedule.step(*first, target=numbers, losses=losses, return_outputs=False)
        else:
            schedule.step(*first)
        self._shared.add(self._chunks)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else None

    def evaluate(self, batch: Any) -> Any:
        """See Pipeline.evaluate."""
        return self._forward(call_arguments(batch), zeros=False)

    def _schedule(self, batch: tuple[Any, Any]) -> Any:
        """The schedule for micro-batches of the shapes of `batch`."""
        key = _shapes_of(batch)
        if key not in self._schedules:
            with self._undisturbed():
                self._forward(batch, zeros=True)
            stages = [self._stage_of(number, self._forms[key]) for number in self._chunks]
            self._schedules[key] = schedule_of(self._layout, stages)
        for number, chunk in self._chunks.items():
            chunk.received_as = self._forms[key][number - 1] if number else ()
        return self._schedules[key]

    def _stage_of(self, number: int, forms: list[Forms]) -> ChunkStage:
        chunk = self._chunks[number]

        def tensors(boundary: int, passed: Any) -> tuple[torch.Tensor, ...]:
            return tuple(
                torch.empty(
                    form.shape, dtype=form.dtype, device="meta", requires_grad=tensor.gradient
                )
                for form, tensor in zip(forms[boundary], passed, strict=True)
            )

        number_of_part = torch.empty(1, dtype=torch.long, device="meta")
        dtype = loss_dtype(chunk.module)
        loss = torch.empty((), dtype=dtype, device="meta", requires_grad=True)
        return ChunkStage(
            self._runners[number],
            self._layout,
            number,
            self._count,
            self._device,
            input_args=tensors(number - 1, chunk.takes) if number else (number_of_part,),
            output_args=(loss,) if chunk.is_last else tensors(number, chunk.gives),
            group=self._group,
        )

    def _forward(self, batch: tuple[Any, Any], *, zeros: bool) -> Any:
        """The output of the model for `batch` on the ranks of the last stage, else None.

        With `zeros`, chunks receive zeros: only forms are needed, which are kept.
        """
        key = _shapes_of(batch)
        known = self._forms.get(key)
        found: list[Forms] = []
        received: tuple[torch.Tensor, ...] = ()
        made: Any = None
        for number in range(self._count):
            chunk = self._chunks.get(number)
            if chunk is not None:
                chunk.batch, chunk.received_as = batch, found[-1] if found else ()
                with torch.no_grad():
                    made = chunk(*received)
            if number == self._count - 1:
                break
            found.append(self._sent_by(number) if known is None else known[number])
            received = self._received(number, made, found[-1], zeros=zeros)
        self._forms[key] = found
        return made if self._count - 1 in self._chunks else None

    def _sent_by(self, number: int) -> Forms:
        """The forms of the tensors that chunk `number` has made, on all ranks."""
        chunk = self._chunks.get(number)
        value = [() if chunk is None else chunk.sent_as]
        dist.broadcast_object_list(value, self._rank_of(number), group=self._group)
        return value[0]

    def _received(
        self, number: int, made: Any, forms: Forms, *, zeros: bool
    ) -> tuple[torch.Tensor, ...]:
        """The tensors for the next chunk, if it is this rank's; `made` by chunk `number`."""
        if number in self._chunks and not zeros:
            for tensor in made:
                dist.send(tensor.contiguous(), self._rank_of(number + 1), group=self._group)
        if number + 1 not in self._chunks:
            return ()
        received = tuple(torch.zeros(f.shape, dtype=f.dtype, device=self._device) for f in forms)
        for tensor in received if not zeros else ():
            dist.recv(tensor, self._rank_of(number), group=self._group)
        return received

    def _rank_of(self, number: int) -> int:
        return int(dist.get_global_rank(self._group, number % self.stages))

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Around a pass that leaves buffers and random numbers as they are."""
        modules = [m for c in self._chunks.values() for m in (c.model, *c.module.modules())]
        were = [module.training for module in modules]
        devices = [self._device] if self._device.type == "cuda" else []
        try:
            for module in modules:
                module.training = False
            with torch.random.fork_rng(devices):
                yield
        finally:
            for module, training in zip(modules, were, strict=True):
                module.training = training


def _shapes_of(batch: Any) -> tuple[object, ...]:
    return tuple((v.shape, v.dtype) for v in tree_leaves(batch) if isinstance(v, torch.Tensor))


def cells_of_chunks(op_graph: OpGraph, layout: Layout) -> tuple[int, ...]:
    """The cells of each chunk: those of `layout`, as in a plan, else of equal times."""
    costs = CellCosts(op_graph, accelerator(_ACCELERATOR))
    cells = costs.priced(layout)
    counts = None if cells is None else chunk_cells(cells, layout)
    if counts is None:
        raise StrategyError(f"layout: {costs.why_not(layout)}")
    return counts
