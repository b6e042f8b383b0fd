"""Measurements on emulated hosts (Figures 18 to 21); they need root, and the machine to themselves.

`obstacle` says what is missing where there is no testbed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed import networks, training
from testbed.job import measure, run_ranks
from testbed.workload import Stage, Workload, workload_of

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.launcher.run import link_bytes
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from torch_topoopt.plan import LinkTraffic, Plan

DEPENDS_ON = ("csrc", "torch_topoopt")


def obstacle() -> str:
    """Why there is no testbed on this machine; "": there is one."""
    try:
        netns_kernel.require()
    except FabricError as error:
        return str(error)
    return ""


# parameters: the network of a testbed
def wiring(*, servers: int, degree: int, gbps: float, model: str, seed: int) -> Any:
    """The circuits that the patch panel has made, as found on it, and the rings over them."""
    workload = workload_of(model, servers)
    plan = networks.plan_for(workload, "TopoOpt", degree, gbps)
    with networks.panel(plan, gbps) as found:
        return {
            "circuits": [[str(circuit.ingress), str(circuit.egress)] for circuit in found],
            "cables": [
                [a.source, a.source_port, a.target, a.target_port]
                for a in plan.network.links
                if (a.source, a.source_port) < (a.target, a.target_port)
            ],
            "rings": [list(ring.servers) for group in plan.network.groups for ring in group.rings],
        }


# parameters: the job, its network, and how long it is measured
def iteration(
    *,
    model: str,
    network: str,
    servers: int,
    degree: int,
    gbps: float,
    iterations: int,
    seed: int,
    batch: int | None = None,
    traffic_ratio: float | None = None,
    backends: list[str],
) -> Any:
    """An iteration measured and predicted, for each of the backends."""
    workload = workload_of(model, servers, batch=batch, traffic_ratio=traffic_ratio)
    plan = networks.plan_for(workload, network, degree, gbps)
    rows = {}
    with networks.wired(plan, network, gbps) as testbed:
        for backend in backends:
            job = measure(testbed, workload, backend, iterations)
            rows[backend] = {
                "iteration_s": job.iteration_s,
                "predicted_s": networks.predicted(workload, plan, network, backend, degree, gbps),
                "wrong": job.wrong,
                "busy": job.busy,
                "load": job.load,
                "bytes_apart": _bytes_apart(workload, plan, network, job.links, iterations),
            }
    return {
        "backends": rows,
        "samples": workload.batch,
        "compute_s": workload.compute_s,
        "smaller": workload.smaller,
        "stretched": workload.stretched,
        "traffic_ratio": workload.traffic_ratio,
    }


def _bytes_apart(
    workload: Workload, plan: Plan, network: str, links: list[LinkTraffic], iterations: int
) -> float | None:
    """The largest difference of a link's bytes of an iteration from the planned, relative to the
    mean of all; None where ranks do not count what kernels forward, or a switch shares the links.
    """
    counted = [link.iteration_bytes for link in links]
    if network != "TopoOpt" or workload.exchanged_bytes or not links or None in counted:
        return None
    planned = dict(
        zip(plan.network.links, networks.predicted_bytes(workload, plan).link_bytes, strict=True)
    )
    mean = sum(planned.values()) / len(planned)
    return max(abs((link.iteration_bytes or 0.0) - planned[link.link]) for link in links) / mean


# parameters: the job and its network
def accuracy(
    *, network: str, servers: int, degree: int, gbps: float, steps: int, seed: int, backend: str
) -> Any:
    """The test accuracy over time of a VGG that is trained on digits."""
    size, step_s = training.gradient_bytes(), training.compute_s(servers)
    whole = Workload(
        *("vgg", servers, servers, (Stage("all", step_s / 3, 2 * step_s / 3, size),)),
        *((0.0, 0.0), 0, 1.0, 1.0),
    )
    plan = networks.plan_for(whole, network, degree, gbps)
    load = os.getloadavg()[0]
    with networks.wired(plan, network, gbps) as testbed:
        curves = run_ranks(testbed, backend, lambda rank: training.train(steps, step_s, seed))
        link_bytes.remove(Path(testbed.folder))
    points = curves[0].points
    return {
        "points": points,
        "reached_90_s": curves[0].reached_s(0.9),
        "step_s": points[-1][1] / points[-1][0],
        "predicted_s": networks.predicted(whole, plan, network, backend, degree, gbps),
        "compute_s": step_s,
        "load": load,
    }
