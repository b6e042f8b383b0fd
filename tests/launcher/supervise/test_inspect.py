"""`topoopt inspect`: by dumps that lie in a folder, and by those of a run that has failed."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from support.dumps import collective, dump, save, save_statuses, status
from support.launcher import wait_for
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    from pathlib import Path

    from support.launcher import Launcher

WAITING = [collective(1), collective(2, state="started", failed=True)]


def a_run_that_hung(folder: Path) -> Path:
    save(JobFolder(folder).dumps(0), dump(0, WAITING), dump(1, [collective(1)]))
    return folder


def test_the_culprit_is_the_first_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(a_run_that_hung(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "2 dumps in" in out
    assert named(out, "culprit: rank 1", "server 1", "has not called all_reduce", "collective 2")
    assert "all_reduce (collective 2 of group 0): failed" in out
    assert "rank 0 dumped for: all_reduce: Timed out" in out


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps = JobFolder(a_run_that_hung(tmp_path)).dumps(0)
    assert main(["inspect", str(dumps), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["culprits"] == [1]
    assert [finding["kind"] for finding in figures["findings"]] == ["behind"]
    assert figures["ranks"][0]["unfinished"][0]["state"] == "failed"


def test_a_job_that_is_well_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, *(dump(rank, [collective(1)]) for rank in (0, 1)))
    assert main(["inspect", str(tmp_path)]) == 0
    assert named(capsys.readouterr().out, "no operation")


def test_running_ranks_are_asked_for_new_dumps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobFolder(save_statuses(tmp_path, status(0, world_size=1)))

    def answer() -> None:
        wait_for(job.request.exists, "the request", 30)
        save(job.dumps(0), dump(0, [collective(1)], world_size=1, why="asked for"))

    rank = threading.Thread(target=answer)
    rank.start()
    assert main(["inspect", str(tmp_path), "--wait", "30"]) == 0
    rank.join()
    assert "the job runs: 1 of 1 ranks wrote new dumps" in capsys.readouterr().out


def test_the_dumps_of_a_failure_are_not_replaced(tmp_path: Path) -> None:
    job = JobFolder(save_statuses(tmp_path, status(0, failure="Timed out")))
    a_run_that_hung(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert not job.request.exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "error: nowhere: there is no such folder"),
        (["."], "has no dumps of a flight recorder"),
        ([".", "--wait", "nan"], "wait: nan is no number of seconds"),
        ([".", "--wait", "-1"], "wait: -1 is no number of seconds"),
        ([], "RUN_DIR is missing, and ./runs has no run"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["inspect", *arguments]) == 2
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count("\n") == 1


SCRIPT = """\
import os, pathlib, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group()
impatient = dist.new_group(timeout=timedelta(seconds=4))
for step in range(3):
    dist.all_reduce(torch.ones(8))
if dist.get_rank() == 1:
    def load_the_next_batch():
        time.sleep(600)
    load_the_next_batch()
try:
    dist.all_reduce(torch.ones(8), group=impatient)
except dist.DistBackendError:
    # the end of this rank is that of the other one, whose dump ends with its stacks
    run = pathlib.Path(os.environ["TOPOOPT_RUN_DIR"])
    give_up = time.monotonic() + 60
    while not any(run.rglob("stacks-1.json")) and time.monotonic() < give_up:
        time.sleep(0.02)
    raise
"""


def test_a_run_whose_rank_hangs_names_it(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "run"
    ended = launcher.run("run", "--servers", "2", "--model", "none", "--run-dir", run, "train.py")
    assert ended.returncode == 1
    assert f"topoopt inspect {run}" in ended.stderr
    seen = launcher.run("inspect", run, "--json")
    figures = json.loads(seen.stdout)
    assert figures["culprits"] == [1]
    assert "in load_the_next_batch" in figures["findings"][0]["text"]
