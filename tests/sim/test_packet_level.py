"""Packet level of `run_flows`: published values, closed forms, and what must hold in any run."""

from __future__ import annotations

import itertools
import math
import random
import re
from typing import Any

import numpy as np
import pytest
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.sim import (
    Flow,
    FlowLink,
    FlowsResult,
    LinkChange,
    Reroute,
    run_flows,
    run_program,
)

RATE = 100e9
LATENCY_NS = 1000.0
PAYLOAD, WIRE = 8936, 9000
TRANSPORTS = ("constant", "dctcp", "roce", "dcqcn", "ndp")


def _packet(links: list[FlowLink], flows: list[Flow], **options: Any) -> FlowsResult:
    return run_flows(links, flows, level="packet", **options)


def _links(*ends: tuple[int, int]) -> list[FlowLink]:
    return [FlowLink(source, target, RATE, LATENCY_NS) for source, target in ends]


def _ring_all_reduce(n: int, strides: tuple[int, ...], ring_bytes: int) -> tuple[list, list]:
    """Every ring of every stride reduces `ring_bytes`; a step's flow follows the one before it."""
    links, flows = [], []
    for stride in strides:
        base = len(links)
        links += _links(*((i, (i + stride) % n) for i in range(n)))
        before: dict[int, int] = {}
        place = {i * stride % n: i for i in range(n)}
        for step in range(2 * (n - 1)):
            now = {}
            for i in range(n):
                chunk = (place[i] - step) % n
                size = ring_bytes * (chunk + 1) // n - ring_bytes * chunk // n
                now[(i + stride) % n] = len(flows)
                after = (before[i],) if step else ()
                flows.append(Flow(i, (i + stride) % n, size, (base + i,), after))
            before = now
    return links, flows


# The values of csg-htsim with constant-rate senders, milliseconds; the smaller ones are the same
# with a last packet that is only as long as it has to be.
@pytest.mark.parametrize(
    ("n", "strides", "ring_bytes", "full", "truncated"),
    [
        (16, (1,), 100_000_000, 15.150, 15.13752),
        (128, (1,), 100_000_000, 16.34744, 16.24344),
        (128, (1, 3, 11, 37), 25_000_000, 4.27736, 4.25136),
    ],
)
def test_ring_all_reduce_takes_the_published_time(
    n: int, strides: tuple[int, ...], ring_bytes: int, full: float, truncated: float
) -> None:
    links, flows = _ring_all_reduce(n, strides, ring_bytes)
    result = _packet(links, flows, full_last_packet=True)
    assert result.completion_s == pytest.approx(full * 1e-3, rel=1e-12)
    steps = 2 * (n - 1)
    chunk = ring_bytes / n
    assert result.packet_hops == steps * n * len(strides) * math.ceil(chunk / PAYLOAD)
    if n == 16:  # chunks of n = 128 differ by a byte
        result = _packet(links, flows)
        assert result.completion_s == pytest.approx(truncated * 1e-3, rel=1e-12)
        assert result.completion_s < full * 1e-3


