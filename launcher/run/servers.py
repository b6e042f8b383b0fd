"""The servers of a run: emulated on this machine, or the machines of a cluster file."""

from __future__ import annotations

import argparse
import errno
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import documents, parser, shared_options
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import cluster_options, elastic_options
from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice
    from torch_topoopt.plan import Cluster, Plan


@dataclass(frozen=True)
class RunServers:
    """`site` is None for emulated servers. After a failure the job continues with at least `least`
    servers (None: with all). `first` emulated servers are there at the start (None: all); others
    may come. `gbps` limits each link (None: no limit). `torchrun` has the values of
    torchrun's options."""

    cluster: Cluster
    site: ClusterChoice | None
    least: int | None
    gbps: float | None
    torchrun: Mapping[str, Any]
    first: int | None = None


def emulated(arguments: argparse.Namespace, plan: Plan | None) -> RunServers:
    """Emulated servers, whose ranks are all processes of this machine; raises InputError."""
    nodes = elastic_options.node_range(arguments, plan)
    if plan is not None:
        _check_plan(arguments, plan)
        cluster = plan.cluster
    elif nodes is not None:
        cluster = described_cluster(arguments, nodes[1])
    else:
        cluster = described_cluster(arguments, _requested_servers(arguments))
    processes = cluster.servers * cluster.accelerators_per_server
    if arguments.nproc_per_node not in (None, str(processes)):
        raise InputError(
            f"nproc-per-node: {arguments.nproc_per_node} contradicts {cluster.servers} servers "
            f"with {cluster.accelerators_per_server} rank(s) each; on the "
            f"{arguments.fabric} fabric all {processes} are processes of this machine, so leave it "
            "out"
        )
    if arguments.run_path and arguments.accelerators_per_server is not None:
        raise InputError(
            "accelerators-per-server: does not work with --run-path; name the script instead"
        )
    address = "127.0.0.1" if arguments.master_addr is None else arguments.master_addr
    _check_master_port(arguments, address)
    torchrun = {
        "nnodes": arguments.nnodes if nodes is None else "1:1",  # this machine
        "node_rank": arguments.node_rank or 0,
        "nproc_per_node": str(processes),
        "master_addr": address,
    }
    gbps = arguments.bandwidth if plan is None else cluster.link_gbps
    if nodes is None:
        return RunServers(cluster, None, None, gbps, torchrun)
    return RunServers(cluster, None, nodes[0], gbps, torchrun, arguments.servers)


def _check_master_port(arguments: argparse.Namespace, address: str) -> None:
    """Checks before profiling, not when ranks start, that the address can be listened at."""
    if arguments.standalone or arguments.rdzv_backend != "static" or arguments.rdzv_endpoint:
        return
    port = arguments.master_port or 0
    if not 0 <= port <= 65535:
        raise InputError(f"master-port: {port} is not in 0..65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except socket.gaierror as error:
            raise InputError(f"master-addr: {address!r}: {error.strerror}") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InputError(
                    f"master-addr: {address} is not an address of this machine, on which all ranks "
                    "run; leave it out"
                ) from None
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    f"master-port: {port} is in use; choose another, or leave it out for a free one"
                ) from None
            raise InputError(f"master-port: {port}: {error.strerror}") from None


def of_file(arguments: argparse.Namespace, file: ClusterFile, plan: Plan | None) -> RunServers:
    """The machines of a cluster file, this one among them; raises InputError, FabricError."""
    choice, least, torchrun = cluster_options.choose(arguments, file)
    return RunServers(_cluster_of_cables(arguments, file, plan), choice, least, None, torchrun)


def _cluster_of_cables(
    arguments: argparse.Namespace, file: ClusterFile, plan: Plan | None
) -> Cluster:
    from torch_topoopt.fabric.cluster.static_plan import cluster_of, place
    from torch_topoopt.fabric.cluster.switched_plan import cluster_on_switches, place_on_switches

    cluster = replace(
        cluster_on_switches(file) if file.switches else cluster_of(file),
        accelerator=_accelerator(arguments),
    )
    if plan is None:
        return cluster
    if file.switches:
        place_on_switches(plan, file)
    else:
        place(plan, file)
    if plan.cluster.accelerators_per_server != cluster.accelerators_per_server:
        raise InputError(
            f"plan: {arguments.plan} is for {plan.cluster.accelerators_per_server} accelerator(s) "
            f"on each server, {arguments.cluster} has {cluster.accelerators_per_server}"
        )
    _check_model(arguments)
    return plan.cluster


def _requested_servers(arguments: argparse.Namespace) -> int | None:
    """By --servers, or by torchrun's --nproc-per-node."""
    text = arguments.nproc_per_node
    if arguments.servers is not None or text is None or not text.isdecimal():
        servers: int | None = arguments.servers
        return servers
    per_server = shared_options.accelerators_of(arguments)
    if int(text) % per_server:
        raise InputError(
            f"nproc-per-node: {text} is not a multiple of {per_server} accelerators per server"
        )
    return int(text) // per_server


def described_cluster(arguments: argparse.Namespace, servers: int | None) -> Cluster:
    """The cluster that --degree, --bandwidth and the like describe; raises InputError."""
    if servers is None:
        parser.refuse_after_script(
            arguments.training_script,
            arguments.training_script_args,
            "--servers",
            "--cluster",
            "--plan",
            "--nproc-per-node",
        )
    described = argparse.Namespace(**{**vars(arguments), "servers": servers})
    return shared_options.cluster_of(described, _accelerator(arguments))


def _accelerator(arguments: argparse.Namespace) -> str:
    name = arguments.accelerator or shared_options.EMULATED_ACCELERATOR
    parser.check_accelerator(name)
    return str(name)


def _check_plan(arguments: argparse.Namespace, plan: Plan) -> None:
    """Raises InputError for an option that contradicts the plan."""
    cluster = plan.cluster
    per_server = cluster.accelerators_per_server
    documents.check_one_rate(plan, arguments.plan)
    for option, value, planned in (
        ("servers", arguments.servers, cluster.servers),
        ("degree", arguments.degree, cluster.degree),
        ("bandwidth", arguments.bandwidth, cluster.link_gbps),
        ("ports", arguments.ports, cluster.ports),
        ("accelerators-per-server", arguments.accelerators_per_server, per_server),
        ("accelerator", arguments.accelerator, cluster.accelerator),
    ):
        if value is not None and value != planned:
            requested, made_for = (
                format_gbps(float(v)) if option == "bandwidth" else str(v) for v in (value, planned)
            )
            raise InputError(
                f"{option}: {requested} was requested, but {arguments.plan} is a plan for "
                f"{made_for}; leave --{option} out or make another plan"
            )
    _check_model(arguments)


def _check_model(arguments: argparse.Namespace) -> None:
    if arguments.model:
        raise InputError("model: --model and --plan exclude each other; the plan has its model")
