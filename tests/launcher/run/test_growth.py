"""`topoopt run --nnodes MIN:MAX` takes servers in while the job runs."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from plain_hosts import Hosts, make_hosts
from support.fabric.netns_fixtures import require_namespaces
from support.launcher import COMMAND, wait_for
from support.limits import limit_s
from support.plain_namespaces import Namespaces, ip
from support.refusals import named

from torch_topoopt.launcher.run import growth
from torch_topoopt.launcher.run.growth import EmulatedArrivals, GrowthWatch, PlannedGrowth
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Plan
from torch_topoopt.report.run_folder import read_run
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from support.launcher import Launcher

# Each step adds 1 + ... + 6, shared among the ranks, to a total in a checkpoint of rank 0. On fewer
# servers than WORLD the job trains until it is stopped; then it makes three steps more. With WORLD
# ranks rank DIES kills itself, once.
SCRIPT = """
import json, os, pathlib, signal, sys, time
import torch, torch.distributed as dist
world_wanted, dies = int(os.environ["WORLD"]), int(os.environ.get("DIES", -1))
folder = pathlib.Path(os.environ["STATE"])
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
saved = folder / "state.json"
step, total = json.loads(saved.read_text()) if saved.exists() else (0, 0)
last = step + 3
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
(folder / f"start-{world}-{restarts}-{rank}").write_text(str(step))
while step < last or world < world_wanted:
    part = torch.tensor(sum(range(1, 7)[rank::world]))
    dist.all_reduce(part)
    step, total = step + 1, total + part.item()
    if rank == 0:
        new = folder / "new.json"
        new.write_text(json.dumps([step, total]))
        new.replace(saved)
    dist.barrier()
    if world == world_wanted and rank == dies and restarts == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        (folder / f"trained-{world}-{restarts}").touch()
    time.sleep(0.02)
