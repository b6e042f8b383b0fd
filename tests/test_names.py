"""One word for one thing: no two classes, and no two files of tests, of one name.

In C++ the name of a class, struct or enum is unique in csrc/, whatever its namespace. Only a helper
that its owner keeps private, or that is local to a function, may have the name of another class:
nobody else reads it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import rooms
from support.cpp_source import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLASS = re.compile(
    r"\b(class|struct|union|enum)\s+(?:class\s+|struct\s+)?((?:\w+::)*\w+)\b(?!\s*<)[^()=]*$"
)


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, path in rooms.modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    assert "planner.options" in homes["PlanningOptions"]


def _cpp_names(source: str) -> Iterator[str]:
    """Classes, structs and enums that others than their owner can name."""
    code = code_of(source)
    scopes: list[str] = []  # of open braces: "namespace", "public", "private" or "function"
    begin = 0
    for found in re.finditer(r"[{};]|\b(public|private|protected)\s*:(?!:)", code):
        head = code[begin : found.start()]
        begin = found.end()
        if found[1] is not None:
            scopes[-1] = "public" if found[1] == "public" else "private"
        elif found[0] == "}":
            scopes.pop()
        elif found[0] == "{" and (declared := _CLASS.search(head)):
            kind, name = declared.groups()
            if "::" not in name and not {"private", "function"} & set(scopes):
                yield name
            scopes.append("private" if kind == "class" else "public")
        elif found[0] == "{":
            scopes.append("namespace" if re.search(r"\bnamespace\b[\w:\s]*$", head) else "function")


def test_no_two_classes_of_cpp_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted((rooms.ROOT / "csrc").rglob("*")):
        if path.suffix in (".cc", ".h"):
            for name in _cpp_names(path.read_text(encoding="utf-8")):
                homes[name].append(path.relative_to(rooms.ROOT / "csrc").as_posix())
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    assert homes["Link"] == ["transport/links/link.h"]


def test_the_names_of_cpp_are_found() -> None:
    source = """
      namespace a { namespace {
      enum class Kind : int { kOne };
      struct Far;
      class Owner final : public Base<int> {
        struct Hidden { int x = 0; };
       public:
        struct Seen { enum E { kTwo }; };
        void f() { struct Local {}; }
       private:
        class Kept {};
      };
      struct Owner::Outside {};
      template <> struct Owner<int> {};
      }}
    """
    assert list(_cpp_names(source)) == ["Kind", "Owner", "Seen", "E"]


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports each by its name alone."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in (rooms.ROOT / "tests").rglob("test_*.py"):
        homes[path.name].append(str(path.parent.relative_to(rooms.ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    assert homes["test_names.py"] == ["tests"]
