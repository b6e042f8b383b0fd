"""The options of `topoopt run` about its links: encrypted, over what, of how many connections, by
which threads, with or without copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.runtime.link_options.encryption import ENCRYPT_VARIABLE
from torch_topoopt.runtime.link_options.parallel_connections import (
    CONNECTIONS_VARIABLE,
    MOST_CONNECTIONS,
)
from torch_topoopt.runtime.link_options.threads_asked import (
    LINK_THREADS_VARIABLE,
    MOST_REDUCE_THREADS,
    REDUCE_THREADS_VARIABLE,
    why_no_link_threads,
)
from torch_topoopt.runtime.link_options.transport import TCP, TRANSPORT_VARIABLE, TRANSPORTS
from torch_topoopt.runtime.link_options.zero_copy_asked import ZERO_COPY_VARIABLE, why_no_zero_copy

if TYPE_CHECKING:
    import argparse


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--encrypt",
        action="store_true",
        help="encrypt the links between servers (TLS 1.3; docs/guides/security.md has its cost)",
    )
    group.add_argument(
        "--transport",
        choices=TRANSPORTS,
        help="transport of the plan's links: tcp (default), or libfabric's provider "
        "(docs/guides/rdma.md); auto: verbs where an interface has it, else tcp",
    )
    group.add_argument(
        "--connections",
        type=int,
        metavar="N",
        help=f"TCP connections of every link, 1 to {MOST_CONNECTIONS} (default: 1; 2 from 25 Gb/s "
        "on, 4 from 100 Gb/s on)",
    )
    group.add_argument(
        "--link-threads",
        action="store_true",
        help="two threads of its own for each fast TCP connection, near its network card (default: "
        "one thread per rank serves all; docs/guides/fast-links.md)",
    )
    group.add_argument(
        "--reduce-threads",
        type=int,
        metavar="N",
        help=f"threads of each rank that add up long chunks, 0 to {MOST_REDUCE_THREADS} (default: "
        "0, the thread that serves the links does)",
    )
    group.add_argument(
        "--zero-copy",
        action="store_true",
        help="send long pieces over fast TCP connections from where they lie (MSG_ZEROCOPY); a "
        "connection whose bytes the kernel copies all the same ends that by itself (default: the "
        "kernel copies all; docs/guides/fast-links.md)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError for options that cannot be used."""
    over_tcp = arguments.transport in (None, TCP)
    if arguments.encrypt and not over_tcp:
        raise InputError(
            f"transport: links over {arguments.transport} are not encrypted; leave out --encrypt, "
            f"or choose {TCP}"
        )
    kind = arguments.transport or TCP
    if arguments.link_threads and (why := why_no_link_threads(kind, encrypted=arguments.encrypt)):
        raise InputError(f"link-threads: {why}; leave out --link-threads")
    if arguments.zero_copy and (why := why_no_zero_copy(kind, encrypted=arguments.encrypt)):
        raise InputError(f"zero-copy: {why}; leave out --zero-copy")
    workers = arguments.reduce_threads
    if workers is not None and not 0 <= workers <= MOST_REDUCE_THREADS:
        raise InputError(f"reduce-threads: {workers} is not in 0..{MOST_REDUCE_THREADS}")
    number = arguments.connections
    if number is None:
        return
    if not 1 <= number <= MOST_CONNECTIONS:
        raise InputError(f"connections: {number} is not in 1..{MOST_CONNECTIONS}")
    if number > 1 and not over_tcp:
        raise InputError(
            f"connections: a link over {arguments.transport} has one connection; leave out "
            f"--connections, or choose --transport {TCP}"
        )
    if number > 1 and arguments.controller is not None:
        raise InputError(
            "connections: a controller of routes assigns a path to one connection per link; leave "
            "out --connections"
        )


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """What ranks find in their environment; what is there already stays without the options."""
    asked = {}
    if arguments.encrypt:
        asked[ENCRYPT_VARIABLE] = "1"
    if arguments.transport:
        asked[TRANSPORT_VARIABLE] = arguments.transport
    if arguments.connections is not None:
        asked[CONNECTIONS_VARIABLE] = str(arguments.connections)
    if arguments.link_threads:
        asked[LINK_THREADS_VARIABLE] = "1"
    if arguments.zero_copy:
        asked[ZERO_COPY_VARIABLE] = "1"
    if arguments.reduce_threads is not None:
        asked[REDUCE_THREADS_VARIABLE] = str(arguments.reduce_threads)
    return asked
