"""`topoopt export`: a plan in the formats of other programs, and a check of MSCCL files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import CHECK_FAILED, OK, InputError, input_errors
from torch_topoopt.plan.file_kinds import MSCCL_ALGORITHM, wrong_kind
from torch_topoopt.plan.result_json import within
from torch_topoopt.plan.units import counted
from torch_topoopt.tools.export.errors import ExportError, FormatError
from torch_topoopt.tools.export.formats import FORMATS, Exported

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.tools.export.formats import Files
    from torch_topoopt.tools.export.msccl_check import Checked

_DESCRIPTION = f"""\
Writes a plan in the format of another program:

{chr(10).join(f"  {name:<10} {about.does}" for name, about in FORMATS.items())}

A format of one file is printed, or written to -o FILE; one of several goes to the folder -o DIR.
chakra, astra-sim and flexflow need the plan's operators, which `topoopt plan` writes beside it.
torchtitan, megatron, deepspeed and accelerate need a plan with a layout; the first two read the
operators for the stages of a pipeline.

--check FILE.xml runs an MSCCL algorithm, anybody's, on symbols: every chunk must hold what its
collective says, whatever the order of thread blocks; the exit code is 1 where one does not."""

_EXAMPLES = """\
  topoopt export plan.json --to msccl -o msccl/
  topoopt export plan.json --to dot -o network.dot
  topoopt export plan.json --to nccl --cluster cluster.yaml -o nccl/
  topoopt export plan.json --to astra-sim -o astra-sim/
  topoopt export plan.json --to torchtitan -o titan/
  topoopt export --check msccl/allreduce.xml"""


@dataclass(frozen=True)
class ExportedFiles:
    """The result of `topoopt export`."""

    format: str
    files: list[Path]


@dataclass(frozen=True)
class RightAlgorithm:
    """The result of `topoopt export --check`."""

    JSON_FIELDS: ClassVar = (
        "file", "right", *within("checked.algorithm", "name", "collective", "gpus=gpu_count",
        "channels"), *within("checked", "steps", "messages", "scratch_chunks"),
    )  # fmt: skip

    file: str
    right: bool
    checked: Checked


@dataclass(frozen=True)
class WrongAlgorithm:
    """The result of `topoopt export --check` of a file that is wrong."""

    file: str
    right: bool
    problem: str


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("export", _DESCRIPTION, _EXAMPLES)
    options.add_argument("plan", nargs="?", metavar="PLAN.json", help="a plan")
    options.add_argument("--to", choices=list(FORMATS), help="the format, as described above")
    options.add_argument(
        "--cluster",
        metavar="CLUSTER.yaml",
        help="the machines, for names, addresses and interfaces",
    )
    options.add_argument("--model", metavar="MODEL", help="model that was planned (default: the "
                         "operators beside the plan)")  # fmt: skip
    options.add_argument(
        "--check", metavar="FILE.xml", help="check an MSCCL algorithm instead of writing one"
    )
    options.add_argument(
        "-o", "--output", metavar="FILE|DIR", help="where to write (default: print one file)"
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    if arguments.check is not None:
        if arguments.plan is not None or arguments.to is not None:
            raise InputError("check: it reads a file of its own; leave the plan and --to out")
        return _check(arguments)
    if arguments.plan is None or arguments.to is None:
        raise InputError("plan, to: missing; as in topoopt export plan.json --to msccl -o msccl")
    about = FORMATS[arguments.to]
    if about.is_folder and arguments.output is None:
        raise InputError(
            f"output: {arguments.to} is several files; name a folder for them with -o DIR"
        )
    if arguments.json and arguments.output is None:
        raise InputError("output: --json lists the files that were written; name them with -o")
    with input_errors():
        files = about.files(_exported(arguments))
    if arguments.output is None:
        (content,) = files.values()
        sys.stdout.write(content.decode())
        return OK
    written = _write(files, Path(arguments.output), is_folder=about.is_folder)
    if arguments.json:
        console.print_json(ExportedFiles(arguments.to, written))
    else:
        shown = ", ".join(map(str, written[:4])) + (" ..." if len(written) > 4 else "")
        console.Terminal().line(f"{arguments.to}: {counted(len(written), 'file')}: {shown}")
        if "limits.txt" in files:
            console.Terminal().line(files["limits.txt"].decode().rstrip())
    return OK


def _exported(arguments: argparse.Namespace) -> Exported:
    from torch_topoopt.fabric.cluster_file.load import load_cluster
    from torch_topoopt.plan import Plan

    plan = documents.load(Plan, arguments.plan)

    def placed_op_graph() -> OpGraph:
        if not plan.strategy:
            raise ExportError(
                f"{arguments.to}: the plan has no strategy of a model, only a network; make one "
                "with `topoopt plan`"
            )
        documents.check_places_operators(plan, arguments.plan)
        return op_graph()

    def op_graph() -> OpGraph:
        if arguments.model is not None:
            return documents.op_graph_of(arguments.model, plan.batch_size)
        return documents.op_graph_of_plan(plan, arguments.plan)

    file = None if arguments.cluster is None else load_cluster(arguments.cluster)
    return Exported(plan, op_graph, placed_op_graph, file)


def _write(files: Files, output: Path, *, is_folder: bool) -> list[Path]:
    """Raises InputError where that is impossible."""
    if not is_folder and output.is_dir():
        output, is_folder = output, True
    paths = [output / name if is_folder else output for name in files]
    try:
        if is_folder:
            output.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, files.values(), strict=True):
            path.write_bytes(content)
    except OSError as error:
        raise InputError(f"output: {output}: {error.strerror}") from None
    return paths


def _check(arguments: argparse.Namespace) -> int:
    from torch_topoopt.tools.export.msccl_check import check_text

    path = arguments.check
    if problem := wrong_kind(path, MSCCL_ALGORITHM):
        raise InputError(f"check: {path}: {problem}")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"check: {path}: {error}") from None
    try:
        found = check_text(text)
    except FormatError as error:
        raise InputError(f"check: {path}: {error}") from None
    except ExportError as error:
        if arguments.json:
            console.print_json(WrongAlgorithm(path, False, str(error)))
        else:
            console.error(f"{path}: {error}")
        return CHECK_FAILED
    algorithm = found.algorithm
    if arguments.json:
        console.print_json(RightAlgorithm(path, True, found))
        return OK
    console.Terminal().line(
        f"{path}: right: {algorithm.name}, {algorithm.collective} of "
        f"{counted(len(algorithm.gpus), 'GPU')} on {counted(algorithm.channels, 'channel')}, "
        f"{counted(found.steps, 'step')}, {counted(found.messages, 'message')}"
    )
    return OK
