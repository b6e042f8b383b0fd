"""`topoopt bench`: measures collectives, with the options and the table of nccl-tests."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.tools.bench import options as bench_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_DESCRIPTION = """\
Measures collectives on servers that `topoopt run` wires: emulated ones (--servers), or those of a
cluster file (--cluster, the same command on each host). Options, sizes and columns are those of
nccl-tests: size is the whole buffer of a rank, time that of one call on the slowest rank, algbw =
size / time, busbw = algbw times what must be moved per byte, #wrong the elements that the first
call got wrong. A form that PyTorch does not have (an all_reduce out of place) is N/A. #wrong other
than 0 makes the exit code 1.

OPERATION is one of all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, sendrecv,
barrier; several with commas, or all. Options that are not listed here go to `topoopt run`; put them
after OPERATION.

`topoopt bench link` measures single cables instead: see `topoopt bench link --help`."""

_EXAMPLES = """\
  topoopt bench all_reduce --servers 4 --degree 2 --bandwidth 200Mbps -b 64K -e 4M
  topoopt bench all_reduce,all_to_all --servers 4 -b 1M -e 1M --links
  topoopt bench all --servers 3 -b 64K -e 64K -n 5 --peer gloo -J bench.json
  topoopt bench all_reduce --cluster lab.yaml --nnodes 4 -b 1M -e 1G -f 4"""

# options that are passed on to `topoopt run`
_PASSED = ("servers", "degree", "bandwidth", "ports", "parallel-links", "accelerators-per-server",
           "plan", "mode", "routing", "seed")  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("bench", _DESCRIPTION, _EXAMPLES)
    options.add_argument("operation", metavar="OPERATION", help="operations to measure, as above")
    bench_options.add_options(options.add_argument_group("as nccl-tests"))
    group = options.add_argument_group("as topoopt run")
    shared_options.add(group, *_PASSED)
    group.add_argument(
        "--cluster", metavar="CLUSTER.yaml", help="measure on the machines of this file"
    )
    group.add_argument(
        "--run-dir", metavar="DIR", help="keep what `topoopt run` writes, and show what it says"
    )
    shared_options.add(group, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    if argv[:1] == ["link"]:
        from torch_topoopt.tools.bench.link import command

        return command.main(argv[1:])
    options = make_parser()
    arguments, further = options.parse_known_args(argv)
    _check_operation(options, arguments.operation, argv)
    with input_errors():
        bench_options.check(arguments)
        _check_root(arguments)
    if arguments.servers is None and arguments.cluster is None and arguments.plan is None:
        raise InputError(
            "servers: missing; say how many are emulated, as --servers 4, or give the machines in "
            "a --cluster file"
        )
    from torch_topoopt.launcher.run import run

    with tempfile.TemporaryDirectory(prefix="topoopt-bench-") as folder:
        results = arguments.json_file or f"{folder}/results.json"
        if Path(results).resolve().parent.is_dir() is False:
            raise InputError(f"json-file: {results}: there is no such folder")
        words = [
            *_of_run(arguments, argv),
            *further,
            *("--run-dir", arguments.run_dir or f"{folder}/run"),
            _rank_script(),
            *_of_ranks(arguments, results),
        ]
        quiet = console.stdout_to_stderr() if arguments.json else contextlib.nullcontext()
        with quiet, _said_by_run(kept=arguments.run_dir is not None):
            code = run.main(words, () if arguments.peer is None else (arguments.peer,))
        if arguments.json and Path(results).is_file():
            console.print_json(json.loads(Path(results).read_text(encoding="utf-8")))
    return code


def _check_operation(options: argparse.ArgumentParser, operation: str, argv: list[str]) -> None:
    """Raises InputError for an unknown operation, or for the option whose value it really is."""
    try:
        bench_options.operations_of(operation)
    except ValueError as error:
        for name, value in itertools.pairwise(argv):
            unknown = name.startswith("-") and name not in options._option_string_actions
            if value == operation and unknown and "=" not in name:
                raise InputError(
                    f"{name}: not an option of `topoopt bench`; options of `topoopt run` go after "
                    f"OPERATION, as `topoopt bench all_reduce {name} {value}`"
                ) from None
        raise InputError(str(error)) from None


def _rank_script() -> str:
    """The file that ranks run; it imports torch, so it is not imported here."""
    spec = importlib.util.find_spec("torch_topoopt.tools.bench.rank")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def _check_root(arguments: argparse.Namespace) -> None:
    if arguments.servers is not None:
        ranks = arguments.servers * (arguments.accelerators_per_server or 1)
        if not 0 <= arguments.root < ranks:
            raise InputError(f"root: {arguments.root} is not a rank of 0..{ranks - 1}")


@contextlib.contextmanager
def _said_by_run(*, kept: bool) -> Iterator[None]:
    """Redirects output of `topoopt run` itself to stderr, if `kept`; ranks print to stdout. Errors
    always go to stderr."""
    with contextlib.redirect_stdout(sys.stderr if kept else io.StringIO()):
        yield


def _of_run(arguments: argparse.Namespace, argv: list[str]) -> list[str]:
    """Options of `topoopt run` that were given."""
    words = []
    given = {word.partition("=")[0] for word in argv}
    for name in (*_PASSED, "cluster"):
        if f"--{name}" not in given:
            continue
        value = getattr(arguments, name.replace("-", "_"))
        if value is True:
            words.append(f"--{name}")
        elif name == "bandwidth":
            words += [f"--{name}", f"{value * 1e6:.9g}kbps"]
        else:
            words += [f"--{name}", str(value)]
    return words if arguments.plan is not None else [*words, "--model", "none"]


def _of_ranks(arguments: argparse.Namespace, results: str) -> list[str]:
    """The command line of rank.py."""
    words = [arguments.operation, "--json-file", str(Path(results).resolve())]
    for name in ("minbytes", "maxbytes", "stepbytes", "stepfactor", "iters", "warmup_iters",
                 "check", "op", "datatype", "root", "hops", "peer"):  # fmt: skip
        value = getattr(arguments, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    words += ["--links"] if arguments.links else []
    limited = arguments.bandwidth is not None or arguments.cluster is not None
    return [*words, "--limited"] if limited else words
