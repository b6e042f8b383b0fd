"""Adaptive routing of a Topology: which links a packet may take next, on which virtual channel.

At every node, packets choose among the links of all shortest paths that the rule allows. The rule
is the topology's own (`Topology.channel_rule`), none (all shortest paths on one channel), or one
more channel at every hop. The last is free of deadlocks on any network; it needs as many channels
as the longest path has links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt import _core
from torch_topoopt.architectures.topology import ChannelRule

if TYPE_CHECKING:
    from torch_topoopt.architectures.topology import Topology

ANY_PATH = ChannelRule()


def adaptive_routing(topology: Topology, rule: ChannelRule | None = None) -> _core.AdaptiveRouting:
    """The routing of packets on `topology` by `rule`, by default its own, or else `ANY_PATH`.

    Raises ValueError for a rule with links that do not exist, or a number of channels that is not
    in 1..255.
    """
    chosen = rule or topology.channel_rule or ANY_PATH
    return _core.AdaptiveRouting(
        topology.nodes,
        [(link.source, link.target) for link in topology.links],
        chosen.channels,
        chosen.raises,
        chosen.last,
        chosen.lifts,
        chosen.detours,
    )


def every_hop_rule(topology: Topology) -> ChannelRule:
    """One more channel at every hop (HammingMesh paper, section IV-C, its simple solution)."""
    plain = adaptive_routing(topology, ANY_PATH)
    longest = max(max(plain.hops(target)) for target in range(topology.servers))
    return ChannelRule(channels=longest + 1, raises=tuple(range(len(topology.links))))
