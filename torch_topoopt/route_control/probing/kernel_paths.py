"""The paths of connections through an emulated network, from its switches' kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.route_control.probing.route_questions import RouteQuestion, RouteQuestions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.route_control.emulation.names import ClosNames
    from torch_topoopt.route_control.probing.probed_flow import ProbedFlow

    Path = tuple[str, ...]


def kernel_paths(names: ClosNames, flows: Sequence[ProbedFlow]) -> list[Path | None]:
    """The switches on the path of each flow, from ToR to ToR; None for a dead end or a loop. Every
    switch on the way is queried once for all flows that arrive there together."""
    tor_of = {host.name: host.switch for host in names.network.hosts}
    paths: list[list[str]] = [[tor_of[flow.source]] for flow in flows]
    lost: set[int] = set()
    under_way = [i for i, flow in enumerate(flows) if tor_of[flow.target] != paths[i][0]]
    while under_way:
        arrived: dict[str, list[int]] = {}
        for i in under_way:
            arrived.setdefault(paths[i][-1], []).append(i)
        under_way = []
        for switch, here in arrived.items():
            found = _next(names, switch, [(flows[i], paths[i]) for i in here])
            for i, following in zip(here, found, strict=True):
                if following is None or following in paths[i]:
                    lost.add(i)
                    continue
                paths[i].append(following)
                if following != tor_of[flows[i].target]:
                    under_way.append(i)
    return [None if i in lost else tuple(path) for i, path in enumerate(paths)]


def _next(
    names: ClosNames, switch: str, packets: Sequence[tuple[ProbedFlow, list[str]]]
) -> list[str | None]:
    """The next hop of each packet from `switch`, given its flow and the path so far."""
    namespace = names.namespace(switch)
    with netns_kernel.open_route(namespace) as route:
        index = {link.get_attr("IFLA_IFNAME"): link["index"] for link in route.get_links()}
    leads_to = {
        index[names.interface(switch, near)]: near
        for cable in names.network.links
        if switch in cable.ends
        for near in cable.ends
        if near != switch
    }
    questions = [
        RouteQuestion(
            index[names.interface(switch, path[-2] if len(path) > 1 else flow.source)],
            names.host_address(flow.source),
            names.host_address(flow.target),
            flow.protocol,
            flow.source_port,
            flow.target_port,
        )
        for flow, path in packets
    ]
    with RouteQuestions(namespace) as kernel:
        return [
            None if leaves is None else leads_to.get(leaves) for leaves in kernel.ask(questions)
        ]
