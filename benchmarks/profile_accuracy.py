"""Does a measured profile say what a training step takes? Predicted beside measured, one process.

    python benchmarks/profile_accuracy.py
    python benchmarks/profile_accuracy.py --models vgg:digits --batch-size 128 --device cuda

Predicted: every operator of the model alone, one after the other, as `topoopt profile --measure`
measures them on this device; and on a processor also the estimate of the accelerator "cpu", the
roofline of four small kernels. Measured: the forward pass of the whole model and the backward pass
from the sum of its outputs, which is what a profile is of, without an optimizer. All are the
fastest of several runs, for what else the machine does only adds to them; rounds of measuring
operators and steps alternate, so that a clock that drifts does so for both. With one thread, the
default, times are processor time, so that it makes little difference what else is running.

error        predicted over measured, less 1
alone        operators that could be measured alone, of all; the others are estimated
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from torch_topoopt.launcher.errors import BAD_INPUT, OK
from torch_topoopt.models import MODELS
from torch_topoopt.profile.cost_table import with_costs
from torch_topoopt.profile.operator_timing import measure_operators
from torch_topoopt.profile.profiling import load_model, profile
from torch_topoopt.profile.tracing import ProfileError, tensors
from torch_topoopt.search.accelerators import accelerator, estimated_seconds, operator_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT = ("resnet50:tiny", "vgg:digits", "gpt:tiny", "dlrm:tiny")
_LEAST_RUNS, _LEAST_S = 5, 0.5  # of the whole step, in one round
_COLUMNS = ("model", "pass", "measured", "predicted", "error", "roofline", "error", "alone")
_WIDTHS = (24, 10, 12, 12, 9, 12, 9, 10)

Clock = Callable[[], float]
Passes = tuple[float, float]  # seconds forward, backward


@dataclass(frozen=True)
class Accuracy:
    """Both passes as they were measured, as measured operators predict them, as estimated."""

    model: str
    measured_s: Passes
    predicted_s: Passes
    roofline_s: Passes | None
    alone: int
    operators: int


def accuracy_of(
    spec: str, batch_size: int, *, device: str, rounds: int, clock: Clock = time.perf_counter
) -> Accuracy:
    """Of a shipped model, NAME:SIZE; raises ProfileError as `load_model` does."""
    loaded = load_model(spec, batch_size=batch_size)
    name, _, size = loaded.name.partition(":")
    graph = profile(loaded.build, loaded.example_batch, name=loaded.name)
    batch = MODELS[name].example_batch(batch_size, size=size)
    step = Step(loaded.build(), batch, device, clock)
    here = accelerator("cpu")  # estimates the few operators that cannot be measured alone
    steps: list[Passes] = []
    operators: list[list[Passes]] = []  # per round
    for _ in range(rounds):
        steps.append(step.fastest())
        timing = measure_operators(
            loaded.build,
            loaded.example_batch,
            [batch_size],
            device=device,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2,
            limit_s=600,
            clock=clock,
        )
        costs = with_costs(graph, timing.table).operators
        operators.append([operator_seconds(here, operator, 1) for operator in costs])
    fastest = [_each(min, times) for times in zip(*operators, strict=True)]
    estimates = [estimated_seconds(here, operator, 1) for operator in graph.operators]
    return Accuracy(
        f"{loaded.name}, {batch_size}",
        _each(min, steps),
        _each(sum, fastest),
        _each(sum, estimates) if device == "cpu" else None,
        len(timing.table.costs),
        len(graph.operators),
    )


def _each(function: Any, times: Iterable[Passes]) -> Passes:
    forward_s, backward_s = zip(*times, strict=True)
    return function(forward_s), function(backward_s)


class Step:
    """A model on a device with a batch; `run` computes all gradients."""

    def __init__(
        self, model: torch.nn.Module, example_batch: Any, device: str, clock: Clock
    ) -> None:
        self._device, self._clock = device, clock
        self._model = model.to(device)
        self._args, self._kwargs = tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(device), arguments_of(example_batch)
        )

    def run(self) -> Passes:
        """One step: seconds of the forward and of the backward pass."""
        self._model.zero_grad(set_to_none=True)
        begin = self._now()
        output = self._model(*self._args, **self._kwargs)
        middle = self._now()
        results = [t for t in tensors(output) if t.requires_grad]
        torch.autograd.backward(results, [torch.ones_like(t) for t in results])
        return middle - begin, self._now() - middle

    def fastest(self) -> Passes:
        """The fastest of several runs after a first one, of each pass."""
        self.run()
        times = []
        end = self._clock() + _LEAST_S
        while len(times) < _LEAST_RUNS or self._clock() < end:
            times.append(self.run())
        return _each(min, times)

    def _now(self) -> float:
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        return self._clock()


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model's arguments for this batch, as `profile` understands them."""
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch), {}) if isinstance(batch, list | tuple) else ((batch,), {})


def rows_of(result: Accuracy) -> list[tuple[str, ...]]:
    """The forward and the backward pass, and both."""
    rows = []
    for i, name in enumerate(("forward", "backward", "both")):
        measured_s, predicted_s, roofline_s = (
            None if passes is None else (sum(passes) if i == 2 else passes[i])
            for passes in (result.measured_s, result.predicted_s, result.roofline_s)
        )
        rows.append(
            (
                result.model if i == 0 else "",
                name,
                _milliseconds(measured_s),
                *(_milliseconds(predicted_s), _error(predicted_s, measured_s)),
                *(_milliseconds(roofline_s), _error(roofline_s, measured_s)),
                f"{result.alone}/{result.operators}" if i == 0 else "",
            )
        )
    return rows


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"


def _error(predicted_s: float | None, measured_s: float | None) -> str:
    return (
        "-" if predicted_s is None or measured_s is None else f"{predicted_s / measured_s - 1:+.0%}"
    )


def line_of(cells: Sequence[str]) -> str:
    """A line of the table."""
    first, *others = zip(cells, _WIDTHS, strict=True)
    return f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(DEFAULT), help="shipped ones, NAME:SIZE,...")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (default: 1)")
    parser.add_argument("--rounds", type=int, default=3, help="of operators and steps (default: 3)")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not at least 1")
    return options


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    alone = options.threads == 1 and options.device == "cpu"
    clock = time.process_time if alone else time.perf_counter
    print(line_of(_COLUMNS), flush=True)
    try:
        for spec in options.models.split(","):
            found = accuracy_of(
                *(spec, options.batch_size),
                device=options.device,
                rounds=options.rounds,
                clock=clock,
            )
            for row in rows_of(found):
                print(line_of(row), flush=True)
    except ProfileError as error:
        print(f"profile_accuracy: {error}", file=sys.stderr)
        return BAD_INPUT
    return OK


if __name__ == "__main__":
    sys.exit(main())
