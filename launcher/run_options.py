"""The options of `topoopt run`: torchrun's own parser, a group of ours, and the checks between."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from torch_topoopt.launcher import (
    cluster_options,
    documents,
    fabrics,
    hybrid,
    parser,
    script_syntax,
    trace_options,
)
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.launcher.cluster_options import ClusterChoice
    from torch_topoopt.launcher.script_plan import Script
    from torch_topoopt.launcher.script_syntax import ScriptSyntax
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planning_options import MicroBatches

UNPACED_LINK_GBPS = 10.0

_DESCRIPTION = """\
Trains SCRIPT on servers that are wired as planned: profiles its model, plans strategy, network and
routes, wires the servers, and starts the ranks of every server. The servers are emulated on this
machine, or, with --cluster, machines joined by cables. A drop-in for torchrun: every option and
PET_* variable of torchrun works. The script is plain PyTorch; init_process_group() without a
backend means "topoopt". As with torchrun, ranks get OMP_NUM_THREADS=1 unless it is set.

Any script will do. One with a build_model() and a __main__ guard is imported to profile its model;
of any other, two iterations are run first, without a network, and what they communicate is what
is planned for. See docs/scripts.md."""

_EXAMPLES = """\
  topoopt run --servers 4 --degree 2 --bandwidth 150Mbps train.py --epochs 5
  topoopt run --servers 4 --degree 2 --take-over gloo -m package.train
  topoopt run --plan plan.json --max-restarts 1 --tee 3 train.py
  sudo .venv/bin/topoopt run --fabric netns --servers 12 --degree 4 --bandwidth 25Mbps train.py
  topoopt run --cluster lab.yaml --nnodes 4 --node-rank 2 train.py   # on each of the four hosts"""


@dataclass(frozen=True)
class RunOptions:
    """Checked options. `plan` is None unless --plan was given; `gbps` is None for unpaced links.

    `site` is None unless --cluster was given. Without a `model` there is nothing to profile; then,
    or where a `model` that was only `found` in the script cannot be profiled, `script` is traced.
    Without that too, `unknown` says why. `of_script` tells whether model or plan are of the script
    that is trained, so that predictions can be held against it. `take_over` are other backends.
    """

    cluster: Cluster
    strategy_space: Literal["data-parallel", "full", "pipeline"]
    stages: int | None
    micro_batches: MicroBatches | None
    measure: bool
    site: ClusterChoice | None
    plan: Plan | None
    gbps: float | None
    fabric: str
    relay: Literal["user", "kernel"]
    model: str
    found: bool
    script: Script | None
    unknown: str
    of_script: bool
    take_over: tuple[str, ...]
    seed: int
    run_dir: Path | None
    wandb: bool
    json: bool
    torchrun: argparse.Namespace


def parse(argv: list[str]) -> RunOptions:
    """Parses and checks; raises InputError or DocumentError for options that cannot work."""
    options = make_parser()
    options.error = lambda message: parser.fail(options, message, argv)  # type: ignore
    arguments = options.parse_args(argv)
    plan = documents.load(Plan, arguments.plan) if arguments.plan else None
    site = None
    gbps = arguments.bandwidth if plan is None else plan.cluster.link_gbps
    if arguments.cluster:
        site = cluster_options.choose(arguments)
        cluster = _cluster_of_cables(arguments, site, plan)
        gbps = None
    else:
        _restore_defaults(arguments)
        cluster = _cluster(arguments, plan)
        _check_torchrun(arguments, cluster)
        _check_master_port(arguments)
    syntax = _check_script(arguments)
    source = trace_options.choose(arguments, syntax, cluster, plan)
    arguments.model_to_profile = source.model
    _check_strategy_space(arguments, plan, cluster)
    fabrics.check(arguments.fabric, arguments)
    return RunOptions(
        cluster=cluster,
        strategy_space=arguments.strategy_space or "data-parallel",
        stages=arguments.stages,
        micro_batches=arguments.micro_batches,
        measure=arguments.measure,
        site=site,
        plan=plan,
        gbps=gbps,
        fabric=arguments.fabric,
        relay=arguments.relay,
        model=source.model,
        found=source.found,
        script=source.script,
        unknown=source.unknown,
        of_script=source.of_script,
        take_over=arguments.take_over,
        seed=arguments.seed,
        run_dir=arguments.run_dir,
        wandb=arguments.wandb,
        json=arguments.json,
        torchrun=arguments,
    )