def _all_to_all(hosts: int) -> tuple[list[FlowLink], list[Flow]]:
    """1 MB per pair on a leaf-spine without oversubscription; spine: destination mod leaves."""
    leaves = math.isqrt(hosts)
    ends: list[tuple[int, int]] = []
    number: dict[tuple[int, int], int] = {}
    for host in range(hosts):
        ends += [(host, hosts + host // leaves), (hosts + host // leaves, host)]
    for leaf in range(leaves):
        for spine in range(leaves):
            ends += [(hosts + leaf, hosts + leaves + spine), (hosts + leaves + spine, hosts + leaf)]
    number = {pair: i for i, pair in enumerate(ends)}
    flows = []
    for source in range(hosts):
        for target in range(hosts):
            if target == source:
                continue
            up, down = hosts + source // leaves, hosts + target // leaves
            nodes = [source, up, down, target]
            if up == down:
                nodes = [source, up, target]
            else:
                nodes.insert(2, hosts + leaves + target % leaves)
            path = tuple(number[pair] for pair in itertools.pairwise(nodes))
            flows.append(Flow(source, target, 1_000_000, path))
    return _links(*ends), flows


# csg-htsim on the same workload: RoCE 5.0884 ms, DCTCP 5.6189 ms, NDP 5.37 to 5.68 ms with its
# flows in five random orders.
# There acknowledgements of DCTCP wait behind the data in the queue of their host.
@pytest.mark.parametrize(
    ("transport", "options", "published_s", "tolerance"),
    [
        ("roce", {}, 5.0884e-3, 0.002),
        ("roce", {"start_order": "numbered"}, 5.0884e-3, 0.02),
        ("dctcp", {"acks": "links", "control_first": False}, 5.6189e-3, 0.02),
        ("ndp", {}, 5.50e-3, 0.05),
    ],
)
def test_all_to_all_agrees_with_published_values(
    transport: str, options: dict[str, Any], published_s: float, tolerance: float
) -> None:
    links, flows = _all_to_all(64)
    result = _packet(links, flows, transport=transport, hosts=64, **options)
    assert result.completion_s == pytest.approx(published_s, rel=tolerance)


def _shuffled(flows: list[Flow], chance: random.Random) -> tuple[list[Flow], list[int]]:
    """The flows in another order, and for each of `flows` where it is now."""
    order = list(range(len(flows)))
    chance.shuffle(order)
    place = [order.index(i) for i in range(len(flows))]
    moved = [
        Flow(f.source, f.target, f.size_bytes, f.path, tuple(place[j] for j in f.after))
        for f in (flows[i] for i in order)
    ]
    return moved, place


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("start_order", ["drawn", "numbered"])
def test_the_order_in_which_flows_are_given_changes_nothing(
    transport: str, start_order: str
) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        links, flows = _all_to_all(9)
        # Chains of flows between equal pairs, of equal size: only what waits for them differs.
        for _ in range(30):
            source, target = chance.sample(range(9), 2)
            path = next(f.path for f in flows if (f.source, f.target) == (source, target))
            size = chance.choice((40_000, 90_000))
            flows.append(Flow(source, target, size, path, (chance.randrange(len(flows)),)))
        options = {
            "transport": transport,
            "start_order": start_order,
            "hosts": 9,
            "seed": seed,
            "switch_queue_bytes": 100_000 * (seed % 2),
            "retransmission_timeout_s": 1e-3,
        }
        first = _packet(links, flows, **options)
        moved, place = _shuffled(flows, chance)
        second = _packet(links, moved, **options)
        assert second.completion_s == first.completion_s
        assert second.events == first.events
        assert (second.link_bytes == first.link_bytes).all()
        assert (second.finish_s[place] == first.finish_s).all()


def test_dctcp_opens_a_connection_per_flow() -> None:
    links, flows = _ring_all_reduce(16, (1,), 100_000_000)
    opened = _packet(links, flows, transport="dctcp").completion_s
    kept = _packet(links, flows, transport="dctcp", dctcp_handshake=False).completion_s
    assert kept == pytest.approx(15.13752e-3, rel=1e-12)
    header_s = 64 * 8 / RATE
    assert opened - kept == pytest.approx(30 * (header_s + 2e-6), rel=1e-6)
    assert opened == pytest.approx(15.2316e-3, rel=0.05)  # csg-htsim, whose SYN is a full packet


def test_dctcp_is_marked_by_a_long_queue_when_and_how_it_is_asked_to() -> None:
    """The first window of 100 packets waits in the queue of the sender's own link; 1 ms a round."""
    links = [FlowLink(0, 1, RATE, 1e6)]
    options = {"transport": "dctcp", "dctcp_handshake": False, "acks": "instant"}
    options["dctcp_initial_window_packets"] = 100

    def rounds(packets: int, **more: bool) -> tuple[int, int]:
        result = _packet(links, [Flow(0, 1, packets * PAYLOAD, (0,))], **options, **more)
        return int(result.completion_s * 1e3), int(result.packet_counts["marked"].sum())

    assert rounds(300, dctcp_mark_in_hosts=False) == (2, 0)  # slow start: 100, 200
    # The last 50 of the first window are marked, so it grows to 150 before it is halved.
    assert rounds(190) == (2, 50)
    assert rounds(300) == (4, 53)
    # The first 50 are: 100, then 50 and one more per round.
    assert rounds(150, dctcp_mark_on_departure=True) == (2, 50)
    assert rounds(190, dctcp_mark_on_departure=True) == (3, 50)
    # Cut by a 32nd instead, and again every round, by less and less, though nothing is marked.
    every = {"dctcp_mark_on_departure": True, "dctcp_cut_every_window": True}
    assert rounds(190, **every) == (2, 50)
    assert rounds(2000, **every) == (23, 50)
    assert rounds(2000, dctcp_mark_on_departure=True) == (30, 50)


def test_first_come_is_first_served_if_a_program_says_so() -> None:
    """Task 1 is ready after 1 s and task 2 after 2 s, when task 0, which takes 3 s, still runs."""
    for first_come, order in ((False, [4.0, 5.0]), (True, [5.0, 4.0])):
        program = _core.FlowProgram(2, 1)
        program.set_first_come(first_come)
        for seconds in (3.0, 1.0, 1.0):
            program.add_compute(0, seconds)
        for late, task in ((1.0, 2), (2.0, 1)):
            program.add_dependency(program.add_delay(late), task)
        for level in ("flow", "packet"):
            assert list(run_program(program, level=level).finish_s[1:3]) == order


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("hops", [1, 4])
def test_one_flow_takes_the_time_of_a_pipeline(transport: str, hops: int) -> None:
    links = _links(*((i, i + 1) for i in range(hops)))
    flow = Flow(0, hops, 300 * PAYLOAD, tuple(range(hops)))
    window = {"dctcp_handshake": False, "dctcp_initial_window_packets": 50}
    result = _packet(links, [flow], transport=transport, **window)
    expected_ns = (300 + hops - 1) * 720 + hops * LATENCY_NS
    assert result.completion_s == pytest.approx(expected_ns * 1e-9, rel=1e-12)


def test_mtu_and_header_are_options() -> None:
    result = _packet(_links((0, 1)), [Flow(0, 1, 14_500, (0,))], mtu_bytes=1450, header_bytes=50)
    assert result.packet_hops == 10
    assert result.completion_s == pytest.approx(10 * 1500 * 8 / RATE + 1e-6, rel=1e-12)


def test_long_flows_share_a_link_as_at_flow_level() -> None:
    links = _links((0, 3), (1, 3), (3, 2))
    flows = [Flow(0, 2, 20e6, (0, 2)), Flow(1, 2, 10e6, (1, 2))]
    fluid = run_flows(links, flows).finish_s * WIRE / PAYLOAD
    for transport in ("constant", "roce"):
        packets = _packet(links, flows, transport=transport, hosts=3).finish_s
        assert packets == pytest.approx(fluid, rel=0.02)


def _random_run(seed: int, **options: Any) -> tuple[list[FlowLink], list[Flow], FlowsResult]:
    chance = random.Random(seed)
    n = 5
    links = _links(*((i, (i + d) % n) for d in (1, n - 1) for i in range(n)))
    flows: list[Flow] = []
    for i in range(chance.randint(2, 12)):
        source, hops = chance.randrange(n), chance.randint(1, 3)
        after = (chance.randrange(i),) if i and chance.random() < 0.3 else ()
        path = tuple((source + j) % n for j in range(hops))
        flows.append(Flow(source, (source + hops) % n, chance.randint(1, 300_000), path, after))
    return links, flows, _packet(links, flows, seed=seed, **options)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_are_conserved_and_no_limit_is_broken(transport: str) -> None:
    for seed in range(4):
        acks = ("latency", "links", "instant")[seed % 3]
        links, flows, result = _random_run(seed, transport=transport, acks=acks)
        crossed = np.zeros(len(links))
        for flow, start_s, finish_s in zip(flows, result.start_s, result.finish_s, strict=True):
            crossed[list(flow.path)] += flow.size_bytes
            limit_s = flow.size_bytes * 8 / RATE + len(flow.path) * LATENCY_NS * 1e-9
            assert finish_s - start_s >= limit_s - 1e-12
        counts = result.packet_counts
        assert not counts["dropped"].any()
        if not counts["trimmed"].any():
            assert (result.link_bytes == crossed).all()
        assert (result.link_bytes >= crossed).all()
        assert (counts["wire_bytes"] * 8 / RATE <= result.completion_s + 1e-9).all()
        again = _random_run(seed, transport=transport, acks=acks)[2]
        assert (again.finish_s == result.finish_s).all()
        assert again.events == result.events


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_full_relays_lose_packets_and_flows_still_arrive(transport: str) -> None:
    links = _links((0, 2), (1, 2), (2, 3))
    flows = [Flow(i, 3, 1_500_000, (i, 2)) for i in (0, 1) for _ in range(3)]
    options = {"relay_queue_bytes": 30_000, "retransmission_timeout_s": 1e-3}
    result = _packet(links, flows, transport=transport, **options)
    counts = result.packet_counts
    assert counts["dropped"][2] + counts["trimmed"][2] > 0
    assert counts["most_queued_bytes"][2] <= 30_000
    assert (result.finish_s < math.inf).all()


def test_pauses_keep_every_packet() -> None:
    links = _links((0, 2), (1, 2), (2, 3))
    flows = [Flow(i, 3, 3_000_000, (i, 2)) for i in (0, 1)]
    result = _packet(
        links,
        flows,
        transport="roce",
        lossless=True,
        pause_above_bytes=50_000,
        resume_below_bytes=30_000,
    )
    counts = result.packet_counts
    assert not counts["dropped"].any()
    assert counts["pauses"][:2].all()
    # 6 MB over the shared link, at full rate all the time
    assert result.completion_s == pytest.approx(6e6 * WIRE / PAYLOAD * 8 / RATE, rel=0.01)


def test_a_deadlock_is_an_error_that_names_the_cycle() -> None:
    n = 4
    links = _links(*((i, (i + 1) % n) for i in range(n)))
    flows = [
        Flow(i, (i + 3) % n, 5e6, tuple((i + j) % n for j in range(3)))
        for i in range(n)
        for _ in range(2)
    ]
    options = {"transport": "roce", "lossless": True}
    with refused(ValueError, "deadlock", "link 0 (0 to 1)", "link 1"):
        _packet(links, flows, pause_above_bytes=40_000, resume_below_bytes=20_000, **options)


def _waits(message: str) -> list[tuple[int, int, int]]:
    """(link, source, target) in the order in which a deadlock's message names them."""
    found = re.findall(r"link (\d+) \((\d+) to (\d+)\) waits for", message)
    return [(int(link), int(source), int(target)) for link, source, target in found]


@pytest.mark.parametrize("transport", ["constant", "roce", "dcqcn", "dctcp"])
@pytest.mark.parametrize("n", [3, 5])
def test_a_deadlock_is_found_in_the_cycle_and_not_in_what_waits_behind_it(
    transport: str, n: int
) -> None:
    """A ring of relays that fill each other's buffers, and two hosts that send into it."""
    ring = [(i, (i + 1) % n) for i in range(n)]
    links = _links(*ring, (n, 0), (n + 1, n))
    flows = [
        Flow(i, (i + n - 1) % n, 5e6, tuple((i + j) % n for j in range(n - 1)))
        for i in range(n)
        for _ in range(3)
    ]
    flows.append(Flow(n + 1, 1, 5e6, (n + 1, n, 0)))
    options = {
        "transport": transport,
        "lossless": True,
        "pause_above_bytes": 20_000,
        "resume_below_bytes": 10_000,
        "dctcp_mark_above_packets": 10_000,
        "dctcp_initial_window_packets": 200,
        "dcqcn_mark_from_bytes": 10**8,
        "dcqcn_mark_all_from_bytes": 2 * 10**8,
    }
    with refused(ValueError, "deadlock") as caught:
        _packet(links, flows, **options)
    waits = _waits(str(caught.value))
    assert sorted(link for link, _, _ in waits) == list(range(n))  # all of the ring, nothing else
    for (_, _, target), (_, source, _) in zip(waits, [*waits[1:], waits[0]], strict=True):
        assert target == source
    # Without those that cross from the last link of the ring to the first nothing waits in a cycle.
    straight = [flow for flow in flows if flow.source + len(flow.path) <= n]
    assert _packet(links, straight, **options).complete


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_flow_is_delivered_when_links_fail_and_come_back(transport: str) -> None:
    """The contract of a transport: links fail at random, at any moment of a flow, and recover."""
    for seed in range(6):
        chance = random.Random(seed)
        n = 6
        links = _links(*((i, (i + d) % n) for d in (1, n - 1) for i in range(n)))
        flows = []
        for i in range(12):
            source, hops = chance.randrange(n), chance.randint(1, 3)
            path = tuple((source + j) % n for j in range(hops))
            after = (chance.randrange(i),) if i and chance.random() < 0.4 else ()
            size = chance.randint(1, 400_000)
            flows.append(Flow(source, (source + hops) % n, size, path, after))
        changes, down_s = [], [0.0] * len(links)
        for link in chance.sample(range(n), 3):
            begin, length = chance.uniform(0, 1e-4), chance.uniform(1e-6, 5e-4)
            changes += [LinkChange(begin, link, 0.0), LinkChange(begin + length, link, RATE)]
            down_s[link] = length
        acks = ("latency", "links", "instant")[seed % 3]
        options = {
            "transport": transport,
            "acks": acks,
            "seed": seed,
            "lossless": transport != "ndp" and seed % 2 == 1,
            "retransmission_timeout_s": 1e-4,
        }
        result = _packet(links, flows, changes=changes, **options)
        assert result.complete
        crossed = np.zeros(len(links))
        for flow, start_s, finish_s in zip(flows, result.start_s, result.finish_s, strict=True):
            crossed[list(flow.path)] += flow.size_bytes
            limit_s = flow.size_bytes * 8 / RATE + len(flow.path) * LATENCY_NS * 1e-9
            assert finish_s - start_s >= limit_s - 1e-12
        assert (result.link_bytes >= crossed).all()  # lost packets are sent again
        last_s = max(result.completion_s, max(change.time_s for change in changes))
        up_s = last_s - np.array(down_s)
        assert (result.packet_counts["wire_bytes"] * 8 / RATE <= up_s + 1e-9).all()
        moved, place = _shuffled(flows, chance)
        again = _packet(links, moved, changes=changes, **options)
        assert (again.finish_s[place] == result.finish_s).all()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_links_fail_and_come_back_and_routes_change(transport: str) -> None:
    links = _links((0, 1), (1, 2), (0, 3), (3, 2))
    flows = [Flow(0, 2, 4e6, (0, 1))]
    timeout = {"retransmission_timeout_s": 1e-3, "transport": transport}
    down, up = LinkChange(1e-4, 1, 0.0), LinkChange(1.2e-3, 1, RATE)
    back = _packet(links, flows, changes=[down, up], **timeout)
    assert back.completion_s > 1.2e-3
    assert back.link_bytes[2] == 0
    moved = _packet(links, flows, changes=[down], reroutes=[Reroute(2e-4, 0, (2, 3))], **timeout)
    assert moved.link_bytes[3] > 2.5e6
    with refused(ValueError, "failed"):
        _packet(links, flows, changes=[down], **timeout)


def test_a_circuit_can_move_while_flows_wait_for_it() -> None:
    """A reconfiguration: the link to 1 is taken away, 10 ms later its port is wired to 2."""
    links = _links((0, 1), (0, 2))
    flows = [Flow(0, 1, 1e6, (0,)), Flow(0, 2, 1e6, (1,))]
    changes = [LinkChange(0.0, 1, 0.0), LinkChange(1e-3, 0, 0.0), LinkChange(11e-3, 1, RATE)]
    result = _packet(links, flows, changes=changes, transport="roce")
    assert result.finish_s[0] < 1e-3
    assert result.finish_s[1] == pytest.approx(11e-3 + 1e6 * WIRE / PAYLOAD * 8 / RATE, rel=0.01)


def test_packets_are_sprayed_over_all_paths_and_flows_hashed_to_one() -> None:
    links = _links((0, 1), (0, 1), (0, 1))
    paths = {0: [(0,), (1,), (2,)]}
    sprayed = _packet(links, [Flow(0, 1, 300 * PAYLOAD, (0,))], paths=paths)
    assert sprayed.completion_s == pytest.approx(100 * 720e-9 + 1e-6, rel=1e-12)
    flows = [Flow(0, 1, 10 * PAYLOAD, (0,)) for _ in range(30)]
    hashed = _packet(links, flows, paths=paths, spread="ecmp", seed=3)
    assert (hashed.link_bytes % (10 * PAYLOAD) == 0).all()
    assert (hashed.link_bytes > 0).all()
    other = _packet(links, flows, paths=paths, spread="ecmp", seed=4)
    assert list(other.link_bytes) != list(hashed.link_bytes)


def test_a_run_can_be_ended_early() -> None:
    links, flows = _ring_all_reduce(16, (1,), 1_000_000)
    whole = _packet(links, flows)
    part = _packet(links, flows, until_s=whole.completion_s / 2)
    assert not part.complete
    assert 0 < (part.finish_s < math.inf).sum() < len(flows)
    done = part.finish_s < math.inf
    assert (part.finish_s[done] == whole.finish_s[done]).all()


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"transport": "tcp"}, ("transport", "tcp")),
        ({"mtu_bytes": 0}, ("mtu_bytes", 0, "1..1048576")),
        ({"mtu_bytes": "large"}, ("mtu_bytes", "large")),
        ({"colour": "red"}, ("colour", "option")),
        ({"relay_queue_bytes": 10}, ("relay_queue_bytes", 10, 0)),
        ({"lossless": True, "transport": "ndp"}, ("lossless",)),
        ({"lossless": True, "control_first": False}, ("control_first", 0)),
        ({"acks": "links", "transport": "roce"}, ("acks", "links", "link 0", "node 0", 1)),
        ({"paths": {0: [(1,)]}}, ("paths", "link 1", "0..0")),
        ({"paths": {4: [(0,)]}}, ("paths", 4)),
        ({"reroutes": [Reroute(math.nan, 0, (0,))]}, ("reroutes", "time_s")),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        _packet(_links((0, 1)), [Flow(0, 1, 1.0, (0,))], **options)
