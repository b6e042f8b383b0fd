"""The direction of imports: lower floors never import higher ones, siblings never meet.

Python by its syntax trees (docs/rooms.py has the floors), C++ by its include lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import pytest
import rooms
from support.limits import limit_s
from support.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

# Folders of csrc/, from the bottom up.
CPP_LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"common"}),
    frozenset({"allocation", "plan", "topology", "sim/core"}),
    frozenset({"transport", "sim/flow", "sim/packet"}),
    frozenset({"transport/frames", "route_control", "sim/iteration"}),
    frozenset({"transport/links", "search/strategies"}),
    frozenset({"transport/tcp", "transport/shm", "transport/libfabric", "search/coarse"}),
    frozenset({"transport/tls", "search/chains"}),
    frozenset({"transport/endpoint"}),
    frozenset({"collectives/group"}),
    frozenset({"collectives/links", "collectives/memory"}),
    frozenset({"collectives", "backend/supervision"}),
    frozenset({"backend/work", "nccl"}),
    frozenset({"backend/staging"}),
    frozenset({"backend"}),
    frozenset({"bind"}),
)


def _level(layers: tuple[frozenset[str], ...], unit: str) -> int:
    for level, units in enumerate(layers):
        if unit in units:
            return level
    raise AssertionError(f"{unit} has no place in the layers of {Path(__file__).name}: give it one")


def _allowed(layers: tuple[frozenset[str], ...], importer: str, imported: str) -> bool:
    return importer == imported or _level(layers, imported) < _level(layers, importer)


def test_no_room_imports_from_its_own_floor_or_a_higher_one() -> None:
    wrong = [
        f"{importer} imports {other}"
        for importer, other in rooms.import_graph().edges
        if not rooms.allowed(rooms.room_of(importer), rooms.room_of(other))
    ]
    assert wrong == []


def test_the_house_stays_small() -> None:
    folders = [path for path in (ROOT / rooms.PACKAGE).iterdir() if (path / "__init__.py").exists()]
    assert len([path for path in folders if not path.is_symlink()]) <= 20
    assert len(rooms.FLOORS) <= 8


def test_no_module_imports_one_that_imports_it() -> None:
    assert _cycles(rooms.import_graph()) == []


def test_no_part_of_a_room_imports_one_that_imports_it() -> None:
    graph = rooms.import_graph()
    for room in {module.rpartition(".")[0] for module in graph if "." in module}:
        parts = nx.DiGraph(
            (a, b)
            for edge in graph.edges
            if all(module.startswith(f"{room}.") for module in edge)
            for a, b in [[module.removeprefix(f"{room}.").partition(".")[0] for module in edge]]
            if a != b
        )
        assert _cycles(parts) == [], room


def _cycles(graph: nx.DiGraph[str]) -> list[list[str]]:
    return [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]


def test_a_wrong_import_would_be_found() -> None:
    known = rooms.modules()
    lazy = "def f():\n    from torch_topoopt.planner import alternation\n"
    assert list(rooms.imported(lazy, known)) == ["planner.alternation"]
    assert list(rooms.imported("from torch_topoopt.plan import Plan", known)) == ["plan"]
    assert list(rooms.imported("import torch_topoopt.launcher.main", known)) == ["launcher.main"]
    assert not rooms.allowed("plan", "planner")
    assert not rooms.allowed("search", "fabric")
    assert _cycles(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])) == [["a", "b", "c"]]
    assert not _allowed(CPP_LAYERS, "transport/tcp", "transport/tls")


def test_the_package_itself_imports_nothing_big() -> None:
    known = rooms.modules()
    assert list(rooms.imported(known[""].read_text(), known)) == ["runtime.metrics"]
    assert list(rooms.imported(known["runtime.metrics"].read_text(), known)) == []
    assert list(rooms.imported(known["runtime"].read_text(), known)) == []


def test_the_rooms_are_drawn_as_they_are() -> None:
    page = rooms.PAGE.read_text(encoding="utf-8")
    assert page == rooms.with_flowchart(page), "python docs/rooms.py --write draws them anew"
    assert "\n  planner --> sim\n" in page
    with refused(ValueError, "page", 0):
        rooms.with_flowchart("no picture")


def test_the_rooms_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([]) == 0
    assert capsys.readouterr().out == rooms.flowchart()
    assert rooms.main(["--draw"]) == 2


def _cpp_files() -> Iterator[tuple[str, Path]]:
    """(folder below csrc/, file)."""
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in (".cc", ".h") and "precompiled" not in path.as_posix():
            yield path.parent.relative_to(ROOT / "csrc").as_posix(), path


def _includes(source: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', source, re.MULTILINE)


def test_cpp_lower_layers_never_include_higher_ones_nor_siblings() -> None:
    folders = frozenset().union(*CPP_LAYERS)
    wrong = []
    for unit, path in _cpp_files():
        for include in _includes(path.read_text()):
            imported = include.rpartition("/")[0]
            if imported in folders and not _allowed(CPP_LAYERS, unit, imported):
                wrong.append(f"{path.relative_to(ROOT)}: {unit} includes {include}")
    assert wrong == []


def test_only_the_backend_folder_includes_torch() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {include}"
        for unit, path in _cpp_files()
        for include in _includes(path.read_text())
        if re.match(r"(torch|ATen|c10|c10d|caffe2)/", include)
        and unit.partition("/")[0] != "backend"
        and path != ROOT / "csrc" / "bind" / "backend.cc"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module",
    [
        "torch_topoopt",
        *(
            f"torch_topoopt.{m}"
            for m in (
                "planner.alternation",
                "sim",
                "report",
                "fabric.loopback",
                "fabric.netns.fabric",
            )
        ),
    ],
)
def test_it_imports_without_the_backend_extension_and_without_torch(module: str) -> None:
    script = f"""
import sys
sys.modules["torch_topoopt._backend"] = None  # importing it raises ImportError
import {module}
assert "torch" not in sys.modules, "torch was imported"
assert "pyroute2" not in sys.modules, "pyroute2 was imported"
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
