"""The demand of one training iteration on the network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, overload

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.server_sets import check_servers

if TYPE_CHECKING:
    from torch_topoopt.plan.cluster import Cluster


@dataclass(frozen=True)
class GroupDemand:
    """One iteration's AllReduce among `servers`: bytes of data, not of traffic."""

    servers: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class PairDemand:
    """Bytes that one iteration sends from `source` to `target` for model parallelism."""

    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True)
class AllToAll:
    """Bytes that one iteration sends from each of `servers` to each of the others."""

    servers: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class PairTable(Sequence[PairDemand]):
    """All-to-alls and listed pairs, as one sequence of pairs.

    An all-to-all among n servers has n (n - 1) pairs. The bytes of a repeated pair add up.
    """

    all_to_all: tuple[AllToAll, ...] = ()
    listed: tuple[PairDemand, ...] = ()

    def __iter__(self) -> Iterator[PairDemand]:
        for everyone in self.all_to_all:
            for source, target in itertools.permutations(everyone.servers, 2):
                yield PairDemand(source, target, everyone.size_bytes)
        yield from self.listed

    def __len__(self) -> int:
        sizes = (len(everyone.servers) for everyone in self.all_to_all)
        return sum(size * (size - 1) for size in sizes) + len(self.listed)

    @overload
    def __getitem__(self, index: int) -> PairDemand: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PairDemand, ...]: ...
    def __getitem__(self, index: int | slice) -> PairDemand | tuple[PairDemand, ...]:
        return tuple(self)[index]


@dataclass(frozen=True)
class Demand:
    """The demand of one iteration: AllReduce groups and the model-parallel matrix."""

    groups: tuple[GroupDemand, ...]
    pairs: tuple[PairDemand, ...] | PairTable


@dataclass(frozen=True)
class DemandFile(Document):
    """A demand as a document of its own: what `topoopt topology --demand` reads."""

    KIND: ClassVar[str] = "Demand"
    VERSION: ClassVar[int] = 1

    version: int
    groups: tuple[GroupDemand, ...] = ()
    pairs: tuple[PairDemand, ...] | PairTable = ()

    def validate(self) -> Self:
        if not self.groups and not len(self.pairs):
            raise DocumentError("groups, pairs: both are empty; a demand asks for some bytes")
        for where, size_bytes in _sizes(self.groups, self.pairs):
            if size_bytes == 0:
                raise DocumentError(f"{where}.size_bytes: 0 is not above 0; leave the entry out")
        return self

    def demand(self) -> Demand:
        return Demand(self.groups, self.pairs)


def _sizes(
    groups: tuple[GroupDemand, ...], pairs: tuple[PairDemand, ...] | PairTable
) -> Iterator[tuple[str, int]]:
    """(path in the document, bytes) of each entry."""
    listed, where = pairs, "pairs"
    for i, group in enumerate(groups):
        yield f"groups[{i}]", group.size_bytes
    if isinstance(pairs, PairTable):
        for i, everyone in enumerate(pairs.all_to_all):
            yield f"pairs.all_to_all[{i}]", everyone.size_bytes
        listed, where = pairs.listed, "pairs.listed"
    for i, pair in enumerate(listed):
        yield f"{where}[{i}]", pair.size_bytes


def validate_demand(cluster: Cluster, demand: Demand) -> Demand:
    """Returns `demand`, or raises DocumentError for the first entry that is not valid.

    Groups and pairs name servers of the cluster, none of them twice; sizes are finite and at least
    0 bytes.
    """
    pairs = demand.pairs
    for i, group in enumerate(demand.groups):
        check_servers(f"demand.groups[{i}].servers", group.servers, cluster.servers)
    listed, where = pairs, "demand.pairs"
    if isinstance(pairs, PairTable):
        for i, everyone in enumerate(pairs.all_to_all):
            name = f"demand.pairs.all_to_all[{i}].servers"
            check_servers(name, everyone.servers, cluster.servers)
        listed, where = pairs.listed, "demand.pairs.listed"
    for i, pair in enumerate(listed):
        check_servers(f"{where}[{i}]", (pair.source, pair.target), cluster.servers)
    for name, size_bytes in _sizes(demand.groups, pairs):
        if not 0 <= size_bytes < math.inf:
            raise DocumentError(
                f"demand.{name}.size_bytes: {size_bytes} is not at least 0 and finite"
            )
    return demand
