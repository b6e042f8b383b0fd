"""`topoopt allocate`: boards of a HammingMesh for jobs."""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, input_errors
from torch_topoopt.launcher.plan import allocation_text
from torch_topoopt.plan.units import parse_bytes, parse_seconds
from torch_topoopt.shared_networks.allocation.board_job import DEFAULT_MOST_ASPECT
from torch_topoopt.shared_networks.allocation.tree_traffic import DEFAULT_BOARDS_PER_LEAF

if TYPE_CHECKING:
    from torch_topoopt.shared_networks.allocation.boards import Boards
    from torch_topoopt.shared_networks.allocation.defragment import DefragmentationPlan, MoveCost
    from torch_topoopt.shared_networks.allocation.schemes import Heuristics

_DESCRIPTION = """\
Gives jobs boards of a HammingMesh: each gets a virtual sub-mesh, boards whose rows all have the
same columns, beside failed boards and jobs that run already (docs/planning/allocation.md).

schemes:
  greedy         one job after the other, the first rows with enough columns in common (the paper's)
  ruin-recreate  the best of that and of searches that know all jobs, with the same --transpose,
                 --aspect and --locality; never fewer boards

FILE is a JSON list of jobs: {"name": "a", "shape": "2x4"} requests 2 rows x 4 columns of boards,
{"name": "b", "boards": 9} for 9, as square as they can be; "rows": [0, 1], "columns": [0, 1, 2, 5]
in addition says that the job runs there, as the output of --json does. LIST is ROW:COLUMN of
boards, counted from 0, with commas."""

