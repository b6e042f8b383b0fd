"""The two-interface split of Appendix I: a port has two halves, distinguished by MAC address.

The first half, `portP`, has the IP address and receives this server's traffic. The second,
`forwardP`, has only a MAC address. A rule at the port's ingress redirects frames for that MAC to
it. The kernel forwards them along the plan's routes: to the second half of the next relay or, on
the last cable, to the first half of the target. In the paper the first half belongs to the RDMA
engine, which would drop such frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.netns import filters as netns_filters
from torch_topoopt.fabric.netns import kernel as netns_kernel

if TYPE_CHECKING:
    from torch_topoopt.fabric.netns.layout import NetnsLayout
    from torch_topoopt.plan import Link

_FRAME_PRIORITY = 1


def forward_interface(port: int) -> str:
    return f"forward{port}"


def divide(
    route: Any, layout: NetnsLayout, server: int, ports: dict[int, int], mtu: int, classifier: str
) -> None:
    """Gives every port of `server` its second half.

    `ports` maps ports to the indexes of their interfaces, which are up.
    """
    namespace = layout.namespace(server)
    for port, index in ports.items():
        mac = layout.forward_mac(server, port)
        name = forward_interface(port)
        inner = f"{name}-in"  # a frame that enters here comes out of `name`, as if from a wire
        peer = {"ifname": inner, "mtu": mtu}
        route.link("add", ifname=name, kind="veth", address=mac, mtu=mtu, peer=peer)
        (entrance,) = route.link_lookup(ifname=inner)
        for end in (name, inner):
            route.link("set", index=route.link_lookup(ifname=end)[0], state="up")
        route.tc("add", "clsact", index=index)
        rule = netns_filters.Rule(index, entrance, port, _FRAME_PRIORITY, mac)
        netns_filters.add(namespace, rule, classifier)


def name_neighbours(
    route: Any, layout: NetnsLayout, links: list[Link], ports: dict[int, int]
) -> None:
    """Sets on a server the MAC address of the second half at the far end of each of its links."""
    for link in links:
        route.neigh(
            "replace",
            dst=layout.forward_address(link.target, link.target_port),
            lladdr=layout.forward_mac(link.target, link.target_port),
            ifindex=ports[link.source_port],
            state=netns_kernel.NUD_PERMANENT,
        )
