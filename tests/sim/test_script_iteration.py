"""An iteration of a script's own calls: closed forms of what overlaps, waits, shares and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, CostModel, Demand, GroupDemand
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.profile.script import CollectiveCall
from torch_topoopt.profile.script.step_events import CallWait, Computation
from torch_topoopt.sim.collective_costs import IdealSwitchCosts, NetworkCosts
from torch_topoopt.sim.script_iteration import (
    EVEN_PACING,
    OWN_PROCESSORS,
    LinkPacing,
    Processors,
    script_iteration,
)
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.plan import Network
    from torch_topoopt.profile.script.document import Operation
    from torch_topoopt.profile.script.step_events import StepEvent
    from torch_topoopt.sim import IterationEstimate

MB = 10**6
CLUSTER = Cluster(4, 2, 0.008, link_latency_s=0.0)  # 1 MB/s
COST = CostModel(1e-9, 0.0, 0.0)
SECOND = Computation(1.0, 0.0)


def network_of(cluster: Cluster) -> Network:
    everyone = tuple(range(cluster.servers))
    return find_network(cluster, Demand((GroupDemand(everyone, MB),), ()))


def call(
    rank: int, operation: Operation, size_bytes: int, group: Sequence[int], peer: int | None = None
) -> CollectiveCall:
    parts = (size_bytes // len(group),) * len(group) if operation == "AllToAll" else ()
    return CollectiveCall(rank, 0, "forward", operation, size_bytes, tuple(group), peer, parts)


def estimate(
    *events: Sequence[StepEvent],
    cluster: Cluster = CLUSTER,
    processors: Processors = OWN_PROCESSORS,
    pacing: LinkPacing = EVEN_PACING,
) -> IterationEstimate:
    network = network_of(cluster)
    costs = NetworkCosts(cluster, network, COST)
    return script_iteration(cluster, network, costs, events, processors=processors, pacing=pacing)


@pytest.mark.parametrize(
    ("operation", "seconds"), [("AllGather", 3), ("ReduceScatter", 3), ("AllReduce", 6)]
)
def test_ranks_wait_for_a_collective_over_both_directions_of_the_ring(
    operation: Operation, seconds: float
) -> None:
    """8 MB: each server's 3/4 of it arrives over two links of 1 MB/s, for an AllReduce twice."""
    found = estimate(
        *([SECOND, call(r, operation, 8 * MB, range(4)), CallWait(0), SECOND] for r in range(4))
    )
    assert found.iteration_s == pytest.approx(2 + seconds)
    assert found.compute_s == pytest.approx(2)
    assert found.link_bytes == (seconds * MB,) * 8


def test_computation_before_the_wait_overlaps_with_the_collective() -> None:
    steps = [
        [SECOND, call(r, "AllGather", 8 * MB, range(4)), SECOND, SECOND, CallWait(0), SECOND]
        for r in range(4)
    ]
    assert estimate(*steps).iteration_s == pytest.approx(1 + 3 + 1)


def test_a_collective_begins_when_its_last_rank_has_called_it() -> None:
    steps = [
        [Computation(r + 1.0, 0.5), call(r, "AllGather", 8 * MB, range(4)), CallWait(0)]
        for r in range(4)
    ]
    assert estimate(*steps).iteration_s == pytest.approx(4.5 + 3)


def test_ranks_share_processors_but_not_what_they_wait_for() -> None:
    steps = [[Computation(1.0, 0.5)] for _ in range(4)]
    assert estimate(*steps, processors=Processors(2)).iteration_s == pytest.approx(2.5)


@pytest.mark.parametrize(("count", "seconds"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (8, 1)])
def test_ranks_that_compute_at_once_share_the_processors_evenly(count: int, seconds: float) -> None:
    steps = [[SECOND] for _ in range(4)]
    assert estimate(*steps, processors=Processors(count)).iteration_s == pytest.approx(seconds)


def test_stages_that_wait_for_each_other_do_not_share_processors() -> None:
    first: list[StepEvent] = [SECOND, call(0, "Send", 1, (0, 1), 1)]
    second: list[StepEvent] = [call(1, "Recv", 1, (0, 1), 0), CallWait(0), SECOND]
    found = estimate(first, second, [], [], processors=Processors(1))
    assert found.iteration_s == pytest.approx(2, rel=1e-4)
    beside = estimate(first, second, [SECOND], [], processors=Processors(1))
    assert beside.iteration_s == pytest.approx(3, rel=1e-4)


