"""The walks of docs/project/architecture.md name files and functions that are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.limits import limit_s

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "project" / "architecture.md").read_text(encoding="utf-8")
# (row of a walk: its functions, its files)
ROWS = [
    (cells[1], cells[2])
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| step ", "| --- "))
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
]
SOURCES = [
    path
    for name in subprocess.run(
        ["git", "ls-files", "torch_topoopt", "launcher", "csrc"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=limit_s(60),
        check=True,
    ).stdout.split()
    for path in [ROOT / name]
    if path.suffix in (".py", ".cc", ".h") and path.is_file()
]


@pytest.fixture(scope="module")
def words() -> set[str]:
    """All names in the sources."""
    return {word for path in SOURCES for word in re.findall(r"\w+", path.read_text())}


def test_there_are_four_walks() -> None:
    assert len(re.findall(r"^\| step \| function \| file \|$", PAGE, re.MULTILINE)) == 4
    assert len(ROWS) > 25


@pytest.mark.parametrize(("functions", "files"), ROWS, ids=[files for _, files in ROWS])
def test_its_files_and_functions_exist(functions: str, files: str, words: set[str]) -> None:
    names = {path.relative_to(ROOT).as_posix() for path in SOURCES}
    for file in re.findall(r"`([^`]+\.(?:py|h|cc)|[^`]+/)`", files):
        ending = f"/{file}"
        assert any(f"/{name}".endswith(ending) or ending in f"/{name}" for name in names), file
    documents = {"links", "rankN", "json", "jsonl", "metrics"}
    for quoted in re.findall(r"`([^`]+)`", functions):
        for word in re.findall(r"[A-Za-z_]\w{3,}", quoted.partition("(")[0]):
            assert word in words | documents, quoted