def _fail(message: str) -> NoReturn:
    raise InputError(f"{message} (see `topoopt run --help`)")


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    import argparse

    from torch.distributed.run import get_args_parser

    options: argparse.ArgumentParser = get_args_parser()
    options.prog = "topoopt run"
    options.description = _DESCRIPTION
    options.epilog = f"examples:\n{_EXAMPLES}"
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    # So that what was not said can be told from what was.
    for name in ("nproc_per_node", "node_rank", "master_addr"):
        if f"PET_{name.upper()}" not in os.environ:
            options.set_defaults(**{name: None})
    group = options.add_argument_group("torch_topoopt")
    group.add_argument("--servers", type=int, help="emulated servers")
    group.add_argument(
        "--ranks-per-server",
        type=int,
        metavar="K",
        help="ranks (accelerators) of each server (default: 1); LOCAL_RANK, LOCAL_WORLD_SIZE and "
        "GROUP_RANK then are those of a server",
    )
    group.add_argument("--degree", type=int, help="ports of each server (default: 2)")
    group.add_argument(
        "--bandwidth",
        type=parser.rate,
        metavar="RATE",
        help="of a port, per direction, with its unit: 200Mbps, 25Gbps (default: not limited, "
        f"planned for {UNPACED_LINK_GBPS:g} Gb/s)",
    )
    group.add_argument("--ports", choices=["duplex", "simplex"], help="default: duplex")
    group.add_argument(
        "--model",
        help="name or file.py:callable (default: the build_model() of the script; where it has "
        "none, the script is traced); none: neither, only rings and routes",
    )
    trace_options.add_options(group)
    group.add_argument(
        "--strategy-space",
        choices=["data-parallel", "full", "pipeline"],
        help="what is planned: data parallelism over all servers (default); full: also operators "
        "and tables on some of the servers, for a script that calls torch_topoopt.parallelize; "
        "pipeline: stages and micro-batches, for one that calls torch_topoopt.pipeline; only what "
        "can be executed for the model is considered",
    )
    group.add_argument(
        "--stages", type=int, metavar="S", help="of a pipeline (default: any number)"
    )
    group.add_argument(
        "--micro-batches",
        type=parser.micro_batches,
        metavar="M",
        help="of a pipeline: a number, several to choose from (2,8), or auto: 2, 4, 8, 16 or 32, "
        "whatever is predicted to be fastest (default)",
    )
    group.add_argument(
        "--measure",
        action="store_true",
        help="before planning, measure on this machine what the operators of the model take, "
        "instead of estimating it; emulated servers share the processors, which is counted",
    )
    cluster_options.add_options(group)
    group.add_argument("--seed", type=int, default=0, help="of the plan (default: 0)")
    group.add_argument("--plan", metavar="PLAN.json", help="use this plan: skips stages 1 and 2")
    group.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="for the results (default: runs/<time>)"
    )
    group.add_argument(
        "--fabric",
        choices=fabrics.FABRICS,
        default="loopback",
        help="what the servers are: loopback (default), addresses of this machine, no root needed; "
        "netns: network namespaces with a cable of their own for each link, as root",
    )
    group.add_argument(
        "--relay",
        choices=["user", "kernel"],
        default="user",
        help="who passes on what is for a server without a link: the ranks between, along all "
        "planned routes (default), or the kernels of the hosts, along the heaviest; netns only",
    )
    group.add_argument(
        "--wandb",
        action="store_true",
        help="log to Weights & Biases, offline (WANDB_MODE overrides)",
    )
    parser.add_json_option(options)
    return options


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
    cluster = cluster_on_switches(site.file) if switched else cluster_of(site.file)
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
    per_server = 1 if arguments.ranks_per_server is None else arguments.ranks_per_server
    if per_server < 1:
        raise InputError(f"ranks-per-server: {per_server} is not at least 1")
    servers = arguments.servers
    if servers is None:
        processes = arguments.nproc_per_node
        if processes is None or not processes.isdecimal():
            _fail("servers: missing; say how many servers to emulate, e.g. --servers 4")
        servers = _servers_of(int(processes), per_server)
    degree = arguments.degree
    if degree is None:
        degree = 2 if servers > 2 else 1
    return parser.make_cluster(
        servers,
        degree,
        arguments.bandwidth or UNPACED_LINK_GBPS,
        arguments.ports or "duplex",
        "cpu-core",
        per_server,
    )


