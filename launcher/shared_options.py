"""Every option of several verbs, defined once, so that spelling, meaning and default agree. See
docs/reference/commands.md; a test compares the verbs."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.ssh import DEFAULT_SSH
from torch_topoopt.launcher import parser, price_lists
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan import POLICIES
from torch_topoopt.search import defaults as planning_defaults
from torch_topoopt.search.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.fabric.server_file.description import ServerDescription
    from torch_topoopt.plan import Cluster

DEFAULT_LINK_GBPS = 10.0  # of plans where no --bandwidth is given
DEFAULT_ACCELERATOR = "a100"
EMULATED_ACCELERATOR = "cpu-core"  # the accelerator of a rank of an emulated server
_PICTURES = (".png", ".pdf", ".svg")
SPACES = ("auto", "all", "layouts", "full", "samples", "data-parallel", "pipeline")

CLUSTER = (
    "servers",
    "degree",
    "bandwidth",
    "ports",
    "parallel-links",
    "accelerators-per-server",
)
"""The servers and the ways to wire them; a cluster file has the same facts."""

PLANNING = (
    *CLUSTER,
    "accelerator",
    "batch-size",
    "costs",
    "strategy-space",
    "stages",
    "micro-batches",
    "optimizer",
    "optimizer-state",
    "strategy",
    "routing",
    "mode",
    "rounds",
    "evaluations",
    "ablation",
    "chains",
    "ray",
    "seed",
)
"""The job and its planning: options of plan, run and compare, whose plans are the same for the
same options."""

TEXT = ("sequence", "task")
"""The model of a configuration of transformers."""


def output_file(text: str) -> str:
    """argparse type of a file to write: checked before any long computation."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such folder: {path.parent}")
    _check_writable(text, path if path.exists() else path.parent)
    return text


def output_folder(text: str) -> str:
    """argparse type of a folder to write into, made if necessary."""
    path = Path(text)
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: {there} is not a folder")
    _check_writable(text, there)
    return text


