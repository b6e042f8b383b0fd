"""The paper's schedules at any degree: rounds with barriers, topologies by contraction.

"To Reconfigure or Not to Reconfigure", sections 4.2 and 4.3. Each flow uses the topology with the
fewest hops. Flows are packed into rounds, the longest first, each into the first round in which no
link is used twice in the same hop. So short flows fill the gaps of long rounds (the paper's
opportunistic merging). A further topology directly joins the ends of the flows of one round: of the
longest rounds, the fullest. It never adds slots.

Two bases: on circulants, server 0's flows are packed for all (strides m and m + 1, with the least
diameter of two strides); on generalised Kautz graphs, every server's are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.circulants import stride_uses
from torch_topoopt.reconfiguration.all_to_all.kautz_links import kautz_links
from torch_topoopt.reconfiguration.all_to_all.link_routes import balanced_routes
from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule, circulant_links
from torch_topoopt.reconfiguration.all_to_all.stride_sets import StrideSets, distances

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

Flow = tuple[int, int]  # source and target
Path = tuple[int, ...]  # of links, sender x k + port; on circulants of ports alone
PathRound = list[tuple[Flow, Path]]  # flows that leave together; the first has the most hops


def paper_schedules(servers: int, degree: int, base: str) -> Iterator[AllToAllSchedule]:
    """Schedules of 1, 2, ... topologies, until every flow has one hop; `base` is "circulant" or
    "kautz"."""
    kind: _Circulants | _Tables = _Tables(servers, degree)
    if base == "circulant":
        kind = _Circulants(servers, degree)
    topologies = [kind.first()]
    paths = [kind.paths(topologies[0])]
    rounds: list[list[PathRound]] | None = None
    while True:
        joint = _packed(paths, kind.width, degree)
        if rounds is None or _slots(joint) < _slots(rounds):
            rounds = joint
        yield kind.schedule(topologies, rounds)
        i, j = max(
            ((i, j) for i, packed in enumerate(rounds) for j in range(len(packed))),
            key=lambda at: (len(rounds[at[0]][at[1]][0][1]), len(rounds[at[0]][at[1]])),
        )
        if len(rounds[i][j][0][1]) == 1:
            return
        direct, others = _joined(rounds[i].pop(j), degree)
        packing = _Packing(kind.width, degree, rounds[i])
        for flow, path in others:
            packing.add(flow, [path])
        rounds[i] = packing.rounds
        topologies.append(kind.contracted([flow for flow, _ in direct]))
        paths.append(kind.paths(topologies[-1]))
        rounds.append([[(flow, paths[-1][flow][0]) for flow, _ in direct]])


def _joined(together: PathRound, degree: int) -> tuple[PathRound, PathRound]:
    """Flows of a round whose ends can be joined directly, and the others.

    All with the most hops can: they end on different links. Shorter ones may end on links that
    these use later, and then a server has no free port for them.
    """
    direct: PathRound = []
    others: PathRound = []
    received: Counter[int] = Counter()
    for flow, path in together:
        if received[flow[1]] < degree:
            received[flow[1]] += 1
            direct.append((flow, path))
        else:
            others.append((flow, path))
    return direct, others


def _slots(rounds: Sequence[Sequence[PathRound]]) -> int:
    return sum(len(packed[0][1]) for topology in rounds for packed in topology)


def _packed(
    paths: Sequence[Mapping[Flow, Sequence[Path]]], width: int, degree: int
) -> list[list[PathRound]]:
    """Per topology its rounds; a flow is on the first topology with its fewest hops."""
    mine: list[list[tuple[Flow, Sequence[Path]]]] = [[] for _ in paths]
    for flow in sorted({flow for reached in paths for flow in reached}):
        ways = [reached.get(flow) for reached in paths]
        best = min((len(way[0]), i) for i, way in enumerate(ways) if way)[1]
        mine[best].append((flow, paths[best][flow]))
    packings = []
    for flows in mine:
        packing = _Packing(width, degree)
        for flow, ways_of_flow in sorted(flows, key=lambda item: -len(item[1][0])):
            packing.add(flow, ways_of_flow)
        packings.append(packing.rounds)
    return packings


class _Packing:
    """The rounds of one topology, while they are being filled."""

    def __init__(self, width: int, degree: int, rounds: Sequence[PathRound] = ()) -> None:
        self._width = width
        self._degree = degree
        self.rounds = [list(together) for together in rounds]
        self._used = [self._mask(p for _, p in together) for together in self.rounds]
        self._full: dict[int, int] = {}  # by source: leading rounds that use all its ports

    def add(self, flow: Flow, ways: Sequence[Path]) -> None:
        """Puts the flow into the first round that is long enough and has its links free."""
        first = self._full.get(flow[0], 0)
        while first < len(self.rounds) and self._starts(first, flow[0]) == self._degree:
            first += 1
        self._full[flow[0]] = first
        masks = [self._mask([way]) for way in ways]
        for i in range(first, len(self.rounds)):
            if len(self.rounds[i][0][1]) < len(ways[0]):
                continue
            for way, mask in zip(ways, masks, strict=True):
                if not mask & self._used[i]:
                    self.rounds[i].append((flow, way))
                    self._used[i] |= mask
                    return
        self.rounds.append([(flow, ways[0])])
        self._used.append(masks[0])

    def _mask(self, paths: Iterable[Path]) -> int:
        """A bit for each link in each hop."""
        width = self._width
        return sum(1 << (hop * width + link) for path in paths for hop, link in enumerate(path))

    def _starts(self, i: int, source: int) -> int:
        """Ports of the source that are in use in the first hop of round i."""
        base = source * self._degree if self._width > self._degree else 0
        return (self._used[i] >> base & ((1 << self._degree) - 1)).bit_count()


@dataclass(frozen=True)
class _Circulants:
    """Server 0's flows; a path is its ports, and any order of them is a path, too."""

    servers: int
    degree: int

    @property
    def width(self) -> int:
        return self.degree

    def first(self) -> NDArray[np.int32]:
        n, k = self.servers, self.degree
        if k == 2 and n > 3:
            low = max(1, ceil((sqrt(2 * n - 1) - 1) / 2))
            return self._links((low, low + 1))
        return self._links(StrideSets(n).greedy(min(k, n - 1)))

    def paths(self, links: NDArray[np.int32]) -> Mapping[Flow, Sequence[Path]]:
        strides = [int(stride) for stride in links[0] if stride]
        hops = distances(self.servers, strides)
        uses = stride_uses(hops, strides)
        found = {}
        for v in np.flatnonzero(hops < 4 * self.servers)[1:].tolist():
            ports = [(port, int(count)) for port, count in enumerate(uses[v]) if count]
            turns = (ports[i:] + ports[:i] for i in range(len(ports)))
            found[0, v] = [tuple(p for p, count in turn for _ in range(count)) for turn in turns]
        return found

    def contracted(self, flows: Sequence[Flow]) -> NDArray[np.int32]:
        return self._links([target for _, target in flows])

    def schedule(
        self, topologies: Sequence[NDArray[np.int32]], rounds: Sequence[Sequence[PathRound]]
    ) -> AllToAllSchedule:
        return _schedule(np.stack(topologies), rounds, ports_only=True)

    def _links(self, strides: Sequence[int]) -> NDArray[np.int32]:
        padded = [*strides, *[0] * (self.degree - len(strides))]
        links: NDArray[np.int32] = circulant_links(self.servers, [padded])[0]
        return links


