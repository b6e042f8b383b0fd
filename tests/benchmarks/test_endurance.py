"""Jobs on emulated hosts whose cables are cut and repaired all the time; as root.

A failure prints the seed: benchmarks/endurance.py or soak.py with --seed repeats its faults.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import cable_faults
import pytest
from cable_faults import CableFaults
from endurance import endure
from soak import soak
from support.fabric.netns_fixtures import make_plan, require_namespaces

from torch_topoopt.fabric.links import connections
from torch_topoopt.fabric.netns.layout import NetnsLayout

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


class FaultsOnPaper(CableFaults):
    """Runs no command, and keeps what it would run."""

    def __init__(self, servers: int, degree: int, seed: int, most: int = 2) -> None:
        self.plan = make_plan(servers, degree)
        self.commands: list[tuple[int, str, str]] = []
        super().__init__(NetnsLayout("paper"), self.plan, seed=seed, most=most)

    def _in_host(self, server: int, command: str, text: str = "") -> None:
        self.commands.append((server, command, text))


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run, so nothing need be installed."""
    monkeypatch.setattr(shutil, "which", lambda program: program)


def reached(faults: FaultsOnPaper) -> set[int]:
    """The servers that server 0 reaches over cables that are not cut."""
    cut = [fault.cable for fault in faults.cut]
    ends = [{c.source, c.target} for c in connections(faults.plan) if c not in cut]
    found, size = {0}, 0
    while len(found) > size:
        size = len(found)
        for pair in ends:
            found |= pair if pair & found else set()
    return found


@pytest.mark.parametrize(
    ("servers", "degree", "most"), [(8, 4, 2), (4, 2, 1), (4, 2, 2), (5, 4, 3)]
)
def test_what_is_left_connects_all_servers(servers: int, degree: int, most: int) -> None:
    faults = FaultsOnPaper(servers, degree, seed=5, most=most)
    kinds = set()
    for _ in range(300):
        faults.turn()
        assert len(faults.cut) <= most
        assert len(reached(faults)) == servers
        kinds |= {fault.kind for fault in faults.cut}
    assert kinds == set(cable_faults.KINDS)
    assert faults.count > 90
    assert [turn.cut for turn in faults.turns][-1] == len(faults.cut)


@pytest.mark.usefixtures("programs")
def test_a_seed_repeats_its_faults_and_all_are_repaired() -> None:
    first, second = FaultsOnPaper(8, 4, seed=9), FaultsOnPaper(8, 4, seed=9)
    for faults in (first, second):
        for _ in range(50):
            faults.turn()
        faults.repair_all()
        assert not faults.cut
    assert first.commands == second.commands
    begun = sum("down" in command or "add table" in text for _, command, text in first.commands)
    ended = sum(" up" in command or "delete" in command for _, command, _ in first.commands)
    assert begun == ended > 50


def require_faults() -> None:
    require_namespaces()
    if shutil.which("nft") is None:
        pytest.skip("this needs the program nft")


def hold_out(folder: Path, seconds: float, every_s: float, seed: int) -> None:
    require_faults()
    result = endure(folder, seconds=seconds, every_s=every_s, seed=seed)
    printed = (folder / "output").read_text(errors="replace")[-3000:]
    assert result.outcome.exit_code == 0, printed
    assert result.passed, printed


def test_no_step_is_lost_while_cables_come_and_go(tmp_path: Path) -> None:
    hold_out(tmp_path, seconds=8.0, every_s=1.5, seed=1)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_no_step_is_lost_in_five_minutes_of_cuts(tmp_path: Path) -> None:
    hold_out(tmp_path, seconds=300.0, every_s=3.0, seed=random.randrange(1 << 32))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_weights_are_those_of_a_run_without_faults(tmp_path: Path) -> None:
    require_faults()
    result = soak(tmp_path, seconds=120.0, every_s=3.0, seed=random.randrange(1 << 32))
    assert result.passed, (tmp_path / "faulty" / "output").read_text(errors="replace")[-3000:]
    assert result.grown_bytes < 8 * MIB
