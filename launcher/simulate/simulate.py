"""`topoopt simulate`: how long flows, the iterations of a plan, or the jobs of a cluster take."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from torch_topoopt.launcher import (
    console,
    documents,
    packet_options,
    parser,
    shared_options,
    signals,
)
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import planning
from torch_topoopt.launcher.simulate import routed_jobs, shared_cluster
from torch_topoopt.plan.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from torch_topoopt._core import FlowProgram
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.sim import FlowsResult
    from torch_topoopt.sim.flow_names import FlowName

_DESCRIPTION = """\
Simulates training iterations of a PLAN, the jobs that share a cluster, or the flows of a file.

--jobs FILE: jobs arrive, wait for servers, run side by side and leave, on TopoOpt, where each has
links of its own, and on networks of switches, where their flows share links. FILE is JSON:

  {"version": 1,
   "cluster": {"servers": 64, "degree": 4, "link_gbps": 100, "accelerators_per_server": 4},
   "architectures": [{"name": "topoopt"}, {"name": "fat-tree", "server_gbps": 200}],
   "jobs": [{"model": "vgg", "servers": 16, "arrival_s": 0, "iterations": 1000}]}

--routed-jobs FILE: jobs whose rings of hosts reduce gradients over a leaf-spine network, under
ECMP, simulated annealing, the greedy and the scheme of `topoopt controller`
(docs/guides/routes.md):

  {"version": 1, "tors": 8, "spines": 4, "hosts_per_tor": 8, "link_gbps": 100,
   "jobs": [{"name": "llm", "parameters": 7e9, "tensor": 4, "pipeline": 2, "copies": 4,
             "compute_s": 0.5, "arrival_s": 0}],
   "iterations": 10, "placed_by": "racks", "failures": [{"at_s": 5, "spine": 0}], "seed": 0}

--flows FILE: explicit paths, sizes and dependencies; a flow starts when all that it depends on are
delivered. One record per line, # begins a comment:

  nodes N hosts H
  link ID SRC DST BITS_PER_S LATENCY_NS
  flow ID SRC DST BYTES path K LINK_1 .. LINK_K deps M FLOW_1 .. FLOW_M

