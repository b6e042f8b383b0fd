"""The fabrics that `topoopt run` can wire, and the place of the ranks on each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.launcher import shared_options
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.links.sockets import unsent_bytes_at

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.plan import Plan

FABRICS = ("loopback", "netns")
# Where circuits move, acknowledgements share links with many others, so there are fewer of them.
_MOVED_MTU = 9000


@dataclass(frozen=True)
class Hosts:
    """Namespaces for the ranks. Rank R enters that of server R // `ranks_per_server`, or of that
    entry of `order`, which lists all servers unless it is empty.

    `namespaces` is their path without the server's number; the rendezvous is at `address` of this
    machine, reachable from all of them.
    """

    namespaces: str
    ranks_per_server: int
    address: str
    order: tuple[int, ...] = ()


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--fabric",
        choices=FABRICS,
        default="loopback",
        help="kind of emulated servers: loopback (default), addresses of this machine, no root "
        "needed; "
        "netns: network namespaces with a cable of their own for each link, as root",
    )
    group.add_argument(
        "--relay",
        choices=["user", "kernel"],
        default="user",
        help="who passes on what is for a server without a link: the ranks between, along all "
        "planned routes (default), or the kernels of the hosts, along the heaviest: of netns, or, "
        "as root, of a --cluster with switches",
    )
    shared_options.add(group, "switch-delay")


def check(fabric: str, arguments: argparse.Namespace, file: ClusterFile | None = None) -> None:
    """Raises InputError or FabricError for options of `topoopt run` that the fabric lacks; `file`
    is that of --cluster."""
    if arguments.relay == "kernel" and fabric != "netns":
        _check_forwarding(file)
    if arguments.switch_delay is not None and fabric != "netns":
        raise InputError("switch-delay: the emulated switch is one of --fabric netns")
    if fabric != "netns":
        return
    if arguments.cluster:
        raise InputError("fabric: netns emulates servers; a --cluster has real ones, leave it out")
    from torch_topoopt.fabric.netns import kernel as netns_kernel
    from torch_topoopt.fabric.netns import shaper as netns_shaper

    if arguments.run_path:
        raise InputError("run-path: does not work with --fabric netns; name the script instead")
    for option, given in (
        ("rdzv-endpoint", arguments.rdzv_endpoint),
        ("rdzv-backend", arguments.rdzv_backend if arguments.rdzv_backend != "static" else None),
        ("master-port", arguments.master_port),
        ("local-addr", arguments.local_addr),
    ):
        if given is not None and given != "":
            raise InputError(
                f"{option}: {given} was requested, but on the netns fabric the ranks meet on its "
                "management network; leave it out"
            )
    if arguments.ports == "simplex":
        raise InputError("ports: simplex links cannot be veth pairs; leave it out on netns")
    if arguments.bandwidth is not None:
        netns_shaper.check_rate(arguments.bandwidth)
    netns_kernel.require()


def _check_forwarding(file: ClusterFile | None) -> None:
    """Raises InputError or FabricError if the hosts of a cluster cannot forward for each other."""
    if file is None or not file.switches:
        raise InputError(
            "relay: kernel needs hosts that forward for each other: those of --fabric netns, or of "
            "a --cluster with switches"
        )
    from torch_topoopt.fabric.cluster.host_forwarding import require_rights

    require_rights()


def driver(
    fabric: str,
    gbps: float | None,
    relay: Literal["user", "kernel"],
    switch_delay_s: float | None = None,
    spare_ports: int = 0,
) -> FabricDriver:
    """The driver of a fabric that this process will own; `relay`: the ranks or the hosts.

    With `switch_delay_s` there is a switch between its servers, on which each has `spare_ports`.
    """
    if fabric == "netns":
        from torch_topoopt.fabric.netns.fabric import NetnsFabric
        from torch_topoopt.fabric.netns.options import NetnsOptions

        mtu = _mtu(relay, switch_delay_s)
        options = NetnsOptions(
            gbps=gbps,
            mtu=mtu,
            relay=relay,
            switch_delay_s=switch_delay_s,
            spare_ports=spare_ports,
        )
        return NetnsFabric(f"run-{os.getpid()}", options)
    from torch_topoopt.fabric.loopback import LoopbackFabric

    return LoopbackFabric(job=os.getpid(), gbps=gbps)


def payload_share(fabric: str, relay: str, switch_delay_s: float | None) -> float:
    """The part of an emulated link's rate for payload if both directions are busy."""
    if fabric != "netns":
        return 1.0  # the limit of a socket does not count headers
    from torch_topoopt.fabric.netns import shaper as netns_shaper

    return netns_shaper.paced_share(_mtu(relay, switch_delay_s))


def burst_bytes(fabric: str, gbps: float | None) -> float:
    """The bytes that an emulated link of that rate carries at once after a pause.

    Linux paces a socket from the second write on, whose delay a pause halves.
    """
    if fabric != "loopback" or gbps is None:
        return 0.0
    return 1.5 * unsent_bytes_at(gbps)


def _mtu(relay: str, switch_delay_s: float | None) -> int:
    from torch_topoopt.fabric.netns.options import DEFAULT_OPTIONS

    moves = relay == "kernel" and switch_delay_s is not None
    return _MOVED_MTU if moves else DEFAULT_OPTIONS.mtu


def hosts(wired: FabricDriver, plan: Plan) -> Hosts | None:
    """The namespaces of the ranks once `plan` is wired; None: the ranks need no namespace."""
    if wired.name != "netns":
        return None
    from torch_topoopt.fabric.netns import kernel as netns_kernel
    from torch_topoopt.fabric.netns.fabric import NetnsFabric

    assert isinstance(wired, NetnsFabric)
    return Hosts(
        netns_kernel.path_of(wired.layout.namespace(0)).removesuffix("0"),
        plan.cluster.accelerators_per_server,
        wired.management_address,
    )
