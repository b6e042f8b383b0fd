"""The servers of groups of accelerators."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.search.layouts.links import RankGroup


def server_sets(group: RankGroup, ranks: range, box: int) -> Counter[tuple[int, ...]]:
    """The servers of each group of this kind among `ranks`, on boxes of `box` accelerators, and the
    number of groups with these servers. Groups inside a box are left out."""
    first, found = ranks.start, Counter[tuple[int, ...]]()
    tile = group.ranks * group.stride
    # A group of experts that does not tile the accelerators has consecutive ones.
    stride = group.stride if len(ranks) % tile == 0 else 1
    span = group.ranks * stride
    for begin in range(first, first + len(ranks) - span + 1, span):
        for offset in range(stride):
            members = range(begin + offset, begin + span, stride)
            servers = tuple(dict.fromkeys(rank // box for rank in members))
            if len(servers) > 1:
                found[servers] += 1
    return found
