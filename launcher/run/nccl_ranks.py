"""`topoopt run --nccl`: ranks with stock NCCL, over the plugin, on the plan's network."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.links.nccl_environment import INTERFACE_VARIABLE, nccl_environment
from torch_topoopt.links.nccl_wiring import LIBRARY, nccl_wiring, ring_order
from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from torch_topoopt.launcher.rendezvous.cluster_site import ClusterSite
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Cluster, Plan

GPUS_VARIABLE = "TOPOOPT_SERVER_GPUS"  # of emulated servers; see processes/rank_main.py
WIRING_FILE = "wiring.nccl"  # in the folder of the run

_CIRCUITS_STAY = "circuits do not move under NCCL"


def add_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--nccl",
        action="store_true",
        help='the script uses backend "nccl", unchanged: stock NCCL runs over the planned links '
        "through its network plugin (docs/guides/nccl.md); needs a GPU for every rank",
    )


def check(arguments: argparse.Namespace, cluster: Cluster, plan: Plan | None) -> None:
    """Raises InputError for options that exclude --nccl."""
    if not arguments.nccl:
        return
    for name, given, why in (
        ("relay", arguments.relay == "kernel", "kernel: NCCL's plugin relays by itself"),
        ("take-over", arguments.take_over, "puts topoopt in NCCL's place, which --nccl keeps"),
        ("transport", arguments.transport not in (None, "tcp"), "NCCL's plugin has links over TCP"),
        ("alltoall", arguments.alltoall == "reconfigure", _CIRCUITS_STAY),
        ("collectives", arguments.collectives == "reconfigure", _CIRCUITS_STAY),
        ("spare-ports", arguments.spare_ports, "NCCL's plugin does not move its links"),
        (
            "plan",
            plan is not None and not plan.is_data_parallel,
            "its strategy is run by groups of topoopt, not of NCCL",
        ),
    ):
        if given:
            raise InputError(f"{name}: {why}; leave out --{name}, or --nccl")
    if cluster.servers * cluster.accelerators_per_server < 2:
        raise InputError("nccl: one rank needs no network; leave out --nccl")


def require(cluster: Cluster, *, emulated: bool) -> None:
    """Raises InputError with everything that this host lacks."""
    import torch
    import torch.distributed as dist

    here = cluster.accelerators_per_server
    missing = []
    if not LIBRARY.exists():
        missing.append(f"the plugin is not built ({LIBRARY})")
    if not dist.is_nccl_available():
        missing.append(f"PyTorch {torch.__version__} is built without NCCL")
    gpus = torch.cuda.device_count()
    if gpus < here:
        found = counted(gpus, "GPU") if gpus else "no GPU"
        whose = "each emulated server" if emulated else "this server"
        missing.append(f"{found} here, for the {counted(here, 'rank')} of {whose}")
    if missing:
        raise InputError(
            f"nccl: {'; '.join(missing)}. NCCL needs a GPU for each rank; without --nccl, backend "
            '"topoopt" trains on CPUs'
        )


def _gpus() -> str:
    """The GPUs of this machine, in the form of CUDA_VISIBLE_DEVICES."""
    import torch

    every = ",".join(map(str, range(torch.cuda.device_count())))
    return os.environ.get("CUDA_VISIBLE_DEVICES") or every


def order_of(plan: Plan) -> tuple[int, ...]:
    """The servers in the order of their ranks; () if that is the order of their numbers."""
    order = ring_order(plan)
    return () if order == tuple(range(len(order))) else order


def variables(
    plan: Plan,
    wiring: Wiring,
    path: Path,
    *,
    encrypt: bool,
    site: ClusterSite | None,
    interface: str | None,
) -> dict[str, str]:
    """Writes the plugin's file to `path`; returns the variables of all ranks of this host."""

    def make() -> str:
        per_server = plan.cluster.accelerators_per_server
        return nccl_wiring(plan, wiring, ranks_per_server=per_server, encrypt=encrypt)

    text = make() if site is None else site.share_text("nccl", make)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    chosen = {name: value for name, value, _ in nccl_environment(os.path.abspath(path))}
    if site is None:
        chosen[GPUS_VARIABLE] = _gpus()
    if interface is not None and not os.environ.get(INTERFACE_VARIABLE):
        chosen[INTERFACE_VARIABLE] = interface
    return chosen
