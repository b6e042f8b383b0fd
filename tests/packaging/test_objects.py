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
from support.refusals import refused

CSRC = Path(__file__).parents[2] / "csrc"
sys.path.insert(0, str(CSRC))
import objects  # noqa: E402


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("TOPOOPT_DEBUG", "TOPOOPT_BATCH_LINES", "CPPFLAGS", "CXXFLAGS", "CXX"):
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
    source = CSRC / "sim" / "flow" / "fold.cc"
    usual = flags_of(tmp_path, source)
    assert "-O3" in usual
    assert not [f for f in usual if f.startswith("-g")]
    monkeypatch.setenv("TOPOOPT_DEBUG", "1")
    assert {"-Og", "-g"} < set(flags_of(tmp_path, source))


def test_flags_of_the_user_come_last(tmp_path, monkeypatch):
    monkeypatch.setenv("CXXFLAGS", "-O0 -DNAME='a b'")
    assert flags_of(tmp_path, CSRC / "sim" / "flow" / "fold.cc")[-3:] == ["-O0", "'-DNAME=a", "b'"]


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
    with refused(objects.CompileError, "compiling"):
        objects.compile_unit(tmp_path, unit)


# ---- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", ["0", "300", "1500", "1000000"])
def test_a_batch_has_neighbours_of_one_folder_and_every_file_is_in_one(monkeypatch, lines):
    monkeypatch.setenv("TOPOOPT_BATCH_LINES", lines)
    sources = objects.sources("common", "transport/tls", "sim/flow")
    batches = objects._batches(sources)
    assert [source for batch in batches for source in batch] == list(sources)
    assert all(len({source.parent for source in batch}) == 1 for batch in batches)
    assert [objects.TLS_SOURCE] in batches  # it has flags of its own
    for batch in batches:
        together = sum(source.read_text().count("\n") for source in batch)
        assert len(batch) == 1 or together <= int(lines)


def test_a_number_of_lines_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("TOPOOPT_BATCH_LINES", "many")
    with refused(objects.CompileError, "TOPOOPT_BATCH_LINES", "many"):
        objects._batches(objects.sources("common"))


def test_what_has_changed_is_compiled_again_and_nothing_else(tmp_path, monkeypatch):
    """A file of a batch, a header that it includes, and a batch that gets another file."""
    csrc = tmp_path / "csrc"
    monkeypatch.setattr(objects, "CSRC", csrc)
    files = {
        "precompiled.h": "",
        "a/size.h": "constexpr int kSize = 1;\n",
        "a/one.cc": '#include "a/size.h"\nint one() { return kSize; }\n',
        "a/two.cc": "int two() { return 2; }\n",
        "b/three.cc": "int three() { return 3; }\n",
    }
    for name, text in files.items():
        (csrc / name).parent.mkdir(parents=True, exist_ok=True)
        (csrc / name).write_text(text)
    times: dict[str, int] = {}

    def compiled() -> set[str]:
        """The objects that are made anew; all are returned by compile_unit."""
        unit = objects.Unit(objects.sources("a", "b"), "precompiled.h", "-O0")
        made = objects.compile_unit(tmp_path / "build", unit)
        now = {path.name: path.stat().st_mtime_ns for path in made}
        anew = {name for name, time in now.items() if times.get(name) != time}
        times.clear()
        times.update(now)
        return anew

    assert compiled() == {"one.batch.o", "three.o"}
    assert compiled() == set()
    (csrc / "a/two.cc").write_text("int two() { return 22; }\n")
    assert compiled() == {"one.batch.o"}
    (csrc / "a/size.h").write_text("constexpr int kSize = 10;\n")
    assert compiled() == {"one.batch.o"}
    (csrc / "a/zero.cc").write_text("int zero() { return 0; }\n")
    assert compiled() == {"one.batch.o"}
    (csrc / "a/zero.cc").unlink()
    assert compiled() == {"one.batch.o"}
