"""Temporary folders of processes that have ended are removed by the next one, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.processes import scratch

if TYPE_CHECKING:
    from pathlib import Path

STAY = """
import signal
from torch_topoopt.processes.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_is_private_and_goes_with_its_block(temporary: Path) -> None:
    with scratch.scratch_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(temporary: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STAY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        left = process.stdout.readline().strip()
        scratch.remove_abandoned()
        assert os.path.isdir(left), "its process lives"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert os.path.isdir(left), "it could not be removed"
    with scratch.scratch_folder():
        assert not os.path.exists(left)


def test_nothing_else_is_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    machine = f"topoopt-scratch-{scratch._machine()}"
    kept = [
        temporary / f"{machine}-{os.getpid()}-{scratch.process_start(os.getpid())}-own",
        temporary / f"topoopt-scratch-0badb007.1-{ended.pid}-1-another-machine",
        temporary / f"{machine}-no-process",
        temporary / "something-else",
    ]
    for folder in kept:
        folder.mkdir()
    target = temporary / "target"
    target.mkdir()
    (temporary / f"{machine}-{ended.pid}-1-link").symlink_to(target)
    gone = temporary / f"{machine}-{ended.pid}-1-x"
    gone.mkdir()
    scratch.remove_abandoned()
    assert all(folder.is_dir() for folder in [*kept, target])
    assert not gone.exists()
    gone.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)  # as if another user looked
    scratch.remove_abandoned()
    assert gone.is_dir()
