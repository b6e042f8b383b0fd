"""The options of `topoopt run`: torchrun's own parser, a group of ours, and the checks between."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from torch_topoopt.launcher import documents, parser, script_syntax, shared_options, trace_options
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.plan import planning, programs
from torch_topoopt.launcher.plan.planning import PlanningChoice
from torch_topoopt.launcher.run import (
    alltoall,
    cluster_options,
    controller_options,
    elastic_options,
    fabrics,
    link_options,
    nccl_ranks,
    watch,
)
from torch_topoopt.launcher.supervise import live_page
from torch_topoopt.plan import Plan
from torch_topoopt.plan.file_kinds import wrong_kind
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice
    from torch_topoopt.launcher.script_plan import Script
    from torch_topoopt.launcher.script_syntax import ScriptSyntax
    from torch_topoopt.plan import Cluster

_DESCRIPTION = """\
Trains SCRIPT on servers that are wired as planned: profiles its model, plans strategy, network and
routes, wires the servers, and starts the ranks of every server. The servers are emulated on this
machine, or, with --cluster, machines joined by cables. A drop-in for torchrun: every option and
PET_* variable of torchrun works. The script is plain PyTorch; init_process_group() without a
backend means "topoopt". As with torchrun, ranks get OMP_NUM_THREADS=1 unless it is set.

Any script will do. One with a build_model() and a __main__ guard is imported to profile its model;
of any other, two iterations are run first, without a network, and what they communicate is what
is planned for. See docs/guides/scripts.md."""

TRACKERS = ("wandb", "tensorboard")

_EXAMPLES = """\
  topoopt run --servers 4 --degree 2 --bandwidth 150Mbps train.py --epochs 5
  topoopt run --servers 4 --degree 2 --take-over gloo -m package.train
  topoopt run --plan plan.json --max-restarts 1 --tee 3 train.py
  topoopt run --nnodes 2:4 --max-restarts 3 train.py   # 4 emulated servers, 2 would do
  sudo .venv/bin/topoopt run --fabric netns --servers 12 --degree 4 --bandwidth 25Mbps train.py
  topoopt run --cluster lab.yaml --nnodes 4 --node-rank 2 train.py   # on each of the four hosts
  topoopt run --cluster lab.yaml --nccl train.py   # the same, with stock NCCL"""


