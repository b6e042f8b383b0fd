"""`topoopt run --measure`: the measured costs of the model's operators on this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Cluster
    from torch_topoopt.profile.cost_table import CostTable

_LIMIT_S = 30.0
_MEMORY_BYTES = 1 << 30
_PARTS = (1, 4, 16)  # parts of a server's samples to measure, besides the whole batch


def measured(
    graph: OpGraph,
    model: str,
    cluster: Cluster,
    progress: Callable[[float | None, str], None],
    *,
    emulated: bool,
) -> tuple[OpGraph, str]:
    """`graph` with the costs of its operators measured here, in one thread as ranks run them.

    `emulated` servers share this machine's processors, so all times are multiplied by the number of
    ranks per processor. Also returns a line for people. Raises InputError if nothing can be
    measured.
    """
    import torch

    from torch_topoopt.profile import profiling
    from torch_topoopt.profile.cost_table import with_costs
    from torch_topoopt.profile.operator_timing import measure_operators

    ranks = cluster.servers * cluster.accelerators_per_server
    sizes = {graph.batch_size, *(graph.batch_size // (ranks * part) for part in _PARTS)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        build, example_batch, _ = profiling.load_model(model)
        timing = measure_operators(
            build,
            example_batch,
            sorted(size for size in sizes if size),
            device="cpu",
            memory_bytes=_MEMORY_BYTES,
            limit_s=_LIMIT_S,
            on_progress=lambda part, name: progress(part, f"measuring {name}"),
        )
    except profiling.ProfileError as error:
        raise InputError(str(error)) from None
    finally:
        torch.set_num_threads(threads)
    share = max(1.0, ranks / (os.cpu_count() or 1)) if emulated else 1.0
    done = f"{counted(len(timing.table.costs), 'operator')} measured on {timing.table.device}"
    if share > 1:
        done += f", times {share:g} because {ranks} ranks share its processors"
    return with_costs(graph, _times(timing.table, share)), done


def _times(table: CostTable, factor: float) -> CostTable:
    costs = tuple(
        replace(
            cost,
            points=tuple(
                replace(p, forward_s=p.forward_s * factor, backward_s=p.backward_s * factor)
                for p in cost.points
            ),
        )
        for cost in table.costs
    )
    return replace(table, costs=costs)
