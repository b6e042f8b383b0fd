"""Missing, torn and wrong files of a run folder."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from report_page import OF_A_RUN, SECTIONS, report
from report_runs import (
    as_lines,
    make_events,
    make_plan,
    vgg_graph,
)
from support.refusals import named, refused

from torch_topoopt.plan import Plan, Prediction
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.report import summary, write_plan_report, write_report
from torch_topoopt.report.run_folder import parse_metrics

if TYPE_CHECKING:
    from pathlib import Path


def test_an_interrupted_run_gives_a_page_that_says_what_is_missing(run: Path) -> None:
    (run / "opgraph.json").unlink()
    (run / "metrics.jsonl").write_text(as_lines(make_events(make_plan(4, (1,)))[:1]))
    _, page = report(run)
    headline = page.sections["headline"]
    assert "opgraph.json is missing" in headline
    assert "not finished" in headline
    assert "no traffic" in page.sections["traffic"]
    assert len(summary(run)["notes"]) == 1


def test_a_plan_without_a_run_is_a_page_of_predictions(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    text, page = report(run)
    assert tuple(page.sections) == tuple(name for name in SECTIONS if name not in OF_A_RUN)
    for word in ("not finished", "is missing", "interrupted", "not recorded", "Not recorded"):
        assert word not in text
    assert "Predicted iteration" in page.sections["headline"]
    assert set(page.attributes("href")) <= {f"#{name}" for name in page.attributes("id")}
    alone = run.parent / "alone" / "my plan.json"
    alone.parent.mkdir()
    alone.write_bytes((run / "plan.json").read_bytes())
    written = write_plan_report(alone)
    assert written == alone.with_name("my plan.html")
    assert "there is no OpGraph" in written.read_text(encoding="utf-8")
    alone.with_name("my plan.opgraph.json").write_bytes((run / "opgraph.json").read_bytes())
    write_plan_report(alone)
    assert "there is no OpGraph" not in written.read_text(encoding="utf-8")


def _without_model(run: Path, *, predicts_bytes: bool) -> None:
    """Makes the run's plan one for a script whose model is unknown."""
    (run / "opgraph.json").unlink()
    plan = Plan.load(run / "plan.json")
    bare = Plan.of_network(plan.cluster, plan.network, plan.demand, model="train.py")
    if predicts_bytes:
        sizes = Prediction(0.0, 0.0, 0.0, 0.0, plan.prediction.link_bytes)
        bare = dataclasses.replace(bare, prediction=sizes)
    bare.save(run / "plan.json")


@pytest.mark.parametrize("predicts_bytes", [True, False])
def test_what_was_not_predicted_is_not_shown_as_nothing(run: Path, predicts_bytes: bool) -> None:
    _without_model(run, predicts_bytes=predicts_bytes)
    text, page = report(run)
    assert "opgraph.json is missing" not in text
    assert "samples" not in page.sections["headline"]
    assert "Not predicted" in page.sections["rounds"]
    assert "The script's own" in page.sections["strategy"]
    assert ("Traffic, predicted and measured" in page.sections["traffic"]) is predicts_bytes
    figures = summary(run)
    assert figures["prediction"]["iteration_s"] is None
    for link in figures["traffic"]["links"]:
        assert (link["predicted_bytes_per_iteration"] is not None) is predicts_bytes
        assert (link["measured_over_predicted"] is not None) is predicts_bytes


def test_a_run_without_a_predicted_time_shows_the_measured_one_under_time(run: Path) -> None:
    _, page = report(run)
    assert "measured" not in page.sections
    _without_model(run, predicts_bytes=True)
    iterations = {"event": "iterations", "time_s": 1.0, "count": 540, "seconds": 0.125}
    lines = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(lines + as_lines([iterations]))
    _, page = report(run, analysed=True)
    assert "125 ms, the mean of 540" in page.sections["measured"]
    assert "need a model" in page.sections["answers"]


