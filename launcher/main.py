"""The command `topoopt`: finds the verb, runs it, and turns every ending into an exit code."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

from torch_topoopt.launcher import signals
from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class Verb(NamedTuple):
    """The description of a verb, and the module of torch_topoopt whose `main` runs it."""

    does: str
    module: str


VERB_GROUPS = {
    "train": {
        "run": Verb("profile, plan, wire and train: a drop-in for torchrun", "launcher.run.run"),
        "join": Verb("adds one emulated server to a running job", "launcher.run.join"),
        "demo": Verb(
            "an example trained on four emulated servers: a first look", "launcher.run.demo"
        ),
        "bench": Verb(
            "collectives measured, with the options and the table of nccl-tests",
            "tools.bench.command",
        ),
        "nccl-env": Verb(
            "the environment in which stock NCCL runs on a plan's cables",
            "launcher.fabric.nccl_env",
        ),
    },
    "watch a job, or find out why it failed": {
        "runs": Verb(
            "the runs of a folder: when, script, servers, state, iteration time",
            "launcher.supervise.runs",
        ),
        "status": Verb("what a running job does at this moment", "launcher.supervise.status"),
        "top": Verb(
            "a running job on the terminal or a web page: step time, loss, links",
            "launcher.supervise.top",
        ),
        "inspect": Verb(
            "which rank is stuck or failed in a job that hangs or has failed",
            "launcher.supervise.inspect",
        ),
        "report": Verb("the report page of a run", "launcher.report"),
        "timeline": Verb(
            "iterations as predicted and as measured, as a trace for Perfetto",
            "launcher.supervise.timeline",
        ),
    },
    "plan, and compare networks": {
        "profile": Verb(
            "what one training iteration of a model computes and communicates",
            "launcher.profile.profile",
        ),
        "plan": Verb(
            "how to split a model, wire the servers and route the bytes", "launcher.plan.plan"
        ),
        "topology": Verb(
            "how to wire servers for a demand, and what the network is worth",
            "launcher.plan.topology",
        ),
        "compare": Verb(
            "a model on many kinds of network: time, cost, bandwidth tax",
            "launcher.simulate.compare",
        ),
        "simulate": Verb(
            "how long flows with given paths, sizes and dependencies take",
            "launcher.simulate.simulate",
        ),
        "diff": Verb("what two plans do differently", "launcher.plan.diff"),
        "export": Verb(
            "a plan in the formats of NCCL, MSCCL, Chakra, ASTRA-sim and others",
            "tools.export.command",
        ),
        "alltoall": Verb(
            "an all-to-all during which an optical switch moves circuits: when, and to what",
            "launcher.plan.alltoall",
        ),
        "hamiltonian": Verb(
            "two cycles over all servers of a torus that share no cable",
            "launcher.plan.hamiltonian",
        ),
    },
    "cable machines": {
        "advise": Verb(
            "how to cable servers without a switch, and what that is worth", "launcher.plan.advise"
        ),
        "discover": Verb(
            "which port is cabled to which: writes a cluster file", "launcher.fabric.discover"
        ),
        "doctor": Verb(
            "what is wrong with a host or a cluster, and how to repair it", "tools.doctor.command"
        ),
        "fabric": Verb(
            "what servers are wired with: make, check, change and remove it",
            "launcher.fabric.fabric",
        ),
    },
    "share a cluster, or steer its switches": {
        "cluster": Verb(
            "share a cluster among jobs: a queue, and a daemon that wires and starts them",
            "tools.queue.commands.cluster",
        ),
        "allocate": Verb("boards of a HammingMesh for jobs", "launcher.plan.allocate"),
        "assign": Verb("paths for flows through a leaf-spine network", "launcher.plan.assign"),
        "controller": Verb(
            "assigns the paths of the flows in a network of switches",
            "launcher.fabric.controller",
        ),
        "probe": Verb(
            "which source port of this host takes which path to other hosts",
            "launcher.fabric.probe",
        ),
    },
}

VERBS = {verb: about for group in VERB_GROUPS.values() for verb, about in group.items()}

TOOLS = {
    "help": "explains a verb, as VERB --help does",
    "completion": "prints what makes bash, zsh, fish or tcsh complete verbs and options",
}

_HELP = """\
usage: topoopt VERB ...

