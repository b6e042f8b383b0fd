"""`topoopt fabric script`: the shell script that sets up one real host, or reverts that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher import documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Prints the shell script that sets up one real host for a plan; it changes nothing itself, so read
the script before you run it, as root, on that host. It sets addresses, MTU, one route and neighbour
entry per address of the other servers, tc rules for what the host passes on for others, and the
kernel settings that these need (forwarding and reverse-path filter of the ports, ARP, the limits of
socket buffers). It checks root, programs and interfaces before it changes anything, writes down
every change in /run/topoopt (TOPOOPT_STATE_DIR), takes all back if a step fails, and does nothing
when it is run again. --undo prints the script that takes exactly that back."""

_EXAMPLES = """\
  topoopt fabric script plan.json --cluster cluster.yaml --host h0 | less
  topoopt fabric script plan.json --cluster cluster.yaml --host h0 | ssh root@h0 sh
  topoopt fabric script plan.json --cluster cluster.yaml --host h0 --undo | ssh root@h0 sh"""


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric script", _DESCRIPTION, _EXAMPLES)
    options.add_argument("plan", metavar="PLAN", help="a plan.json")
    options.add_argument(
        "--cluster", metavar="FILE", required=True, help="the cluster file, with interfaces"
    )
    options.add_argument("--host", metavar="NAME", required=True, help="a server of that file")
    options.add_argument("--undo", action="store_true", help="print the script that takes it back")
    options.add_argument(
        "--classifier",
        choices=["auto", "flower", "u32"],
        default="auto",
        help="classifier of tc for relays. flower also gives frames the address of their receiver "
        "at the last relay, which RDMA needs; u32 redirects only; auto (default): the script "
        "asks the "
        "kernel for flower and says what it took. Hosts may differ",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        help="write it there (default: print)",
    )
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    from torch_topoopt.fabric.cluster_file.load import load_cluster
    from torch_topoopt.fabric.hosts.host_script import setup_script, undo_script
    from torch_topoopt.fabric.hosts.host_setup import host_setup
    from torch_topoopt.plan import Plan
    from torch_topoopt.plan.codec import write_text_atomically

    arguments = make_parser().parse_args(argv)
    plan = documents.load(Plan, arguments.plan)
    file = load_cluster(arguments.cluster)
    setup = host_setup(plan, file, arguments.host)
    text = undo_script(setup) if arguments.undo else setup_script(setup, arguments.classifier)
    if arguments.output is None:
        print(text, end="")
        return OK
    try:
        write_text_atomically(arguments.output, text)
        Path(arguments.output).chmod(0o755)
    except OSError as error:
        raise InputError(f"{arguments.output}: cannot be written: {error.strerror}") from None
    return OK
