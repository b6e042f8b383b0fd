"""Jobs on emulated hosts whose cables are cut and repaired all the time; as root.

A failure prints the seed: benchmarks/endurance.py or soak.py with --seed repeats its faults.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
from endurance import endure
from soak import soak
from support.fabric.netns_fixtures import make_plan, require_namespaces

from fault_injection import broken_cables, cable_faults
from fault_injection.cable_faults import CableFaults
from torch_topoopt.fabric.netns.layout import NetnsLayout
from torch_topoopt.links.sockets import connections

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run: nothing is, so nothing need be installed."""
    run: list[list[str]] = []
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr(broken_cables, "run", lambda command: run.append(command) or "")
    return run


def faults_on_paper(servers: int, degree: int, seed: int, most: int = 2) -> CableFaults:
    return CableFaults(
        NetnsLayout("paper"), make_plan(servers, degree), seed=seed, most=most, log=print
    )


def reached(faults: CableFaults, servers: int, degree: int) -> set[int]:
    """The servers that server 0 reaches over cables that are not cut."""
    cut = [fault.cable.link for fault in faults.cut]
    links = connections(make_plan(servers, degree))
    ends = [{link.source, link.target} for link in links if link not in cut]
    found, size = {0}, 0
    while len(found) > size:
        size = len(found)
        for pair in ends:
            found |= pair if pair & found else set()
    return found


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("servers", "degree", "most"), [(8, 4, 2), (4, 2, 1), (4, 2, 2), (5, 4, 3)]
)
def test_what_is_left_connects_all_servers(servers: int, degree: int, most: int) -> None:
    faults = faults_on_paper(servers, degree, seed=5, most=most)
    kinds = set()
    for _ in range(300):
        faults.turn()
        assert len(faults.cut) <= most
        assert len(reached(faults, servers, degree)) == servers
        kinds |= {fault.kind for fault in faults.cut}
    assert kinds == set(cable_faults.KINDS)
    assert faults.count > 90
    assert [turn.cut for turn in faults.turns][-1] == len(faults.cut)


def test_a_seed_repeats_its_faults_and_all_are_repaired(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for _ in range(2):
        faults = faults_on_paper(8, 4, seed=9)
        for _ in range(50):
            faults.turn()
        faults.repair_all()
        assert not faults.cut
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    begun = [c for c in commands if c[-1] == "down" or "add table" in c[-1]]
    ended = [c for c in commands if c[-1] == "up" or "delete table" in c[-1]]
    assert len(begun) == len(ended) > 100


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
