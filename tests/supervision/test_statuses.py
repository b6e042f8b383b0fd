"""What ranks say of themselves is checked, and of ended ones nothing is believed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from support.dumps import link, save_statuses, status
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    from pathlib import Path


def test_a_link_is_degraded_if_it_is_busy_and_slow(tmp_path: Path) -> None:
    rates = [
        link(0, 1, 1, 1, gbps=2.0, busy=1.0),
        link(0, 1, 1, 1, gbps=2.0, busy=0.2),  # has not more to send
        link(0, 1, 1, 1, gbps=8.0, busy=0.9),
    ]
    save_statuses(tmp_path, status(0, links=rates))
    links = read_statuses(JobFolder(tmp_path))[0].links
    assert [of.degraded(10.0) for of in links] == [True, False, False]
    assert not links[0].degraded(None)
    save_statuses(tmp_path, status(0, links=[link(0, 1, 1, 1, up=False)]))
    assert read_statuses(JobFolder(tmp_path))[0].links[0].state(10.0) == "down"


def test_a_process_that_has_ended_is_known(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    save_statuses(tmp_path, status(0), status(1, pid=ended.pid), status(2, host="elsewhere", pid=1))
    found = read_statuses(JobFolder(tmp_path))
    assert [of.alive for of in found.values()] == [True, False, True]
    assert found[0].iteration == 7


def test_other_files_are_left_alone_and_wrong_ones_named(tmp_path: Path) -> None:
    assert read_statuses(JobFolder(tmp_path)) == {}
    save_statuses(tmp_path, status(0))
    (tmp_path / "status" / ".12-13.partial").write_bytes(b"half")
    assert list(read_statuses(JobFolder(tmp_path))) == [0]
    save_statuses(tmp_path, status(1, version=2))
    with refused(DocumentError, "rank-1", "version", 2, 1):
        read_statuses(JobFolder(tmp_path))
    save_statuses(tmp_path, status(1, iteration="x"))
    with refused(DocumentError, "rank-1", "iteration", "x"):
        read_statuses(JobFolder(tmp_path))
