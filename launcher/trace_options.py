"""The demand of `topoopt run`: a model, a trace of the script, or unknown; the options."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import script_syntax
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.script_plan import Script
from torch_topoopt.profile.script import LEAST_ITERATIONS, TraceLimits, TrainingScript
from torch_topoopt.profile.script.memory import available_bytes
from torch_topoopt.runtime import requested_backends

if TYPE_CHECKING:
    from torch_topoopt.launcher.script_syntax import ScriptSyntax
    from torch_topoopt.plan import Cluster, Plan

_TRACE_TIMEOUT_S = 120.0
_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class DemandSource:
    """The source of the demand: `model`, else a trace of `script`, else `unknown` is the reason.

    If a model that was only `found` in the script cannot be profiled, the script is traced. So is
    one that `may_shard` the model, to know whether it does.
    `of_script`: whether model or plan belong to the trained script, so that predictions are
    comparable with it.
    """

    model: str = ""
    found: bool = False
    script: Script | None = None
    unknown: str = ""
    of_script: bool = True
    may_shard: bool = False


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--trace-timeout",
        type=float,
        default=_TRACE_TIMEOUT_S,
        metavar="SECONDS",
        help="time limit for the trace of a script without a build_model(); after it, rings "
        "are planned for an unknown demand (seconds, default: %(default)g)",
    )
    group.add_argument(
        "--trace-iterations",
        type=int,
        metavar="N",
        help="iterations of the trace; the last ones that repeat are planned for (default: 2, and "
        "up to 16 if they are quick)",
    )
    group.add_argument(
        "--trace-memory",
        type=memory,
        metavar="SIZE",
        help="memory limit of the trace (with its unit, as 4GB; "
        "default: half of what is available)",
    )
    group.add_argument(
        "--take-over",
        type=_backends,
        default=os.environ.get(requested_backends.TAKE_OVER_VARIABLE, ""),
        metavar="LIST",
        help="gloo, nccl or gloo,nccl: where the script names these backends, it gets topoopt; "
        "nccl includes the other names of NCCL, such as nccl2 (default: what TOPOOPT_TAKE_OVER "
        "says, else none)",
    )


def memory(text: str) -> int:
    """argparse type of a size with a unit, in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT]B)", text.strip())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size above 0 with its unit, such as 500MB or 4GB"
        )
    return size


def _backends(text: str) -> tuple[str, ...]:
    try:
        return requested_backends.parse_take_over(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def choose(
    arguments: argparse.Namespace,
    syntax: ScriptSyntax | None,
    cluster: Cluster,
    plan: Plan | None,
) -> DemandSource:
    """The source of the demand to plan for; raises InputError for impossible limits."""
    if not arguments.trace_timeout > 0:
        raise InputError(
            f"trace-timeout: {arguments.trace_timeout:g} is not above 0; --model none does "
            "without a trace"
        )
    if (count := arguments.trace_iterations) is not None and count < LEAST_ITERATIONS:
        raise InputError(
            f"trace-iterations: {count} is not at least {LEAST_ITERATIONS}: the first one also "
            "sets up"
        )
    script = str(arguments.training_script)
    if plan is not None:
        of_script = script_syntax.is_of_script(plan.model, script, syntax)
        return DemandSource(of_script=of_script or plan.model == os.path.basename(script))
    if arguments.model == "none":
        return DemandSource(unknown="--model none")
    if arguments.model:
        of_script = script_syntax.is_of_script(arguments.model, script, syntax)
        return DemandSource(arguments.model, of_script=of_script)
    found = bool(syntax and syntax.has_model and script.endswith(".py"))
    if arguments.no_python and not arguments.run_path:
        return DemandSource(unknown="a program (--no-python) cannot be traced, and no --model")
    if cluster.servers * cluster.accelerators_per_server < 2:
        return DemandSource(script if found else "", found, unknown="there is only one rank")
    may_take = limits(arguments.trace_timeout, arguments.trace_memory)
    words = tuple(arguments.training_script_args)
    runs = TrainingScript(script, words, bool(arguments.module))
    traced = Script(runs, may_take, arguments.trace_iterations)
    may_shard = bool(syntax and syntax.may_shard)
    return DemandSource(script if found else "", found, traced, may_shard=may_shard)


def limits(seconds: float = _TRACE_TIMEOUT_S, memory_bytes: int | None = None) -> TraceLimits:
    """The limits of a trace; without `memory_bytes` half of the available memory."""
    return TraceLimits(seconds, memory_bytes or max(1, available_bytes() // 2))
