"""Cables that stay lost and move to spare ports, while `topoopt run` trains."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.dumps import link, save_statuses, status
from support.fabric.netns_fixtures import own_state, require_namespaces
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.environment import SPARE_VARIABLE
from torch_topoopt.fabric.switches.spare_circuits import SpareMove, SwitchPort
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import spare_ports
from torch_topoopt.launcher.run.spare_ports import CableMover, LostCables, lost_links
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Link
from torch_topoopt.report.run_folder import parse_metrics
from torch_topoopt.runtime.metrics import MetricsWriter
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    from pathlib import Path

    from support.launcher import Launcher

FIRST, SECOND = Link(0, 0, 1, 0), Link(1, 0, 2, 0)

# ---- which cables, and when ----------------------------------------------------------------------


def test_a_cable_is_due_after_the_limit_and_after_each_attempt_again() -> None:
    cables = LostCables(10.0)
    assert cables.look({FIRST}, 100.0) == {}
    assert cables.due(109.0) == {}
    cables.look({FIRST, SECOND}, 109.0)
    assert cables.due(110.0) == {FIRST: 10.0}
    assert cables.due(118.0) == {}
    assert cables.due(120.0) == {FIRST: 20.0, SECOND: 11.0}
    assert cables.look({SECOND}, 121.0) == {FIRST: 21.0}
    cables.look({FIRST, SECOND}, 122.0)
    assert cables.due(130.0) == {SECOND: 21.0}, "a new loss has a limit of its own"


@pytest.mark.parametrize(
    ("down", "lost"),
    [
        ({(0, 1), (1, 0)}, {FIRST}),
        ({(0, 1)}, set()),  # the other end has not noticed
        ({(1, 0), (1, 2), (0, 1), (2, 1)}, set()),  # server 1 is cut off, not two cables
    ],
)
def test_a_cable_is_lost_if_both_ends_say_so_and_have_others(
    tmp_path: Path, down: set[tuple[int, int]], lost: set[Link]
) -> None:
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)]
    ranks = [
        status(
            rank,
            links=[link(a, b, 1, 1, up=(a, b) not in down) for a, b in pairs if a == rank],
        )
        for rank in range(3)
    ]
    save_statuses(tmp_path, *ranks)
    statuses = read_statuses(JobFolder(tmp_path))
    assert lost_links(statuses, [FIRST, SECOND]) == lost
    alone = {0: statuses[0]}  # on several hosts
    assert lost_links(alone, [FIRST, SECOND]) == ({FIRST} if (0, 1) in down else set())


# ---- the thread's steps --------------------------------------------------------------------------


class Circuits:
    """In place of SpareCircuits; `dark_ones` are down."""

    def __init__(self) -> None:
        self.links = (FIRST, SECOND)
        self.dark_ones: set[Link] = set()
        self.moves: list[SpareMove | FabricError] = []
        self.back: list[Link] = []

    def dark(self) -> set[Link]:
        return self.dark_ones

    def move(self, link: Link) -> SpareMove:
        move = self.moves.pop(0)
        if isinstance(move, FabricError):
            raise move
        return move

    def is_back(self, link: Link) -> None:
        self.back.append(link)


def cable(first: int, second: int) -> tuple[SwitchPort, SwitchPort]:
    return SwitchPort(0, first, "ocs0", "1"), SwitchPort(1, second, "ocs0", "2")


def test_moves_failures_and_the_return_are_recorded_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circuits: Any = Circuits()
    metrics = MetricsWriter(tmp_path / "metrics.jsonl", 0.0)
    mover = CableMover(circuits, JobFolder(tmp_path), metrics, 0.0)
    stays = SpareMove(FIRST, cable(0, 0), cable(0, 0), 0.0, "there are no spare ports")
    circuits.moves = [FabricError("ocs0: no answer"), stays, stays]
    circuits.moves.append(replace(stays, after=cable(2, 3), why=""))
    circuits.dark_ones = {FIRST}
    for now_s in (0.0, 10.0, 20.0, 30.0):
        mover.look(now_s)
    circuits.dark_ones = set()
    mover.look(40.0)
    events = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    assert [(event["event"], event["moved"], event["ports"]) for event in events] == [
        ("cable", False, [[0, 0], [1, 0]]),
        ("cable", True, [[0, 2], [1, 3]]),
        ("cable", False, []),
    ]
    assert circuits.back == [FIRST]
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 4, printed
    for line, words in zip(
        printed,
        [("no answer",), ("no spare ports",), ("port 2", "port 3"), ("is back",)],
        strict=True,
    ):
        assert all(word in line for word in words), line
    assert len(parse_metrics(metrics.path.read_bytes()).notes) == 3


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fabric": "loopback"}, ("1", "netns")),
        ({"switch_delay": None}, ("1", "--switch-delay")),
        ({"relay": "kernel"}, ("1", "--relay user")),
        ({"spare_ports": 9}, ("9", "0..8")),
        ({"spare_ports": -1}, ("-1", "0..8")),
    ],
)
def test_options_that_exclude_spare_ports(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    options = {"fabric": "netns", "switch_delay": 0.01, "relay": "user", "spare_ports": 1}
    spare_ports.check(argparse.Namespace(**options))
    with refused((InputError, FabricError), "spare-ports", *words):
        spare_ports.check(argparse.Namespace(**{**options, **changes}))


def test_a_limit_that_is_no_number_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SPARE_VARIABLE, "soon")
    with refused(FabricError, SPARE_VARIABLE, "soon"):
        spare_ports.check(argparse.Namespace(spare_ports=0))


# ---- a run ---------------------------------------------------------------------------------------

SERVERS = 4
SCRIPT = """
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_topoopt.runtime import job

