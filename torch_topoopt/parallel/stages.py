"""A pipeline's stages: the operators of each, and the one tensor between two stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_topoopt.parallel.walk import (
    Flat,
    Functions,
    Walk,
    catch_leaves,
    drop,
    filled,
)
from torch_topoopt.profile.tracing import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.parallel.program import Argument, Program, Step, TensorShape
    from torch_topoopt.plan import Placement


class StrategyError(ValueError):
    """A strategy that cannot be executed for this model; the message names the operator and why."""


@dataclass(frozen=True)
class Stage:
    """`operators` run on `servers`, which share the samples of a micro-batch.

    `takes` and `gives` are the operators of the input and of the output tensor; empty at the ends.
    """

    servers: tuple[int, ...]
    operators: frozenset[str]
    takes: str
    gives: str


def stages_of(program: Program, strategy: Sequence[Placement]) -> tuple[Stage, ...]:
    """The stages of a pipeline; raises StrategyError if they cannot be executed.

    Consecutive operators on the same servers are a stage. All stages have equal numbers of servers,
    without overlap. One tensor passes from a stage to the next; its first dimension is the samples.
    Only the first stage reads the batch, and only the last makes the output.
    """
    strategy = [p for p in strategy if p.operator not in program.boundary]
    known = [name for name in program.operators if name not in program.boundary]
    if [p.operator for p in strategy] != known:
        raise StrategyError("strategy: it does not place the operators of this module in order")
    blocks: list[tuple[tuple[int, ...], list[str]]] = []
    for placement in strategy:
        if placement.sample != len(placement.servers):
            raise StrategyError(
                f"strategy: operator {placement.operator!r} splits more than samples, which can be "
                "planned but not executed"
            )
        if not blocks or blocks[-1][0] != placement.servers:
            blocks.append((placement.servers, []))
        blocks[-1][1].append(placement.operator)
    servers = [server for members, _ in blocks for server in members]
    if len(set(servers)) < len(servers) or len({len(members) for members, _ in blocks}) > 1:
        raise StrategyError(
            "strategy: micro-batches are executed for pipelines, whose stages have as many servers "
            "each, and none in common"
        )
    _check_parameters(program, blocks)
    passed = _passed(program, blocks)
    return tuple(
        Stage(members, frozenset(names), passed[i], passed[i + 1])
        for i, (members, names) in enumerate(blocks)
    )


def _check_parameters(program: Program, blocks: list[tuple[tuple[int, ...], list[str]]]) -> None:
    reader: dict[str, tuple[int, str]] = {}
    for number, (_, names) in enumerate(blocks):
        for name in names:
            for parameter in program.parameters.get(name, ()):
                other, first = reader.setdefault(parameter, (number, name))
                if other != number:
                    raise StrategyError(
                        f"strategy: operators {first!r} and {name!r} share the parameter "
                        f"{parameter!r}, so they cannot be in different stages"
                    )


def _passed(program: Program, blocks: list[tuple[tuple[int, ...], list[str]]]) -> list[str]:
    """The operator whose result passes before each stage, and after the last."""
    stage = {name: number for number, (_, names) in enumerate(blocks) for name in names}
    passed = [""] * (len(blocks) + 1)

    def hand_over(origin: str, reader: int, what: str) -> None:
        if origin in program.boundary:
            if reader:
                raise StrategyError(f"strategy: {what} of stage {reader + 1} reads the batch")
            return
        for border in range(stage[origin] + 1, reader + 1):
            if passed[border] not in ("", origin):
                raise StrategyError(
                    f"strategy: {passed[border]!r} and {origin!r} would both have to pass from "
                    f"stage {border} to stage {border + 1}; one tensor can"
                )
            passed[border] = origin

    for step in program.steps:
        if not step.operator:
            continue
        for argument in step.inputs:
            if argument.origin:
                hand_over(argument.origin, stage[step.operator], f"operator {step.operator!r}")
        for origin in step.changes:
            if stage.get(origin) != stage[step.operator]:
                raise StrategyError(
                    f"strategy: operator {step.operator!r} changes the result of {origin!r} in "
                    "place, so they cannot be in different stages"
                )
    for result in program.results:
        if result.origin:
            hand_over(result.origin, len(blocks) - 1, "the output")
    _check_passed(program, passed)
    return passed


def _check_passed(program: Program, passed: list[str]) -> None:
    made = {step.operator: step for step in program.steps if step.operator}
    for border, origin in enumerate(passed[1:-1], 1):
        if not origin:
            raise StrategyError(f"strategy: nothing passes from stage {border} to the next")
        step = made[origin]
        if step.structure != Slot(0) or step.outputs[0].shape is None:
            raise StrategyError(
                f"strategy: what {origin!r} makes is not one tensor of samples, so it cannot pass "
                f"from stage {border} to stage {border + 1}"
            )


class StageModule(torch.nn.Module):  # type: ignore[misc]
    """One stage of the user's module: from its input tensor to its output tensor.

    The first stage is called like the module. The last returns the tensors of the module's output,
    as torch.distributed.pipelining expects: see `whole`. Parameters of other stages are dropped.
    """

    def __init__(
        self, module: torch.nn.Module, program: Program, stage: Stage, placeholder: Any
    ) -> None:
        """`placeholder` is the batch (args, kwargs) without samples, for stages after the first."""
        super().__init__()
        self.module = module
        self._program = program
        self._stage = stage
        self._placeholder = placeholder
        self._walk: _StageWalk | None = None
        self._output = Flat(None, None)
        mine = {n for name in stage.operators for n in program.parameters.get(name, ())}
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        drop(module, [name for name in names if name not in mine])
        catch_leaves(module, program, lambda: self._walk)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """This stage's part of the module's forward."""
        taken = None
        if self._stage.takes:
            (taken,) = args
            args, kwargs = self._placeholder
        samples = _samples(self._program, self._stage, taken, (args, kwargs))
        self._walk = walk = _StageWalk(self._program, self._stage, taken, samples)
        try:
            with Functions(walk), self._program.flags():
                output = self.module(*args, **kwargs)
            walk.end()
        finally:
            self._walk = None
        if self._stage.gives:
            return walk.given
        self._output = Flat(output, None)
        return output if isinstance(output, torch.Tensor) else tuple(self._output.tensors)

    def whole(self, made: Any) -> Any:
        """The module's output, with the result of the latest call in it."""
        if isinstance(made, torch.Tensor):
            return made
        for i, tensor in enumerate(made):
            self._output.replace(i, tensor)
        return self._output.arguments()[0]


