"""`topoopt profile MODEL --measure`: the times of the model's operators on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch_topoopt.launcher import documents, shared_options
from torch_topoopt.launcher.errors import InputError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from torch_topoopt.profile.cost_table import CostTable


def add_options(options: argparse.ArgumentParser) -> None:
    """The options of this part of the verb."""
    group = options.add_argument_group("measured costs")
    shared_options.add(group, "measure")
    group.add_argument(
        "--output-costs",
        type=shared_options.output_file,
        metavar="FILE",
        help="with --measure: also write what the operators take here, for --costs; measured on "
        "the GPU of this machine if it has one, with the batch and a quarter of it",
    )
    group.add_argument(
        "--measure-limit",
        type=float,
        metavar="SECONDS",
        help="time limit; operators not reached by then are left out (seconds, default: 60)",
    )


def measure(
    arguments: argparse.Namespace, progress: Callable[[float | None, str], None]
) -> tuple[CostTable, str]:
    """The costs, written if a file is named, and a line about them; raises InputError."""
    from torch_topoopt.profile import operator_timing, profiling

    limit_s = 60.0 if arguments.measure_limit is None else arguments.measure_limit
    if not limit_s > 0:
        raise InputError(f"measure-limit: {limit_s:g} is not above 0")
    if documents.is_saved_graph(arguments.model):
        raise InputError(f"measure: {arguments.model} is a saved OpGraph; name the model itself")
    device, memory_bytes = _device()
    try:
        loaded = documents.load_model(
            arguments.model, arguments.batch_size, 1, documents.TextOptions.of(arguments)
        )
        size = profiling.own_batch_size(loaded.build, loaded.example_batch)
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
    table = timing.table
    line = f"costs of {len(table.costs)} operators on {table.device}"
    if arguments.output_costs:
        documents.save(table, arguments.output_costs)
        line += f": {arguments.output_costs}"
    if timing.left_out:
        name, reason = next(iter(timing.left_out.items()))
        line += f"; {len(timing.left_out)} not measured, the first one {name}: {reason}"
    return table, line


def _device() -> tuple[str, int]:
    """This machine's device, and the memory limit of a measurement in bytes: half."""
    import torch

    if torch.cuda.is_available():
        return "cuda", torch.cuda.mem_get_info()[0] // 2
    return "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2
