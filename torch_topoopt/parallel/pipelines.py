"""`pipeline`: a model with its loss, and a step that follows the job's plan in micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from torch_topoopt.parallel.api import (
    check_process_group,
    check_ranks,
    divided,
    parallelize,
    planned,
    planned_precision,
    refuse_precision,
)
from torch_topoopt.parallel.checkpoint import ModelState, homes_of
from torch_topoopt.parallel.dry_run import checked_program
from torch_topoopt.parallel.gradient_norm import clip_gradients
from torch_topoopt.parallel.gradients import LaterMeans
from torch_topoopt.parallel.layout_pipelines import LayoutPipeline
from torch_topoopt.parallel.micro_batches import Pipeline, check_samples
from torch_topoopt.parallel.module import broadcast_values
from torch_topoopt.parallel.stages import StageModule, stages_of
from torch_topoopt.parallel.walk import Flat, call_arguments, empty_of
from torch_topoopt.plan import Placement
from torch_topoopt.plan.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_topoopt.parallel.micro_batches import Loss
    from torch_topoopt.parallel.program import Argument, Program


def pipeline(
    module: torch.nn.Module,
    example_batch: Any,
    loss: Loss,
    *,
    strategy: Sequence[Placement] | Layout | None = None,
    micro_batches: int | None = None,
    precision: torch.dtype | None = None,
) -> Pipeline:
    """Divides `module` as the job's plan says, and returns the object that trains it.

    Call it on every rank after `init_process_group` and before you make the optimizer, which gets
    `parameters()` of the result: those on this rank. `loss` of output and target is the mean over
    samples. `strategy` and `micro_batches` replace the plan's; a layout has its own micro-batches.
    Plans without stages run as with `parallelize`, so one script runs any plan. `precision` is that
    of `parallelize`.

    Raises RuntimeError without a process group or a plan, StrategyError for a strategy that does
    not fit the module or cannot be executed, ValueError for `micro_batches` below 1, and
    ProfileError for a module that cannot be traced.
    """
    check_process_group("pipeline")
    if strategy is None:
        strategy, count = planned("pipeline", dist.get_world_size())
        precision = precision or planned_precision()
    else:
        count = 1 if micro_batches is None else micro_batches
    if isinstance(strategy, Layout):
        return _of_layout(module, example_batch, loss, strategy, precision)
    refuse_precision(precision)
    if count < 1:
        raise ValueError(f"micro_batches: must be at least 1 (got {count})")
    servers = {placement.servers for placement in strategy}
    if count == 1 or len(servers) == 1:
        whole = parallelize(module, example_batch, strategy=strategy)
        return Pipeline(whole, whole, loss, count, dist.get_rank(), dist.get_world_size())
    program = checked_program(module, example_batch)
    return StagedPipeline(module, program, example_batch, loss, strategy, count)


def _of_layout(
    module: torch.nn.Module,
    example_batch: Any,
    loss: Loss,
    layout: Layout,
    precision: torch.dtype | None,
) -> Pipeline:
    if layout.pipeline > 1:
        check_ranks(layout)
        return LayoutPipeline.of(module, example_batch, loss, layout, precision)
    whole = divided(module, example_batch, layout, precision)
    return Pipeline(
        *(whole, whole.module, loss, layout.micro_batches, whole.replica, whole.replicas),
        whole.accumulating,
    )


class StagedPipeline(Pipeline):
    """One stage of several, under torch.distributed.pipelining's 1F1B schedule.

    In a stage, DistributedDataParallel averages gradients over the copies. A stage sends the last
    gradient of its input before the means are done, since only that is awaited upstream.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        program: Program,
        example_batch: Any,
        loss: Loss,
        strategy: Sequence[Placement],
        micro_batches: int,
    ) -> None:
        """The stage of this rank; a collective call."""
        stages = stages_of(program, strategy)
        rank = dist.get_rank()
        number = next(i for i, stage in enumerate(stages) if rank in stage.servers)
        replica, replicas = stages[number].servers.index(rank), len(stages[0].servers)
        chains = [dist.new_group([s.servers[i] for s in stages]) for i in range(replicas)]
        broadcast_values(module)
        self._program, self._placed, self._group = program, stages, chains[replica]
        self._schedules: dict[int, Any] = {}
        placements = {
            operator: Placement(operator, stage.servers)
            for stage in stages
            for operator in stage.operators
        }
        read = {name for names in program.parameters.values() for name in names}
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        self._state = ModelState(
            module, homes_of(module, program, placements), [n for n in names if n not in read]
        )
        self._own_stage = StageModule(
            module, program, stages[number], _placeholder(program, example_batch)
        )
        part: torch.nn.Module = self._own_stage
        self._means: LaterMeans | None = None
        if replicas > 1:
            copies = [dist.new_group(list(stage.servers)) for stage in stages]
            if any(parameter.requires_grad for parameter in part.parameters()):
                self._means = LaterMeans(copies[number], micro_batches)
                part = self._means.wrap(part)
        super().__init__(part, module, loss, micro_batches, replica, replicas)
        self.stage, self.stages = number, len(stages)

    def state_dict(self) -> dict[str, Any]:
        """See Pipeline.state_dict."""
        return self._state.gather()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """See Pipeline.load_state_dict."""
        return self._state.load(state_dict, strict=strict)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """See Pipeline.clip_grad_norm_."""
        return clip_gradients(self.parameters(), max_norm, lambda _: self.replicas)

    def step(self, batch: Any, target: torch.Tensor) -> torch.Tensor | None:
        """See Pipeline.step. Only the first stage uses `batch`, and only the last `target`."""
        check_samples(target, self.micro_batches)
        args, kwargs, samples = self._share(batch)
        schedule = self._schedule(samples // self.micro_batches)
        given = () if self.stage else args
        named = {} if self.stage else kwargs
        losses: list[torch.Tensor] = []
        if self.stage < self.stages - 1:
            schedule.step(*given, **named)
        else:
            schedule.step(*given, target=target, losses=losses, return_outputs=False, **named)
        if self._means is not None:
            self._means.finish()
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None

    def evaluate(self, batch: Any) -> Any:
        """See Pipeline.evaluate."""
        args, kwargs, samples = self._share(batch)
        stage = self._placed[self.stage]
        if self.stage:
            taken = _example(_one(self._program, stage.takes), samples).detach()
            dist.recv(taken, self._placed[self.stage - 1].servers[self.replica])
            args, kwargs = (taken,), {}
        with torch.no_grad():
            made = self._wrapped(*args, **kwargs)
        if self.stage == self.stages - 1:
            return self._own_stage.whole(made)
        dist.send(made.contiguous(), self._placed[self.stage + 1].servers[self.replica])
        return None

    def _schedule(self, samples: int) -> Any:
        """The schedule for micro-batches of that many samples."""
        if samples not in self._schedules:
            self._schedules[samples] = self._made(samples)
        return self._schedules[samples]

    def _share(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], int]:
        """The arguments of a batch, and its samples."""
        args, kwargs = call_arguments(batch)
        given = [*args, *kwargs.values()]
        if not all(isinstance(value, torch.Tensor) for value in given):
            raise ValueError("batch: stages take tensors: a single one, a tuple or a dict of them")
        rows = [
            int(tensor.shape[0]) // argument.shape.rows
            for tensor, argument in zip(given, self._program.batch, strict=True)
            if argument.shape is not None
        ]
        return tuple(args), kwargs, rows[0]

    def _made(self, samples: int) -> Any:
        """A schedule for micro-batches of that many samples, with shapes known in advance."""
        stage, program = self._placed[self.stage], self._program
        comes = [_one(program, stage.takes)] if stage.takes else list(program.batch)
        goes = [_one(program, stage.gives)] if stage.gives else list(program.results)
        made = PipelineStage(
            self._wrapped,
            self.stage,
            self.stages,
            torch.device("cpu"),
            input_args=tuple(_example(argument, samples) for argument in comes),
            output_args=tuple(_example(argument, samples) for argument in goes),
            group=self._group,
        )
        made.stage_index_to_group_rank = {  # a group sorts its ranks, stages have their own order
            i: dist.get_group_rank(self._group, placed.servers[self.replica])
            for i, placed in enumerate(self._placed)
        }
        kind = Schedule1F1B if self.micro_batches >= self.stages else ScheduleGPipe
        alone = self._means is None  # else sums over micro-batches are under way by then
        return kind(made, self.micro_batches, loss_fn=self._loss_of, scale_grads=alone)

    def _loss_of(self, made: Any, target: Any) -> torch.Tensor:
        return self._loss(self._own_stage.whole(made), target)


def _one(program: Program, operator: str) -> Argument:
    return next(step.outputs[0] for step in program.steps if step.operator == operator)


def _example(argument: Argument, samples: int) -> torch.Tensor:
    if argument.shape is None:
        return torch.empty(argument.empty, dtype=argument.dtype)
    shape = (argument.shape.rows * samples, *argument.shape.tail)
    return torch.empty(shape, dtype=argument.dtype, requires_grad=argument.gradient)


def _placeholder(program: Program, example_batch: Any) -> tuple[Any, Any]:
    """The batch without samples."""
    flat = Flat(*call_arguments(example_batch))
    for i, argument in enumerate(program.batch):
        flat.replace(i, empty_of(argument))
    return flat.arguments()