@dataclass(frozen=True)
class _Tables:
    """Every server's flows, on topologies of any shape."""

    servers: int
    degree: int

    @property
    def width(self) -> int:
        return self.servers * self.degree

    def first(self) -> NDArray[np.int32]:
        return kautz_links(self.servers, self.degree)

    def paths(self, links: NDArray[np.int32]) -> Mapping[Flow, Sequence[Path]]:
        routes = balanced_routes(links, passes=1, partial=True)
        sources, targets, taken = routes.paths()
        hops = (taken >= 0).sum(axis=1).tolist()
        pairs = zip(sources.tolist(), targets.tolist(), taken.tolist(), hops, strict=True)
        return {(s, t): [tuple(reversed(path[:count]))] for s, t, path, count in pairs}

    def contracted(self, flows: Sequence[Flow]) -> NDArray[np.int32]:
        links = np.repeat(np.arange(self.servers, dtype=np.int32)[:, None], self.degree, axis=1)
        port = [0] * self.servers
        for source, target in flows:
            links[source, port[source]] = target
            port[source] += 1
        return links

    def schedule(
        self, topologies: Sequence[NDArray[np.int32]], rounds: Sequence[Sequence[PathRound]]
    ) -> AllToAllSchedule:
        return _schedule(np.stack(topologies), rounds, ports_only=False)


def _schedule(
    links: NDArray[np.int32], rounds: Sequence[Sequence[PathRound]], *, ports_only: bool
) -> AllToAllSchedule:
    rows = []
    slot = 0
    degree = links.shape[2]
    for topology, packed in enumerate(rounds):
        for together in packed:
            for (source, target), path in together:
                at = source
                for hop, link in enumerate(path):
                    port = link if ports_only else link % degree
                    rows.append((slot + hop, at, port, source, target, 0))
                    at = int(links[topology, at, port])
            slot += len(together[0][1])
    lengths = tuple(tuple(len(together[0][1]) for together in packed) for packed in rounds)
    return AllToAllSchedule(links, lengths, np.array(rows, dtype=np.int32), translated=ports_only)