def _servers_of(processes: int, per_server: int) -> int:
    if processes % per_server:
        raise InputError(
            f"nproc-per-node: {processes} is not a multiple of {per_server} ranks per server"
        )
    return processes // per_server


def _check_plan(arguments: argparse.Namespace, plan: Plan) -> None:
    """A given plan decides; options that say something else are an error, not a preference."""
    cluster = plan.cluster
    documents.check_one_rate(plan, arguments.plan)
    for option, value, planned in (
        ("servers", arguments.servers, cluster.servers),
        ("degree", arguments.degree, cluster.degree),
        ("bandwidth", arguments.bandwidth, cluster.link_gbps),
        ("ports", arguments.ports, cluster.ports),
        ("ranks-per-server", arguments.ranks_per_server, cluster.accelerators_per_server),
    ):
        if value is not None and value != planned:
            unit = " Gb/s" if option == "bandwidth" else ""
            raise InputError(
                f"{option}: {value}{unit} was asked for, but {arguments.plan} is a plan for "
                f"{planned}{unit}; leave --{option} out or make another plan"
            )
    _check_model(arguments)


def _check_model(arguments: argparse.Namespace) -> None:
    if arguments.model:
        raise InputError("model: --model and --plan exclude each other; the plan has its model")


def _check_strategy_space(
    arguments: argparse.Namespace, plan: Plan | None, cluster: Cluster
) -> None:
    """Strategies that are more than data parallel are known to run before anything is done."""
    if plan is not None:
        if arguments.strategy_space is not None:
            raise InputError(
                "strategy-space: --strategy-space and --plan exclude each other; the plan has its "
                "strategy"
            )
        if arguments.measure:
            raise InputError("measure: --measure and --plan exclude each other; the plan is made")
        if not hybrid.is_data_parallel(plan):
            hybrid.check_plan(plan, arguments.plan, arguments.training_script)
        return
    space = arguments.strategy_space
    if not arguments.model_to_profile:
        needs = "measure" if arguments.measure else ""
        needs = "strategy-space" if space not in (None, "data-parallel") else needs
        if needs:
            raise InputError(
                f"{needs}: needs the model, and {arguments.training_script} has no build_model() "
                f"under a __main__ guard; name one with --model file.py:callable, or leave "
                f"--{needs} out"
            )
    for option in ("stages", "micro_batches"):
        value, name = getattr(arguments, option), option.replace("_", "-")
        if value is not None and space != "pipeline":
            raise InputError(f"{name}: --{name} is for --strategy-space pipeline")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number < 2:
                raise InputError(f"{name}: {number} is not at least 2")
    if arguments.stages is not None and cluster.servers % arguments.stages:
        raise InputError(
            f"stages: {arguments.stages} does not divide {cluster.servers} servers evenly"
        )


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
    if arguments.run_path and arguments.ranks_per_server is not None:
        raise InputError("ranks-per-server: does not work with --run-path; name the script instead")
    if arguments.nnodes not in ("1", "1:1"):
        raise InputError(
            f"nnodes: {arguments.nnodes} is not 1; the {arguments.fabric} fabric emulates all "
            "servers on this machine"
        )
    if arguments.max_restarts < 0:
        raise InputError(f"max-restarts: {arguments.max_restarts} is negative")
    arguments.nproc_per_node = str(processes)


def _check_script(arguments: argparse.Namespace) -> ScriptSyntax | None:
    """What the script says of itself; None where it is a module or a program."""
    script = arguments.training_script
    if arguments.module:
        if arguments.no_python:
            raise InputError("module: -m and --no-python exclude each other")
        return None
    if arguments.no_python and not arguments.run_path:
        if shutil.which(script) is None:
            raise InputError(f"{script}: no such program")
        return None
    if not Path(script).is_file():
        raise InputError(f"{script}: no such script")
    return script_syntax.read(script)


def _check_master_port(arguments: argparse.Namespace) -> None:
    """A taken port is found before anything is profiled; torch would fail deep inside, later."""
    if arguments.master_port is None or arguments.standalone:
        return
    if arguments.rdzv_backend != "static" or arguments.rdzv_endpoint:
        return
    if not 0 <= arguments.master_port <= 65535:
        raise InputError(f"master-port: {arguments.master_port} is not in 0..65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((arguments.master_addr, arguments.master_port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    f"master-port: {arguments.master_port} is in use; choose another, or leave it "
                    "out for a free one"
                ) from None
            raise InputError(f"master-port: {arguments.master_port}: {error.strerror}") from None