Distributed PyTorch training on machines that are wired directly to each other: decides how to split
the model, how to wire the machines and how to route the bytes, and trains on the result.

{verbs}

examples:
  topoopt run --servers 4 --degree 2 train.py --epochs 5
  topoopt plan train.py --servers 8 --degree 4 --bandwidth 25Gbps

`topoopt help VERB` explains a verb; `topoopt --version` prints the versions and the build.
exit codes: 0 done, 1 the script or the check failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM"""


def main(argv: list[str] | None = None) -> int:
    """Runs `topoopt` with `argv` (default: the process's own arguments); returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test may replace it
            stream.reconfigure(errors="replace")  # for characters outside the terminal's encoding
    try:
        with signals.interruptible():
            return _ended(arguments)
    except signals.Interrupted as interrupted:
        print(f"topoopt: stopped by {interrupted.signum.name}", file=sys.stderr)
        return interrupted.exit_code
    except BrokenPipeError:
        _drop_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None or _can_write_stdout():
            raise
        _drop_stdout()
        console = importlib.import_module("torch_topoopt.launcher.console")
        console.error(f"standard output cannot be written: {error.strerror}")
        return BAD_INPUT


def _ended(arguments: Sequence[str]) -> int:
    """Runs the verb, and turns errors into an exit code.

    Imports here, since a Ctrl-C during a top-level import would end in a traceback.
    """
    from torch_topoopt.launcher import console, parser
    from torch_topoopt.links.errors import FabricError
    from torch_topoopt.plan.codec import DocumentError
    from torch_topoopt.runtime.versions import BuildMismatchError

    try:
        return _dispatch(arguments)
    except (InputError, DocumentError, FabricError, BuildMismatchError) as error:
        console.error(parser.as_option(str(error)))
        return BAD_INPUT
    except MemoryError as error:
        console.error(f"out of memory: {error or 'ask for less, a smaller --servers say'}")
        return BAD_INPUT
    finally:
        sys.stdout.flush()  # a failure is handled by `main` and not by the interpreter's exit


def _can_write_stdout() -> bool:
    """Whether an OSError without a file name is from something other than stdout."""
    try:
        return os.write(1, b"\n") == 1
    except OSError:
        return False


def _drop_stdout() -> None:
    """Silences the flush at exit, once stdout cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def module_of(verb: str) -> ModuleType:
    """The module whose `main` runs a verb; imports it."""
    module = VERBS[verb].module if verb in VERBS else f"launcher.{verb}"
    return importlib.import_module(f"torch_topoopt.{module}")


def _verbs_by_group() -> str:
    groups = {
        group: {verb: about.does for verb, about in verbs.items()}
        for group, verbs in VERB_GROUPS.items()
    }
    groups["learn more"] = TOOLS
    return "\n\n".join(
        "\n".join([f"{group}:", *(f"  {verb:<13}{does}" for verb, does in verbs.items())])
        for group, verbs in groups.items()
    )


def _dispatch(arguments: Sequence[str]) -> int:
    verb, *rest = arguments or ["--help"]
    if verb == "help":
        verb, *rest = [*rest, "--help"]
    if verb in ("-h", "--help"):
        print(_HELP.format(verbs=_verbs_by_group()))
        return OK if arguments else BAD_INPUT
    if verb in ("-V", "--version"):
        from torch_topoopt.runtime.versions import versions_text

        print(versions_text())
        return OK
    if verb not in VERBS and verb != "completion":
        import difflib

        near = difflib.get_close_matches(verb, [*VERBS, *TOOLS], n=1)
        hint = f"did you mean `topoopt {near[0]}`?" if near else f"verbs: {', '.join(VERBS)}"
        raise InputError(f"{verb!r} is not a verb; {hint}")
    code: int = module_of(verb).main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
