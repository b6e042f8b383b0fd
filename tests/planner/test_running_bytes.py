"""The link bytes of a job whose cost model is known."""

from __future__ import annotations

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, CostModel, Plan
from torch_topoopt.planner import demand_plan
from torch_topoopt.planner.running_bytes import predicting
from torch_topoopt.profile.script import CollectiveCall, CommunicationTrace
from torch_topoopt.search.lowering import lower_network

EVERYONE = tuple(range(8))
CLUSTER = Cluster(8, 4, 10.0)
COST = CostModel(25e-6, 15e-6, 0.0)


def trace_of(*calls: CollectiveCall) -> CommunicationTrace:
    return CommunicationTrace(1, "train.py", (), 8, (0,), 1, calls).validate()


def call(operation: str, size_bytes: int, peer: int | None = None) -> CollectiveCall:
    return CollectiveCall(0, 0, "backward", operation, size_bytes, EVERYONE, peer)  # type: ignore[arg-type]


def plan_of(trace: CommunicationTrace) -> Plan:
    demand = demand_plan.demand_of_trace(trace, CLUSTER)
    return demand_plan.plan_for_demand(CLUSTER, demand, trace, name="train.py", seed=0)


def test_on_the_planned_rings_they_are_those_of_the_plan() -> None:
    trace = trace_of(call("AllReduce", 800_000), call("AllGather", 160_000))
    plan = plan_of(trace)
    running = predicting(plan, trace, COST, "multi_ring")
    assert running.prediction.link_bytes == pytest.approx(plan.prediction.link_bytes, rel=1e-3)


def test_a_short_all_reduce_puts_the_bytes_of_its_own_algorithm_on_links() -> None:
    """Recursive doubling sends all bytes in each of its three rounds."""
    trace = trace_of(*[call("AllReduce", 4000)] * 5)
    plan = plan_of(trace)
    core = lower_network(CLUSTER, plan.network, schedules=True, cost=COST)
    algorithm = core.all_reduce_algorithm(EVERYONE, 4000)
    assert algorithm not in ("ring", "multi_ring")
    running = predicting(plan, trace, COST)
    expected = [5 * size for size in core.all_reduce_link_bytes(EVERYONE, 4000)]
    assert running.prediction.link_bytes == pytest.approx(expected, rel=1e-2, abs=10)
    doubling = predicting(plan, trace, COST, "doubling")
    assert sum(doubling.prediction.link_bytes) >= 5 * 8 * 3 * 4000
    assert doubling.prediction.iteration_s == plan.prediction.iteration_s


def test_a_root_receives_nothing_of_its_broadcast() -> None:
    trace = trace_of(call("Broadcast", 100_000, 3))
    plan = plan_of(trace)
    running = predicting(plan, trace, COST)
    into: dict[int, int] = dict.fromkeys(EVERYONE, 0)
    for link, size in zip(plan.network.links, running.prediction.link_bytes, strict=True):
        into[link.target] += size
    assert into[3] == 0
    assert min(size for server, size in into.items() if server != 3) >= 100_000


def test_groups_with_several_ranks_on_a_server_never_double() -> None:
    network = plan_of(trace_of(call("AllReduce", 800_000))).network
    alone, both = (
        lower_network(CLUSTER, network, schedules=True, cost=COST, ranks_per_server=ranks)
        for ranks in (1, 2)
    )
    assert alone.all_reduce_algorithm(EVERYONE, 64) in ("doubling", "flooding", "one_shot")
    assert both.all_reduce_algorithm(EVERYONE, 64) not in ("doubling", "flooding", "one_shot")
    members = sorted([*EVERYONE, *EVERYONE])
    sent = both.collective_link_bytes("all_reduce", members, 10**6)
    assert sum(sent) == pytest.approx(2 * 7 * 10**6, rel=1e-3)


def test_bad_collectives_are_refused() -> None:
    network = lower_network(
        CLUSTER, plan_of(trace_of(call("AllReduce", 8))).network, schedules=True
    )
    with refused(ValueError, "collective", "all_to_all"):
        network.collective_link_bytes("all_to_all", [0, 1], 8)
    with refused(ValueError, "members", 7):
        network.collective_link_bytes("reduce", [0, 8], 8)
    with refused(ValueError, "root", 2):
        network.collective_link_bytes("reduce", [0, 1], 8, 2)
