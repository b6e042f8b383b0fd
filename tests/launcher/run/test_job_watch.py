"""Warnings while a job trains: a stall, and a run folder that is deleted or full."""

from __future__ import annotations

import errno
import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.dumps import save_statuses, status
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run.folder import RunFolder
from torch_topoopt.launcher.run.job_watch import (
    STALL_VARIABLE,
    FolderWatch,
    StallWatch,
    stall_limit_s,
)
from torch_topoopt.report.run_folder import read_run
from torch_topoopt.runtime.metrics import MetricsWriter
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    from pathlib import Path

SECOND_NS = 10**9


# ---- stalls --------------------------------------------------------------------------------------


def test_a_stall_is_found_once_and_the_next_one_again(tmp_path: Path) -> None:
    save_statuses(tmp_path, status(0), status(1))
    ranks = {
        rank: replace(found, time_ns=0, unfinished=rank)
        for rank, found in read_statuses(JobFolder(tmp_path)).items()
    }
    later = {rank: replace(found, iteration=found.iteration + 1) for rank, found in ranks.items()}
    watch = StallWatch(30.0)
    found = [watch.stalled(ranks, float(second), 0) for second in (0, 10, 29, 30, 31, 100)]
    assert found == [False, False, False, True, False, False]
    found = [watch.stalled(later, float(second), 0) for second in (101, 120, 131, 140)]
    assert found == [False, False, True, False]


@pytest.mark.parametrize(("unfinished", "age_s"), [(0, 0), (1, 60)])
def test_work_without_calls_and_old_statuses_are_no_stall(
    unfinished: int, age_s: int, tmp_path: Path
) -> None:
    save_statuses(tmp_path, status(0))
    ranks = {0: replace(read_statuses(JobFolder(tmp_path))[0], time_ns=0, unfinished=unfinished)}
    watch = StallWatch(30.0)
    assert not any(watch.stalled(ranks, float(s), age_s * SECOND_NS) for s in range(0, 100, 10))


@pytest.mark.parametrize("value", ["x", "-1", "inf", "nan"])
def test_a_limit_that_is_no_number_of_seconds(value: str) -> None:
    with refused(InputError, STALL_VARIABLE, value):
        stall_limit_s({STALL_VARIABLE: value})


def test_limits_of_a_stall() -> None:
    limits = [stall_limit_s(given) for given in ({}, {STALL_VARIABLE: "0"}, {STALL_VARIABLE: "5"})]
    assert limits == [30.0, float("inf"), 5.0]


HANG = """
import signal
import torch, torch.distributed as dist
dist.init_process_group()
for step in range(3):
    dist.all_reduce(torch.ones(8))
if dist.get_rank() == 1:
    signal.pause()
dist.all_reduce(torch.ones(8))
"""


def test_a_hang_says_so_and_ctrl_c_writes_the_report(launcher: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANG)
    options = ("--servers", "2", "--model", "none", "--run-dir", "run")
    process = launcher.start("run", *options, "train.py", **{STALL_VARIABLE: "1"})
    line = ""
    while "no rank has made progress" not in line:
        line = process.stderr.readline()
        assert line, "the end of the run"
    assert "topoopt inspect run" in line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=limit_s(60))
    assert "no rank has made progress" not in err
    assert "report: run/report.html" in err
    assert (tmp_path / "run" / "report.html").is_file()


# ---- run folders ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run", 0.0)
    (made / "plan.json").write_text("a plan")
    (made / "metrics.jsonl").write_text("")
    return made


def test_a_folder_that_is_full_is_said_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = MetricsWriter(folder / "metrics.jsonl", 0.0)
    watch = FolderWatch(folder, metrics)
    watch.look()
    assert capsys.readouterr().err == ""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunFolder, "probe", full)
    watch.look()
    watch.look()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert named(err, "No space left")
    assert metrics.error == "No space left on device"


def test_a_folder_that_is_deleted_gets_its_documents_again(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = MetricsWriter(folder / "metrics.jsonl", 0.0)
    watch = FolderWatch(folder, metrics)
    for _ in range(2):
        for path in folder.path.iterdir():
            path.unlink()
        folder.path.rmdir()
        watch.look()
    assert capsys.readouterr().err.count("was deleted") == 1
    assert (folder / "plan.json").read_text() == "a plan"
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["gap"]


DELETES = """
import os, pathlib, shutil, time
import torch, torch.distributed as dist, torch_topoopt
dist.init_process_group()
dist.barrier()  # both have read their documents
if dist.get_rank() == 0:
    run = pathlib.Path(os.environ["TOPOOPT_RUN_DIR"])
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)  # while ranks write their statuses
    torch_topoopt.log(loss=1.0)  # there is no folder
    give_up = time.monotonic() + 60
    while not (run / "wiring.json").exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    torch_topoopt.log(loss=2.0)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_run_whose_folder_is_deleted_ends_well_and_its_report_says_so(
    launcher: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(DELETES)
    options = ("--servers", "2", "--model", "none", "--run-dir", "run")
    done = launcher.run("run", *options, "train.py")
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "warning" in line.lower()]
    assert [("was deleted" in line, "run-dir: run" in line) for line in warnings] == [(True, True)]
    run = read_run(tmp_path / "run")
    assert run.metrics is not None
    assert [record["loss"] for record in run.metrics.train] == [2.0]
    assert len([note for note in run.notes if "the run folder was deleted" in note]) == 1
    assert (tmp_path / "run" / "report.html").is_file()


# Rank 1 ends when it has read what rank 0 is told, for its end ends the operation.
PENDING = """
import logging, os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group()
told = pathlib.Path("told")

class Writer(logging.Handler):
    def emit(self, record):
        pathlib.Path("partial").write_text(record.getMessage())
        os.rename("partial", told)

if dist.get_rank() == 0:
    logging.getLogger("torch_topoopt").addHandler(Writer())
    work = dist.all_reduce(torch.ones(8), async_op=True)
else:
    give_up = time.monotonic() + 60
    while not told.exists() and time.monotonic() < give_up:
        time.sleep(0.02)
sys.exit(0)
"""


def test_a_script_that_ends_before_its_operations_is_told(launcher: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PENDING)
    options = ("--servers", "2", "--model", "none", "--run-dir", "run")
    done = launcher.run("run", *options, "train.py")
    assert done.returncode == 0, done.stderr
    begin = (
        "topoopt: rank 0 ends while 1 operation of its own, all_reduce (collective 1 of group 0)"
    )
    assert (tmp_path / "told").read_text().startswith(begin)
