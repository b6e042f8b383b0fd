"""The figures of a report: their meaning and their notation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from report_page import report
from report_runs import (
    as_lines,
    make_events,
    make_plan,
    train_events,
    write_run,
)
from support.refusals import refused

from torch_topoopt.plan import Cluster, Group, Link, Network, Ring, Route
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import format_seconds, prefix
from torch_topoopt.report import summary
from torch_topoopt.report.html import seconds, significant, size
from torch_topoopt.report.results import (
    compare_traffic,
    count_steps,
    find_accuracy,
    key_words,
    numbered_rings,
    reach,
    server_list,
    training_curves,
)
from torch_topoopt.report.run_folder import read_run

if TYPE_CHECKING:
    from pathlib import Path


def test_without_steps_both_sides_become_shares_that_sum_to_one(tmp_path: Path) -> None:
    plan = make_plan(5, (1, 2))
    folder = write_run(tmp_path / "run", plan, make_events(plan, with_steps=False))
    traffic = compare_traffic(read_run(folder))
    assert traffic.basis == "share"
    assert sum(traffic.predicted) == pytest.approx(1)
    assert sum(value or 0 for value in traffic.measured) == pytest.approx(1)
    _, page = report(folder)
    assert "the script logged no “steps”" in page.sections["traffic"]
    assert "shares of their own total" in page.sections["traffic"]


def test_bytes_are_those_predicted_at_the_end_of_the_run(tmp_path: Path) -> None:
    plan = make_plan(5, (1, 2))
    sizes = [1000 + i for i in range(len(plan.network.links))]
    events = [*make_events(plan), {"event": "predicted", "time_s": 62.0, "link_bytes": sizes}]
    folder = write_run(tmp_path / "run", plan, events)
    assert list(read_run(folder).plan.prediction.link_bytes) == sizes
    assert list(compare_traffic(read_run(folder)).predicted) == sizes
    for wrong in (sizes[1:], ["1"], None):
        events[-1]["link_bytes"] = wrong
        (folder / "metrics.jsonl").write_text(as_lines(events))
        with refused(DocumentError, "metrics.jsonl"):
            read_run(folder)


def test_steps_count_from_the_start_of_the_run_or_not_at_all() -> None:
    assert count_steps([{"epoch": 1, "steps": 45}, {"epoch": 2, "steps": 90}]) == (90, "")
    # Two lines for the same epoch (train and test) repeat its count; that is still a count.
    assert count_steps([{"epoch": 1, "steps": 45}, {"epoch": 1, "steps": 45}]) == (45, "")
    for steps in ([45, 45, 45], [45, 90, 45]):
        events = [{"epoch": i, "steps": s} for i, s in enumerate(steps)]
        assert count_steps(events)[0] is None
    assert count_steps([{"steps": "many"}, {"steps": 0}, {"steps": True}])[0] is None


def test_test_accuracy_is_preferred_and_percentages_are_read_as_such() -> None:
    events = [
        {"train_acc": 99.0, "valAccuracy": 90.0, "elapsed_s": 1.0},
        {"train_acc": 99.5, "valAccuracy": 95.5, "elapsed_s": 2.0},
        {"train_acc": 99.9, "valAccuracy": 95.0, "elapsed_s": 3.0},
    ]
    accuracy = find_accuracy(events)
    assert accuracy is not None
    assert accuracy.key == "valAccuracy"
    assert (accuracy.final, accuracy.best, accuracy.time_to_s) == pytest.approx((0.95, 0.955, 2.0))
    with_test = find_accuracy([{**e, "test_acc": 0.5} for e in events])
    assert with_test is not None
    assert (with_test.key, with_test.final) == ("test_acc", 0.5)


def test_time_to_accuracy_is_the_first_time_the_target_was_met() -> None:
    events = [{**event, "target_accuracy": 0.97} for event in train_events()]
    accuracy = find_accuracy(events)
    assert accuracy is not None
    first = next(event for event in events if event["test_accuracy"] >= 0.97)
    assert accuracy.time_to_s == first["elapsed_s"]
    unmet = find_accuracy([{**event, "target_accuracy": 0.999} for event in events])
    assert unmet is not None
    assert unmet.time_to_s is None
    assert find_accuracy([{"target_accuracy": 0.9, "time_to_accuracy_s": 4}]) is None
    assert key_words("latestAcc/top_1") == {"latest", "acc", "top"}


def test_curves_leave_gaps_where_a_value_is_not_finite_and_the_page_says_so(run: Path) -> None:
    events = [{"event": "train", "epoch": i, "loss": v} for i, v in enumerate([2.0, float("nan")])]
    curves = training_curves(events)
    assert curves.axis == "epoch"
    assert curves.losses[0].points == ((0.0, 2.0),)
    (run / "metrics.jsonl").write_text(as_lines(events))
    _, page = report(run)
    assert "loss was not a finite number 1 times" in page.sections["training"]
    assert json.dumps(summary(run), allow_nan=False)


def test_a_script_that_logs_nothing_useful_still_gets_a_report(run: Path) -> None:
    for events in ([], [{"event": "train", "note": "hello", "accuracy": None, "lr": 0.1}]):
        (run / "metrics.jsonl").write_text(as_lines(events))
        _, page = report(run)
        assert "logged no accuracy and no loss" in page.sections["training"]
        assert "The command was not recorded" in page.sections["reproduce"]


def test_a_loss_that_was_seen_is_not_said_to_be_missing(run: Path) -> None:
    steps = [
        {"event": "step", "time_s": float(i), "iteration": i, "step_s": 0.1, "loss": loss}
        for i, loss in enumerate((2.5, 2.25))
    ]
    (run / "metrics.jsonl").write_text(as_lines(steps))
    _, page = report(run)
    assert "from 2.50 to 2.25" in page.sections["training"]
    assert "2.25" in page.sections["headline"]


def test_parallel_cables_are_cables_of_their_own(tmp_path: Path) -> None:
    # Two servers, two cables between them: degree 2 is only valid from three servers on, so the
    # third server is attached by one cable, and 0 and 1 share two.
    cables = [Link(0, 0, 1, 0), Link(0, 1, 1, 1), Link(1, 2, 2, 0), Link(2, 1, 0, 2)]
    links = tuple(end for link in cables for end in (link, link.reverse))
    rings = (Ring((0, 1, 2), 0.5), Ring((2, 1, 0), 0.5))
    plan = make_plan(5, (1, 2))
    cluster = Cluster(5, 4, 1.0)
    links += tuple(
        end
        for link in (Link(3, 0, 2, 2), Link(4, 0, 2, 3), Link(3, 1, 4, 1))
        for end in (link, link.reverse)
    )
    routes = tuple(
        Route(servers, 1.0)
        for path in ((0, 2, 3), (0, 2, 4), (1, 2, 3), (1, 2, 4))
        for servers in (path, path[::-1])
    )
    network = Network(links, (Group((0, 1, 2), rings),), routes)
    sizes = tuple(range(1_000_000, 1_000_000 + len(links)))
    plan = replace(
        plan, cluster=cluster, network=network, strategy=(),
        prediction=replace(plan.prediction, link_bytes=sizes),
        demand=replace(plan.demand, groups=()),
    ).validate()  # fmt: skip
    _, page = report(write_run(tmp_path / "run", plan, []))
    (data,) = page.json["runs"]
    assert len(data["cables"]) == len(links) // 2
    assert [tuple(ends[:2]) for ends in data["cables"]].count((0, 1)) == 2
    assert {family for *_, family, _ in data["cables"]} == {-1, 0}  # of no ring, and of the ring
    assert "Grey: a link that no ring uses" in page.sections["topology"]


def test_strides_hops_and_server_lists_are_as_a_reader_would_count_them() -> None:
    plan = make_plan(4, (1,))
    assert [ring.stride for ring in numbered_rings(plan.network)] == [1, 3]
    distances = reach(plan.network)  # a ring of four: neighbours 1 hop, the opposite server 2
    assert (distances.pairs, distances.relayed_pairs, distances.most_hops) == (12, 4, 2)
    assert distances.mean_hops == pytest.approx((8 * 1 + 4 * 2) / 12)
    irregular = Group((0, 1, 2, 3), (Ring((0, 2, 1, 3), 1.0),))
    (ring,) = numbered_rings(replace(plan.network, groups=(irregular,)))
    assert ring.stride is None
    assert ring.stride_text == "irregular"
    assert server_list([6, 0, 1, 2, 3, 7]) == "0–3, 6, 7"
    assert server_list(range(0, 128, 2)) == "0, 2, 4, … 126"
    assert server_list([5]) == "5"


def test_numbers_are_rounded_and_prefixed_without_surprises() -> None:
    assert [significant(v) for v in (0, 1234, 99.96, 0.00123456)] == ["0", "1230", "100", "0.00123"]
    assert [prefix(v)[1] for v in (0, 999, 999.7, 1000, 2.5e9, 1e21)] == [
        "",
        "",
        "k",
        "k",
        "G",
        "E",
    ]
    assert ">999 B<" in size(999)
    assert ">51.8 MB<" in size(51_800_123)
    assert 'value="51800123"' in size(51_800_123)
    for value in (5e-6, 0.9999, 150, 3725, 0):
        assert f">{format_seconds(value)}<" in seconds(value), "as the command line shows it"


def alltoall_event(topologies: int, seconds: float, error: str = "") -> dict[str, Any]:
    why = "moving is faster" if topologies else "moving does not pay"
    return {
        "event": "alltoall", "time_s": 1.0, "total_bytes": 48_000_000, "topologies": topologies,
        "why": f"{why}: some predictions", "moving_predicted_s": 1.5, "static_predicted_s": 2.25,
        "seconds": seconds, "moving_s": 0.25 if topologies else 0.0, "error": error,
    }  # fmt: skip


def test_all_to_alls_show_what_was_chosen_predicted_and_measured(run: Path) -> None:
    events = [
        *(alltoall_event(2, seconds) for seconds in (1.25, 1.75)),
        alltoall_event(2, 7.0, "no light on 1A-2B <>"),
        alltoall_event(0, 3.5),
    ]
    (run / "metrics.jsonl").write_text(as_lines(events))
    _, page = report(run)
    section = page.sections["alltoalls"]
    assert "moving is faster" in section
    assert "moving does not pay" in section
    for text in ("48 MB", "1.5 s", "2.25 s", "250 ms", "3.5 s"):
        assert text in section
    assert "7 s" not in section, "one that was stopped says nothing of the time"
    assert "no light on 1A-2B <>" in section
    assert "are not shown" not in page.sections["headline"]


def test_other_collectives_are_told_from_all_to_alls(run: Path) -> None:
    events = [alltoall_event(2, 1.25), {**alltoall_event(2, 1.25), "collective": "all_reduce"}]
    events.append({**events[1], "members": 2})
    (run / "metrics.jsonl").write_text(as_lines(events))
    section = report(run)[1].sections["alltoalls"]
    assert section.count("moving is faster") == 3
    assert section.index("all_to_all") < section.index("all_reduce")


def test_a_run_without_all_to_alls_has_no_section_on_them(run: Path) -> None:
    _, page = report(run)
    assert "alltoalls" not in page.sections


def test_an_all_to_all_that_cannot_be_read_is_an_error(run: Path) -> None:
    (run / "metrics.jsonl").write_text(as_lines([{**alltoall_event(2, 1.0), "topologies": "two"}]))
    with refused(DocumentError, "metrics.jsonl:1", "topologies"):
        read_run(run)
