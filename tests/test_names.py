"""One word for one thing: no two classes, and no two files of tests, of one name."""

from __future__ import annotations

import ast
from collections import defaultdict

import rooms


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, path in rooms.modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    assert "planner.options" in homes["PlanningOptions"]


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports each by its name alone."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in (rooms.ROOT / "tests").rglob("test_*.py"):
        homes[path.name].append(str(path.parent.relative_to(rooms.ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    assert homes["test_names.py"] == ["tests"]