@dataclass(frozen=True)
class RunOptions:
    """Checked options. `plan` is None unless --plan was given; `gbps` is None for unpaced links.

    `site` is None unless --cluster was given. Without a `model` there is nothing to profile; then,
    or where a `model` that was only `found` in the script cannot be profiled, `script` is traced.
    Without that too, `unknown` says why. `of_script`: whether model or plan are of the script
    that is trained, so that predictions can be held against it. `take_over` are other backends;
    `trackers` of TRACKERS get the run when it has ended. `nccl`: ranks use NCCL, over its network
    plugin. `forks`: whether ranks start as forks of a process that has imported torch. After a
    failure the job starts again, up to `max_restarts` times and on `least_servers` or more (None:
    on all). `compared` are backends that the script opens on purpose, so no line warns of them.
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
    switch_delay_s: float | None
    model: str
    found: bool
    script: Script | None
    unknown: str
    of_script: bool
    take_over: tuple[str, ...]
    forks: bool
    max_restarts: int
    least_servers: int | None
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
        _print_help()
        raise SystemExit(0)
    files = _check_early(argv)
    options = make_parser()
    options.error = lambda message: parser.fail(options, message, argv)  # type: ignore
    parser.use(options, argv)
    arguments = options.parse_args(argv)
    syntax = _check_script(arguments)
    files = files or _NamedFiles.load(arguments)
    plan = files.plan
    site, least = None, None
    gbps = arguments.bandwidth if plan is None else plan.cluster.link_gbps
    if files.cluster is not None:
        site, least = cluster_options.choose(arguments, files.cluster)
        cluster = _cluster_of_cables(arguments, site, plan)
        gbps = None
    else:
        _restore_defaults(arguments)
        least = elastic_options.take_nnodes(arguments, plan)
        cluster = _cluster(arguments, plan)
        _check_torchrun(arguments, cluster)
        _check_master_port(arguments)
    forks = _take_start_method(arguments, syntax)
    arguments.redirects = watch.redirects(arguments)
    source = trace_options.choose(arguments, syntax, cluster, plan)
    choice = _planning(arguments, source.model, plan, cluster)
    elastic_options.check(arguments, plan, choice, cluster, least)
    _check_network(arguments, cluster, plan)
    return RunOptions(
        cluster=cluster,
        planning=choice,
        measure=arguments.measure,
        measure_steps=arguments.measure_steps,
        site=site,
        plan=plan,
        gbps=gbps,
        fabric=arguments.fabric,
        relay=arguments.relay,
        alltoall=arguments.alltoall,
        switch_delay_s=arguments.switch_delay,
        model=source.model,
        found=source.found,
        script=source.script,
        unknown=source.unknown,
        of_script=source.of_script,
        take_over=arguments.take_over,
        forks=forks,
        max_restarts=arguments.max_restarts,
        least_servers=least,
        seed=arguments.seed,
        run_dir=arguments.run_dir,
        encrypt=arguments.encrypt,
        nccl=arguments.nccl,
        trackers=tuple(name for name in TRACKERS if getattr(arguments, name)),
        json=arguments.json,
        torchrun=arguments,
    )


def _check_network(arguments: argparse.Namespace, cluster: Cluster, plan: Plan | None) -> None:
    live_page.check(arguments)
    fabrics.check(arguments.fabric, arguments)
    alltoall.check(arguments, cluster)
    controller_options.check(arguments)
    nccl_ranks.check(arguments, cluster, plan)
    link_options.check(arguments)


@dataclass(frozen=True)
class _NamedFiles:
    """The documents that --plan and --cluster name."""

    plan: Plan | None
    cluster: ClusterFile | None

    @classmethod
    def load(cls, arguments: argparse.Namespace) -> _NamedFiles:
        from torch_topoopt.fabric.cluster_file.load import load_cluster

        return cls(
            documents.load(Plan, arguments.plan) if arguments.plan else None,
            load_cluster(arguments.cluster) if arguments.cluster else None,
        )


def _check_early(argv: list[str]) -> _NamedFiles | None:
    """Checks our own options and all files before torch is imported, which takes seconds.

    Checks nothing (None) where torchrun's options or PET_* variables are used: only torch knows
    which options are followed by a value. Raises InputError or DocumentError.
    """
    options = _own_parser()
    parser.use(options, argv)
    if any(name.startswith("PET_") for name in os.environ) or not _are_known(options, argv):
        return None
    arguments = options.parse_args(argv)
    files = _NamedFiles.load(arguments)
    _read_script(arguments.training_script)
    if files.plan is None and files.cluster is None:
        _described_cluster(arguments)
    return files


def _are_known(options: argparse.ArgumentParser, argv: list[str]) -> bool:
    """Whether every option before the script is one of `options`."""
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            break
        name, equals, _ = word.partition("=")
        action = options._option_string_actions.get(name)
        if action is None:
            return False
        if action.nargs != 0 and not equals:
            next(words, None)
    return True


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb: torchrun's, which are those of the installed torch, and ours."""
    from torch.distributed.run import get_args_parser

    options: argparse.ArgumentParser = get_args_parser()
    options.prog = "topoopt run"
    options.description = _DESCRIPTION
    options.epilog = f"examples:\n{_EXAMPLES}"
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.print_help = _print_help  # type: ignore[method-assign]
    # Distinguishes options that were given from defaults, which differ between versions of torch.
    for name in ("nproc_per_node", "node_rank", "master_addr", "master_port", "start_method"):
        if f"PET_{name.upper()}" not in os.environ:
            options.set_defaults(**{name: None})
    for action in options._actions:
        if action.dest == "training_script":
            action.metavar = "SCRIPT"
    _add_options(options.add_argument_group("torch_topoopt"))
    return options


def _own_parser() -> parser.Parser:
    """Our options without torchrun's; they need no torch, whose import takes seconds."""
    options = parser.Parser("run", _DESCRIPTION, _EXAMPLES)
    _add_options(options)
    options.add_argument("training_script", metavar="SCRIPT", help="training script")
    its_arguments = options.add_argument(
        "training_script_args",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="arguments passed to it",
    )
    its_arguments.required = False  # argparse would name them where SCRIPT is missing
    return options


