"""`topoopt fabric apply` with a person at a patch panel: a real process on a real terminal."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.fabric.switches.circuits import duplex_circuit
from torch_topoopt.fabric.switches.manual_panel import PanelState

if TYPE_CHECKING:
    from pathlib import Path

    from support.plans import RingPlan

LIMIT_S = 60.0
QUIET_S = 0.5  # a moving progress line would be drawn more than twice in it


@pytest.fixture
def lab(tmp_path: Path, ring_plan: RingPlan) -> Path:
    """A folder with plan.json, a ring of three, and lab.yaml, where h1 has sockets 3 and 4."""
    ring_plan(3).save(tmp_path / "plan.json")
    ports = "\n".join(
        f"  - name: h{i}\n    management: 10.200.0.{i + 1}\n    ports:\n"
        f"      - {{name: p0, address: 10.201.0.{2 * i + 1}/24, switch: 'wall:{2 * i + 1}'}}\n"
        f"      - {{name: p1, address: 10.201.0.{2 * i + 2}/24, switch: 'wall:{2 * i + 2}'}}"
        for i in range(3)
    )
    (tmp_path / "lab.yaml").write_text(
        f"version: 1\nname: lab\nservers:\n{ports}\nswitches:\n"
        "  - name: wall\n    kind: manual\n    address: room 3\n"
        "    sockets: ['1', '2', '3', '4', '5', '6']\n"
        "    options: {size: 24, state: wall.json}\n"
    )
    return tmp_path


class Terminal:
    """The terminal of a person."""

    def __init__(self, lab: Path, *arguments: str) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_topoopt.launcher.main", "fabric", *arguments],
            cwd=lab,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        os.close(slave)
        self.text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def read(self, limit_s: float) -> bool:
        """False: nothing more came in time, or the process has ended."""
        if not select.select([self._master], [], [], limit_s)[0]:
            return False
        try:
            self.text += os.read(self._master, 65536).decode()
        except OSError:  # no process has the terminal open any more
            return False
        return True

    def until_asked(self, count: int) -> None:
        give_up = time.monotonic() + limit_s(LIMIT_S)
        while self.text.count("it cannot be done > ") < count:
            assert self.read(give_up - time.monotonic()), self.text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self.read(LIMIT_S):
            pass
        return self.process.wait(limit_s(LIMIT_S))


def test_the_question_stays_on_the_screen_until_it_is_answered(lab: Path) -> None:
    with Terminal(lab, "apply", "plan.json", "--cluster", "lab.yaml") as terminal:
        terminal.until_asked(1)
        terminal.read(QUIET_S)  # what belongs to the question and follows it
        assert not terminal.read(QUIET_S), terminal.text[-300:]
        terminal.type("y\n")
        terminal.until_asked(2)
        terminal.type("a\n")
        assert terminal.end() == 0
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text)
    assert "wall (room 3): 3 moves, in this order:" in seen
    assert "all 3 cables of the plan on switches carry light" in seen
    assert "(on wall that is a person's word, not a measurement)" in seen
    wanted = [duplex_circuit("1", "3"), duplex_circuit("2", "5"), duplex_circuit("4", "6")]
    assert list(PanelState.load(lab / "wall.json").circuits) == wanted


def test_a_dry_run_asks_no_person(lab: Path) -> None:
    with Terminal(lab, "apply", "plan.json", "--cluster", "lab.yaml", "--dry-run") as terminal:
        assert terminal.end() == 0
    assert "wall: circuits: 0 to remove, 3 to add" in terminal.text
    assert "Done?" not in terminal.text
    assert not (lab / "wall.json").exists()


def test_ctrl_c_leaves_what_was_confirmed_and_says_so(lab: Path) -> None:
    with Terminal(lab, "apply", "plan.json", "--cluster", "lab.yaml") as terminal:
        terminal.until_asked(1)
        terminal.type("y\n")
        terminal.until_asked(2)
        os.killpg(terminal.process.pid, 2)
        assert terminal.end() == 130
    assert named(terminal.text, "stopped", "move 2 of 3", "not undone", "1-3")
    assert "Traceback" not in terminal.text
    assert PanelState.load(lab / "wall.json").circuits == (duplex_circuit("1", "3"),)
