"""`topoopt profile MODEL --measure FILE`: what the model's operators take on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch_topoopt.launcher import documents
from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def add_options(options: argparse.ArgumentParser) -> None:
    """The options of this part of the verb."""
    group = options.add_argument_group("measured costs")
    group.add_argument(
        "--measure",
        metavar="FILE",
        help="run every operator on this machine, on its GPU if it has one, with the batch and a "
        "quarter of it, and write here what they take; for --costs",
    )
    group.add_argument(
        "--measure-limit",
        type=float,
        metavar="SECONDS",
        help="operators that were not reached by then are left out (default: 60)",
    )


def measure(arguments: argparse.Namespace, progress: Callable[[float | None, str], None]) -> str:
    """Writes the CostTable; returns one line about it. Raises InputError, also for a limit <= 0."""
    from torch_topoopt import operator_timing, profiling
    from torch_topoopt.tracing import batch_size_of, positional_and_keyword

    limit_s = 60.0 if arguments.measure_limit is None else arguments.measure_limit
    if not limit_s > 0:
        raise InputError(f"measure-limit: {limit_s:g} is not above 0")
    if arguments.model.endswith(".json"):
        raise InputError(f"measure: {arguments.model} is a saved OpGraph; name the model itself")
    device, memory_bytes = _device()
    try:
        loaded = profiling.load_model(arguments.model, batch_size=arguments.batch_size)
        size = batch_size_of(positional_and_keyword(loaded.example_batch), None)
        timing = operator_timing.measure_operators(
            loaded.build,
            loaded.example_batch,
            [max(1, size // 4), size],
            device=device,
            memory_bytes=memory_bytes,
            limit_s=limit_s,
            on_progress=progress,
        )
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None
    documents.save(timing.table, arguments.measure)
    table = timing.table
    line = f"costs of {len(table.costs)} operators on {table.device}: {arguments.measure}"
    if timing.left_out:
        name, reason = next(iter(timing.left_out.items()))
        line += f"; {len(timing.left_out)} not measured, the first one {name}: {reason}"
    return line


def _device() -> tuple[str, int]:
    """This machine's device, and the bytes of its memory that a measurement may take: half."""
    import torch

    if torch.cuda.is_available():
        return "cuda", torch.cuda.mem_get_info()[0] // 2
    return "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2
