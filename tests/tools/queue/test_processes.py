"""Supervisors: started once, found again, ended with everything that they started."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.launcher import wait_for

from torch_topoopt.tools.queue.processes import Command, LocalProcesses, ProcessIdentity, locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Runner:
    """Starts shell scripts in `folder`, all with one mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.processes = LocalProcesses()

    def start(self, *scripts: str) -> None:
        commands = [
            Command(f"host{i}", ("/bin/sh", "-c", script), str(self.folder))
            for i, script in enumerate(scripts)
        ]
        self.processes.start(self.folder, commands, os.environ, self.mark)

    def identity(self) -> ProcessIdentity:
        wait_for(lambda: self.processes.find(self.folder) is not None, "a supervisor")
        found = self.processes.find(self.folder)
        assert found is not None
        return found

    def exit_codes(self) -> dict[str, int]:
        wait_for(lambda: self.processes.ended(self.folder) is not None, "the end")
        ended = self.processes.ended(self.folder)
        assert ended is not None
        return ended.exit_codes


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path)
    yield runner
    wait_for(lambda: runner.processes.kill_marked(runner.mark) == 0, "the end of all processes")
    runner.processes.reap()


def test_commands_run_with_a_log_each_and_their_exit_codes_are_kept(runner: Runner) -> None:
    runner.start("echo one", "echo two >&2")
    assert runner.exit_codes() == {"host0": 0, "host1": 0}
    assert (runner.folder / "host0.log").read_text() == "one\n"
    assert (runner.folder / "host1.log").read_text() == "two\n"


def test_started_again_and_again_it_runs_once(runner: Runner) -> None:
    for _ in range(4):
        runner.start("echo ran >> ran; sleep 0.2")
    runner.exit_codes()
    runner.start("echo ran >> ran")
    wait_for(lambda: not _children(runner), "the end of the other supervisors")
    assert (runner.folder / "ran").read_text() == "ran\n"


def test_it_is_found_by_pid_and_start_time_and_not_mistaken_for_another(runner: Runner) -> None:
    runner.start("sleep 60")
    identity = runner.identity()
    assert identity.alive
    assert identity.pid != os.getpid()
    assert not replace(identity, started=identity.started - 1).alive
    assert not replace(identity, boot="another boot").alive
    assert LocalProcesses().find(runner.folder) == identity


def test_a_child_that_is_not_waited_for_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    identity = ProcessIdentity.of(child.pid)
    wait_for(lambda: ProcessIdentity.of(child.pid) is None, "the zombie")
    assert identity is None or not identity.alive
    child.wait()


def test_if_one_host_fails_the_others_are_ended(runner: Runner) -> None:
    runner.start("sleep 60", "exit 3", "sleep 60 & wait")
    assert runner.exit_codes() == {"host0": -15, "host1": 3, "host2": -15}
    ended = runner.processes.ended(runner.folder)
    assert ended is not None
    assert ended.exit_code in (3, 143)


def test_a_command_that_does_not_exist_is_127_and_reported(runner: Runner) -> None:
    command = Command("host0", ("/nowhere/program",), str(runner.folder))
    runner.processes.start(runner.folder, [command], os.environ, runner.mark)
    assert runner.exit_codes() == {"host0": 127}
    assert "No such file" in (runner.folder / "supervisor.log").read_text()


def test_stop_ends_all_and_lets_them_clean_up(runner: Runner) -> None:
    runner.start("trap 'echo clean > clean; exit 5' TERM; touch up; while :; do sleep 0.02; done")
    wait_for((runner.folder / "up").exists, "the command")
    runner.processes.stop(runner.identity())
    assert runner.exit_codes() == {"host0": 5}
    assert (runner.folder / "clean").exists()


def test_what_was_forbidden_never_starts(runner: Runner) -> None:
    assert runner.processes.forbid(runner.folder)
    runner.start("touch ran")
    wait_for(lambda: not _children(runner), "the end of the supervisor")
    assert not (runner.folder / "ran").exists()
    assert runner.processes.find(runner.folder) is None
    assert runner.processes.forbidden(runner.folder)


def test_what_runs_cannot_be_forbidden(runner: Runner) -> None:
    runner.start("sleep 60")
    runner.identity()
    assert not runner.processes.forbid(runner.folder)
    with locked(runner.folder) as mine:
        assert not mine


def _children(runner: Runner) -> bool:
    runner.processes.reap()
    return bool(runner.processes._children)