def test_calls_and_bytes_take_processor_time() -> None:
    steps = [[call(r, "AllGather", 8 * MB, range(4)), CallWait(0)] for r in range(4)]
    free = estimate(*steps).iteration_s
    calls = estimate(*steps, processors=Processors(4, call_s=0.5))
    assert calls.iteration_s == pytest.approx(free + 0.5)
    assert calls.compute_s == pytest.approx(0.5)
    # 6 MB to and from each rank; the links need 3 s meanwhile
    assert estimate(*steps, processors=Processors(4, byte_s=0.2e-6)).iteration_s == pytest.approx(3)
    assert estimate(*steps, processors=Processors(2, byte_s=0.5e-6)).iteration_s == pytest.approx(
        12
    )


def test_calls_of_one_group_queue_and_those_of_two_groups_share_links() -> None:
    twice = [
        [
            call(r, "AllGather", 8 * MB, range(4)),
            call(r, "AllGather", 8 * MB, range(4)),
            CallWait(0),
        ]
        for r in range(4)
    ]
    assert estimate(*twice).iteration_s == pytest.approx(6)
    first = [[*step, SECOND] for step in twice]  # the second call goes on meanwhile
    assert estimate(*first).iteration_s == pytest.approx(6)
    cluster = Cluster(
        2, 1, 0.008, link_latency_s=0.0, accelerators_per_server=2
    )  # two ranks a server, one cable
    pairs = [[call(r, "AllGather", 2 * MB, (r % 2, r % 2 + 2)), CallWait(0)] for r in range(4)]
    assert estimate(*pairs, cluster=cluster).iteration_s == pytest.approx(2)
    local = [[call(r, "AllGather", 2 * MB, (r // 2 * 2, r // 2 * 2 + 1))] for r in range(4)]
    assert estimate(*local, cluster=cluster).iteration_s == 0


def test_messages_take_the_routes_and_wait_for_their_senders() -> None:
    exchange = [[call(r, "AllToAll", 4 * MB, range(4)), CallWait(0)] for r in range(4)]
    found = estimate(*exchange)
    assert sum(found.link_bytes) == 4 * (1 + 1 + 2) * MB
    steps: list[list[StepEvent]] = [
        [SECOND, call(0, "Send", MB, (0, 1), 1)],
        [call(1, "Recv", MB, (0, 1), 0), CallWait(0), SECOND],
        [],
        [],
    ]
    assert estimate(*steps).iteration_s == pytest.approx(1 + 1 + 1)
    with refused(DocumentError, "rank 1", "sender"):
        estimate([], [call(1, "Recv", MB, (0, 1))], [], [])


@pytest.mark.parametrize("operation", ["AllReduce", "Broadcast"])
def test_messages_of_a_short_algorithm_share_links_with_others(operation: Operation) -> None:
    both = [call(0, operation, 2 * MB, (0, 1)), call(0, "Send", 2 * MB, (0, 1), 1)]
    there = [call(1, operation, 2 * MB, (0, 1)), call(1, "Recv", 2 * MB, (0, 1), 0)]
    alone = estimate([both[0], CallWait(0)], [there[0], CallWait(0)], [], [])
    assert alone.iteration_s == pytest.approx(2)
    assert max(alone.link_bytes) == 2 * MB
    waits = [CallWait(0), CallWait(1)]
    together = estimate([*both, *waits], [*there, *waits], [], [])
    assert together.iteration_s == pytest.approx(4)


def sends(sizes: Sequence[int]) -> list[list[StepEvent]]:
    """Rank 0 sends to rank 1, one after another, and computes after each; rank 1 only receives."""
    sender: list[StepEvent] = []
    for number, size_bytes in enumerate(sizes):
        sender += [call(0, "Send", size_bytes, (0, 1), 1), CallWait(number), SECOND]
    receives = [call(1, "Recv", size_bytes, (0, 1), 0) for size_bytes in sizes]
    return [sender, [*receives, *(CallWait(number) for number in range(len(sizes)))], [], []]


def test_a_sender_does_not_wait_for_bytes_that_its_kernel_keeps() -> None:
    kept = (16 + 32) << 10  # unsent, and half a segment
    assert estimate(*sends([kept])).iteration_s == pytest.approx(1)
    assert estimate(*sends([kept + 2 * MB])).iteration_s == pytest.approx(2 + 1)
    arrived = [*sends([kept + 2 * MB])]
    arrived[1].append(SECOND)
    assert estimate(*arrived).iteration_s == pytest.approx(2 + kept / MB + 1)
    # messages keep their order
    assert estimate(*sends([kept + 2 * MB, kept + MB])).iteration_s == pytest.approx(2 + 1 + 1 + 1)


def messages(pause_s: float) -> list[list[StepEvent]]:
    """Rank 0 sends two messages to rank 1 with a pause between them."""
    first, second = (call(0, "Send", size_bytes, (0, 1), 1) for size_bytes in (2 * MB, 3 * MB))
    sender = [first, Computation(pause_s, 0.0), second]
    receives = [call(1, "Recv", size_bytes, (0, 1), 0) for size_bytes in (2 * MB, 3 * MB)]
    return [sender, [*receives, CallWait(1)], [], []]


@pytest.mark.parametrize(
    ("pause_s", "seconds"),
    [
        (0.0, (2 - 1) + 3),  # the second message has no pause
        (4.0, 4 + (3 - 1)),
        (1.5, 1.5 + (3 - 0.5)),  # half a second without messages
    ],
)
def test_the_first_bytes_after_a_pause_take_no_time(pause_s: float, seconds: float) -> None:
    slow = messages(pause_s)
    found = estimate(*slow, pacing=LinkPacing(MB))
    assert found.iteration_s == pytest.approx(seconds, rel=1e-5)
    assert found.link_bytes == estimate(*slow).link_bytes


PARTS = LinkPacing(0.9 * MB, 0.8 * MB)


@pytest.mark.parametrize(
    ("pause_s", "seconds"),
    [
        # both messages leave in parts of 0.8 MB, the last of which takes no time; the second part
        # of a message waits for 0.4 s less after a pause, and the next message for the last part
        (0.0, (2 - 0.4 - 0.4) + (3 - 0.6 + 0.4)),
        (4.0, 4 + (3 - 0.6 - 0.3)),  # at most 0.9 MB are early
        (1.5, 1.5 + (3 - 0.6 + 0.1)),  # the link's rate allows more after 1.6 s
        (1.8, 1.8 + (3 - 0.6 - 0.2)),
    ],
)
def test_the_last_part_of_a_message_takes_no_time(pause_s: float, seconds: float) -> None:
    slow = messages(pause_s)
    found = estimate(*slow, pacing=PARTS)
    assert found.iteration_s == pytest.approx(seconds, rel=1e-3)
    assert found.link_bytes == estimate(*slow).link_bytes


@pytest.mark.parametrize(("size_mb", "early_mb"), [(8, 0.6), (6.4, 0.8), (2, 0.75)])
def test_the_last_part_of_a_collective_takes_no_time(size_mb: float, early_mb: float) -> None:
    """Each link carries 3/8 of it."""
    size_bytes = round(size_mb * MB)
    steps = [[call(r, "AllGather", size_bytes, range(4)), CallWait(0)] for r in range(4)]
    seconds = size_mb * 3 / 8 - early_mb
    assert estimate(*steps, pacing=PARTS).iteration_s == pytest.approx(seconds, abs=1e-5)


def test_collectives_have_no_burst() -> None:
    steps = [[call(r, "AllGather", 8 * MB, range(4)), CallWait(0)] for r in range(4)]
    assert estimate(*steps, pacing=LinkPacing(MB)).iteration_s == pytest.approx(3)


def test_a_switch_that_never_blocks_gives_all_ports_to_every_rank() -> None:
    steps = [[SECOND, call(r, "AllReduce", 8 * MB, range(4)), CallWait(0)] for r in range(4)]
    found = script_iteration(CLUSTER, None, IdealSwitchCosts(CLUSTER), steps)
    assert found.iteration_s == pytest.approx(1 + 6)


def test_headers_take_their_share_of_the_links() -> None:
    steps = [[call(r, "AllGather", 8 * MB, range(4)), CallWait(0)] for r in range(4)]
    network = network_of(CLUSTER)
    costs = NetworkCosts(CLUSTER, network, COST)
    found = script_iteration(CLUSTER, network, costs, steps, payload_share=0.75)
    assert found.iteration_s == pytest.approx(4)


@pytest.mark.parametrize("algorithm", ["auto", "ring", "multi_ring", "breadth_first", "packing"])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
def test_messages_are_those_of_the_schedule(algorithm: str, collective: str) -> None:
    cluster = Cluster(12, 4, 1.0)
    costs = NetworkCosts(cluster, network_of(cluster), CostModel(1e-5, 1e-6, 0.0), algorithm)
    cost = costs.collective(collective, tuple(range(12)), 12 * MB)  # type: ignore[arg-type]
    passes = 2 if collective == "all_reduce" else 1
    assert sum(cost.messages.values()) == pytest.approx(passes * 11 * 12 * MB)
    assert cost.latency_s > 0


def test_a_group_without_links_of_its_own_uses_rings_over_routes() -> None:
    cluster = Cluster(8, 2, 1.0)
    costs = NetworkCosts(cluster, network_of(cluster), COST)
    cost = costs.collective("all_gather", (0, 4), 2 * MB)
    assert cost.messages == {(0, 4): MB, (4, 0): MB}
