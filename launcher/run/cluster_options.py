"""The options of `topoopt run --cluster`: this host's server in the file, and the leading one."""

from __future__ import annotations

import math
import os
import socket
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import shared_options
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice, servers_here

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

DEFAULT_MASTER_PORT = 29500  # torchrun's


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--cluster",
        metavar="CLUSTER.yaml",
        help="train on the machines and cables of this file (see `topoopt discover`); run the same "
        "command on every host, node rank I being server I of the file (default: the one whose "
        "management address this host has)",
    )
    group.add_argument(
        "--meet-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="with --cluster: time limit for the other hosts (seconds, default: %(default)g)",
    )


def choose(
    arguments: argparse.Namespace, file: ClusterFile
) -> tuple[ClusterChoice, int | None, dict[str, Any]]:
    """This host in the file of --cluster, the MIN of --nnodes MIN:MAX (None: no such range), and
    the values of torchrun's options that follow.

    Raises InputError: an option that contradicts the file, or no such server.
    """
    _refuse_others(arguments)
    count = len(file.servers)
    said = "PET_NNODES" in os.environ or arguments.nnodes != "1:1"
    least, colon, most = arguments.nnodes.partition(":")
    if said and (most if colon else least) != str(count):
        raise InputError(
            f"nnodes: {arguments.nnodes} is not {count}, the number of servers in "
            f"{arguments.cluster}"
        )
    if said and not (least.isdecimal() and 1 <= int(least) <= count):
        raise InputError(f"nnodes: {arguments.nnodes}: MIN is not in 1..{count}")
    accelerators = file.servers[0].accelerators
    if arguments.nproc_per_node not in (None, str(accelerators)):
        raise InputError(
            f"nproc-per-node: {arguments.nproc_per_node} is not {accelerators}, the accelerators "
            f"of each server in {arguments.cluster}; leave it out"
        )
    if not arguments.meet_timeout > 0:
        raise InputError(f"meet-timeout: {arguments.meet_timeout:g} is not greater than 0")
    server = _server_number(arguments, file)
    address, port = _master(arguments, file)
    least_servers = int(least) if said and colon else None
    choice = ClusterChoice(
        *(file, arguments.cluster, server, address, port, arguments.meet_timeout),
        least=least_servers,
        last_call_s=_last_call_s(arguments),
    )
    local = arguments.local_addr
    torchrun = {
        "nnodes": str(count),
        "node_rank": server,
        "nproc_per_node": str(accelerators),
        "rdzv_backend": "static",
        "rdzv_endpoint": "",
        "master_addr": address,
        "master_port": port,
        "local_addr": file.servers[server].management if local is None else local,
    }
    return choice, least_servers, torchrun


def _last_call_s(arguments: argparse.Namespace) -> float:
    """torchrun's time for more hosts to come once MIN are there: --rdzv-conf last_call_timeout."""
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config

    try:
        text = _parse_rendezvous_config(arguments.rdzv_conf).get("last_call_timeout", "30")
        seconds = float(text)
    except ValueError as error:
        raise InputError(f"rdzv-conf: {arguments.rdzv_conf!r}: {error}") from None
    if not 0 <= seconds < math.inf:
        raise InputError(f"rdzv-conf: last_call_timeout={text} is not a number from 0 on")
    return seconds


def _refuse_others(arguments: argparse.Namespace) -> None:
    shared_options.refuse_beside_cluster_file(arguments)
    if arguments.standalone:
        raise InputError("standalone: a cluster has several hosts; leave --standalone out")
    if arguments.rdzv_backend not in ("static", "c10d"):
        raise InputError(
            f"rdzv-backend: {arguments.rdzv_backend!r}: the hosts of a cluster file meet at server "
            "0, with --rdzv-endpoint or --master-addr and --master-port"
        )


def _server_number(arguments: argparse.Namespace, file: ClusterFile) -> int:
    count = len(file.servers)
    if arguments.node_rank is not None:
        if not 0 <= arguments.node_rank < count:
            raise InputError(
                f"node-rank: {arguments.node_rank} is not in 0..{count - 1}, the servers of "
                f"{arguments.cluster}"
            )
        return int(arguments.node_rank)
    own = servers_here(file)
    if len(own) == 1:
        return own[0]
    if own:
        names = ", ".join(file.servers[i].name for i in own)
        raise InputError(
            f"node-rank: missing; {names} have this host's management address: say which"
        )
    managements = ", ".join(f"{server.name} {server.management}" for server in file.servers)
    raise InputError(
        f"node-rank: missing, and this host ({socket.gethostname()}) has none of the management "
        f"addresses in {arguments.cluster} ({managements})"
    )


def _master(arguments: argparse.Namespace, file: ClusterFile) -> tuple[str, int]:
    """The address of server 0's store: from the options, or its management address."""
    address, port = arguments.master_addr, arguments.master_port
    if arguments.rdzv_endpoint:
        if address is not None or port is not None:
            raise InputError("rdzv-endpoint: excludes --master-addr and --master-port")
        address, _, text = arguments.rdzv_endpoint.rpartition(":")
        if not address:
            address, text = text, str(DEFAULT_MASTER_PORT)
        if not text.isdecimal():
            raise InputError(
                f"rdzv-endpoint: {arguments.rdzv_endpoint!r} is not host:port, such as "
                f"{file.servers[0].management}:{DEFAULT_MASTER_PORT}"
            )
        port = int(text)
    port = DEFAULT_MASTER_PORT if port is None else port
    if not 1 <= port <= 65535:
        raise InputError(f"master-port: {port} is not in 1..65535")
    return address or file.servers[0].management, port
