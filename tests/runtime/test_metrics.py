"""metrics.jsonl: whole lines only, from many processes, and only what JSON can hold."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.limits import limit_s
from support.refusals import refused

import torch_topoopt
from torch_topoopt.runtime.metrics import METRICS_VARIABLE, STARTED_VARIABLE, MetricsWriter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv(METRICS_VARIABLE, str(path))
    return path


def _events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_appends_one_line_per_call(metrics: Path) -> None:
    torch_topoopt.log(epoch=1, accuracy=0.5)
    torch_topoopt.log(epoch=2, accuracy=0.75, note="é", shape=[1, 2], extra=None)
    first, second = _events(metrics)
    assert first["event"] == second["event"] == "train"
    assert (first["epoch"], first["accuracy"]) == (1, 0.5)
    assert second["note"] == "é"
    assert 0 <= first["time_s"] <= second["time_s"]


def test_time_counts_from_the_start_of_the_run(
    metrics: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STARTED_VARIABLE, repr(time.time() - 1000))
    torch_topoopt.log(loss=1.0)
    MetricsWriter(metrics, time.time() - 2000).write("stage", name="wire", seconds=0.25)
    train, stage = _events(metrics)
    assert 1000 <= train["time_s"] < 2000 <= stage["time_s"]
    assert (stage["event"], stage["name"], stage["seconds"]) == ("stage", "wire", 0.25)


def test_outside_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METRICS_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    torch_topoopt.log(loss=1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"bytes"])
@pytest.mark.parametrize("inside_a_run", [True, False])
def test_what_json_cannot_hold_is_refused_by_name(
    metrics: Path, monkeypatch: pytest.MonkeyPatch, value: object, inside_a_run: bool
) -> None:
    if not inside_a_run:
        monkeypatch.delenv(METRICS_VARIABLE)
    with refused(ValueError, "metrics", "loss="):
        torch_topoopt.log(epoch=1, loss=value)
    assert not metrics.exists()


@pytest.mark.parametrize("name", ["event", "time_s"])
def test_reserved_names_are_refused(metrics: Path, name: str) -> None:
    with refused(ValueError, name, "reserved"):
        torch_topoopt.log(**{name: 1})
    assert not metrics.exists()


def _write_many(path: str, writer: int, count: int) -> None:
    metrics = MetricsWriter(path, time.time())
    for i in range(count):
        metrics.write("train", writer=writer, i=i, padding="x" * 3000)


def test_lines_of_many_processes_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(str(path), w, 200)) for w in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=limit_s(60))
        assert writer.exitcode == 0
    events = _events(path)
    for w in range(4):
        assert [event["i"] for event in events if event["writer"] == w] == list(range(200))


def test_a_full_disk_is_no_error_of_a_script(metrics: Path) -> None:
    metrics.symlink_to("/dev/full")
    torch_topoopt.log(loss=1.0)


def test_the_launcher_goes_on_where_nothing_can_be_written(metrics: Path) -> None:
    metrics.symlink_to("/dev/full")
    writer = MetricsWriter(metrics, time.time())
    with refused(OSError, "No space left"):
        writer.write("run")
    writer.keeps_on = True
    writer.write("end", exit_code=0)
    assert writer.error == "No space left on device"


def test_half_a_line_is_taken_back(metrics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MetricsWriter(metrics, time.time())
    writer.keeps_on = True
    writer.write("stage", name="wire", seconds=0.25)
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    writer.write("stage", name="train", seconds=1.0)
    monkeypatch.undo()
    writer.write("end", exit_code=0)
    assert [event["event"] for event in _events(metrics)] == ["stage", "end"]
    assert writer.error.startswith("wrote 7 of ")
