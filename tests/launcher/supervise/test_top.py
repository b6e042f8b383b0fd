"""`topoopt top`, `topoopt run --watch` and the page of --serve: a job that runs, seen live."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from rich.console import Console
from support.launcher import LIMIT_S, forked
from support.limits import limit_s
from support.refusals import named, refused
from support.running_job import a_running_job

from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.run import watch
from torch_topoopt.launcher.supervise import top_view
from torch_topoopt.launcher.supervise.live_page import LivePage
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.running_job import LiveJob
from torch_topoopt.supervision.training_log import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.launcher import Launcher

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

# All ranks end after the same step.
TRAIN = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("topoopt")
weights = torch.zeros(1000, requires_grad=True)
optimizer = torch.optim.SGD([weights], 0.1)
print("printed by rank", dist.get_rank(), flush=True)
while True:
    over = torch.tensor([float(os.path.exists("over"))])
    dist.all_reduce(over, dist.ReduceOp.MAX)
    if over:
        break
    (weights.sum() + 7.5).backward()
    dist.all_reduce(weights.grad)
    optimizer.step()
    weights.data.zero_()
    time.sleep(0.01)
dist.destroy_process_group()
"""


def test_steps_loss_and_links_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(a_running_job(tmp_path)), "--once"]) == 0
    out = capsys.readouterr().out
    assert "4 of 4 ranks on 4 servers, iteration 7" in out
    assert re.search(r"step time +200 ms", out)
    assert re.search(r"loss +1 +█▄▁", out)
    assert re.search(r"slowest +rank 2: own work 150 ms of an iteration, the others 80 ms", out)
    assert "8 links: 1 degraded; 5.35 Gb/s in all" in out
    rows = [line for line in out.splitlines() if " -> " in line]
    assert len(rows) == 8
    assert rows[0].split()[:3] == ["2.1", "->", "3.0"] or rows[0].startswith("  2.1 ->")
    assert rows[0].split()[3] == "degraded"
    assert "██░░░░░░░░░░░░░░░░░░ 10%" in rows[0]
    assert all("███████████████░░░░░ 75%" in row for row in rows[1:])
    assert "ranks 0, 1, 2, 3: no operation" in out


def test_every_link_has_its_state_on_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        console,
        "make_console",
        lambda file: Console(file=file, width=80, force_terminal=True, color_system=None),
    )
    assert main(["top", str(a_running_job(tmp_path)), "--once"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[1:])) <= 80
    states = [line.split()[3] for line in out.splitlines() if " -> " in line]
    assert states.count("degraded") == 1
    assert states.count("up") >= 7
    assert out.count(" 75%") == 7


def test_a_watched_job_without_ranks_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = iter([True] * 9 + [False])
    monkeypatch.setattr(watch._View, "_read", lambda view: next(reads))
    monkeypatch.setattr(watch, "_LINE_S", 0.0)
    view = watch._View(tmp_path, console.Terminal(), None)
    view.start()
    view.stop()
    assert next(reads, None) is None
    assert not capsys.readouterr().out


def test_links_of_one_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_running_job(tmp_path)
    assert main(["top", str(run), "--once", "--server", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if " -> " in line]
    assert len(rows) == 4
    assert main(["top", str(run), "--once", "--server", "4"]) == 2
    assert named(capsys.readouterr().err, "server", 4, "0..3")


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(a_running_job(tmp_path)), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step_s"], figures["loss"], figures["iteration"]) == (0.2, 1, 7)
    assert figures["loss_curve"] == [[0, 3], [1, 2], [2, 1]]
    assert [group["state"] for group in figures["groups"]].count("degraded") == 1
    assert figures["servers"] == 4
    assert figures["slowest"] == {"rank": 2, "own_s": 0.15, "median_s": 0.08}
    assert [rank["own_s"] for rank in figures["ranks"]] == [0.08, 0.08, 0.15, 0.08]


def test_a_job_that_does_not_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path)]) == 2
    assert named(capsys.readouterr().err, "not running", "topoopt report")
    assert main(["top", "--serve-host", "lab1"]) == 2
    assert named(capsys.readouterr().err, "lab1", "IP")


def test_bars_and_curves() -> None:
    assert top_view.bar(0.5, 4) == "██░░"
    assert top_view.bar(7.0, 4) == "████"
    assert top_view.bar(None) == ""
    assert top_view.curve([Point(0, i, v) for i, v in enumerate((5, 5))]) == "▁▁"
    assert top_view.curve([Point(0, i, i) for i in range(8)]) == "▁▂▃▄▅▆▇█"
    assert top_view.curve([]) == ""


# ---- the page ------------------------------------------------------------------------------------


@contextlib.contextmanager
def page_of(figures: dict[str, Any]) -> Iterator[LivePage]:
    page = LivePage("127.0.0.1", 0)
    try:
        page.publish(figures)
        yield page
    finally:
        page.close()


