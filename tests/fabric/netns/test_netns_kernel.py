"""Namespaces are made, entered and removed with what runs in them, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import a_name, require_namespaces
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.layout import NetnsLayout
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Enters the namespace, says so, and waits.
INSIDE = """\
import ctypes, signal, sys
with open(sys.argv[1]) as file:
    assert ctypes.CDLL(None).setns(file.fileno(), 0x40000000) == 0
print("in", flush=True)
signal.pause()
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    require_namespaces()
    name = NetnsLayout(a_name()).namespace(0)
    netns_kernel.create(name)
    yield name
    netns_kernel.remove([name])


def here() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_a_call_runs_inside_and_the_caller_stays_outside(namespace: str) -> None:
    before = here()
    inside = netns_kernel.inside(namespace, here)
    assert inside != before
    assert netns_kernel.inside(namespace, here) == inside
    assert here() == before
    with pytest.raises(ZeroDivisionError):
        netns_kernel.inside(namespace, lambda: 1 // 0)


def test_a_name_that_is_taken_and_one_that_is_not_there_are_errors(namespace: str) -> None:
    with refused(FabricError, namespace, "already"):
        netns_kernel.create(namespace)
    with refused(FabricError, f"{namespace}x", "No such file"):
        netns_kernel.inside(namespace + "x", here)
    netns_kernel.remove([namespace + "x"])


def test_making_namespaces_does_not_pile_up_mounts(namespace: str) -> None:
    def mounts() -> int:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return sum(line.split()[4] == str(netns_kernel.NAMESPACES) for line in lines)

    before = mounts()
    other = namespace + "0"
    netns_kernel.create(other)
    netns_kernel.remove([other])
    assert mounts() == before


def test_what_runs_inside_is_killed_and_only_that(namespace: str) -> None:
    def start(path: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", INSIDE, path], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        return process

    with start(netns_kernel.path_of(namespace)) as inside, start("/proc/self/ns/net") as outside:
        try:
            assert netns_kernel.processes([namespace]) == [inside.pid]
            netns_kernel.remove([namespace])
            assert inside.wait(10) == -9
            assert outside.poll() is None
        finally:
            inside.kill()
            outside.kill()
    assert not netns_kernel.exists(namespace)


def test_a_command_inside_does_not_remove_the_ground_under_it(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = netns_kernel._identity
    own = real(netns_kernel.path_of(namespace))
    monkeypatch.setattr(
        netns_kernel, "_identity", lambda path: own if path == "/proc/self/ns/net" else real(path)
    )
    with refused(FabricError, namespace, "itself"):
        netns_kernel.remove([namespace])
    monkeypatch.undo()
    assert netns_kernel.exists(namespace)
