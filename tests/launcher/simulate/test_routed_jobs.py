"""`topoopt simulate --routed-jobs`: jobs on a leaf-spine network under schemes of route control."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    **{"name": "llm", "parameters": 5e9, "tensor": 2, "pipeline": 2, "copies": 4},
    "compute_s": 0.5,
}
DOCUMENT = {
    **{"version": 1, "tors": 4, "spines": 4, "hosts_per_tor": 4, "link_gbps": 100},
    **{"jobs": [JOB], "iterations": 2, "placed_by": "hosts"},
}


def run(tmp_path: Path, changes: dict[str, Any], *options: str) -> int:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({**DOCUMENT, **changes}))
    return main(["simulate", "--routed-jobs", str(path), *options])


def test_every_scheme_has_the_times_of_every_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, {}, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hosts"] == 16
    assert set(found["schemes"]) == {"ecmp", "annealing", "greedy", "local-search"}
    alone_s = 2 * 3 / 4 * 5e9 * 4 / 4 * 8 / 100e9
    ours, ecmp = (found["schemes"][name][0] for name in ("local-search", "ecmp"))
    assert ours["iterations"] == 2
    assert ours["all_reduce_s"] == pytest.approx(alone_s), "four spines for four hosts of a ToR"
    assert ecmp["all_reduce_s"] >= ours["all_reduce_s"]
    assert run(tmp_path, {}, "--json") == 0
    assert json.loads(capsys.readouterr().out) == found


def test_messages_late_paths_and_cross_traffic_are_in_the_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(**changes: Any) -> dict[str, Any]:
        assert run(tmp_path, changes, "--json") == 0
        row: dict[str, Any] = json.loads(capsys.readouterr().out)["schemes"]["local-search"][0]
        return row

    plain = found()
    assert plain["exchange_s"] == 0
    job = {**JOB, "tensor_bytes": 2.5e9}
    with_messages = found(jobs=[job])
    assert with_messages["all_reduce_s"] == pytest.approx(plain["all_reduce_s"])
    assert with_messages["exchange_s"] == pytest.approx(0.2), "a spine for each flow"
    more = found(jobs=[{**job, "pipeline_bytes": 1.25e9}])
    assert 0.3 * (1 - 1e-9) <= more["exchange_s"] < 0.6
    assert found(control_s=0.5)["all_reduce_s"] > plain["all_reduce_s"]
    crossed = found(cross_flows=20)
    assert crossed["all_reduce_s"] > plain["all_reduce_s"]
    assert found(cross_flows=20) == crossed
    assert run(tmp_path, {"jobs": [job]}) == 0
    assert "other messages" in capsys.readouterr().out


def test_people_get_a_table_for_every_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [{**JOB, "copies": 2}, {**JOB, "name": "other", "copies": 2, "arrival_s": 1.0}]
    failures = [{"at_s": 0.6, "spine": 3}]
    assert run(tmp_path, {"jobs": jobs, "placed_by": "racks", "failures": failures}) == 0
    shown = capsys.readouterr().out
    assert "llm, rings of 2, 8 hosts" in shown
    assert "other, rings of 2, 8 hosts" in shown
    assert shown.count("annealing") == 2
    assert "times as long as local-search" in shown


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"jobs": []}, ("jobs",)),
        ({"jobs": [{**JOB, "copies": 1}]}, ("jobs[0].copies", 1, "2..1000000")),
        ({"jobs": [{**JOB, "copies": 5}]}, ("jobs", 20, 16)),
        ({"jobs": [{**JOB, "parameters": 0}]}, ("jobs[0].parameters", 0.0, 0)),
        ({"jobs": [{**JOB, "compute_s": -1}]}, ("jobs[0].compute_s", -1.0, 0)),
        ({"jobs": [{**JOB, "tensor_bytes": -1}]}, ("jobs[0].tensor_bytes", -1.0, 0)),
        ({"control_s": -1}, ("control_s", -1.0, 0)),
        ({"cross_flows": -1}, ("cross_flows", -1, "0..1000000")),
        ({"placed_by": "lot"}, ("placed_by", "lot", "racks", "hosts")),
        ({"link_gbps": 0}, ("link_gbps", 0.0, 0)),
        ({"tors": 0}, ("tors", 0, "1..1000000")),
        ({"tors": 100_000}, ("hosts_per_tor", 400000, 65536)),
        ({"failures": [{"at_s": 0, "spine": 4}]}, ("failures[0].spine", 4, "0..3")),
        (
            {"failures": [{"at_s": 0, "spine": spine} for spine in range(4)]},
            ("failures", 4),
        ),
        ({"colour": 1}, ("colour",)),
    ],
)
def test_a_document_that_is_wrong_is_one_line(
    changes: dict[str, Any],
    tokens: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, changes) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (["--iterations", "3"], ("--iterations",)),
        (["--jobs", "x.json"], ("--jobs",)),
        (["--level", "packet"], ("level", "packet", "--routed-jobs")),
    ],
)
def test_options_of_other_simulations_are_refused(
    options: list[str],
    tokens: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, {}, *options) == 2
    assert named(capsys.readouterr().err, *tokens)
