"""What the network plugin for NCCL reads in place of a Plan and its Wiring.

It has no Python and no reader of documents, so its text is lines of words (csrc/nccl/wiring.h says
which).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.fabric.links import connections
from torch_topoopt.fabric.rank_layout import RankLayout, rank_routes
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from torch_topoopt.fabric.wiring import Wiring
    from torch_topoopt.plan import Plan

LIBRARY = Path(__file__).parent.parent / "lib" / "libnccl-net-topoopt.so"
MAX_RANKS = 1024

_TOKEN_BYTES = 32


def nccl_wiring(plan: Plan, wiring: Wiring) -> str:
    """The text for one job with one rank on every server; every call makes another job.

    Raises:
        DocumentError: the wiring is not of this plan, its hosts forward for each other (the plugin
            relays by itself), or there are more servers than the plugin takes.
    """
    wiring.check(plan)
    servers = plan.cluster.servers
    if wiring.forwarded:
        raise DocumentError(
            "forwarded: must be empty, for NCCL's plugin relays by itself; wire without forwarding"
        )
    if not 2 <= servers <= MAX_RANKS:
        raise DocumentError(f"cluster.servers: {servers} is not in 2..{MAX_RANKS}")
    asked, said = (secrets.token_hex(_TOKEN_BYTES) for _ in range(2))
    lines = ["topoopt-nccl-wiring 1", f"job {asked} {said}", f"ranks {servers}"]
    ports, rates = wiring.by_port(), wiring.planned_rates(plan)
    for link in connections(plan):
        near = ports[link.source, link.source_port]
        far = ports[link.target, link.target_port]
        lines.append(
            f"cable {link.source} {link.source_port} {link.target} {link.target_port} "
            f"{plan.cluster.ports} {rates.get(link, 0):g} "
            f"{near.address} {far.address} {wiring.tcp_port_of(far)} "
            f"{near.gbps or 0:g} {far.gbps or 0:g}"
        )
    layout = RankLayout.even(servers, servers)
    for rank in range(servers):
        lines += [
            f"route {route.weight!r} {' '.join(map(str, route.servers))}"
            for route in rank_routes(plan.network, layout, rank)
            if route.servers[0] == rank
        ]
    return "\n".join([*lines, ""])


def write_nccl_wiring(path: Path, plan: Plan, wiring: Wiring) -> None:
    """Writes nccl_wiring() where only its owner can read it, for it has what the job's ranks say to
    each other; raises OSError if it cannot."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(nccl_wiring(plan, wiring))