dist.destroy_process_group()
"""

LIMIT_S = 100.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def wait_until_trained(process: subprocess.Popen[str], mark: Path) -> None:
    wait_for(lambda: mark.exists() or process.poll() is not None, str(mark))
    assert process.poll() is None, process.communicate()


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def check_state(folder: Path) -> None:
    """Every step is in the checkpoint once, whatever stopped the ranks."""
    step, total = json.loads((folder / "state.json").read_text())
    assert total == 21 * step


def check_run(run: Path, servers: int) -> None:
    assert Plan.load(run / "plan.json").cluster.servers == servers
    recorded = read_run(run)
    assert [note for note in recorded.notes if "opgraph.json" not in note] == []
    assert recorded.metrics is not None
    assert {link.source for link in recorded.metrics.links} <= set(range(servers))
    assert recorded.metrics.exit_code == 0
    assert not JobFolder(run).arrivals.exists()


def test_on_namespaces_a_lost_server_comes_back_and_the_job_goes_on_from_its_checkpoint(
    launcher: Launcher, folder: Path
) -> None:
    require_namespaces()
    process = launcher.start(
        *("run", "--fabric", "netns", "--servers", "3", "--degree", "2", "--nnodes", "2:3"),
        *("--bandwidth", "100Mbps", "--model", "none", "--max-restarts", "1"),
        *("--grow-interval", "0", "--run-dir", "job", "train.py"),
        **{"WORLD": "3", "DIES": "1", "STATE": str(folder)},
    )
    wait_until_trained(process, folder / "trained-2-1")
    joined = launcher.run("join", "job")
    assert joined.returncode == 0, joined.stderr
    out, err = process.communicate(timeout=limit_s(LIMIT_S))
    assert process.returncode == 0, err
    check_state(folder)
    run = folder / "job"
    check_run(run, 3)
    (restart,) = records(run, "restart")
    assert (restart["lost_servers"], restart["servers"]) == ([1], 2)
    (grown,) = records(run, "growth")
    assert (grown["came_servers"], grown["servers"], grown["error"]) == ([1], 3, "")
    assert grown["plan_digest"] == Plan.load(run / "plan.json").digest()
    assert [Plan.load(run / f"plan-{k}.json").cluster.servers for k in (0, 1)] == [3, 2]
    assert (folder / "start-3-1-2").exists(), "growth uses up no restart"
    assert any(named(line, "server 1", 3, grown["plan_digest"]) for line in out.splitlines())
    assert "Servers that came" in (run / "report.html").read_text()


def test_a_job_starts_with_fewer_servers_and_has_no_place_for_more_than_max(
    launcher: Launcher, folder: Path
) -> None:
    process = launcher.start(
        *("run", "--servers", "1", "--nnodes", "1:2", "--model", "none"),
        *("--grow-interval", "0", "--run-dir", "job", "train.py"),
        **{"WORLD": "2", "STATE": str(folder)},
    )
    wait_until_trained(process, folder / "trained-1-0")
    for _ in range(2):
        JobFolder(folder / "job").arrive()
    _, err = process.communicate(timeout=limit_s(LIMIT_S))
    assert process.returncode == 0, err
    check_state(folder)
    check_run(folder / "job", 2)
    assert [r["came_servers"] for r in records(folder / "job", "growth")] == [[1]]
    assert [r["servers"] for r in records(folder / "job", "run")] == [1]
    warnings = [line for line in err.splitlines() if line.startswith("topoopt: warning: ")]
    assert any(named(line, "--nnodes", "MIN:MAX") for line in warnings), err
    late = launcher.run("join", "job")
    assert late.returncode == 2
    assert named(late.stderr, "job", "--nnodes")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Namespaces() as namespaces:
        yield Hosts(namespaces)


class Started:
    """`topoopt run --cluster` on the hosts of a file, one by one."""

    def __init__(self, launcher: Launcher, hosts: Hosts, *options: str, world: int) -> None:
        self._launcher, self._hosts, self._options = launcher, hosts, options
        self._variables = {"WORLD": str(world), "STATE": str(launcher.folder)}
        hosts.cluster(gbps=1.0).save(launcher.folder / "cluster.yaml")
        (launcher.folder / "train.py").write_text(SCRIPT)

    def on(self, server: int, run: str = "run") -> subprocess.Popen[str]:
        folder = self._launcher.folder / f"server{server}"
        folder.mkdir(exist_ok=True)
        return replace(self._launcher, folder=folder).start(
            *("run", "--cluster", "../cluster.yaml", "--run-dir", run, "--model", "none"),
            *("--rdzv-conf", "last_call_timeout=0", "--grow-interval", "0"),
            *(*self._options, "../train.py"),
            command=("ip", "netns", "exec", self._hosts.names[server], *COMMAND),
            **self._variables,
        )


def test_late_hosts_are_taken_in_once_cables_join_them_with_the_job(
    launcher: Launcher, hosts: Hosts, folder: Path
) -> None:
    make_hosts(4, [(0, 1), (1, 2), (2, 3)], hosts)
    started = Started(launcher, hosts, "--nnodes", "2:4", world=4)
    processes = [started.on(server) for server in (0, 1)]
    wait_until_trained(processes[0], folder / "trained-2-0")
    processes.append(started.on(3))
    run = folder / "server0" / "run"
    wait_for(lambda: bool(records(run, "growth")), "the refusal")
    processes.append(started.on(2))
    ended = [process.communicate(timeout=limit_s(LIMIT_S)) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ended
    check_state(folder)
    check_run(run, 4)
    refused, grown = records(run, "growth")
    assert (refused["came_servers"], refused["servers"]) == ([3], 2)
    assert refused["error"]
    assert refused["stopped_s"] == 0.0
    assert (grown["came_servers"], grown["servers"], grown["error"]) == ([2, 3], 4, "")
    assert records(run, "hosts")[0]["servers"] == 2
    plans = [Plan.load(folder / f"server{s}" / "run" / "plan.json").digest() for s in range(4)]
    assert plans == [grown["plan_digest"]] * 4


@pytest.mark.exhaustive
def test_a_host_whose_launcher_was_killed_comes_back(
    launcher: Launcher, hosts: Hosts, folder: Path
) -> None:
    make_hosts(3, [(0, 1), (1, 2), (2, 0)], hosts)
    options = ("--nnodes", "2:3", "--max-restarts", "1")
    started = Started(launcher, hosts, *options, world=4)  # so that three go on until they are four
    processes = [started.on(server) for server in range(3)]
    wait_until_trained(processes[0], folder / "trained-3-0")
    processes[2].kill()
    wait_until_trained(processes[0], folder / "trained-2-1")
    processes.append(started.on(2, "again"))
    wait_until_trained(processes[0], folder / "trained-3-1")
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(timeout=limit_s(LIMIT_S))
    check_state(folder)
    run = folder / "server0" / "run"
    assert [r["lost_servers"] for r in records(run, "restart")] == [[2]]
    assert [(r["came_servers"], r["error"]) for r in records(run, "growth")] == [([2], "")]


@pytest.mark.exhaustive
def test_a_host_that_cannot_be_wired_leaves_the_job_as_it_was(
    launcher: Launcher, hosts: Hosts, folder: Path
) -> None:
    make_hosts(3, [(0, 1), (1, 2), (2, 0)], hosts)
    started = Started(launcher, hosts, "--nnodes", "2:3", world=4)
    processes = [started.on(server) for server in range(2)]
    wait_until_trained(processes[0], folder / "trained-2-0")
    host, interface, _ = hosts.cables[1][1]
    ip(f"-n {hosts.names[host]} link set {interface} down")
    late = started.on(2)
    _, err = late.communicate(timeout=limit_s(LIMIT_S))
    assert late.returncode == 2, err
    run = folder / "server0" / "run"
    wait_for(lambda: bool(records(run, "growth")), "the record of the failure")
    step = json.loads((folder / "state.json").read_text())[0]
    wait_for(lambda: json.loads((folder / "state.json").read_text())[0] > step, "a step")
    for process in processes:
        process.terminate()
        process.communicate(timeout=limit_s(LIMIT_S))
    check_state(folder)
    (failed,) = records(run, "growth")
    assert (failed["came_servers"], failed["servers"]) == ([2], 2)
    assert interface in failed["error"] or "h2" in failed["error"]
    assert failed["stopped_s"] > 0
    assert Plan.load(run / "plan.json").cluster.servers == 2


class _Watched:
    """A GrowthWatch whose clock and arrivals the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, interval_s: float) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(growth, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.job = JobFolder(tmp_path)
        self.error = ""
        self.refused: list[tuple[int, ...]] = []
        arrivals = EmulatedArrivals(self.job, (1, 4))
        self.watch = GrowthWatch(arrivals, interval_s, self.prepare, self.refuse, str)

    def prepare(self, came: Sequence[int]) -> PlannedGrowth:
        if self.error:
            raise FabricError(self.error)
        return PlannedGrowth((0, *came), tuple(came))

    def refuse(self, came: Sequence[int], error: str) -> None:
        assert error == self.error
        self.refused.append(tuple(came))

    def look_at(self, now_s: float) -> bool:
        self.now_s = now_s
        return self.watch.look()


def test_ranks_train_for_the_interval_before_servers_are_taken_in_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = _Watched(monkeypatch, tmp_path, 60.0)
    watched.job.arrive()
    assert not watched.look_at(30.0)
    watched.job.arrive()
    assert not watched.look_at(59.0)
    assert watched.look_at(60.0)
    assert watched.watch.planned == PlannedGrowth((0, 1, 4), (1, 4))
    assert list(watched.job.arrivals.iterdir()) == []


def test_a_server_that_cannot_be_taken_in_is_refused_once_and_may_come_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = _Watched(monkeypatch, tmp_path, 0.0)
    watched.error = "no way"
    watched.job.arrive()
    assert [watched.look_at(now_s) for now_s in (1.0, 2.0, 3.0)] == [False] * 3
    assert watched.refused == [(1,)]
    watched.error = ""
    for _ in range(2):
        watched.job.arrive()
    assert watched.look_at(4.0)
    assert watched.watch.planned == PlannedGrowth((0, 1, 4), (1, 4))
