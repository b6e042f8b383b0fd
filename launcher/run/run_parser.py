"""The parser of `topoopt run`: torchrun's own options, and ours."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torch_topoopt.launcher import parser, shared_options, trace_options
from torch_topoopt.launcher.run import (
    alltoall,
    cluster_options,
    controller_options,
    elastic_options,
    fabrics,
    link_options,
    nccl_ranks,
    spare_ports,
    watch,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_DESCRIPTION = """\
Trains SCRIPT on servers that are wired as planned: profiles its model, plans strategy, network and
routes, wires the servers, and starts the ranks of every server. The servers are emulated on this
machine, or, with --cluster, machines joined by cables. A drop-in for torchrun: every option and
PET_* variable of torchrun works. The script is plain PyTorch; init_process_group() without a
backend means "topoopt". As with torchrun, ranks get OMP_NUM_THREADS=1 unless it is set.

Any script will do. One with a build_model() and a __main__ guard is imported to profile its model;
of any other, two iterations are run first, without a network, and what they communicate is what
is planned for. See docs/guides/scripts.md."""

_EXAMPLES = """\
  topoopt run --servers 4 --degree 2 --bandwidth 150Mbps train.py --epochs 5
  topoopt run --servers 4 --degree 2 --take-over gloo -m package.train
  topoopt run --plan plan.json --max-restarts 1 --tee 3 train.py
  topoopt run --nnodes 2:4 --max-restarts 3 train.py   # 4 emulated servers, 2 would do
  topoopt run --cluster lab.yaml --nnodes 4:6 train.py   # starts with 4 hosts or more
  sudo .venv/bin/topoopt run --fabric netns --servers 12 --degree 4 --bandwidth 25Mbps train.py
  topoopt run --cluster lab.yaml --nnodes 4 --node-rank 2 train.py   # on each of the four hosts
  topoopt run --cluster lab.yaml --nccl train.py   # the same, with stock NCCL"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb: those of the installed torchrun, and ours."""
    from torch.distributed.run import get_args_parser

    options: argparse.ArgumentParser = get_args_parser()
    options.prog = "topoopt run"
    # Otherwise argparse refuses an option of the script that two of our options begin with.
    options.allow_abbrev = False
    options.description = _DESCRIPTION
    options.epilog = f"examples:\n{_EXAMPLES}"
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.print_help = print_help  # type: ignore[method-assign]
    # Distinguishes explicit options from defaults, which differ between versions of torch.
    for name in ("nproc_per_node", "node_rank", "master_addr", "master_port", "start_method"):
        if f"PET_{name.upper()}" not in os.environ:
            options.set_defaults(**{name: None})
    for action in options._actions:
        if action.dest == "training_script":
            action.metavar = "SCRIPT"
    _add_options(options.add_argument_group("torch_topoopt"))
    return options


def own_parser() -> parser.Parser:
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
    its_arguments.required = False  # else argparse would name them if SCRIPT is missing
    return options


def print_help(file: SupportsWrite[str] | None = None) -> None:
    own_parser().print_help(file)


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
    shared_options.add(group, *shared_options.PLANNING, "layout", "precision")
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
    elastic_options.add_options(group)
    shared_options.add(group, "plan")
    add_run_dir(group)
    fabrics.add_options(group)
    spare_ports.add_options(group)
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
    shared_options.add_verbosity(group)


def add_run_dir(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for the results (default: runs/<time>)"
    )


def first_foreign(options: argparse.ArgumentParser, argv: list[str]) -> str | None:
    """The first option before the script that is not one of `options`."""
    words = iter(argv)
    for word in words:
        if not word.startswith("-"):
            break
        name, equals, _ = word.partition("=")
        action = options._option_string_actions.get(name)
        if action is None:
            return name
        if action.nargs != 0 and not equals:
            next(words, None)
    return None


def torchrun_spellings() -> set[str]:
    """The options of the installed torchrun, read from its source: to import it takes seconds.

    Empty if the source cannot be found.
    """
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found else None
    try:
        source = Path(folders[0], "distributed", "run.py").read_text() if folders else ""
    except OSError:
        return set()
    return set(re.findall(r"""["'](--?[a-zA-Z][\w-]*)["']""", source))