def _samples(program: Program, stage: Stage, taken: Any, given: Any) -> int:
    if taken is not None:
        return int(taken.shape[0]) // passed_shape(program, stage.takes).rows
    tensors = Flat(*given).tensors
    rows = [
        int(tensor.shape[0]) // argument.shape.rows
        for tensor, argument in zip(tensors, program.batch, strict=True)
        if argument.shape is not None
    ]
    return rows[0]


def passed_shape(program: Program, operator: str) -> TensorShape:
    """The TensorShape of the one result of `operator`."""
    shape = next(s.outputs[0].shape for s in program.steps if s.operator == operator)
    assert shape is not None, "stages_of has looked"
    return shape


class _StageWalk(Walk):
    def __init__(self, program: Program, stage: Stage, taken: Any, samples: int) -> None:
        super().__init__(program.steps, samples)
        self.given: Any = None
        self._stage = stage
        self._taken = taken
        batch = frozenset() if stage.takes else program.boundary
        self._here = stage.operators | batch | {stage.takes}  # their results have samples here

    def take(
        self, index: int, step: Step, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        result = self._take(step, function, args, kwargs)
        if step.operator and step.operator == self._stage.gives:
            self.given = result
        return result

    def _take(self, step: Step, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if step.operator and step.operator == self._stage.takes:
            return filled(step, [self._taken])
        if not step.operator:
            return self.between(step, function, args, kwargs)
        if step.operator not in self._stage.operators:
            return self.absent(step, ())
        flat = Flat(args, kwargs)
        flat.resize(step, self.own)
        args, kwargs = flat.arguments()
        return function(*args, **kwargs)

    def samples_of(self, argument: Argument) -> int:
        """See Walk.samples_of."""
        return self.own if argument.origin in self._here else 0
