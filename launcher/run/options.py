"""The options of `topoopt run`, checked."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch_topoopt.launcher import documents, parser, script_syntax, trace_options
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.plan import planning, programs
from torch_topoopt.launcher.plan.planning import PlanningChoice
from torch_topoopt.launcher.run import (
    alltoall,
    controller_options,
    elastic_options,
    fabrics,
    link_options,
    nccl_ranks,
    run_parser,
    servers,
    spare_ports,
    watch,
)
from torch_topoopt.launcher.supervise import live_page
from torch_topoopt.plan import Plan
from torch_topoopt.plan.file_kinds import wrong_kind

if TYPE_CHECKING:
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice
    from torch_topoopt.launcher.script_syntax import ScriptSyntax
    from torch_topoopt.launcher.trace_options import DemandSource
    from torch_topoopt.plan import Cluster

TRACKERS = ("wandb", "tensorboard")


@dataclass(frozen=True)
class RunOptions:
    """Checked options. `plan` is None unless --plan was given; `gbps` is None for unpaced links.

    `site` is None unless --cluster was given. `source` has the demand to plan for. `take_over` are
    other backends; `trackers` of TRACKERS get the run when it has ended. `nccl`: ranks use NCCL,
    over its network plugin. `forks`: whether ranks start as forks of a process that has imported
    torch. After a failure the job starts again, up to `max_restarts` times and on `least_servers`
    or more (None: on all). Of emulated servers `first_servers` are there at the start; ranks train
    for `grow_interval_s` or more before they are stopped to take more servers in. `compared` are
    backends that the script opens on purpose, so no line warns of them. `torchrun` has torchrun's
    options, with values that fit the servers.
    """

    cluster: Cluster
    planning: PlanningChoice
    measure: bool
    measure_steps: bool
    site: ClusterChoice | None
    plan: Plan | None
    gbps: float | None
    fabric: str
    relay: Literal["user", "kernel"]
    alltoall: Literal["auto", "static", "reconfigure"]
    collectives: Literal["auto", "static", "reconfigure"]
    switch_delay_s: float | None
    spare_ports: int
    source: DemandSource
    take_over: tuple[str, ...]
    forks: bool
    max_restarts: int
    least_servers: int | None
    first_servers: int
    grow_interval_s: float
    seed: int
    run_dir: Path | None
    encrypt: bool
    nccl: bool
    trackers: tuple[str, ...]
    json: bool
    torchrun: argparse.Namespace
    compared: tuple[str, ...] = ()


def parse(argv: list[str]) -> RunOptions:
    """Parses and checks; raises InputError or DocumentError for options that cannot work."""
    if argv[:1] in (["-h"], ["--help"]):
        run_parser.print_help()
        raise SystemExit(0)
    files = _check_early(argv)
    options = run_parser.make_parser()
    options.error = lambda message: parser.fail(options, message, argv)  # type: ignore
    parser.use(options, argv)
    arguments = options.parse_args(argv)
    syntax = _check_script(arguments)
    plan, file = files or _named_files(arguments)
    if file is not None:
        chosen = servers.of_file(arguments, file, plan)
    else:
        chosen = servers.emulated(arguments, plan)
    source = trace_options.choose(arguments, syntax, chosen.cluster, plan)
    choice = _planning(arguments, source.model, plan, chosen.cluster)
    elastic_options.check(arguments, plan, choice, chosen.cluster, chosen.least)
    _check_network(arguments, chosen.cluster, plan, file)
    torchrun = {
        **vars(arguments),
        **chosen.torchrun,
        "start_method": arguments.start_method or "spawn",
        "redirects": watch.redirects(arguments),
    }
    return RunOptions(
        cluster=chosen.cluster,
        planning=choice,
        measure=arguments.measure,
        measure_steps=arguments.measure_steps,
        site=chosen.site,
        plan=plan,
        gbps=chosen.gbps,
        fabric=arguments.fabric,
        relay=arguments.relay,
        alltoall=arguments.alltoall,
        collectives=arguments.collectives,
        switch_delay_s=arguments.switch_delay,
        spare_ports=arguments.spare_ports,
        source=source,
        take_over=arguments.take_over,
        forks=_forks(arguments, syntax),
        max_restarts=arguments.max_restarts,
        least_servers=chosen.least,
        first_servers=chosen.cluster.servers if chosen.first is None else chosen.first,
        grow_interval_s=arguments.grow_interval,
        seed=arguments.seed,
        run_dir=arguments.run_dir,
        encrypt=arguments.encrypt,
        nccl=arguments.nccl,
        trackers=tuple(name for name in TRACKERS if getattr(arguments, name)),
        json=arguments.json,
        torchrun=argparse.Namespace(**torchrun),
    )


def _check_network(
    arguments: argparse.Namespace, cluster: Cluster, plan: Plan | None, file: ClusterFile | None
) -> None:
    live_page.check(arguments)
    fabrics.check(arguments.fabric, arguments, file)
    spare_ports.check(arguments)
    alltoall.check(arguments, cluster, file)
    controller_options.check(arguments)
    nccl_ranks.check(arguments, cluster, plan)
    link_options.check(arguments)


def _named_files(arguments: argparse.Namespace) -> tuple[Plan | None, ClusterFile | None]:
    """The documents that --plan and --cluster name."""
    from torch_topoopt.fabric.cluster_file.load import load_cluster

    plan = documents.load(Plan, arguments.plan) if arguments.plan else None
    return plan, load_cluster(arguments.cluster) if arguments.cluster else None


def _check_early(argv: list[str]) -> tuple[Plan | None, ClusterFile | None] | None:
    """Checks our own options and all files before torch is imported, which takes seconds.

    Checks nothing (None) where torchrun's options or PET_* variables are used: only torch knows
    which options are followed by a value. Raises InputError or DocumentError.
    """
    options = run_parser.own_parser()
    parser.use(options, argv)
    if any(name.startswith("PET_") for name in os.environ):
        return None
    foreign = run_parser.first_foreign(options, argv)
    if foreign is not None:
        torchrun = run_parser.torchrun_spellings()
        name = foreign if foreign.startswith("--") else foreign[:2]  # -r3 is -r 3
        if torchrun and name not in torchrun:
            known = [*parser.spellings(options), *torchrun]
            raise parser.no_such_option(name, known, options.prog)
        return None
    arguments = options.parse_args(argv)
    files = _named_files(arguments)
    _read_script(arguments.training_script)
    if not any(files):
        servers.described_cluster(arguments, arguments.servers)
    return files


def _check_script(arguments: argparse.Namespace) -> ScriptSyntax | None:
    """The syntax of the script; None where it is a module or a program."""
    script = arguments.training_script
    if arguments.module:
        if arguments.no_python:
            raise InputError("module: -m and --no-python exclude each other")
        top = script.partition(".")[0]
        if not (find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])):
            raise InputError(f"-m: {script}: no module {top} is here or installed")
        return None
    if arguments.no_python and not arguments.run_path:
        if shutil.which(script) is None:
            raise InputError(f"{script}: no such program")
        return None
    return _read_script(script)


def _read_script(script: str) -> ScriptSyntax:
    if not Path(script).is_file():
        raise InputError(f"{script}: no such script")
    if Path(script).suffix != ".py" and (problem := wrong_kind(script, "Python script")):
        raise InputError(f"{script}: {problem}")  # JSON is often the syntax of Python, too
    return script_syntax.read(script)


def _forks(arguments: argparse.Namespace, syntax: ScriptSyntax | None) -> bool:
    """Whether ranks start as forks of a process that has imported torch.

    A script that names a variable which torch reads at its import needs an import of its own, and
    so does what is no script (modules, programs).
    """
    requested = arguments.start_method in (None, "forkserver")
    plain = syntax is not None and not arguments.run_path and not syntax.import_variables
    return requested and plain and not arguments.cluster


def _planning(
    arguments: argparse.Namespace, model: str, plan: Plan | None, cluster: Cluster
) -> PlanningChoice:
    """The planning options; raises InputError for those that a given plan has decided, for a
    strategy of it that is known not to run, and for those that need a model without one."""
    given = planning.given(arguments, "measure")
    if plan is not None:
        if given:
            raise InputError(
                f"{given[0]}: --{given[0]} and --plan exclude each other; the plan is made"
            )
        if plan.layout is not None:
            planning.check_executes(plan.layout, arguments.training_script)
        elif not plan.is_data_parallel:
            programs.check_plan(plan, arguments.plan, arguments.training_script)
    elif not model:
        planning.refuse_without_model(
            given,
            arguments,
            arguments.training_script,
            " under a __main__ guard; name one with --model file.py:callable",
        )
    script = "" if arguments.module or arguments.no_python else arguments.training_script
    choice = PlanningChoice.of(
        arguments, model, script if model else "", layout_spaces=("layouts",)
    )
    if plan is None:
        if choice.space == "layouts":
            planning.check_divides(script)
        if choice.micro_batches not in (None, 1) and choice.space != "pipeline":
            raise InputError("micro-batches: is only for --strategy-space pipeline")
        planning.check_counts(choice, cluster)
    return choice
