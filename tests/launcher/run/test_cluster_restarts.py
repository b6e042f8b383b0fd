"""`topoopt run --cluster --max-restarts`: hosts that restart together, and without one of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from plain_hosts import Hosts, make_hosts
from support.launcher import COMMAND
from support.limits import limit_s
from support.plain_namespaces import Namespaces

from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.launcher import Launcher

LIMIT_S = 150.0

# In attempt 0 rank 1 raises, in attempt 1 rank 2 kills the launcher of its host, and itself with
# it. Rank 0 waits in no collective, so that its host has to be notified; the others wait in one.
SCRIPT = """
import os, pathlib, signal, time
import torch, torch.distributed as dist
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
total = torch.ones(1000)
dist.all_reduce(total)
assert total[0].item() == world
said = " ".join(os.environ["TORCHELASTIC_" + name] for name in ("MAX_RESTARTS", "RUN_ID"))
pathlib.Path(f"rank{rank}-{attempt}").write_text(f"{world} {said}")
if attempt == "0" and rank == 1:
    raise ValueError("the disk is full")
if attempt == "1" and rank == 2:
    os.kill(os.getppid(), signal.SIGKILL)
if attempt != "2":
    if rank == 0:
        time.sleep(600)
    dist.all_reduce(total)
dist.destroy_process_group()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Namespaces() as namespaces:
        yield Hosts(namespaces)


@pytest.mark.exhaustive
def test_hosts_restart_together_and_go_on_without_one_whose_launcher_has_ended(
    launcher: Launcher, hosts: Hosts
) -> None:
    make_hosts(3, [(0, 1), (1, 2), (2, 0)], hosts)
    hosts.cluster().save(launcher.folder / "cluster.yaml")
    (launcher.folder / "train.py").write_text(SCRIPT)
    started = []
    for server, name in enumerate(hosts.names):
        folder = launcher.folder / f"server{server}"
        folder.mkdir()
        started.append(
            replace(launcher, folder=folder).start(
                *("run", "--cluster", "../cluster.yaml", "--run-dir", "run", "--model", "none"),
                *("--nnodes", "2:3", "--max-restarts", "2", "../train.py"),
                command=("ip", "netns", "exec", name, *COMMAND),
            )
        )
    ended = [process.communicate(timeout=limit_s(LIMIT_S)) for process in started]
    assert [process.returncode for process in started] == [0, 0, -9], ended
    begin = "topoopt: warning: "
    for _, err in ended[:2]:
        lines = [line.removeprefix(begin) for line in err.splitlines() if line.startswith(begin)]
        assert lines[:2] == [
            "rank 1 of ../train.py ended with exit code 1: ValueError: the disk is full",
            "restart 1 of 2, on all 3 servers",
        ]
        gone = f"h2 (node rank 2, {hosts.managements[2]}) is gone: its launcher has ended"
        assert gone in lines
        assert any("restart 2 of 2, without server 2: on 2 of 3 servers" in line for line in lines)
    for server in (0, 1):
        folder = launcher.folder / f"server{server}"
        assert Plan.load(folder / "run" / "plan.json").cluster.servers == 2
        texts = [(folder / f"rank{server}-{k}").read_text() for k in range(3)]
        assert [text.split()[:2] for text in texts] == [["3", "2"], ["3", "2"], ["2", "2"]]
        assert len({text.split()[2] for text in texts}) == 1
    records = (launcher.folder / "server0" / "run" / "metrics.jsonl").read_text().splitlines()
    restarts = [r for r in map(json.loads, records) if r["event"] == "restart"]
    assert [r["lost_servers"] for r in restarts] == [[], [2]]


def test_a_cluster_file_without_a_server_has_the_other_cables() -> None:
    with Namespaces() as namespaces:
        hosts = make_hosts(3, [(0, 1), (1, 2), (2, 0)], Hosts(namespaces))
        left = hosts.cluster().without({"h1"})
    assert [server.name for server in left.servers] == ["h0", "h2"]
    assert left.cables == (("h2:p1", "h0:p1"),)
