"""The trace of `topoopt timeline`: predicted and measured iterations on one time axis."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.dumps import NOW_NS, collective, dump, message
from support.refusals import refused
from support.small_op_graphs import chain, one_all_reduce

from torch_topoopt.launcher.main import main
from torch_topoopt.plan import Cluster, Link
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.report.timeline import write_timeline
from torch_topoopt.sim import predict
from torch_topoopt.supervision.dumps import Dump, read_dump
from torch_topoopt.supervision.recorded_timeline import (
    LinkSample,
    RankTimeline,
    parse_range,
    read_timelines,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan

MS = 1_000_000  # ns


def planned(graph: OpGraph, servers: int = 4) -> Plan:
    cluster = Cluster(servers, min(2, servers - 1), 10.0)
    return planner.plan(graph, cluster, PlanningOptions(strategy_space="data-parallel"))


def events_of(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    file = io.StringIO()
    write_timeline(file, *arguments, **options)
    events: list[dict[str, Any]] = json.loads(file.getvalue())["traceEvents"]
    return events


def slices(events: list[dict[str, Any]], thread: str) -> list[dict[str, Any]]:
    """Of the threads whose names begin so."""
    named = {
        (of["pid"], of["tid"])
        for of in events
        if of["name"] == "thread_name" and of["args"]["name"].startswith(thread)
    }
    return [of for of in events if of["ph"] == "X" and (of["pid"], of["tid"]) in named]


def check_shape(events: list[dict[str, Any]]) -> None:
    """Slices of a thread do not overlap, and both ends of every arrow lie in a slice."""
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for of in events:
        if of["ph"] == "X":
            by_thread[of["pid"], of["tid"]].append((of["ts"], of["ts"] + of["dur"]))
    for spans in by_thread.values():
        spans.sort()
        for (_, end), (begin, _) in itertools.pairwise(spans):
            assert begin >= end - 1e-3
    arrows = Counter((of["id"], of["ph"]) for of in events if of["ph"] in "sf")
    assert set(arrows.values()) <= {1}
    assert {of for of, _ in arrows} == {of for of, phase in arrows if phase == "f"}
    for of in events:
        if of["ph"] in "sf":
            spans = by_thread[of["pid"], of["tid"]]
            assert any(begin <= of["ts"] <= end for begin, end in spans), of
    threads = {(of["pid"], of["tid"]) for of in events if of["name"] == "thread_name"}
    assert set(by_thread) <= threads


def test_a_predicted_iteration_has_all_operators_collectives_links_and_arrows() -> None:
    graph, servers = chain(3), 4
    plan = planned(graph)
    events = events_of(graph, plan, iterations=2)
    check_shape(events)
    computed = slices(events, "compute, predicted")
    per_server = Counter((of["pid"], of["name"]) for of in computed)
    assert per_server == {
        (server, f"layer{i} {what}"): 2
        for server in range(servers)
        for i in range(3)
        for what in ("forward", "backward")
    }
    expected = predict(graph, plan.cluster, plan.network, plan.strategy)
    busy = sum(of["dur"] for of in computed if of["pid"] == 0) / 2e6
    assert busy == pytest.approx(expected.compute_s, rel=1e-6)
    (one, two) = slices(events, "iterations, predicted")
    assert one["dur"] == pytest.approx(expected.iteration_s * 1e6, rel=1e-6)
    assert two["ts"] == pytest.approx(one["dur"])
    sent: Counter[tuple[int, str]] = Counter()
    for i, link in enumerate(plan.network.links):
        name = f"link {link.source}.{link.source_port} -> {link.target}.{link.target_port}"
        on_link = slices(events, f"{name}, predicted")
        size = sum(of["args"]["size_bytes"] for of in on_link) / 2
        assert size == pytest.approx(expected.link_bytes[i], rel=1e-6)
        sent[link.source, name] += 1
        rates = [of for of in events if of["ph"] == "C" and of["name"] == f"{name}, predicted"]
        assert max(of["args"]["Gb/s"] for of in rates) <= 10 + 1e-6
        assert rates[-1]["args"]["Gb/s"] == pytest.approx(0, abs=1e-6)
        carried = sum(
            a["args"]["Gb/s"] * (b["ts"] - a["ts"]) * 125 for a, b in itertools.pairwise(rates)
        )
        assert carried / 2 == pytest.approx(expected.link_bytes[i], rel=1e-3)
    assert any("AllReduce of layer" in of["name"] for of in slices(events, "collectives"))
    assert len([of for of in events if of["ph"] == "s"]) >= len(sent)


def test_micro_batches_are_told_apart() -> None:
    graph = chain(3)
    plan = replace(planned(graph), micro_batches=4)
    computed = slices(events_of(graph, plan, iterations=1), "compute, predicted")
    seen = Counter((of["pid"], of["name"], of["args"]["micro_batch"]) for of in computed)
    assert seen == {
        (server, f"layer{i} {what}", batch): 1
        for server in range(4)
        for i in range(3)
        for what in ("forward", "backward")
        for batch in range(4)
    }
    for server in range(4):
        order = [of for of in computed if of["pid"] == server]
        first = {(of["name"], of["args"]["micro_batch"]): of["ts"] for of in order}
        for batch in range(4):
            assert first["layer0 forward", batch] < first["layer2 forward", batch]
            assert first["layer2 forward", batch] < first["layer2 backward", batch]
            assert first["layer2 backward", batch] < first["layer0 backward", batch]


def timeline(rank: int, begin_ns: int, *, first: int = 5) -> RankTimeline:
    """Two iterations of 10 ms with a backward pass each, and a link that sends 1 MB in 4 ms."""
    ends = (begin_ns, begin_ns + 10 * MS, begin_ns + 20 * MS)
    backward = ((begin_ns + 2 * MS, begin_ns + 5 * MS), (begin_ns + 12 * MS, begin_ns + 15 * MS))
    samples = tuple(LinkSample(begin_ns + i * 4 * MS, (i * 10**6,)) for i in range(3))
    links = (Link(rank, 0, 1 - rank, 0),)
    return RankTimeline(1, rank, rank, first, ends, backward, links, samples).validate()


def recorded_dump(folder: Path, rank: int, entries: list[dict[str, Any]]) -> Dump:
    path = folder / f"rank_{rank}"
    path.write_bytes(pickle.dumps(dump(rank, entries), protocol=2))
    return read_dump(path)


def timed(entry: dict[str, Any], begin_ms: float, end_ms: float | None) -> dict[str, Any]:
    begin = NOW_NS + int(begin_ms * MS)
    end = None if end_ms is None else NOW_NS + int(end_ms * MS)
    entry |= {"time_created_ns": begin, "time_discovered_started_ns": begin}
    return entry | {"time_discovered_completed_ns": end}


def test_measured_iterations_begin_where_the_predicted_ones_do(tmp_path: Path) -> None:
    graph = one_all_reduce(10**6)
    plan = planned(graph, 2)
    late = 1
    dumps = [
        recorded_dump(
            tmp_path,
            rank,
            [
                timed(collective(1), -3, -2),  # before: not shown
                timed(collective(2), 3 + 0.5 * rank, 6),
                timed(message(("send", "recv")[rank], 0, 1, state="completed"), 7, 8 + rank),
                timed(collective(3, state="started"), 25, None),
            ],
        )
        for rank in range(2)
    ]
    timelines = [timeline(0, NOW_NS), timeline(1, NOW_NS + late * MS)]
    events = events_of(graph, plan, list(zip(timelines, dumps, strict=True)))
    check_shape(events)
    measured = [of for of in slices(events, "iterations, measured") if of["pid"] == 0]
    predicted = slices(events, "iterations, predicted")
    assert [of["ts"] for of in predicted] == [of["ts"] for of in measured] == [0, 10_000]
    assert [of["name"] for of in measured] == ["iteration 5", "iteration 6"]
    work = [of for of in slices(events, "compute, measured") if of["pid"] == 1]
    assert [(of["name"], of["ts"], of["dur"]) for of in work[:3]] == [
        ("forward", 1000, 2000), ("backward", 3000, 3000), ("optimizer", 6000, 5000),
    ]  # fmt: skip
    calls = slices(events, "collectives, measured")
    assert [(of["pid"], of["name"], of["ts"]) for of in calls] == [
        (0, "all_reduce 2", 3000), (1, "all_reduce 2", 3500),
    ]  # fmt: skip
    arrows = {
        of["name"]: (of["pid"], of["ts"])
        for of in events
        if of["ph"] == "s" and of["name"].startswith(("message", "collective "))
    }
    # from the send; and from the rank that called last
    assert arrows == {"message": (0, 7000), "collective 2 of group 0": (1, 3500)}
    rates = [of for of in events if of["ph"] == "C" and of["name"].endswith("measured")]
    assert {of["args"]["Gb/s"] for of in rates} == {2.0}


def test_files_of_a_run_are_read_back(tmp_path: Path) -> None:
    (tmp_path / "timeline").mkdir()
    for rank in (1, 0):
        timeline(rank, NOW_NS).save(tmp_path / "timeline" / f"rank-{rank}.json")
    recorded_dump(tmp_path / "timeline", 1, [collective(1)])
    (first, none), (second, found) = read_timelines(tmp_path)
    assert (first, none) == (timeline(0, NOW_NS), None)
    assert second == timeline(1, NOW_NS)
    assert found is not None
    assert found.rank == 1
    with refused(DocumentError, "ends_ns"):
        RankTimeline(1, 0, 0, 5, (2, 1), (), (), ()).validate()
    with refused(DocumentError, 1, 0):
        RankTimeline(1, 0, 0, 5, (1, 2), (), (), (LinkSample(1, (5,)),)).validate()


@pytest.mark.parametrize("text", ["", "5", "5:5", "0:3", "a:b", "1:99999", "-1:3"])
def test_ranges_that_are_none(text: str) -> None:
    assert parse_range("10:18") == (10, 18)
    with refused(ValueError, "FIRST:END"):
        parse_range(text)


def test_the_verb_writes_the_prediction_of_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = chain(3)
    plan = planned(graph)
    graph.save(tmp_path / "opgraph.json")
    plan.save(tmp_path / "plan.json")
    assert main(["timeline", str(tmp_path / "plan.json"), "--predicted-iterations", "3"]) == 0
    assert "3 iterations predicted" in capsys.readouterr().out
    text = (tmp_path / "plan.timeline.json").read_text()
    assert len(slices(json.loads(text)["traceEvents"], "iterations")) == 3
    assert main(["timeline", str(tmp_path), "-o", str(tmp_path / "t.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["contents"] == "2 iterations predicted"
    (tmp_path / "opgraph.json").unlink()
    assert main(["timeline", str(tmp_path)]) == 2
    assert "`topoopt run --timeline FIRST:END`" in capsys.readouterr().err
