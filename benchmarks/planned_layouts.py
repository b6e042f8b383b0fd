"""Seven jobs of today, planned: one table.

    python benchmarks/planned_layouts.py
    python benchmarks/planned_layouts.py --only 4090,h100-70b --mode best -J layouts.json

For each job: the planned layout, its predicted seconds per iteration, the bytes of the fullest
accelerator, the wall time of planning (without the profile), and the same for FSDP over all
accelerators on its own cables, with the least recomputation that fits. "gain" is FSDP's time over
that of the plan; - where FSDP does not fit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torch_topoopt.models import llama, mixtral, qwen3_moe
from torch_topoopt.plan import Cluster
from torch_topoopt.plan.layout import RECOMPUTES, Layout
from torch_topoopt.plan.units import format_bytes, format_seconds
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.profile.profiling import profile
from torch_topoopt.profile.repeated_layers import with_occurrences
from torch_topoopt.search.batch_scaling import with_batch_size

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.planner.layout_planning import WiredLayout


class Job(NamedTuple):
    """A model with its batch, optimizer and cluster."""

    model: str
    size: llama.LlamaSize
    batch_size: int
    cluster: Cluster
    optimizer: str = "adamw"

    def op_graph(self) -> OpGraph:
        """The profile of two blocks and one sample, scaled."""
        with torch.device("meta"):
            module = llama.Llama(replace(self.size, blocks=2))
            tokens = torch.zeros(1, self.size.sequence, dtype=torch.long)
        made = profile(module, tokens, name=self.model)
        return with_batch_size(with_occurrences(made, self.size.blocks), self.batch_size)


@dataclass(frozen=True)
class Row:
    """The result of one job; times in seconds, None where FSDP does not fit."""

    job: str
    model: str
    layout: str
    iteration_s: float
    memory_bytes: float
    planning_s: float
    fsdp_s: float | None
    fsdp_memory_bytes: float | None


_SPARKS = Cluster(4, 2, 200.0, accelerator="gb10:bf16")
_H100_BOXES = Cluster(
    8, 8, 400.0, accelerators_per_server=8, accelerator="h100:bf16", parallel_links=True
)
_LLAMA_1_5B = replace(llama.SIZES["1b"], blocks=28, hidden=1536, ffn=8960, heads=12, kv_heads=2)
JOBS: dict[str, Job] = {
    "spark": Job("llama:8b", replace(llama.SIZES["8b"], sequence=4096), 8, _SPARKS),
    "4090": Job(
        "llama:1.5b", replace(_LLAMA_1_5B, sequence=2048), 16,
        Cluster(4, 2, 25.0, accelerator="rtx-4090:bf16"),
    ),
    "h100-8b": Job("llama:8b", llama.SIZES["8b"], 128, _H100_BOXES),
    "h100-70b": Job("llama:70b", llama.SIZES["70b"], 128, _H100_BOXES),
    "h100-mixtral": Job("mixtral:8x7b", mixtral.SIZES["8x7b"], 128, _H100_BOXES),
    "spark-moe": Job("qwen3-moe:30b-a3b", qwen3_moe.SIZES["30b-a3b"], 16, _SPARKS, "adamw-bf16"),
    "a100": Job(
        "llama:8b", llama.SIZES["8b"], 128, Cluster(128, 4, 100.0, accelerator="a100:bf16")
    ),
}  # fmt: skip


def row_of(name: str, job: Job, options: PlanningOptions) -> Row:
    """Plans one job."""
    planning = LayoutPlanning(
        job.op_graph(), job.cluster, replace(options, optimizer=job.optimizer)
    )
    begun = time.perf_counter()
    best = planning.best()
    planning_s = time.perf_counter() - begun
    fsdp = _fsdp(planning)
    return Row(
        name,
        job.model,
        str(best.price.layout),
        best.price.times.step_s,
        best.price.memory.total,
        planning_s,
        None if fsdp is None else fsdp.price.times.step_s,
        None if fsdp is None else fsdp.price.memory.total,
    )


def _fsdp(planning: LayoutPlanning) -> WiredLayout | None:
    """FSDP over all accelerators, with the micro-batch that is fastest."""
    count = planning.accelerators
    share = planning.op_graph.batch_size // count
    found = []
    for micro_batch in (k for k in range(1, share + 1) if share % k == 0):
        for recompute in RECOMPUTES:
            layout = Layout(
                data=count,
                sharding="parameters",
                state_shards=count,
                recompute=recompute,
                micro_batch=micro_batch,
                micro_batches=share // micro_batch,
            )
            price = planning.prices.price(layout)
            if price is not None and price.memory.total <= planning.memory_bytes:
                found.append(planning.fastest_wired(layout))
                break
    return min(found, key=lambda wired: wired.price.times.step_s, default=None)


def _printed(row: Row) -> str:
    fsdp = "-" if row.fsdp_s is None else format_seconds(row.fsdp_s)
    gain = "-" if row.fsdp_s is None else f"{row.fsdp_s / row.iteration_s:.2f}"
    return (
        f"{row.job:13} {row.model:18} {format_seconds(row.iteration_s):>8} "
        f"{format_bytes(row.memory_bytes):>8} {fsdp:>8} {gain:>5} {row.planning_s:6.1f} s  "
        f"{row.layout}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="JOB,...", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--mode", choices=["paper", "best"], default="paper")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the rows")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",") if arguments.only else list(JOBS)
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(JOBS)}")
    options = PlanningOptions(strategy_space="layouts", mode=arguments.mode)
    print("job           model                  plan   memory     FSDP  gain planning  layout")
    rows: list[dict[str, Any]] = []
    for name in names:
        row = row_of(name, JOBS[name], options)
        print(_printed(row), flush=True)
        rows.append(vars(row))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
