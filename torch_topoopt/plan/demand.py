"""What one training iteration asks of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.data_model import DocumentError
from torch_topoopt.plan.server_sets import check_servers

if TYPE_CHECKING:
    from torch_topoopt.plan.cluster import Cluster


@dataclass(frozen=True)
class GroupDemand:
    """Bytes that one iteration AllReduces among `servers` (of the reduced data, not traffic)."""

    servers: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class PairDemand:
    """Bytes that one iteration sends from `source` to `target` for model parallelism."""

    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True)
class Demand:
    """What one iteration asks of the network: AllReduce groups and the model-parallel matrix."""

    groups: tuple[GroupDemand, ...]
    pairs: tuple[PairDemand, ...]


def validate_demand(cluster: Cluster, demand: Demand) -> Demand:
    """Returns `demand`, or raises DocumentError for the first entry that is not valid.

    Groups and pairs name servers of the cluster, none of them twice; sizes are at least 0 bytes.
    """
    for i, group in enumerate(demand.groups):
        check_servers(f"demand.groups[{i}].servers", group.servers, cluster.servers)
        if not group.size_bytes >= 0:
            raise DocumentError(
                f"demand.groups[{i}].size_bytes: {group.size_bytes} is not at least 0"
            )
    for i, pair in enumerate(demand.pairs):
        where = f"demand.pairs[{i}]"
        check_servers(where, (pair.source, pair.target), cluster.servers)
        if not pair.size_bytes >= 0:
            raise DocumentError(f"{where}.size_bytes: {pair.size_bytes} is not at least 0")
    return demand
