"""Seven jobs of today, planned and simulated: one table.

    python benchmarks/planned_layouts.py
    python benchmarks/planned_layouts.py --only 4090,h100-70b --mode best -J layouts.json
    python benchmarks/planned_layouts.py --only spark --enumerate 20

For each job: seconds per iteration of the planned layout in closed form ("plan") and by the flow
simulator ("simulated"), and bytes of the fullest accelerator. Then simulated seconds of the layout
that an expert chose by hand (* if it does not fit), and of FSDP with the best micro-batch and the
least recomputation that fit ("-": none), each on its own cables. "gain" is the time by hand over
that of the plan. "planning" is wall time without the profile.

With --enumerate, every division of the accelerators, sharding and recomputation whose closed form
is at most that many per cent slower than the plan is simulated on the plan's network. "best" is
the fastest, "loses" the plan's time over it.
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
from torch_topoopt.plan.layout import RECOMPUTES, Layout, layout_from
from torch_topoopt.plan.units import format_bytes, format_seconds
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.profile.profiling import profile
from torch_topoopt.profile.repeated_layers import with_occurrences
from torch_topoopt.search.batch_scaling import with_batch_size
from torch_topoopt.search.layouts.space import divisions, shardings
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.layout_program import program_of

if TYPE_CHECKING:
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Network
    from torch_topoopt.planner.layout_planning import WiredLayout
    from torch_topoopt.search.layouts.prices import LayoutPrice


class Job(NamedTuple):
    """A model with its batch, optimizer and cluster."""

    model: str
    size: llama.LlamaSize
    batch_size: int
    cluster: Cluster
    by_hand: str  # as topoopt plan --layout
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
    """The result of one job; times in seconds, None where FSDP does not fit and where nothing is
    enumerated. All but `iteration_s` and `planning_s` are simulated."""

    job: str
    model: str
    layout: str
    iteration_s: float
    simulated_s: float
    memory_bytes: float
    planning_s: float
    by_hand: str
    by_hand_s: float
    by_hand_fits: bool
    fsdp_s: float | None
    enumerated: int = 0
    best: str | None = None
    best_s: float | None = None


_SPARKS = Cluster(4, 2, 200.0, accelerator="gb10:bf16")
_H100_BOXES = Cluster(
    8, 8, 400.0, accelerators_per_server=8, accelerator="h100:bf16", parallel_links=True
)
_LLAMA_1_5B = replace(llama.SIZES["1b"], blocks=28, hidden=1536, ffn=8960, heads=12, kv_heads=2)
_FSDP = "sharding=parameters"
_RECOMPUTED = _FSDP + ",recompute=full"
JOBS: dict[str, Job] = {
    "spark": Job(
        "llama:8b", replace(llama.SIZES["8b"], sequence=4096), 8, _SPARKS, _FSDP + ",micro_batch=2"
    ),
    "4090": Job(
        "llama:1.5b", replace(_LLAMA_1_5B, sequence=2048), 16,
        Cluster(4, 2, 25.0, accelerator="rtx-4090:bf16"), _RECOMPUTED + ",micro_batch=4",
    ),
    "h100-8b": Job(
        "llama:8b", llama.SIZES["8b"], 128, _H100_BOXES, _RECOMPUTED + ",micro_batch=2"
    ),
    "h100-70b": Job("llama:70b", llama.SIZES["70b"], 128, _H100_BOXES, _RECOMPUTED),
    "h100-mixtral": Job(
        "mixtral:8x7b", mixtral.SIZES["8x7b"], 128, _H100_BOXES, _RECOMPUTED + ",micro_batch=2"
    ),
    "spark-moe": Job(
        "qwen3-moe:30b-a3b", qwen3_moe.SIZES["30b-a3b"], 16, _SPARKS,
        _FSDP + ",expert=4,micro_batch=4", "adamw-bf16",
    ),
    "a100": Job(
        "llama:8b", llama.SIZES["8b"], 128, Cluster(128, 4, 100.0, accelerator="a100:bf16"),
        _RECOMPUTED,
    ),
}  # fmt: skip


def row_of(name: str, job: Job, options: PlanningOptions, within: float | None) -> Row:
    """Plans one job, and simulates all layouts that are `within` that part slower than the plan."""
    planning = LayoutPlanning(
        job.op_graph(), job.cluster, replace(options, optimizer=job.optimizer)
    )
    begun = time.perf_counter()
    best = planning.best()
    planning_s = time.perf_counter() - begun
    fsdp = _fsdp(planning)
    by_hand = planning.fastest_wired(
        layout_from(job.by_hand, planning.accelerators, job.batch_size)
    )
    row = Row(
        name,
        job.model,
        str(best.price.layout),
        best.price.times.step_s,
        _simulated_s(planning, best.network, best.price.layout),
        best.price.memory.total,
        planning_s,
        str(by_hand.price.layout),
        _simulated_s(planning, by_hand.network, by_hand.price.layout),
        by_hand.price.memory.total <= planning.memory_bytes,
        None if fsdp is None else _simulated_s(planning, fsdp.network, fsdp.price.layout),
    )
    return row if within is None else _with_best(row, planning, best, within)


def _simulated_s(planning: LayoutPlanning, network: Network, layout: Layout) -> float:
    """Seconds of an iteration, by the flow simulator."""
    made = program_of(planning.prices, planning.cluster, network, layout)
    return run_program(made.program).completion_s


def _with_best(row: Row, planning: LayoutPlanning, best: WiredLayout, within: float) -> Row:
    """`row` with the fastest of the simulated layouts."""
    cluster, graph = planning.cluster, planning.op_graph
    prices = planning.prices_on(best.network)
    limit_s = (1 + within) * best.price.times.step_s
    splits = (operator.split("experts") for operator in graph.operators)
    experts = max((split.max_degree for split in splits if split is not None), default=1)
    found: list[LayoutPrice] = []
    for division in divisions(planning.accelerators, graph.batch_size, experts):
        if prices.least_s(division) > limit_s:
            continue
        for sharded in shardings(division, cluster.accelerators_per_server):
            for recompute in RECOMPUTES:
                price = prices.price(replace(sharded, recompute=recompute))
                if price is None or price.times.step_s > limit_s:
                    continue
                if price.memory.total <= planning.memory_bytes:
                    found.append(price)
    fastest = best.price.layout
    least_s, count = row.simulated_s, 0
    for price in sorted(found, key=lambda one: one.times.step_s):
        if prices.least_s(price.layout) > least_s:
            continue
        count += 1
        seconds = _simulated_s(planning, best.network, price.layout)
        if seconds < least_s:
            least_s, fastest = seconds, price.layout
    return replace(row, enumerated=count, best=str(fastest), best_s=least_s)


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
    text = (
        f"{row.job:13} {row.model:18} {format_seconds(row.iteration_s):>8} "
        f"{format_seconds(row.simulated_s):>9} {format_bytes(row.memory_bytes):>8} "
        f"{format_seconds(row.by_hand_s):>8}{' *'[not row.by_hand_fits]}"
        f"{row.by_hand_s / row.simulated_s:5.2f} {fsdp:>8} "
        f"{row.planning_s:6.1f} s  {row.layout}"
    )
    if row.best_s is not None:
        text += (
            f"\n{'':13} best of {row.enumerated}: {format_seconds(row.best_s)}, loses "
            f"{row.simulated_s / row.best_s - 1:.1%}: {row.best}"
        )
    return text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="JOB,...", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--mode", choices=["paper", "best"], default="paper")
    parser.add_argument("--enumerate", type=float, metavar="PERCENT", help="simulate all layouts")
    parser.add_argument("-J", "--json", metavar="FILE", help="also write the rows")
    arguments = parser.parse_args(argv)
    names = arguments.only.split(",") if arguments.only else list(JOBS)
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(JOBS)}")
    options = PlanningOptions(strategy_space="layouts", mode=arguments.mode)
    within = None if arguments.enumerate is None else arguments.enumerate / 100
    print(
        "job           model                  plan simulated   memory  by hand  gain     FSDP "
        "planning  layout"
    )
    rows: list[dict[str, Any]] = []
    for name in names:
        row = row_of(name, JOBS[name], options, within)
        print(_printed(row), flush=True)
        rows.append(vars(row))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
