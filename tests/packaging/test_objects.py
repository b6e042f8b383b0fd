"""The files that csrc/objects.py compiles, and their flags."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.limits import limit_s

CSRC = Path(__file__).parents[2] / "csrc"
sys.path.insert(0, str(CSRC))
import objects  # noqa: E402


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("TOPOOPT_DEBUG", "CPPFLAGS", "CXXFLAGS", "CXX"):
        monkeypatch.delenv(name, raising=False)


def flags_of(folder, source):
    """The flags that the ninja file has for one source."""
    text, _ = objects._ninja_file(folder, objects.Unit((source,), "precompiled/standard.h", "-O3"))
    (flags,) = re.findall(r"^flags = (.*)", text, re.MULTILINE)
    return flags.split()


def test_every_file_belongs_to_a_module():
    plain = {f for folders in objects.PLAIN.values() for f in objects.sources(*folders)}
    bound = {f for module in objects.PLAIN for f in objects.bindings(module)}
    assert plain | bound == set(CSRC.rglob("*.cc"))
    assert not plain & bound


def test_what_is_compiled_before_torch_is_there_includes_nothing_of_it_nor_of_python():
    """Nor do the headers of these folders."""
    folders = {folder for folders in objects.PLAIN.values() for folder in folders}
    files = [
        f for folder in folders for f in (CSRC / folder).iterdir() if f.suffix in (".cc", ".h")
    ]
    foreign = re.compile(r'#include [<"](torch|ATen|c10|pybind11|Python\.h|backend/|bind/)')
    assert len(files) > 100
    assert not [f for f in files if foreign.search(f.read_text())]


def test_debug_information_is_made_only_on_request(tmp_path, monkeypatch):
    source = CSRC / "sim" / "fold.cc"
    usual = flags_of(tmp_path, source)
    assert "-O3" in usual
    assert not [f for f in usual if f.startswith("-g")]
    monkeypatch.setenv("TOPOOPT_DEBUG", "1")
    assert {"-Og", "-g"} < set(flags_of(tmp_path, source))


def test_flags_of_the_user_come_last(tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O0 -DNAME='a b'")
    assert flags_of(tmp_path, CSRC / "sim" / "fold.cc")[-3:] == ["-O0", "'-DNAME=a", "b'"]


def test_the_command_says_where_compiling_failed(tmp_path):
    """In a copy, whose folder of objects is its own."""
    shutil.copytree(CSRC / "common", tmp_path / "csrc" / "common")
    shutil.copytree(CSRC / "precompiled", tmp_path / "csrc" / "precompiled")
    shutil.copy(CSRC / "objects.py", tmp_path / "csrc")
    done = subprocess.run(
        [sys.executable, "csrc/objects.py"],
        cwd=tmp_path,
        env={**os.environ, "CXX": "false"},
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"compiling failed (in {tmp_path}/build/objects)\n")


def test_a_compiler_that_fails_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    unit = objects.Unit((CSRC / "common" / "log.cc",), "precompiled/standard.h", "-O3")
    with pytest.raises(objects.CompileError, match="compiling failed"):
        objects.compile_unit(tmp_path, unit)
