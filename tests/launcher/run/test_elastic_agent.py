"""Before torch ends the ranks that are left after a failure, they have dumped what they were in."""

from __future__ import annotations

import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from support.dumps import collective, dump, save, save_statuses, status
from support.launcher import wait_for

from torch_topoopt.launcher.run.elastic_agent import Attempt, _await_dumps
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Of a rank that runs on."""
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


def test_a_rank_that_does_not_notice_a_failure_is_asked_for_its_dump(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    job = JobFolder(save_statuses(tmp_path, status(0)))
    save(job.dumps(0), dump(0, [collective(1)], why="SIGUSR1"))
    asked = []

    def answer() -> None:
        wait_for(job.request.exists, "the request", 30)
        asked.append(job.request.read_text())
        save(job.dumps(0), dump(0, [collective(1)], why=asked[0]))

    rank = threading.Thread(target=answer)
    rank.start()
    _await_dumps(Attempt(0, 0, job), [SimpleNamespace(id=process.pid, global_rank=0)])
    rank.join()
    assert asked == ["another rank has failed\n"]


@pytest.mark.parametrize("failure", ["rank 1 is gone", None])
def test_who_has_dumped_or_is_in_no_job_is_not_asked(
    failure: str | None, tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    if failure is not None:
        save_statuses(tmp_path, status(0, failure=failure))
    job = JobFolder(tmp_path)
    _await_dumps(Attempt(0, 0, job), [SimpleNamespace(id=process.pid, global_rank=0)])
    assert not job.request.exists()
