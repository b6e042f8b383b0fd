"""`topoopt inspect --cluster`: namespaces as hosts, which a program in the place of ssh reaches."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from plain_hosts import Hosts, make_hosts
from support.dumps import collective, dump, save
from support.launcher import forked
from support.limits import limit_s
from support.plain_namespaces import Namespaces
from support.refusals import named, refused

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.supervise import inspect, jobs
from torch_topoopt.links.errors import FabricError
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.launcher import Launcher

SCRIPT = """
import pathlib, time
import torch, torch.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
for step in range(3):
    if step == 2 and rank == 1:
        time.sleep(600)
    pathlib.Path(f"step-{rank}-{step}").touch()
    dist.all_reduce(torch.ones(8))
"""
SSH = """\
#!/bin/sh
[ "$1" = -- ] || exit 250
case "$2" in
{hosts}
*) echo "no route to $2" >&2; exit 255 ;;
esac
cd {folder} && exec ip netns exec "$name" sh -c "$3"
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two hosts with a cable and one file system."""
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    with Namespaces() as namespaces:
        made = make_hosts(2, [(0, 1)], Hosts(namespaces))
        made.cluster().save(tmp_path / "lab.yaml")
        write_ssh(tmp_path, dict(zip(made.managements, made.names, strict=True)))
        yield made


def write_ssh(folder: Path, names: dict[str, str]) -> None:
    cases = "\n".join(f"{address}) name={name} ;;" for address, name in names.items())
    (folder / "ssh").write_text(SSH.format(hosts=cases, folder=folder))
    (folder / "ssh").chmod(0o755)


def inspect_hosts(folder: Path, *words: str) -> None:
    remote = ("--remote-command", shlex.join(forked()))
    ways = ("--ssh-command", str(folder / "ssh"), *remote)
    assert inspect.main(["--cluster", str(folder / "lab.yaml"), *ways, *words]) == 0


def inspected(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    inspect_hosts(folder, *words, "--json")
    return json.loads(capsys.readouterr().out)


def a_run_that_hung(folder: Path) -> None:
    """Of both hosts, with a folder for each as on a file system that they share."""
    calls = [[collective(1), collective(2, state="started", failed=True)], [collective(1)]]
    for rank in (0, 1):
        save(JobFolder(folder / f"run-h{rank}").dumps(0), dump(rank, calls[rank]))
        (folder / f"run-h{rank}" / jobs.METRICS).touch()


@pytest.mark.timeout(400)
def test_the_stuck_rank_of_a_running_job_is_found_from_all_hosts(
    launcher: Launcher, hosts: Hosts, until: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = launcher.folder
    (folder / "train.py").write_text(SCRIPT)
    options = ("--cluster", "lab.yaml", "--nnodes", "2", "--model", "none")
    command = (sys.executable, "-m", "torch_topoopt.launcher.main")
    runs = [
        launcher.start(
            *("run", *options, "train.py"), command=("ip", "netns", "exec", name, *command)
        )
        for name in hosts.names
    ]
    try:
        until(
            lambda: (folder / "step-0-2").exists() or any(run.poll() is not None for run in runs),
            "the last step of rank 0",
            120,
        )
        shown: list[dict[str, Any]] = []  # operations of the last seconds are no hang yet

        def has_culprits() -> bool:
            shown.append(inspected(folder, capsys, "--wait", "20"))
            return bool(shown[-1]["culprits"])

        until(has_culprits, "a rank that is behind", 60)
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
        for run in runs:
            run.communicate(timeout=limit_s(60))
    found = shown[-1]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["culprits"] == [1]
    assert [host["server"] for host in found["hosts"]] == ["h0", "h1"]
    assert all(host["error"] is None for host in found["hosts"])
    assert len({host["folder"] for host in found["hosts"]}) == 2


def test_a_job_that_has_ended_is_found_in_the_folder_of_runs(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run_that_hung(tmp_path / "mine")
    found = inspected(tmp_path, capsys, "mine")
    assert found["culprits"] == [1]
    assert [rank["server"] for rank in found["ranks"]] == [0, 1]
    assert named(found["hosts"][1]["folder"], "run-h1")


def test_a_host_that_cannot_be_reached_is_named(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run_that_hung(tmp_path / "runs")
    write_ssh(tmp_path, {hosts.managements[0]: hosts.names[0]})
    found = inspected(tmp_path, capsys)
    assert [rank["rank"] for rank in found["ranks"]] == [0]
    assert named(found["hosts"][1]["error"], "h1", f"no route to {hosts.managements[1]}")
    write_ssh(tmp_path, {})
    with refused(FabricError, *hosts.managements):
        inspect_hosts(tmp_path)


def test_hosts_without_a_job_are_named(hosts: Hosts, tmp_path: Path) -> None:
    with refused(FabricError, "h0", "server 0", "h1", "server 1"):
        inspect_hosts(tmp_path)


def test_an_empty_ssh_command_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    with refused(InputError, "ssh-command"):
        inspect.main(["--cluster", str(tmp_path / "lab.yaml"), "--ssh-command", ""])