def _print_help(file: SupportsWrite[str] | None = None) -> None:
    _own_parser().print_help(file)


class _TorchrunHelp(argparse.Action):
    """Prints all options, torchrun's first."""

    def __call__(self, options: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(make_parser().format_help(), end="")
        options.exit(0)


def _add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--help-torchrun",
        action=_TorchrunHelp,
        nargs=0,
        help="also show the options of torchrun, all of which work, and exit",
    )
    shared_options.add(group, *shared_options.PLANNING)
    group.add_argument("--ranks-per-server", action=parser.Renamed, now="--accelerators-per-server")
    group.add_argument(
        "--model",
        help="name or file.py:callable (default: the build_model() of the script; where it has "
        "none, the script is traced); none: neither, only rings and routes",
    )
    trace_options.add_options(group)
    shared_options.add(group, "measure")
    group.add_argument(
        "--no-measure-steps",
        dest="measure_steps",
        action="store_false",
        help="plan for emulated servers without first measuring a few steps of the script",
    )
    cluster_options.add_options(group)
    shared_options.add(group, "plan")
    group.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for the results (default: runs/<time>)"
    )
    fabrics.add_options(group)
    alltoall.add_options(group)
    controller_options.add_options(group)
    nccl_ranks.add_options(group)
    link_options.add_options(group)
    group.add_argument(
        "--wandb",
        action="store_true",
        help="log to Weights & Biases, offline (WANDB_MODE overrides)",
    )
    group.add_argument(
        "--tensorboard",
        action="store_true",
        help="write an event file for TensorBoard into the run folder",
    )
    watch.add_options(group)
    shared_options.add(group, "json")


def _restore_defaults(arguments: argparse.Namespace) -> None:
    """torchrun's own, for one host."""
    if arguments.node_rank is None:
        arguments.node_rank = 0
    if arguments.master_addr is None:
        arguments.master_addr = "127.0.0.1"


def _cluster_of_cables(
    arguments: argparse.Namespace, site: ClusterChoice, plan: Plan | None
) -> Cluster:
    from torch_topoopt.fabric.cluster.static_plan import cluster_of, place
    from torch_topoopt.fabric.cluster.switched_plan import cluster_on_switches, place_on_switches

    switched = bool(site.file.switches)
    cluster = replace(
        cluster_on_switches(site.file) if switched else cluster_of(site.file),
        accelerator=_accelerator(arguments),
    )
    if plan is None:
        return cluster
    if switched:
        place_on_switches(plan, site.file)
    else:
        place(plan, site.file)
    if plan.cluster.accelerators_per_server != cluster.accelerators_per_server:
        raise InputError(
            f"plan: {arguments.plan} is for {plan.cluster.accelerators_per_server} accelerator(s) "
            f"on each server, {arguments.cluster} has {cluster.accelerators_per_server}"
        )
    _check_model(arguments)
    return plan.cluster


def _cluster(arguments: argparse.Namespace, plan: Plan | None) -> Cluster:
    if plan is not None:
        _check_plan(arguments, plan)
        return plan.cluster
    if arguments.servers is None:
        processes = arguments.nproc_per_node
        if processes is not None and processes.isdecimal():
            per_server = shared_options.accelerators_of(arguments)
            arguments.servers = _servers_of(int(processes), per_server)
    return _described_cluster(arguments)


def _described_cluster(arguments: argparse.Namespace) -> Cluster:
    """The cluster of --servers and the like."""
    if arguments.servers is None:
        parser.refuse_after_script(
            *(arguments.training_script, arguments.training_script_args),
            *("--servers", "--cluster", "--plan", "--nproc-per-node"),
        )
    return shared_options.cluster_of(arguments, _accelerator(arguments))


def _accelerator(arguments: argparse.Namespace) -> str:
    name = arguments.accelerator or shared_options.EMULATED_ACCELERATOR
    parser.check_accelerator(name)
    return str(name)


def _servers_of(processes: int, per_server: int) -> int:
    if processes % per_server:
        raise InputError(
            f"nproc-per-node: {processes} is not a multiple of {per_server} accelerators per server"
        )
    return processes // per_server