CUT, AFTER = 10, 10  # the step of the fault, and steps after the link is back
deadline = time.monotonic() + float(sys.argv[1])


def sent_bytes(interface):
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if line.strip().startswith(interface + ":"):
            return int(line.split()[9])
    raise AssertionError(interface)


def anywhere(condition):
    found = torch.tensor([int(bool(condition))])
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def train(stop):
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    while not stop(len(losses)):
        batch = torch.randn(4, 32, generator=random, dtype=torch.float64)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


seen = {"lost": False, "back_at": None, "port2": 0}


def over(step):
    if step == CUT and dist.get_rank() == 0:
        subprocess.run(["ip", "link", "set", "port0", "down"], check=True)
    lost = anywhere(job.jobs[-1].session.lost_cables())
    assert not anywhere(time.monotonic() > deadline), seen
    seen["lost"] |= lost
    if seen["lost"] and not lost and seen["back_at"] is None:
        seen["back_at"], seen["port2"] = step, sent_bytes("port2")
    return seen["back_at"] is not None and step >= seen["back_at"] + AFTER


dist.init_process_group("topoopt")
losses = train(over)
carried = sent_bytes("port2") - seen["port2"]
rank = dist.get_rank()
dist.destroy_process_group()
dist.init_process_group("gloo")
expected = train(lambda step: step == len(losses))
dist.destroy_process_group()
torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-9, atol=0.0)
Path(f"carried-{rank}").write_text(str(carried))
"""


def test_a_job_moves_a_cable_whose_port_is_dead_and_trains_on(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ("--fabric", "netns", "--servers", str(SERVERS), "--degree", "2", "--model", "none")
    options += ("--switch-delay", "0.02", "--spare-ports", "1", "--bandwidth", "100Mbps")
    environment = {SPARE_VARIABLE: "1", "GLOO_SOCKET_IFNAME": "management"}
    limit = str(limit_s(60.0))
    done = launcher.run("run", *options, "--json", "script.py", limit, **environment)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["restarts"] == []
    carried = [int((tmp_path / f"carried-{rank}").read_text()) for rank in range(SERVERS)]
    run = tmp_path / summary["run_dir"]
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    moved, back = [event for event in events if event["event"] == "cable"]
    assert (moved["moved"], back["moved"]) == (True, False)
    assert [number for _, number in moved["ports"]] == [2, 2]
    for server, _ in moved["ports"]:
        assert carried[server] > 0, "data goes over the spare ports"
    page = (tmp_path / summary["report"]).read_text()
    assert "moved to server" in page
    assert "are not shown" not in page