def test_a_prediction_for_another_model_is_not_held_against_the_run(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text()
    asked = {"event": "groups", "asked": ["gloo"], "taken_over": [], "opened_topoopt": False}
    first, rest = lines.split("\n", 1)
    more = as_lines([{"event": "demand", "of_script": False}, asked])
    (run / "metrics.jsonl").write_text(f"{first}\n{more.rstrip()}\n{rest}")
    _, page = report(run)
    assert "not compared with its predictions" in page.sections["headline"]
    assert "the script requested gloo" in page.sections["headline"]
    assert "nothing was predicted of this script" in page.sections["traffic"]
    assert summary(run)["traffic"]["links"][0]["measured_over_predicted"] is None


def test_a_run_without_an_end_is_shown_as_not_finished(run: Path) -> None:
    plan = make_plan(4, (1,))
    (run / "metrics.jsonl").write_text(as_lines(make_events(plan)[:6]))
    _, page = report(run)
    assert "not finished" in page.sections["headline"]
    assert page.rows["stages"][4][2] == "not recorded"


def test_a_failed_run_shows_its_exit_code(run: Path) -> None:
    plan = make_plan(4, (1,))
    (run / "metrics.jsonl").write_text(as_lines(make_events(plan, exit_code=17)))
    assert "exit code 17" in report(run)[1].sections["headline"]


@pytest.mark.parametrize(
    "tail", [b'{"event": "tra', b'{"event": "train", "name": "\xc3', b"\x00\x00\n"]
)
def test_a_torn_last_line_is_left_out_and_mentioned(run: Path, tail: bytes) -> None:
    whole = summary(run)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    torn = summary(run)
    (note,) = torn.pop("notes")
    assert note == "The last line of metrics.jsonl (27) was cut short and is left out."
    assert whole.pop("notes") == []
    assert torn == whole
    assert "cut short" in report(run)[1].sections["headline"]


def test_a_torn_line_in_the_middle_is_an_error_that_names_the_line(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[2] = lines[2][:9] + "\n"
    (run / "metrics.jsonl").write_text("".join(lines))
    with refused(DocumentError, "metrics.jsonl:3", "JSON"):
        write_report(run)
    assert not (run / "report.html").exists()


WRONG_LINES: list[tuple[Any, tuple[object, ...]]] = [
    ([1], ("object", "list")),
    ({"evnt": "end"}, ("event", None)),
    ({"event": "end", "exit_code": True}, ("exit_code", True)),
    ({"event": "stage", "name": "trane", "seconds": 1}, ("name", "trane", "profile")),
    ({"event": "stage", "name": "wire", "seconds": -1}, ("seconds", 0)),
    ({"event": "stage", "name": "wire", "seconds": float("nan")}, ("seconds",)),
    (
        {"event": "run", "command": "x", "servers": 1, "degree": 1, "seed": 0, "time": ""},
        ("command", "list", "'x'"),
    ),
    (
        {"event": "run", "command": [], "servers": "4", "degree": 1, "seed": 0, "time": ""},
        ("servers", 0, "'4'"),
    ),
    (
        {"event": "link", "source": 0, "source_port": 0, "target": 1, "target_port": 1,
         "sent_bytes": 5, "relayed_bytes": 6},
        ("relayed_bytes", 6, 5, "sent_bytes"),
    ),
    (
        {"event": "link", "source": 0, "source_port": 0, "target": 1, "target_port": 1,
         "sent_bytes": 1.5, "relayed_bytes": 0},
        ("sent_bytes", "int", 1.5),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "tokens"), WRONG_LINES)
def test_a_wrong_event_is_an_error_that_names_line_field_and_value(
    line: Any, tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, "metrics.jsonl:1", *tokens):
        parse_metrics(json.dumps(line).encode())


def test_a_link_that_was_measured_twice_or_is_not_planned_is_an_error(run: Path) -> None:
    plan = make_plan(4, (1,))
    events = make_events(plan)
    link = next(event for event in events if event["event"] == "link")
    (run / "metrics.jsonl").write_text(as_lines([*events, link]))
    with refused(DocumentError, "link 0:0 -> 1:1"):
        write_report(run)
    (run / "metrics.jsonl").write_text(as_lines([{**link, "target": 2}]))
    with refused(DocumentError, "run/metrics.jsonl", "link 0:0 -> 2:1", "plan.json"):
        write_report(run)


def test_a_folder_without_a_plan_and_corrupt_documents_are_errors_that_name_the_file(
    run: Path,
) -> None:
    (run / "opgraph.json").write_text("{")
    with refused(DocumentError, "opgraph.json", "JSON"):
        write_report(run)
    (run / "plan.json").write_text('{"version": 99}')
    with refused(DocumentError, "plan.json", "version", 99):
        summary(run)
    (run / "plan.json").unlink()
    with refused(DocumentError, "plan.json", "missing"):
        write_report(run)


def test_files_of_different_runs_in_one_folder_are_pointed_out(run: Path) -> None:
    vgg_graph("another", 64).save(run / "opgraph.json")
    events = make_events(make_plan(4, (1,)))
    events[0]["servers"] = 8
    (run / "metrics.jsonl").write_text(as_lines(events[:-3]))
    notes = " ".join(summary(run)["notes"])
    assert named(notes, "opgraph.json", "another", 64)
    assert "metrics.jsonl is of 8 servers" in notes
    assert "1 of 8 links have no measured traffic" in notes


def test_a_metrics_file_of_two_runs_shows_the_last_and_says_so() -> None:
    start = {"event": "run", "command": ["a"], "servers": 1, "degree": 1, "seed": 0, "time": "t"}
    stage = {"event": "stage", "name": "wire", "seconds": 2}
    again = {**start, "command": ["b"]}
    metrics = parse_metrics(as_lines([start, stage, again, stage, stage]).encode())
    assert metrics.start is not None
    assert metrics.start.command == ("b",)
    assert metrics.stages == {"wire": 4.0}
    assert metrics.notes == ["metrics.jsonl records 2 runs; this report shows the last."]


def test_the_last_number_of_servers_is_that_after_restarts_and_growth() -> None:
    restart = {"number": 1, "most": 1, "failed": [], "lost_servers": [0], "servers": 2}
    came = {"came_servers": [2], "plan_digest": "d", "stopped_s": 0.5}
    events: list[dict[str, object]] = [
        {"event": "hosts", "servers": 3},
        {"event": "restart", "time_s": 1.0, **restart},
        {"event": "growth", "time_s": 2.0, "servers": 2, "error": "no cable", **came},
        {"event": "growth", "time_s": 3.0, "servers": 4, "error": "", **came},
    ]
    found = []
    for count in range(1, len(events) + 1):
        metrics = parse_metrics(as_lines(events[:count]).encode())
        found.append(metrics.servers)
    assert found == [3, 2, 2, 4]
    assert [(g.servers, g.error) for g in metrics.growths] == [(2, "no cable"), (4, "")]
