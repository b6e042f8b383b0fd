"""The connection of a job's links to the controller of a switched network, if there is one."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING

from torch_topoopt.links.sockets import connections
from torch_topoopt.plan import BYTES_PER_GBPS
from torch_topoopt.route_control.host.link_flows import job_name, link_flows
from torch_topoopt.route_control.host.settings import controller_settings
from torch_topoopt.runtime import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from torch_topoopt.links.cable_keeper import CableKeeper
    from torch_topoopt.links.rank_links import JobNetwork
    from torch_topoopt.plan import Link
    from torch_topoopt.route_control.host.agent import RouteAgent
    from torch_topoopt.runtime.job_network import Place

_NAMES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


def started_agent(network: JobNetwork, place: Place, life: int) -> RouteAgent | None:
    """The agent of this rank's server, with the source ports of its links if the controller has
    assigned them in time; None without a controller, or for a rank without links.

    Raises FabricError for invalid settings in the environment.
    """
    settings = controller_settings(os.environ)
    if settings is None or not network.layout.is_leader(place.index):
        return None
    server = network.layout.server_of[place.index]
    links = [link for link in connections(network.plan) if link.source == server]
    if not links:
        return None
    from torch_topoopt.route_control.host.agent import RouteAgent  # importing httpx is slow

    job = job_name(
        network.wiring, place.ranks, life, *(os.environ.get(name, "") for name in _NAMES)
    )
    flows = link_flows(job, network.plan, network.wiring, links)
    agent = RouteAgent(settings, job, server, flows, _note(server))
    agent.start()
    return agent


def _note(server: int) -> Any:
    def note(what: str, **values: Any) -> None:
        with contextlib.suppress(OSError):  # a log failure must not end the job
            metrics.log_event("route", server=server, what=what, **values)

    return note


@contextlib.contextmanager
def closed_on_failure(agent: RouteAgent | None) -> Iterator[None]:
    """Ends the flows reported by `agent` if the body raises."""
    try:
        yield
    except BaseException:
        if agent is not None:
            agent.close()
        raise


def follow(
    agent: RouteAgent | None, network: JobNetwork, session: Any, keeper: CableKeeper | None
) -> None:
    """Lets the agent move the open links. It keeps no reference to session or keeper."""
    if agent is None or keeper is None:
        return
    from torch_topoopt.route_control.host.agent import Connections

    known, keeping, ports = weakref.ref(session), weakref.ref(keeper), network.wiring.by_port()
    numbers = {link: number for number, link in enumerate(connections(network.plan))}

    def move(link: Link) -> None:
        if (keeper := keeping()) is not None:
            keeper.move(link)

    def limit(link: Link, gbps: float | None) -> None:
        rates = [r for r in (gbps, ports[link.source, link.source_port].gbps) if r is not None]
        if (session := known()) is not None:
            rate = int(min(rates) * BYTES_PER_GBPS) if rates else None
            session.limit_cable(numbers[link], rate)

    def sent_bytes() -> Mapping[Link, int]:
        session = known()
        traffic = [] if session is None else session.link_traffic()
        return {of_link.link: of_link.sent_bytes for of_link in traffic}

    agent.follow(Connections(move, limit, sent_bytes))
