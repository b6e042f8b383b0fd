"""`topoopt profile SCRIPT --world-size N`: a training script's collectives and their demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError
from torch_topoopt.plan import limits
from torch_topoopt.plan.units import counted, format_bytes

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.plan import DemandFile
    from torch_topoopt.profile.script import CommunicationTrace

_ONLY_WITH_WORLD_SIZE = ("ranks", "iterations", "time_limit", "output_demand")


def add_options(options: argparse.ArgumentParser) -> None:
    """The options of this half of the verb."""
    group = options.add_argument_group("a training script")
    group.add_argument("--world-size", type=int, metavar="N", help="ranks of the run to profile")
    group.add_argument(
        "--ranks",
        metavar="LIST",
        help="ranks to profile, as 0,1,4 or all (default: all up to a world of 8, else 0); one is "
        "enough where all ranks do the same",
    )
    group.add_argument(
        "--iterations",
        type=int,
        metavar="K",
        help="iterations to run, of which the last ones that repeat are the demand (default: 2, "
        "and up to 16 if they are quick)",
    )
    group.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="time limit of each rank (seconds, default: 120)",
    )
    group.add_argument(
        "--output-demand",
        type=shared_options.output_file,
        metavar="FILE",
        help="also write the demand here",
    )
    group.add_argument("--demand", action=parser.Renamed, now="--output-demand")


def split(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    """The verb's own arguments, whether `--` follows, and the script's."""
    if "--" not in argv:
        return argv, False, []
    at = argv.index("--")
    return argv[:at], True, argv[at + 1 :]


def wanted(arguments: argparse.Namespace, dashes: bool) -> bool:
    """Whether to run a script; raises InputError for options that need --world-size."""
    if arguments.world_size is not None:
        for option in ("batch_size", "sequence", "task"):
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                raise InputError(f"{name}: the script decides; pass it an argument after --")
        return True
    given = [name for name in _ONLY_WITH_WORLD_SIZE if getattr(arguments, name) is not None]
    if given or dashes:
        name = f"--{given[0].replace('_', '-')}" if given else "--"
        raise InputError(f"{name}: is for training scripts; add --world-size N")
    return False


def main(arguments: argparse.Namespace, script_arguments: list[str]) -> int:
    """Runs the script and prints; returns the exit code."""
    from torch_topoopt.plan import DemandFile, PairTable
    from torch_topoopt.profile.script import demand_of

    terminal = console.Terminal.of(arguments)
    trace = _trace(arguments, script_arguments, terminal)
    demand, assumptions = demand_of(trace)
    pairs = demand.pairs
    if isinstance(pairs, PairTable) and not pairs.all_to_all:
        pairs = pairs.listed
    file = DemandFile(DemandFile.VERSION, demand.groups, pairs).validate()
    if arguments.output:
        documents.save(trace, arguments.output)
    if arguments.output_demand:
        documents.save(file, arguments.output_demand)
    found = ProfiledScript(trace, file, assumptions)
    if arguments.json:
        console.print_json(found)
        return OK
    _show(terminal, found)
    for what, path in (
        ("CommunicationTrace", arguments.output),
        ("demand", arguments.output_demand),
    ):
        if path:
            terminal.line(f"{what}: {path}")
    return OK


def _trace(
    arguments: argparse.Namespace, script_arguments: list[str], terminal: console.Terminal
) -> CommunicationTrace:
    from torch_topoopt.profile.script import ScriptError, TrainingScript, World, trace_script

    world_size = arguments.world_size
    limits.check_items(world_size, "world-size", world_size, "ranks")
    chosen: dict[str, Any] = {"ranks": _ranks(arguments)}
    if arguments.iterations is not None:
        chosen["iterations"] = arguments.iterations
    if arguments.time_limit is not None:
        chosen["time_limit_s"] = arguments.time_limit
    with terminal.progress(f"profiling {arguments.model}") as progress:
        progress(None, "running its ranks")
        try:
            script = TrainingScript(arguments.model, tuple(script_arguments))
            return trace_script(script, World(world_size), **chosen)
        except (ScriptError, ValueError) as error:
            raise InputError(str(error)) from None


def _ranks(arguments: argparse.Namespace) -> list[int] | None:
    text = arguments.ranks
    if text is None:
        return None
    if text == "all":
        return list(range(arguments.world_size))
    try:
        return [int(rank) for rank in text.split(",")]
    except ValueError:
        raise InputError(f"ranks: {text!r} is not all or a list of numbers like 0,1,4") from None


@dataclass(frozen=True)
class ScriptCall:
    """Equal calls of one rank."""

    rank: int
    phase: str
    operation: str
    group: tuple[int, ...]
    peer: int | None
    calls: int
    size_bytes: int


@dataclass(frozen=True)
class ProfiledScript:
    """The result of `topoopt profile --world-size`."""

    JSON_FIELDS: ClassVar = (
        "trace.script", "trace.world_size", "trace.ranks", "trace.iterations", "collectives",
        "demand", "assumptions",
    )  # fmt: skip

    trace: CommunicationTrace
    demand: DemandFile
    assumptions: tuple[str, ...]

    def collectives(self) -> list[ScriptCall]:
        """Calls of the last iteration, by first appearance."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for call in self.trace.calls:
            if call.iteration == self.trace.iterations - 1:
                kind = (call.rank, call.phase, call.operation, call.group, call.peer)
                found.setdefault(kind, []).append(call.size_bytes)
        return [ScriptCall(*(*kind, len(sizes), sum(sizes))) for kind, sizes in found.items()]


def _show(terminal: console.Terminal, found: ProfiledScript) -> None:
    trace, file = found.trace, found.demand
    terminal.table(
        f"{trace.script}, world of {trace.world_size}: one iteration",
        ("rank", "phase", "operation", "calls", "size", "group", "peer"),
        [
            (
                str(row.rank),
                row.phase,
                row.operation,
                str(row.calls),
                format_bytes(row.size_bytes),
                _ranks_text(row.group),
                "" if row.peer is None else str(row.peer),
            )
            for row in found.collectives()
        ],
    )
    for group in file.groups:
        size = format_bytes(group.size_bytes)
        terminal.line(f"AllReduce of {size} among {_ranks_text(group.servers)}")
    between = sum(pair.size_bytes for pair in file.pairs)
    if between:
        terminal.line(f"{format_bytes(between)} between {counted(len(file.pairs), 'pair')}")
    for sentence in found.assumptions:
        terminal.note(f"assumed: {sentence}")


def _ranks_text(ranks: tuple[int, ...]) -> str:
    """0, 1, 2, 3 -> "0-3"; ranks with gaps are listed."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
