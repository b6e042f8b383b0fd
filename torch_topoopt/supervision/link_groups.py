"""Groups similar links of a running job, so that 512 links fit in a few lines."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.plan.units import format_gbps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.supervision.statuses import LinkRate

FEW = 16  # up to this many links or groups are shown one by one


@dataclass(frozen=True)
class LinkNow:
    """The current state of a link, by its sender; `planned_gbps` is None without a plan.

    `path` are the switches that a route controller assigned; none where ECMP chooses. It is None
    without a controller.
    """

    JSON_FIELDS: ClassVar = (
        "rank", "rate.link.source", "rate.link.source_port", "rate.link.target",
        "rate.link.target_port", "rate.gbps", "planned_gbps", "rate.busy", "state",
        "path",
    )  # fmt: skip

    rate: LinkRate
    rank: int
    planned_gbps: float | None
    path: tuple[str, ...] | None = None

    @property
    def state(self) -> str:
        """ "up", "degraded" or "down"."""
        return self.rate.state(self.planned_gbps)

    @property
    def name(self) -> str:
        """As "0.1 -> 3.0": server and port."""
        link = self.rate.link
        return f"{link.source}.{link.source_port} -> {link.target}.{link.target_port}"


@dataclass(frozen=True)
class LinkGroup:
    """Similar links, with rates in Gb/s; a group of one link has the link's name."""

    JSON_FIELDS: ClassVar = (
        "name", "state", "planned_gbps", "least_gbps", "median_gbps", "most_gbps", "busy",
        "relayed_bytes",
    )  # fmt: skip

    name: str
    state: str
    planned_gbps: float | None
    links: tuple[LinkNow, ...]

    @property
    def least_gbps(self) -> float:
        return min(link.rate.gbps for link in self.links)

    @property
    def median_gbps(self) -> float:
        return statistics.median(link.rate.gbps for link in self.links)

    @property
    def most_gbps(self) -> float:
        return max(link.rate.gbps for link in self.links)

    @property
    def busy(self) -> float:
        """The mean fraction of time in which the links had data to send."""
        return statistics.fmean(link.rate.busy for link in self.links)

    @property
    def relayed_bytes(self) -> int:
        return sum(link.rate.relayed_bytes for link in self.links)

    @property
    def used(self) -> float | None:
        """The median rate as a fraction of the planned one."""
        return self.median_gbps / self.planned_gbps if self.planned_gbps else None


def group_links(links: Sequence[LinkNow], servers: int) -> list[LinkGroup]:
    """Links that need attention come first, one by one; many others are grouped by stride.

    A link's stride is target minus source modulo the number of servers. Links of one group have one
    planned rate. If there are too many strides, all links of one planned rate are a group.
    """
    bad = [link for link in links if link.state != "up"]
    bad.sort(key=lambda link: (link.state != "down", link.rate.gbps))
    good = [link for link in links if link.state == "up"]
    groups = [_alone(link) for link in bad[:FEW]]
    if rest := bad[FEW:]:
        for state in ("down", "degraded"):
            more = tuple(link for link in rest if link.state == state)
            if more:
                groups.append(LinkGroup(f"{len(more)} more", state, None, more))
    if len(good) <= FEW:
        return groups + [_alone(link) for link in good]
    by_stride: dict[tuple[int, float | None], list[LinkNow]] = {}
    for link in good:
        stride = (link.rate.link.target - link.rate.link.source) % max(servers, 1)
        by_stride.setdefault((stride, link.planned_gbps), []).append(link)
    if len(by_stride) <= FEW:
        return groups + [
            LinkGroup(f"+{stride}: {len(alike)} links", "up", planned, tuple(alike))
            for (stride, planned), alike in sorted(by_stride.items(), key=lambda item: item[0][0])
        ]
    by_rate: dict[float | None, list[LinkNow]] = {}
    for link in good:
        by_rate.setdefault(link.planned_gbps, []).append(link)
    for planned, alike in by_rate.items():
        of = "" if planned is None else f" of {format_gbps(planned)}"
        groups.append(LinkGroup(f"{len(alike)} links{of}", "up", planned, tuple(alike)))
    return groups


def _alone(link: LinkNow) -> LinkGroup:
    return LinkGroup(link.name, link.state, link.planned_gbps, (link,))
