"""The direction of imports: folders are layers, lower never imports higher, siblings never meet.

Python by its syntax trees, C++ by its include lines. The layers are those of the README's layout.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent

# From the bottom up. A unit is a module or a package of torch_topoopt; units on one line are
# siblings and do not import each other.
PYTHON_LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "data_model",
            "metrics",
            "own_command",
            "planning_defaults",
            "processes",
            "rank_errors",
            "rates",
            "scratch",
            "versions",
            "_core",
            "_backend",
        }
    ),
    frozenset({"limits"}),
    frozenset({"op_graph", "plan"}),
    frozenset({"search", "topology", "tracing", "rank_layout", "script_trace"}),
    frozenset(
        {
            "architectures",
            "iteration_tasks",
            "plan_difference",
            "planning_options",
            "repeated_layers",
            "model_files",
        }
    ),
    frozenset({"reconfiguration_sim"}),
    frozenset(
        {
            "profiling",
            "sim",
            "architecture_sim",
            "architecture_program",
            "cost",
            "asked_backends",
            "c10d_hooks",
            "c10d_names",
            "fabric",
        }
    ),
    frozenset(
        {"discovery", "iteration_meter", "measuring", "architecture_packets", "operator_timing"}
    ),
    frozenset({"job_network", "doctor"}),
    frozenset({"job"}),
    frozenset({"backend", "planner", "report", "control"}),
    frozenset({"comparison", "parallel"}),
    frozenset({"models", "autoload", "__main__"}),
    frozenset({"launcher"}),
)

CPP_LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"common"}),
    frozenset({"plan", "topology"}),
    frozenset({"transport", "sim"}),
    frozenset({"collectives", "search"}),
    frozenset({"backend"}),
    frozenset({"bind_architectures.h", "bind_iteration.h", "bind_sim.h"}),
    frozenset(
        {
            "bind_architectures.cc",
            "bind_backend.cc",
            "bind_core.cc",
            "bind_iteration.cc",
            "bind_packet.cc",
            "bind_routing.cc",
            "bind_search.cc",
            "bind_sim.cc",
            "bind_topology.cc",
        }
    ),
)


def _level(layers: tuple[frozenset[str], ...], unit: str) -> int:
    for level, units in enumerate(layers):
        if unit in units:
            return level
    raise AssertionError(f"{unit} has no place in the layers of {Path(__file__).name}: give it one")


def _allowed(layers: tuple[frozenset[str], ...], importer: str, imported: str) -> bool:
    return importer == imported or _level(layers, imported) < _level(layers, importer)


def _python_files() -> Iterator[tuple[str, Path]]:
    """(unit, file) of everything that is installed as torch_topoopt."""
    for path in sorted((ROOT / "torch_topoopt").rglob("*.py")):
        unit = path.relative_to(ROOT / "torch_topoopt").parts[0].removesuffix(".py")
        if unit != "__init__":
            yield unit, path
    for folder in ("models", "launcher"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield folder, path


def _imported_units(source: str) -> Iterator[str]:
    """Units of torch_topoopt that a file imports, anywhere in it, type checking included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "torch_topoopt" and len(parts) > 1:
                    yield parts[1]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            parts = (node.module or "").split(".")
            if parts[0] != "torch_topoopt":
                continue
            if len(parts) > 1:
                yield parts[1]
            else:
                yield from (a.name for a in node.names if a.name not in ("log", "__version__"))


def test_python_lower_layers_never_import_higher_ones_nor_siblings() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {unit} imports {imported}"
        for unit, path in _python_files()
        for imported in _imported_units(path.read_text())
        if not _allowed(PYTHON_LAYERS, unit, imported)
    ]
    assert wrong == []


def test_a_wrong_import_would_be_found() -> None:
    found = list(_imported_units("def f():\n    from torch_topoopt import planner\n"))
    assert found == ["planner"]
    assert not _allowed(PYTHON_LAYERS, "plan", "planner")
    assert not _allowed(PYTHON_LAYERS, "search", "topology")
    assert not _allowed(CPP_LAYERS, "transport", "collectives")


def test_the_package_itself_imports_only_the_bottom_layer() -> None:
    imported = set(_imported_units((ROOT / "torch_topoopt" / "__init__.py").read_text()))
    assert imported <= PYTHON_LAYERS[0] - {"_core", "_backend"}


def _cpp_files() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in (".cc", ".h"):
            yield path.relative_to(ROOT / "csrc").parts[0], path


def _includes(source: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', source, re.MULTILINE)


def test_cpp_lower_layers_never_include_higher_ones_nor_siblings() -> None:
    folders = frozenset().union(*CPP_LAYERS)
    wrong = []
    for unit, path in _cpp_files():
        for include in _includes(path.read_text()):
            imported = include.split("/")[0]
            if imported in folders and not _allowed(CPP_LAYERS, unit, imported):
                wrong.append(f"{path.relative_to(ROOT)}: {unit} includes {include}")
    assert wrong == []


def test_only_the_backend_folder_includes_torch() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {include}"
        for unit, path in _cpp_files()
        for include in _includes(path.read_text())
        if re.match(r"(torch|ATen|c10|c10d|caffe2)/", include)
        and unit not in ("backend", "bind_backend.cc")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "module",
    [
        "torch_topoopt",
        *(
            f"torch_topoopt.{m}"
            for m in ("planner", "sim", "report", "fabric.loopback", "fabric.netns.netns_fabric")
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
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