Nodes 0..H-1 are hosts, the others switches. Formats and levels: docs/planning/simulators.md."""

_EXAMPLES = """\
  topoopt simulate --flows ring.txt --json
  topoopt simulate --flows ring.txt --level packet --transport dctcp --mtu 1448
  topoopt simulate --flows ring.txt --level packet --transport roce --lossless
  topoopt simulate --flows ring.txt --flow-csv flows.csv --link-csv links.csv --trace trace.json
  topoopt simulate runs/2026-01-31T12-00-00/plan.json
  topoopt simulate plan.json --model vgg --iterations 3
  topoopt simulate plan.json --architecture fat-tree
  topoopt simulate plan.json --architecture hx2mesh --level packet --path-choice adaptive --lossless
  topoopt simulate --jobs jobs.json
  topoopt simulate --routed-jobs jobs.json"""


_OF_ONE_SIMULATION = (
    "plan", "flows", "jobs", "model", "iterations", "architecture", "batch_size", "until",
    "flow_csv", "link_csv", "trace",
)  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("simulate", _DESCRIPTION, _EXAMPLES)
    options.add_argument("plan", metavar="PLAN", nargs="?", help="a plan.json")
    options.add_argument("--flows", metavar="FILE", help="links and flows, in the format above")
    options.add_argument(
        "--jobs", metavar="FILE", help="a cluster and the jobs that share it, in the format above"
    )
    options.add_argument(
        "--routed-jobs",
        metavar="FILE",
        help="jobs on a leaf-spine network whose paths a controller chooses, in the format above",
    )
    options.add_argument(
        "--model",
        metavar="MODEL",
        help="with PLAN: the model that was planned: name, file.py:callable, script.py or *.json "
        "(default: the OpGraph next to the plan, or the shipped model that it names)",
    )
    options.add_argument(
        "--iterations", type=int, metavar="N", help="with PLAN: training iterations (default: 1)"
    )
    options.add_argument(
        "--architecture",
        metavar="NAME",
        help="with PLAN: the same strategy on another kind of network for the same servers, such "
        "as fat-tree or torus (docs/planning/architectures.md), or one of your own, FILE.py:NAME "
        "(docs/guides/extending.md); every flow takes one shortest path; "
        "where circuits move (ocs-reconfig), they do so at both levels",
    )
    shared_options.add(
        options,
        "batch-size",
        help="with PLAN: samples of one iteration on all accelerators (default: as planned)",
    )
    packet_options.add_level(options)
    packet_options.add_options(options)
    options.add_argument(
        "--until",
        type=float,
        metavar="SECONDS",
        help="simulated time at which to end (seconds, default: when all flows have ended)",
    )
    for name, content in (
        ("flow-csv", "start and end of every flow"),
        ("link-csv", "the bytes of every link"),
        ("trace", "a trace for ui.perfetto.dev, one track per host"),
    ):
        options.add_argument(
            f"--{name}",
            type=shared_options.output_file,
            metavar="FILE",
            help=f"write {content}",
        )
    shared_options.add(options, "json")
    shared_options.add_verbosity(options)
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code. After Ctrl-C it shows the progress so far."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt import sim

    if arguments.until is not None and not arguments.until > 0:
        raise InputError(f"until: {arguments.until} is not above 0")
    options = packet_options.given_options(arguments)
    for name, run in (("routed_jobs", routed_jobs.main), ("jobs", shared_cluster.main)):
        if getattr(arguments, name) is not None:
            _refuse_others(arguments, name, options)
            return run(arguments)
    options.pop("ring_steps", None)  # belongs to the program
    terminal = console.Terminal.of(arguments)
    with (
        terminal.progress(f"simulating {arguments.flows or arguments.plan}") as progress,
        input_errors(),
    ):
        program, more, names = _program(arguments, terminal)
        options |= more
        with signals.noted() as stopped:

            def keep_going(now_s: float, finished: int) -> bool:
                progress(finished / max(program.task_count, 1), f"at {format_seconds(now_s)}")
                return stopped() is None

            result = sim.run_program(
                program,
                level=arguments.level,
                until_s=math.inf if arguments.until is None else arguments.until,
                keep_going=keep_going,
                **options,
            )
    _write_files(arguments, program, result, names)
    if arguments.json:
        console.print_json(result)
    else:
        _show(terminal, result, arguments)
    interrupted = stopped()
    return OK if interrupted is None else interrupted.exit_code


def _refuse_others(arguments: argparse.Namespace, chosen: str, options: dict[str, Any]) -> None:
    """Raises InputError for options of another simulation than that of --jobs or --routed-jobs."""
    flag = f"--{chosen.replace('_', '-')}"
    for name in _OF_ONE_SIMULATION:
        if name != chosen and getattr(arguments, name) is not None:
            shown = "PLAN" if name == "plan" else f"--{name.replace('_', '-')}"
            raise InputError(f"{shown}: belongs to another simulation than that of {flag}")
    if arguments.level != "flow" or options:
        raise InputError(f"level: {arguments.level!r}: {flag} is simulated at level flow")


def _program(
    arguments: argparse.Namespace, terminal: console.Terminal
) -> tuple[FlowProgram, dict[str, Any], dict[int, FlowName]]:
    """The program, the additional input of its level (the mover of its circuits, the routing of
    adaptive packets), and the names of its flows.

    Raises InputError, DocumentError or ValueError.
    """
    from torch_topoopt import sim

    if (arguments.plan is None) == (arguments.flows is None):
        raise InputError(
            "give a PLAN, --flows FILE, --jobs FILE or --routed-jobs FILE "
            "(see `topoopt simulate --help`)"
        )
    if arguments.flows is not None:
        for option in ("model", "iterations", "architecture", "batch_size", "ring_steps"):
            if getattr(arguments, option) is not None:
                raise InputError(f"--{option.replace('_', '-')}: belongs to a PLAN, not to --flows")
        return sim.read_flows(arguments.flows), {}, {}
    from torch_topoopt.plan import Plan

    plan = documents.load(Plan, arguments.plan)
    graph = _planned_graph(plan, arguments)
    terminal.note(
        planning.assumptions(plan.cluster, plan.strategy_space, graph.model, graph.batch_size)
    )
    how: dict[str, Any] = {
        "iterations": 1 if arguments.iterations is None else arguments.iterations,
        "ring_steps": arguments.ring_steps or "together",
    }
    schedules = packet_options.uses_schedules(arguments)
    if arguments.architecture is None:
        program, names = sim.named_plan_program(graph, plan, schedules=schedules, **how)
        return program, {}, names
    from torch_topoopt.architectures import architecture
    from torch_topoopt.sim.architecture_program import architecture_program, routed

    topology = architecture(arguments.architecture)(plan.cluster, plan.demand, seed=plan.seed)
    what = (topology, graph, plan.cluster, plan.strategy)
    parts = plan.micro_batches
    if topology.reconfiguration is not None:
        from torch_topoopt.reconfiguration.moving_circuits import MovingCircuits

        moving = MovingCircuits(
            *what, level=arguments.level, micro_batches=parts, seed=plan.seed, **how
        )
        return moving.program, {"control": moving.control}, {}
    if schedules:
        how["ring_steps"] = None
    program = architecture_program(*what, micro_batches=parts, seed=plan.seed, **how)
    choice = {} if arguments.path_choice is None else {"path_choice": arguments.path_choice}
    return program, routed(choice, topology), {}


def _planned_graph(plan: Plan, arguments: argparse.Namespace) -> OpGraph:
    """The graph of --model, or of the planned model; raises InputError, DocumentError."""
    if arguments.architecture is not None:
        documents.check_places_operators(plan, arguments.plan)
    model, batch_size = arguments.model, arguments.batch_size
    if model is None:
        return documents.op_graph_of_plan(plan, arguments.plan, batch_size)
    if batch_size is None and not documents.is_saved_graph(model):
        batch_size = plan.batch_size
    return documents.op_graph_of(model, batch_size)


def _write_files(
    arguments: argparse.Namespace,
    program: FlowProgram,
    result: FlowsResult,
    names: dict[int, FlowName],
) -> None:
    from torch_topoopt.sim import results

    def write_trace(file: TextIO, program: FlowProgram, result: FlowsResult) -> None:
        results.write_trace(file, program, result, names)

    for path, write in (
        (arguments.flow_csv, results.write_flow_csv),
        (arguments.link_csv, results.write_link_csv),
        (arguments.trace, write_trace),
    ):
        if path is not None:
            with _output(path) as file:
                write(file, program, result)


@contextmanager
def _output(path: str) -> Iterator[TextIO]:
    try:
        with open(path, "w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _show(terminal: console.Terminal, result: FlowsResult, arguments: argparse.Namespace) -> None:
    flows = counted(result.flows, "flow")
    if result.complete:
        terminal.line(f"{flows} delivered after {format_seconds(result.completion_s)}")
    else:
        done = int((result.finish_s < math.inf).sum())
        terminal.line(
            f"ended at {format_seconds(result.completion_s)}: "
            f"{done} of {counted(len(result.finish_s), 'task')} done, {flows} in all"
        )
    if arguments.plan is not None:
        if result.complete:
            iteration_s = result.completion_s / (arguments.iterations or 1)
            terminal.line(f"iteration: {format_seconds(iteration_s)} at {arguments.level} level")
        busy_s = max(result.device_busy_s.tolist())
        terminal.line(f"busiest server: computes for {format_seconds(busy_s)}")
    terminal.line(
        f"{counted(result.packet_hops, 'packet-hop')}; "
        * (result.packet_hops > 0)
        + f"busiest link: {format_bytes(max(result.link_bytes.tolist(), default=0.0))}; "
        f"{counted(result.events, 'event')}, simulated in "
        f"{format_seconds(result.cpu_seconds)} of CPU time and {result.peak_memory_mb:.0f} MB of "
        "this machine's memory"
    )
