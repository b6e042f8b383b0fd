"""Where the files of a job lie, and which jobs run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.supervision import job_files
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def test_the_job_that_started_last_is_found_first_and_ended_ones_are_not(tmp_path: Path) -> None:
    assert job_files.running_jobs() == []
    job_files.note_running(tmp_path / "a")
    assert job_files.running_jobs() == [tmp_path / "a"]
    program = (
        "import sys, pathlib; from torch_topoopt.supervision import job_files\n"
        "job_files.note_running(pathlib.Path(sys.argv[1])); print('noted', flush=True)\n"
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "b"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"noted\n"
        assert job_files.running_jobs() == [tmp_path / "b", tmp_path / "a"]
        other.kill()
    assert job_files.running_jobs() == [tmp_path / "a"]
    job_files.note_running(tmp_path / "a")  # which also removes what the killed one has left
    assert len(list((tmp_path / "run" / "torch_topoopt" / "running").iterdir())) == 1
    job_files.forget_running()
    assert job_files.running_jobs() == []


def test_a_runtime_folder_where_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "torch_topoopt"
    folder.mkdir()
    folder.chmod(0o777)
    with refused(PermissionError, "own", "write"):
        job_files.folder_without_run("job")


def test_without_a_runtime_folder_it_is_in_the_temporary_one_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setenv("TEMP", str(tmp_path))
    found = job_files.folder_without_run("job")
    assert found == tmp_path / f"torch_topoopt-{os.getuid()}" / "jobs" / "job"
    assert tempfile.gettempdir() == str(tmp_path)


def test_the_last_attempt_with_dumps_counts(tmp_path: Path) -> None:
    job = JobFolder(tmp_path)
    assert job.last_dumps() is None
    for attempt in (0, 9, 10, 11):
        job.dumps(attempt).mkdir(parents=True)
        if attempt < 11:
            job.dump(attempt, 3).write_bytes(b"")
    assert job.last_dumps() == job.dumps(10)


def test_nothing_is_left_of_a_job_without_dumps() -> None:
    job = JobFolder(job_files.folder_without_run("127.0.0.1-29500"))
    job.statuses.mkdir()
    job.status(1).write_bytes(b"")
    job.request.write_text("1")
    job.tidy()
    assert job.request.exists()  # rank 1 still runs
    job.status(1).unlink()
    job.tidy()
    assert not job.path.exists()
