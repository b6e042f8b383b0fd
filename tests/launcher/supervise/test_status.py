"""`topoopt status`: a job that runs, as its ranks describe it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.backend.ranks import make_plan, wired
from support.dumps import link, save_statuses, status
from support.launcher import LIMIT_S, forked
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.supervision import job_files
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.rank_paces import RankPace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from support.launcher import Launcher

# All ranks end after the same all_reduce.
TRAIN = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("topoopt")
over = torch.zeros(1000)
while not over[0]:
    over[:] = float(os.path.exists("over"))
    dist.all_reduce(over, dist.ReduceOp.MAX)
    time.sleep(0.01)
dist.destroy_process_group()
"""

WAITS = {
    "name": "all_reduce",
    "group": "0",
    "collective": 9,
    "state": "started",
    "seconds": 2.5,
    "bytes": 64,
}


def a_running_job(folder: Path) -> Path:
    """Of two servers with links of 1 Gb/s; rank 1 waits, and its link is slow."""
    plan = make_plan(2, 1, gbps=1.0)
    with wired(plan, folder, gbps=1.0):
        pass  # what it has written stays
    slow = link(1, 0, 5_000_000, 1, gbps=0.1, busy=1.0, relay_peak_bytes=4096)
    save_statuses(
        folder,
        status(0, links=[link(0, 1, 7_000_000, 1, gbps=0.9, busy=1.0)]),
        status(1, iteration=6, operations=[WAITS], operations_unfinished=3, links=[slow]),
    )
    for rank, own_s in enumerate((0.05, 0.09)):
        RankPace(1, rank, 7, 0.1, own_s).save(JobFolder(folder).pace(rank))
    return folder


def test_ranks_and_links_are_shown_beside_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(a_running_job(tmp_path)), "--once"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 ranks, iteration 6" in out
    assert "all_reduce 9 of group 0 for 2.5 s, 2 more" in out
    assert "none (40 called)" in out
    assert "4.1 kB" in out
    assert "slowest rank 1: own work 90 ms of an iteration, the others 50 ms (median)" in out
    (row,) = (line for line in out.splitlines() if "none (40 called)" in line)
    assert row.split()[0] == "0"
    assert row.split()[4:6] == ["50", "ms"]
    lines = {line.split("  ")[1].strip(): line for line in out.splitlines() if "->" in line}
    assert lines["server 0 port 0 -> server 1 port 0"].endswith("up")
    assert "900 Mb/s" in lines["server 0 port 0 -> server 1 port 0"]
    assert lines["server 1 port 0 -> server 0 port 0"].endswith("degraded")
    assert "1 Gb/s" in lines["server 1 port 0 -> server 0 port 0"]


def test_paths_of_a_route_controller_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_running_job(tmp_path)
    assert main(["status", str(folder), "--once"]) == 0
    (columns,) = (x for x in capsys.readouterr().out.splitlines() if "relayed" in x)
    assert columns.split()[-1] == "state"
    events = [([0, 0, 1, 0], []), ([0, 0, 1, 0], ["leaf0", "spine1", "leaf1"]), ([1, 0, 0, 0], [])]
    with (folder / "metrics.jsonl").open("a") as file:
        for ends, path in events:
            event = {"event": "route", "time_s": 1.0, "what": "path", "ends": ends, "path": path}
            file.write(json.dumps(event) + "\n")
    assert main(["status", str(folder), "--once"]) == 0
    lines = {x.split("  ")[1].strip(): x for x in capsys.readouterr().out.splitlines() if "->" in x}
    assert lines["server 0 port 0 -> server 1 port 0"].endswith("leaf0 spine1 leaf1")
    assert lines["server 1 port 0 -> server 0 port 0"].endswith("ECMP")
    assert main(["status", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["links"]
    assert [of["path"] for of in found] == [["leaf0", "spine1", "leaf1"], []]


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(a_running_job(tmp_path)), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["world_size"], figures["iteration"]) == (2, 6)
    assert [of["state"] for of in figures["links"]] == ["up", "degraded"]
    assert [of["planned_gbps"] for of in figures["links"]] == [1.0, 1.0]
    assert [of["path"] for of in figures["links"]] == [None, None]
    assert figures["ranks"][1]["calls"][0]["seconds"] == 2.5
    assert figures["ranks"][1]["relay_peak_bytes"] == 4096


def test_the_job_that_runs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    assert main(["status", "--once"]) == 2
    assert named(capsys.readouterr().err, "no job")
    job_files.note_running(save_statuses(tmp_path / "job", status(0)))
    try:
        assert main(["status", "--once"]) == 0
    finally:
        job_files.forget_running()
    assert f"{tmp_path / 'job'}: 1 of 2 ranks" in capsys.readouterr().out


def test_a_job_that_does_not_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "this job is not running; use `topoopt inspect` for its dumps" in error
    assert error.count("\n") == 1


def test_a_job_of_topoopt_run_is_shown_while_it_runs_and_goes_on(
    launcher: Launcher,
    tmp_path: Path,
    until: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    run = tmp_path / "run"
    started = ("run", "--servers", "2", "--model", "none", "--run-dir", run, "train.py")
    process = launcher.start(*started, command=forked())

    shown: dict[str, Any] = {}

    def least_called() -> int:
        """The operations that both ranks have called; `shown` are the figures."""
        if not run.is_dir() or main(["status", str(run), "--json"]) != 0:
            return 0  # they have not started
        shown.update(json.loads(capsys.readouterr().out))
        called = [rank["called"] for rank in shown["ranks"]]
        return min(called) if len(called) == 2 else 0

    try:
        until(lambda: least_called() > 0, "a status of both ranks")
        before = max(rank["called"] for rank in shown["ranks"])
        until(lambda: least_called() > before, "more operations on both ranks")
        assert shown["world_size"] == 2
        assert {link["state"] for link in shown["links"]} == {"up"}
        assert main(["status", str(run), "--once"]) == 0
        assert "2 of 2 ranks" in capsys.readouterr().out
    finally:
        (tmp_path / "over").touch()
        out, err = process.communicate(timeout=limit_s(LIMIT_S))
    assert process.returncode == 0, out + err
    assert main(["status", str(run), "--once"]) == 2
    assert named(capsys.readouterr().err, "not running")
