"""The agreement of the cost model of an A100 with measured operators, class by class.

    python benchmarks/cost_calibration.py            # errors of the shipped figures
    python benchmarks/cost_calibration.py --all      # of every measurement
    python benchmarks/cost_calibration.py --fit      # fits the figures anew and prints them

An error is predicted over measured time, less 1. "left out" fits each class without the measurement
that is then predicted. The fit minimises a robust loss of the logarithms, so that a few odd
measurements do not bend it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parent))

from references.measured_a100 import Measurement, measurements
from torch_topoopt.search.accelerators import (
    FITTED,
    Accelerator,
    ClassName,
    OperatorClass,
    Pass,
    accelerator,
    class_of,
    operator_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# The fitted figures of each class; of the rest, shares are 1 and seconds those of the shipped ones.
FREE: dict[ClassName, tuple[str, ...]] = {
    "dense": ("efficiency", "bandwidth", "overlap", "launch_s"),
    "convolution": ("efficiency", "bandwidth"),
    "attention": ("efficiency",),
    "lookup": ("bandwidth",),
    "concatenation": ("bandwidth", "operand_s"),
    "elementwise": (),
}
_START = {"efficiency": 0.6, "bandwidth": 0.6, "overlap": 0.5, "launch_s": 1e-5, "operand_s": 3e-6}
_SECONDS = ("launch_s", "operand_s")
PASSES = ("forward", "backward")


class Sample(NamedTuple):
    """One pass of one measurement."""

    measurement: Measurement
    which: int

    @property
    def seconds(self) -> float:
        m = self.measurement
        return (m.forward_s, m.backward_s)[self.which]

    @property
    def name(self) -> str:
        return f"{self.measurement.name}, {PASSES[self.which]}"


def samples_by_class() -> dict[ClassName, list[Sample]]:
    """All measured passes; those that were not published are left out."""
    found: dict[ClassName, list[Sample]] = {name: [] for name in FREE}
    for measurement in measurements():
        for which in range(2):
            sample = Sample(measurement, which)
            if not math.isnan(sample.seconds):
                found[class_of(measurement.operator)].append(sample)
    return found


def _device(name: ClassName, passes: Sequence[Pass]) -> Accelerator:
    a100 = accelerator("a100")
    return replace(a100, classes={**FITTED, name: OperatorClass(*passes)})


def error(device: Accelerator, sample: Sample) -> float:
    predicted = operator_seconds(device, sample.measurement.operator, 1)[sample.which]
    return predicted / sample.seconds - 1


def fit(name: ClassName, samples: Sequence[Sample]) -> tuple[Pass, Pass]:
    """The figures of both passes that agree best with `samples`."""
    passes = []
    for which in range(2):
        own = [sample for sample in samples if sample.which == which]
        free = FREE[name]
        start = np.log([_START[field] for field in free])

        def made(values: Any, which: int = which, free: Sequence[str] = free) -> Pass:
            figures = {"efficiency": 1.0, "bandwidth": 1.0, "overlap": 1.0}
            shipped = FITTED[name][which]._replace(**figures)
            return shipped._replace(**dict(zip(free, np.exp(values), strict=True)))

        def residuals(
            values: Any, own: Sequence[Sample] = own, made: Any = made, start: Any = start
        ) -> Any:
            one = made(values)
            device = _device(name, (one, one))
            # The last ones hold what the samples leave open near where it started.
            drift = 1e-2 * (np.asarray(values) - start)
            return [*(math.log1p(error(device, sample)) for sample in own), *drift]

        if not free:
            passes.append(made([]))
            continue
        upper = [0.0 if field not in _SECONDS else math.log(1e-3) for field in free]
        bounds = ([math.log(1e-7)] * len(free), [u + 1e-9 for u in upper])
        best = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.05)
        passes.append(made(best.x))
    return passes[0], passes[1]


def left_out(name: ClassName, samples: list[Sample]) -> list[float]:
    """Errors of samples that their fit has not seen; none where too few remain."""
    errors = []
    for sample in samples:
        rest = [other for other in samples if other != sample]
        if not FREE[name] or sum(other.which == sample.which for other in rest) < len(FREE[name]):
            return []
        errors.append(error(_device(name, fit(name, rest)), sample))
    return errors


def _summary(errors: Sequence[float]) -> str:
    if not errors:
        return f"{'-':>8} {'-':>8}"
    sizes = [abs(value) for value in errors]
    worst = max(errors, key=abs)
    return f"{statistics.median(sizes):>8.1%} {worst:>+8.0%}"


def _show(found: dict[ClassName, list[Sample]], every: bool) -> None:
    device = accelerator("a100")
    print(f"{'class':<14} {'passes':>6} {'median':>8} {'worst':>8}   left out: median, worst")
    for name, samples in found.items():
        errors = [error(device, sample) for sample in samples]
        out = _summary(left_out(name, samples))
        print(f"{name:<14} {len(samples):>6} {_summary(errors)}   {out}")
        far = sorted(zip(errors, samples, strict=True), key=lambda pair: -abs(pair[0]))
        for value, sample in far if every else [pair for pair in far if abs(pair[0]) > 0.3]:
            print(f"    {value:>+6.0%}  {1e3 * sample.seconds:>8.3f} ms  {sample.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="show every measurement")
    parser.add_argument("--fit", action="store_true", help="fit anew and print the figures")
    arguments = parser.parse_args()
    found = samples_by_class()
    if arguments.fit:
        for name, samples in found.items():
            for which, one in zip(PASSES, fit(name, samples), strict=True):
                figures = ", ".join(
                    f"{field} {value:.3g}" for field, value in one._asdict().items()
                )
                print(f"{name:<14} {which:<9} {figures}")
        return 0
    _show(found, arguments.all)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
