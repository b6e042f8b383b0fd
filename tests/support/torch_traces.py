"""Traces of training steps, recorded by torch.profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch


def record(folder: Path, step: Callable[[], torch.Tensor], steps: int = 1) -> tuple[Path, Path]:
    """The execution trace and the Kineto trace of one run."""
    execution, kineto = folder / "execution.json", folder / "kineto.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        execution_trace_observer=ExecutionTraceObserver().register_callback(str(execution)),
        schedule=schedule(wait=0, warmup=1, active=steps),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(kineto)),
    ) as recorded:
        for _ in range(steps + 1):
            step().sum().backward()
            recorded.step()
    return execution, kineto
