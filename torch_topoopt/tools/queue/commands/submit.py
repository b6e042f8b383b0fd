"""`topoopt cluster submit`: puts a job at the end of the queue."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.launcher import (
    console,
    documents,
    parser,
    script_plan,
    script_syntax,
    shared_options,
    trace_options,
)
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.plan.result_json import within
from torch_topoopt.tools.queue.commands import state as cluster_state

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.plan import Cluster, Plan
    from torch_topoopt.tools.queue.foresight import Foresight
    from torch_topoopt.tools.queue.jobs import Connection, JobSpec

_DESCRIPTION = """\
Puts a job at the end of the queue: SCRIPT on a number of servers that are wired as its plan says.
The plan is made now (or given by --plan), so that what is wrong with it shows now; which servers it
gets is decided when there are some. Jobs get servers in the order in which they were submitted.

--launch says how it is started once its circuits carry light:
  run      one `topoopt run` on the daemon's machine, which emulates the servers: their circuits are
           set, but they themselves run nothing (default)
  hosts    one `topoopt run --cluster` on each server, over ssh; SCRIPT and the folder of the queue
           have to be on all of them, under the same path. --reach replaces ssh
  program  SCRIPT itself, once; it finds what it needs in TOPOOPT_JOB_PLAN, TOPOOPT_JOB_CLUSTER (the
           cables of this job) and TOPOOPT_JOB_SERVERS (names in the order of the plan)
