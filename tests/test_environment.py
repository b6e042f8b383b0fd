"""The names of environment variables."""

from __future__ import annotations

import re
from pathlib import Path

from torch_topoopt.environment import VARIABLES, misspelt

ROOT = Path(__file__).parents[1]


def test_every_variable_of_the_source_is_known_and_every_known_one_is_used() -> None:
    folders = [ROOT / "torch_topoopt", ROOT / "launcher", ROOT / "csrc"]
    sources = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    named = {
        name
        for path in sources
        if path.suffix in (".py", ".cc", ".h")
        for name in re.findall(r'"(TOPOOPT_[A-Z_]+)"', path.read_text())
    }
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    named |= set(re.findall(r"`(TOPOOPT_[A-Z_]+)`", page))
    assert named == VARIABLES


def test_a_misspelt_variable_names_the_one_that_is_meant() -> None:
    names = ["TOPOOPT_ALGORITM", "TOPOOPT_LOG", "TOPOOPT_TAKEOVER", "TOPOOPT_OF_A_SCRIPT", "PATH"]
    assert misspelt(names) == {
        "TOPOOPT_ALGORITM": "TOPOOPT_ALGORITHM",
        "TOPOOPT_TAKEOVER": "TOPOOPT_TAKE_OVER",
    }