def test_only_who_has_the_token_and_names_the_address_is_answered() -> None:
    with page_of({"ranks": []}) as page:
        assert httpx.get(page.url).status_code == 200
        assert httpx.get(page.url + "state").json() == {"ranks": []}
        other = page.url[:-2] + ("A" if page.url[-2] != "A" else "B") + "/"
        for url in (other, f"http://127.0.0.1:{page.port}/", page.url + "etc"):
            assert httpx.get(url).status_code == 404
        rebound = httpx.get(page.url, headers={"Host": f"evil.example:{page.port}"})
        assert rebound.status_code == 404
        assert httpx.post(page.url).status_code == 501
        policy = httpx.get(page.url).headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert page.url.startswith("http://127.0.0.1:")
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url)


def test_a_reader_gets_every_state_and_the_end() -> None:
    with page_of({"iteration": 1}) as page, httpx.stream("GET", page.url + "events") as stream:
        lines = (line for line in stream.iter_lines() if line and line != ":")
        assert json.loads(next(lines).removeprefix("data: ")) == {"iteration": 1}
        page.publish({"iteration": 2})
        assert json.loads(next(lines).removeprefix("data: ")) == {"iteration": 2}
        page.close()
        assert next(lines) == "event: end"


def test_a_port_that_is_taken_is_one_line() -> None:
    with page_of({}) as page, refused(InputError, "serve-port", page.port):
        LivePage("127.0.0.1", page.port)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_chromium_shows_the_job(tmp_path: Path) -> None:
    job = LiveJob(JobFolder(a_running_job(tmp_path)))
    job.read()
    with page_of(job) as page:
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--enable-logging=stderr", "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}", page.url,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            dom, log = process.communicate(timeout=limit_s(60))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate(timeout=limit_s(60))
    assert "CONSOLE" not in log
    assert "4 of 4 ranks on 4 servers, iteration 7" in dom
    assert '<b id="step">200 ms</b>' in dom
    assert "slowest: rank 2, own work 150 ms of a step, the others 80 ms (median)" in dom
    assert dom.count('<tr class="up">') == 7
    assert dom.count('<tr class="degraded">') == 1
    assert "8 links: 7 up, 1 degraded, 0 down" in dom
    assert "ranks 0, 1, 2, 3: no operation" in dom
    assert dom.index("<th>rate</th>") < dom.index("<th>of planned rate</th>")


def test_top_serves_until_ctrl_c(
    launcher: Launcher, tmp_path: Path, until: Callable[..., None]
) -> None:
    process = launcher.start("top", a_running_job(tmp_path), "--serve")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        until(lambda: (httpx.get(url + "state").json() or {}).get("iteration") == 7, "the figures")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=limit_s(LIMIT_S))
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "topoopt: stopped by SIGINT\n"


# ---- with `topoopt run` --------------------------------------------------------------------------


def test_a_run_is_watched_on_a_page_and_leaves_its_steps_and_logs(
    launcher: Launcher, tmp_path: Path, until: Callable[..., None]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    started = ("run", "--servers", "2", "--model", "none", "--watch", "--serve")
    started += ("--timeline", "2:5")
    process = launcher.start(*started, "--run-dir", "here", "train.py", command=forked())
    figures: dict[str, Any] = {}

    def trains() -> bool:
        figures.update(httpx.get(url + "state").json() or {})
        return bool(figures.get("step_curve"))

    assert process.stdout is not None
    url = next(line.split()[0] for line in process.stdout if "http:" in line)
    try:
        until(trains, "a step on the page")
    finally:
        (tmp_path / "over").touch()
        out, err = process.communicate(timeout=limit_s(LIMIT_S))
    assert process.returncode == 0, out + err
    assert figures["loss"] == 7.5
    assert figures["world_size"] == 2
    assert {of["state"] for of in figures["links"]} == {"up"}
    assert "printed by rank" not in out
    logs = [path.read_text() for path in (tmp_path / "here" / "logs").glob("**/stdout.log")]
    assert sorted(logs) == ["printed by rank 0\n", "printed by rank 1\n"]
    steps = [json.loads(line) for line in (tmp_path / "here" / "metrics.jsonl").open()]
    assert {of["loss"] for of in steps if of["event"] == "step"} == {7.5}
    assert "timeline: here/timeline.json (3 iterations measured)" in out
    trace = json.loads((tmp_path / "here" / "timeline.json").read_text())["traceEvents"]
    slices = {(of["pid"], of["name"]) for of in trace if of["ph"] == "X"}
    for server in range(2):
        assert {(server, name) for name in ("iteration 2", "iteration 4", "backward")} <= slices
    reduces = [of for of in trace if of["ph"] == "X" and of["name"].startswith("all_reduce")]
    assert {of["args"]["size_bytes"] for of in reduces} == {4, 4000}
    assert len([of for of in trace if of["ph"] == "s"]) >= 6  # two all_reduces an iteration
    assert any(of["args"]["Gb/s"] > 0 for of in trace if of["ph"] == "C")
