"""The planned links of a host as flows for the controller."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Link, Plan


@dataclass(frozen=True)
class LinkFlow:
    """A link that this host connects, between two addresses. Its `id` is the same in every report
    of the job.

    `planned_bytes` and `period_s` are bytes and time of an iteration; None without a prediction. On
    a duplex cluster, whose connections carry both directions, bytes are those of the larger one.
    """

    id: str
    link: Link
    source_address: str
    target_address: str
    planned_bytes: int | None
    period_s: float | None = None


def job_name(wiring: Wiring, *parts: object) -> str:
    """The id of a job, equal on all its hosts: a digest of its plan, its listening addresses, and
    `parts`."""
    ports = sorted((port.address, wiring.tcp_port_of(port)) for port in wiring.ports)
    text = repr((wiring.plan_digest, ports, *parts))
    return f"job-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def link_flows(job: str, plan: Plan, wiring: Wiring, links: Iterable[Link]) -> list[LinkFlow]:
    """The `links` between different addresses."""
    addresses = wiring.by_port()
    planned = _planned_bytes(plan)
    period_s = plan.prediction.iteration_s if plan.predicts_time else None
    flows = []
    for link in links:
        source = addresses[link.source, link.source_port].address
        target = addresses[link.target, link.target_port].address
        size_bytes: int | None = None
        if planned:
            size_bytes = planned[link]
            if plan.cluster.ports == "duplex":
                size_bytes = max(size_bytes, planned.get(link.reverse, 0))
        ends = f"{link.source}.{link.source_port}-{link.target}.{link.target_port}"
        flows.append(LinkFlow(f"{job}/{ends}", link, source, target, size_bytes, period_s))
    return flows


def _planned_bytes(plan: Plan) -> dict[Link, int]:
    """Per link in an iteration; empty without a prediction."""
    sizes = plan.prediction.link_bytes
    if not plan.predicts_bytes or len(sizes) != len(plan.network.links):
        return {}
    return dict(zip(plan.network.links, sizes, strict=True))
