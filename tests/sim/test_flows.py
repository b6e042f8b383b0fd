"""run_flows and its text format: closed forms, an exact reference, invariants, bad input."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import signal
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from oracles.exact_max_min import exact_rates

from torch_topoopt.sim import Flow, FlowLink, LinkChange, read_flows, run_flow_file, run_flows
from torch_topoopt.sim.flows import run_program, write_flows
from torch_topoopt.sim.results import write_flow_csv, write_link_csv, write_trace

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from support.refusals import refused

from references import flow_workloads as workloads

TWO_WAY = """\
nodes 3 hosts 2   # two hosts and a switch
link 0 0 2 8e9 1000
link 1 2 1 8e9 1000
link 2 1 2 8e9 1000
link 3 2 0 8e9 1000

flow 0 0 1 1000 path 2 0 1 deps 0
flow 1 1 0 500 path 2 2 3 deps 1 0
"""


def run(workload: workloads.Workload, **options: object) -> object:
    return run_flows(
        workload.links, workload.flows, nodes=workload.nodes, hosts=workload.hosts, **options
    )


def random_network(rng: random.Random) -> tuple[list[FlowLink], list[Flow]]:
    """A random directed graph with random walks on it as paths; rates differ by small factors."""
    nodes = rng.randint(3, 7)
    links = [
        FlowLink(a, b, 8.0 * rng.choice([1, 2, 5]), rng.choice([0.0, 1e8]))
        for a in range(nodes)
        for b in range(nodes)
        if a != b and rng.random() < 0.6
    ] or [FlowLink(0, 1, 8.0)]
    out: dict[int, list[int]] = {}
    for i, link in enumerate(links):
        out.setdefault(link.source, []).append(i)
    flows: list[Flow] = []
    for i in range(rng.randint(1, 20)):
        first = rng.randrange(len(links))
        path, seen = [first], {links[first].source, links[first].target}
        for _ in range(rng.randint(0, 3)):
            more = [j for j in out.get(links[path[-1]].target, []) if links[j].target not in seen]
            if not more:
                break
            path.append(rng.choice(more))
            seen.add(links[path[-1]].target)
        after = tuple(sorted(rng.sample(range(i), min(i, rng.choice([0, 0, 1, 2])))))
        size = rng.choice([1.0, 4.0, 10 * rng.random() + 0.01])
        flows.append(Flow(links[first].source, links[path[-1]].target, size, tuple(path), after))
    return links, flows


def reference_finish(
    links: list[FlowLink], flows: list[Flow], changes: tuple[LinkChange, ...] = ()
) -> list[float]:
    """Plain simulation in exact fractions: every event solves all rates anew, by definition."""
    capacity = [Fraction(link.bits_per_s) / 8 for link in links]
    latency = [sum(Fraction(links[i].latency_ns) / 10**9 for i in flow.path) for flow in flows]
    left = [Fraction(flow.size_bytes) for flow in flows]
    arrives: dict[int, Fraction] = {}  # sent, on the way
    finish: dict[int, Fraction] = {}
    pending = sorted(changes, key=lambda change: change.time_s)
    now = Fraction(0)
    while len(finish) < len(flows):
        while pending and Fraction(pending[0].time_s) <= now:
            capacity[pending[0].link] = Fraction(pending[0].bits_per_s) / 8
            pending.pop(0)
        sending = [
            i
            for i, flow in enumerate(flows)
            if i not in arrives and i not in finish and all(j in finish for j in flow.after)
        ]
        counts = [1 if i in sending else 0 for i in range(len(flows))]
        rates = exact_rates(capacity, [[(j, 1) for j in flow.path] for flow in flows], counts)
        times = [left[i] / rates[i] for i in sending if rates[i]]
        times += [time - now for time in arrives.values()]
        times += [Fraction(change.time_s) - now for change in pending[:1]]
        step = min(times)
        now += step
        for i in sending:
            left[i] -= rates[i] * step
            if left[i] == 0:
                arrives[i] = now + latency[i]
        for i in [i for i, time in arrives.items() if time <= now]:
            finish[i] = arrives.pop(i)
    return [float(finish[i]) for i in range(len(flows))]


@pytest.mark.parametrize("seed", range(25))
def test_every_flow_ends_when_the_exact_reference_says(seed: int) -> None:
    links, flows = random_network(random.Random(seed))
    result = run_flows(links, flows)
    assert result.finish_s.tolist() == pytest.approx(reference_finish(links, flows), rel=1e-9)
    assert result.completion_s == max(result.finish_s)


@pytest.mark.parametrize("seed", range(15))
def test_links_that_change_are_followed_exactly(seed: int) -> None:
    rng = random.Random(1000 + seed)
    links, flows = random_network(rng)
    changes = []
    for _ in range(rng.randint(1, 4)):
        link, time_s = rng.randrange(len(links)), rng.choice([0.0, 0.25, 1.0, 2.5])
        changes.append(LinkChange(time_s, link, 8.0 * rng.choice([0, 0.5, 3])))
        changes.append(LinkChange(time_s + 2, link, 8.0))
    changes.sort(key=lambda change: change.time_s)  # of one link at one time the last counts
    result = run_flows(links, flows, changes=changes)
    expected = reference_finish(links, flows, tuple(changes))
    assert result.finish_s.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_conserved_no_limit_is_beaten_and_order_does_not_matter(seed: int) -> None:
    rng = random.Random(2000 + seed)
    links, flows = random_network(rng)
    result = run_flows(links, flows)
    asked = [0.0] * len(links)
    for flow in flows:
        for link in flow.path:
            asked[link] += flow.size_bytes
    assert result.link_bytes.tolist() == pytest.approx(asked, rel=1e-12)
    for link, size_bytes in zip(links, asked, strict=True):
        assert result.completion_s >= size_bytes / (link.bits_per_s / 8) * (1 - 1e-9)
    for flow, start, finish in zip(flows, result.start_s, result.finish_s, strict=True):
        assert start == max((result.finish_s[i] for i in flow.after), default=0.0)
        limit = max(flow.size_bytes / (links[i].bits_per_s / 8) for i in flow.path)
        limit += sum(links[i].latency_ns for i in flow.path) * 1e-9
        assert finish >= (start + limit) * (1 - 1e-9)

    order = rng.sample(range(len(flows)), len(flows))
    place = {old: new for new, old in enumerate(order)}
    moved = [
        Flow(f.source, f.target, f.size_bytes, f.path, tuple(place[i] for i in f.after))
        for f in (flows[i] for i in order)
    ]
    again = run_flows(links, moved)
    assert [again.finish_s[place[i]] for i in range(len(flows))] == pytest.approx(
        result.finish_s.tolist(), rel=1e-9
    )


@pytest.mark.parametrize(
    ("workload", "completion_ms"),
    [
        (workloads.ring_all_reduce(16), 15.030),
        (workloads.ring_all_reduce(32), 2 * 31 * (100e6 / 32 * 8 / 100e9 + 1e-6) * 1e3),
        # the largest chunk, 25 MB / 16 rounded up, decides
        (workloads.circulant_all_reduce(16, (1, 3)), 2 * 15 * (3.125e6 * 8 / 100e9 + 1e-6) * 1e3),
        (workloads.all_to_all(), 5.044),
        (workloads.incast(20), 20 * 1e6 * 8 / 100e9 * 1e3 + 2e-3),
    ],
)
def test_closed_forms(workload: workloads.Workload, completion_ms: float) -> None:
    result = run(workload)
    assert result.completion_s * 1e3 == pytest.approx(completion_ms, rel=1e-12)


def test_two_runs_are_the_same_to_the_last_bit() -> None:
    workload = workloads.all_to_all(leaves=4, hosts_per_leaf=4, distinct_sizes=True, seed=3)
    first, second = run(workload), run(workload)
    assert np.array_equal(first.finish_s, second.finish_s)
    assert np.array_equal(first.link_bytes, second.link_bytes)


def test_the_text_format_says_the_same_as_the_lists(tmp_path: Path) -> None:
    links, flows = random_network(random.Random(5))
    nodes = 1 + max(max(link.source, link.target) for link in links)
    path = tmp_path / "flows.txt"
    with path.open("w") as file:
        write_flows(file, links, flows, nodes=nodes, hosts=nodes)
    assert np.array_equal(run_flow_file(str(path)).finish_s, run_flows(links, flows).finish_s)


def test_ids_may_have_gaps_and_records_any_order(tmp_path: Path) -> None:
    path = tmp_path / "flows.txt"
    path.write_text(
        "nodes 2 hosts 2\nflow 70 1 0 1000 path 1 9 deps 1 30\nlink 9 1 0 8e9 0\n"
        "link 4 0 1 8e9 0\r\nflow 30 0 1 1000 path 1 4 deps 0"
    )
    program = read_flows(str(path))
    result = run_program(program)
    assert result.finish_s.tolist() == pytest.approx([2e-6, 1e-6])
    flow = program.flow(0)
    assert (flow.id, flow.source, flow.target) == (70, 1, 0)
    assert (flow.size_bytes, flow.links) == (1000.0, [0])


def test_results_as_csv_and_trace(tmp_path: Path) -> None:
    path = tmp_path / "flows.txt"
    path.write_text(TWO_WAY)
    program = read_flows(str(path))
    result = run_program(program)
    assert result.finish_s.tolist() == pytest.approx([3e-6, 5.5e-6])
    flows, links, trace = io.StringIO(), io.StringIO(), io.StringIO()
    write_flow_csv(flows, program, result)
    write_link_csv(links, program, result)
    write_trace(trace, program, result)
    rows = list(csv.DictReader(io.StringIO(flows.getvalue())))
    assert [row["flow"] for row in rows] == ["0", "1"]
    assert float(rows[1]["start_s"]) == float(rows[0]["finish_s"]) == result.finish_s[0]
    assert [row["size_bytes"] for row in csv.DictReader(io.StringIO(links.getvalue()))] == [
        *("1000", "1000", "500", "500")
    ]
    events = json.loads(trace.getvalue())["traceEvents"]
    assert [(e["pid"], e["ts"]) for e in events if e["ph"] == "X"] == [
        (0, 0.0),
        (1, pytest.approx(3.0)),
    ]


def test_a_signal_ends_a_run_that_nobody_asks_about() -> None:
    class Stopped(BaseException):
        pass

    def stop(signum: int, frame: object) -> None:
        raise Stopped

    flow = Flow(0, 1, 3e10, (0,))  # twenty million packets, more than anybody waits for
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(Stopped):
            run_flows([FlowLink(0, 1, 1e9)], [flow], level="packet")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_run_can_be_ended_early() -> None:
    workload = workloads.ring_all_reduce(16)
    half = run(workload, until_s=7.515e-3)
    assert not half.complete
    assert half.completion_s == 7.515e-3
    assert int(np.isfinite(half.finish_s).sum()) == 15 * 16  # half of the 30 steps
    calls: list[int] = []

    def stop(now_s: float, finished: int) -> bool:
        calls.append(finished)
        return False

    many = workloads.all_to_all(leaves=6, hosts_per_leaf=6, distinct_sizes=True, seed=1)
    big = run(many, keep_going=stop)
    assert not big.complete
    assert calls == [int(np.isfinite(big.finish_s).sum())]


FLOW = "flow 0 0 1 1000 path 2 0 1 deps 0"


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        ("nodes 3 hosts 2", "", ("line 2", "nodes N hosts H", "link")),
        ("nodes 3 hosts 2", "nodes 3 hosts 4", ("line 1", 4, "1..nodes", 3)),
        ("nodes 3", "nodes 0", ("line 1", 0, 1)),
        ("link 1 2 1 8e9", "link 0 2 1 8e9", ("line 3", "link 0")),
        (
            "link 1 2 1 8e9",
            "link 1 2 7 8e9",
            ("line 3", "link 1", 7, "0..2"),
        ),
        ("link 1 2 1 8e9", "link 1 2 2 8e9", ("line 3", "link 1", "node 2")),
        ("link 1 2 1 8e9", "link 1 2 1 0", ("line 3", "link 1", "bits_per_s", 0)),
        ("link 1 2 1 8e9", "link 1 2 1 nan", ("line 3", "link 1", "bits_per_s", "nan")),
        ("link 1 2 1 8e9", "link 1 2 1 inf", ("line 3", "link 1", "bits_per_s", "inf")),
        ("link 1 2 1 8e9 1000", "link 1 2 1 8e9 -1", ("line 3", "link 1", "latency_ns", -1)),
        ("link 1 2 1 8e9 1000", "link 1 2 1 8e9", ("line 3", "LATENCY_NS", "missing")),
        ("link 1 2 1 8e9", "link 1 2 x 8e9", ("line 3", "DST", "x")),
        ("link 1 2 1 8e9", "link -1 2 1 8e9", ("line 3", "ID", -1)),
        (FLOW, "flow 0 0 1 0 path 2 0 1 deps 0", ("line 7", "flow 0", 0)),
        (FLOW, "flow 0 0 1 -5 path 2 0 1 deps 0", ("line 7", "flow 0", -5)),
        (FLOW, "flow 0 0 1 nan path 2 0 1 deps 0", ("line 7", "flow 0", "nan")),
        (FLOW, "flow 0 0 2 1 path 1 0 deps 0", ("line 7", "flow 0", 2)),
        (FLOW, "flow 0 0 9 1 path 1 0 deps 0", ("line 7", "flow 0", 9)),
        (FLOW, "flow 0 0 0 1 path 0 deps 0", ("line 7", "flow 0", "node 0")),
        (FLOW, "flow 0 0 1 1 path 0 deps 0", ("line 7", "flow 0", "node 0", 1)),
        (FLOW, "flow 0 0 1 1 path 2 0 2 deps 0", ("flow 0", "path", "link 2", "node 1")),
        (FLOW, "flow 0 0 1 1 path 2 0 8 deps 0", ("line 7", "flow 0", "link 8")),
        (FLOW, "flow 0 0 1 1 path 2 0 deps 0", ("line 7", "deps")),
        (FLOW, "flow 0 0 1 1 path 2 0 1", ("line 7", "deps", "missing")),
        (FLOW, "flow 0 0 1 1 path 2 0 1 deps 0 4", ("line 7", 4)),
        (FLOW, "flow 0 0 1 1 path 2 0 1 deps 1 6", ("line 7", "flow 0", "flow 6")),
        (FLOW, "flow 1 0 1 1 path 2 0 1 deps 0", ("line 8", "flow 1")),
        (FLOW, FLOW.replace("deps 0", "deps 1 1"), ("cycle", "after")),
        (
            FLOW,
            FLOW.replace("deps 0", "deps 1 0"),
            ("line 7", "flow 0", 0),
        ),
        (FLOW, "route 1", ("line 7", "route")),
    ],
)
def test_a_bad_file_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, tokens: tuple[object, ...]
) -> None:
    path = tmp_path / "flows.txt"
    assert old in TWO_WAY
    path.write_text(TWO_WAY.replace(old, new))
    with refused(ValueError, *tokens) as caught:
        read_flows(str(path))
    assert str(caught.value).startswith(f"{path}: line ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refused(ValueError, "nothing.txt", "read"):
        read_flows(str(tmp_path / "nothing.txt"))


ONE = [FlowLink(0, 1, 8.0)]


@pytest.mark.parametrize(
    ("flows", "options", "tokens"),
    [
        ([Flow(0, 1, 0.0, (0,))], {}, ("flows[0]", 0)),
        ([Flow(0, 1, math.nan, (0,))], {}, ("flows[0]", "nan")),
        ([Flow(0, 1, 1.0, (3,))], {}, ("flows[0]", "path", "link 3", "0..0")),
        ([Flow(0, 1, 1.0, (0,), (2,))], {}, ("flows[0].after", "flow 2", "0..0")),
        ([Flow(1, 0, 1.0, (0,))], {}, ("flows[0]", "path", "link 0", "node 0")),
        ([Flow(0, 1, 1.0, (0,), (0,))], {}, ("cycle", 0)),
        ([Flow(0, 1, 1.0, (0,))], {"level": "atoms"}, ("level", "atoms")),
        ([Flow(0, 1, 1.0, (0,))], {"until_s": math.nan}, ("until_s", 0, "nan")),
        ([], {"changes": [LinkChange(-1.0, 0, 1.0)]}, ("changes[0]", "time_s", -1)),
        ([], {"changes": [LinkChange(1.0, 4, 1.0)]}, ("changes[0]", "link 4")),
        (
            [Flow(0, 1, 1.0, (0,))],
            {"changes": [LinkChange(0.5, 0, 0.0)]},
            ("never arrives", "failed"),
        ),
    ],
)
def test_bad_lists_are_named(
    flows: list[Flow], options: dict[str, object], tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        run_flows(ONE, flows, **options)


@pytest.mark.parametrize(
    ("rates", "paths"),
    [
        (
            (99999999999.93172, 300000000000.5042, 99999999999.98265, 299999999999.4777),
            "12:3 01:1 01:3 2:1.000000001 3:1 0123:3 3:3 3:3 3:1 3:3",
        ),
        (
            (300000000000.72186, 100000000000.16731, 299999999999.4613, 100000000000.1002),
            "3:1 23:1 12:1 12:1.000000001 3:3 01:1 1:3 1:2 3:1 2:1 0123:2 3:2",
        ),
    ],
)
def test_links_whose_levels_are_nearly_equal_settle(rates: tuple[float, ...], paths: str) -> None:
    """`paths` are links and megabytes of each flow. A search found these: closing one link opened
    the other, for ever."""

    def completion_s(rates: tuple[float, ...]) -> float:
        links = [FlowLink(i, i + 1, rate) for i, rate in enumerate(rates)]
        flows = []
        for path in paths.split():
            way, megabytes = path.split(":")
            used = tuple(map(int, way))
            flows.append(Flow(used[0], used[-1] + 1, float(megabytes) * 1e6, used))
        return run_flows(links, flows).completion_s

    even = tuple(round(rate, -11) for rate in rates)
    assert completion_s(rates) == pytest.approx(completion_s(even), rel=1e-9)
