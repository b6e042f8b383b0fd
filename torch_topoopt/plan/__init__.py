"""Plan: how a cluster is split, wired and routed for one training job.

Algorithms write a Plan; simulators, fabric drivers, exporters and the backend read it. Servers and
ports are numbered from 0. A `Link` is directed; on a duplex cluster a cable is two links that use
the same two ports in opposite directions. Every producer calls `validate()` before it returns a
Plan, and every consumer trusts a Plan that it has loaded.
"""

from __future__ import annotations

from torch_topoopt.plan.checks import validate_network
from torch_topoopt.plan.cluster import BYTES_PER_GBPS, Cluster
from torch_topoopt.plan.demand import (
    AllToAll,
    Demand,
    DemandFile,
    GroupDemand,
    PairDemand,
    PairTable,
    validate_demand,
)
from torch_topoopt.plan.document import (
    POLICIES,
    AllReduceTime,
    CostModel,
    Plan,
    Policy,
    Prediction,
    Round,
    SearchSample,
    SpaceName,
    digest_of,
)
from torch_topoopt.plan.failures import (
    DroppedRings,
    Failure,
    FailurePlan,
    cables,
    links_lost_with,
    validate_failures,
)
from torch_topoopt.plan.link_traffic import IterationTimes, LinkTraffic, RankTraffic
from torch_topoopt.plan.network import Group, Link, Network, Ring
from torch_topoopt.plan.placement import (
    PARAMETER_KINDS,
    Degrees,
    ParameterKind,
    Placement,
    validate_placement,
)
from torch_topoopt.plan.ring_shares import shared_by_slowest_link
from torch_topoopt.plan.routes import Pair, Route, RouteTable, StrideRoute
from torch_topoopt.plan.strategy_file import StrategyFile

__all__ = [
    "BYTES_PER_GBPS",
    "PARAMETER_KINDS",
    "POLICIES",
    "AllReduceTime",
    "AllToAll",
    "Cluster",
    "CostModel",
    "Degrees",
    "Demand",
    "DemandFile",
    "DroppedRings",
    "Failure",
    "FailurePlan",
    "Group",
    "GroupDemand",
    "IterationTimes",
    "Link",
    "LinkTraffic",
    "Network",
    "Pair",
    "PairDemand",
    "PairTable",
    "ParameterKind",
    "Placement",
    "Plan",
    "Policy",
    "Prediction",
    "RankTraffic",
    "Ring",
    "Round",
    "Route",
    "RouteTable",
    "SearchSample",
    "SpaceName",
    "StrategyFile",
    "StrideRoute",
    "cables",
    "digest_of",
    "links_lost_with",
    "shared_by_slowest_link",
    "validate_demand",
    "validate_failures",
    "validate_network",
    "validate_placement",
]