def _check_writable(text: str, path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: cannot be written: permission denied")


def picture(text: str) -> str:
    """argparse type of a picture to draw."""
    if Path(text).suffix not in _PICTURES:
        raise argparse.ArgumentTypeError(f"{text} does not end in {', '.join(_PICTURES)}")
    return output_file(text)


_OPTIONS: dict[str, dict[str, Any]] = {
    "servers": {"type": int, "metavar": "N", "help": "number of servers"},
    "degree": {
        "type": int,
        "metavar": "D",
        "help": "ports of each server (default: 2, which is a ring; 1 for two servers)",
    },
    "bandwidth": {
        "type": parser.rate,
        "metavar": "RATE",
        "help": "port rate in each direction, such as 25Gbps or 200Mbps (default: "
        f"{DEFAULT_LINK_GBPS:g}Gbps is planned for, and emulated links are not limited)",
    },
    "ports": {
        "choices": ["duplex", "simplex"],
        "help": "duplex: a port carries both directions of a cable (default); simplex: "
        "transmitters and receivers are wired apart",
    },
    "parallel-links": {
        "action": "store_true",
        "help": "allow a degree above servers - 1: further rings and cables join the same servers",
    },
    "accelerators-per-server": {
        "type": int,
        "metavar": "K",
        "help": "accelerators of each server, with a rank for each (default: 1)",
    },
    "accelerator": {
        "metavar": "NAME",
        "help": "accelerator to plan for: device or device:format, such as h100 or a100:bf16; by "
        "default the format of the model "
        f"(default: {DEFAULT_ACCELERATOR}; with `topoopt run` {EMULATED_ACCELERATOR})",
    },
    "prices": {
        "choices": tuple(price_lists.LISTS),
        "default": "topoopt",
        "help": "price list of the costs: topoopt, all network parts with NICs (default), or "
        "hammingmesh, cables and switch ports alone",
    },
    "switch-delay": {
        "type": float,
        "metavar": "SECONDS",
        "help": "time in which the emulated optical switch between the cables of network "
        "namespaces moves a circuit (seconds, default: there is no switch)",
    },
    "server-file": {
        "metavar": "FILE",
        "help": "a server as NCCL (XML of NCCL_TOPO_DUMP_FILE) or InfraGraph describes it: its "
        "accelerators, what joins them, and its ports with their PCIe limits (default: none)",
    },
    "no-memory-limit": {
        "action": "store_true",
        "help": "also strategies that need more memory than an accelerator has",
    },
    "batch-size": {
        "type": int,
        "metavar": "SAMPLES",
        "help": "samples of one iteration on all accelerators together (default: the batch of "
        "a shipped model for each accelerator; one for each with a configuration of transformers; "
        "a file's example_batch, or the batch of a saved OpGraph, as it is)",
    },
    "sequence": {
        "type": int,
        "metavar": "TOKENS",
        "help": "tokens of a sample, of a shipped model that reads them (default: its own) or a "
        "configuration of transformers (default: as many as it allows, at most 4096)",
    },
    "task": {
        "choices": ["causal-lm", "sequence-classification"],
        "help": "what the model of a configuration of transformers is trained for (default: "
        "causal-lm)",
    },
    "costs": {
        "metavar": "FILE",
        "help": "measured costs of operators, as `topoopt profile --measure --output-costs FILE` "
        "writes them, instead of estimates",
    },
    "strategy-space": {
        "choices": SPACES,
        "default": "auto",
        "help": "strategies to search: layouts: every block of the model divided alike, by tensor, "
        "context, experts, data, stages and sharded state; full: any split and placement of each "
        "operator; all: the better of both (`topoopt plan` only); samples: splits of samples only, "
        "as the paper does; pipeline: stages and micro-batches; data-parallel: nothing; auto "
        "(default): all for a model (compare: full), and for a script what it calls: full for "
        "torch_topoopt.parallelize, pipeline for torch_topoopt.pipeline, data-parallel for neither "
        "(with `topoopt run` only what can be executed is considered)",
    },
    "layout": {
        "metavar": "DIMENSION=N,...",
        "help": "only wire and price this layout, such as tensor=8,sharding=parameters; its "
        "dimensions: tensor, context, data, expert, pipeline, interleave, sharding, state_shards, "
        "reshard, recompute, schedule, micro_batch, micro_batches, cells, "
        "recompute_blocks, reshard_blocks, offload",
    },
    "offload": {
        "choices": ["auto", "none", "host"],
        "help": "where layouts with sharded parameters keep these, gradients and the optimizer's "
        "state: none: on accelerators; host: in the memory of the hosts, as FSDP2 with its "
        "CPUOffloadPolicy; auto (default): on the hosts if this is a tenth faster, or if nothing "
        "else fits",
    },
    "precision": {
        "choices": ["bf16"],
        "help": "blocks of a layout compute in this type, while parameters, sums of gradients and "
        "the optimizer's state keep 32 bits (default: that of the script's call, else the model's)",
    },
    "stages": {"type": int, "metavar": "S", "help": "number of pipeline stages (default: any)"},
    "micro-batches": {
        "type": parser.micro_batches,
        "metavar": "N",
        "help": "equal parts that the batch is split into: a number, several to choose from "
        "(1,4,8), or auto: 1, 2, 4, ... 32 (default: auto in the space pipeline, whose numbers "
        "begin at 2; else 1, or what the --strategy file says)",
    },
    "optimizer": {
        "choices": tuple(OPTIMIZERS),
        "help": "optimizer whose state must fit into memory, and whose step is timed for layouts "
        "(default: adamw for layouts, else none)",
    },
    "optimizer-state": {
        "type": float,
        "metavar": "FACTOR",
        "help": "instead of --optimizer: bytes that it keeps for each byte of gradients",
    },
    "strategy": {
        "metavar": "FILE",
        "help": "begin the search at the strategy of this file: native JSON, a plan, or FlexFlow's "
        "text; with --evaluations 0 it is kept, wired and priced as it is",
    },
    "routing": {
        "type": functools.partial(parser.name_or_function, "routing"),
        "choices": parser.NamesOrFile(POLICIES),
        "default": "shortest",
        "help": "shortest: up to 4 equally short paths for a pair with traffic of its own "
        "(default); single: one of them; random: one, chosen at random, as the paper's artifact; "
        "coin-change: one, by the strides all servers have; k-shortest: the first 4, longer ones "
        "too; optimal: weights that minimise the load of the busiest link; or a policy of your "
        "own, FILE.py:NAME (docs/guides/extending.md)",
    },
    "mode": {
        "type": functools.partial(parser.name_or_function, "mode"),
        "choices": parser.NamesOrFile(("paper", "best")),
        "default": "best",
        "help": "how the network is found: best: searched from what mode paper finds, never worse, "
        "and slower (default); paper: by the paper's own algorithms, in milliseconds, with "
        "AllReduces on its rings; or by an algorithm of your own, FILE.py:NAME "
        "(docs/guides/extending.md)",
    },
    "rounds": {
        "type": int,
        "metavar": "N",
        "help": "most rounds of the alternation (default: 4, on fewer than 64 servers 8)",
    },
    "evaluations": {
        "type": int,
        "metavar": "N",
        "help": "strategies tried in each round (default: 50000, and up to eight times as many on "
        "fewer than 64 servers, where each takes less time)",
    },
    "ablation": {
        "choices": ["both", "search-only", "topology-only"],
        "default": "both",
        "help": "leave out one half of the alternation: search-only keeps the network for data "
        "parallelism; topology-only wires once for a strategy searched on an ideal switch, the "
        "paper's naive approach (default: both halves)",
    },
    "chains": {
        "type": int,
        "default": planning_defaults.DEFAULT_CHAINS,
        "metavar": "N",
        "help": "searches side by side that share the strategies to try (default: %(default)s); "
        "the plan depends on their number and not on how many run at a time",
    },
    "ray": {
        "metavar": "ADDRESS",
        "help": "run the chains as tasks of the Ray cluster at ADDRESS, or of the one on this "
        "machine (auto); default: in threads here",
    },
    "seed": {
        "type": int,
        "default": 0,
        "metavar": "N",
        "help": "random seed; the same seed gives the same result (default: 0)",
    },
    "measure": {
        "action": "store_true",
        "help": "measure on this machine what the operators of the model take, instead of "
        "estimating it",
    },
    "plan": {"metavar": "PLAN.json", "help": "use this plan instead of making one"},
    "network": {
        "metavar": "NETWORK",
        "help": "network file, JSON: switches, hosts and cables (docs/guides/routes.md)",
    },
    "failures": {
        "help": "also show what the loss of any one cable or server costs",
        "action": "store_true",
    },
    "plot": {"type": picture, "metavar": "FILE", "help": "also draw it: .png, .pdf or .svg"},
    "ssh-command": {
        "default": DEFAULT_SSH,
        "metavar": "COMMAND",
        "help": "how to reach a host; --, its management address and a command follow "
        "(default: %(default)s)",
    },
    "remote-command": {
        "default": "topoopt",
        "metavar": "COMMAND",
        "help": "how to start topoopt on the hosts (default: %(default)s)",
    },
    "dry-run": {"action": "store_true", "help": "only check, and say what would be done"},
    "json": {
        "action": "store_true",
        "help": "print one JSON object on stdout, and everything else on stderr",
    },
}


def add(options: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Adds the shared options `names`; `changes` are a verb's differences."""
    for name in names:
        keywords = {**_OPTIONS[name], **changes}
        options.add_argument(f"--{name}", **keywords)


def add_verbosity(options: argparse._ActionsContainer) -> None:
    """Adds -q and -v, which `console.Terminal.of` obeys."""
    group = options.add_mutually_exclusive_group()
    group.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print only the result, warnings and errors",
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print, on stderr, the defaults that are used, and the time of each step",
    )


def quantity(name: str, parse: Callable[[str], float]) -> Callable[[str], float]:
    """argparse type of a number with a unit."""

    def convert(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from None

    return convert


def cluster_of(
    arguments: argparse.Namespace,
    accelerator: str = EMULATED_ACCELERATOR,
    *,
    or_else: str = "",
) -> Cluster:
    """The Cluster that the options of CLUSTER describe, with their defaults.

    `accelerator` is the verb's default. Raises InputError or DocumentError for impossible values;
    `or_else` names the alternative to --servers.
    """
    if arguments.servers is None:
        raise InputError(f"servers: missing; say how many, as --servers 4{or_else}")
    made = parser.make_cluster(
        arguments.servers,
        degree_of(arguments),
        arguments.bandwidth or DEFAULT_LINK_GBPS,
        arguments.ports or "duplex",
        getattr(arguments, "accelerator", None) or accelerator,
        accelerators_of(arguments),
        parallel_links=arguments.parallel_links,
        memory_limited=not getattr(arguments, "no_memory_limit", False),
    )
    return replace(
        made,
        inside_gbps=getattr(arguments, "inside_bandwidth", None),
        host_memory_gb=getattr(arguments, "host_memory_gb", None),
    ).validate()


def ssh_words(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The words of --ssh-command; raises InputError if there are none."""
    words = tuple(shlex.split(arguments.ssh_command))
    if not words:
        raise InputError("ssh-command: is empty")
    return words


def described_server(arguments: argparse.Namespace) -> ServerDescription | None:
    """The server of --server-file; its facts replace options of CLUSTER that are not given.

    Raises DocumentError."""
    if arguments.server_file is None:
        return None
    from torch_topoopt.fabric.server_file.load import load_server

    server = load_server(arguments.server_file)
    ports = server.data_ports
    facts = {
        "accelerators_per_server": server.accelerators,
        "inside_bandwidth": server.inside_gbps,
        "degree": len(ports) or None,
        "bandwidth": ports[0].gbps if ports else None,
    }
    for name, value in facts.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return server


def degree_of(arguments: argparse.Namespace) -> int:
    """The requested degree, or that of the smallest ring."""
    if arguments.degree is not None:
        return int(arguments.degree)
    return 2 if arguments.servers > 2 else 1


def accelerators_of(arguments: argparse.Namespace) -> int:
    """The accelerators of each server; raises InputError for less than one."""
    count: int | None = getattr(arguments, "accelerators_per_server", None)
    if count is not None and count < 1:
        raise InputError(f"accelerators-per-server: must be at least 1 (got {count})")
    return count or 1


def refuse_beside_cluster_file(arguments: argparse.Namespace) -> None:
    """Raises InputError for an option that the cluster file determines."""
    for name in CLUSTER:
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None and value is not False:
            raise InputError(f"{name}: is in the cluster file; leave --{name} out")
