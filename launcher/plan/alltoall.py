"""`topoopt alltoall`: an all-to-all during which circuits move, for every number of moves."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.launcher import console, documents, packet_options, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.launcher.plan import alltoall_collectives
from torch_topoopt.plan.file_kinds import wrong_kind
from torch_topoopt.plan.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.reconfiguration.all_to_all.comparison import Option, Sizes
    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts

_DEFAULT_BYTES = 4e6
_MOST_ROWS = 40  # of the table

_DESCRIPTION = """\
Plans an all-to-all on servers whose circuits an optical switch can move while it runs. A further
topology makes paths shorter and costs the switch's delay. Each line is a schedule, which has been
replayed hop by hop; the fastest is marked.

columns: d, topologies, with the first one; slots, in each of which a link carries what one server
has for one other, or a chunk of it; bound, slots that no schedule goes below whose chunks stay on
one topology each (Theorem 1 of the paper), and carried, slots that no schedule at all goes below;
base, what the topologies are made of.

modes:
  best    strides chosen for each d; a chunk may wait at a server while circuits move; no barriers
  paper   "To Reconfigure or Not to Reconfigure": shifts in one order or contraction of rounds, a
          barrier after every round

A matrix is a NumPy file of shape servers x servers, bytes from each server to each, which are sent
in chunks; it makes --servers superfluous. Further bases then: greedy, circuits for the largest
demands; permutations, over which everything goes directly.

At level packet every schedule is also run in the packet simulator, each hop of a chunk as a flow of
packets: the column packets has its time, delays and headers included. --transport and the other
options of packets are those of topoopt simulate.

Other collectives (--collective, --bytes) go through phases, each over circuits that lead from every
server x to x + a stride: all have, add up or pass on what is `factor` servers apart. A line is the
fastest schedule of a kind, replayed. Of circuits that stay: rings, one stride; grid, strides that
ports share out. Of circuits that move (d topologies of a port): steps, all at once between phases;
whole, steps that send the whole message; turns, some move while others carry. The last line says
up to which delay of the switch moving pays."""

_EXAMPLES = """\
  topoopt alltoall --servers 16 --degree 1 --reconfiguration-delay 10us --bandwidth 800Gbps
  topoopt alltoall --servers 64 --degree 2 --reconfigurations all --json
  topoopt alltoall --servers 8 --degree 1 --reconfigurations 2 --schedule schedule.json
  topoopt alltoall --servers 16 --bandwidth 800Gbps --level packet
  topoopt alltoall --collective all_reduce --bytes 1MB --servers 64 --degree 2"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("alltoall", _DESCRIPTION, _EXAMPLES)
    alltoall_collectives.add_options(options)
    shared_options.add(options, "servers")
    shared_options.add(
        options, "degree", default=1, help="circuits out of and into each server (default: 1)"
    )
    options.add_argument(
        "--reconfigurations",
        type=_count,
        metavar="D|all",
        help="number of topologies, or all: try every number (default: as many as can pay)",
    )
    options.add_argument(
        "--reconfiguration-delay",
        type=shared_options.quantity("reconfiguration-delay", parse_seconds),
        default=1e-5,
        metavar="TIME",
        help="time in which the switch sets a topology (with its unit, default: 10us)",
    )
    options.add_argument(
        "--bytes-per-pair",
        type=shared_options.quantity("bytes-per-pair", parse_bytes),
        metavar="SIZE",
        help="size of the message from each server to each other (with its unit, default: 4MB)",
    )
    options.add_argument(
        "--matrix", metavar="FILE.npy", help="bytes from each server to each, instead"
    )
    options.add_argument(
        "--chunk",
        type=shared_options.quantity("chunk", parse_bytes),
        metavar="SIZE",
        help="with --matrix: size of what a link carries in a slot, such as 64kB (with its unit, "
        "default: an eighth of the mean)",
    )
    shared_options.add(options, "bandwidth", help=_BANDWIDTH)
    options.add_argument(
        "--latency",
        type=shared_options.quantity("latency", parse_seconds),
        default=5e-7,
        metavar="TIME",
        help="latency of a message over one hop (with its unit, default: 500ns)",
    )
    shared_options.add(
        options,
        "mode",
        type=str,
        choices=["best", "paper"],
        default="best",
        help="how schedules are made, as described above (default: best)",
    )
    _add_results(options)
    shared_options.add(options, "seed", "json")
    return options


def _add_results(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--schedule",
        type=shared_options.output_file,
        metavar="FILE",
        help="write the fastest schedule, a JSON document",
    )
    options.add_argument(
        "--level",
        choices=["slot", "packet"],
        default="slot",
        help="slot: times by the slot model (default); packet: also those of the packet simulator",
    )
    packet_options.add_options(options, seed=False, rings=False)