_EXAMPLES = """\
  topoopt allocate --boards 16x16 --jobs jobs.json --transpose --sort --aspect
  topoopt allocate --boards 4x4 --jobs jobs.json --failed-boards 1:2,3:3 --json
  topoopt allocate --boards 16x16 --jobs jobs.json --failed 10 --scheme greedy --plot boards.png
  topoopt allocate --boards 8x8 --jobs running.json --defragment --board 4x4"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("allocate", _DESCRIPTION, _EXAMPLES)
    options.add_argument(
        "--boards", metavar="XxY", required=True, help="columns x rows of boards, as 16x16"
    )
    options.add_argument("--jobs", metavar="FILE", required=True, help="jobs to place, JSON")
    options.add_argument(
        "--failed",
        type=int,
        default=0,
        metavar="N",
        help="mark this many boards, chosen at random, as failed (default: 0)",
    )
    options.add_argument(
        "--failed-boards", type=_boards, default=frozenset(), metavar="LIST",
        help="these have failed, as 1:2,3:3",
    )  # fmt: skip
    options.add_argument("--scheme", choices=("greedy", "ruin-recreate"), default="ruin-recreate",
                         help="how boards are chosen (default: ruin-recreate)")  # fmt: skip
    options.add_argument(
        "--transpose", action="store_true", help="a job of u x v also takes v x u boards"
    )
    options.add_argument("--sort", action="store_true", help="greedy: the largest jobs first")
    options.add_argument(
        "--aspect", type=float, nargs="?", const=DEFAULT_MOST_ASPECT, metavar="MAX",
        help="jobs also take other shapes of as many boards, whose longer side is at most MAX "
        f"times the shorter (default: {DEFAULT_MOST_ASPECT:g})",
    )  # fmt: skip
    options.add_argument(
        "--locality", action="store_true",
        help="of all shapes and first rows the one whose all-to-all crosses the upper levels of "
        "the trees least",
    )  # fmt: skip
    options.add_argument(
        "--boards-per-leaf", type=int, default=DEFAULT_BOARDS_PER_LEAF, metavar="N",
        help="boards of a row, or column, on one switch of the lowest level (default: "
        f"{DEFAULT_BOARDS_PER_LEAF})",
    )  # fmt: skip
    _add_defragmentation(options)
    shared_options.add(options, "plot", "seed", "json")
    return options


def _add_defragmentation(options: argparse.ArgumentParser) -> None:
    moving = options.add_argument_group("defragmentation")
    moving.add_argument(
        "--defragment", action="store_true",
        help="also move jobs, so that those that do not fit, and those on failed boards, run",
    )  # fmt: skip
    moving.add_argument(
        "--board", type=_board, default=(2, 2), metavar="AxB",
        help="accelerators of a board (default: 2x2)",
    )  # fmt: skip
    moving.add_argument(
        "--checkpoint-bytes", type=shared_options.quantity("checkpoint-bytes", parse_bytes),
        default=64 * 2.0**30, metavar="SIZE",
        help="checkpoint size of an accelerator (with its unit, default: 64GiB)",
    )  # fmt: skip
    moving.add_argument(
        "--accelerator-bandwidth", type=parser.rate, default=6400.0, metavar="RATE",
        help="rate of all ports of an accelerator together (default: 6400Gbps, which is 800 GB/s)",
    )  # fmt: skip
    moving.add_argument(
        "--global-share", type=float, default=0.1, metavar="F",
        help="the part of it that all accelerators get at once (default: 0.1)",
    )  # fmt: skip
    moving.add_argument(
        "--restart-time", type=shared_options.quantity("restart-time", parse_seconds),
        default=0.0, metavar="TIME",
        help="time to stop and start jobs, without the transfer (with its unit, default: 0s)",
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.shared_networks.allocation.job_file import JobFile
    from torch_topoopt.shared_networks.allocation.schemes import SCHEMES

    with input_errors():
        from torch_topoopt.shared_networks.allocation.allocation import Allocation

        boards, heuristics = _boards_of(arguments), _heuristics(arguments)
        cost = _cost(arguments)
        jobs = JobFile.read(arguments.jobs)
        Allocation(boards, jobs.running).validate()
        began = time.perf_counter()
        found = SCHEMES[arguments.scheme](
            boards, jobs.asking, heuristics, jobs.running, arguments.seed
        ).validate()
        seconds = time.perf_counter() - began
        plan: DefragmentationPlan | None = None
        if arguments.defragment:
            from torch_topoopt.shared_networks.allocation.defragment import defragment

            plan = defragment(found, heuristics, arguments.seed)
    moves = None if plan is None else allocation_text.Defragmentation(plan, cost)
    if arguments.plot is not None:
        allocation_text.draw(arguments.plot, found if plan is None else plan.after)
    if arguments.json:
        console.print_json(allocation_text.BoardsOfJobs(found, arguments.scheme, seconds, moves))
    else:
        terminal = console.Terminal()
        allocation_text.show(terminal, found, arguments.scheme)
        if moves is not None:
            allocation_text.show_moves(terminal, moves)
        if arguments.plot is not None:
            terminal.line(f"drawing: {arguments.plot}")
    return OK


def _boards_of(arguments: argparse.Namespace) -> Boards:
    from torch_topoopt.shared_networks.allocation.boards import Boards

    boards = Boards.parse(arguments.boards).with_failed(arguments.failed_boards)
    return boards.with_random_failures(arguments.failed, arguments.seed)


def _heuristics(arguments: argparse.Namespace) -> Heuristics:
    from torch_topoopt.shared_networks.allocation.board_job import ShapeRules
    from torch_topoopt.shared_networks.allocation.schemes import Heuristics

    return Heuristics(
        ShapeRules(arguments.transpose, arguments.aspect),
        sort=arguments.sort,
        locality=arguments.locality,
        boards_per_leaf=arguments.boards_per_leaf,
    )


def _cost(arguments: argparse.Namespace) -> MoveCost:
    from torch_topoopt.shared_networks.allocation.defragment import MoveCost

    across, down = arguments.board
    return MoveCost(
        arguments.checkpoint_bytes,
        arguments.accelerator_bandwidth,
        arguments.global_share,
        arguments.restart_time,
        across * down,
    )


def _boards(text: str) -> frozenset[tuple[int, int]]:
    found = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,7}):(\d{1,7})", part, re.ASCII)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"failed-boards: {part!r} is not ROW:COLUMN, counted from 0, as in 1:2,3:3"
            )
        found.add((int(match[1]), int(match[2])))
    return frozenset(found)


def _board(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"board: {text!r} is not AxB accelerators of 1 to 99, as 2x2"
        )
    return int(match[1]), int(match[2])
