"""A rank that fails: which one the last line names, what is printed of the others, what is left."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from torch_topoopt.launcher.run import failure_remarks, ranks
from torch_topoopt.launcher.run.ranks import RankFailure
from torch_topoopt.supervision.culprits import find_culprits
from torch_topoopt.supervision.dumps import read_dumps
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

# Rank 1 ends in the way that is its argument when three steps are over.
SCRIPT = """
import os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group()
weight = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([weight], lr=0.1)

def step():
    gradient = torch.ones(8)
    dist.all_reduce(gradient)
    weight.grad = gradient
    optimizer.step()

def end(how):
    if how == "raise":
        raise ValueError("the loss is NaN")
    if how == "exit":
        sys.exit(0)
    if how == "leave":
        dist.destroy_process_group()
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)

for number in range(1000):
    step()
    if number == 2 and dist.get_rank() == 1:
        end(sys.argv[1])
"""


def fail(launcher: Any, folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    options = ("--servers", "3", "--degree", "2", "--model", "none", "--run-dir", "run")
    done: subprocess.CompletedProcess[str] = launcher.run("run", *options, "train.py", how)
    assert done.returncode == 1, done.stdout + done.stderr
    return done


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    begin = "topoopt: error: "
    lines = done.stderr.splitlines()
    assert lines[-1].startswith(begin)
    return [line.removeprefix(begin) for line in lines if line.startswith(begin)]


def test_a_killed_rank_leaves_the_dumps_of_the_others(launcher: Any, tmp_path: Path) -> None:
    (line,) = error_lines(fail(launcher, tmp_path, "kill"))
    assert line.startswith("rank 1 of train.py was killed by SIGKILL on server 1 of this machine")
    assert "memory" in line
    folder = JobFolder(tmp_path / "run").last_dumps()
    assert folder is not None
    dumps = read_dumps(folder)
    assert list(dumps) == [0, 2]
    assert {dump.where for dump in dumps.values()} == {"train.py:10 in step"}
    first = find_culprits(dumps)[0]
    assert (first.kind, first.ranks) == ("gone", (1,))


def test_an_exception_is_printed_once_and_inspect_knows_its_line(
    launcher: Any, tmp_path: Path
) -> None:
    done = fail(launcher, tmp_path, "raise")
    assert done.stderr.count("Traceback") == 1
    assert "[rank1]: ValueError: the loss is NaN" in done.stderr
    assert not [name for name in ("aborted:", "exitcode:", "SIGTERM") if name in done.stderr]
    assert "2 other ranks ended because of it" in done.stdout
    texts = {path.stem: path.read_text() for path in (tmp_path / "run/logs/errors").rglob("*.txt")}
    assert sorted(texts) == ["first", "rank-0", "rank-1", "rank-2"]
    assert texts["first"] == texts["rank-1"]
    assert all("the loss is NaN" in texts[f"rank-{rank}"] for rank in (0, 2))
    assert error_lines(done) == [
        "rank 1 of train.py ended with exit code 1: ValueError: the loss is NaN"
    ]
    folder = JobFolder(tmp_path / "run").last_dumps()
    assert folder is not None
    where = {rank: dump.where for rank, dump in read_dumps(folder).items()}
    assert where == {0: "train.py:10 in step", 1: "train.py:16 in end", 2: "train.py:10 in step"}


def test_a_rank_that_ends_well_but_early_is_the_cause(launcher: Any, tmp_path: Path) -> None:
    assert error_lines(fail(launcher, tmp_path, "exit")) == [
        "rank 1 of train.py ended with exit code 0 after 3 iterations, while others still called "
        "all_reduce"
    ]


def test_a_rank_that_leaves_its_group_early_is_the_cause(launcher: Any, tmp_path: Path) -> None:
    assert error_lines(fail(launcher, tmp_path, "leave")) == [
        "rank 1 of train.py left the job while others still called all_reduce"
    ]


LEFT = "DistBackendError: topoopt: barrier: rank 2 has left the job (see x)"
GONE = "DistBackendError: topoopt: barrier: ranks 2, 3 are gone: lost the link x"
HEARD = "DistBackendError: topoopt: all_reduce: rank 0 failed: rank 2 has left the job"


@pytest.mark.parametrize(
    ("messages", "ended_well", "left"),
    [
        ([LEFT, HEARD], [], {2: "all_reduce"}),
        ([HEARD, LEFT], [], {2: "barrier"}),
        ([LEFT, "ValueError: rank 2 has left the job"], [2], {}),
        ([GONE], [], {}),
        ([GONE], [3], {3: "barrier"}),
    ],
)
def test_who_has_left_early(
    messages: list[str], ended_well: list[int], left: dict[int, str]
) -> None:
    failures = [RankFailure(rank, 1, message) for rank, message in enumerate(messages)]
    assert ranks.early_leavers(failures, ended_well) == left


def test_ranks_that_ended_alike_share_a_line() -> None:
    failures = [RankFailure(0, 1, "E: a"), RankFailure(1, 1, "E: b"), RankFailure(2, 1, "E: a")]
    assert ranks.describe(failures, "x.py") == [
        "ranks 0 and 2 of x.py ended with exit code 1: E: a",
        "rank 1 of x.py ended with exit code 1: E: b",
    ]


def test_the_kernels_count_of_kills_for_memory_is_told(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 5\noom_kill 3\n")
    kills = failure_remarks.KernelKills(vmstat)
    killed = RankFailure(1, -signal.SIGKILL, "")
    (before,) = failure_remarks.remarked([killed], tmp_path, ["server 1"], kills)
    vmstat.write_text("nr_free_pages 5\noom_kill 4\n")
    (after,) = failure_remarks.remarked([killed], tmp_path, ["server 1"], kills)
    assert "dmesg" in before.remark
    assert "the kernel has just killed" in after.remark
    vmstat.write_text("nr_free_pages 5\n")
    assert not failure_remarks.KernelKills(vmstat).any()