def _check_plan(arguments: argparse.Namespace, plan: Plan) -> None:
    """A given plan decides; options that say something else are an error, not a preference."""
    cluster = plan.cluster
    per_server = cluster.accelerators_per_server
    documents.check_one_rate(plan, arguments.plan)
    for option, value, planned in (
        ("servers", arguments.servers, cluster.servers),
        ("degree", arguments.degree, cluster.degree),
        ("bandwidth", arguments.bandwidth, cluster.link_gbps),
        ("ports", arguments.ports, cluster.ports),
        ("accelerators-per-server", arguments.accelerators_per_server, per_server),
        ("accelerator", arguments.accelerator, cluster.accelerator),
    ):
        if value is not None and value != planned:
            asked, made_for = (
                format_gbps(float(v)) if option == "bandwidth" else str(v) for v in (value, planned)
            )
            raise InputError(
                f"{option}: {asked} was asked for, but {arguments.plan} is a plan for "
                f"{made_for}; leave --{option} out or make another plan"
            )
    _check_model(arguments)


def _check_model(arguments: argparse.Namespace) -> None:
    if arguments.model:
        raise InputError("model: --model and --plan exclude each other; the plan has its model")


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
        if not plan.is_data_parallel:
            programs.check_plan(plan, arguments.plan, arguments.training_script)
    elif not model:
        planning.refuse_without_model(
            given,
            arguments,
            arguments.training_script,
            " under a __main__ guard; name one with --model file.py:callable",
        )
    script = "" if arguments.module or arguments.no_python else arguments.training_script
    choice = PlanningChoice.of(arguments, model, script if model else "")
    if plan is None:
        if choice.micro_batches not in (None, 1) and choice.space != "pipeline":
            raise InputError("micro-batches: --micro-batches is for --strategy-space pipeline")
        planning.check_stages(choice, cluster)
    return choice


def _check_torchrun(arguments: argparse.Namespace, cluster: Cluster) -> None:
    """Every rank of every emulated server is a process on this machine."""
    processes = cluster.servers * cluster.accelerators_per_server
    if arguments.nproc_per_node not in (None, str(processes)):
        raise InputError(
            f"nproc-per-node: {arguments.nproc_per_node} contradicts {cluster.servers} servers "
            f"with {cluster.accelerators_per_server} rank(s) each; on the "
            f"{arguments.fabric} fabric all {processes} are processes of this machine, so leave it "
            "out"
        )
    if arguments.run_path and arguments.accelerators_per_server is not None:
        raise InputError(
            "accelerators-per-server: does not work with --run-path; name the script instead"
        )
    arguments.nproc_per_node = str(processes)


def _check_script(arguments: argparse.Namespace) -> ScriptSyntax | None:
    """The syntax of the script; None where it is a module or a program."""
    script = arguments.training_script
    if arguments.module:
        if arguments.no_python:
            raise InputError("module: -m and --no-python exclude each other")
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


def _take_start_method(arguments: argparse.Namespace, syntax: ScriptSyntax | None) -> bool:
    """Whether ranks are to be forks; leaves torchrun's --start-method to its own purpose.

    A fork has imported torch before the script starts, so a script that names what torch reads from
    the environment at its import starts anew, and so does what is no script (modules, programs).
    """
    wanted = arguments.start_method in (None, "forkserver")
    arguments.start_method = arguments.start_method or "spawn"
    emulated = not arguments.cluster
    plain = syntax is not None and not arguments.run_path and not syntax.import_variables
    return wanted and emulated and plain


def _check_master_port(arguments: argparse.Namespace) -> None:
    """Finds an address that cannot be listened at before profiling, not when ranks start."""
    if arguments.standalone or arguments.rdzv_backend != "static" or arguments.rdzv_endpoint:
        return
    address, port = arguments.master_addr, arguments.master_port or 0
    if not 0 <= port <= 65535:
        raise InputError(f"master-port: {port} is not in 0..65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except socket.gaierror as error:
            raise InputError(f"master-addr: {address!r}: {error.strerror}") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InputError(
                    f"master-addr: {address} is not an address of this machine, on which all ranks "
                    "run; leave it out"
                ) from None
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    f"master-port: {port} is in use; choose another, or leave it out for a free one"
                ) from None
            raise InputError(f"master-port: {port}: {error.strerror}") from None
