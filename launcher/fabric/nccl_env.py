"""`topoopt nccl-env`: the environment of ranks that use stock NCCL."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.launcher import console, documents, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.links.nccl_environment import Variable
    from torch_topoopt.links.rank_layout import RankLayout
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan

_DESCRIPTION = """\
Prints the environment in which stock NCCL runs on the cables of a plan, through the network plugin
of torch_topoopt, for people who start ranks themselves (mpirun, Slurm, containers, vLLM, SGLang).
With --output, and --cluster or --wiring, it also writes the file that the plugin reads: cables,
routes and secrets of one job. Write a new file for each job, copy it to every host, and let nobody
else read it.

Ranks are numbered so that NCCL's ring, 0, 1, 2, ..., is a ring of cables; --rank says on which
server of the plan a rank has to run. `topoopt run --nccl` does all of this by itself."""

_EXAMPLES = """\
  topoopt nccl-env plan.json --cluster lab.yaml -o job.nccl > job.env
  topoopt nccl-env plan.json --wiring run/wiring.json -o job.nccl --format docker > job.env
  eval "$(topoopt nccl-env plan.json --rank 2)"        # this shell's commands are rank 2
  topoopt nccl-env plan.json --json"""

_NOT_WRITTEN = "the file that --cluster and -o write"
_TCP_PORTS = range(20000, 30000)  # below Linux's ephemeral ports


@dataclass(frozen=True)
class NcclSettings:
    """The result of `topoopt nccl-env --json`."""

    JSON_FIELDS: ClassVar = (
        "variables=values", "rank", "server", "servers_of_ranks=layout.server_of",
    )  # fmt: skip

    variables: tuple[Variable, ...]
    layout: RankLayout
    rank: int | None

    def values(self) -> dict[str, str | None]:
        return {name: value or None for name, value, _ in self.variables}

    def server(self) -> int | None:
        return None if self.rank is None else self.layout.server_of[self.rank]


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("nccl-env", _DESCRIPTION, _EXAMPLES)
    options.add_argument("plan", metavar="PLAN", help="a plan.json")
    where = options.add_mutually_exclusive_group()
    where.add_argument(
        "--cluster", metavar="FILE", help="the cluster file with the addresses of the plan's ports"
    )
    where.add_argument(
        "--wiring",
        metavar="FILE",
        help="the wiring.json of a run, or of `topoopt fabric up`, with these addresses",
    )
    options.add_argument(
        "-o",
        "--output",
        type=shared_options.output_file,
        metavar="FILE",
        help="write what the plugin reads there",
    )
    options.add_argument(
        "--encrypt",
        action="store_true",
        help="encrypt the links between servers (TLS 1.3; docs/guides/security.md has its cost)",
    )
    options.add_argument("--rank", type=int, metavar="N", help="also what only rank N needs")
    options.add_argument(
        "--format",
        choices=["shell", "docker", "json"],
        default="shell",
        help="shell: export lines (default); docker: a file for --env-file; json: as --json",
    )
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)

    from torch_topoopt.links.nccl_environment import nccl_environment
    from torch_topoopt.links.nccl_wiring import LIBRARY, nccl_layout
    from torch_topoopt.plan import Plan

    plan = documents.load(Plan, arguments.plan)
    layout = nccl_layout(plan, plan.cluster.accelerators_per_server)
    ranks = len(layout.server_of)
    if arguments.rank is not None and not 0 <= arguments.rank < ranks:
        raise InputError(
            f"rank: {arguments.rank} is not in 0..{ranks - 1}, the ranks of {arguments.plan}"
        )
    if not LIBRARY.exists():
        raise InputError(f"{LIBRARY}: is not built; install torch_topoopt from its sources")
    path = _write(arguments, plan)
    if not path and arguments.rank is None:
        console.warning(
            "TOPOOPT_NCCL_WIRING has no value, so NCCL cannot start; say --cluster CLUSTER.yaml "
            "-o FILE, and FILE gets the cables"
        )
    variables = nccl_environment(path, arguments.rank)
    if arguments.json or arguments.format == "json":
        console.print_json(NcclSettings(variables, layout, arguments.rank))
    else:
        print(_text(variables, layout, arguments), end="")
    return OK


def _write(arguments: argparse.Namespace, plan: Plan) -> str:
    """Writes the plugin's file on request; its path, or "" without one."""
    from torch_topoopt.links.nccl_wiring import write_nccl_wiring

    if arguments.output is None:
        for name in ("cluster", "wiring", "encrypt"):
            if getattr(arguments, name):
                raise InputError(f"{name}: needs -o FILE, for what the plugin reads")
        return ""
    if not (arguments.wiring or arguments.cluster):
        raise InputError(
            f"output: {arguments.output} needs --cluster FILE or --wiring FILE: where the ports are"
        )
    if arguments.encrypt:
        from torch_topoopt.runtime.versions import BuildMismatchError, check_tls

        try:
            check_tls()
        except BuildMismatchError as error:
            raise InputError(f"encrypt: {error}") from None
    wiring = _wiring(arguments, plan)
    try:
        write_nccl_wiring(
            Path(arguments.output),
            plan,
            wiring,
            ranks_per_server=plan.cluster.accelerators_per_server,
            encrypt=arguments.encrypt,
        )
    except OSError as error:
        raise InputError(f"{arguments.output}: cannot be written: {error.strerror}") from None
    return str(Path(arguments.output).absolute())


def _wiring(arguments: argparse.Namespace, plan: Plan) -> Wiring:
    from torch_topoopt.fabric.cluster.static_plan import unverified_wiring
    from torch_topoopt.fabric.cluster_file.load import load_cluster
    from torch_topoopt.links.wiring import Wiring

    if arguments.wiring:
        return documents.load(Wiring, arguments.wiring)
    return unverified_wiring(plan, load_cluster(arguments.cluster), random.choice(_TCP_PORTS))


def _text(
    variables: tuple[Variable, ...], layout: RankLayout, arguments: argparse.Namespace
) -> str:
    docker = arguments.format == "docker"
    lines = [f"# stock NCCL on the cables of {arguments.plan}; see docs/guides/nccl.md"]
    if arguments.rank is None:
        lines.append(f"# servers of ranks 0, 1, 2, ...: {' '.join(map(str, layout.server_of))}")
    else:
        server = layout.server_of[arguments.rank]
        lines.append(f"# rank {arguments.rank} runs on server {server} of the plan")
    for name, value, purpose in variables:
        lines.append(f"# {purpose}" if value else f"# {purpose}: {_NOT_WRITTEN}")
        line = f"{name}={value}" if docker else f"export {name}={shlex.quote(value)}"
        lines.append(line if value else f"# {name}=")
    lines.append("# NCCL's bootstrap needs an interface that joins all hosts; if it finds another:")
    lines.append("# NCCL_SOCKET_IFNAME=")
    return "\n".join([*lines, ""])
