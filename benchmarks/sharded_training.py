"""FSDP2 on long cables: a step of examples/gpt.py --shard over rings and over other schedules.

    sudo python benchmarks/sharded_training.py
    sudo python benchmarks/sharded_training.py --ranks 8 --degree 2 --delay-ms 2 --batch-size 16

Each rank is a host of network namespaces, and each cable delays all frames. Rounds alternate
between the algorithms of `--algorithms` (values of TOPOOPT_ALGORITHM); printed are the medians of
the steps on rank 0, and the step that `topoopt run` would predict with that latency of a link.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import runpy
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from harness.direct_fabric import make_plan
from harness.rank_processes import call_in_processes, exit_code_of
from harness.settings import planned_fabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.netns.shaper import paced_share
from torch_topoopt.plan.units import format_seconds, parse_gbps
from torch_topoopt.planner.demand_plan import with_script_times
from torch_topoopt.profile.script.step_timing import time_steps
from torch_topoopt.sim.collective_costs import EMULATED_COST

if TYPE_CHECKING:
    from harness.settings import Setting
    from torch_topoopt.plan import Plan
    from torch_topoopt.profile.script.step_timing import StepTiming

_SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "gpt.py"
_WARM_UP = 3  # steps
_RANK_LIMIT_S = 300.0


class _EnoughError(Exception):
    """Ends the script before it writes text."""


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; exits for one that is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--degree", type=int, default=3)
    parser.add_argument("--bandwidth", type=parse_gbps, default=1.0, metavar="RATE")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of a cable, each way")
    parser.add_argument("--batch-size", type=int, default=8, help="of all ranks together")
    parser.add_argument(
        "--algorithms", type=lambda text: text.split(","), default=["multi_ring", "auto"]
    )
    parser.add_argument("--steps", type=int, default=15, help="measured in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def words_of(arguments: argparse.Namespace) -> list[str]:
    """The script's own arguments."""
    steps = _WARM_UP + arguments.steps
    return ["--shard", "--steps", str(steps), "--batch-size", str(arguments.batch_size)]


def steps_of_rank(setting: Setting, words: list[str], algorithm: str, rank: int) -> list[float]:
    """Seconds of each measured step of one rank."""
    setting.become(rank)
    os.environ["TOPOOPT_ALGORITHM"] = algorithm
    os.environ["XDG_CACHE_HOME"] = os.environ["TOPOOPT_RUN_DIR"]  # latencies of this delay
    dist.init_process_group = partial(dist.init_process_group, "topoopt")
    torch.set_num_threads(1)
    ends: list[float] = []
    steps = int(words[words.index("--steps") + 1])

    def after_step(*_: Any) -> None:
        ends.append(time.perf_counter())
        if len(ends) == steps:
            raise _EnoughError

    register_optimizer_step_post_hook(after_step)
    sys.argv = [str(_SCRIPT), *words]
    with contextlib.suppress(_EnoughError), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(_SCRIPT), run_name="__main__")
    dist.destroy_process_group()
    return [after - before for before, after in pairwise(ends[_WARM_UP - 1 :])]


def predicted_s(plan: Plan, timing: StepTiming, delay_s: float, algorithm: str) -> float:
    """As `topoopt run` predicts a step, with the delay as latency of a link."""
    model = replace(EMULATED_COST, per_hop_latency_s=EMULATED_COST.per_hop_latency_s + delay_s)
    share = paced_share(NetnsOptions().mtu)
    timed = with_script_times(
        replace(plan, cost_model=model), timing, payload_share=share, algorithm=algorithm
    )
    return timed.prediction.iteration_s


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    arguments = parse_arguments(argv)
    return exit_code_of("sharded_training", partial(_measure, arguments))


def _measure(arguments: argparse.Namespace) -> None:
    plan = make_plan(arguments.ranks, arguments.degree, arguments.bandwidth)
    options = NetnsOptions(gbps=arguments.bandwidth)
    delay_s = arguments.delay_ms / 1e3
    timing = time_steps(str(_SCRIPT), words_of(arguments), world_size=arguments.ranks)
    steps_s: dict[str, list[float]] = {name: [] for name in arguments.algorithms}
    with planned_fabric(plan, options, cable_delay_s=delay_s) as setting:
        for _ in range(arguments.rounds):
            for name, known in steps_s.items():
                job = partial(steps_of_rank, setting, words_of(arguments), name)
                known += call_in_processes(arguments.ranks, job, limit_s=_RANK_LIMIT_S)[0]
    rows = {
        name: {
            "measured_s": statistics.median(known),
            "predicted_s": predicted_s(plan, timing, delay_s, name),
        }
        for name, known in steps_s.items()
    }
    if arguments.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        measured, predicted = (format_seconds(row[key]) for key in ("measured_s", "predicted_s"))
        difference = row["measured_s"] / row["predicted_s"] - 1
        print(f"{name:>14}: a step takes {measured}, predicted {predicted} ({difference:+.1%})")


if __name__ == "__main__":
    sys.exit(main())