"""

_EXAMPLES = """\
  topoopt cluster submit --cluster lab.yaml --servers 4 --degree 2 train.py --epochs 5
  topoopt cluster submit --cluster lab.yaml --plan plan.json --launch hosts train.py
  topoopt cluster submit --cluster lab.yaml --servers 4 --degree 2 --dry-run train.py
  topoopt cluster submit --cluster lab.yaml --servers 2 --degree 1 --model none --launch program \\
      ./with_mpirun.sh"""

# -tt: what runs there ends with the connection
_SSH = "ssh -tt -o BatchMode=yes -- {management}"


@dataclass(frozen=True)
class SubmittedJob:
    """The result of `topoopt cluster submit`: `plan` is its digest, `state` the folder."""

    job: int
    name: str
    plan: str
    launch: str
    state: Path


@dataclass(frozen=True)
class ForeseenJob:
    """The result of `topoopt cluster submit --dry-run`."""

    JSON_FIELDS: ClassVar = (
        "plan=plan.digest", *within("found", "layout.servers", "layout.side", "after", "ahead"),
        "circuits",
    )  # fmt: skip

    plan: Plan
    found: Foresight

    def circuits(self) -> tuple[Connection, ...]:
        return self.found.layout.connections if self.found.layout else ()


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    import argparse

    options = parser.Parser("cluster submit", _DESCRIPTION, _EXAMPLES)
    cluster_state.add_options(options)
    shared_options.add(options, "servers", "degree")
    options.add_argument(
        "--model",
        help="name or file.py:callable (default: the build_model() of the script; where it has "
        "none, a trace of its first iterations, see docs/guides/scripts.md); none: do not "
        "profile, only lay rings",
    )
    shared_options.add(options, "seed", "plan")
    options.add_argument(
        "--launch",
        choices=["run", "hosts", "program"],
        default="run",
        help="how the job is started, as described above (default: run)",
    )
    options.add_argument(
        "--reach",
        metavar="COMMAND",
        help="with --launch hosts: command prefix to run a command on a server; {server} and "
        f"{{management}} are those of the server (default: {_SSH!r})",
    )
    options.add_argument("--name", help="job name (default: the script's name)")
    options.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable of the job; without a value, the one that it has here",
    )
    shared_options.add(options, "dry-run", "json")
    options.add_argument("script", metavar="SCRIPT")
    options.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if not arguments.cluster:
        parser.refuse_after_script(arguments.script, arguments.arguments, "--cluster")
    cluster = cluster_state.load_cluster(arguments)
    terminal = console.Terminal(json_output=arguments.json)
    spec = _spec(arguments)
    from torch_topoopt.tools.queue.partition import check_fits, ports_needed
    from torch_topoopt.tools.queue.service import bind_cluster, daemon_pid
    from torch_topoopt.tools.queue.store import FILE, Store

    if cluster.hammingmesh is not None and spec.launch == "hosts":
        raise InputError(
            "launch: servers of a HammingMesh are not reached as hosts, whose fabric is cables; "
            "use run or program"
        )
    plan = _plan(arguments, cluster, terminal)
    check_fits(plan, cluster)
    folder = cluster_state.folder_of(arguments, cluster)
    name = arguments.name or Path(arguments.script).stem
    if arguments.dry_run:
        jobs = Store(folder).jobs(ended=False) if (folder / FILE).is_file() else []
        terminal.line(f"it would run {spec.where}")
        return _print_prospects(arguments, terminal, plan, cluster, jobs)
    store = Store(folder, create=True)
    bind_cluster(store, cluster, change=False)
    job = store.submit(name, plan.cluster.servers, ports_needed(plan), plan.to_json(), spec)
    if arguments.json:
        console.print_json(SubmittedJob(job, name, plan.digest(), spec.launch, folder))
    terminal.line(f"job {job} ({name}): plan {plan.digest()}; see `topoopt cluster status {job}`")
    terminal.line(f"job {job} runs {spec.where}")
    if daemon_pid(folder) is None:
        console.warning(
            f"no daemon runs; start `topoopt cluster daemon --cluster {arguments.cluster}`"
        )
    return OK


def _spec(arguments: argparse.Namespace) -> JobSpec:
    from torch_topoopt.tools.queue.jobs import JobSpec

    script = Path(arguments.script)
    if not script.is_file():
        raise InputError(f"{script}: no such script")
    if arguments.launch == "program" and shutil.which(str(script.absolute())) is None:
        raise InputError(f"{script}: is not executable; --launch program starts it as it is")
    if arguments.reach is not None and arguments.launch != "hosts":
        raise InputError("reach: only --launch hosts reaches servers; leave --reach out")
    reach = (arguments.reach or _SSH) if arguments.launch == "hosts" else ""
    return JobSpec(
        version=JobSpec.VERSION,
        launch=arguments.launch,
        script=os.path.abspath(script),
        arguments=tuple(arguments.arguments),
        folder=os.getcwd(),
        reach=tuple(shlex.split(reach)),
        environment=tuple(_variable(text) for text in arguments.env),
    ).validate()


def _variable(text: str) -> str:
    name, equals, _ = text.partition("=")
    if equals:
        return text
    if name not in os.environ:
        raise InputError(f"env: {name} has no value here; say --env {name}=VALUE")
    return f"{name}={os.environ[name]}"


def _plan(arguments: argparse.Namespace, cluster: ClusterFile, terminal: Terminal) -> Plan:
    from torch_topoopt.plan import Plan

    if arguments.plan:
        for name in ("servers", "degree", "model"):
            if getattr(arguments, name) is not None:
                raise InputError(f"{name}: the plan says it; leave --{name} out")
        return documents.load(Plan, arguments.plan)
    if arguments.servers is None:
        parser.refuse_after_script(arguments.script, arguments.arguments, "--servers", "--plan")
        raise InputError("servers: missing; say how many, as --servers 4, or give a --plan")
    if arguments.servers > len(cluster.servers):
        raise InputError(
            f"servers: {arguments.servers} is more than the {len(cluster.servers)} of cluster "
            f"{cluster.name}; it could never run"
        )
    shape = parser.make_cluster(
        arguments.servers,
        shared_options.degree_of(arguments),
        _link_gbps(cluster),
        "duplex",
        shared_options.EMULATED_ACCELERATOR,
        cluster.servers[0].accelerators,
    )
    model = arguments.model or _own_model(arguments)
    if not model or model == "none":
        return _plan_for_script(arguments, shape, terminal)
    from torch_topoopt.planner.options import PlanningOptions

    with terminal.progress("planning") as progress:
        progress(None, "profiling")
        graph = documents.op_graph_of(model)
        options = PlanningOptions(seed=arguments.seed, strategy_space="data-parallel")
        plan = documents.make_plan(graph, shape, options, progress)
        return documents.with_failures(plan, progress)


def _own_model(arguments: argparse.Namespace) -> str:
    """The script, if it has a build_model() and can be imported; else nothing."""
    if arguments.launch == "program":
        return ""
    return arguments.script if script_syntax.read(arguments.script).has_model else ""


def _plan_for_script(arguments: argparse.Namespace, shape: Cluster, terminal: Terminal) -> Plan:
    """As `topoopt run` plans without a model: for a trace of the script, or rings alone."""
    from torch_topoopt.planner.demand_plan import plan_for_demand
    from torch_topoopt.profile.script import TrainingScript

    script, why = None, "--model none"
    if arguments.model is None:
        why = "a program cannot be traced"
        if arguments.launch != "program":
            runs = TrainingScript(arguments.script, tuple(arguments.arguments))
            script = script_plan.Script(runs, trace_options.limits())
    with terminal.progress("planning") as progress:
        progress(None, f"tracing {arguments.script}" if script else "rings")
        demand, trace, failed = script_plan.demand_of_script(script, shape)
        if trace is None:
            terminal.line(f"rings for an unknown demand, nothing predicted: {failed or why}")
        name = script_plan.name_of(arguments.script, module=False)
        with input_errors():
            plan = plan_for_demand(shape, demand, trace, name=name, seed=arguments.seed)
        return documents.with_failures(plan, progress)


def _link_gbps(cluster: ClusterFile) -> float:
    """The slowest port that is on a switch, or of a HammingMesh."""
    from torch_topoopt.topology.finder.fixed_network import UNKNOWN_GBPS

    plugged = [port for _, port in cluster.ports.values() if port.switch or cluster.hammingmesh]
    return min((port.gbps or UNKNOWN_GBPS for port in plugged), default=UNKNOWN_GBPS)


def _print_prospects(
    arguments: argparse.Namespace,
    terminal: Terminal,
    plan: Plan,
    cluster: ClusterFile,
    jobs: list[Any],
) -> int:
    from torch_topoopt.tools.queue.foresight import foresee

    found = foresee(plan, cluster, jobs)
    if arguments.json:
        console.print_json(ForeseenJob(plan, found))
        return OK
    if found.layout is None:
        terminal.line(
            f"waits in the queue behind {found.ahead} jobs; which servers it gets depends on them"
        )
        return OK
    when = f"after {', '.join(f'job {n}' for n in found.after)}" if found.after else "at once"
    terminal.line(f"on {' '.join(found.layout.servers)}, {when}; nothing else is touched")
    if cluster.hammingmesh is not None:
        from torch_topoopt.tools.queue.mesh_places import MeshPlaces, boards_text

        mesh = MeshPlaces.of(cluster)
        assert mesh is not None
        terminal.line(boards_text(mesh.sub_mesh(found.layout.servers)))
        return OK
    terminal.line(f"circuits, set before that, on the {found.layout.side} side:")
    for connection in found.layout.connections:
        terminal.line(f"  + {connection}")
    return OK