_BANDWIDTH = (
    "circuit rate in each direction, such as 25Gbps or 800Gbps (default: "
    f"{shared_options.DEFAULT_LINK_GBPS:g}Gbps)"
)


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.matrix is not None and arguments.bytes_per_pair is not None:
        raise InputError("bytes-per-pair: --matrix says it; leave one of the two out")
    matrix = None if arguments.matrix is None else _loaded(arguments.matrix)
    if arguments.servers is None:
        if matrix is None or matrix.ndim == 0:
            raise InputError("servers: missing; say how many, as --servers 16")
        arguments.servers = len(matrix)
    if arguments.collective != "all_to_all":
        return alltoall_collectives.run(arguments)
    alltoall_collectives.check_all_to_all(arguments)
    from torch_topoopt.reconfiguration.all_to_all import comparison
    from torch_topoopt.reconfiguration.all_to_all.packet_level import simulated
    from torch_topoopt.reconfiguration.all_to_all.sweep import check_size

    terminal = console.Terminal(json_output=arguments.json)
    packets = packet_options.given_options(arguments, seed=False)
    with input_errors():
        costs = alltoall_collectives.costs_of(arguments)
        check_size(arguments.servers, arguments.degree, arguments.mode)
        sizes = _sizes(arguments, matrix)
        with terminal.progress("planning") as progress:
            progress(None, "one topology")
            options = comparison.compared(
                arguments.servers,
                arguments.degree,
                costs,
                sizes,
                mode=arguments.mode,
                count=arguments.reconfigurations,
                seed=arguments.seed,
                on_option=lambda option, share: progress(share, _described(option)),
            )

        def seconds(option: Option) -> float:
            schedule = option.strategy.schedule
            run = simulated(schedule, costs, sizes.chunk_bytes, seed=arguments.seed, **packets)
            return run.completion_s

        if arguments.level == "packet":
            options = alltoall_collectives.in_packets(terminal, options, seconds)
    found = AllToAllOptions(arguments.servers, arguments.degree, arguments.mode, costs, sizes,
                            comparison.fastest(options), options)  # fmt: skip
    if arguments.schedule is not None:
        from torch_topoopt.reconfiguration.all_to_all.schedule_file import schedule_file

        documents.save(schedule_file(found.fastest.strategy.schedule), arguments.schedule)
    if arguments.json:
        console.print_json(found)
    else:
        _show(terminal, arguments, found)
    return OK


@dataclass(frozen=True)
class AllToAllOptions:
    """The result of `topoopt alltoall`."""

    JSON_FIELDS: ClassVar = (
        "servers", "degree", "mode", "costs.link_gbps", "costs.latency_s", "sizes.chunk_bytes",
        "reconfiguration_delay_s=costs.reconfiguration_s",
        "best_reconfigurations=fastest.strategy.reconfigurations", "options",
    )  # fmt: skip

    servers: int
    degree: int
    mode: str
    costs: CircuitCosts
    sizes: Sizes
    fastest: Option
    options: list[Option]


def _count(text: str) -> int | str:
    """argparse type of a number of topologies, or "all"."""
    if text == "all":
        return text
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise argparse.ArgumentTypeError(
            f"reconfigurations: {text[:80]!r} is neither a number of topologies nor all"
        )
    return int(text)


def _sizes(arguments: argparse.Namespace, matrix: NDArray[Any] | None) -> Sizes:
    """Bytes of every pair, or chunks of each."""
    from torch_topoopt.reconfiguration.all_to_all.comparison import Sizes

    if matrix is None:
        if arguments.chunk is not None:
            raise InputError("chunk: needs --matrix; every pair is one chunk without")
        given = arguments.bytes_per_pair
        return Sizes(_DEFAULT_BYTES if given is None else given)
    from torch_topoopt.reconfiguration.all_to_all.uneven import check_matrix

    return Sizes.of_matrix(check_matrix(matrix, arguments.servers), arguments.chunk)


def _loaded(path: str) -> NDArray[Any]:
    """The array of the file, of any shape."""
    import numpy as np

    try:
        matrix = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"matrix: {path}: {error.strerror or 'not NumPy'}") from None
    except (ValueError, EOFError):
        if problem := wrong_kind(path, "file of numpy.save"):
            raise InputError(f"matrix: {path}: {problem}") from None
        raise InputError(f"matrix: {path} is not a file of numpy.save") from None
    if not isinstance(matrix, np.ndarray):
        raise InputError(f"matrix: {path} has several arrays; save one")
    return matrix


def _described(option: Option) -> str:
    found = option.strategy
    return f"d = {found.reconfigurations}: {found.slots} slots, {format_seconds(option.seconds)}"


def _show(terminal: Terminal, arguments: argparse.Namespace, found: AllToAllOptions) -> None:
    options, fastest = found.options, found.fastest
    size, matrix = format_bytes(found.sizes.chunk_bytes), arguments.matrix
    what = f"{size} for each pair" if matrix is None else f"{matrix} in chunks of {size}"
    every = -(-len(options) // _MOST_ROWS)
    shown = [option for i, option in enumerate(options) if i % every == 0 or option is fastest]
    rows = [
        [
            option.strategy.base + (" (fastest)" if option is fastest else ""),
            str(option.strategy.reconfigurations),
            str(option.strategy.slots),
            format_seconds(option.seconds),
            str(option.strategy.lower_bound_slots),
            str(option.strategy.carried_bound_slots),
        ]
        for option in shown
    ]
    title = alltoall_collectives.title("All-to-all", what, arguments, found.costs)
    columns = ["base", "d", "slots", "time", "bound", "carried"]
    alltoall_collectives.show_table(terminal, title, columns, rows, shown)
    if len(shown) < len(options):
        terminal.line(f"{len(shown)} of {len(options)} lines; --json has all")
    stay = options[0]
    if stay.strategy.reconfigurations == 1 and stay is not fastest:
        faster = stay.seconds / fastest.seconds
        terminal.line(f"{faster:.3g} times as fast as staying with one topology")
    if arguments.schedule is not None:
        terminal.line(f"schedule: {arguments.schedule}")
